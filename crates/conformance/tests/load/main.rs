//! The device under load: many threads, queue pairs and processes at the same time, every message accounted for and its
//! bytes looked at. Each test prints its counts.
//!
//! `SOFTRNIC_LOAD_FACTOR` says how many times as many messages (1).

mod accounts;
mod memory;
mod mesh;
mod shared;
mod streams;
mod thousand;
mod threads;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use conformance::{Wire, setting};

/// One at a time: they measure what this process holds, and each wants all cores for itself.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Messages of each sender, of which there are so many in the short form.
fn each(short: u64) -> u64 {
    static FACTOR: OnceLock<u64> = OnceLock::new();
    short * FACTOR.get_or_init(|| setting("SOFTRNIC_LOAD_FACTOR").unwrap_or(1).max(1))
}

/// The other processes of these tests.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn remote_side() {
    let Some((part, wire)) = Wire::to_test() else { return };
    match part.as_str() {
        "threads" => threads::remote(wire),
        "thousand" => thousand::remote(wire),
        "mesh" => mesh::remote(wire),
        "shared" => shared::remote(wire),
        "streams" => streams::remote(wire),
        "pair" => memory::remote(wire),
        other => panic!("no such part: {other}"),
    }
}
