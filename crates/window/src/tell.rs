//! What the wire tells about its links: facts for reports.

use report::facts::{Life, Link as LinkFacts};
use verbs::Qpn;

use crate::WindowPlatform;
use crate::link::State;
use crate::rendezvous;
use engine::platform::{LinkId, Platform};

impl WindowPlatform {
    /// Fills in what a link is, by its number.
    pub fn tell_link(&self, facts: &mut LinkFacts) {
        let id = LinkId(facts.id);
        facts.loopback = id == LinkId::LOOPBACK;
        let Some(link) = self.link(id) else {
            facts.life = Life::Gone;
            return;
        };
        facts.up = link.state == State::Up;
        facts.straight = self.caps(id).straight;
        facts.full = link.full;
        let Some(remote) = &link.remote else {
            facts.pid = std::process::id();
            return;
        };
        facts.pid = remote.who.pid;
        facts.life = match (remote.gone(), remote.is_stopped()) {
            (true, _) => Life::Gone,
            (_, true) => Life::Stopped,
            _ => Life::Runs,
        };
    }
}

/// True if some process of this host has claimed the block of a queue pair number, as a text like `/proc/net/unix` shows.
pub fn is_owned(proc_net_unix: &str, qpn: Qpn) -> bool {
    let name = format!("@{}", rendezvous::block_name((qpn.get() >> 12) as u16));
    proc_net_unix.lines().any(|line| line.rsplit_once(' ').is_some_and(|(_, path)| path == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_block_shows() {
        let name = rendezvous::block_name(0x12);
        let text = format!("Num\n0000: 00000002 00000000 00010000 0005 01 20100 @{name}\n");
        assert!(is_owned(&text, Qpn::new(0x12_345)));
        assert!(!is_owned(&text, Qpn::new(0x13_345)));
        assert!(!is_owned(&text.replace('@', "/"), Qpn::new(0x12_345)));
    }
}
