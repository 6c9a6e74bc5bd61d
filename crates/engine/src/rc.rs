//! Connected services: RC, UC and XRC (IBTA vol. 1, 9.7, 9.8.2).
//!
//! The requesting side: [`requester`] sends requests, [`packets`] makes their packets, [`acknowledge`] takes responses
//! and sends again what was lost, [`seek`] looks for a peer that cannot be reached. The responding side: [`responder`]
//! executes requests, [`refused`] has the ways in which it refuses them, [`respond`] answers, in order. Messages of one
//! packet take [`fast`] instead where nothing stands in their way. Entries of managed queues that this process executes
//! by itself run [`straight`].

pub(crate) mod acknowledge;
pub(crate) mod fast;
mod packets;
pub(crate) mod refused;
pub(crate) mod requester;
pub(crate) mod respond;
pub(crate) mod responder;
pub(crate) mod seek;
pub(crate) mod state;
mod straight;
mod tasks;
