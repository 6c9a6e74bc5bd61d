//! Adversaries drawn from a small model, again and again: what each is, what it sends and how long that takes to close,
//! what it writes into shared memory, which names it holds, and what it does then (`model`). Meanwhile an honest pair
//! works. Every result must be right and come in time, and when the adversary is gone, the pair holds the resources
//! that it held before.
//!
//! `SOFTRNIC_ADVERSARY_ROUNDS` is the number of adversaries (24), `SOFTRNIC_ADVERSARY_SEED` repeats a failure.

mod attack;
#[path = "../hostile/honest.rs"]
#[allow(dead_code)] // its other half is about an attacker that has a connection, too
mod friend;
mod honest;
mod manager;
mod model;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use conformance::{Footprint, Random, Remote, Wire, seed, setting};

use attack::{Spoils, Target};
use honest::{Account, Order};
use model::{After, ReceivedFd, Scenario, Who, Words};

const ROUNDS: u64 = 24;
/// How long the honest pair works with each adversary, in milliseconds.
const WORK: u64 = 250;
/// The longest time of an exchange: a wait for a peer that does not answer takes a second (SECURITY.md).
const WORST: Duration = Duration::from_secs(2);
/// How much slower the median exchange may be, and how slow it may always be, in microseconds: a machine with other
/// work makes it ten times slower by itself, and often more.
const SLOWER: u64 = 50;
const SLOW: u64 = 400_000;
/// The number of links of one process (SECURITY.md).
const LINKS: usize = 4;
/// When a round has to be over; mostly it takes half a second.
const BOUND: Duration = Duration::from_secs(20);
/// The rounds after which the pair holds the resources that it keeps.
const WARM: u64 = 5;
/// The growth allowed after that, as in `kill`: threads that close come and go, and so do their stacks and heaps.
const LEAK: Footprint = Footprint { bytes: 4 << 20, mappings: 3, anonymous: 8 * 4, descriptors: 4, threads: 8 };

/// The other processes.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn remote_side() {
    let Some((part, wire)) = Wire::to_test() else { return };
    // The processes that another one has started end with it, too.
    let with_parent = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    with_parent.expect("PR_SET_PDEATHSIG");
    let _watch = watch(format!("far side, {part}"), limit());
    match part.split_once(':') {
        Some(("honest", seed)) => honest::run(wire, seed.parse().expect("a seed")),
        Some((_, scenario)) => attack::run(wire, serde_json::from_str(scenario).expect("a scenario")),
        None => honest::serve(wire),
    }
}

/// When all has to be over, also where many rounds are asked for.
fn limit() -> Duration {
    Duration::from_secs(100 + 5 * rounds())
}

/// End this process, and thereby those that it has started, unless the result is dropped within a time.
fn watch(what: String, limit: Duration) -> mpsc::Sender<()> {
    let (guard, dropped) = mpsc::channel();
    std::thread::spawn(move || {
        if dropped.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            // No macro is used: its output would be kept until the end of the test, and lost here.
            let _ = writeln!(std::io::stderr(), "not over within {limit:?}: {what}");
            std::process::exit(101);
        }
    });
    guard
}

/// True if a process can be started in this way here, and can attack.
fn is_possible(who: Who) -> bool {
    let root = rustix::process::geteuid().is_root();
    match who.starter() {
        [] => who != Who::Other || root,
        [program, words @ ..] => {
            let status = Command::new(program).args(words).arg("true").stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        }
    }
}

/// The names at which a process listens.
fn doors() -> Vec<String> {
    const LISTENS: &str = "00010000";
    let table = std::fs::read_to_string("/proc/net/unix").expect("/proc/net/unix");
    let listens = |line: &&str| line.split_whitespace().nth(3) == Some(LISTENS);
    table
        .lines()
        .filter(listens)
        .filter_map(|line| Some(line.rsplit_once(" @")?.1.to_owned()))
        .filter(|name| name.starts_with("softrnic"))
        .collect()
}

