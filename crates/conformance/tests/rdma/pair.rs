//! Two connected queue pairs of this process.

use std::sync::Arc;

use conformance::{Fixture, Joined, collect};
use rdma::{CompChannel, Cq, Qp, QpCap, QpOptions, QpType, Status, Wc};

/// The number of requests that each queue holds.
pub const DEPTH: u32 = 16;
/// The number of inline bytes of a request.
pub const INLINE: u32 = 64;

pub struct Pair {
    pub fixture: Fixture,
    pub cq: Arc<Cq>,
    pub from: Arc<Qp>,
    pub to: Arc<Qp>,
}

impl Pair {
    pub fn new() -> Pair {
        Self::with_channel(None)
    }

    /// A pair with a completion queue that reports to a channel of the context.
    pub fn with_channel(make: Option<fn(&Fixture) -> Arc<CompChannel>>) -> Pair {
        let fixture = Fixture::open();
        let channel = make.map(|make| make(&fixture));
        let cq = fixture.context.create_cq(4 * DEPTH, channel.as_ref(), 7).expect("ibv_create_cq");
        let create = || {
            let cap = QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: INLINE,
            };
            let (send_cq, recv_cq) = (Some(&cq), Some(&cq));
            let qp_type = QpType::Rc;
            let options = QpOptions { qp_type, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true };
            fixture.pd.create_qp(&options).expect("ibv_create_qp")
        };
        let (from, to) = (create(), create());
        Joined::default().up(&from, QpType::Rc, to.number(), fixture.gid);
        Joined::default().up(&to, QpType::Rc, from.number(), fixture.gid);
        Pair { fixture, cq, from, to }
    }

    /// The next completions, which must be of success.
    pub fn done(&self, count: usize) -> Vec<Wc> {
        let all = collect(&self.cq, count);
        assert!(all.iter().all(|wc| wc.status() == Status::SUCCESS), "{all:?}");
        all
    }
}
