//! A peer of the same user that writes to the shared memory what the rules forbid, while the connection is in use. The
//! other end gets ECONNRESET there or goes on, says why, and a connection beside it is unharmed.
//!
//! `SOFTRNIC_TEST_HOSTILE` says how many peers write at random; a long form takes 1,000.

mod pairs;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};

use pairs::{ROLE, accept, echo, finish, listen, moved, port};

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    // A process that hangs ends, and its test fails.
    // SAFETY: no pointers.
    unsafe { libc::alarm(300) };
    match words[0] {
        "victim" => victim(&words[1..]),
        "echo" => echo(accept()),
        "attack" => attack(number(1) as u16, number(2) as usize, number(3) as usize, number(4)),
        "link" => attack_link(number(1) as u16),
        "random" => attack_at_random(number(1) as u16, number(2)),
        other => panic!("{other}"),
    }
}

/// `struct Words` of `memory::stream`: the words of the sender, and those of the receiver.
const TAIL: usize = 0;
const SWITCHED: usize = 8;
const FINISHED: usize = 16;
const WANTING: usize = 20;
const HEAD: usize = 64;
const READY: usize = 72;
const RETRACT: usize = 76;
const BELLS: usize = 80;
const DRAINED: usize = 84;
const FIELDS: [usize; 9] = [TAIL, SWITCHED, FINISHED, WANTING, HEAD, READY, RETRACT, BELLS, DRAINED];
/// Bytes of one direction's words, of a connection's memory, and of a link's page.
const WORDS: usize = 128;
const PAIR: usize = 4096 + (512 << 10);
const PAGE: usize = 4096;

/// Where this process has mapped shared memory of so many bytes.
fn mappings(len: usize) -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:softrnic-window") && line.contains("rw-s"));
    let ranges = shared.filter_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
    });
    ranges.filter(|(from, to)| to - from == len).map(|(from, _)| from).collect()
}

fn memory() -> usize {
    let found = mappings(PAIR);
    assert_eq!(found.len(), 1, "the connection has memory: {}", std::fs::read_to_string("/proc/self/maps").unwrap());
    found[0]
}

fn word(base: usize, direction: usize, field: usize) -> &'static AtomicU64 {
    // SAFETY: a word of the mapping, which stays as long as the connection; it is aligned to 4 bytes at least, and the
    // fields that follow are written, too, where it is shorter.
    unsafe { &*((base + direction * WORDS + (field & !7)) as *const AtomicU64) }
}

/// Writes to a field: 4 bytes, or 8 of a count.
fn put(base: usize, direction: usize, field: usize, value: u64) {
    if matches!(field, TAIL | SWITCHED | HEAD) {
        word(base, direction, field).store(value, SeqCst);
    } else {
        // SAFETY: as in `word`, and 4 bytes.
        unsafe { &*((base + direction * WORDS + field) as *const AtomicU32) }.store(value as u32, SeqCst);
    }
}

/// Says something to an echo, so often that the connection moves.
fn move_it(stream: &mut TcpStream) {
    for round in 0..20 {
        let (data, mut back) = ([round; 64], [0; 64]);
        stream.write_all(&data).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, data);
    }
}

/// Goes on with the connection for a while, whatever comes of it.
fn go_on(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
    for _ in 0..3 {
        if stream.write_all(&[1; 64]).is_err() || stream.read(&mut [0; 64]).is_err() {
            return;
        }
    }
}

fn attack(port: u16, direction: usize, field: usize, value: u64) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    move_it(&mut stream);
    let base = memory();
    put(base, direction, field, value);
    // The other end may sleep, and has to look.
    let _ = stream.write_all(&[3; 8]);
    put(base, direction, field, value);
    go_on(&mut stream);
}

/// Fills the page of the link with what it can have at the worst.
fn attack_link(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    move_it(&mut stream);
    let pages = mappings(PAGE);
    assert!(!pages.is_empty(), "there is a page of a link");
    for value in [u8::MAX, 0x55, 1, 0] {
        for page in &pages {
            for at in 0..PAGE {
                // SAFETY: a byte of a mapping of this process.
                unsafe { &*((page + at) as *const AtomicU8) }.store(value, SeqCst);
            }
        }
        go_on(&mut stream);
    }
}

fn attack_at_random(port: u16, seed: u64) {
    let mut state = seed.wrapping_mul(2) | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    move_it(&mut stream);
    let base = memory();
    stream.set_write_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
    for _ in 0..1 + random(30) {
        let (direction, field) = (random(2) as usize, FIELDS[random(9) as usize]);
        let old = word(base, direction, field).load(SeqCst);
        let value = match random(5) {
            0 => old.wrapping_add(random(64)),
            1 => old.wrapping_sub(random(64)),
            2 => 1 << random(64),
            3 => random(5),
            _ => random(u64::MAX),
        };
        put(base, direction, field, value);
        if random(3) == 0 {
            go_on(&mut stream);
        }
    }
}

