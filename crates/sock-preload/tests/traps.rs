//! What programs do with descriptors of connections beside reading and writing. Each is done with the library in both
//! processes, in one and in none, so the results are those of plain TCP.

mod pairs;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};

use pairs::{PAIRS, ROLE, accept, echo, finish, port, start};

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let connect = || TcpStream::connect(("127.0.0.1", words[1].parse().unwrap())).unwrap();
    match words[0] {
        "echo" => echo(accept()),
        "copies" => copies(connect()),
        "replaced" => replaced(connect()),
        "closed-by-the-kernel" => closed_by_the_kernel(connect()),
        "closed-by-stdio" => closed_by_stdio(connect()),
        "closed-by-range" => closed_by_range(connect()),
        "passed" => passed(connect()),
        "given" => given(connect()),
        "stranger" => stranger(words[1].parse().unwrap()),
        "spawned" => spawned(connect()),
        "wide" => wide(connect()),
        "options" => options(connect()),
        other => panic!("{other}"),
    }
}

/// The other process answers until it sees the end, so a connection that does not end is found by its not ending.
fn pair(client: &str) {
    for with in PAIRS {
        let mut one = start("echo", "", with.server);
        let mut two = start(client, &port(&mut one), with.client);
        let sides = format!("{client}, server {}, client {}", with.server, with.client);
        assert!(finish(&mut two, &sides).success(), "{sides}");
        assert!(finish(&mut one, &sides).success(), "{sides}");
    }
}

fn talk(stream: &TcpStream) {
    let mut stream = stream;
    for n in 0..20 {
        let mut back = [0; 100];
        stream.write_all(&[n; 100]).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, [n; 100]);
    }
}

fn end(mut stream: &TcpStream) {
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
}

/// A descriptor that a call has just made.
fn owned(fd: i32) -> TcpStream {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: new, and nobody else's.
    unsafe { TcpStream::from_raw_fd(fd) }
}

fn copies(stream: TcpStream) {
    talk(&stream);
    let fd = stream.as_raw_fd();
    // SAFETY: no pointers; the numbers are free.
    let all = unsafe {
        [
            owned(libc::dup(fd)),
            owned(libc::fcntl(fd, libc::F_DUPFD, 100)),
            owned(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 100)),
            owned(libc::dup2(fd, 200)),
            owned(libc::dup3(fd, 201, libc::O_CLOEXEC)),
        ]
    };
    assert_eq!([all[3].as_raw_fd(), all[4].as_raw_fd()], [200, 201]);
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::dup2(fd, fd) }, fd);
    all.iter().for_each(talk);
    drop(stream);
    let mut last = None;
    for copy in all {
        talk(&copy);
        // The one before is closed now, and the connection goes on.
        last = Some(copy);
    }
    let last = last.unwrap();
    talk(&last);
    end(&last);
}

fn replaced(stream: TcpStream) {
    talk(&stream);
    let fd = stream.into_raw_fd();
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors; the number is this function's.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(libc::dup2(ends[1], fd), fd);
    }
    let mut got = [0; 3];
    // SAFETY: bytes that live until the calls return.
    unsafe {
        assert_eq!(libc::write(fd, b"new".as_ptr().cast(), 3), 3);
        assert_eq!(libc::read(ends[0], got.as_mut_ptr().cast(), 3), 3);
    }
    assert_eq!(&got, b"new");
}

/// close(2) without the C library. This process lives on until the other one has seen the end.
fn closed_by_the_kernel(stream: TcpStream) {
    talk(&stream);
    let fd = stream.into_raw_fd();
    // SAFETY: the number is this function's.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close, fd) }, 0);
    let mut byte = [0u8];
    // A moment later it is known that the number is free.
    std::thread::sleep(std::time::Duration::from_millis(5));
    // SAFETY: bytes that live until the call returns.
    assert_eq!(unsafe { libc::read(fd, byte.as_mut_ptr().cast(), 1) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
}

fn closed_by_stdio(stream: TcpStream) {
    talk(&stream);
    let fd = stream.into_raw_fd();
    // SAFETY: a stream of this function's descriptor, which it closes, and bytes that live until the call returns.
    unsafe {
        let file = libc::fdopen(fd, c"w".as_ptr());
        assert!(!file.is_null());
        assert_eq!(libc::fwrite(b"bye".as_ptr().cast(), 1, 3, file), 3);
        assert_eq!(libc::fflush(file), 0);
        let mut back = [0u8; 3];
        assert_eq!(libc::recv(fd, back.as_mut_ptr().cast(), 3, libc::MSG_WAITALL), 3);
        assert_eq!(&back, b"bye");
        assert_eq!(libc::fclose(file), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFD), -1);
    }
}

fn closed_by_range(stream: TcpStream) {
    talk(&stream);
    let fd = stream.into_raw_fd();
    // SAFETY: only this function's descriptor.
    unsafe {
        assert_eq!(libc::close_range(fd.cast_unsigned(), fd.cast_unsigned(), 0), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFD), -1);
    }
}

