//! A queue pair with a buffer, and one message in each direction.

use std::sync::Arc;

use crate::{Fixture, Joined, Wire, collect};
use rdma::{Access, Cq, Data, Gid, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendOp, SendWr, Sge, Status};
use serde::{Deserialize, Serialize};

/// The place of a queue pair.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub struct Place {
    /// The number of the queue pair.
    pub qpn: u32,
    /// The address of its device.
    pub gid: [u8; 16],
}

/// The bytes of a message.
pub const LEN: usize = 64;
/// The wr_id of receives.
pub const RECV: u64 = 1 << 32;

/// A queue pair of an open device.
pub struct Side {
    /// The queue pair.
    pub qp: Arc<Qp>,
    /// The completion queue of both its queues.
    pub cq: Arc<Cq>,
    /// The memory for two messages: one to send, one received.
    pub mr: Arc<Mr>,
}

/// An RC queue pair, whose queues hold `depth` requests each.
///
/// # Panics
/// If it is refused.
pub fn create_qp(fixture: &Fixture, cq: &Arc<Cq>, depth: u32) -> Arc<Qp> {
    let cap = QpCap { max_send_wr: depth, max_recv_wr: depth, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let options = QpOptions {
        qp_type: QpType::Rc,
        send_cq: Some(cq),
        recv_cq: Some(cq),
        srq: None,
        xrcd: None,
        cap,
        sq_sig_all: true,
    };
    fixture.pd.create_qp(&options).expect("ibv_create_qp")
}

/// Register memory for everything but atomics.
///
/// # Panics
/// If it is refused.
pub fn buffer(fixture: &Fixture, len: usize) -> Arc<Mr> {
    fixture.pd.reg_mr(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).expect("ibv_reg_mr")
}

/// The place of a local queue pair.
pub fn place(fixture: &Fixture, qp: &Qp) -> Place {
    Place { qpn: qp.number(), gid: fixture.gid.0 }
}

/// Move from RESET to RTS.
///
/// # Panics
/// If it is refused.
pub fn up(qp: &Qp, peer: &Place) {
    Joined::default().up(qp, QpType::Rc, peer.qpn, Gid(peer.gid));
}

/// Post a receive.
///
/// # Panics
/// If it is refused.
pub fn recv(qp: &Qp, wr_id: u64, sges: &[Sge]) {
    qp.post_recv(&RecvWr { wr_id, sges }).expect("ibv_post_recv");
}

/// Post a SEND.
///
/// # Panics
/// If it is refused.
pub fn send(qp: &Qp, wr_id: u64, sges: &[Sge]) {
    qp.post_send(&SendWr::new(wr_id, SendOp::Send, Data::Sges(sges))).expect("ibv_post_send");
}

impl Side {
    /// Make a side.
    ///
    /// # Panics
    /// If it is refused.
    pub fn new(fixture: &Fixture) -> Side {
        let cq = fixture.context.create_cq(256, None, 0).expect("ibv_create_cq");
        Side { qp: create_qp(fixture, &cq, 16), cq, mr: buffer(fixture, 2 * LEN) }
    }

    /// Connect over the wire, then exchange one message in each direction.
    pub fn exchange(&self, fixture: &Fixture, wire: &mut Wire) {
        let peer: Place = wire.exchange(&place(fixture, &self.qp));
        up(&self.qp, &peer);
        recv(&self.qp, RECV, &[self.mr.sge(LEN, LEN)]);
        let () = wire.exchange(&());
        self.message(peer.qpn);
    }

    /// Send one message with this side's number, and receive one with the peer's.
    pub fn message(&self, peer: u32) {
        self.send_name();
        self.get_name(peer);
    }

    /// Send a message with this side's number.
    ///
    /// # Panics
    /// If it is refused.
    pub fn send_name(&self) {
        self.mr.write(0, &self.qp.number().to_ne_bytes());
        send(&self.qp, 1, &[self.mr.sge(0, LEN)]);
    }

    /// Wait for the end of the send, and for the peer's message.
    ///
    /// # Panics
    /// If the message is of another peer, or does not come.
    pub fn get_name(&self, peer: u32) {
        let all = collect(&self.cq, 2);
        assert!(all.iter().all(|wc| wc.status() == Status::SUCCESS), "{all:?}");
        let mut got = [0; 4];
        self.mr.read(LEN, &mut got);
        assert_eq!(u32::from_ne_bytes(got), peer, "a message of another");
    }
}

/// Exchange messages with the test as often as it asks.
pub fn exchange_remote(mut wire: Wire) {
    let fixture = Fixture::open();
    while let Some(true) = wire.try_hear::<bool>() {
        Side::new(&fixture).exchange(&fixture, &mut wire);
    }
}
