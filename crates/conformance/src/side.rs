//! A queue pair with a buffer, and one message in each direction.

use std::sync::Arc;

use crate::{Fixture, Joined, Wire, collect};
use rdma::{Access, Cq, Data, Gid, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendOp, SendWr, Sge, Status};
use serde::{Deserialize, Serialize};

/// Where a queue pair is.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub struct Place {
    /// Its number.
    pub qpn: u32,
    /// Its device's address.
    pub gid: [u8; 16],
}

/// Bytes of a message.
pub const LEN: usize = 64;
/// wr_id of receives.
pub const RECV: u64 = 1 << 32;

/// A queue pair of an open device.
pub struct Side {
    /// It.
    pub qp: Arc<Qp>,
    /// Of both its queues.
    pub cq: Arc<Cq>,
    /// Two messages: to send, and received.
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

/// Memory that is registered for everything but atomics.
///
/// # Panics
/// If it is refused.
pub fn buffer(fixture: &Fixture, len: usize) -> Arc<Mr> {
    fixture.pd.reg_mr(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).expect("ibv_reg_mr")
}

/// Where one of our queue pairs is.
pub fn place(fixture: &Fixture, qp: &Qp) -> Place {
    Place { qpn: qp.number(), gid: fixture.gid.0 }
}

/// RESET to RTS.
///
/// # Panics
/// If it is refused.
pub fn up(qp: &Qp, peer: &Place) {
    Joined::default().up(qp, QpType::Rc, peer.qpn, Gid(peer.gid));
}

/// Posts a receive.
///
/// # Panics
/// If it is refused.
pub fn recv(qp: &Qp, wr_id: u64, sges: &[Sge]) {
    qp.post_recv(&RecvWr { wr_id, sges }).expect("ibv_post_recv");
}

/// Posts a SEND.
///
/// # Panics
/// If it is refused.
pub fn send(qp: &Qp, wr_id: u64, sges: &[Sge]) {
    qp.post_send(&SendWr::new(wr_id, SendOp::Send, Data::Sges(sges))).expect("ibv_post_send");
}

impl Side {
    /// A new one.
    ///
    /// # Panics
    /// If it is refused.
    pub fn new(fixture: &Fixture) -> Side {
        let cq = fixture.context.create_cq(256, None, 0).expect("ibv_create_cq");
        Side { qp: create_qp(fixture, &cq, 16), cq, mr: buffer(fixture, 2 * LEN) }
    }

    /// Connects over the wire, then one message in each direction.
    pub fn exchange(&self, fixture: &Fixture, wire: &mut Wire) {
        let peer: Place = wire.exchange(&place(fixture, &self.qp));
        up(&self.qp, &peer);
        recv(&self.qp, RECV, &[self.mr.sge(LEN, LEN)]);
        let () = wire.exchange(&());
        self.message(peer.qpn);
    }

    /// Sends one message that names us, and gets one that names the peer.
    pub fn message(&self, peer: u32) {
        self.send_name();
        self.get_name(peer);
    }

    /// Sends a message that names us.
    ///
    /// # Panics
    /// If it is refused.
    pub fn send_name(&self) {
        self.mr.write(0, &self.qp.number().to_ne_bytes());
        send(&self.qp, 1, &[self.mr.sge(0, LEN)]);
    }

    /// Waits for the end of what was sent, and for the peer's message.
    ///
    /// # Panics
    /// If it is another's, or does not come.
    pub fn get_name(&self, peer: u32) {
        let all = collect(&self.cq, 2);
        assert!(all.iter().all(|wc| wc.status() == Status::SUCCESS), "{all:?}");
        let mut got = [0; 4];
        self.mr.read(LEN, &mut got);
        assert_eq!(u32::from_ne_bytes(got), peer, "a message of another");
    }
}

/// Exchanges with the test as often as it likes.
pub fn exchange_remote(mut wire: Wire) {
    let fixture = Fixture::open();
    while let Some(true) = wire.try_hear::<bool>() {
        Side::new(&fixture).exchange(&fixture, &mut wire);
    }
}
