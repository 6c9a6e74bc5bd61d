//! Connected services: RC, UC and XRC (IBTA vol. 1, 9.7, 9.8.2).
//!
//! One side: [`requester`] sends requests, [`packets`] makes their packets, [`acknowledge`] takes what comes back and
//! sends again what was lost, [`seek`] looks for a peer that cannot be reached. The other side: [`responder`] executes
//! requests, [`respond`] answers them, in order. [`fast`] is what messages of one packet take instead where nothing
//! stands in their way.

pub(crate) mod acknowledge;
pub(crate) mod fast;
mod packets;
pub(crate) mod requester;
pub(crate) mod respond;
pub(crate) mod responder;
pub(crate) mod seek;
pub(crate) mod state;
