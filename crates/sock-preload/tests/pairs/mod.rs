//! Two processes of a test, with the library in both, one or none of them. The program starts itself again;
//! `SOFTRNIC_TEST_ROLE` says as what.
#![allow(dead_code, reason = "each of the tests uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a process is.
pub const ROLE: &str = "SOFTRNIC_TEST_ROLE";

/// The library that is tested.
pub fn library() -> std::path::PathBuf {
    let here = std::env::current_exe().unwrap();
    let name = "libsoftrnic_sock.so";
    let folders: Vec<_> = here.ancestors().skip(1).take(2).map(|folder| folder.join(name)).collect();
    let newest = folders.iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).max();
    newest.unwrap_or_else(|| panic!("{name} is not beside the tests: cargo build makes it")).1.clone()
}

/// Who has the library.
#[derive(Clone, Copy, PartialEq)]
pub struct With {
    pub server: bool,
    pub client: bool,
}

/// Both have it.
pub const BOTH: With = With { server: true, client: true };
/// All there are.
pub const PAIRS: [With; 4] = [
    BOTH,
    With { server: true, client: false },
    With { server: false, client: true },
    With { server: false, client: false },
];

/// Starts one process.
pub fn start(role: &str, argument: &str, with_library: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture"]).env(ROLE, format!("{role} {argument}"));
    if with_library {
        command.env("LD_PRELOAD", library());
    }
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits for a process.
pub fn finish(child: &mut Child, what: &str) -> ExitStatus {
    let until = Instant::now() + Duration::from_secs(40);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("{what} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The port on which a server has said that it listens.
pub fn port(server: &mut Child) -> String {
    let mut reader = BufReader::new(server.stdout.take().unwrap());
    let said = reader.by_ref().lines().find_map(|line| line.unwrap().strip_prefix("port ").map(str::to_owned));
    // It stays open: the server may write more.
    server.stdout = Some(reader.into_inner());
    said.expect("the server listens")
}

/// Starts both, and waits for both.
pub fn pair(server: &str, client: &str, with: With) {
    let mut one = start(server, if with == BOTH { "moves" } else { "stays" }, with.server);
    let port = port(&mut one);
    let what = format!("{port} {}", if with == BOTH { "moves" } else { "stays" });
    let mut two = start(client, &what, with.client);
    let sides = format!("server {}, client {}", with.server, with.client);
    let status = finish(&mut two, &format!("{client}, {sides}"));
    assert!(status.success(), "{client}, {sides}: {status}");
    let status = finish(&mut one, &format!("{server}, {sides}"));
    assert!(status.success(), "{server}, {sides}: {status}");
}

/// Bytes that the kernel has sent for the socket, or will (`tcpi_bytes_sent`, `tcpi_bytes_retrans`,
/// `tcpi_notsent_bytes`).
pub fn by_tcp(stream: &TcpStream) -> u64 {
    let mut info = [0u8; 216];
    let mut len = 216;
    // SAFETY: both pointers are to live locals of the size that `len` says.
    let failed =
        unsafe { libc::getsockopt(stream.as_raw_fd(), 6, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len) };
    assert_eq!(failed, 0);
    let number = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().unwrap());
    let waiting = u32::from_ne_bytes(info[144..148].try_into().unwrap());
    number(200) - number(208) + u64::from(waiting)
}

/// Listens, and says where.
pub fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nport {}", listener.local_addr().unwrap().port());
    std::io::stdout().flush().unwrap();
    listener
}

/// The only connection of a server.
pub fn accept() -> TcpStream {
    listen().accept().unwrap().0
}

/// Byte `n` of a stream.
pub fn byte(n: u64) -> u8 {
    (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Checks that the bytes are those of the stream from `at` on.
pub fn check(bytes: &[u8], at: &mut u64) {
    for got in bytes {
        assert_eq!(*got, byte(*at), "byte {at}");
        *at += 1;
    }
}

/// Checks that bytes went by memory, or that none did.
pub fn moved(stream: &TcpStream, total: u64, moves: bool) {
    let tcp = by_tcp(stream);
    assert_eq!(tcp < total, moves, "{tcp} of {total} bytes by TCP");
}

/// Sends back whatever comes.
pub fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 70_000];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return,
            some => stream.write_all(&buffer[..some]).unwrap(),
        }
    }
}

/// Sends messages, and compares the answers.
pub fn ping(mut stream: TcpStream, moves: bool) {
    let (mut sent, mut got) = (0, 0);
    for round in 0..1500u64 {
        let length = if round % 50 == 49 { 60_000 } else { 1 + round * 37 % 400 };
        let data: Vec<u8> = (0..length).map(|n| byte(sent + n)).collect();
        stream.write_all(&data).unwrap();
        sent += length;
        let mut back = vec![0; data.len()];
        stream.read_exact(&mut back).unwrap();
        check(&back, &mut got);
    }
    moved(&stream, sent, moves);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
}
