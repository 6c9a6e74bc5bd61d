//! Connections that a program takes out of an epoll set and puts back, with the library in both processes, one or none
//! of them: each call returns what it does with TCP.

mod pairs;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use libc::{EPOLL_CTL_ADD as ADD, EPOLL_CTL_DEL as DEL, EPOLL_CTL_MOD as MOD, EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP};
use pairs::{PAIRS, ROLE, accept, echo, pair};

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let connect = || TcpStream::connect(("127.0.0.1", words[1].parse().unwrap())).unwrap();
    match words[0] {
        "echo" => echo(accept()),
        "out-and-in" => out_and_in(connect(), words[2] == "moves"),
        other => panic!("{other}"),
    }
}

struct Set(i32);

impl Set {
    fn new() -> Set {
        // SAFETY: no pointers.
        Set(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
    }

    fn control(&self, operation: i32, fd: i32, events: i32) -> Result<(), i32> {
        let mut event = libc::epoll_event { events: events as u32, u64: 1234 };
        // SAFETY: an event that lives until the call returns.
        let result = unsafe { libc::epoll_ctl(self.0, operation, fd, &raw mut event) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
    }

    /// The events of the only connection in it; 0: none.
    fn events(&self, millis: i32) -> i32 {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: room for four events.
        let got = unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), 4, millis) };
        assert!(got == 0 || got == 1 && events[0].u64 == 1234, "{got} events");
        if got == 0 { 0 } else { events[0].events as i32 }
    }
}

const LONG: i32 = 40_000;

/// Sends a byte, and has it sent back, but does not take it.
fn order(mut stream: &TcpStream) {
    stream.write_all(&[7]).unwrap();
    assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
}

fn take(mut stream: &TcpStream) {
    stream.read_exact(&mut [0]).unwrap();
}

fn out_and_in(stream: TcpStream, moves: bool) {
    let (set, other, fd) = (Set::new(), Set::new(), stream.as_raw_fd());
    let mut sent = 0;
    for round in 0..40 {
        let events = EPOLLIN | if round % 3 == 0 { EPOLLET } else { 0 };
        assert_eq!(set.control(ADD, fd, events), Ok(()));
        assert_eq!(set.control(ADD, fd, events), Err(libc::EEXIST));
        (&stream).write_all(&[1; 200]).unwrap();
        assert_eq!(set.events(LONG), EPOLLIN);
        (&stream).read_exact(&mut [0; 200]).unwrap();
        sent += 200;
        assert_eq!(set.events(0), 0);
        assert_eq!(set.control(DEL, fd, 0), Ok(()));
        assert_eq!(set.control(DEL, fd, 0), Err(libc::ENOENT));
        assert_eq!(set.control(MOD, fd, EPOLLIN), Err(libc::ENOENT));
    }
    pairs::moved(&stream, sent, moves);

    // What comes while it is out is told when it is back, by an edge, too.
    for events in [EPOLLIN, EPOLLIN | EPOLLET] {
        order(&stream);
        assert_eq!(set.events(20), 0);
        assert_eq!(set.control(ADD, fd, events), Ok(()));
        assert_eq!(set.events(0), EPOLLIN);
        assert_eq!(set.control(MOD, fd, events | EPOLLOUT), Ok(()));
        assert_eq!(set.events(0), EPOLLIN | EPOLLOUT);
        // An edge is told again when the connection is armed again, and when it is put in again.
        assert_eq!(set.control(MOD, fd, events), Ok(()));
        assert_eq!(set.events(0), EPOLLIN);
        assert_eq!(set.control(DEL, fd, 0), Ok(()));
        assert_eq!(set.control(ADD, fd, events), Ok(()));
        assert_eq!(set.events(0), EPOLLIN);
        take(&stream);
        assert_eq!(set.control(DEL, fd, 0), Ok(()));
    }

    // In another set, and back. Only the set that it is in tells of it.
    assert_eq!(other.control(ADD, fd, EPOLLIN), Ok(()));
    order(&stream);
    assert_eq!((set.events(0), other.events(0)), (0, EPOLLIN));
    assert_eq!(other.control(DEL, fd, 0), Ok(()));
    assert_eq!(set.control(ADD, fd, EPOLLIN), Ok(()));
    assert_eq!((other.events(0), set.events(0)), (0, EPOLLIN));
    take(&stream);
    assert_eq!(set.control(DEL, fd, 0), Ok(()));

    // A thread that sleeps in the set is woken by a connection that is put in.
    order(&stream);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| set.events(LONG));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(set.control(ADD, fd, EPOLLIN), Ok(()));
        assert_eq!(sleeper.join().unwrap(), EPOLLIN);
    });
    take(&stream);
    assert_eq!(set.control(DEL, fd, 0), Ok(()));

    // The end of the stream comes while the connection is out.
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut ended = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one element.
    assert_eq!(unsafe { libc::poll(&raw mut ended, 1, LONG) }, 1);
    assert_eq!(set.control(ADD, fd, EPOLLIN | EPOLLRDHUP | EPOLLET), Ok(()));
    assert_eq!(set.events(LONG), EPOLLIN | EPOLLRDHUP | libc::EPOLLHUP);
    assert_eq!((&stream).read(&mut [0]).unwrap(), 0);

    // A set in another one tells its connections by TCP: nothing of this library's is left in it.
    assert_eq!(set.control(DEL, fd, 0), Ok(()));
    assert_eq!(other.control(ADD, set.0, EPOLLIN), Ok(()));
    assert_eq!((other.events(0), set.events(0)), (0, 0));
    assert_eq!(set.control(ADD, fd, EPOLLIN), Ok(()));
    assert_eq!(other.events(LONG), EPOLLIN);
}

#[test]
fn a_connection_that_is_taken_out_of_a_set_and_put_back_is_told_of_as_with_tcp() {
    PAIRS.into_iter().for_each(|with| pair("echo", "out-and-in", with));
}