/// Serves a hostile peer, while another connection of this process goes on. Says by its exit status what it has seen.
fn victim(words: &[&str]) {
    let mut neighbour = TcpStream::connect(("127.0.0.1", words[0].parse().unwrap())).unwrap();
    move_it(&mut neighbour);
    let (mut hostile, _) = listen().accept().unwrap();
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut sent, mut stream) = (20 * 64, &neighbour);
            while !stop.load(SeqCst) {
                let mut back = [0; 64];
                stream.write_all(&[9; 64]).unwrap();
                stream.read_exact(&mut back).unwrap();
                assert_eq!(back, [9; 64]);
                sent += 64;
            }
            moved(stream, sent, true);
        });
        let outcome = serve(&mut hostile, words[1]);
        stop.store(true, SeqCst);
        outcome
    });
    println!("\nsaw {outcome}");
}

fn serve(stream: &mut TcpStream, how: &str) -> String {
    let mut buffer = [0; 4096];
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if how == "epoll" {
        stream.set_nonblocking(true).unwrap();
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 5 };
        let fd = std::os::fd::AsRawFd::as_raw_fd(stream);
        // SAFETY: an event that lives until the call returns.
        assert_eq!(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
    }
    loop {
        if how == "epoll" {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
            let got = unsafe { libc::epoll_wait(set, &raw mut event, 1, 40_000) };
            assert_eq!(got, 1, "nothing comes, not even an end");
        }
        let outcome = match stream.read(&mut buffer) {
            Ok(0) => return "end".to_owned(),
            Ok(some) => stream.write(&buffer[..some]).map(drop),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return format!("{:?}", error.kind()),
        }
    }
}

/// Runs an attack against a victim: what the victim saw, and what it said.
fn run(attack: &str, how: &str) -> (String, String) {
    let mut friend = pairs::start("echo", "", true);
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture"]).env("LD_PRELOAD", pairs::library());
    command.env(ROLE, format!("victim {} {how}", port(&mut friend)));
    let mut victim = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let (role, values) = attack.split_once(' ').unwrap_or((attack, ""));
    let mut hostile = pairs::start(role, &format!("{} {values}", port(&mut victim)), true);
    assert!(finish(&mut hostile, attack).success(), "{attack}: the attacker has failed");
    let what = format!("{attack}, {how}: the victim");
    let status = finish(&mut victim, &what);
    let (mut said, mut logged) = (String::new(), String::new());
    victim.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    victim.stderr.take().unwrap().read_to_string(&mut logged).unwrap();
    assert!(status.success(), "{what}: {status}: {said} {logged}");
    assert!(finish(&mut friend, "the neighbour").success(), "{attack}, {how}: the neighbour");
    let saw = said.lines().find_map(|line| line.strip_prefix("saw ")).expect(&what).to_owned();
    (saw, logged)
}

#[test]
fn counts_that_make_no_sense_reset_the_connection_and_no_other() {
    // In the word that has the tail, the lowest two bits are the mode: 1 is the ring.
    let far = 1 << 40;
    for (field, value) in [(TAIL, far << 2 | 1), (TAIL, u64::MAX << 2 | 1), (TAIL, 1), (HEAD, far), (HEAD, 1 << 63)] {
        for direction in 0..2 {
            for how in ["block", "epoll"] {
                let attack = format!("attack {direction} {field} {value}");
                let (saw, logged) = run(&attack, how);
                assert_eq!(saw, "ConnectionReset", "{attack}, {how}");
                assert!(logged.contains("make no sense"), "{attack}, {how}: {logged}");
            }
        }
    }
}

#[test]
fn other_words_of_a_connection_end_it_or_do_nothing() {
    for field in [SWITCHED, FINISHED, WANTING, READY, RETRACT, BELLS, DRAINED] {
        for (direction, how) in [(0, "block"), (1, "epoll")] {
            for value in [1, u64::MAX] {
                let attack = format!("attack {direction} {field} {value}");
                let (saw, _) = run(&attack, how);
                assert!(["end", "ConnectionReset", "BrokenPipe"].contains(&saw.as_str()), "{attack}, {how}: {saw}");
            }
        }
    }
}

#[test]
fn a_page_of_a_link_that_is_full_of_nonsense_harms_only_its_connections() {
    for how in ["block", "epoll"] {
        let (saw, _) = run("link", how);
        assert!(["end", "ConnectionReset"].contains(&saw.as_str()), "{how}: {saw}");
    }
}

#[test]
fn writing_at_random_harms_no_other_connection() {
    let count = std::env::var("SOFTRNIC_TEST_HOSTILE").ok().and_then(|text| text.parse().ok()).unwrap_or(20u64);
    for seed in 1..=count {
        let how = if seed % 2 == 0 { "block" } else { "epoll" };
        let (saw, _) = run(&format!("random {}", seed * 0x9E37_79B9), how);
        assert!(["end", "ConnectionReset", "BrokenPipe"].contains(&saw.as_str()), "seed {seed}, {how}: {saw}");
    }
}
