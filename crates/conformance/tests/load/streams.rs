//! Long messages, one behind the other, between two processes that poll: every byte is compared, whatever the path, and
//! whichever process copies.

use std::time::Instant;

use conformance::side::{self, Place};
use conformance::{Fixture, PATIENCE, Remote, Wire, setting, softrnic};
use rdma::{Cq, Data, Mr, RecvWr, SendOp, SendWr, Status, Wc};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The lengths of messages that go through the window, of those that may go by reference, of those that both sides may
/// copy, and of those with more than one piece of a copy.
const LENGTHS: [usize; 6] = [1 << 20, 300_001, (3 << 20) + 17, 64 << 10, 128 << 10, (1 << 20) + 4096];
const LONGEST: usize = LENGTHS[2];
/// Requests under way, each with its place in both regions.
const DEEP: usize = 8;
/// The messages of each operation: some for each path.
const MESSAGES: usize = 160;
/// Where the data of message 0 begin among all that are sent; each begins a little later than the one before.
const STEP: usize = 4099;

fn length(number: usize) -> usize {
    // Mostly one length: an adaptive choice that counts similar messages must get enough of them.
    if number.is_multiple_of(4) { LENGTHS[number / 4 % LENGTHS.len()] } else { LENGTHS[0] }
}

/// The source of all data.
struct Source(Vec<u8>);

impl Source {
    fn new() -> Source {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let words = (0..(LONGEST + MESSAGES * STEP) / 8 + 1).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_ne_bytes()
        });
        Source(words.flatten().collect())
    }

    fn message(&self, number: usize) -> &[u8] {
        &self.0[number * STEP..][..length(number)]
    }
}

/// Poll without a pause: a thread that waits may have a part in the copy.
fn take(cq: &Cq) -> Wc {
    let (mut out, begun) = ([Wc::default()], Instant::now());
    while cq.poll(&mut out).expect("ibv_poll_cq") == 0 {
        assert!(begun.elapsed() < PATIENCE, "no completion");
    }
    assert_eq!(out[0].status(), Status::SUCCESS, "{:?}", out[0]);
    out[0]
}

/// The processors that this thread may use.
fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("sched_getaffinity");
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Give this thread one processor. On a busy machine the scheduler may leave both sides on the same one for a minute,
/// and both can copy one message only while both run.
fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).expect("sched_setaffinity");
}

fn place(number: usize) -> usize {
    number % DEEP * LONGEST
}

fn check(mr: &Mr, source: &Source, number: usize, seen: &mut Vec<u8>, what: &str) {
    seen.resize(length(number), 0);
    mr.read(place(number), seen);
    assert!(seen[..] == *source.message(number), "{what} {number}, {} bytes", seen.len());
}

pub fn remote(mut wire: Wire) {
    let fixture = Fixture::open();
    let side = side::Side::new(&fixture);
    let mr = side::buffer(&fixture, DEEP * LONGEST);
    let peer: Place = wire.exchange(&side::place(&fixture, &side.qp));
    side::up(&side.qp, &peer);
    pin(*processors().last().expect("a processor"));
    let source = Source::new();
    let post = |number: usize| {
        let sges = [mr.sge(place(number), LONGEST)];
        side.qp.post_recv(&RecvWr { wr_id: number as u64, sges: &sges }).expect("ibv_post_recv");
    };
    let mut seen = Vec::new();
    loop {
        (0..DEEP).for_each(post);
        wire.tell(&(mr.addr(), mr.rkey()));
        for number in 0..MESSAGES {
            let wc = take(&side.cq);
            assert_eq!((wc.wr_id(), wc.byte_len() as usize), (number as u64, length(number)));
            check(&mr, &source, number, &mut seen, "SEND");
            if number + DEEP < MESSAGES {
                post(number + DEEP);
            }
        }
        // This side sees nothing of WRITEs and READs. It polls as before, until a message says that they are over.
        side::recv(&side.qp, 0, &[side.mr.sge(0, side::LEN)]);
        wire.tell(&());
        take(&side.cq);
        if wire.exchange(&()) {
            break;
        }
    }
    let () = wire.exchange(&());
}

