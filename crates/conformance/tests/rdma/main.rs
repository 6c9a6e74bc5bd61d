//! The parts of `crates/rdma` beyond the verbs: memory of the caller, device memory, prepared lists, events, examples.

mod counting;
mod device_memory;
mod events;
mod examples;
mod memory;
mod pair;
mod prepared;
