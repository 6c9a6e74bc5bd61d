//! What a process with the library tells of its connections: read as others read it.
//!
//! The program starts itself again for both ends, with the library.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command};

use sock::status::{self, Counts, State};

const ROLE: &str = "SOFTRNIC_TEST_ROLE";

fn library() -> std::path::PathBuf {
    let here = std::env::current_exe().unwrap();
    let name = "libsoftrnic_sock.so";
    let folders: Vec<_> = here.ancestors().skip(1).take(2).map(|folder| folder.join(name)).collect();
    let newest = folders.iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).max();
    newest.unwrap_or_else(|| panic!("{name} is not beside the tests: cargo build makes it")).1.clone()
}

/// What the process with this number tells; `None`: it has no file.
fn told(pid: u32) -> Option<Vec<status::File>> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let name = format!("/memfd:{} (deleted)", status::NAME.to_str().unwrap());
    let is_it =
        |path: &std::path::PathBuf| std::fs::read_link(path).is_ok_and(|link| link.as_os_str() == name.as_str());
    let path = folder.map(|entry| entry.unwrap().path()).find(is_it)?;
    Some(status::parse(&std::fs::read(path).unwrap()).expect("a file of the right form"))
}

fn of(stream: &impl AsRawFd) -> Option<(State, Option<Counts>)> {
    let fd = stream.as_raw_fd() as usize;
    told(std::process::id())?.into_iter().find(|file| file.fd == fd).map(|file| (file.state, file.counts))
}

fn state(stream: &impl AsRawFd) -> Option<State> {
    of(stream).map(|(state, _)| state)
}

/// A process with the library, and this program in a role.
fn start(role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture"]).env(ROLE, role).env("LD_PRELOAD", library());
    // What a child of a test prints would be taken for the test's own.
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

#[test]
fn role() {
    match std::env::var(ROLE).ok().as_deref() {
        None => {}
        Some("server") => server(),
        Some(port) => client(port.parse().unwrap()),
    }
}

const ROUNDS: u64 = 20;

/// Talks by one connection, and holds another one, until the server ends the first.
fn client(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let _other = TcpStream::connect(("127.0.0.1", port)).unwrap();
    for _ in 0..ROUNDS {
        stream.write_all(&[7; 100]).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
    }
    // The server looks, fills what it can, and closes. Nothing is read before.
    let mut ready = [libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    // SAFETY: one element.
    assert_eq!(unsafe { libc::poll(ready.as_mut_ptr(), 1, 40_000) }, 1);
}

fn server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(told(std::process::id()), None, "nothing is told before there is a connection");
    let mut peer = start(&listener.local_addr().unwrap().port().to_string());
    let (mut server, _) = listener.accept().unwrap();
    let (early, _) = listener.accept().unwrap();
    assert_eq!((state(&server), state(&early)), (Some(State::Young), Some(State::Young)));
    for _ in 0..ROUNDS {
        server.read_exact(&mut [0; 100]).unwrap();
        server.write_all(&[7; 10]).unwrap();
    }
    let (where_it_is, counts) = of(&server).unwrap();
    let counts = counts.unwrap();
    assert_eq!((where_it_is, counts.ways), (State::Moved, 0x101));
    // The first messages went by TCP.
    let most = ROUNDS * 100;
    assert!(
        (most / 2..=most).contains(&counts.received) && (most / 20..most / 10).contains(&counts.sent),
        "{counts:?}"
    );
    // Nobody reads: there is no room at last.
    server.set_nonblocking(true).unwrap();
    while server.write(&[0; 10_000]).is_ok() {}
    assert!(of(&server).unwrap().1.unwrap().stalls >= 1);

    let _copy = early.try_clone().unwrap();
    assert_eq!(state(&early), Some(State::Copied));

    // A child tells of itself, and the parent's file stays the parent's.
    // SAFETY: the child only looks at files and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let same = of(&server).map(|(state, counts)| (state, counts.map(|counts| counts.sent)));
        let is_right = same == Some((State::Moved, Some(0))) && state(&early).is_none();
        // SAFETY: it ends the child, without what the harness does at its end.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut ended = 0;
    // SAFETY: a live int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
    assert_eq!(ended, 0, "the child has another file");
    assert!(of(&server).unwrap().1.unwrap().sent >= most / 20);
    let number = server.as_raw_fd() as usize;
    drop(server);
    assert!(told(std::process::id()).unwrap().iter().all(|file| file.fd != number), "it is closed");
    assert!(peer.wait().unwrap().success());
}

#[test]
fn a_process_tells_where_its_connections_are_and_why() {
    assert!(start("server").wait().unwrap().success());
}
