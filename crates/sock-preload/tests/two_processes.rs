//! Two processes and a TCP connection between them, with the library in both, one or none of them: every byte is
//! compared, and whether the connection moved is seen by how many bytes its socket has sent.

mod pairs;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use pairs::{BOTH, PAIRS, ROLE, accept, by_tcp, byte, check, echo, finish, listen, moved, pair, ping, port, start};

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let moves = words.contains(&"moves");
    let connect = || TcpStream::connect(("127.0.0.1", words[1].parse().unwrap())).unwrap();
    match words[0] {
        "echo" => echo(accept()),
        "ping" => ping(connect(), moves),
        "source" => source(accept(), moves),
        "sink" => sink(connect()),
        "epoll-echo" => epoll_echo(accept(), false),
        "edge-echo" => epoll_echo(accept(), true),
        "victim" => victim(accept()),
        "survivor" => survivor(connect(), moves),
        "child" => child(accept()),
        "half" => half(connect()),
        "collector" => collector(accept()),
        "deaf" => deaf(accept(), moves),
        "flood" => flood(connect()),
        "records" => records(),
        "many-echo" => many_echo(),
        "many" => many(words[1].parse().unwrap(), moves),
        "interrupted" => interrupted(words[1].parse().unwrap()),
        other => panic!("{other}"),
    }
}

const STREAM: u64 = 24 << 20;

/// A stream that is never idle; its receiver answers with a byte now and then only at the beginning.
fn source(mut stream: TcpStream, moves: bool) {
    let mut sent = 0;
    while sent < STREAM {
        let length = 1 + (sent * 31) % 50_000;
        let data: Vec<u8> = (0..length.min(STREAM - sent)).map(|n| byte(sent + n)).collect();
        stream.write_all(&data).unwrap();
        sent += data.len() as u64;
    }
    moved(&stream, sent, moves);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
}

fn sink(mut stream: TcpStream) {
    let mut at = 0;
    let mut buffer = vec![0; 40_000];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            some => check(&buffer[..some], &mut at),
        }
    }
    assert_eq!(at, STREAM);
}

/// An echo as event-driven programs do it.
fn epoll_echo(mut stream: TcpStream, edge: bool) {
    stream.set_nonblocking(true).unwrap();
    let (mut buffer, mut pending) = (vec![0; 20_000], Vec::new());
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(0) };
    let control = |operation, events: i32| {
        let mut event = libc::epoll_event { events: events as u32, u64: 77 };
        // SAFETY: an event that lives until the call returns.
        assert_eq!(unsafe { libc::epoll_ctl(set, operation, stream.as_raw_fd(), &raw mut event) }, 0);
    };
    let edge_bits = if edge { libc::EPOLLET | libc::EPOLLOUT } else { 0 };
    control(libc::EPOLL_CTL_ADD, libc::EPOLLIN | edge_bits);
    loop {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: room for four events.
        let got = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 4, 20_000) };
        assert_eq!((got, events[0].u64 == 77), (1, true));
        loop {
            match (&stream).read(&mut buffer) {
                Ok(0) => return,
                Ok(some) => pending.extend_from_slice(&buffer[..some]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
            if !edge {
                break;
            }
        }
        while !pending.is_empty() {
            match stream.write(&pending) {
                Ok(some) => drop(pending.drain(..some)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        if !edge {
            let out = if pending.is_empty() { 0 } else { libc::EPOLLOUT };
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | out) as u32, u64: 77 };
            // SAFETY: an event that lives until the call returns.
            unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_MOD, stream.as_raw_fd(), &raw mut event) };
        }
    }
}

/// Exchanges some messages, sends more, and is killed.
fn victim(mut stream: TcpStream) {
    let mut at = 0;
    for _ in 0..20 {
        let mut buffer = [0; 100];
        stream.read_exact(&mut buffer).unwrap();
        check(&buffer, &mut at);
        stream.write_all(&buffer).unwrap();
    }
    stream.write_all(&[9; 1000]).unwrap();
    // SAFETY: it ends this process, as intended.
    unsafe { libc::raise(libc::SIGKILL) };
}

