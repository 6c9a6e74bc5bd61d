//! What the library says, as the statements of log in the file of rules have it.
//!
//! The program starts itself again for both ends, with the library.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ROLE: &str = "SOFTRNIC_TEST_ROLE";

fn library() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let name = "libsoftrnic_sock.so";
    let folders: Vec<_> = here.ancestors().skip(1).take(2).map(|folder| folder.join(name)).collect();
    let newest = folders.iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).max();
    newest.unwrap_or_else(|| panic!("{name} is not beside the tests: cargo build makes it")).1.clone()
}

/// This program in a role, with the library and these rules.
fn command(role: &str, rules: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture"]).env(ROLE, role).env("LD_PRELOAD", library());
    command.env("LIBSDP_CONFIG_FILE", rules).stdout(Stdio::null());
    command
}

/// A file that is gone at the end.
struct Rules(PathBuf);

impl Rules {
    fn new(name: &str, text: &str) -> Rules {
        let path = std::env::temp_dir().join(format!("softrnic-rules-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Rules(path)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn role() {
    match std::env::var(ROLE).ok().as_deref() {
        None => {}
        Some("server") => server(),
        Some("other") => other(),
        Some("plain") => plain(),
        Some("pending") => pending(),
        Some(port) => client(port.parse().unwrap()),
    }
}

const ROUNDS: usize = 100;

fn client(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    for _ in 0..ROUNDS {
        stream.write_all(&[7; 10]).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
    }
}

fn server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rules = std::env::var("LIBSDP_CONFIG_FILE").unwrap();
    let mut peer = command(&listener.local_addr().unwrap().port().to_string(), rules.as_ref()).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    for _ in 0..ROUNDS {
        stream.read_exact(&mut [0; 10]).unwrap();
        stream.write_all(&[7; 10]).unwrap();
    }
    assert!(peer.wait().unwrap().success());
}

/// Both ends in this process: each of them causes messages.
fn plain() {
    // SAFETY: the signal's default.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.write_all(b"x").unwrap();
    far.read_exact(&mut [0]).unwrap();
}

/// Descriptor 2 becomes a file of the program's, and then a connection.
fn other() {
    let path = std::env::temp_dir().join(format!("softrnic-log-data-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    // SAFETY: two open descriptors.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 2) }, 2);
    plain();
    let written = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // SAFETY: two open descriptors.
    assert_eq!(unsafe { libc::dup2(near.as_raw_fd(), 2) }, 2);
    let (mut far, _) = listener.accept().unwrap();
    plain();
    far.set_nonblocking(true).unwrap();
    let come = far.read(&mut [0; 100]).map_err(|error| error.kind());
    // The panic's message could not be seen.
    let is_right = written.is_empty() && come == Err(std::io::ErrorKind::WouldBlock);
    std::process::exit(i32::from(!is_right));
}

/// Connects, without waiting, where nobody accepts: the kernel answers one, and lets the others wait.
fn pending() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getpeername, getsockname, listen};
    let socket = || rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None);
    let listener = socket().unwrap();
    bind(&listener, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&listener, 0).unwrap();
    let address = std::net::SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
    let std::net::SocketAddr::V4(address) = address else { panic!("{address}") };
    let bytes = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: address.ip().to_bits().to_be() },
        sin_zero: [0; 8],
    };
    let ends: Vec<_> = (0..PENDING).map(|_| socket().unwrap()).collect();
    for end in &ends {
        // SAFETY: an address of this length. The C library's function is the one that the library replaces.
        unsafe { libc::connect(end.as_raw_fd(), (&raw const bytes).cast(), size_of_val(&bytes) as u32) };
    }
    assert!(ends.iter().any(|end| getpeername(end).is_err()), "every one is connected");
}

const PENDING: usize = 8;

/// What a program in this role says on its standard error.
fn said(role: &str, name: &str, rules: &str) -> String {
    let rules = Rules::new(name, rules);
    let output = command(role, &rules.0).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{:?}: {text}", output.status);
    text
}

const RULES: &str = "use sdp client * *:1\nuse both server * 127.0.0.1:*\n";

#[test]
fn levels_choose_the_messages() {
    let all = said("server", "all", &format!("log min-level 3\n{RULES}"));
    assert_eq!(all.matches("line 3 says both").count(), 1, "{all}");
    assert_eq!(all.matches("no rule matches, which is both").count(), 1, "{all}");
    assert_eq!(all.matches(" by shared memory").count(), 2, "{all}");
    assert!(all.lines().filter(|line| line.contains("says")).all(|line| line.starts_with("softrnic: log-")), "{all}");
    let connections = said("server", "connections", &format!("log destination stderr min-level 7\n{RULES}"));
    assert_eq!(connections.matches(" by shared memory").count(), 2, "{connections}");
    assert!(!connections.contains("line 3") && !connections.contains("no rule"), "{connections}");
    assert_eq!(said("server", "none", RULES), "");
    let tcp = said("server", "tcp", "log min-level 4\nuse tcp server * *:*\n");
    assert_eq!(tcp.matches("line 2 says tcp").count(), 1, "{tcp}");
    assert_eq!(tcp.matches("by TCP: a rule says tcp").count(), 1, "{tcp}");
}

#[test]
fn errors_of_the_file_are_said_and_warnings_if_they_are_wanted() {
    const MASK: &str = "use tcp client * 10.0.0.1/8:*\n";
    let error = said("plain", "error", &format!("{MASK}use udp\n"));
    assert!(error.contains("line 2, column 5: expected \"tcp\", \"sdp\" or \"both\", found \"udp\"; only"), "{error}");
    assert!(!error.contains("10.0.0.1/8"), "{error}");
    let warning = said("plain", "warning", &format!("log min-level 8\n{MASK}"));
    assert!(warning.contains("line 2, column 18: 10.0.0.1/8 is taken for 10.0.0.0/8"), "{warning}");
    assert_eq!(said("plain", "silent", "log min-level 10\nuse udp\n"), "");
}

#[test]
fn a_descriptor_2_that_is_something_else_gets_nothing() {
    let text = said("other", "other", "log min-level 1\nuse both server * *:*\n");
    assert_eq!(text, "");
}

#[test]
fn a_rule_decides_while_a_connection_is_being_made() {
    let text = said("pending", "pending", "log min-level 4\nuse tcp connect * 127.0.0.0/8:*\n");
    assert_eq!(text.matches("client, 127.0.0.1:").count(), PENDING, "{text}");
    assert_eq!(text.matches("line 2 says tcp").count(), PENDING, "{text}");
}

#[test]
fn a_standard_error_without_a_reader_ends_no_program() {
    for (name, text) in [("gone", "log min-level 1\nuse both server * *:*\nuse udp\n"), ("gone-early", "use udp\n")] {
        let rules = Rules::new(name, text);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = command("plain", &rules.0).stderr(writer).status().unwrap();
        assert!(status.success(), "{name}: {status:?}");
    }
}