/// Sends the connection to a child, which has been there since before it, and to this very process.
fn passed(stream: TcpStream) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors; the child moves bytes and ends.
    let child = unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()), 0);
        libc::fork()
    };
    if child == 0 {
        // The parent has it, too, and says when it has closed it.
        drop(stream);
        let stream = received(ends[1]);
        talk(&stream);
        end(&stream);
        // SAFETY: it ends this process.
        unsafe { libc::_exit(0) };
    }
    talk(&stream);
    sent(ends[0], &stream);
    drop(stream);
    let mut status = 0;
    // SAFETY: a live local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// Sends the connection to a program without the library, which was started before there was a connection's copy.
fn given(stream: TcpStream) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) }, 0);
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(ends[0], libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "role", "--nocapture"]).env(ROLE, format!("stranger {}", ends[1]));
    // The connection is closed when a program starts: the stranger gets it by the message alone.
    let mut child = program.env_remove("LD_PRELOAD").spawn().unwrap();
    talk(&stream);
    sent(ends[0], &stream);
    drop(stream);
    assert!(finish(&mut child, "the stranger").success());
}

fn stranger(by: i32) {
    let stream = received(by);
    talk(&stream);
    end(&stream);
}

/// Starts a program that has the connection as its descriptors 0 and 1. It knows nothing of the library.
fn spawned(stream: TcpStream) {
    talk(&stream);
    let mut ends = [0; 2];
    let arguments = [c"sh".as_ptr(), c"-c".as_ptr(), c"printf hello; head -c 5 >&5".as_ptr(), std::ptr::null()];
    let environment = [c"PATH=/usr/bin:/bin".as_ptr(), std::ptr::null()];
    let mut child = 0;
    // SAFETY: an object that the first call makes and the last one ends, strings that stay, and live locals.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        let mut actions = std::mem::zeroed();
        assert_eq!(libc::posix_spawn_file_actions_init(&raw mut actions), 0);
        for (from, to) in [(stream.as_raw_fd(), 0), (stream.as_raw_fd(), 1), (ends[1], 5)] {
            assert_eq!(libc::posix_spawn_file_actions_adddup2(&raw mut actions, from, to), 0);
        }
        let (arguments, environment) = (arguments.as_ptr().cast(), environment.as_ptr().cast());
        let error = libc::posix_spawn(
            &raw mut child,
            c"/bin/sh".as_ptr(),
            &raw const actions,
            std::ptr::null(),
            arguments,
            environment,
        );
        assert_eq!(error, 0);
        assert_eq!(libc::posix_spawn_file_actions_destroy(&raw mut actions), 0);
        assert_eq!(libc::close(ends[1]), 0);
    }
    let mut said = String::new();
    // SAFETY: this function's descriptor.
    unsafe { std::fs::File::from_raw_fd(ends[0]) }.read_to_string(&mut said).unwrap();
    assert_eq!(said, "hello");
    let mut status = 0;
    // SAFETY: a live local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    talk(&stream);
    end(&stream);
}

