//! Queue pairs of iWARP over TCP connections within this process, without a connection manager.

mod stream_side;

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use stream_side::{ALL, LONG, Side, nic};
use verbs::*;

/// The faults of this process.
const FAULTS: Option<&str> = None;

/// One test at a time: they measure what the process takes.
static ALONE: Mutex<()> = Mutex::new(());

const LEN: usize = 1 << 20;

/// A megabyte of memory, registered. It may go (ON_DEMAND): plain copies to memory that is gone would be the program's
/// fault.
fn memory(side: &Side) -> (*mut u8, Sge) {
    // SAFETY: a new mapping, anywhere.
    let memory =
        unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    let addr = memory.unwrap() as u64;
    let (_, lkey, _) = nic().reg_mr(side.pd, addr, LEN as u64, addr, ALL.union(Access::ON_DEMAND)).unwrap();
    (memory.unwrap().cast(), Sge { addr, length: LEN as u32, lkey })
}

/// SENDs of a megabyte bring their bytes, with CRCs and without. Where the memory of one side is gone, its request
/// fails with LOC_PROT_ERR, and the other side's is flushed.
#[test]
fn a_megabyte_and_memory_that_is_gone() {
    let _alone = ALONE.lock();
    let side = Side::new();
    for crc in [false, true] {
        let [one, other] = side.pair(crc);
        let ((from, source), (to, target)) = (memory(&side), memory(&side));
        for at in 0..LEN {
            // SAFETY: inside of the mapping, which only this thread uses now.
            unsafe { from.add(at).write((at * 7 + at / 4096) as u8) };
        }
        side.recv(other, 1, target);
        side.send(one, 2, source);
        assert_eq!(side.completions(2), [(1, WcStatus::Success), (2, WcStatus::Success)]);
        for at in (0..LEN).step_by(97).chain([LEN - 1]) {
            // SAFETY: as above.
            assert_eq!(unsafe { to.add(at).read() }, (at * 7 + at / 4096) as u8, "byte {at}, crc {crc}");
        }
        for gone in [from, to] {
            let [one, other] = side.pair(crc);
            side.recv(other, 1, target);
            // SAFETY: no reference is to there. The addresses stay taken, so that no other thread gets them.
            unsafe { mprotect(gone.cast(), LEN, MprotectFlags::empty()) }.unwrap();
            side.send(one, 2, source);
            let done = side.completions(2);
            if gone == from {
                assert_eq!(done, [(1, WcStatus::WrFlushErr), (2, WcStatus::LocProtErr)], "crc {crc}");
            } else {
                // TCP may have taken the whole of it before, or not.
                assert_eq!(done[0], (1, WcStatus::LocProtErr), "crc {crc}");
            }
            // SAFETY: as above.
            unsafe { mprotect(gone.cast(), LEN, MprotectFlags::READ | MprotectFlags::WRITE) }.unwrap();
        }
    }
}

/// The processor's time that this process has taken.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB")).unwrap();
    line.trim().parse::<u64>().unwrap() << 10
}

/// Connections over which nothing goes take no time, and little memory each, whatever has gone over them before.
#[test]
fn idle_connections_cost_nothing() {
    const PAIRS: usize = 200;
    let _alone = ALONE.lock();
    let side = Side::new();
    let ((_, source), (_, target)) = (memory(&side), memory(&side));
    // What all connections share is there before the first is counted.
    let before = {
        let [one, other] = side.pair(true);
        side.recv(other, 1, target);
        side.send(one, 2, source);
        side.completions(2);
        resident()
    };
    let pairs: Vec<[QpId; 2]> = (0..PAIRS).map(|at| side.pair(at % 2 == 0)).collect();
    for [one, other] in &pairs {
        side.recv(*other, 1, target);
        side.send(*one, 2, Sge { length: 300_000, ..source });
        assert_eq!(side.completions(2), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    }
    let each = resident().saturating_sub(before) / (2 * PAIRS as u64);
    println!("{each} bytes for each connection");
    assert!(each < 64 << 10, "{each} bytes for each connection");
    let begun = Instant::now();
    loop {
        let start = processor_time();
        std::thread::sleep(Duration::from_millis(500));
        let took = processor_time() - start;
        if took < Duration::from_millis(2) {
            break;
        }
        assert!(begun.elapsed() < LONG, "{took:?} of half a second");
    }
}
