//! Work queues: entries of the send queue, receives, completions, and the checks of a post.
//!
//! [`post`] checks a work request and writes it into a [`sq`] or [`rq`]; a transport ([`crate::rc`], [`crate::ud`])
//! fetches it from there. [`complete`] and [`receive`] end requests, and write completions into a [`cq`].

pub(crate) mod complete;
pub(crate) mod cq;
pub(crate) mod in_place_ring;
pub(crate) mod inflight;
pub(crate) mod managed;
pub(crate) mod post;
pub(crate) mod receive;
pub(crate) mod rq;
pub(crate) mod sq;
