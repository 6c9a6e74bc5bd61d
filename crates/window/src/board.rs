//! Requests that the initiator executes: what this process shows its peers, and acting on what they show.

use engine::platform::{LinkId, Nanos, Reach, Shown, ShownId, Span, check_reach};
use memory::board::{VALUES, Writer};
use memory::fds::TrackedFd;
use memory::{OwnSheet, straight};
use verbs::{Access, PdId, Qpn};

use crate::WindowPlatform;
use crate::link::{Link, State};
use crate::peers::monotonic;

/// Up to so many bytes, a peer that polls takes a request from the ring in less time than a system call needs.
const SMALL: u32 = 1024;
/// How long the last look at a peer's life holds. A process number does not come round again so soon.
const LIFE_HOLDS: Nanos = 5_000_000;
/// How long a peer that lives may take for a copy of at most a piece of a message (1 MiB) before we have done with it:
/// it lies, or somebody has stopped it.
const COPY_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// What this process shows.
pub(crate) struct Board {
    writer: Writer<OwnSheet>,
    /// For peers.
    pub fd: TrackedFd,
}

const REGION: u64 = 1 << 32;
const QP: u64 = 2 << 32;

fn tag(id: ShownId) -> u64 {
    match id {
        ShownId::Region(key) => REGION | u64::from(key),
        ShownId::Qp(qpn) => QP | u64::from(qpn.get()),
    }
}

fn pd_word(pd: PdId) -> u64 {
    u64::from(pd.generation) << 32 | u64::from(pd.index)
}

fn pd(word: u64) -> PdId {
    PdId { index: word as u32, generation: (word >> 32) as u32 }
}

fn row(shown: &Shown) -> [u64; VALUES] {
    match *shown {
        Shown::Region { key: _, pd, access, addr, length, iova } => {
            [pd_word(pd), u64::from(access.bits()), addr, length, iova, 0]
        }
        Shown::Qp { qpn: _, peer, pd, access, epoch } => {
            [pd_word(pd), u64::from(access.bits()), u64::from(peer.get()), epoch, 0, 0]
        }
    }
}

fn region(key: u32, row: [u64; VALUES]) -> Shown {
    let [domain, access, addr, length, iova, _] = row;
    Shown::Region { key, pd: pd(domain), access: Access::from_bits_truncate(access as u32), addr, length, iova }
}

fn queue_pair(qpn: Qpn, row: [u64; VALUES]) -> Shown {
    let [domain, access, peer, epoch, ..] = row;
    let access = Access::from_bits_truncate(access as u32);
    Shown::Qp { qpn, peer: Qpn::new(peer as u32), pd: pd(domain), access, epoch }
}

impl WindowPlatform {
    /// Makes the board, unless straight copies are refused. Without one peers send their requests, as they do to a
    /// process that has too much to show.
    pub(crate) fn make_board(&mut self) {
        if self.board.is_none() && self.config.straight {
            self.board = OwnSheet::create()
                .ok()
                .map(|(sheet, fd)| Board { writer: Writer::new(sheet), fd: TrackedFd::new(fd, &self.fds) });
        }
    }

    pub(crate) fn show_row(&mut self, shown: &Shown) {
        self.make_board();
        if let Some(board) = &mut self.board {
            board.writer.show(tag(shown.id()), &row(shown));
        }
    }

    pub(crate) fn take_row_back(&mut self, id: ShownId) {
        if !self.board.as_mut().is_some_and(|board| board.writer.take_back(tag(id))) {
            return;
        }
        // Who was never permitted to copy cannot be copying, whatever its mark says.
        self.quiesce_those(|platform, id| {
            platform.link(id).and_then(|link| link.remote.as_ref()).is_some_and(|remote| remote.we_permitted)
        });
    }

    /// Returns when none of these peers is copying on the strength of what was so before. A link whose peer does not
    /// come to an end is given up.
    pub(crate) fn quiesce_those(&mut self, which: impl Fn(&Self, LinkId) -> bool) {
        for i in 0..self.live.len() {
            let id = self.live[i];
            let lingers = |link: &Link| link.state != State::Dead && !link.quiesce(COPY_PATIENCE);
            if which(self, id) && self.link(id).is_some_and(lingers) {
                self.bury(id);
            }
        }
    }

    /// Executes a request here, if the peer shows that it is allowed.
    pub(crate) fn execute(&mut self, id: LinkId, request: &Reach<'_>) -> Option<u64> {
        let link = self.link_mut(id)?;
        let epoch = act(link, request)?;
        self.straight_done(&[Span { addr: 0, len: request.len, guarded: false }]);
        Some(epoch)
    }
}

fn act(link: &mut Link, request: &Reach<'_>) -> Option<u64> {
    if link.state != State::Up {
        return None;
    }
    let remote = link.remote.as_mut()?;
    if remote.board.is_none() || !remote.it_permitted || (request.len <= SMALL && !link.producer.peer_sleeps()) {
        return None;
    }
    // Not the engine's time, which may be old: a process that was stopped in between must not take it for the present.
    let now = monotonic();
    if now.saturating_sub(remote.alive_at) > LIFE_HOLDS {
        if remote.gone() {
            return None;
        }
        remote.alive_at = now;
    }
    let peer = remote.board.as_ref()?;
    link.copier.marked(link.producer.memory().copying(), || {
        let qp = queue_pair(request.dst, peer.find(tag(ShownId::Qp(request.dst)))?);
        let region = region(request.rkey.0, peer.find(tag(ShownId::Region(request.rkey.0)))?);
        let (addr, epoch) = check_reach(qp, region, request)?;
        let theirs = [Span { addr, len: request.len, guarded: true }];
        let prefix = request.local.prefix;
        let own = [Span { addr: prefix.as_ptr().expose_provenance() as u64, len: request.len, guarded: false }];
        let ours = if prefix.is_empty() { request.local.spans } else { &own[..] };
        let copied = if request.write {
            straight::push(remote.pid, ours, &theirs)
        } else {
            straight::pull(remote.pid, &theirs, ours)
        };
        copied.ok().map(|()| epoch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_is_shown() {
        let pd = PdId { index: 7, generation: 9 };
        let access = Access::REMOTE_READ | Access::LOCAL_WRITE;
        let shown = Shown::Region { key: 0x1234_5678, pd, access, addr: 1 << 40, length: u64::MAX, iova: 3 };
        assert_eq!(region(0x1234_5678, row(&shown)), shown);
        let (qpn, peer) = (Qpn::new(0x12_3456), Qpn::new(0x65_4321));
        let shown = Shown::Qp { qpn, peer, pd, access, epoch: u64::MAX };
        assert_eq!(queue_pair(qpn, row(&shown)), shown);
        assert_ne!(tag(ShownId::Region(5)), tag(ShownId::Qp(Qpn::new(5))));
    }
}
