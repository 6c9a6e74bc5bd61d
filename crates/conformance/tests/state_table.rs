//! `ibv_modify_qp` against the state table, for every type, every pair of states and every attribute.

use std::fmt::Write as _;

use conformance::{Fixture, Joined, PORT, until};
use rdma::{AhAttr, Cq, Data, Errno, Qp, QpAttr, QpAttrMask as M, QpCap, QpOptions, QpState as S, QpType as T};
use rdma::{SendOp, SendWr, Sge};
use std::sync::Arc;
use verbs::state;

struct Maker {
    fixture: Fixture,
    cq: Arc<Cq>,
    xrcd: Arc<rdma::Xrcd>,
    peer: Peer,
}

/// The peer of the queue pairs.
#[derive(Clone, Copy, PartialEq)]
enum Peer {
    Nobody,
    Themselves,
}

/// A number that no queue pair has.
const NOBODY: u32 = 0xff_fffe;

impl Maker {
    fn new(peer: Peer) -> Self {
        let fixture = Fixture::open();
        let cq = fixture.context.create_cq(64, None, 0).expect("ibv_create_cq");
        let xrcd = fixture.context.open_xrcd().expect("ibv_open_xrcd");
        Maker { fixture, cq, xrcd, peer }
    }

    fn create(&self, ty: T) -> Arc<Qp> {
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let options = QpOptions {
            qp_type: ty,
            send_cq: ty.sends().then_some(&self.cq),
            recv_cq: ty.receives().then_some(&self.cq),
            srq: None,
            xrcd: (ty == T::XrcTgt).then_some(&self.xrcd),
            cap,
            sq_sig_all: true,
        };
        self.fixture.pd.create_qp(&options).unwrap_or_else(|error| panic!("{ty:?}: {error}"))
    }

    /// Every attribute with a value that is in range.
    fn attr(&self, qp: &Qp, from: S, to: S) -> QpAttr {
        let joined = Joined::default();
        let peer = if self.peer == Peer::Themselves { qp.number() } else { NOBODY };
        QpAttr {
            state: to,
            cur_state: from,
            alt_ah: AhAttr { dgid: self.fixture.gid, is_global: true, port_num: PORT, ..AhAttr::default() },
            alt_port_num: PORT,
            en_sqd_async_notify: true,
            rate_limit: 1000,
            ..joined.attr(peer, 7, self.fixture.gid)
        }
    }

    /// A queue pair in a state; `None` if its type does not have that state.
    fn in_state(&self, ty: T, state: S) -> Option<Arc<Qp>> {
        let qp = self.create(ty);
        let way: &[S] = match state {
            S::Reset => &[],
            S::Init => &[S::Init],
            S::Rtr => &[S::Init, S::Rtr],
            S::Rts => &[S::Init, S::Rtr, S::Rts],
            S::Sqd => &[S::Init, S::Rtr, S::Rts, S::Sqd],
            S::Sqe if matches!(ty, T::Uc | T::Ud) => &[S::Init, S::Rtr, S::Rts],
            S::Sqe => return None,
            S::Err => &[S::Err],
        };
        let mut from = S::Reset;
        for &to in way {
            let (required, _) = state::transition(ty, from, to).expect("a row of the table");
            let result = qp.modify(&self.attr(&qp, from, to), M::STATE | required);
            result.unwrap_or_else(|error| panic!("{ty:?} {from:?} -> {to:?}: {error}"));
            from = to;
        }
        if state == S::Sqe {
            self.break_sends(&qp, ty);
        }
        let now = qp.query(M::STATE).expect("ibv_query_qp").state;
        assert_eq!(now, state, "{ty:?}: the way to {state:?}");
        Some(qp)
    }

