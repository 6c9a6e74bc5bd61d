//! The parts of `crates/rdma` beyond the verbs: memory of the caller, device memory, prepared lists, events, examples.

mod counting;
mod device_memory;
mod events;
mod examples;
mod managed;
mod managed_entries;
mod memory;
mod pair;
mod prepared;
