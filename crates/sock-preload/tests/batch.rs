//! Calls that move several messages, or a file, on connections that have moved: none of their bytes goes by TCP. Each
//! is done with the library in both processes, in one and in none, so the results are those of plain TCP.

mod pairs;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};

use pairs::{PAIRS, ROLE, accept, by_tcp, byte, check, echo, finish, port, start};

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    match words[0] {
        "echo" => echo(accept()),
        "batch" => {
            batch(TcpStream::connect(("127.0.0.1", words[1].parse().unwrap())).unwrap(), words.contains(&"moves"));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn batches_and_files_go_by_memory() {
    for with in PAIRS {
        let mut one = start("echo", "", with.server);
        let moves = if with == pairs::BOTH { "moves" } else { "stays" };
        let mut two = start("batch", &format!("{} {moves}", port(&mut one)), with.client);
        let sides = format!("server {}, client {}", with.server, with.client);
        assert!(finish(&mut two, &sides).success(), "{sides}");
        assert!(finish(&mut one, &sides).success(), "{sides}");
    }
}

/// Bytes that have come by TCP (`tcpi_bytes_received`).
fn came_by_tcp(stream: &TcpStream) -> u64 {
    let (mut info, mut len) = ([0u64; 27], 216u32);
    // SAFETY: both pointers are to live locals of the size that `len` says.
    let failed = unsafe {
        let to = info.as_mut_ptr().cast();
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len)
    };
    assert_eq!((failed, len), (0, 216));
    info[16]
}

fn pieces(buffers: &mut [Vec<u8>]) -> Vec<libc::iovec> {
    let piece = |buffer: &mut Vec<u8>| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    buffers.iter_mut().map(piece).collect()
}

fn headers(pieces: &mut [libc::iovec]) -> Vec<libc::mmsghdr> {
    let header = |piece: &mut libc::iovec| {
        // SAFETY: zeroes are a header without anything.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (piece, 1);
        libc::mmsghdr { msg_hdr: header, msg_len: 0 }
    };
    pieces.iter_mut().map(header).collect()
}

/// Reads `count` bytes of the stream by recvmmsg(2).
fn receive(stream: &TcpStream, at: &mut u64, count: u64) {
    let until = *at + count;
    while *at < until {
        let mut buffers = [vec![0; 3], vec![0; 1000], vec![0; 50_000]];
        let mut parts = pieces(&mut buffers);
        let mut all = headers(&mut parts);
        // SAFETY: headers and buffers that live until the call returns.
        let got = unsafe {
            let (flags, none) = (libc::MSG_WAITFORONE, std::ptr::null_mut());
            libc::recvmmsg(stream.as_raw_fd(), all.as_mut_ptr(), 3, flags, none)
        };
        assert!(got > 0, "{}", std::io::Error::last_os_error());
        for (buffer, header) in buffers.iter().zip(&all[..got as usize]) {
            assert!(header.msg_len > 0, "the end");
            check(&buffer[..header.msg_len as usize], at);
        }
    }
    assert_eq!(*at, until);
}

/// The time of recvmmsg(2) is looked at behind each message, and is told what is left of it. Bytes are there; none are
/// taken.
fn timed(stream: &TcpStream) {
    let call = |seconds, nanos| {
        let mut buffers = [vec![0; 1], vec![0; 1]];
        let mut parts = pieces(&mut buffers);
        let mut all = headers(&mut parts);
        let mut time = libc::timespec { tv_sec: seconds, tv_nsec: nanos };
        // SAFETY: headers, buffers and a time that live until the call returns.
        let got = unsafe { libc::recvmmsg(stream.as_raw_fd(), all.as_mut_ptr(), 2, libc::MSG_PEEK, &raw mut time) };
        let error = std::io::Error::last_os_error().raw_os_error();
        (if got < 0 { Err(error.unwrap()) } else { Ok(got) }, time.tv_sec, time.tv_nsec)
    };
    assert_eq!(call(0, 0), (Ok(1), 0, 0));
    let (got, seconds, _) = call(1000, 0);
    assert!(got == Ok(2) && (900..1000).contains(&seconds), "{got:?}, {seconds}");
    assert_eq!(call(0, 1_000_000_000).0, Err(libc::EINVAL));
    assert_eq!(call(-1, 0).0, Err(libc::EINVAL));
}

fn send_batch(stream: &TcpStream, at: &mut u64) -> u64 {
    let lengths = [5u64, 3000, 1, 20_000];
    let mut buffers = lengths.map(|length| {
        let from = *at;
        *at += length;
        (from..*at).map(byte).collect::<Vec<u8>>()
    });
    let mut parts = pieces(&mut buffers);
    let mut all = headers(&mut parts);
    // SAFETY: headers and buffers that live until the call returns.
    let sent = unsafe { libc::sendmmsg(stream.as_raw_fd(), all.as_mut_ptr(), 4, 0) };
    assert_eq!(sent, 4, "{}", std::io::Error::last_os_error());
    assert_eq!(all.iter().map(|one| u64::from(one.msg_len)).collect::<Vec<_>>(), lengths);
    lengths.iter().sum()
}

const FILE: u64 = 3_000_000;

fn sendfile(stream: &TcpStream, file: &std::fs::File, from: &mut i64, count: u64) -> Result<u64, i32> {
    // SAFETY: a place that lives until the call returns.
    let sent = unsafe { libc::sendfile(stream.as_raw_fd(), file.as_raw_fd(), from, count as usize) };
    u64::try_from(sent).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap())
}

