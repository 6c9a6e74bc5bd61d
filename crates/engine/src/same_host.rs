//! Services of two processes of one host for each other beside packets. [`one_sided`] executes requests at the
//! initiator, [`deliver`] takes in what a process sends to itself, [`co_copy`] makes a part of the peer's copy,
//! [`copy_policy`] chooses between a single copy and the link. A wire to another host has none of them
//! ([`wire::SameHost`]).

pub(crate) mod co_copy;
pub(crate) mod copy_policy;
pub(crate) mod deliver;
pub(crate) mod one_sided;
pub(crate) mod state;
