//! Facts for reports: the connection manager's ids.

use std::time::Duration;

use report::facts::{Cm as CmFacts, CmId, CmState};
use report::streams::Starting;
use report::text::screaming;

use crate::conn::State as Handshake;
use crate::ids::{Id, IdKey, Phase, State};
use crate::manager::Cm;
use crate::mpa::Mpa;
use crate::tcp::Side;

impl Cm {
    /// The facts of all ids. The call waits for the lock no longer than `patience`.
    pub fn facts(&self, patience: Duration) -> CmFacts {
        let Some(state) = self.try_lock(patience) else {
            let why = "a thread of the program holds the connection manager's lock, and does not let go";
            return CmFacts { locked: Some(why.into()), ..CmFacts::default() };
        };
        let now = nic::now();
        let mut ids: Vec<CmId> = state.ids.iter().map(|(key, id)| state.id_facts(*key, id, now)).collect();
        ids.sort_by_key(|id| id.number);
        CmFacts { locked: None, ids, starting: state.starting() }
    }
}

impl State {
    fn starting(&self) -> Starting {
        let mut all = Starting::default();
        for starting in self.tcp.starting.values() {
            *match starting.side {
                Side::Connecting(_) => &mut all.connecting,
                Side::Asking(_) => &mut all.asking,
                Side::Waiting(..) => &mut all.waiting,
                Side::Asked(_) => &mut all.asked,
            } += 1;
        }
        all
    }

    fn id_facts(&self, key: IdKey, id: &Id, now: u64) -> CmId {
        let mpa = id.mpa.as_ref();
        let handshake = id.conn.as_ref().map(|conn| conn.state()).or(mpa.map(Mpa::state));
        let until = |at: u64| at.saturating_sub(now);
        let unread = id.channel.queue.lock();
        CmId {
            number: key.0,
            // An id that is tied to no device yet, as one of a wildcard or of iWARP's loopback, counts as the first's.
            iwarp: id.device.unwrap_or(self.nic.settings().devices.first()).is_iwarp(),
            port_space: id.port_space,
            phase: phase(id.phase).into(),
            handshake: handshake.map(state),
            src: id.src.map(|addr| addr.to_string()),
            dst: id.dst.map(|addr| addr.to_string()),
            qpn: id.conn.as_ref().map_or(0, |conn| conn.local.qpn),
            pid: id.link.and_then(|link| self.links.pid(link)),
            age_ns: id.conn.as_ref().and_then(|conn| conn.asked_at()).map(|at| now.saturating_sub(at)),
            left_ns: id.conn.as_ref().and_then(|conn| conn.deadline()).map(until),
            repeats_left: id.conn.as_ref().map_or(0, |conn| conn.repeats_left()),
            retrying_ns: id.retry.next.map(|_| until(id.retry.until)),
            backlog_room: id.listener.as_ref().map(|listener| listener.room),
            parked: id.listener.as_ref().map_or(0, |listener| listener.parked.len() as u32),
            unread: unread
                .iter()
                .filter(|queued| queued.id == key)
                .map(|queued| screaming(&format!("{:?}", queued.event.kind)))
                .collect(),
            undecided: id.awaited_by.is_none() && matches!(handshake, Some(Handshake::ReqRcvd | Handshake::SidrRcvd)),
        }
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle => "idle",
        Phase::Bound => "bound",
        Phase::AddrResolved => "address resolved",
        Phase::RouteResolved => "route resolved",
        Phase::Listen => "listen",
        Phase::Connect => "connect",
    }
}

fn state(state: Handshake) -> CmState {
    match state {
        Handshake::Idle => CmState::Idle,
        Handshake::ReqSent => CmState::ReqSent,
        Handshake::ReqRcvd => CmState::ReqRcvd,
        Handshake::RepSent => CmState::RepSent,
        Handshake::RepRcvd => CmState::RepRcvd,
        Handshake::Established => CmState::Established,
        Handshake::DreqSent => CmState::DreqSent,
        Handshake::DreqRcvd => CmState::DreqRcvd,
        Handshake::TimeWait => CmState::TimeWait,
        Handshake::SidrSent => CmState::SidrSent,
        Handshake::SidrRcvd => CmState::SidrRcvd,
    }
}
