//! Servers of the rule `sdp` in all their kinds: several sockets at one port, sockets that were inherited, users that
//! change, names that strangers fill, and sockets at which poll(2) waits.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::pairs::{self, finish};
use super::{Both, Files, Rule, Sdp, Tcp, asked_socket, bytes_of, listen, ping, run};

/// Another user than root.
const STRANGER: u32 = 65_534;

/// What the program is here.
pub fn role(words: &[&str]) {
    match words[0] {
        "shared" => shared(),
        "tries" => ping(try_to_connect(words[1].parse().unwrap()), "memory"),
        "heir" => heir(words[1], words.get(2).copied()),
        "drops" => drops(words[1]),
        "dropped" => {
            become_stranger();
            // Until the server waits, its name is that of root.
            ping(try_to_connect(words[1].parse().unwrap()), "memory");
        }
        "filled" => filled(),
        "told" => told(words[1]),
        "timed" => timed(),
        "knocks" => knocks(words[1]),
        "again" => again(words[1].parse().unwrap()),
        "asked-again" => asked_again(words[1].parse().unwrap(), words[2].parse().unwrap()),
        "asked-copy" => asked_copy(),
        "dissolved" => dissolved(),
        "three" => three(),
        "forbidden" => forbidden(words[1].parse().unwrap()),
        other => panic!("{other}"),
    }
}

/// A socket that has a port, and does not listen.
pub fn closed_port() -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    socket
}

/// In a child of fork(2): it ends when its parent does.
pub fn end_with_parent() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

fn become_stranger() {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::setuid(STRANGER) }, 0);
}

fn is_root() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::geteuid() == 0 }
}

fn say_port(listener: &TcpListener) {
    println!("\nport {}", listener.local_addr().unwrap().port());
    std::io::stdout().flush().unwrap();
}

/// Waits until its parent wants it to end.
fn until_told() {
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

fn shared_listener(at: SocketAddr) -> TcpListener {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
    rustix::net::bind(&socket, &at).unwrap();
    // SAFETY: no pointers. The C library's function is the one that the library replaces.
    assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 100) }, 0);
    TcpListener::from(socket)
}

/// Four sockets at one port, each with a thread.
fn shared() {
    let first = shared_listener(SocketAddr::from(([127, 0, 0, 1], 0)));
    let at = first.local_addr().unwrap();
    let others: Vec<TcpListener> = (0..3).map(|_| shared_listener(at)).collect();
    say_port(&first);
    for listener in others.into_iter().chain([first]) {
        std::thread::spawn(move || {
            loop {
                pairs::echo(listener.accept().unwrap().0);
            }
        });
    }
    until_told();
}

#[test]
fn clients_are_announced_to_all_sockets_of_a_port() {
    let files = Files::new("shared");
    let (mut server, port) = files.serve("shared", Sdp);
    run(&files, &format!("client 127.0.0.1:{port} waits reset"), Rule::None, "a plain client");
    // The kernel chooses the socket by the client's port: all of them choose one in a billion runs or fewer.
    for client in [Sdp, Both].repeat(8) {
        run(&files, &format!("client 127.0.0.1:{port} waits memory"), client, "a client");
    }
    server.stdin.take().unwrap().write_all(b"x").unwrap();
    assert!(finish(&mut server, "the server").success());
}

