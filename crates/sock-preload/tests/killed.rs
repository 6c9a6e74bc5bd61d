//! A process that is killed: who talks to it sees what TCP shows, wherever it was killed and whatever is unread.

mod pairs;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pairs::{BOTH, PAIRS, ROLE, accept, byte, check, finish, listen, moved, port, start};

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let moves = words.contains(&"moves");
    let connect = || TcpStream::connect(("127.0.0.1", words[1].parse().unwrap()));
    match words[0] {
        "flood" => flood(accept(), true),
        "forked-flood" => forked_flood(),
        "deaf" => deaf(connect().unwrap(), None, words[3], moves),
        "two-deaf" => deaf(connect().unwrap(), Some(connect().unwrap()), words[3], moves),
        "victim" => victim(),
        "survivor" => {
            // It may have been killed before.
            if let Ok(stream) = connect() {
                survivor(stream, words[3]);
            }
        }
        other => panic!("{other}"),
    }
}

/// Answers some messages, then sends until nothing fits any more, so that a FIN would be behind much, and is killed.
fn flood(mut stream: TcpStream, asks: bool) -> ! {
    for _ in 0..if asks { 100 } else { 50 } {
        let mut message = [0; 100];
        stream.read_exact(&mut message).unwrap();
        stream.write_all(&message).unwrap();
    }
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[1; 8192]).is_ok() {}
    // SAFETY: it ends this process, as intended.
    unsafe { libc::raise(libc::SIGKILL) };
    unreachable!()
}

/// As [`flood`], by a child. The parent has another connection with the same process, and lives on.
fn forked_flood() {
    let listener = listen();
    let (mut first, _) = listener.accept().unwrap();
    let (mut second, _) = listener.accept().unwrap();
    for stream in [&mut first, &mut second] {
        for _ in 0..50 {
            let mut message = [0; 100];
            stream.read_exact(&mut message).unwrap();
            stream.write_all(&message).unwrap();
        }
    }
    // SAFETY: the child calls nothing but what moves bytes, and ends.
    if unsafe { libc::fork() } == 0 {
        flood(first, false);
    }
    drop(first);
    // Until the other process ends.
    assert_eq!(second.read(&mut [0; 10]).unwrap(), 0);
    // SAFETY: it ends this process; the harness expects as much.
    unsafe { libc::raise(libc::SIGKILL) };
}

static BROKEN_PIPES: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_broken_pipes(_signal: i32) {
    BROKEN_PIPES.fetch_add(1, Ordering::SeqCst);
}

fn catch_broken_pipes() {
    // SAFETY: a handler that stays as long as the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_broken_pipes as *const () as usize;
        libc::sigaction(libc::SIGPIPE, &raw const action, std::ptr::null_mut());
    }
}

/// Writes, and checks that a signal comes with EPIPE and with nothing else.
fn write(stream: &TcpStream, bytes: &[u8]) -> Result<usize, ErrorKind> {
    let before = BROKEN_PIPES.load(Ordering::SeqCst);
    // write(2), as the standard library sends with MSG_NOSIGNAL.
    // SAFETY: the bytes live until it returns.
    let written = unsafe { libc::write(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    let result = usize::try_from(written).map_err(|_| std::io::Error::last_os_error().kind());
    let signals = BROKEN_PIPES.load(Ordering::SeqCst) - before;
    assert_eq!(signals, u32::from(result == Err(ErrorKind::BrokenPipe)), "{result:?}");
    result
}

/// Waits for room as programs do it.
fn wait_for_room(stream: &TcpStream, by: &str, set: i32) {
    let fd = stream.as_raw_fd();
    // SAFETY: an array of one element, a set of this process, and room for one event.
    let ready = unsafe {
        match by {
            "poll" => {
                let mut one = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
                libc::poll(&raw mut one, 1, 35_000)
            }
            "select" => {
                let mut writers: libc::fd_set = std::mem::zeroed();
                libc::FD_SET(fd, &raw mut writers);
                let mut time = libc::timeval { tv_sec: 35, tv_usec: 0 };
                let none = std::ptr::null_mut();
                libc::select(fd + 1, none, &raw mut writers, none, &raw mut time)
            }
            _ => {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                libc::epoll_wait(set, &raw mut event, 1, 35_000)
            }
        }
    };
    assert_eq!(ready, 1, "the end does not become known");
}

/// Reads past the library, so that all that comes, comes by TCP; then writes until the end becomes known.
fn deaf(mut stream: TcpStream, mut second: Option<TcpStream>, by: &str, moves: bool) {
    catch_broken_pipes();
    let talk = |stream: &mut TcpStream, rounds| {
        for n in 0..rounds {
            stream.write_all(&[n; 100]).unwrap();
            let (mut buffer, mut got) = ([0u8; 100], 0);
            while got < buffer.len() {
                // SAFETY: the rest of a live buffer.
                let some = unsafe {
                    libc::syscall(libc::SYS_read, stream.as_raw_fd(), buffer[got..].as_mut_ptr(), buffer.len() - got)
                };
                assert!(some > 0);
                got += some as usize;
            }
            assert_eq!(buffer, [n; 100]);
        }
    };
    talk(&mut stream, 50);
    if let Some(second) = &mut second {
        talk(second, 50);
    }
    talk(&mut stream, 50);
    moved(&stream, 10_000, moves);
    // SAFETY: no pointers, and an event that lives until the call returns.
    let set = unsafe {
        let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let mut event = libc::epoll_event { events: (libc::EPOLLOUT | libc::EPOLLET) as u32, u64: 5 };
        if by == "epoll" || by == "edge" {
            event.events = if by == "epoll" { libc::EPOLLOUT as u32 } else { event.events };
            assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &raw mut event), 0);
        }
        set
    };
    stream.set_nonblocking(by != "block").unwrap();
    let first = loop {
        match write(&stream, &[7; 10_000]) {
            Ok(_) => {}
            Err(ErrorKind::WouldBlock) => wait_for_room(&stream, by, set),
            Err(error) => break error,
        }
    };
    assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&first), "{first}");
    assert_eq!(write(&stream, b"x"), Err(ErrorKind::BrokenPipe));
}

