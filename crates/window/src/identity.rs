//! Which links lead to one process, where the kernel gives the process no number here (another PID namespace).
//!
//! A link that this process made leads to the holder of the block's name, by the kernel's word. A link that was made to
//! this process says nothing about its maker but the user. So each HELLO carries a secret of this link, and a block of
//! its maker. The receiver returns the secret over the link that it made itself to that block, and over those that it
//! knows to lead to the same process. The process that returns a secret is the one at the end of the link over which
//! the secret went out: no other process has heard it. Until a secret has come back over it, a link from a process
//! without a number is held.
//!
//! The block at which the link came in is returned with the secret, and must be that to which the link was made. Else a
//! process that was given a secret could pass it on in a HELLO of its own, name the block of the process that gave it,
//! and have another process return it. A maker that names a block that is not its own gives its own secret away, and no
//! other.
//!
//! The link back may fail for a while, or go again: no descriptor is left on either side, or the peer's queue of
//! connections is full. It is tried again with growing pauses. A visitor whose maker is not known within [`PATIENCE`]
//! is turned away, and its maker connects anew.

use std::collections::HashMap;

use wire::{LinkId, Nanos};

use crate::WindowEnv;
use crate::link::{Remote, State};
use crate::peers::monotonic;
use crate::rendezvous::{BLOCKS, Greeting, Message, SECRET};
use crate::socket;

/// The pause between a failed link back and the next attempt; each further pause is twice as long.
const FIRST_PAUSE: Nanos = 1_000_000;
/// The time from the visit until the visitor is turned away.
const PATIENCE: Nanos = 5_000_000_000;

/// The facts that links tell about the processes at their other ends.
#[derive(Default)]
pub(crate) struct Identity {
    /// The secret of this process's HELLO over the link, and the block to which the link was made.
    pub own: Option<([u8; SECRET], u16)>,
    /// What the peer's HELLO over the link said.
    heard: Option<Heard>,
    /// Links over which that has been returned.
    returned: Vec<LinkId>,
    /// A process without a number here has returned over this link what it heard over another.
    pub known: bool,
}

/// The content of a HELLO.
#[derive(Clone, Copy)]
struct Heard {
    secret: [u8; SECRET],
    /// The maker's block, as it says.
    named: u16,
    /// The block of this process to which the link was made.
    at: u16,
}

/// A visitor whose maker is not known yet.
pub(crate) struct Unreached {
    /// The link that it has made.
    visitor: LinkId,
    /// The time of the next attempt.
    pub at: Nanos,
    /// The pause before that.
    pause: Nanos,
    /// The time at which the visitor is turned away.
    until: Nanos,
}

impl Identity {
    /// Of a link that was made to this process.
    pub fn of_visitor(greeting: &Greeting, at: u16) -> Identity {
        let heard = Heard { secret: greeting.secret, named: greeting.block, at };
        Identity { heard: Some(heard), ..Identity::default() }
    }
}

impl Remote {
    /// True if nothing may be taken from the link: its maker is not known.
    pub(crate) fn is_unknown(&self) -> bool {
        self.visits && self.who.pid == 0 && !self.identity.known
    }

    /// True if the other is the same process.
    pub fn is_same(&self, other: &Remote) -> bool {
        self.peer == other.peer
    }
}

impl WindowEnv {
    fn remote_of(&self, id: LinkId) -> Option<&Remote> {
        self.link(id).filter(|link| matches!(link.state, State::Up | State::Held))?.remote.as_ref()
    }

    /// A block of this process, for its HELLOs; 0 if it has none.
    pub(crate) fn own_block(&self) -> u16 {
        self.own_blocks.first().map_or(0, |(block, _)| *block)
    }

    /// Makes what is needed to know a process without a number here: a link to the block that it names.
    pub(crate) fn connect_back(&mut self, id: LinkId) {
        if self.seek_maker(id) {
            let now = monotonic();
            let (at, until) = (now + FIRST_PAUSE, now + PATIENCE);
            self.unreached.push(Unreached { visitor: id, at, pause: FIRST_PAUSE, until });
        }
    }