fn survivor(mut stream: TcpStream, moves: bool) {
    let mut at = 0;
    for _ in 0..20 {
        let data: Vec<u8> = (0..100).map(|n| byte(at + n)).collect();
        stream.write_all(&data).unwrap();
        let mut back = [0; 100];
        stream.read_exact(&mut back).unwrap();
        check(&back, &mut at);
    }
    moved(&stream, 2000, moves);
    // All that was sent comes, then the end.
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [9; 1000]);
    // The first write is answered by a reset, so that a later one finds the pipe broken.
    stream.write_all(b"x").unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let error = loop {
        match stream.write_all(b"x") {
            Ok(()) => assert!(Instant::now() < until, "the reset does not come"),
            Err(error) => break error,
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

/// Talks, then leaves the connection to cat(1), which knows nothing of rings.
fn child(mut stream: TcpStream) {
    let mut at = 0;
    for _ in 0..20 {
        let mut buffer = [0; 100];
        stream.read_exact(&mut buffer).unwrap();
        check(&buffer, &mut at);
        stream.write_all(&buffer).unwrap();
    }
    let input = std::os::fd::OwnedFd::from(stream.try_clone().unwrap());
    let output = std::os::fd::OwnedFd::from(stream);
    let status = Command::new("cat").env_remove("LD_PRELOAD").stdin(input).stdout(output).status().unwrap();
    assert!(status.success());
}

/// Talks, sends more, and its end; the answer is what cat(1) makes of it.
fn half(mut stream: TcpStream) {
    let mut got = 0;
    for _ in 0..20 {
        let data: Vec<u8> = (0..100).map(|n| byte(got + n)).collect();
        stream.write_all(&data).unwrap();
        let mut back = [0; 100];
        stream.read_exact(&mut back).unwrap();
        check(&back, &mut got);
    }
    let more: Vec<u8> = (0..100_000).map(|n| byte(got + n)).collect();
    let mut back = Vec::new();
    std::thread::scope(|scope| {
        let mut reader = stream.try_clone().unwrap();
        let back = &mut back;
        scope.spawn(move || reader.read_to_end(back).unwrap());
        for part in more.chunks(10_000) {
            stream.write_all(part).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    });
    check(&back, &mut got);
    assert_eq!(got, 102_000);
}

/// Reads with select(2) and a small buffer.
fn collector(mut stream: TcpStream) {
    let (mut at, mut buffer) = (0, [0; 3000]);
    loop {
        // SAFETY: a set of this process, and a descriptor below 1024.
        let ready = unsafe {
            let mut set: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(stream.as_raw_fd(), &raw mut set);
            let mut time = libc::timeval { tv_sec: 20, tv_usec: 0 };
            let none = std::ptr::null_mut();
            libc::select(stream.as_raw_fd() + 1, &raw mut set, none, none, &raw mut time)
        };
        assert_eq!(ready, 1);
        match stream.read(&mut buffer).unwrap() {
            0 => return,
            some => {
                check(&buffer[..some], &mut at);
                stream.write_all(&buffer[..some]).unwrap();
            }
        }
    }
}

const CONNECTIONS: usize = 6;
const RECORDS: u32 = 1600;
const RECORD: usize = 4096;

/// A record says who has written it, and which of the writer's it is.
fn record(writer: u32, number: u32) -> [u8; RECORD] {
    std::array::from_fn(|at| if at < RECORD / 2 { writer } else { number }.to_le_bytes()[at % 4])
}

/// Reads records of two writers, each of which counts, and acknowledges every tenth of the first one's.
fn records() {
    let listener = listen();
    for _ in 0..CONNECTIONS {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut next, mut got) = ([0u32; 2], [0; RECORD]);
        while stream.read_exact(&mut got).is_ok() {
            let writer = u32::from_le_bytes(got[..4].try_into().unwrap());
            let count = &mut next[writer as usize];
            assert_eq!(got, record(writer, *count));
            *count += 1;
            if writer == 0 && *count % 10 == 0 {
                stream.write_all(&next[1].to_le_bytes()).unwrap();
            }
        }
        assert_eq!(next[0], RECORDS);
    }
}

static INTERRUPTED: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);
static BY_HANDLER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
/// Records of the handler that no acknowledgement has come behind. There are few of them, so that all that is
/// outstanding fits into the ring, and into a socket: then no write waits, and no record is cut into two.
static OUTSTANDING: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// A signal's handler that writes to the connection that it may have interrupted a write to.
extern "C" fn write_more(_signal: i32) {
    use std::sync::atomic::Ordering::SeqCst;
    if OUTSTANDING.fetch_add(1, SeqCst) >= 4 {
        return;
    }
    let bytes = record(1, BY_HANDLER.load(SeqCst));
    // SAFETY: write(2) may be called in a handler, and the bytes live until it returns.
    let sent = unsafe { libc::write(INTERRUPTED.load(SeqCst), bytes.as_ptr().cast(), RECORD) };
    if sent == RECORD as isize {
        BY_HANDLER.fetch_add(1, SeqCst);
    }
}

fn interrupted(port: u16) {
    use std::sync::atomic::Ordering::SeqCst;
    // SAFETY: a handler that stays as long as the process; this thread outlives the one that sends it signals.
    let me = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = write_more as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        libc::pthread_self()
    };
    static STORM: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    std::thread::spawn(move || {
        loop {
            if STORM.load(SeqCst) {
                // SAFETY: that thread lives as long as the process.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
            }
            std::thread::sleep(Duration::from_micros(10));
        }
    });
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        BY_HANDLER.store(0, SeqCst);
        INTERRUPTED.store(stream.as_raw_fd(), SeqCst);
        let mut ack = [0; 4];
        for number in 0..RECORDS {
            stream.write_all(&record(0, number)).unwrap();
            match number {
                500 => STORM.store(true, SeqCst),
                1200 => STORM.store(false, SeqCst),
                _ => {}
            }
            if number % 10 == 9 {
                stream.read_exact(&mut ack).unwrap();
                OUTSTANDING.store(0, SeqCst);
            }
        }
        assert!(u32::from_le_bytes(ack) <= BY_HANDLER.load(SeqCst));
    }
}

