//! The rule `sdp`: shared memory or nothing. Each rule of a client meets each rule of a server.

#[path = "../pairs/mod.rs"]
mod pairs;
mod servers;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use pairs::{ROLE, by_tcp, finish, library};

/// What a program is told: a rule of the file, or nothing because it has no library.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Sdp,
    Both,
    Tcp,
    None,
}
use Rule::{Both, Sdp, Tcp};

const RULES: [Rule; 4] = [Sdp, Both, Tcp, Rule::None];

/// The files of rules, which are gone at the end.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Files {
        let folder = std::env::temp_dir().join(format!("softrnic-sdp-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        for (rule, word) in [(Sdp, "sdp"), (Both, "both"), (Tcp, "tcp")] {
            let text = format!("use {word} server * *:*\nuse {word} client * *:*\n");
            std::fs::write(folder.join(format!("{rule:?}")), text).unwrap();
        }
        Files(folder)
    }

    fn start(&self, role: &str, rule: Rule) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture"]).env(ROLE, role);
        if rule != Rule::None {
            command.env("LD_PRELOAD", library()).env("LIBSDP_CONFIG_FILE", self.0.join(format!("{rule:?}")));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// A server that listens, and where.
    fn serve(&self, role: &str, rule: Rule) -> (Child, String) {
        let mut server = self.start(role, rule);
        let port = pairs::port(&mut server);
        (server, port)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    match words[0] {
        "server" => serve(words[1], words[2] == "waits", words[3].parse().unwrap()),
        "client" => client(words[1].parse().unwrap(), words[2] == "waits", words[3]),
        "late" => late(),
        "hasty" => drop(TcpStream::connect(words[1]).unwrap().write(b"hasty").unwrap()),
        "prefork" => prefork(),
        "asked" => asked(words[1].parse().unwrap(), words[2]),
        "asked-server" => asked_server(),
        "inherits" => inherits(words.get(1).copied()),
        "squatted" => squatted(),
        _ => servers::role(&words),
    }
}

fn listen(address: &str) -> TcpListener {
    let listener = TcpListener::bind(address).unwrap();
    println!("\nport {}", listener.local_addr().unwrap().port());
    std::io::stdout().flush().unwrap();
    listener
}

/// Accepts with poll(2), as a server does that does not wait in accept(2).
fn accept_by_poll(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    loop {
        let mut ready = [libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        // SAFETY: one element.
        assert_eq!(unsafe { libc::poll(ready.as_mut_ptr(), 1, 40_000) }, 1);
        match listener.accept() {
            Ok((stream, _)) => return stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

/// Echoes by as many connections as are said, one after the other.
fn serve(address: &str, waits: bool, count: usize) {
    let listener = listen(address);
    for _ in 0..count {
        let stream = if waits { listener.accept().unwrap().0 } else { accept_by_poll(&listener) };
        stream.set_nonblocking(false).unwrap();
        pairs::echo(stream);
    }
}

/// Connects without waiting: the C library's call, as TcpStream has none.
fn connect_at_once(to: SocketAddr) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    let (bytes, len) = bytes_of(to, if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
    // SAFETY: an address of this length. The C library's function is the one that the library replaces.
    let result = unsafe { libc::connect(socket.as_raw_fd(), bytes.as_ptr().cast(), len) };
    let error = std::io::Error::last_os_error();
    if result != 0 && error.raw_os_error() != Some(libc::EINPROGRESS) {
        return Err(error);
    }
    let mut ready = [libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 }];
    // SAFETY: one element.
    assert_eq!(unsafe { libc::poll(ready.as_mut_ptr(), 1, 40_000) }, 1);
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

/// A socket's address in the C library's form: sockaddr_in or sockaddr_in6.
fn bytes_of(address: SocketAddr, family: i32) -> ([u8; 28], u32) {
    let mut bytes = [0; 28];
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        std::net::IpAddr::V4(ip) => bytes[4..8].copy_from_slice(&ip.octets()),
        std::net::IpAddr::V6(ip) => bytes[8..24].copy_from_slice(&ip.octets()),
    }
    if let SocketAddr::V6(address) = address {
        bytes[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
    }
    (bytes, if address.is_ipv4() { 16 } else { 28 })
}

const ROUNDS: u64 = 30;

fn client(to: SocketAddr, waits: bool, expected: &str) {
    let stream = if waits { TcpStream::connect(to) } else { connect_at_once(to) };
    if expected == "refused" {
        assert_eq!(stream.map(|_| ()).map_err(|error| error.kind()), Err(ErrorKind::ConnectionRefused));
        return;
    }
    if expected == "reset" {
        // It may come before the client looks.
        let end = stream.and_then(|mut stream| stream.read(&mut [0])).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
        return;
    }
    ping(stream.unwrap(), expected);
}

/// Exchanges bytes, and looks how they went.
fn ping(mut stream: TcpStream, expected: &str) {
    for _ in 0..ROUNDS {
        stream.write_all(&[7; 100]).unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
    }
    let by_tcp = by_tcp(&stream);
    assert_eq!(expected == "memory", by_tcp < 100 * ROUNDS, "{by_tcp} bytes by TCP, expected {expected}");
}

/// What a client gets from a server (facts of libsdp: `sdp` is memory or an error, `both` falls back to TCP).
fn outcome(client: Rule, server: Rule) -> &'static str {
    match (client, server) {
        (Sdp | Both, Sdp | Both) => "memory",
        (Sdp, _) => "refused",
        (_, Sdp) => "reset",
        _ => "tcp",
    }
}

fn run(files: &Files, role: &str, rule: Rule, what: &str) {
    let mut client = files.start(role, rule);
    assert!(finish(&mut client, what).success(), "{what}");
}

fn matrix(name: &str, bound: &str, to: &str) {
    let files = Files::new(name);
    for server in RULES {
        for how in ["waits", "polls"] {
            let met = RULES.map(|client| outcome(client, server));
            let count = met.iter().filter(|met| ["memory", "tcp"].contains(met)).count();
            // Those that are refused or reset come first: the server goes on waiting.
            let mut order = RULES.map(|client| (client, outcome(client, server)));
            order.sort_by_key(|(_, met)| ["memory", "tcp"].contains(met));
            let (mut child, port) = files.serve(&format!("server {bound} {how} {count}"), server);
            for (client, met) in order {
                let what = format!("client {client:?}, server {server:?} at {bound}, {how}");
                run(&files, &format!("client {to}:{port} {how} {met}"), client, &what);
            }
            assert!(finish(&mut child, "the server").success(), "server {server:?} at {bound}, {how}");
        }
    }
}

#[test]
fn each_rule_meets_each_other_by_ipv4() {
    matrix("v4", "127.0.0.1:0", "127.0.0.1");
}

#[test]
fn each_rule_meets_each_other_by_ipv6() {
    matrix("v6", "[::1]:0", "[::1]");
}

#[test]
fn each_rule_meets_each_other_by_an_address_of_ipv4_that_a_socket_of_ipv6_has() {
    matrix("mapped", "[::]:0", "127.0.0.2");
}

#[test]
fn nobody_who_listens_and_another_machine_are_refused() {
    let files = Files::new("nobody");
    // Its port is nobody else's, and nobody listens there.
    let free = servers::closed_port();
    let port = SocketAddr::try_from(rustix::net::getsockname(&free).unwrap()).unwrap().port();
    // TEST-NET-1 (RFC 5737): the address is no machine's. A server of the library listens at all of this machine's.
    let (mut child, there) = files.serve("server 0.0.0.0:0 waits 1", Both);
    for to in [format!("127.0.0.1:{port}"), format!("[::1]:{port}"), format!("192.0.2.1:{there}")] {
        for how in ["waits", "polls"] {
            run(&files, &format!("client {to} {how} refused"), Sdp, &to);
        }
    }
    run(&files, &format!("client 0.0.0.0:{there} waits memory"), Sdp, "no address");
    assert!(finish(&mut child, "the server").success());
}

/// Accepts when it is told to, and sends nothing.
fn late() {
    let listener = listen("127.0.0.1:0");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let mut stream = listener.accept().unwrap().0;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"hasty");
}

#[test]
fn a_client_that_has_gone_before_it_was_accepted_was_announced() {
    let files = Files::new("late");
    for client in [Sdp, Both] {
        let (mut server, port) = files.serve("late", Sdp);
        run(&files, &format!("hasty 127.0.0.1:{port}"), client, "the client");
        server.stdin.take().unwrap().write_all(b"x").unwrap();
        assert!(finish(&mut server, "the server").success());
    }
}

const CLIENTS: usize = 8;

/// Two children accept, each of which takes what clients have announced to both.
fn prefork() {
    let listener = listen("127.0.0.1:0");
    let children: Vec<i32> = (0..2)
        .map(|_| {
            // SAFETY: the child accepts, echoes and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                for _ in 0..CLIENTS / 2 {
                    pairs::echo(listener.accept().unwrap().0);
                }
                // SAFETY: it ends the child, without what the harness does at its end.
                unsafe { libc::_exit(0) };
            }
            child
        })
        .collect();
    drop(listener);
    for child in children {
        let mut ended = 1;
        // SAFETY: a live int.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
        assert_eq!(ended, 0);
    }
}

#[test]
fn processes_that_share_a_socket_know_what_was_announced_to_each() {
    let files = Files::new("prefork");
    let (mut server, port) = files.serve("prefork", Sdp);
    let role = |how, met| format!("client 127.0.0.1:{port} {how} {met}");
    // It is refused before the children have had all their clients, and end.
    run(&files, &role("waits", "reset"), Rule::None, "a plain client");
    let mut clients: Vec<Child> = (0..CLIENTS).map(|_| files.start(&role("waits", "memory"), Both)).collect();
    for client in &mut clients {
        assert!(finish(client, "a client").success());
    }
    assert!(finish(&mut server, "the server").success());
}

const AF_INET_SDP: i32 = 27;

fn asked_socket(kind: i32, protocol: i32) -> Result<i32, i32> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(AF_INET_SDP, kind, protocol) };
    if fd < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(fd) }
}

