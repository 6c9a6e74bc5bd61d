//! Queue pairs of iWARP over TCP connections within this process, without a connection manager.

mod stream_side;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use iwarp::mpa::Role;
use parking_lot::Mutex;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
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

/// A peer that does not read stops its own connection only: the requests wait where they are, what waits in the device
/// is bounded, and reports name the connection.
#[test]
fn a_peer_that_does_not_read_harms_nobody() {
    /// What one connection may have waiting in the device: the most that is given to TCP at once, and one message.
    const MOST: u64 = 512 << 10;
    let _alone = ALONE.lock();
    let side = Side::new();
    let ((_, source), (_, target)) = (memory(&side), memory(&side));
    let [third, fourth] = side.pair(true);
    for crc in [true, false] {
        let socket = TcpStream::connect(side.listener.local_addr().unwrap()).unwrap();
        let peer = side.listener.accept().unwrap().0;
        let ends = (peer.peer_addr().unwrap().to_string(), peer.local_addr().unwrap().to_string());
        let qp = side.one(socket, Role::Initiator, crc);
        let (mut posted, mut done, begun) = (0, 0, Instant::now());
        let (text, stuck) = loop {
            if posted - done < 8 {
                side.send(qp, 1, source);
                posted += 1;
            }
            nic().poll_cq(side.cq, 16, |_, wc| {
                assert_eq!(wc.status, WcStatus::Success);
                done += 1;
            });
            let text = nic().report();
            let stream =
                text.adapter.streams.iter().find(|stream| stream.local == ends.0).expect("the connection").clone();
            assert_eq!(stream.peer, ends.1);
            assert!(stream.unsent <= MOST, "{stream:?}");
            if stream.full_ns.is_some_and(|full| full > 100_000_000) {
                break (text, stream);
            }
            assert!(begun.elapsed() < LONG, "{stream:?}");
        };
        assert_eq!((stuck.crc, stuck.closing, stuck.fpdus_in), (crc, false, 0));
        assert!(stuck.fpdus_out > 0 && stuck.bytes_out >= stuck.fpdus_out * 20, "{stuck:?}");
        let others = Default::default();
        let found = report::rules::findings(&report::Situation { report: &text, others: &others, before: None });
        let is_told = |finding: &report::Finding| finding.text.starts_with("TCP has taken nothing for ");
        assert!(found.iter().any(is_told), "{found:?}");
        side.recv(fourth, 4, target);
        side.send(third, 5, source);
        let mut both = 0;
        while both < 2 {
            nic().poll_cq(side.cq, 16, |_, wc| if wc.wr_id >= 4 { both += 1 } else { done += 1 });
            assert!(begun.elapsed() < 2 * LONG, "another connection is held up");
        }
        // The peer goes: everything is flushed.
        drop(peer);
        while done < posted {
            nic().poll_cq(side.cq, 16, |_, _| done += 1);
            assert!(begun.elapsed() < 3 * LONG, "{done} of {posted}");
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
    let _alone = ALONE.lock();
    // A thousand connections have as many descriptors, of which systems often permit only a thousand at first.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let pairs_count = if most >= 1200 { 500 } else { 200 };
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
    let pairs: Vec<[QpId; 2]> = (0..pairs_count).map(|at| side.pair(at % 2 == 0)).collect();
    for [one, other] in &pairs {
        side.recv(*other, 1, target);
        side.send(*one, 2, Sge { length: 300_000, ..source });
        assert_eq!(side.completions(2), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    }
    let each = resident().saturating_sub(before) / (2 * pairs_count);
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