const MANY: usize = 48;

/// Sends back what comes by many connections, which are all in one epoll set.
fn many_echo() {
    let listener = listen();
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(0) };
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    for number in 0..MANY {
        let (stream, _) = listener.accept().unwrap();
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
        // SAFETY: an event that lives until the call returns.
        assert_eq!(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &raw mut event) }, 0);
        streams.push(Some(stream));
    }
    let (mut left, mut buffer) = (MANY, [0; 4096]);
    while left > 0 {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 7];
        // SAFETY: room for seven events.
        let got = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 7, 30_000) };
        assert!(got > 0, "{left} connections are left, and nothing comes");
        for event in &events[..got as usize] {
            let number = event.u64 as usize;
            let stream = streams[number].as_mut().unwrap();
            match stream.read(&mut buffer).unwrap() {
                0 => {
                    streams[number] = None;
                    left -= 1;
                }
                some => stream.write_all(&buffer[..some]).unwrap(),
            }
        }
    }
}

/// Talks by many connections: first by all at once, then each by a thread of its own that waits in a call.
fn many(port: u16, moves: bool) {
    let mut streams: Vec<TcpStream> = (0..MANY).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let data = |number: usize, round: usize| vec![(number * 7 + round) as u8; 1 + (number + round) * 13 % 500];
    for round in 0..30 {
        for (number, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&data(number, round)).unwrap();
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let mut back = data(number, round + 1);
            back.resize(data(number, round).len(), 0);
            stream.read_exact(&mut back).unwrap();
            assert!(back == data(number, round), "connection {number}, round {round}");
        }
    }
    let total = |number| (0..30).map(|round| data(number, round).len() as u64).sum::<u64>();
    let moved = streams.iter().enumerate().filter(|(number, stream)| by_tcp(stream) < total(*number)).count();
    // One whose ends looked for each other when there was no memory or descriptor for it may stay with TCP.
    assert!(if moves { moved > MANY / 2 } else { moved == 0 }, "{moved} of {MANY} connections moved");
    std::thread::scope(|scope| {
        for (number, mut stream) in streams.into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..100 {
                    let mut back = data(number, round);
                    stream.write_all(&back).unwrap();
                    back.fill(0);
                    stream.read_exact(&mut back).unwrap();
                    assert!(back == data(number, round), "connection {number}, round {round}");
                }
            });
        }
    });
}

