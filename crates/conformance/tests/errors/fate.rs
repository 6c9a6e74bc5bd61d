//! The outcome of a side, actual and expected.

use rdma::{QpState, Status};
use serde::{Deserialize, Serialize};

use crate::table::{Case, Fault, Kind, Op, Seen};

/// The outcome of a side.
#[derive(Serialize, Deserialize, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// `wr_id` and status, in order.
    pub completions: Vec<(u64, u32)>,
    pub state: u32,
    /// Kinds of events, in order.
    pub events: Vec<u32>,
    /// True if the memory that the target granted was changed.
    pub written: bool,
}

const FLUSHED: u32 = Status::FLUSHED.0;
const LAST_WQE: u32 = rdma::sys::IBV_EVENT_QP_LAST_WQE_REACHED;

const LOC_ACCESS_ERR: u32 = rdma::sys::IBV_WC_LOC_ACCESS_ERR;

/// True if the receive that a WRITE with immediate data would have taken ends with a local access error, because the
/// key does not allow the WRITE (11.6.2).
fn fails_receive(case: &Case) -> bool {
    case.op == Op::WriteImm && case.theirs == Seen::Event(rdma::sys::IBV_EVENT_QP_ACCESS_ERR)
}

/// The receives behind the one for the SEND in front.
const RECEIVES: [u64; 3] = [101, 102, 103];

/// The number of receives that the requests behind the one in question take, if they are executed.
fn taken_behind(case: &Case) -> usize {
    match case.kind {
        // A WRITE, though of no bytes.
        Kind::Uc if case.fault == Fault::QpRight => 0,
        Kind::Uc => 1,
        Kind::Ud => 2,
        _ => 0,
    }
}

/// The state after the initiator's own error (10.3.1.6, 10.3.1.7).
fn broken(kind: Kind) -> u32 {
    (if kind.is_reliable() { QpState::Err } else { QpState::Sqe }) as u32
}

impl Fate {
    fn flush(&mut self, ids: &[u64]) {
        self.completions.extend(ids.iter().map(|id| (*id, FLUSHED)));
    }

    fn finish(&mut self, ids: &[u64]) {
        self.completions.extend(ids.iter().map(|id| (*id, 0)));
    }

    /// The expected outcome of the initiator.
    pub fn of_initiator(case: &Case) -> Fate {
        let mut fate = Fate::default();
        fate.finish(&[1]);
        if case.ours == Status::SUCCESS {
            // The third request is not signaled.
            fate.finish(&[2, 4]);
            fate.state = QpState::Rts as u32;
            return fate;
        }
        fate.completions.push((2, case.ours.0));
        fate.flush(&[3, 4]);
        fate.state = broken(case.kind);
        if matches!(case.kind, Kind::Rc | Kind::RcSrq) {
            fate.flush(&[200, 201]);
        }
        fate
    }

    /// The expected outcome of the target.
    pub fn of_target(case: &Case) -> Fate {
        let mut fate = Fate { state: QpState::Err as u32, ..Fate::default() };
        fate.finish(&[100]);
        fate.add_target(case);
        if fate.state == QpState::Err as u32 && case.kind == Kind::RcSrq {
            fate.events.push(LAST_WQE);
        }
        fate
    }

    fn add_target(&mut self, case: &Case) {
        // The receives of a shared queue stay there.
        let own = case.kind != Kind::RcSrq && case.kind != Kind::Xrc;
        match case.theirs {
            Seen::Quiet => {
                self.state = QpState::Rts as u32;
                if case.ours == Status::SUCCESS && case.fault != Fault::RecvNone {
                    self.finish(&RECEIVES[..taken_behind(case)]);
                }
            }
            Seen::Success => {
                self.state = QpState::Rts as u32;
                self.written = case.op.writes();
                let taken = usize::from(case.op.takes_receive()) + taken_behind(case);
                self.finish(&RECEIVES[..taken]);
            }
            Seen::Recv(status) => {
                self.completions.push((101, status.0));
                if own {
                    self.flush(&[102, 103]);
                }
            }
            Seen::Event(kind) => {
                self.events.push(kind);
                let failed = usize::from(fails_receive(case));
                self.completions.extend(RECEIVES[..failed].iter().map(|id| (*id, LOC_ACCESS_ERR)));
                if own {
                    self.flush(&RECEIVES[failed..]);
                }
            }
        }
    }

    /// The expected outcome of a queue pair that is connected to itself, from the request in question on; and whether
    /// the order of the completions is certain.
    pub fn of_both(case: &Case) -> (Fate, bool) {
        let mut fate = Fate { state: QpState::Err as u32, ..Fate::default() };
        let sends = match case.theirs {
            // The queue pair is in error as a target, before the answer: all its send requests are flushed.
            Seen::Recv(_) | Seen::Event(_) if case.kind.is_reliable() => vec![(2, FLUSHED), (3, FLUSHED), (4, FLUSHED)],
            _ if case.ours == Status::SUCCESS => vec![(2, 0), (4, 0)],
            _ => vec![(2, case.ours.0), (3, FLUSHED), (4, FLUSHED)],
        };
        let certain = case.kind.is_reliable() && case.ours != Status::SUCCESS;
        fate.add_target(case);
        let first = usize::from(matches!(case.theirs, Seen::Recv(_)) || fails_receive(case));
        fate.completions.splice(first..first, sends);
        if case.theirs == Seen::Quiet && case.ours != Status::SUCCESS {
            fate.state = broken(case.kind);
            if case.kind == Kind::Rc && case.fault != Fault::RecvNone {
                fate.flush(&RECEIVES);
            }
        }
        if fate.state == QpState::Err as u32 && case.kind == Kind::RcSrq {
            fate.events.push(LAST_WQE);
        }
        if !certain {
            fate.completions.sort_unstable();
        }
        (fate, certain)
    }

    /// The outcome as text.
    pub fn told(&self) -> String {
        let completions: Vec<String> =
            self.completions.iter().map(|(id, status)| format!("{id} {}", Status(*status))).collect();
        let state = QpState::from_raw(self.state);
        let written = if self.written { ", memory written" } else { "" };
        format!("[{}] {state:?} events {:?}{written}", completions.join(", "), self.events)
    }
}
