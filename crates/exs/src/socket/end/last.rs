//! The end of what this end sends.

use super::super::queue::EventKind;
use super::End;
use crate::protocol::Connection;

impl End {
    /// True if a send of this end is pending.
    pub fn has_sends(&self) -> bool {
        self.pending.values().any(|pending| pending.kind == EventKind::Send)
    }

    /// Over iWARP, ask the peer whether it has all, once everything is handed out. A completion there says that TCP has
    /// the bytes (RFC 5040, section 5.5), and TCP drops them if a message of the peer comes to a closed socket
    /// (RFC 9293, section 3.10.7.1).
    pub fn ask_for_all(&mut self) {
        if let (true, Some(protocol)) = (self.asks, &mut self.protocol) {
            protocol.ask_for_all();
            self.act();
        }
    }

    /// True if all that this end has sent is at the peer, or the connection is gone.
    pub fn is_quiet(&self) -> bool {
        let there = |protocol: &Connection| !self.asks || protocol.has_all();
        let flushed = |protocol: &Connection| {
            protocol.dead().is_some() || protocol.is_flushed() && self.posted == 0 && there(protocol)
        };
        self.protocol.as_ref().is_none_or(flushed)
    }
}