/// A client that asks for AF_INET_SDP.
fn asked(to: SocketAddr, expected: &str) {
    assert_eq!(asked_socket(libc::SOCK_DGRAM, 0), Err(libc::ESOCKTNOSUPPORT));
    assert_eq!(asked_socket(libc::SOCK_STREAM, libc::IPPROTO_UDP), Err(libc::EPROTONOSUPPORT));
    for family in [AF_INET_SDP, libc::AF_INET] {
        let fd = asked_socket(libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_TCP).unwrap();
        // SAFETY: a new descriptor, which nobody else has.
        let mut stream = unsafe { TcpStream::from_raw_fd(fd) };
        let (bytes, len) = bytes_of(to, family);
        // A copy is such a socket, too. A second attempt is as the first.
        let copy = stream.try_clone().unwrap();
        for fd in [copy.as_raw_fd(), stream.as_raw_fd()] {
            // SAFETY: an address of this length.
            let result = unsafe { libc::connect(fd, bytes.as_ptr().cast(), len) };
            let error = std::io::Error::last_os_error().raw_os_error();
            if expected == "refused" {
                assert_eq!((result, error), (-1, Some(libc::ECONNREFUSED)));
            } else if fd == copy.as_raw_fd() {
                assert_eq!(result, 0, "{error:?}");
                break;
            }
        }
        if expected != "refused" {
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap();
        }
    }
}

