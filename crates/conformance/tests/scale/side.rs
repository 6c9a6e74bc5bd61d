//! A queue pair with a buffer, and one message in each direction.

use std::sync::Arc;

use conformance::{Bed, Joint, Wire, collect};
use rdma::{Access, Cq, Data, Gid, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendOp, SendWr, Sge, Status};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub struct Place {
    pub qpn: u32,
    pub gid: [u8; 16],
}

pub const LEN: usize = 64;
pub const RECV: u64 = 1 << 32;

/// A queue pair of an open device.
pub struct Side {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub mr: Arc<Mr>,
}

pub fn create_qp(bed: &Bed, cq: &Arc<Cq>, depth: u32) -> Arc<Qp> {
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
    bed.pd.create_qp(&options).expect("ibv_create_qp")
}

pub fn buffer(bed: &Bed, len: usize) -> Arc<Mr> {
    bed.pd.reg_mr(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ).expect("ibv_reg_mr")
}

pub fn place(bed: &Bed, qp: &Qp) -> Place {
    Place { qpn: qp.number(), gid: bed.gid.0 }
}

pub fn up(qp: &Qp, peer: &Place) {
    Joint::default().up(qp, QpType::Rc, peer.qpn, Gid(peer.gid));
}

pub fn recv(qp: &Qp, wr_id: u64, sges: &[Sge]) {
    qp.post_recv(&RecvWr { wr_id, sges }).expect("ibv_post_recv");
}

pub fn send(qp: &Qp, wr_id: u64, sges: &[Sge]) {
    qp.post_send(&SendWr::new(wr_id, SendOp::Send, Data::Sges(sges))).expect("ibv_post_send");
}

impl Side {
    pub fn new(bed: &Bed) -> Side {
        let cq = bed.context.create_cq(256, None, 0).expect("ibv_create_cq");
        Side { qp: create_qp(bed, &cq, 16), cq, mr: buffer(bed, 2 * LEN) }
    }

    /// Connects over the wire, then one message in each direction.
    pub fn exchange(&self, bed: &Bed, wire: &mut Wire) {
        let peer: Place = wire.exchange(&place(bed, &self.qp));
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

    pub fn send_name(&self) {
        self.mr.write(0, &self.qp.number().to_ne_bytes());
        send(&self.qp, 1, &[self.mr.sge(0, LEN)]);
    }

    /// Waits for the end of what was sent, and for the peer's message.
    pub fn get_name(&self, peer: u32) {
        let all = collect(&self.cq, 2);
        assert!(all.iter().all(|wc| wc.status() == Status::SUCCESS), "{all:?}");
        let mut got = [0; 4];
        self.mr.read(LEN, &mut got);
        assert_eq!(u32::from_ne_bytes(got), peer, "a message of another");
    }
}

/// Exchanges with the test as often as it likes.
pub fn exchange_far(mut wire: Wire) {
    let bed = Bed::open();
    while let Some(true) = wire.try_hear::<bool>() {
        Side::new(&bed).exchange(&bed, &mut wire);
    }
}
