//! The queue pair of one side, with the objects that it needs.

use std::sync::Arc;
use std::time::Duration;

use conformance::{Fixture, Joined, until};
use rdma::{
    Access, AsyncSource, Cq, Data, Gid, Mr, Pd, Qp, QpAttrMask, QpCap, QpOptions, QpState, QpType, RecvWr, SendOp,
    SendWr, Sge, Srq, Status, Wc,
};
use serde::{Deserialize, Serialize};

use crate::fate::Fate;
use crate::pair::QKEY;
use crate::table::Kind;

/// The place of an end.
#[derive(Serialize, Deserialize)]
pub struct Place {
    pub qpn: u32,
    pub gid: [u8; 16],
    pub srqn: u32,
    /// XRC: the number of a shared receive queue of another domain.
    pub foreign: u32,
}

/// All rights but persistence.
pub const ALL: Access = REMOTE.union(Access::LOCAL_WRITE).union(Access::MW_BIND);
/// The access that a peer may be granted.
pub const REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC).union(Access::FLUSH_GLOBAL);

/// The attributes of a side, before a fault changes them.
pub fn joined() -> Joined {
    Joined { access: REMOTE.union(Access::LOCAL_WRITE).bits(), ..Joined::default() }
}

/// One side's objects. The order of the fields is that of their destruction.
pub struct Side {
    pub qp: Arc<Qp>,
    pub srq: Option<Arc<Srq>>,
    /// For XRC: a shared receive queue of another domain.
    foreign: Option<Arc<Srq>>,
    pub cq: Arc<Cq>,
    pub qp_type: QpType,
    joined: Joined,
}

impl Side {
    /// Make a side, in INIT.
    pub fn new(fixture: &Fixture, kind: Kind, target: bool, joined: Joined) -> Side {
        Side::in_domain(fixture, &fixture.pd, kind, target, joined)
    }