#[test]
fn many_connections_wake_a_set_and_the_threads_that_wait_for_each() {
    PAIRS.into_iter().for_each(|with| pair("many-echo", "many", with));
}

#[test]
fn a_handler_may_write_where_it_has_interrupted_a_write() {
    pair("records", "interrupted", BOTH);
}

/// Answers by this library, and reads past it: what comes, comes by TCP. At last it sends to an end that has closed.
fn deaf(mut stream: TcpStream, moves: bool) {
    let mut sent = 0;
    for _ in 0..100 {
        let mut buffer = [0u8; 100];
        let mut got = 0;
        while got < buffer.len() {
            // SAFETY: the rest of a live buffer.
            let some = unsafe {
                libc::syscall(libc::SYS_read, stream.as_raw_fd(), buffer[got..].as_mut_ptr(), buffer.len() - got)
            };
            assert!(some > 0);
            got += some as usize;
        }
        stream.write_all(&buffer).unwrap();
        sent += 100;
    }
    moved(&stream, sent, moves);
    // The other end is about to close. Should it be late, it closes with bytes unread, which is another way to a reset.
    std::thread::sleep(Duration::from_millis(200));
    let error = loop {
        if let Err(error) = stream.write(&[7; 10_000]) {
            break error;
        }
    };
    assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind()), "{error}");
}

/// Exchanges some messages, sends until nothing fits any more, so that the FIN is behind much, and closes.
fn flood(mut stream: TcpStream) {
    for n in 0..100 {
        let mut back = [0; 100];
        stream.write_all(&[n; 100]).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, [n; 100]);
    }
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[1; 8192]).is_ok() {}
}

#[test]
fn an_echo_comes_back_whoever_has_the_library() {
    PAIRS.into_iter().for_each(|with| pair("echo", "ping", with));
}

#[test]
fn a_stream_that_is_never_idle_is_switched_exactly() {
    PAIRS.into_iter().for_each(|with| pair("source", "sink", with));
}

#[test]
fn programs_with_epoll_and_select_see_what_there_is() {
    for server in ["epoll-echo", "edge-echo", "collector"] {
        PAIRS.into_iter().for_each(|with| pair(server, "ping", with));
    }
}

#[test]
fn who_survives_a_killed_peer_sees_what_tcp_would_show() {
    for with in PAIRS {
        let mut one = start("victim", "", with.server);
        let port = port(&mut one);
        let mut two =
            start("survivor", &format!("{port} {}", if with == BOTH { "moves" } else { "stays" }), with.client);
        assert!(finish(&mut two, "survivor").success(), "server {}, client {}", with.server, with.client);
        assert!(!finish(&mut one, "victim").success());
    }
}

#[test]
fn sending_to_an_end_that_has_closed_ends_though_its_fin_is_behind_much() {
    PAIRS.into_iter().for_each(|with| pair("deaf", "flood", with));
}

#[test]
fn a_moved_connection_is_handed_to_a_program_that_knows_nothing() {
    PAIRS.into_iter().for_each(|with| pair("child", "half", with));
}
