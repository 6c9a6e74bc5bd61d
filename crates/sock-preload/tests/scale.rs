//! Thousands of connections between a few processes, connections that come and go, and hundreds of forked children:
//! neither memory nor descriptors nor mappings grow.
//!
//! `SOFTRNIC_TEST_CHURN` says how many connections each process replaces while that is measured; a long form takes
//! 20,000, which is about a minute. `--nocapture` shows what an idle connection costs.

mod pairs;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use pairs::{ROLE, by_tcp, finish, library, listen, port};

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let port = || words[1].parse().unwrap();
    // A process that hangs ends, and its test fails.
    // SAFETY: no pointers.
    unsafe { libc::alarm(600) };
    match words[0] {
        "hub" => hub(),
        "spoke" => spoke(port()),
        "forker" => forker(),
        "caller" => caller(port()),
        other => panic!("{other}"),
    }
}

/// Processes with connections to the hub.
const SPOKES: usize = 4;
/// Connections in all, if there are descriptors for so many.
const CONNECTIONS: u64 = 2000;
/// Forked processes at the same time.
const FORKED: usize = 200;

/// Asks for descriptors; how many a process may have.
fn descriptors() -> u64 {
    // SAFETY: a live structure, which the kernel fills, and from which it reads.
    unsafe {
        let mut limit: libc::rlimit = core::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(20_000);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        limit.rlim_cur
    }
}

/// Sends back what comes by any number of connections, which are all in one epoll set. It ends by a signal.
fn hub() -> ! {
    descriptors();
    let listener = listen();
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(0) };
    let add = |fd: i32| {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: an event that lives until the call returns.
        assert_eq!(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
    };
    add(listener.as_raw_fd());
    let (mut streams, mut buffer) = (HashMap::new(), [0; 4096]);
    loop {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for 64 events.
        let got = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 64, -1) };
        for event in &events[..got as usize] {
            let fd = event.u64 as i32;
            if fd == listener.as_raw_fd() {
                let (stream, _) = listener.accept().unwrap();
                add(stream.as_raw_fd());
                streams.insert(stream.as_raw_fd(), stream);
                continue;
            }
            let stream: &mut TcpStream = streams.get_mut(&fd).unwrap();
            match stream.read(&mut buffer).unwrap() {
                0 => drop(streams.remove(&fd)),
                some => stream.write_all(&buffer[..some]).unwrap(),
            }
        }
    }
}

/// A connection to the hub, after so many messages that it has moved.
fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    (0..8).for_each(|round| ask(&stream, round));
    stream
}

fn ask(mut stream: &TcpStream, round: usize) {
    let data = [round as u8; 100];
    let mut back = [!data[0]; 100];
    stream.write_all(&data).unwrap();
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, data);
}

/// Does what its standard input says.
fn spoke(port: u16) {
    descriptors();
    let mut streams = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (what, count) = line.split_once(' ').unwrap();
        let count: usize = count.parse().unwrap();
        match what {
            "open" => streams.extend((0..count).map(|_| connect(port))),
            // Half of them is busy in turn: all are asked before the first answer is read.
            "work" => {
                for round in 0..count {
                    let busy = || streams.iter().skip(round % 2).step_by(2);
                    busy().for_each(|mut stream| stream.write_all(&[round as u8; 50]).unwrap());
                    for mut stream in busy() {
                        let mut back = [0; 50];
                        stream.read_exact(&mut back).unwrap();
                        assert_eq!(back, [round as u8; 50]);
                    }
                }
            }
            "churn" => {
                for round in 0..count {
                    let place = round * 7 % streams.len();
                    drop(streams.swap_remove(place));
                    streams.push(connect(port));
                }
            }
            "moved" => {
                (0..4).for_each(|round| streams.iter().for_each(|stream| ask(stream, round)));
                let moved = streams.iter().filter(|stream| by_tcp(stream) < 1200).count();
                assert!(moved * 10 > streams.len() * 9, "{moved} of {} connections have moved", streams.len());
            }
            other => panic!("{other}"),
        }
        println!("\ndone");
        std::io::stdout().flush().unwrap();
    }
}

/// What a process has: descriptors, mappings of shared memory, and KiB of memory of its own and shared.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Footprint {
    descriptors: usize,
    mappings: usize,
    own: u64,
    shared: u64,
}

fn footprint(pid: u32) -> Footprint {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    Footprint {
        descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
        mappings: maps.lines().filter(|line| line.contains("memfd:")).count(),
        own: kib("RssAnon:"),
        shared: kib("RssShmem:"),
    }
}