#[test]
fn a_writer_at_a_full_ring_learns_that_its_peer_was_killed_though_the_fin_is_behind_much() {
    for by in ["block", "poll", "select", "epoll", "edge"] {
        for with in if by == "block" { &PAIRS[..] } else { &PAIRS[..1] } {
            let what = if *with == BOTH { "moves" } else { "stays" };
            let mut one = start("flood", "", with.server);
            let port = port(&mut one);
            let mut two = start("deaf", &format!("{port} {what} {by}"), with.client);
            let sides = format!("{by}, server {}, client {}", with.server, with.client);
            assert!(finish(&mut two, &sides).success(), "{sides}");
            assert!(!finish(&mut one, "flood").success());
        }
    }
}

#[test]
fn a_writer_at_a_full_ring_learns_that_a_child_was_killed_whose_parent_lives_on() {
    for by in ["block", "poll", "epoll"] {
        for with in if by == "block" { &PAIRS[..] } else { &PAIRS[..1] } {
            let what = if *with == BOTH { "moves" } else { "stays" };
            let mut one = start("forked-flood", "", with.server);
            let port = port(&mut one);
            let mut two = start("two-deaf", &format!("{port} {what} {by}"), with.client);
            let sides = format!("{by}, server {}, client {}", with.server, with.client);
            assert!(finish(&mut two, &sides).success(), "{sides}");
            assert!(!finish(&mut one, "forked-flood").success());
        }
    }
}

/// Does as the first message says.
fn victim() -> ! {
    let mut stream = accept();
    let mut how = [0; 1];
    stream.read_exact(&mut how).unwrap();
    let mut at = 0;
    let mut buffer = vec![0; 3000];
    loop {
        let sends = how[0] != b's';
        if sends {
            let data: Vec<u8> = (0..700).map(|n| byte(at + n)).collect();
            stream.write_all(&data).unwrap();
            at += 700;
        }
        // One that only sends fills what there is.
        if how[0] != b'r' {
            let some = stream.read(&mut buffer).unwrap();
            assert!(some > 0);
        }
    }
}

/// Talks until the other process is killed. All that comes is right, and the end is one that TCP has.
fn survivor(mut stream: TcpStream, how: &str) {
    catch_broken_pipes();
    let ends = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    let written = write(&stream, &how.as_bytes()[..1]);
    let (mut at, mut buffer) = (0, vec![0; 5000]);
    let error = 'talk: loop {
        if let Err(error) = written {
            break error;
        }
        if how != "r" {
            match write(&stream, &[3; 500]) {
                Ok(_) => {}
                Err(error) => break error,
            }
        }
        if how != "s" {
            match stream.read(&mut buffer) {
                Ok(0) => break 'talk ErrorKind::BrokenPipe,
                Ok(some) => check(&buffer[..some], &mut at),
                Err(error) => break error.kind(),
            }
        }
    };
    assert!(ends.contains(&error), "{error}");
    // Then there is nothing more to be read, and the pipe is broken soon.
    let until = Instant::now() + Duration::from_secs(35);
    loop {
        match write(&stream, b"x") {
            Err(ErrorKind::BrokenPipe) => break,
            other => assert!(Instant::now() < until && other != Err(ErrorKind::WouldBlock), "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(some) => check(&buffer[..some], &mut at),
            Err(error) => assert!(ends.contains(&error.kind()), "{error}"),
        }
    }
}

/// `SOFTRNIC_TEST_KILLS` says how many times.
#[test]
fn wherever_a_process_is_killed_the_other_one_ends_as_with_tcp() {
    let kills = std::env::var("SOFTRNIC_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    for n in 0..kills {
        let mut one = start("victim", "", true);
        let port = port(&mut one);
        let how = ["e", "s", "r"][n % 3];
        let mut two = start("survivor", &format!("{port} moves {how}"), true);
        // Not before it has begun: most kills are to hit a connection that moves or has moved.
        let pause = 5_000 + u64::from(byte(n as u64)) * 300;
        std::thread::sleep(Duration::from_micros(pause));
        one.kill().unwrap();
        let what = format!("kill {n}, {how}, after {pause} us");
        assert!(finish(&mut two, &what).success(), "{what}");
        finish(&mut one, "victim");
    }
}
