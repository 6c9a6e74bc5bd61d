//! What a queue pair of an unreliable service loses and holds back.

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
    /// UC: what finds no room on the link is lost at once, until something goes through.
    pub lossy: bool,
    /// UD: links that the datagram at the cursor waits for, since they are full.
    pub full_links: Vec<LinkId>,
    /// UD: links that were full for too long: nothing waits for them until they take something.
    pub lossy_links: Vec<LinkId>,
    /// UC and UD: until when the present packet waits for room.
    pub give_up_at: Option<Nanos>,
    /// UC: what was sent over a link that is gone may still be received.
    pub astray: bool,
    /// UC: the rest of a message whose beginning was lost is dropped.
    pub dropping: bool,
    /// UC and UD: packets that wait for a receive, and when the last receive was taken.
    pub backlog: VecDeque<Held>,
    pub fed_at: Option<Nanos>,
}

impl Unreliable {
    /// Forgets all that was held back or lost.
    pub fn clear(&mut self) {
        (self.lossy, self.give_up_at) = (false, None);
        (self.astray, self.dropping) = (false, false);
        self.backlog.clear();
        self.fed_at = None;
        self.full_links.clear();
        self.lossy_links.clear();
    }
}