    /// Only a send that fails here leads to SQE (IBTA vol. 1, 10.3.1.6).
    fn break_sends(&self, qp: &Qp, ty: T) {
        let to = AhAttr { dgid: self.fixture.gid, is_global: true, port_num: PORT, ..AhAttr::default() };
        let ah = self.fixture.pd.create_ah(&to).expect("ibv_create_ah");
        let nothing = [Sge::raw(0x1000, 8, 0)];
        let mut wr = SendWr::new(1, SendOp::Send, Data::Sges(&nothing));
        wr.to = (ty == T::Ud).then_some((&*ah, NOBODY, 1));
        qp.post_send(&wr).expect("ibv_post_send");
        until("the state SQE", || (qp.query(M::STATE).expect("ibv_query_qp").state == S::Sqe).then_some(()));
        let mut out = [rdma::Wc::default(); 4];
        while self.cq.poll(&mut out).expect("ibv_poll_cq") > 0 {}
    }
}

/// The attributes that Linux takes out of a mask before it checks the table, so that programs can set both sides of an
/// XRC connection alike (uverbs, `modify_qp_mask`).
fn without_meaning(ty: T) -> M {
    match ty {
        T::XrcIni => M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        T::XrcTgt => M::MAX_QP_RD_ATOMIC | M::RETRY_CNT | M::RNR_RETRY,
        _ => M::empty(),
    }
}

/// The masks to try for a transition: the required one; that one without each bit; that one with each other bit. The
/// table decides which of them are right.
fn masks(required: M, from: S, to: S) -> Vec<M> {
    let whole = M::STATE | required;
    let mut masks = vec![whole];
    masks.extend(required.iter().map(|one| whole - one));
    masks.extend(M::all().iter().filter(|one| !whole.contains(*one)).map(|one| whole | one));
    if from == to {
        // Without a state, attributes change in place.
        masks.extend(masks.clone().into_iter().map(|mask| mask - M::STATE));
    }
    masks
}

#[test]
fn every_transition_with_every_attribute() {
    every_transition(Peer::Nobody);
}

#[test]
fn every_transition_of_queue_pairs_connected_to_themselves() {
    every_transition(Peer::Themselves);
}