/// Waits until a process has what it had before, and not much more memory: closing is told asynchronously.
fn has_not_grown(pid: u32, before: Footprint, what: &str) {
    const KIB: u64 = 1024;
    let until = Instant::now() + Duration::from_secs(40);
    loop {
        let now = footprint(pid);
        let is_same = (now.descriptors, now.mappings) == (before.descriptors, before.mappings);
        if is_same && now.own <= before.own + KIB && now.shared <= before.shared + KIB {
            return;
        }
        assert!(Instant::now() < until, "{what} has grown: {before:?}, then {now:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

struct Process {
    child: Child,
    input: ChildStdin,
    output: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(role: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture"])
            .env(ROLE, role)
            .env("LD_PRELOAD", library())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Process { child, input, output: BufReader::new(output).lines() }
    }

    fn say(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    /// Waits until it says that it has done what it was told.
    fn wait(&mut self) {
        let done = self.output.by_ref().map_while(Result::ok).any(|line| line == "done");
        assert!(done, "the process has ended");
    }

    fn footprint(&self) -> Footprint {
        footprint(self.child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn all(spokes: &mut [Process], what: &str) {
    spokes.iter_mut().for_each(|spoke| spoke.say(what));
    spokes.iter_mut().for_each(Process::wait);
}

#[test]
fn thousands_of_connections_come_and_go_and_nothing_grows() {
    let churn = std::env::var("SOFTRNIC_TEST_CHURN").ok().and_then(|text| text.parse().ok()).unwrap_or(150usize);
    // Each connection has a descriptor in the hub, and has others of the library's while its ends look for each other.
    let each = CONNECTIONS.min(descriptors() / 4) / SPOKES as u64;
    let mut hub = pairs::start("hub", "", true);
    let port = port(&mut hub);
    let mut spokes: Vec<Process> = (0..SPOKES).map(|_| Process::start(&format!("spoke {port}"))).collect();
    all(&mut spokes, "open 5");
    let first = (footprint(hub.id()), spokes[0].footprint());
    all(&mut spokes, &format!("open {}", each - 5));
    let opened = (footprint(hub.id()), spokes[0].footprint());
    all(&mut spokes, "moved 0");
    all(&mut spokes, "work 20");
    // What is made once is made now.
    all(&mut spokes, "churn 100");
    let before: Vec<Footprint> = spokes.iter().map(Process::footprint).collect();
    let before_hub = footprint(hub.id());
    all(&mut spokes, &format!("churn {churn}"));
    all(&mut spokes, "work 4");
    has_not_grown(hub.id(), before_hub, "the hub");
    for (spoke, before) in spokes.iter().zip(before) {
        has_not_grown(spoke.child.id(), before, "a spoke");
    }
    let more = each - 5;
    let (of_hub, of_spoke) = (more * SPOKES as u64, more);
    let cost = |first: Footprint, then: Footprint, count: u64| {
        let [own, shared] = [(first.own, then.own), (first.shared, then.shared)]
            .map(|(first, then)| then.saturating_sub(first) as f64 / count as f64);
        (own, shared)
    };
    let costs = [cost(first.0, opened.0, of_hub), cost(first.1, opened.1, of_spoke)];
    println!("KiB of own and of shared memory for each idle connection, in the hub and in a spoke: {costs:.1?}");
    for (own, shared) in costs {
        assert!(own < 16.0 && shared < 24.0, "an idle connection costs {own} KiB and {shared} KiB of shared memory");
    }
    drop(spokes);
    hub.kill().unwrap();
    hub.wait().unwrap();
}

/// Forks for each connection, waits for all children, and looks at itself.
fn forker() {
    descriptors();
    let listener = listen();
    let before = footprint(std::process::id());
    let mut children = Vec::new();
    for _ in 0..FORKED {
        let (stream, _) = listener.accept().unwrap();
        // SAFETY: the child moves bytes, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            pairs::echo(stream);
            // SAFETY: it ends this process.
            unsafe { libc::_exit(0) };
        }
        children.push(child);
    }
    for child in children {
        let mut status = 0;
        // SAFETY: a live local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
    // The file in which a process tells of its connections stays, with its mapping.
    let with_file = Footprint { descriptors: before.descriptors + 1, mappings: before.mappings + 1, ..before };
    has_not_grown(std::process::id(), with_file, "the forking process");
}

/// Has a connection to each of the children at the same time.
fn caller(port: u16) {
    descriptors();
    let one = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let before = footprint(std::process::id());
    let streams: Vec<TcpStream> = (0..FORKED).map(|_| one()).collect();
    (0..20).for_each(|round| streams.iter().for_each(|stream| ask(stream, round)));
    let moved = streams.iter().filter(|stream| by_tcp(stream) < 2000).count();
    assert!(moved * 10 > FORKED * 9, "{moved} connections have moved");
    drop(streams);
    let with_file = Footprint { descriptors: before.descriptors + 1, mappings: before.mappings + 1, ..before };
    has_not_grown(std::process::id(), with_file, "the calling process");
}

#[test]
fn hundreds_of_forked_children_leave_nothing_behind() {
    let mut server = pairs::start("forker", "", true);
    let mut client = pairs::start("caller", &port(&mut server), true);
    assert!(finish(&mut client, "caller").success());
    assert!(finish(&mut server, "forker").success());
}