/// A guard for one test at a time: each measures how long something takes.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Pair {
    seed: u64,
    remote: Remote,
    target: Target,
    /// The median exchange without an adversary.
    quiet: u64,
}

impl Pair {
    fn start(starter: &[&str], seed: u64, random: &mut Random) -> Pair {
        let _watch = watch(format!("a pair that nobody disturbs, SOFTRNIC_ADVERSARY_SEED={seed}"), BOUND);
        let before = doors();
        let mut remote = Remote::start_by(starter, "remote_side", &format!("honest:{}", random.next() | 1));
        let pids = remote.wire.hear();
        let doors: Vec<_> = doors().into_iter().filter(|door| !before.contains(door)).collect();
        // Each process has a rendezvous and a doctor socket; one has a listener.
        assert!(doors.len() >= 5 && doors.iter().any(|door| door.ends_with("/listen")), "{doors:?}");
        let mut pair = Pair { seed, remote, target: Target { pids, doors }, quiet: 0 };
        pair.remote.wire.tell(&Order::Work(WORK));
        pair.quiet = pair.remote.wire.hear::<Account>().median;
        pair
    }

    fn work(&mut self, order: Order) -> Account {
        self.remote.wire.tell(&order);
        self.hear()
    }

    fn hear(&mut self) -> Account {
        let account: Account = self.remote.wire.hear();
        let worst = Duration::from_micros(account.worst.1);
        assert!(worst < WORST, "{} took {worst:?}", account.worst.0);
        let limit = (SLOWER * self.quiet).max(SLOW);
        let Account { exchanges, median, .. } = account;
        // A first exchange alone shows little: the two processes find each other in it.
        assert!(exchanges < 3 || median < limit, "the middle exchange took {median} us, undisturbed {} us", self.quiet);
        account
    }

    /// Run one adversary.
    fn withstand(&mut self, scenario: &Scenario) -> (Spoils, Account) {
        let _watch = watch(format!("SOFTRNIC_ADVERSARY_SEED={}, {scenario:?}", self.seed), BOUND);
        let part = format!("adversary:{}", serde_json::to_string(scenario).expect("plain data"));
        let mut adversary = Remote::start_by(scenario.who.starter(), "remote_side", &part);
        self.remote.wire.tell(&Order::Work(WORK));
        let () = adversary.wire.exchange(&self.target);
        let spoils: Spoils = adversary.wire.hear();
        if scenario.after == After::Dies {
            adversary.kill();
        }
        let account = self.hear();
        self.work(Order::Work(0));
        if !matches!(scenario.names, model::Names::None) || scenario.after == After::Floods {
            self.work(Order::Anew);
        }
        adversary.kill();
        (spoils, account)
    }