/// Vectors of more bytes than a call moves: the kernel cuts them off, and does not refuse them.
fn wide(stream: TcpStream) {
    const PIECE: usize = 1 << 30;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice, of which little is ever touched.
    let memory = unsafe {
        libc::mmap(std::ptr::null_mut(), PIECE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast::<u8>()
    };
    assert_ne!(memory.cast(), libc::MAP_FAILED);
    talk(&stream);
    for n in 0..20u8 {
        (&stream).write_all(&[n; 100]).unwrap();
        let vector = [libc::iovec { iov_base: memory.cast(), iov_len: PIECE }; 3];
        let mut got = 0;
        while got < 100 {
            // SAFETY: memory of this function, of so many bytes.
            let some = unsafe { libc::readv(stream.as_raw_fd(), vector.as_ptr(), 3) };
            assert!(some > 0, "{}", std::io::Error::last_os_error());
            // SAFETY: bytes that the call has just written.
            let bytes = unsafe { std::slice::from_raw_parts(memory, some.cast_unsigned()) };
            assert!(bytes.iter().all(|byte| *byte == n));
            got += bytes.len();
        }
    }
    let none = [libc::iovec { iov_base: memory.cast(), iov_len: usize::MAX }; 1];
    // SAFETY: the length is refused.
    assert_eq!(unsafe { libc::readv(stream.as_raw_fd(), none.as_ptr(), 1) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    end(&stream);
}

#[repr(align(8))]
struct Space([u8; 64]);

fn message<R>(space: &mut Space, work: impl FnOnce(&mut libc::msghdr) -> R) -> R {
    let mut byte = [b'x'];
    let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: zeroes are a header without anything.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    // SAFETY: no pointers.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    header.msg_control = space.0.as_mut_ptr().cast();
    work(&mut header)
}

fn sent(by: i32, stream: &TcpStream) {
    message(&mut Space([0; 64]), |header| {
        // SAFETY: there is room for one descriptor, and the header lives until the call returns.
        unsafe {
            let control = libc::CMSG_FIRSTHDR(header);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(control).cast::<i32>().write_unaligned(stream.as_raw_fd());
            assert_eq!(libc::sendmsg(by, header, 0), 1);
        }
    });
}

fn received(by: i32) -> TcpStream {
    message(&mut Space([0; 64]), |header| {
        // SAFETY: there is room for one descriptor, which the kernel has put there.
        unsafe {
            assert_eq!(libc::recvmsg(by, header, 0), 1);
            let control = libc::CMSG_FIRSTHDR(header);
            assert!(!control.is_null());
            owned(libc::CMSG_DATA(control).cast::<i32>().read_unaligned())
        }
    })
}

#[test]
fn copies_of_a_descriptor_are_one_connection_until_the_last_is_closed() {
    pair("copies");
}

#[test]
fn a_descriptor_that_takes_the_place_of_a_connection_closes_it() {
    pair("replaced");
}

#[test]
fn a_connection_that_is_closed_past_the_library_ends() {
    for client in ["closed-by-the-kernel", "closed-by-stdio", "closed-by-range"] {
        pair(client);
    }
}

#[test]
fn a_connection_that_is_sent_to_a_child_goes_on_there() {
    pair("passed");
}

#[test]
fn a_connection_that_is_sent_to_a_program_without_the_library_goes_on_there() {
    pair("given");
}

#[test]
fn a_program_that_is_spawned_with_a_connection_reads_and_writes_it() {
    pair("spawned");
}

#[test]
fn vectors_of_more_bytes_than_a_call_moves_are_cut_off() {
    pair("wide");
}

/// TCP_CORK and an urgent byte on a connection that has moved: what follows arrives as by TCP.
fn options(stream: TcpStream) {
    let set = |level, name, value: i32| {
        // SAFETY: a live int.
        let failed = unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
        assert_eq!(failed, 0, "{level} {name}");
    };
    talk(&stream);
    set(libc::IPPROTO_TCP, libc::TCP_CORK, 1);
    (&stream).write_all(&[1; 30]).unwrap();
    (&stream).write_all(&[1; 70]).unwrap();
    set(libc::IPPROTO_TCP, libc::TCP_CORK, 0);
    let mut back = [0; 100];
    (&stream).read_exact(&mut back).unwrap();
    assert_eq!(back, [1; 100]);
    talk(&stream);
    // The urgent byte is not in the stream (tcp(7)), so it does not come back.
    // SAFETY: one byte.
    assert_eq!(unsafe { libc::send(stream.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
    talk(&stream);
    end(&stream);
}

#[test]
fn corks_and_urgent_bytes_do_what_they_do_on_tcp() {
    pair("options");
}