/// Connects as soon as somebody is there.
fn try_to_connect(to: SocketAddr) -> TcpStream {
    let until = Instant::now() + Duration::from_secs(40);
    loop {
        match TcpStream::connect(to) {
            Ok(stream) => return stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
        }
        assert!(Instant::now() < until, "nobody is there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a socket has something to tell.
fn wait_for(listener: &TcpListener, how: &str) {
    let fd = listener.as_raw_fd();
    match how {
        "accept" => {}
        "poll" => {
            let mut ready = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            // SAFETY: one element.
            assert_eq!(unsafe { libc::poll(ready.as_mut_ptr(), 1, 40_000) }, 1);
        }
        "select" => {
            let mut time = libc::timeval { tv_sec: 40, tv_usec: 0 };
            let none = core::ptr::null_mut();
            // SAFETY: a set of zeroes is an empty one, and lives until the call returns, as the time does.
            let ready = unsafe {
                let mut set: libc::fd_set = core::mem::zeroed();
                libc::FD_SET(fd, &raw mut set);
                libc::select(fd + 1, &raw mut set, none, none, &raw mut time)
            };
            assert_eq!(ready, 1);
        }
        "epoll" => {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: an event that lives until the calls return; the set is closed at the end.
            unsafe {
                let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
                assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
                assert_eq!(libc::epoll_wait(set, &raw mut event, 1, 40_000), 1);
                libc::close(set);
            }
        }
        other => panic!("{other}"),
    }
}

/// A program that is started with a socket that listens, and waits there.
fn heir(how: &str, fd: Option<&str>) {
    let Some(fd) = fd else {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture"]).env(pairs::ROLE, format!("heir {how} {fd}"));
        panic!("{}", command.exec());
    };
    // SAFETY: the descriptor that the program before this one has left here.
    let listener = unsafe { TcpListener::from_raw_fd(fd.parse().unwrap()) };
    // The name of the program before this one is gone.
    say_port(&listener);
    let mut served = 0;
    while served < 2 {
        wait_for(&listener, how);
        match listener.accept() {
            Ok((stream, from)) => {
                assert_eq!(stream.peer_addr().unwrap(), from, "the address is that of the refused client");
                pairs::echo(stream);
                served += 1;
            }
            Err(error) => assert_eq!((error.kind(), how == "accept"), (ErrorKind::ConnectionAborted, false)),
        }
    }
}

#[test]
fn a_program_that_inherits_the_socket_has_a_name_before_it_waits() {
    let files = Files::new("heir");
    for how in ["accept", "poll", "select", "epoll"] {
        let (mut server, port) = files.serve(&format!("heir {how}"), Sdp);
        run(&files, &format!("tries 127.0.0.1:{port}"), Sdp, how);
        run(&files, &format!("client 127.0.0.1:{port} waits reset"), Rule::None, how);
        run(&files, &format!("client 127.0.0.1:{port} waits memory"), Both, how);
        assert!(finish(&mut server, how).success());
    }
}

/// Listens as root, and accepts as another user.
fn drops(how: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: a set that stays, and an event that lives until the calls return.
    unsafe {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        if how == "epoll" {
            assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, listener.as_raw_fd(), &raw mut event), 0);
        }
        become_stranger();
        say_port(&listener);
        if how == "epoll" {
            assert_eq!(libc::epoll_wait(set, &raw mut event, 1, 40_000), 1);
        }
    }
    pairs::echo(listener.accept().unwrap().0);
}

#[test]
fn a_server_is_known_by_the_user_that_it_has_now() {
    if !is_root() {
        return;
    }
    let files = Files::new("drops");
    for how in ["accept", "epoll"] {
        let (mut server, port) = files.serve(&format!("drops {how}"), Sdp);
        run(&files, &format!("dropped 127.0.0.1:{port}"), Sdp, "the server's user");
        assert!(finish(&mut server, "the server").success());
    }
}

/// Another user fills the name of a socket.
fn filled() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let cookie = rustix::net::sockopt::socket_cookie(&listener).unwrap();
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        end_with_parent();
        // SAFETY: no pointers.
        let mut is_done = unsafe { libc::setuid(STRANGER) } == 0;
        let name = SocketAddrUnix::new_abstract_name(format!("softrnic-listen-{cookie:x}-0").as_bytes()).unwrap();
        let connect = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            rustix::net::connect(&socket, &name)
        };
        while is_done {
            match connect() {
                Ok(()) => {}
                Err(error) => {
                    is_done = error == rustix::io::Errno::AGAIN;
                    break;
                }
            }
        }
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(!is_done)) };
    }
    let mut ended = 1;
    // SAFETY: a live int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
    assert_eq!(ended, 0, "the name is full");
    say_port(&listener);
    for _ in 0..2 {
        pairs::echo(listener.accept().unwrap().0);
    }
}

#[test]
fn strangers_who_fill_a_name_keep_nobody_out() {
    if !is_root() {
        return;
    }
    let files = Files::new("filled");
    for (server, client) in [(Sdp, Sdp), (Sdp, Both), (Both, Sdp)] {
        let (mut child, port) = files.serve("filled", server);
        let what = |client| format!("server {server:?}, {client}");
        run(
            &files,
            &format!("client 127.0.0.1:{port} waits memory"),
            client,
            &what("a client that finds the name full"),
        );
        if server == Sdp {
            run(&files, &format!("client 127.0.0.1:{port} waits reset"), Rule::None, &what("a plain client"));
        }
        run(&files, &format!("client 127.0.0.1:{port} waits memory"), client, &what("a client"));
        assert!(finish(&mut child, "the server").success());
    }
}

