//! Two connected queue pairs of one process, for tests that need no second one.

use std::sync::Arc;

use conformance::{Fixture, Joined, until};
use rdma::{AhAttr, Cq, Mr, Qp, QpAttrMask, QpCap, QpOptions, QpState, QpType, RecvWr, Sge, Srq};

pub const CAP: QpCap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };

/// A queue pair with its own completion queue.
pub struct End {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub qp_type: QpType,
}

impl End {
    pub fn new(fixture: &Fixture, qp_type: QpType, srq: Option<&Arc<Srq>>) -> End {
        End::with_cq(fixture, qp_type, srq, 64)
    }

    pub fn with_cq(fixture: &Fixture, qp_type: QpType, srq: Option<&Arc<Srq>>, cqe: u32) -> End {
        let cq = fixture.context.create_cq(cqe, None, 0).expect("ibv_create_cq");
        let xrcd = (qp_type == QpType::XrcTgt).then(|| fixture.context.open_xrcd().expect("ibv_open_xrcd"));
        let options = QpOptions {
            qp_type,
            send_cq: qp_type.sends().then_some(&cq),
            recv_cq: qp_type.receives().then_some(&cq),
            srq,
            xrcd: xrcd.as_ref(),
            cap: CAP,
            sq_sig_all: false,
        };
        let qp = fixture.pd.create_qp(&options).expect("ibv_create_qp");
        End { qp, cq, qp_type }
    }

    pub fn up(&self, fixture: &Fixture, joined: &Joined, peer: u32) {
        joined.up(&self.qp, self.qp_type, peer, fixture.gid);
    }

    pub fn state(&self) -> QpState {
        self.qp.query(QpAttrMask::STATE).expect("ibv_query_qp").state
    }

    pub fn reaches(&self, state: QpState) {
        until(&format!("state {state:?}, not {:?}", self.state()), || (self.state() == state).then_some(()));
    }

    pub fn recv(&self, wr_id: u64, sges: &[Sge]) {
        self.qp.post_recv(&RecvWr { wr_id, sges }).expect("ibv_post_recv");
    }

    /// The `wr_id` and the status of the next completions.
    pub fn completions(&self, count: usize) -> Vec<(u64, rdma::Status)> {
        conformance::collect(&self.cq, count).iter().map(|wc| (wc.wr_id(), wc.status())).collect()
    }

    /// True if nothing has completed, and after a while still nothing has.
    pub fn is_silent(&self) -> bool {
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.cq.poll(&mut [rdma::Wc::default()]).expect("ibv_poll_cq") == 0
    }
}

/// A connected pair.
pub fn pair(fixture: &Fixture, qp_type: QpType, joined: &Joined) -> (End, End) {
    let (a, b) = (End::new(fixture, qp_type, None), End::new(fixture, qp_type, None));
    a.up(fixture, joined, b.qp.number());
    b.up(fixture, joined, a.qp.number());
    (a, b)
}

/// A region with every right.
pub fn region(fixture: &Fixture, len: usize) -> Arc<Mr> {
    use rdma::Access as A;
    let all = A::LOCAL_WRITE | A::REMOTE_WRITE | A::REMOTE_READ | A::REMOTE_ATOMIC | A::MW_BIND;
    fixture.pd.reg_mr(len, all).expect("ibv_reg_mr")
}

/// An address handle for a datagram queue pair of this process.
pub fn way(fixture: &Fixture, pd: &Arc<rdma::Pd>) -> Arc<rdma::Ah> {
    let attr =
        AhAttr { dgid: fixture.gid, is_global: true, port_num: conformance::PORT, hop_limit: 1, ..AhAttr::default() };
    pd.create_ah(&attr).expect("ibv_create_ah")
}

/// The kinds of the events that wait at a context.
pub fn events(fixture: &Fixture, count: usize) -> Vec<u32> {
    fixture.context.set_nonblocking().expect("fcntl");
    let mut kinds = Vec::new();
    until(&format!("{count} events"), || {
        while let Ok(event) = fixture.context.async_event() {
            kinds.push(event.kind);
        }
        (kinds.len() >= count).then_some(())
    });
    kinds
}

/// The Q_Key of all datagrams here.
pub const QKEY: u32 = 0x1111_1111;
