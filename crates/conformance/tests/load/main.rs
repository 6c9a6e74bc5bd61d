//! The device under load: many threads, queue pairs and processes at the same time, every message accounted for and its
//! bytes compared. Each test prints its counts.
//!
//! `SOFTRNIC_LOAD_FACTOR` multiplies the number of messages (1).

mod accounts;
mod memory;
mod mesh;
mod shared;
mod streams;
mod thousand;
mod threads;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use conformance::{Wire, setting};

/// A guard for one test at a time: they measure the resources of this process, and each needs all cores.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of messages of each sender; `short` is that of the short form.
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
