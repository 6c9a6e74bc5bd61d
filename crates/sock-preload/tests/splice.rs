//! splice(2), and sendfile(2) into a pipe, on connections that have moved: none of their bytes goes by TCP. Each is
//! done with the library in both processes, in one and in none, so the results are those of plain TCP.

mod pairs;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use pairs::{PAIRS, ROLE, accept, by_tcp, byte, check, echo, finish, port, start};

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    match words[0] {
        "echo" => echo(accept()),
        "splices" => {
            splices(TcpStream::connect(("127.0.0.1", words[1].parse().unwrap())).unwrap(), words.contains(&"moves"));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn bytes_between_pipes_and_connections_go_by_memory() {
    for with in PAIRS {
        let mut one = start("echo", "", with.server);
        let moves = if with == pairs::BOTH { "moves" } else { "stays" };
        let mut two = start("splices", &format!("{} {moves}", port(&mut one)), with.client);
        let sides = format!("server {}, client {}", with.server, with.client);
        assert!(finish(&mut two, &sides).success(), "{sides}");
        assert!(finish(&mut one, &sides).success(), "{sides}");
    }
}

static PIPES: AtomicU32 = AtomicU32::new(0);

extern "C" fn pipe_broken(_signal: i32) {
    PIPES.fetch_add(1, Ordering::SeqCst);
}

/// Reading end first.
fn pipe(flags: i32) -> [File; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are nobody else's.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | flags), 0);
        ends.map(|end| File::from_raw_fd(end))
    }
}

fn result(got: isize) -> Result<usize, i32> {
    usize::try_from(got).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap())
}

fn splice(from: &impl AsRawFd, to: &impl AsRawFd, len: usize, flags: u32) -> Result<usize, i32> {
    // SAFETY: no places.
    result(unsafe { libc::splice(from.as_raw_fd(), null_mut(), to.as_raw_fd(), null_mut(), len, flags) })
}

/// As `splice`, with a place in one of the two.
fn splice_at(from: &impl AsRawFd, to: &impl AsRawFd, is_from: bool) -> Result<usize, i32> {
    let mut place = 0i64;
    let (at, none) = (&raw mut place, null_mut());
    let (from_at, to_at) = if is_from { (at, none) } else { (none, at) };
    // SAFETY: a place that lives until the call returns.
    result(unsafe { libc::splice(from.as_raw_fd(), from_at, to.as_raw_fd(), to_at, 10, 0) })
}

const NOW: u32 = libc::SPLICE_F_NONBLOCK;
const MANY: u64 = 2_000_000;

fn splices(mut stream: TcpStream, moves: bool) {
    // SAFETY: a handler that only counts.
    unsafe { libc::signal(libc::SIGPIPE, pipe_broken as extern "C" fn(i32) as libc::sighandler_t) };
    let (mut sent, mut got) = (0, 0);
    for _ in 0..50 {
        stream.write_all(&(sent..sent + 100).map(byte).collect::<Vec<u8>>()).unwrap();
        sent += 100;
        let mut back = [0; 100];
        stream.read_exact(&mut back).unwrap();
        check(&back, &mut got);
    }
    let before = by_tcp(&stream);
    assert_eq!(before < sent, moves, "{before} of {sent} bytes by TCP");
    many(&stream, sent, got);
    let after = by_tcp(&stream);
    assert_eq!(before == after, moves, "{before} bytes by TCP before, {after} after");
    refused(&stream);
    waits(&stream);
    sent_files(&stream);
    ends(&stream);
}

/// A stream through a pipe, the connection, and another pipe, by four threads that all wait.
fn many(stream: &TcpStream, sent: u64, got: u64) {
    let ([from, mut to], [mut back, onto]) = (pipe(0), pipe(0));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for start in (sent..sent + MANY).step_by(50_000) {
                to.write_all(&(start..start + 50_000).map(byte).collect::<Vec<u8>>()).unwrap();
            }
        });
        scope.spawn(|| {
            let mut left = MANY as usize;
            while left > 0 {
                let some = splice(&from, stream, left, libc::SPLICE_F_MORE).unwrap();
                assert!(some > 0);
                left -= some;
            }
            // Empty, and without a writer.
            assert_eq!(splice(&from, stream, 10, 0), Ok(0));
        });
        scope.spawn(|| {
            let mut left = MANY as usize;
            while left > 0 {
                let some = splice(stream, &onto, left, 0).unwrap();
                assert!(some > 0);
                left -= some;
            }
        });
        let (mut at, mut buffer) = (got, vec![0; 30_000]);
        while at < got + MANY {
            let some = back.read(&mut buffer).unwrap();
            check(&buffer[..some], &mut at);
        }
    });
}