/// The whole file, while another thread reads what comes back.
fn send_file(stream: &TcpStream, file: &std::fs::File, got: &mut u64) {
    let mut from = 0i64;
    std::thread::scope(|scope| {
        scope.spawn(|| receive(stream, got, FILE));
        while (from as u64) < FILE {
            let before = from;
            // More than there is.
            match sendfile(stream, file, &mut from, FILE + 1000) {
                Ok(sent) => assert_eq!(from, before + sent as i64),
                Err(error) => {
                    assert_eq!((error, from), (libc::EAGAIN, before));
                    let mut wait = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
                    // SAFETY: one element.
                    assert_eq!(unsafe { libc::poll(&raw mut wait, 1, 40_000) }, 1);
                }
            }
        }
        assert_eq!(sendfile(stream, file, &mut from, 10), Ok(0));
    });
}

/// Sends as much as there is room for, to a process that stops reading when nobody reads its answers. Its length.
fn fill(stream: &TcpStream, file: &std::fs::File) -> u64 {
    let mut from = 0;
    stream.set_nonblocking(true).unwrap();
    while (from as u64) < FILE {
        if let Err(error) = sendfile(stream, file, &mut from, FILE) {
            assert_eq!(error, libc::EAGAIN);
            break;
        }
    }
    stream.set_nonblocking(false).unwrap();
    from as u64
}

/// A file of the bytes of the stream from `at` on.
fn file(at: u64) -> std::fs::File {
    // SAFETY: a name that lives until the call returns, and a descriptor that is nobody else's.
    let mut file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"data".as_ptr(), libc::MFD_CLOEXEC)) };
    file.write_all(&(at..at + FILE).map(byte).collect::<Vec<u8>>()).unwrap();
    file
}

fn batch(mut stream: TcpStream, moves: bool) {
    let (mut sent, mut got) = (0, 0);
    let by_both = |stream: &TcpStream| (by_tcp(stream), came_by_tcp(stream));
    let mut before = by_both(&stream);
    // A connection moves within a few messages.
    for round in 0..1000 {
        stream.write_all(&(sent..sent + 100).map(byte).collect::<Vec<u8>>()).unwrap();
        sent += 100;
        let mut back = [0; 100];
        stream.read_exact(&mut back).unwrap();
        check(&back, &mut got);
        let now = by_both(&stream);
        if std::mem::replace(&mut before, now) == now || !moves && round > 20 {
            break;
        }
    }
    for _ in 0..10 {
        let count = send_batch(&stream, &mut sent);
        receive(&stream, &mut got, count);
    }
    let count = send_batch(&stream, &mut sent);
    timed(&stream);
    receive(&stream, &mut got, count);
    send_file(&stream, &file(sent), &mut got);
    sent += FILE;
    // And without waiting: short counts.
    let data = file(sent);
    let until_full = fill(&stream, &data);
    receive(&stream, &mut got, until_full);
    let after = by_both(&stream);
    assert_eq!(before == after, moves, "{before:?} bytes by TCP before, {after:?} after");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
}