fn every_transition(peer: Peer) {
    let maker = Maker::new(peer);
    let (mut tried, mut wrong) = (0, Vec::new());
    for ty in T::ALL {
        for from in S::ALL {
            for to in S::ALL {
                let (required, _) = state::transition(ty, from, to).unwrap_or((M::empty(), M::empty()));
                let mut ready: Option<Arc<Qp>> = None;
                for mask in masks(required, from, to) {
                    let qp = match ready.take() {
                        Some(qp) => qp,
                        None => match maker.in_state(ty, from) {
                            Some(qp) => qp,
                            None => continue,
                        },
                    };
                    let target = if mask.contains(M::STATE) { to } else { from };
                    let allowed = state::allows(ty, from, target, mask - without_meaning(ty));
                    let before = qp.query(M::all()).expect("ibv_query_qp");
                    let result = qp.modify(&maker.attr(&qp, from, to), mask);
                    let shown = qp.shown_state();
                    let after = qp.query(M::all()).expect("ibv_query_qp");
                    tried += 1;
                    let right = match result {
                        Ok(()) => allowed && after.state == target && shown == Some(target),
                        Err(error) => {
                            !allowed && error.errno == Errno::EINVAL && after == before && shown == Some(from)
                        }
                    };
                    if !right {
                        wrong.push(format!(
                            "{ty:?} {from:?} -> {to:?} {mask:?}: the table says {allowed}, the device {result:?}; \
                             state {:?}, shown {shown:?}, attributes changed: {}",
                            after.state,
                            after != before
                        ));
                    }
                    if result.is_err() {
                        ready = Some(qp);
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried} cases:\n{}", wrong.len(), wrong.join("\n"));
    println!("{tried} cases");
}

#[test]
fn values_out_of_range_are_refused() {
    let maker = Maker::new(Peer::Nobody);
    let base = maker.attr(&maker.create(T::Rc), S::Init, S::Rtr);
    let rtr: &[(&str, QpAttr)] = &[
        ("path_mtu 0", QpAttr { path_mtu: 0, ..base }),
        ("path_mtu 6", QpAttr { path_mtu: 6, ..base }),
        ("min_rnr_timer 32", QpAttr { min_rnr_timer: 32, ..base }),
        ("max_dest_rd_atomic 255", QpAttr { max_dest_rd_atomic: 255, ..base }),
        ("no GRH", QpAttr { ah: AhAttr { is_global: false, ..base.ah }, ..base }),
        ("port 2", QpAttr { ah: AhAttr { port_num: 2, ..base.ah }, ..base }),
        ("gid index 255", QpAttr { ah: AhAttr { sgid_index: 255, ..base.ah }, ..base }),
    ];
    let rts: &[(&str, QpAttr)] = &[
        ("timeout 32", QpAttr { timeout: 32, ..base }),
        ("retry_cnt 8", QpAttr { retry_cnt: 8, ..base }),
        ("rnr_retry 8", QpAttr { rnr_retry: 8, ..base }),
        ("max_rd_atomic 255", QpAttr { max_rd_atomic: 255, ..base }),
    ];
    let init: &[(&str, QpAttr)] = &[
        ("port 0", QpAttr { port_num: 0, ..base }),
        ("port 2", QpAttr { port_num: 2, ..base }),
        ("pkey_index 1", QpAttr { pkey_index: 1, ..base }),
    ];
    for (from, to, cases) in [(S::Reset, S::Init, init), (S::Init, S::Rtr, rtr), (S::Rtr, S::Rts, rts)] {
        let (required, _) = state::transition(T::Rc, from, to).expect("a row");
        for (name, attr) in cases {
            let qp = maker.in_state(T::Rc, from).expect("a state of RC");
            let error = qp.modify(&QpAttr { state: to, ..*attr }, M::STATE | required).expect_err(name);
            assert_eq!(error.errno, Errno::EINVAL, "{name}");
            assert_eq!(qp.query(M::STATE).expect("ibv_query_qp").state, from, "{name}");
        }
    }
}

#[test]
fn a_wrong_current_state_is_refused() {
    let maker = Maker::new(Peer::Nobody);
    for believed in S::ALL {
        let qp = maker.in_state(T::Rc, S::Rtr).expect("a state of RC");
        let (required, _) = state::transition(T::Rc, S::Rtr, S::Rts).expect("a row");
        let attr = QpAttr { cur_state: believed, ..maker.attr(&qp, S::Rtr, S::Rts) };
        let result = qp.modify(&attr, M::STATE | M::CUR_STATE | required);
        assert_eq!(result.is_ok(), believed == S::Rtr, "{believed:?}: {result:?}");
    }
}

fn names(mask: M) -> String {
    let names: Vec<&str> = mask.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { "-".into() } else { names.join(" ") }
}

/// The graph as text.
fn graph() -> String {
    let mut text =
        String::from("# State, required attributes / permitted attributes. Generated from verbs::state::TABLE.\n");
    for ty in T::ALL {
        let _ = writeln!(text, "\n{ty:?}");
        for from in S::ALL {
            for to in S::ALL {
                if let Some((required, optional)) = state::transition(ty, from, to) {
                    let _ = writeln!(text, "  {from:?} -> {to:?}: {} / {}", names(required), names(optional));
                }
            }
        }
    }
    text
}

/// A change of the table shows as a change of the text; `SOFTRNIC_BLESS=1` writes it anew.
#[test]
fn the_graph_is_the_known_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/state_graph.txt");
    let now = graph();
    if std::env::var_os("SOFTRNIC_BLESS").is_some() {
        std::fs::write(path, &now).expect("the file of the graph");
    }
    let known = std::fs::read_to_string(path).unwrap_or_default();
    assert!(known == now, "the state graph differs from {path}; now:\n{now}");
}
