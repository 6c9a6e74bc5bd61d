//! Two ends of a stream of bytes, for `cargo xtask sock-speed`, which runs them with the library and without.
//!
//! `speed serve tcp|unix ADDRESS HOW` serves one client and ends; HOW is `block` or `epoll`.
//! `speed round tcp|unix ADDRESS HOW SIZE MILLIS` prints the nanoseconds of a round trip, the median of many short
//! spans, and those of processor time that this end has used for each.
//! `speed stream tcp|unix ADDRESS SIZE MILLIS` prints the bytes that a stream of writes of this size carries in a
//! microsecond.
//! `speed idle tcp|unix ADDRESS HOW MILLIS` prints the nanoseconds of processor time of both ends in a second in which
//! both wait for data, and none comes.
//! `speed limits` prints what the machine does: the nanoseconds of a round trip of a cache line between two threads,
//! those of one by eventfds on which both sleep, and the bytes of a copy of 64 KiB in a microsecond.

use std::env;
use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Spans of a measurement of round trips.
const SPANS: u32 = 20;
/// The longest message.
const MOST: usize = 1 << 20;
/// What a server does: it sends each message back, it counts bytes, or it answers with its processor time.
const ECHO: usize = 0;
const SINK: usize = 1;
const ASK: usize = 2;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().unwrap_or(1).clamp(1, MOST);
    let done = match *words.as_slice() {
        ["serve", family, address, how] => accept(family, address).and_then(|end| serve(End::new(end, how)?)),
        ["round", family, address, how, size, millis] => connect(family, address)
            .and_then(|end| round(End::new(end, how)?, number(size), Duration::from_millis(number(millis) as u64))),
        ["stream", family, address, size, millis] => connect(family, address).and_then(|end| {
            stream(End::new(end, "block")?, number(size), Duration::from_millis(number(millis) as u64))
        }),
        ["idle", family, address, how, millis] => {
            connect(family, address).and_then(|end| idle(End::new(end, how)?, number(millis)))
        }
        ["limits"] => limits(),
        _ => Err(io::Error::other("speed serve|round|stream|idle|limits ...")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn accept(family: &str, address: &str) -> io::Result<OwnedFd> {
    if family == "unix" {
        return Ok(UnixListener::bind(address)?.accept()?.0.into());
    }
    let stream = TcpListener::bind(address)?.accept()?.0;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

/// Connects as soon as the server listens.
fn connect(family: &str, address: &str) -> io::Result<OwnedFd> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let connected = match family {
            "unix" => UnixStream::connect(address).map(OwnedFd::from),
            _ => TcpStream::connect(address).and_then(|stream| stream.set_nodelay(true).map(|()| stream.into())),
        };
        match connected {
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
            connected => return connected,
        }
    }
}

/// A socket, and the epoll set in which it is waited for, if any.
struct End {
    file: File,
    set: Option<OwnedFd>,
}

impl End {
    fn new(socket: OwnedFd, how: &str) -> io::Result<End> {
        let set = if how == "epoll" {
            // SAFETY: no pointers; a new descriptor is nobody else's.
            let set = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
            // SAFETY: an event that lives until the call returns.
            unsafe {
                check(libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK))?;
                check(libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event))?;
            }
            Some(set)
        } else {
            None
        };
        Ok(End { file: File::from(socket), set })
    }

    /// Reads what there is, and waits for it. 0: the end.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if let Some(set) = &self.set {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
            unsafe { check(libc::epoll_wait(set.as_raw_fd(), &raw mut event, 1, -1))? };
        }
        match self.file.read(to) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.read(to),
            other => other,
        }
    }

    /// False: the stream is at its end.
    fn fill(&mut self, to: &mut [u8]) -> io::Result<bool> {
        let mut got = 0;
        while got < to.len() {
            match self.read(&mut to[got..])? {
                0 => return Ok(false),
                some => got += some,
            }
        }
        Ok(true)
    }

    fn send(&mut self, mut from: &[u8]) -> io::Result<()> {
        while !from.is_empty() {
            match self.file.write(from) {
                Ok(some) => from = &from[some..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Serves a client: its first two numbers say what it does, and the size of its messages.
fn serve(mut end: End) -> io::Result<()> {
    let mut head = [0; 16];
    end.fill(&mut head)?;
    let number = |at: usize| head.iter().skip(at).take(8).rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    let size = number(8).min(MOST);
    if number(0) == ASK {
        let mut message = [0; 8];
        while end.fill(&mut message)? {
            end.send(&(clock().as_nanos() as u64).to_le_bytes())?;
        }
        return Ok(());
    }
    if number(0) == ECHO {
        let mut message = vec![0; size];
        while end.fill(&mut message)? {
            end.send(&message)?;
        }
        return Ok(());
    }
    let (mut buffer, mut got) = (vec![0; size.max(64 << 10)], 0u64);
    loop {
        match end.read(&mut buffer)? {
            0 => return end.send(&got.to_le_bytes()),
            some => got += some as u64,
        }
    }
}

fn begin(end: &mut End, kind: usize, size: usize) -> io::Result<()> {
    let mut head = (kind as u64).to_le_bytes().to_vec();
    head.extend((size as u64).to_le_bytes());
    end.send(&head)
}

/// The processor time of this process.
fn used() -> Duration {
    // SAFETY: a structure of integers, into which the kernel writes.
    let usage = unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |at: libc::timeval| Duration::from_micros(at.tv_sec as u64 * 1_000_000 + at.tv_usec as u64);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn round(mut end: End, size: usize, time: Duration) -> io::Result<()> {
    begin(&mut end, ECHO, size)?;
    let mut message = vec![7; size];
    let mut one = || {
        end.send(&message)?;
        if end.fill(&mut message)? { Ok(()) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) }
    };
    for _ in 0..2000 {
        one()?;
    }
    let (mut spans, mut rounds, before) = (Vec::new(), 0u64, used());
    for _ in 0..SPANS {
        let (began, mut count) = (Instant::now(), 0u32);
        while began.elapsed() < time / SPANS {
            // A look at the clock is a part of ten round trips.
            for _ in 0..10 {
                one()?;
            }
            count += 10;
        }
        rounds += u64::from(count);
        spans.push(began.elapsed().as_secs_f64() * 1e9 / f64::from(count));
    }
    let processor = (used() - before).as_secs_f64() * 1e9 / rounds as f64;
    spans.sort_by(f64::total_cmp);
    println!("{:.1} {processor:.1}", spans[spans.len() / 2]);
    Ok(())
}

fn stream(mut end: End, size: usize, time: Duration) -> io::Result<()> {
    begin(&mut end, SINK, size)?;
    let message = vec![7; size];
    let (began, mut sent) = (Instant::now(), 0u64);
    while began.elapsed() < time {
        for _ in 0..(1 << 20) / size.max(1 << 10) {
            end.send(&message)?;
            sent += size as u64;
        }
    }
    // SAFETY: no pointers.
    unsafe { check(libc::shutdown(end.file.as_raw_fd(), libc::SHUT_WR))? };
    let mut got = [0; 8];
    if !end.fill(&mut got)? || u64::from_le_bytes(got) != sent {
        return Err(io::Error::other("the server has got another number of bytes"));
    }
    println!("{:.2}", sent as f64 / began.elapsed().as_secs_f64() / 1e6);
    Ok(())
}

/// The processor time of this process, by a clock of nanoseconds.
fn clock() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure that lives until the call returns.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn idle(mut end: End, millis: usize) -> io::Result<()> {
    begin(&mut end, ASK, 8)?;
    let ask = |end: &mut End| -> io::Result<u64> {
        let mut answer = [0; 8];
        end.send(&answer)?;
        if end.fill(&mut answer)? { Ok(u64::from_le_bytes(answer)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    };
    let mut before = 0;
    for _ in 0..2000 {
        before = ask(&mut end)?;
    }
    let (began, own) = (Instant::now(), clock());
    let ready = match &end.set {
        Some(set) => {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
            unsafe { check(libc::epoll_wait(set.as_raw_fd(), &raw mut event, 1, millis as i32))? }
        }
        None => {
            let mut wait = libc::pollfd { fd: end.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one element.
            unsafe { check(libc::poll(&raw mut wait, 1, millis as i32))? }
        }
    };
    if ready != 0 {
        return Err(io::Error::other("something arrives that was not sent"));
    }
    // Asking is counted with it: a round trip in all that time.
    let seconds = began.elapsed().as_secs_f64();
    let both = (clock() - own).as_nanos() as u64 + ask(&mut end)? - before;
    println!("{:.1}", both as f64 / seconds);
    Ok(())
}

fn limits() -> io::Result<()> {
    const ROUNDS: u64 = 200_000;
    let lines = [[const { AtomicU64::new(0) }; 16], [const { AtomicU64::new(0) }; 16]];
    let pass = |mine: usize| {
        for round in 1..=ROUNDS {
            if mine == 0 {
                lines[0][0].store(round, Ordering::Release);
            }
            while lines[1 - mine][0].load(Ordering::Acquire) < round {
                spin_loop();
            }
            if mine == 1 {
                lines[1][0].store(round, Ordering::Release);
            }
        }
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| pass(1));
        pass(0);
    });
    let line = began.elapsed().as_secs_f64() * 1e9 / ROUNDS as f64;

    let bell = || -> io::Result<File> {
        // SAFETY: no pointers; a new descriptor is nobody else's.
        Ok(unsafe { File::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC))?) })
    };
    let bells = [bell()?, bell()?];
    let wakes = 10_000;
    let ring = |from: usize, first: bool| -> io::Result<()> {
        for _ in 0..wakes {
            if first {
                (&bells[1 - from]).write_all(&1u64.to_ne_bytes())?;
            }
            (&bells[from]).read_exact(&mut [0; 8])?;
            if !first {
                (&bells[1 - from]).write_all(&1u64.to_ne_bytes())?;
            }
        }
        Ok(())
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| ring(1, false));
        let own = ring(0, true);
        other.join().expect("it does not panic").and(own)
    })?;
    let wake = began.elapsed().as_secs_f64() * 1e9 / f64::from(wakes);

    let (from, mut to) = (vec![1u8; 64 << 10], vec![0u8; 64 << 10]);
    let (began, copies) = (Instant::now(), 20_000);
    for _ in 0..copies {
        black_box(&mut to).copy_from_slice(black_box(&from));
    }
    let copied = from.len() as f64 * f64::from(copies) / began.elapsed().as_secs_f64() / 1e6;
    println!("{line:.1} {wake:.1} {copied:.1}");
    Ok(())
}