/// What Linux refuses (`do_splice`), and that nothing is lost by it.
fn refused(mut stream: &TcpStream) {
    let [from, mut to] = pipe(0);
    stream.write_all(b"abc").unwrap();
    to.write_all(b"def").unwrap();
    assert_eq!(splice_at(stream, &to, true), Err(libc::EINVAL), "a place in a socket");
    assert_eq!(splice_at(stream, &to, false), Err(libc::ESPIPE), "a place in a pipe");
    assert_eq!(splice_at(&from, stream, true), Err(libc::ESPIPE), "a place in a pipe");
    assert_eq!(splice_at(&from, stream, false), Err(libc::EINVAL), "a place in a socket");
    assert_eq!(splice(stream, stream, 10, 0), Err(libc::EINVAL), "no pipe");
    assert_eq!(splice(stream, &to, 10, 1 << 20), Err(libc::EINVAL), "flags that are none");
    assert_eq!(splice(stream, &from, 10, 0), Err(libc::EBADF), "a pipe's reading end");
    assert_eq!(splice(&to, stream, 10, 0), Err(libc::EBADF), "a pipe's writing end");
    assert_eq!(splice(stream, &to, 0, 0), Ok(0));
    let mut three = [0; 3];
    stream.read_exact(&mut three).unwrap();
    assert_eq!(&three, b"abc");
    drop(to);
    let mut all = Vec::new();
    (&from).read_to_end(&mut all).unwrap();
    assert_eq!(all, b"def");
}

/// Who waits for what, and what does not wait.
fn waits(mut stream: &TcpStream) {
    let [mut from, to] = pipe(0);
    assert_eq!(splice(&from, stream, 10, NOW), Err(libc::EAGAIN), "an empty pipe");
    stream.set_nonblocking(true).unwrap();
    assert_eq!(splice(stream, &to, 10, 0), Err(libc::EAGAIN), "an empty connection");
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_millis(2))).unwrap();
    assert_eq!(splice(stream, &to, 10, 0), Err(libc::EAGAIN), "SO_RCVTIMEO");
    stream.set_read_timeout(None).unwrap();
    // A full pipe comes before what is there.
    let [none, full] = pipe(libc::O_NONBLOCK);
    while (&full).write(&[0; 4096]).is_ok() {}
    stream.write_all(b"ghi").unwrap();
    assert_eq!(splice(stream, &full, 10, 0), Err(libc::EAGAIN), "a full pipe");
    drop(none);
    assert_eq!(PIPES.swap(0, Ordering::SeqCst), 0);
    assert_eq!(splice(stream, &full, 10, 0), Err(libc::EPIPE), "a pipe without a reader");
    assert_eq!(PIPES.swap(0, Ordering::SeqCst), 1, "SIGPIPE");
    let mut left = 3;
    while left > 0 {
        left -= splice(stream, &to, left, 0).unwrap();
    }
    let mut three = [0; 3];
    from.read_exact(&mut three).unwrap();
    assert_eq!(&three, b"ghi");
}

/// sendfile(2) from the connection.
fn sent_files(mut stream: &TcpStream) {
    let ([mut from, to], mut place) = (pipe(0), 0i64);
    stream.write_all(b"jkl").unwrap();
    let mut send = |to: &dyn AsRawFd, at: bool| {
        let place = if at { &raw mut place } else { null_mut() };
        // SAFETY: a place that lives until the call returns, or none.
        result(unsafe { libc::sendfile(to.as_raw_fd(), stream.as_raw_fd(), place, 3) })
    };
    assert_eq!(send(&to, true), Err(libc::ESPIPE), "a place in a socket");
    // SAFETY: a name that lives until the call returns, and a descriptor that is nobody else's.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"file".as_ptr(), libc::MFD_CLOEXEC)) };
    assert_eq!(send(&file, false), Err(libc::EINVAL), "no pipe");
    let mut left = 3;
    while left > 0 {
        left -= send(&to, false).unwrap().min(left);
    }
    let mut three = [0; 3];
    from.read_exact(&mut three).unwrap();
    assert_eq!(&three, b"jkl");
}

/// The ends of both directions.
fn ends(stream: &TcpStream) {
    let [mut from, mut to] = pipe(0);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(splice(stream, &to, 10, 0), Ok(0), "the end");
    to.write_all(b"mno").unwrap();
    drop(to);
    assert_eq!(splice(&from, stream, 10, 0), Err(libc::EPIPE));
    assert_eq!(PIPES.load(Ordering::SeqCst), 1, "SIGPIPE");
    let mut left = Vec::new();
    from.read_to_end(&mut left).unwrap();
    assert_eq!(left, b"mno", "what was not sent stays in the pipe");
}