#[test]
fn long_messages_one_behind_the_other() {
    let _alone = crate::alone();
    let mut remote = Remote::start("remote_side", "streams", &[]);
    let fixture = Fixture::open();
    let side = side::Side::new(&fixture);
    let (mr, read) = (side::buffer(&fixture, DEEP * LONGEST), side::buffer(&fixture, DEEP * LONGEST));
    let peer: Place = remote.wire.exchange(&side::place(&fixture, &side.qp));
    side::up(&side.qp, &peer);
    let processors = processors();
    pin(processors[0]);
    // The target of a SEND or WRITE copies memory that it maps alone, and offers no part of it
    // (`pull_single_copy` in crates/window/src/link.rs).
    let must_help = processors.len() > 1 && setting("SOFTRNIC_MIGRATE").is_none();
    let source = Source::new();
    let post = |mr: &Mr, op, number: usize| {
        let sges = [mr.sge(place(number), length(number))];
        side.qp.post_send(&SendWr::new(number as u64, op, Data::Sges(&sges))).expect("ibv_post_send");
    };
    let facts = |pid: u32| softrnic(&["doctor", "--json", &pid.to_string()]).1;
    let count = |facts: &str, name: &str| -> u64 {
        let at = facts.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name}: {facts}"));
        let digits = facts[at + name.len() + 3..].trim_start();
        digits[..digits.find(|c: char| !c.is_ascii_digit()).expect("JSON")].parse().expect("a number")
    };
    // Both sides copy if both run while one copy lasts. On a busy machine that may take more rounds.
    let (begun, mut seen) = (Instant::now(), Vec::new());
    let (single_copy, helped) = loop {
        let (addr, rkey): (u64, u32) = remote.wire.hear();
        for number in 0..MESSAGES {
            if number >= DEEP {
                assert_eq!(take(&side.cq).wr_id(), (number - DEEP) as u64);
            }
            mr.write(place(number), source.message(number));
            post(&mr, SendOp::Send, number);
        }
        (MESSAGES - DEEP..MESSAGES).for_each(|number| assert_eq!(take(&side.cq).wr_id(), number as u64));
        let () = remote.wire.hear();
        for first in (0..MESSAGES).step_by(DEEP) {
            let numbers = first..first + DEEP;
            let remote = |number| addr + place(number) as u64;
            for number in numbers.clone() {
                mr.write(place(number), source.message(number));
                post(&mr, SendOp::Write { addr: remote(number), rkey }, number);
            }
            numbers.clone().for_each(|_| _ = take(&side.cq));
            for number in numbers.clone() {
                post(&read, SendOp::Read { addr: remote(number), rkey }, number);
            }
            for number in numbers {
                assert_eq!(take(&side.cq).wr_id(), number as u64);
                check(&read, &source, number, &mut seen, "WRITE and READ");
            }
        }
        let (own, theirs) = (facts(std::process::id()), facts(remote.pid()));
        side::send(&side.qp, 0, &[side.mr.sge(0, side::LEN)]);
        take(&side.cq);
        let (single_copy, helped) = (count(&theirs, "single_copy_bytes"), count(&own, "co_copied_bytes"));
        // Where single copies are forbidden there are none.
        let enough = single_copy == 0 || helped > 0 || !must_help || begun.elapsed() > PATIENCE;
        let () = remote.wire.hear();
        remote.wire.tell(&enough);
        if enough {
            break (single_copy, helped);
        }
    };
    let () = remote.wire.exchange(&());
    assert!(remote.ended_well());
    println!(
        "{MESSAGES} messages of each kind; copied by their target {single_copy} bytes, {helped} of them with our help"
    );
    assert!(single_copy == 0 || helped > 0 || !must_help, "{single_copy} bytes without help");
}