/// A server that asks for AF_INET_SDP.
fn asked_server() {
    let fd = asked_socket(libc::SOCK_STREAM, 0).unwrap();
    let (bytes, len) = bytes_of("127.0.0.1:0".parse().unwrap(), AF_INET_SDP);
    // SAFETY: an address of this length, and a new descriptor, which nobody else has.
    let listener = unsafe {
        assert_eq!(libc::bind(fd, bytes.as_ptr().cast(), len), 0);
        assert_eq!(libc::listen(fd, 10), 0);
        TcpListener::from_raw_fd(fd)
    };
    println!("\nport {}", listener.local_addr().unwrap().port());
    std::io::stdout().flush().unwrap();
    pairs::echo(listener.accept().unwrap().0);
}

#[test]
fn programs_that_ask_for_af_inet_sdp_get_memory_or_nothing() {
    let files = Files::new("asked");
    let (mut plain, port) = files.serve("server 127.0.0.1:0 waits 1", Rule::None);
    run(&files, &format!("asked 127.0.0.1:{port} refused"), Both, "asks a plain server");
    run(&files, &format!("client 127.0.0.1:{port} waits tcp"), Both, "a plain server");
    assert!(finish(&mut plain, "the plain server").success());
    let (mut server, port) = files.serve("server 127.0.0.1:0 waits 2", Both);
    run(&files, &format!("asked 127.0.0.1:{port} connected"), Tcp, "asks a server of the library");
    assert!(finish(&mut server, "the server").success());
    let (mut server, port) = files.serve("asked-server", Tcp);
    run(&files, &format!("client 127.0.0.1:{port} waits reset"), Rule::None, "plain, a server that asks");
    run(&files, &format!("client 127.0.0.1:{port} waits memory"), Both, "both, a server that asks");
    assert!(finish(&mut server, "the server that asks").success());
}

