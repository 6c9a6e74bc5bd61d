//! The facts about links for reports.

use report::facts::{Life, Link as LinkFacts};
use verbs::Qpn;
use wire::LinkId;
use wire::prelude::*;

use crate::WindowEnv;
use crate::link::State;
use crate::rendezvous;

impl WindowEnv {
    /// Fills in what a link is, by its number.
    pub fn link_facts(&self, facts: &mut LinkFacts) {
        let id = LinkId(facts.id);
        facts.loopback = id == LinkId::LOOPBACK;
        let Some(link) = self.link(id) else {
            facts.life = Life::Gone;
            return;
        };
        facts.up = link.state == State::Up;
        facts.single_copy = self.caps(id).single_copy.is_some();
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

/// True if some process of this network namespace has claimed the block of a queue pair number.
pub fn is_owned(qpn: Qpn) -> bool {
    memory::names::is_held(&rendezvous::block_name((qpn.get() >> 12) as u16))
}