/// A socket that waits in accept(2), and is asked by poll(2) and its like before.
fn told(how: &str) {
    let listener = listen("127.0.0.1:0");
    wait_for(&listener, how);
    assert_eq!(listener.accept().map(drop).map_err(|error| error.kind()), Err(ErrorKind::ConnectionAborted));
    println!("\nport 1");
    std::io::stdout().flush().unwrap();
    wait_for(&listener, how);
    pairs::echo(listener.accept().unwrap().0);
}

#[test]
fn accept_does_not_wait_for_another_client_than_the_one_that_poll_has_told_of() {
    let files = Files::new("told");
    for how in ["poll", "select", "epoll"] {
        let (mut server, port) = files.serve(&format!("told {how}"), Sdp);
        run(&files, &format!("client 127.0.0.1:{port} waits reset"), Rule::None, "a plain client");
        assert_eq!(pairs::port(&mut server), "1");
        run(&files, &format!("client 127.0.0.1:{port} waits memory"), Sdp, "a client");
        assert!(finish(&mut server, "the server").success());
    }
}

/// Accepts for a while, in which nobody comes who is let in.
fn timed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_timeout(
        &listener,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_secs(1)),
    )
    .unwrap();
    say_port(&listener);
    assert_eq!(listener.accept().map(drop).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
}

/// Connects again and again, more often than the server's time is over.
fn knocks(to: &str) {
    let until = Instant::now() + Duration::from_secs(40);
    while TcpStream::connect(to).is_ok() {
        assert!(Instant::now() < until, "the server waits for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_time_of_accept_does_not_begin_anew_with_each_refusal() {
    let files = Files::new("timed");
    let (mut server, port) = files.serve("timed", Sdp);
    run(&files, &format!("knocks 127.0.0.1:{port}"), Rule::None, "a plain client");
    assert!(finish(&mut server, "the server").success());
}

/// An address of a link that a socket can be bound to, with its scope.
fn link_address() -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/if_inet6").ok()?;
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ip = std::net::Ipv6Addr::from(u128::from_str_radix(words.first()?, 16).ok()?);
        let scope = u32::from_str_radix(words.get(1)?, 16).ok()?;
        let address = std::net::SocketAddrV6::new(ip, 0, 0, scope);
        let is_usable = words.get(3) == Some(&"20") && TcpListener::bind(address).is_ok();
        is_usable.then(|| format!("[{ip}%{scope}]"))
    })
}

#[test]
fn an_address_of_a_link_keeps_its_scope() {
    let Some(address) = link_address() else { return };
    let files = Files::new("link");
    for at in ["[::]:0".to_owned(), format!("{address}:0")] {
        let (mut server, port) = files.serve(&format!("server {at} waits 2"), Sdp);
        for client in [Sdp, Both] {
            run(&files, &format!("client {address}:{port} waits memory"), client, "a client");
        }
        assert!(finish(&mut server, "the server").success());
    }
}