    pub fn in_domain(fixture: &Fixture, pd: &Arc<Pd>, kind: Kind, target: bool, joined: Joined) -> Side {
        let cq = fixture.context.create_cq(64, None, 0).expect("ibv_create_cq");
        let qp_type = match (kind, target) {
            (Kind::Xrc, false) => QpType::XrcIni,
            (Kind::Xrc, true) => QpType::XrcTgt,
            (Kind::Uc, _) => QpType::Uc,
            (Kind::Ud, _) => QpType::Ud,
            _ => QpType::Rc,
        };
        let xrcd = (qp_type == QpType::XrcTgt).then(|| fixture.context.open_xrcd().expect("ibv_open_xrcd"));
        let srq = match (kind, target) {
            (Kind::RcSrq, true) => Some(pd.create_srq(16, 4, 0).expect("ibv_create_srq")),
            (Kind::Xrc, true) => {
                let xrcd = xrcd.as_ref().expect("made above");
                Some(pd.create_xrc_srq(16, 4, xrcd, &cq).expect("ibv_create_srq_ex"))
            }
            _ => None,
        };
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 32, max_recv_sge: 4, max_inline_data: 64 };
        let options = QpOptions {
            qp_type,
            send_cq: qp_type.sends().then_some(&cq),
            recv_cq: qp_type.receives().then_some(&cq),
            srq: srq.as_ref().filter(|_| qp_type == QpType::Rc),
            xrcd: xrcd.as_ref(),
            cap,
            sq_sig_all: false,
        };
        let made = match operations(qp_type) {
            0 => pd.create_qp(&options),
            some => pd.create_qp_ex(&options, some),
        };
        let qp = made.unwrap_or_else(|error| panic!("{qp_type:?}: {error}"));
        joined.init(&qp, qp_type);
        let foreign = (qp_type == QpType::XrcTgt).then(|| {
            let domain = fixture.context.open_xrcd().expect("ibv_open_xrcd");
            pd.create_xrc_srq(16, 4, &domain, &cq).expect("ibv_create_srq_ex")
        });
        Side { qp, srq, foreign, cq, qp_type, joined }
    }

    /// A reliable side that is connected to itself, for binding windows.
    pub fn binder(fixture: &Fixture, pd: &Arc<Pd>) -> Side {
        let side = Side::in_domain(fixture, pd, Kind::Rc, false, joined());
        side.connect(&side.place(fixture));
        side
    }

    pub fn place(&self, fixture: &Fixture) -> Place {
        let number = |srq: &Arc<Srq>| srq.number().expect("ibv_get_srq_num");
        let own = self.srq.as_ref().filter(|_| self.qp_type == QpType::XrcTgt);
        let [srqn, foreign] = [own, self.foreign.as_ref()].map(|srq| srq.map_or(0, number));
        Place { qpn: self.qp.number(), gid: fixture.gid.0, srqn, foreign }
    }

    pub fn connect(&self, peer: &Place) {
        self.joined.rtr(&self.qp, self.qp_type, peer.qpn, Gid(peer.gid)).expect("INIT to RTR");
        self.joined.rts(&self.qp, self.qp_type, peer.qpn, Gid(peer.gid)).expect("RTR to RTS");
    }

    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) {
        let wr = RecvWr { wr_id, sges };
        match &self.srq {
            Some(srq) => srq.post_recv(&wr).expect("ibv_post_srq_recv"),
            None => self.qp.post_recv(&wr).expect("ibv_post_recv"),
        }
    }

    pub fn poll(&self) -> Vec<(u64, u32)> {
        let mut out = [Wc::default(); 16];
        let count = self.cq.poll(&mut out).expect("ibv_poll_cq");
        let own = self.qp.number();
        let told = |wc: &Wc| {
            // This is valid whatever the status (`ibv_poll_cq(3)`).
            assert_eq!(wc.qp_num(), own, "{wc:?}");
            (wc.wr_id(), wc.status().0)
        };
        out[..count].iter().map(told).collect()
    }

    pub fn state(&self) -> QpState {
        self.qp.query(QpAttrMask::STATE).expect("ibv_query_qp").state
    }

    /// Post a request that ends here, and wait for its end. Only used before anything else is posted.
    pub fn finish(&self, op: SendOp<'_>) {
        self.qp.post_send(&SendWr::new(300, op, Data::Sges(&[]))).expect("ibv_post_send");
        self.finished();
    }

    /// Wait for the end of request 300.
    pub fn finished(&self) {
        let wcs = until("the end of a local request", || Some(self.poll()).filter(|wcs| !wcs.is_empty()));
        assert_eq!(wcs, [(300, Status::SUCCESS.0)]);
    }

    /// The outcome of the side, as soon as it is the expected one; or, if that does not come about, the actual one.
    /// `before` are completions that were polled already; `granted` is memory that may have been written.
    pub fn fate(
        &self,
        fixture: &Fixture,
        before: Vec<(u64, u32)>,
        wanted: &Fate,
        sorted: bool,
        granted: Option<&Mr>,
    ) -> Fate {
        let mut fate = Fate { completions: before, ..Fate::default() };
        let mut look = || {
            fate.completions.extend(self.poll());
            if sorted {
                fate.completions.sort_unstable();
            }
            while let Ok(event) = fixture.context.async_event() {
                let ours = event.source == AsyncSource::Qp(self.qp.number());
                fate.events.push(if ours { event.kind } else { u32::MAX });
            }
            fate.state = self.state() as u32;
            fate.written = wanted.written;
            if fate == *wanted {
                // This comes last, for it takes time.
                fate.written = granted.is_some_and(is_written);
            }
            fate == *wanted
        };
        let mut patience = 3000;
        while !look() && patience > 0 {
            patience -= 1;
            std::thread::sleep(Duration::from_millis(if patience > 2000 { 0 } else { 1 }));
        }
        // Completions that should not come would come soon.
        std::thread::yield_now();
        look();
        fate.written = granted.is_some_and(is_written);
        fate
    }
}

fn is_written(mr: &Mr) -> bool {
    let mut bytes = vec![0; mr.len()];
    mr.read(0, &mut bytes);
    bytes != vec![0; mr.len()]
}

/// The operations that a service can have built (`ibv_wr_post(3)`).
fn operations(qp_type: QpType) -> u32 {
    use rdma::sys::*;
    let datagram = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let unreliable = datagram
        | IBV_QP_EX_WITH_RDMA_WRITE
        | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | IBV_QP_EX_WITH_BIND_MW
        | IBV_QP_EX_WITH_LOCAL_INV;
    match qp_type {
        QpType::Ud => datagram,
        QpType::Uc => unreliable,
        QpType::Rc | QpType::XrcIni => {
            unreliable
                | IBV_QP_EX_WITH_SEND_WITH_INV
                | IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                | IBV_QP_EX_WITH_ATOMIC_WRITE
                | IBV_QP_EX_WITH_FLUSH
        }
        QpType::XrcTgt => 0,
    }
}

/// The Q_Key of a datagram, right or wrong.
pub fn qkey(wrong: bool) -> u32 {
    QKEY + u32::from(wrong)
}
