//! Losses and waiting packets of a queue pair of an unreliable service.

use std::collections::VecDeque;

use wire::{LinkId, Nanos, Packet};

/// A packet that waits for a receive (`ud::backlog`).
#[derive(Debug)]
pub(crate) struct Held {
    pub packet: Packet,
    pub bytes: Vec<u8>,
    pub since: Nanos,
}

/// The state of UC and UD beside their queues.
#[derive(Debug, Default)]
pub(crate) struct Unreliable {
    /// UC: packets that find no room on the link are lost at once, until one goes through.
    pub lossy: bool,
    /// UD: full links that the datagram at the cursor waits for.
    pub full_links: Vec<LinkId>,
    /// UD: links that were full for too long. No datagram waits for such a link until it takes one.
    pub lossy_links: Vec<LinkId>,
    /// UC and UD: the time until which the present packet waits for room.
    pub give_up_at: Option<Nanos>,
    /// UC: packets that were sent over a link that is gone may still be received.
    pub astray: bool,
    /// UC: the rest of a message that lost its beginning is dropped.
    pub dropping: bool,
    /// UC and UD: packets that wait for a receive, and when the last receive was taken.
    pub backlog: VecDeque<Held>,
    pub fed_at: Option<Nanos>,
}

impl Unreliable {
    /// Forgets all waiting packets and all losses.
    pub fn clear(&mut self) {
        (self.lossy, self.give_up_at) = (false, None);
        (self.astray, self.dropping) = (false, false);
        self.backlog.clear();
        self.fed_at = None;
        self.full_links.clear();
        self.lossy_links.clear();
    }
}
