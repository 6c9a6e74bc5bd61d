//! Two processes for a test: this test binary starts itself again in a role.
#![allow(dead_code)] // each test binary uses some of it

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use verbs::{Gid, Psn, Qpn};
use window::{Config, Rx, WindowEnv};
use wire::prelude::*;
use wire::{LinkId, Packet, PacketOp, Payload, SendError, Span};

pub const LOCALHOST: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
/// The longest sleep of a thread that waits for a ring: so long that a busy machine alone is no reason for it to end.
pub const NAP: Duration = Duration::from_secs(40);
const ROLE: &str = "SOFTRNIC_TEST_ROLE";

/// The role that this process was started for, if any.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Another process in a role: the test `child` of this binary. The two processes talk by lines.
pub struct Other {
    pub process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    pub fn start(role: &str) -> Self {
        Self::start_with(role, &[])
    }

    pub fn start_with(role: &str, env: &[(&str, &str)]) -> Self {
        Self::spawn(Self::command(role, env)).unwrap()
    }

    /// As another user; `None` if that one may not run this binary.
    pub fn start_as(uid: u32, role: &str, env: &[(&str, &str)]) -> Option<Self> {
        let mut command = Self::command(role, env);
        std::os::unix::process::CommandExt::uid(&mut command, uid);
        Self::spawn(command).ok()
    }

    fn command(role: &str, env: &[(&str, &str)]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn spawn(mut command: Command) -> std::io::Result<Self> {
        let mut process = command.spawn()?;
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Ok(Other { process, input, output })
    }

    /// The next line that the other said with [`say`].
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the other process ended");
            if let Some((_, said)) = line.split_once("@@ ") {
                return said.trim_end().to_owned();
            }
        }
    }

    pub fn hear_number(&mut self) -> u64 {
        self.hear().parse().unwrap()
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn say(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@@ {line}").unwrap();
    out.flush().unwrap();
}

pub fn told() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// A platform with one block, and the loop around it that a NIC has.
pub struct Node {
    pub env: WindowEnv,
    pub qpn: Qpn,
    start: Instant,
    pub dead: Vec<LinkId>,
}

impl Node {
    pub fn new() -> Self {
        Self::with(Config::of(report::Settings::of_process()))
    }

    pub fn with(config: Config) -> Self {
        let mut env = WindowEnv::new(config).unwrap();
        let qpn = Qpn::new(env.claim_block().unwrap());
        Node { env, qpn, start: Instant::now(), dead: Vec::new() }
    }

    /// Does what the holder of the lock does after it has let go: waits for copies of memory that was taken back.
    pub fn settle(&mut self) {
        if self.env.is_unquiet() {
            let in_vain = self.env.unquiet().wait();
            self.env.judge(&in_vain);
        }
    }

    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub fn resolve(&mut self, qpn: Qpn) -> LinkId {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(link) = self.env.resolve(&LOCALHOST, qpn) {
                return link;
            }
            assert!(Instant::now() < deadline, "no link to {qpn:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// One round: events, then every packet that is there.
    pub fn round(&mut self, mut take: impl FnMut(&mut WindowEnv, LinkId, Packet, Rx)) -> usize {
        let now = self.now();
        self.env.handle_events(now);
        let mut taken = 0;
        for i in 0..self.env.links().len() {
            let link = self.env.links()[i];
            while let Some((packet, rx)) = self.env.peek(link) {
                take(&mut self.env, link, packet, rx);
                self.env.release(link);
                taken += 1;
            }
        }
        self.env.ring_doorbells();
        let mut dead = Vec::new();
        self.env.take_dead_links(&mut dead);
        self.dead.extend(dead.into_iter().map(|(link, _)| link));
        taken
    }

    /// Sleeps as a NIC thread does, at most this long. False if there was no time to sleep.
    pub fn sleep(&mut self, at_most: Duration) -> bool {
        let slept = self.env.announce_sleep();
        if slept {
            let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
            let mut fds = [PollFd::from_borrowed_fd(self.env.epoll_fd().as_fd(), PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, Some(&timeout));
        }
        self.env.suppress_doorbells();
        slept
    }

    /// Rounds until something holds.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            self.round(|_, _, _, _| {});
            assert!(Instant::now() < deadline, "{what}: not in time");
            std::thread::yield_now();
        }
    }
}

/// A SEND of some bytes.
pub fn packet(to: Qpn, from: Qpn, n: u32, len: usize) -> Packet {
    let mut p = Packet::new(PacketOp::Send, to, from, Psn::new(n));
    p.imm = n;
    p.len = len as u32;
    p
}

pub fn span(bytes: &mut [u8]) -> Span {
    Span { addr: bytes.as_mut_ptr().expose_provenance() as u64, len: bytes.len() as u32, guarded: false }
}

/// Bytes that belong to a number.
pub fn pattern(n: u32, len: usize) -> Vec<u8> {
    let mut x = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

pub fn payload(env: &mut WindowEnv, rx: Rx) -> Vec<u8> {
    let mut bytes = vec![0; env.rx_len(rx) as usize];
    env.rx_fetch(rx, 0, &mut bytes);
    bytes
}

/// Sends everything that comes back where it came from, changed in nothing but the direction.
pub fn echo(node: &mut Node, sleepy: bool, mut done: impl FnMut() -> bool) {
    let mut queue: std::collections::VecDeque<(LinkId, Packet, Vec<u8>)> = std::collections::VecDeque::new();
    while !done() {
        let taken = node.round(|env, link, mut packet, rx| {
            std::mem::swap(&mut packet.src, &mut packet.dst);
            queue.push_back((link, packet, payload(env, rx)));
        });
        let mut stuck = false;
        while let Some((_, packet, bytes)) = queue.front() {
            let link = node.resolve(packet.dst);
            match node.env.send(link, packet, Payload { prefix: bytes, spans: &[] }) {
                Ok(()) => drop(queue.pop_front()),
                Err(SendError::Full) => {
                    stuck = true;
                    break;
                }
                Err(_) => queue.clear(),
            }
        }
        node.env.ring_doorbells();
        node.env.take_writable(&mut Vec::new());
        if sleepy && (taken == 0 || stuck) {
            node.sleep(NAP);
        } else if taken == 0 {
            std::thread::yield_now();
        }
    }
}

/// A reproducible source of bytes.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