    /// Wait until both processes hold no more than `before`.
    fn settles(&mut self, before: &[Footprint; 2]) {
        let began = Instant::now();
        loop {
            let now = self.work(Order::Work(0)).footprints;
            let grown: Vec<_> = now.iter().zip(before).map(|(now, before)| now.since(before)).collect();
            if grown.iter().all(|grown| grown.within(&LEAK)) {
                return println!("counted: grown by {}", grown[0]);
            }
            assert!(began.elapsed() < Duration::from_secs(10), "grown by {} and {}", grown[0], grown[1]);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Check the results that a scenario may have.
fn judge(scenario: &Scenario, spoils: &Spoils) {
    let Spoils { connected, welcomes, descriptors, links, .. } = *spoils;
    match scenario.who {
        Who::NetNamespace => assert_eq!(connected, 0),
        Who::Other => assert!(connected > 0 && welcomes == 0 && descriptors == 0, "a stranger got {spoils:?}"),
        Who::Same | Who::UserNamespace => assert!(connected > 0 && links <= LINKS, "{spoils:?}"),
        Who::PidNamespace => assert!(connected > 0, "{spoils:?}"),
    }
}

fn rounds() -> u64 {
    setting("SOFTRNIC_ADVERSARY_ROUNDS").unwrap_or(ROUNDS)
}

#[test]
fn an_adversary_of_any_kind() {
    let _alone = alone();
    let seed = seed("SOFTRNIC_ADVERSARY_SEED");
    let _watch = watch(format!("SOFTRNIC_ADVERSARY_SEED={seed}"), limit());
    let mut random = Random::new(seed);
    let mut pair = Pair::start(&[], seed, &mut random);
    let mut before = None;
    let mut welcomed = 0;
    for number in 0..rounds() {
        if number == WARM {
            before = Some(pair.work(Order::Work(0)).footprints);
        }
        let scenario = Scenario::draw(&mut random, number);
        if !is_possible(scenario.who) {
            println!("counted: skipped: round {number}, {:?} cannot be made here", scenario.who);
            continue;
        }
        println!("round {number} of SOFTRNIC_ADVERSARY_SEED={seed}: {scenario:?}");
        let (spoils, account) = pair.withstand(&scenario);
        println!(
            "    {spoils:?}; {} exchanges, {} us, at worst {:?}",
            account.exchanges, account.median, account.worst
        );
        judge(&scenario, &spoils);
        welcomed += spoils.welcomes;
    }
    pair.work(Order::Anew);
    if let Some(before) = before {
        pair.settles(&before);
        assert!(welcomed > 0 || rounds() < ROUNDS, "nobody was let in: the adversary speaks another protocol");
    }
}

/// One process connects hundreds of times, and keeps its connections: few of them live, and a process that comes then
/// is accepted.
#[test]
fn an_adversary_that_connects_hundreds_of_times() {
    let _alone = alone();
    let seed = seed("SOFTRNIC_ADVERSARY_SEED");
    let mut random = Random::new(seed);
    let mut pair = Pair::start(&[], seed, &mut random);
    for who in [Who::Same, Who::UserNamespace].into_iter().filter(|who| is_possible(*who)) {
        let scenario = Scenario {
            who,
            received_fd: ReceivedFd::Window,
            words: Words::Hello,
            marks: model::Marks::None,
            names: model::Names::None,
            after: After::Floods,
            seed: random.next(),
        };
        println!("SOFTRNIC_ADVERSARY_SEED={seed}: {scenario:?}");
        let (spoils, _) = pair.withstand(&scenario);
        println!("    {spoils:?}");
        assert!(spoils.connected > 100 && (1..=LINKS).contains(&spoils.links), "{spoils:?}");
    }
}

/// The pair's own uid is the one that stands for all users without a number in its user namespace, and the adversary is
/// one of those: the kernel gives both one number. The adversary proves nothing, so it gets neither doorbell nor table.
#[test]
fn an_adversary_whose_uid_is_the_overflow_uid() {
    let _alone = alone();
    let seed = seed("SOFTRNIC_ADVERSARY_SEED");
    if !is_possible(Who::Other) || !is_possible(Who::UserNamespace) {
        return println!("skipped: this test makes a user namespace, and acts as another user: it needs to be root");
    }
    let mut random = Random::new(seed);
    let mut pair = Pair::start(Who::UserNamespace.starter(), seed, &mut random);
    for (received_fd, words) in
        [(ReceivedFd::Window, Words::Hello), (ReceivedFd::LingersLong, Words::Hello), (ReceivedFd::Many, Words::Noise)]
    {
        let drawn = Scenario::draw(&mut random, 1);
        // An adversary that is killed takes along the peer that makes a close slow.
        let scenario = Scenario { who: Who::Other, received_fd, words, after: After::Stays, ..drawn };
        println!("SOFTRNIC_ADVERSARY_SEED={seed}: {scenario:?}");
        let (spoils, account) = pair.withstand(&scenario);
        println!(
            "    {spoils:?}; {} exchanges, {} us, at worst {:?}",
            account.exchanges, account.median, account.worst
        );
        assert!(spoils.connected > 0 && spoils.descriptors == 0, "{spoils:?}");
    }
}
