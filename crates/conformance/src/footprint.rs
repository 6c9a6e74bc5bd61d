//! The resources of a process, as the kernel counts them.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The resources of one process at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Bytes of memory that are its own, and its part of those in shared memory (`Pss_Anon`, `Pss_Shmem`,
    /// proc_pid_smaps(5)). Memory of files does not count: the part of the library grows when other processes that use
    /// it end.
    pub bytes: u64,
    /// Mappings with a name in `maps`: files, windows, registered memory that peers map.
    pub mappings: u64,
    /// Mappings without a name: further heaps, and the stacks of threads with their guard pages.
    pub anonymous: u64,
    /// Descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
}

impl Footprint {
    /// The footprint of this process.
    pub fn own() -> Footprint {
        Footprint::of(std::process::id())
    }

    /// The footprint of a process of this user.
    ///
    /// # Panics
    /// If there is no such process.
    pub fn of(pid: u32) -> Footprint {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).expect(name);
        let count = |name: &str| fs::read_dir(format!("/proc/{pid}/{name}")).expect(name).count() as u64;
        let memory = read("smaps_rollup");
        // Five fields stand before the name.
        let (named, anonymous): (Vec<_>, Vec<_>) =
            read("maps").lines().map(|line| line.split_whitespace().nth(5).is_some()).partition(|named| *named);
        Footprint {
            bytes: (kilobytes(&memory, "Pss_Anon:") + kilobytes(&memory, "Pss_Shmem:")) * 1024,
            mappings: named.len() as u64,
            anonymous: anonymous.len() as u64,
            descriptors: count("fd"),
            threads: count("task"),
        }
    }

    /// The growth since `before`; 0 where something has gone.
    pub fn since(&self, before: &Footprint) -> Footprint {
        Footprint {
            bytes: self.bytes.saturating_sub(before.bytes),
            mappings: self.mappings.saturating_sub(before.mappings),
            anonymous: self.anonymous.saturating_sub(before.anonymous),
            descriptors: self.descriptors.saturating_sub(before.descriptors),
            threads: self.threads.saturating_sub(before.threads),
        }
    }

    /// True if no resource is more than in `limit`.
    pub fn within(&self, limit: &Footprint) -> bool {
        self.bytes <= limit.bytes
            && self.mappings <= limit.mappings
            && self.anonymous <= limit.anonymous
            && self.descriptors <= limit.descriptors
            && self.threads <= limit.threads
    }

    /// Wait until this process has grown by at most `limit` since `before`: memory that the NIC thread frees is not
    /// freed at once.
    ///
    /// # Errors
    /// The growth, if that does not come.
    pub fn settled(before: &Footprint, limit: &Footprint) -> Result<Footprint, String> {
        let start = Instant::now();
        loop {
            let grown = Footprint::own().since(before);
            if grown.within(limit) {
                return Ok(grown);
            }
            if start.elapsed() > Duration::from_secs(5) {
                return Err(format!("grown by {grown}, allowed are {limit}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Footprint { bytes, mappings, anonymous, descriptors, threads } = self;
        let all = mappings + anonymous;
        let kib = bytes / 1024;
        write!(f, "{kib} KiB, {all} mappings ({anonymous} anonymous), {descriptors} descriptors, {threads} threads")
    }
}

fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
    line.trim().trim_end_matches(" kB").parse().unwrap_or_else(|error| panic!("{name} {line}: {error}"))
}