/// A program that is started with a socket that listens.
fn inherits(fd: Option<&str>) {
    if let Some(fd) = fd {
        // SAFETY: the descriptor that the program before this one has left here.
        let listener = unsafe { TcpListener::from_raw_fd(fd.parse().unwrap()) };
        // The first one could not be announced to this program.
        return pairs::echo(listener.accept().unwrap().0);
    }
    let listener = listen("127.0.0.1:0");
    let fd = listener.as_raw_fd();
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture"]).env(ROLE, format!("inherits {fd}"));
    panic!("{}", command.exec());
}

#[test]
fn a_program_that_inherits_the_socket_refuses_whom_it_does_not_know() {
    let files = Files::new("inherits");
    let (mut server, port) = files.serve("inherits", Sdp);
    run(&files, &format!("client 127.0.0.1:{port} waits reset"), Rule::None, "a plain client");
    run(&files, &format!("client 127.0.0.1:{port} waits memory"), Sdp, "a client");
    assert!(finish(&mut server, "the server").success());
}

/// Another user has the name that a socket would have, and says nothing.
fn squatted() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let cookie = rustix::net::sockopt::socket_cookie(&socket).unwrap();
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let made = (|| {
            servers::end_with_parent();
            // SAFETY: no pointers.
            assert_eq!(unsafe { libc::setuid(65_534) }, 0);
            let name = SocketAddrUnix::new_abstract_name(format!("softrnic-listen-{cookie:x}-0").as_bytes()).ok()?;
            let name_of = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).ok()?;
            rustix::net::bind(&name_of, &name).ok()?;
            rustix::net::listen(&name_of, 10).ok()?;
            let said = b"\nport 1\n";
            // SAFETY: so many bytes.
            assert_eq!(unsafe { libc::write(1, said.as_ptr().cast(), said.len()) }, said.len() as isize);
            // Its parent ends it.
            loop {
                // SAFETY: no pointers.
                unsafe { libc::pause() };
            }
            #[allow(unreachable_code, reason = "it gives the function its type")]
            Some(())
        })();
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(made.is_none())) };
    }
    std::io::stdin().read_exact(&mut [0]).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    // SAFETY: no pointers. The C library's function is the one that the library replaces.
    assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 10) }, 0);
    let listener = TcpListener::from(socket);
    println!("\nport {}", listener.local_addr().unwrap().port());
    std::io::stdout().flush().unwrap();
    pairs::echo(listener.accept().unwrap().0);
    // SAFETY: a child of this process.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

#[test]
fn a_name_that_another_user_has_is_passed_over() {
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() } != 0 {
        // Only root can become another user.
        return;
    }
    let files = Files::new("squatted");
    for rule in [Sdp, Both] {
        let mut server = files.start("squatted", rule);
        assert_eq!(pairs::port(&mut server), "1", "the other user has the name");
        server.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let port = pairs::port(&mut server);
        run(&files, &format!("client 127.0.0.1:{port} waits memory"), Sdp, "the client");
        assert!(finish(&mut server, "the server").success());
    }
}