    /// Tries again the links back for which the time has come.
    pub(crate) fn connect_back_again(&mut self, now: Nanos) {
        for mut one in std::mem::take(&mut self.unreached) {
            if one.at > now {
                self.unreached.push(one);
            } else if self.seek_maker(one.visitor) {
                if one.until <= now {
                    self.lose(one.visitor);
                    continue;
                }
                one.pause *= 2;
                one.at = one.until.min(now + one.pause);
                self.unreached.push(one);
            }
        }
    }

    /// Makes the link back to a visitor's maker if there is none, and gives true as long as the maker is not known: a
    /// link that was made can go again before the secret has come back over it.
    fn seek_maker(&mut self, id: LinkId) -> bool {
        let heard = self.remote_of(id).filter(|remote| remote.is_unknown()).and_then(|remote| remote.identity.heard);
        let Some(Heard { named, .. }) = heard else { return false };
        // A block that no other process can hold stays without a link, however often it is tried.
        if BLOCKS.contains(&named) && self.own_blocks.iter().all(|(own, _)| *own != named) {
            let _ = self.resolve_block(named);
        }
        true
    }

    /// Returns secrets wherever they may be returned and have not been: a link has come, or two are known to lead to
    /// one process.
    pub(crate) fn return_secrets(&mut self) {
        let mut of_peer: HashMap<u64, Vec<LinkId>> = HashMap::new();
        for &id in &self.live {
            if let Some(remote) = self.remote_of(id) {
                of_peer.entry(remote.peer).or_default().push(id);
            }
        }
        for &from in of_peer.values().flatten() {
            let Some(its) = self.remote_of(from) else { continue };
            let Some(Heard { secret, named, at }) = its.identity.heard else { continue };
            let same = of_peer.get(&its.peer).into_iter().flatten().copied();
            let over = self.route_to(named).into_iter().chain(same);
            let mut over: Vec<_> = over.filter(|over| *over != from && !its.identity.returned.contains(over)).collect();
            over.sort_unstable_by_key(|over| over.0);
            over.dedup();
            for over in over {
                let Some(other) = self.remote_of(over) else { continue };
                let _ = socket::send(&other.socket, &Message::Echo { secret, block: at }, &[]);
                if let Some(its) = self.link_mut(from).and_then(|link| link.remote.as_mut()) {
                    its.identity.returned.push(over);
                }
            }
        }
    }

    /// A secret has come back over a link: the process that returns it is the one at the end of the link over which it
    /// went out.
    pub(crate) fn hear_secret(&mut self, id: LinkId, told: &([u8; SECRET], u16)) {
        let Some(its) = self.remote_of(id) else { return };
        let (who, from) = (its.who, its.peer);
        let peer = self.live.iter().find_map(|&over| {
            let remote = self.remote_of(over).filter(|_| over != id)?;
            let same = remote.who == who && remote.identity.own.as_ref() == Some(told);
            same.then_some(remote.peer)
        });
        // What a peer repeats changes nothing: no link is marked, and no secret is returned again.
        let Some(peer) = peer.filter(|peer| *peer != from) else { return };
        for id in self.live.clone() {
            let Some(link) = self.link_mut(id) else { continue };
            let Some(remote) = link.remote.as_mut().filter(|remote| [from, peer].contains(&remote.peer)) else {
                continue;
            };
            (remote.peer, remote.identity.known) = (peer, true);
            if link.state == State::Held && !remote.is_held() {
                link.state = State::Up;
            }
        }
        let mut unreached = std::mem::take(&mut self.unreached);
        unreached.retain(|one| self.remote_of(one.visitor).is_some_and(Remote::is_unknown));
        self.unreached = unreached;
        self.return_secrets();
    }
}

#[cfg(all(test, not(miri)))]
#[path = "identity_tests.rs"]
mod tests;