fn connect(fd: i32, to: SocketAddr, family: i32) -> i32 {
    let (bytes, len) = bytes_of(to, family);
    // SAFETY: an address of this length. The C library's function is the one that the library replaces.
    let result = unsafe { libc::connect(fd, bytes.as_ptr().cast(), len) };
    if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

fn wait_to_connect(fd: i32) {
    let mut ready = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
    // SAFETY: one element.
    assert_eq!(unsafe { libc::poll(ready.as_mut_ptr(), 1, 40_000) }, 1);
}

/// Tries a closed port first, with the same socket.
fn again(to: SocketAddr) {
    let closed = closed_port();
    let nowhere = SocketAddr::try_from(rustix::net::getsockname(&closed).unwrap()).unwrap();
    let flags = SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let fd = socket.as_raw_fd();
    assert_eq!(connect(fd, nowhere, libc::AF_INET), libc::EINPROGRESS);
    wait_to_connect(fd);
    // The next call tells the error, and the one behind it connects.
    assert_eq!(connect(fd, to, libc::AF_INET), libc::ECONNREFUSED);
    let error = connect(fd, to, libc::AF_INET);
    assert!(error == 0 || error == libc::EINPROGRESS, "{error}");
    wait_to_connect(fd);
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    ping(stream, "memory");
}

#[test]
fn a_second_attempt_of_a_socket_is_announced_as_the_first() {
    let files = Files::new("again");
    let (mut server, port) = files.serve("server 127.0.0.1:0 waits 1", Sdp);
    run(&files, &format!("again 127.0.0.1:{port}"), Both, "the client");
    assert!(finish(&mut server, "the server").success());
}

/// A server whose client dissolves the connection: a reset (connect(2), AF_UNSPEC; `tcp_disconnect` of Linux).
fn dissolved() {
    let mut stream = listen("127.0.0.1:0").accept().unwrap().0;
    assert_eq!(stream.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
}

/// Asks for AF_INET_SDP, and goes on asking when its first connection is dissolved.
fn asked_again(first: SocketAddr, plain: SocketAddr) {
    let fd = asked_socket(libc::SOCK_STREAM, 0).unwrap();
    assert_eq!(connect(fd, first, libc::AF_INET), 0);
    assert_eq!(connect(fd, first, libc::AF_UNSPEC), 0);
    assert_eq!(connect(fd, plain, libc::AF_INET), libc::ECONNREFUSED);
}

/// Listens by a copy of a socket of AF_INET_SDP, and accepts by the first one.
fn asked_copy() {
    let fd = asked_socket(libc::SOCK_STREAM, 0).unwrap();
    let (bytes, len) = bytes_of("127.0.0.1:0".parse().unwrap(), libc::AF_INET);
    // SAFETY: an address of this length, and new descriptors, which nobody else has.
    let (listener, _copy) = unsafe {
        assert_eq!(libc::bind(fd, bytes.as_ptr().cast(), len), 0);
        let copy = libc::dup(fd);
        assert_eq!(libc::listen(copy, 10), 0);
        (TcpListener::from_raw_fd(fd), TcpListener::from_raw_fd(copy))
    };
    say_port(&listener);
    pairs::echo(listener.accept().unwrap().0);
}

#[test]
fn a_socket_of_af_inet_sdp_stays_one() {
    let files = Files::new("asked-more");
    let (mut first, at) = files.serve("dissolved", Both);
    let (mut plain, there) = files.serve("server 127.0.0.1:0 waits 1", Rule::None);
    run(&files, &format!("asked-again 127.0.0.1:{at} 127.0.0.1:{there}"), Tcp, "a client that asks");
    run(&files, &format!("client 127.0.0.1:{there} waits tcp"), Rule::None, "a plain client");
    assert!(finish(&mut plain, "the plain server").success());
    assert!(finish(&mut first, "the server of the first connection").success());
    let (mut server, port) = files.serve("asked-copy", Tcp);
    run(&files, &format!("client 127.0.0.1:{port} waits reset"), Rule::None, "plain, a server that asks");
    run(&files, &format!("client 127.0.0.1:{port} waits memory"), Both, "both, a server that asks");
    assert!(finish(&mut server, "the server that asks").success());
}

/// Three sockets with one port number: those that have said that they ask for announcements go.
fn three() {
    let last = loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        // Another program may have the port at another address.
        let Ok(second) = TcpListener::bind(("127.0.0.2", port)) else { continue };
        let Ok(third) = TcpListener::bind(("127.0.0.3", port)) else { continue };
        drop((first, second));
        break third;
    };
    say_port(&last);
    pairs::echo(last.accept().unwrap().0);
}

#[test]
fn a_socket_asks_for_announcements_when_another_one_of_its_port_is_closed() {
    let files = Files::new("three");
    let (mut server, port) = files.serve("three", Sdp);
    run(&files, &format!("client 127.0.0.3:{port} waits memory"), Both, "the client");
    assert!(finish(&mut server, "the server").success());
}

/// Forbids sockets of AF_NETLINK to this process, as filters of containers do (seccomp(2)).
fn forbid_netlink() {
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // `struct seccomp_data`: the call's number, and its first argument.
    let (number, argument) = (0, 16);
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD, 0, 0, number),
        step(JUMP_IF_EQUAL, 0, 3, libc::SYS_socket as u32),
        step(LOAD, 0, 0, argument),
        step(JUMP_IF_EQUAL, 0, 1, libc::AF_NETLINK as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: a program that lives until the calls return, and numbers.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// A program that may not ask the kernel for sockets.
fn forbidden(to: SocketAddr) {
    forbid_netlink();
    assert_eq!(TcpStream::connect(to).map(drop).map_err(|error| error.kind()), Err(ErrorKind::ConnectionRefused));
    let error = TcpListener::bind("127.0.0.1:0").map(drop).map_err(|error| error.raw_os_error());
    assert_eq!(error, Err(Some(libc::ENOBUFS)));
}

#[test]
fn a_program_that_may_not_ask_for_sockets_neither_listens_nor_connects() {
    let files = Files::new("forbidden");
    let (mut server, port) = files.serve("server 127.0.0.1:0 waits 1", Both);
    run(&files, &format!("forbidden 127.0.0.1:{port}"), Sdp, "the filter");
    run(&files, &format!("client 127.0.0.1:{port} waits memory"), Sdp, "a client without a filter");
    assert!(finish(&mut server, "the server").success());
}
