//! A hostile peer: it joins as any process does, and then writes anything into the window and onto the socket. It may
//! ruin its own connection. It may not crash the victim, block it, change memory that is not its own, or disturb the
//! victim's other connections.
//!
//! * `vandal`: a real program with a real connection, whose windows are overwritten from within while it is used.
//! * `stranger`: it implements the rendezvous itself, offers windows of its own making, and forges packets for queue
//!   pairs of other processes.
//!
//! `SOFTRNIC_HOSTILE_ROUNDS` is the number of rounds (12), `SOFTRNIC_HOSTILE_SEED` repeats a failure.

mod honest;
mod stranger;
mod vandal;

use std::path::Path;
use std::time::{Duration, Instant};

use conformance::{Fixture, Random, Remote, Wire, seed, setting};

use honest::{Friend, Place};

const ROUNDS: u64 = 12;
/// How long one attacker runs.
const ROUND: Duration = Duration::from_millis(400);

/// The other processes.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn remote_side() {
    let Some((part, wire)) = Wire::to_test() else { return };
    match part.split_once(':') {
        None => honest::serve(wire),
        Some(("vandal", seed)) => vandal::run(wire, seed.parse().expect("a seed")),
        Some((_, seed)) => stranger::run(wire, seed.parse().expect("a seed")),
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd").count()
}

/// Memory that no peer has a right to: a region without remote access, and bytes that are no region.
struct Secrets {
    region: std::sync::Arc<rdma::Mr>,
    heap: Vec<u8>,
}

impl Secrets {
    const LEN: usize = 64 << 10;

    fn new(fixture: &Fixture) -> Secrets {
        let region = fixture.pd.reg_mr(Self::LEN, rdma::Access::LOCAL_WRITE).expect("ibv_reg_mr");
        region.write(0, &vec![0x5a; Self::LEN]);
        Secrets { region, heap: vec![0xa5; Self::LEN] }
    }

    fn are_untouched(&self) {
        let mut bytes = vec![0; Self::LEN];
        self.region.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0x5a), "a region was changed");
        assert!(std::hint::black_box(&self.heap).iter().all(|byte| *byte == 0xa5), "memory was changed");
    }
}

/// Run attackers of a kind, one after the other, while the victim works with an honest third process.
fn withstand(kind: &str) {
    assert!(Path::new("/proc/self/fd").exists(), "proc is mounted");
    let seed = seed("SOFTRNIC_HOSTILE_SEED");
    let mut random = Random::new(seed);
    let fixture = Fixture::open();
    let secrets = Secrets::new(&fixture);
    let mut honest = Remote::start("remote_side", "honest", &[]);
    let friend = Friend::new(&fixture, &mut honest.wire);
    friend.exchange(&mut random);
    let mut before = 0;
    let rounds = setting("SOFTRNIC_HOSTILE_ROUNDS").unwrap_or(ROUNDS);
    for number in 0..rounds {
        let single_copy = if random.below(2) == 0 { "0" } else { "1" };
        let part = format!("{kind}:{}", random.next() | 1);
        let mut attacker = Remote::start("remote_side", &part, &[("SOFTRNIC_SINGLE_COPY", single_copy)]);
        // The local end of a connection with it: the memory that it has a right to.
        let toy = honest::Toy::new(&fixture);
        let other: Place = attacker.wire.exchange(&toy.place(&fixture));
        toy.up(&other);
        attacker.wire.tell(&friend.places());
        let () = attacker.wire.exchange(&());
        let end = Instant::now() + ROUND;
        let mut exchanges = 0;
        while Instant::now() < end {
            toy.play(&other, &mut random);
            toy.revive(&other);
            friend.exchange(&mut random);
            exchanges += 1;
        }
        // The attacker lives, and has done something: the attack itself did not fail.
        attacker.wire.tell(&());
        let blows: u64 = attacker.wire.hear();
        assert!(blows > 0, "round {number}: the {kind} did nothing");
        attacker.kill();
        friend.exchange(&mut random);
        secrets.are_untouched();
        drop(toy);
        println!(
            "round {number}, single copy {single_copy}: {blows} blows, {exchanges} exchanges with the honest peer"
        );
        if number == 2 {
            before = descriptors();
        }
    }
    // A process that comes now is served.
    let mut another = Remote::start("remote_side", "honest", &[]);
    Friend::new(&fixture, &mut another.wire).exchange(&mut random);
    another.kill();
    // The last links' descriptors are closed by the NIC thread.
    let leaked = |now: usize| rounds > 3 && now > before + 4;
    let start = Instant::now();
    while leaked(descriptors()) && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let after = descriptors();
    assert!(!leaked(after), "{before} descriptors after 3 rounds, {after} after {rounds}");
}

#[test]
fn a_vandal_in_the_window() {
    withstand("vandal");
}

#[test]
fn a_stranger_on_the_socket() {
    withstand("stranger");
}
