//! A process that does the calls of a program, one line of its input after the other, and writes what each returned.
//!
//! Kernel states are asked for by system calls that the library does not see, so that asking changes nothing.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc;

/// How often SIGPIPE has come since the last answer.
static PIPES: AtomicU32 = AtomicU32::new(0);

extern "C" fn pipe_broken(_signal: i32) {
    PIPES.fetch_add(1, Ordering::SeqCst);
}

/// A byte of a stream.
pub fn byte(salt: u64, at: u64) -> u8 {
    (at.wrapping_add(salt << 20).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Descriptors of epoll sets are named by numbers from this one on.
pub const FIRST_SET: u32 = 500;

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// Which of its descriptors a program means: the end of the connection, and the number among those of that end.
type Name = (u32, u32);

struct Executor {
    files: BTreeMap<Name, i32>,
    listener: Option<std::net::TcpListener>,
    /// The call that another thread is in, by its answer.
    blocked: Option<mpsc::Receiver<String>>,
}

/// A result as the C library gives it, with its error.
fn said(result: isize) -> String {
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if result < 0 { format!("-1 errno {error}") } else { result.to_string() }
}

fn number<T: std::str::FromStr>(words: &[&str], at: usize) -> T {
    words[at].parse().unwrap_or_else(|_| panic!("{words:?}: no number at {at}"))
}

/// `struct tcp_info`: the state, bytes sent or to be sent, and bytes received (with one for a FIN).
fn info(fd: i32) -> String {
    let mut info = [0u8; 216];
    let mut len = 216u32;
    // SAFETY: both pointers are to live locals of the size that `len` says.
    let failed = unsafe {
        libc::syscall(libc::SYS_getsockopt, fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr(), &raw mut len)
    };
    assert_eq!((failed, len), (0, 216), "TCP_INFO");
    let long = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().unwrap());
    let waiting = u32::from_ne_bytes(info[144..148].try_into().unwrap());
    format!("{} {} {}", info[0], long(200) - long(208) + u64::from(waiting), long(128))
}

impl Executor {
    fn fd(&self, words: &[&str]) -> i32 {
        *self.files.get(&(number(words, 1), number(words, 2))).unwrap_or_else(|| panic!("{words:?}: no such file"))
    }

    /// Does what a line says. The words behind the name of the call are the end and the descriptor, then the rest.
    fn act(&mut self, words: &[&str]) -> String {
        match words[0] {
            "listen" => {
                let address = if words[1] == "6" { "[::1]:0" } else { "127.0.0.1:0" };
                let listener = std::net::TcpListener::bind(address).unwrap();
                let port = listener.local_addr().unwrap().port();
                self.listener = Some(listener);
                port.to_string()
            }
            "connect" => self.connect(words),
            "accept" => {
                use std::os::fd::AsRawFd;
                let listener = self.listener.take().unwrap();
                let (null, flags) = (std::ptr::null_mut(), number(words, 3));
                // SAFETY: no address is asked for.
                let fd = unsafe { libc::accept4(listener.as_raw_fd(), null, null.cast(), flags) };
                self.take(words, fd)
            }
            "info" => {
                let end: u32 = number(words, 1);
                self.files.range((end, 0)..(end, FIRST_SET)).next().map_or("gone".to_owned(), |(_, fd)| info(*fd))
            }
            "dup" => {
                let fd = self.fd(words);
                let (command, from) =
                    if words[4] == "cloexec" { (libc::F_DUPFD_CLOEXEC, 100) } else { (libc::F_DUPFD, 0) };
                // SAFETY: no pointers.
                let new = unsafe { if words[4] == "dup" { libc::dup(fd) } else { libc::fcntl(fd, command, from) } };
                let name = (number(words, 1), number(words, 3));
                if new >= 0 {
                    self.files.insert(name, new);
                }
                said(new as isize)
            }
            "dup2" => {
                let onto = self.files[&(number(words, 1), number(words, 3))];
                // SAFETY: no pointers.
                said(unsafe { libc::dup2(self.fd(words), onto) } as isize)
            }
            "close" => {
                let fd = self.files.remove(&(number(words, 1), number(words, 2))).unwrap();
                // SAFETY: the descriptor is this table's alone.
                said(unsafe { libc::close(fd) } as isize)
            }
            "epoll" => {
                // SAFETY: no pointers.
                let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
                self.take(words, fd)
            }
            "ctl" => {
                let fd = self.files[&(number(words, 1), number(words, 3))];
                let mut event = libc::epoll_event { events: number(words, 5), u64: 7 };
                // SAFETY: an event that lives until the call returns.
                said(unsafe { libc::epoll_ctl(self.fd(words), number(words, 4), fd, &raw mut event) } as isize)
            }
            "blocked" => {
                let fd = self.fd(&words[1..]);
                let owned: Vec<String> = words[1..].iter().map(|word| (*word).to_owned()).collect();
                let (tell, answer) = mpsc::channel();
                let thread = std::sync::Arc::new(AtomicI32::new(0));
                let number = thread.clone();
                std::thread::spawn(move || {
                    // SAFETY: no pointers.
                    number.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                    let words: Vec<&str> = owned.iter().map(String::as_str).collect();
                    let _ = tell.send(call(fd, &words));
                });
                self.blocked = Some(answer);
                until_asleep(&thread);
                "started".to_owned()
            }
            "result" => {
                let answer = self.blocked.take().unwrap();
                answer.recv_timeout(std::time::Duration::from_secs(30)).unwrap_or_else(|_| "hangs".to_owned())
            }
            "end" => {
                for fd in std::mem::take(&mut self.files).into_values() {
                    // SAFETY: the descriptor is this table's alone.
                    unsafe { libc::close(fd) };
                }
                "0".to_owned()
            }
            _ => call(self.fd(words), words),
        }
    }

    fn take(&mut self, words: &[&str], fd: i32) -> String {
        let answer = said(fd as isize);
        if fd >= 0 {
            self.files.insert((number(words, 1), number(words, 2)), fd);
            // Without it small segments wait for acknowledgements, and programs for them.
            let on = 1;
            // SAFETY: a live int. It fails for an epoll set.
            unsafe { libc::syscall(libc::SYS_setsockopt, fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &raw const on, 4) };
        }
        if fd < 0 { answer } else { "made".to_owned() }
    }

    fn connect(&mut self, words: &[&str]) -> String {
        let (port, is_v6): (u16, bool) = (number(words, 3), words[4] == "6");
        let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | number::<i32>(words, 5);
        let mut address = [0u8; 28];
        address[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        address[2..4].copy_from_slice(&port.to_be_bytes());
        if is_v6 {
            address[23] = 1;
        } else {
            address[4..8].copy_from_slice(&[127, 0, 0, 1]);
        }
        // SAFETY: an address of as many bytes.
        let (fd, result) = unsafe {
            let fd = libc::socket(family, kind, 0);
            (fd, libc::connect(fd, address.as_ptr().cast(), if is_v6 { 28 } else { 16 }))
        };
        let answer = said(result as isize);
        let mut wait = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one element.
        unsafe { libc::syscall(libc::SYS_poll, &raw mut wait, 1, 30_000) };
        self.take(words, fd);
        answer
    }
}

/// Waits until a thread is asleep, so most often inside its call. What the call returns does not depend on it.
fn until_asleep(thread: &AtomicI32) {
    for _ in 0..2000 {
        let id = thread.load(Ordering::SeqCst);
        let asleep = id != 0
            && std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).map_or(true, |line| line.contains(") S "));
        if asleep {
            return;
        }
        std::thread::yield_now();
    }
}

/// The calls that may wait: they need nothing but the descriptor.
fn call(fd: i32, words: &[&str]) -> String {
    match words[0] {
        "send" => send(fd, words),
        "recv" => receive(fd, words),
        "poll" => {
            let mut one = libc::pollfd { fd, events: number(words, 3), revents: 0 };
            // SAFETY: one element.
            let got = unsafe { libc::poll(&raw mut one, 1, number(words, 4)) };
            format!("{} revents {:#x}", said(got as isize), one.revents)
        }
        "select" => select(fd, number(words, 3), number(words, 4)),
        "wait" => {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
            // SAFETY: room for four events.
            let got = unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), 4, number(words, 3)) };
            let answer = said(got as isize);
            let all = events.iter().take(got.max(0) as usize);
            all.fold(answer, |text, event| format!("{text} {}:{:#x}", { event.u64 }, { event.events }))
        }
        // SAFETY: no pointers.
        "shutdown" => said(unsafe { libc::shutdown(fd, number(words, 3)) } as isize),
        // SAFETY: no pointers.
        "fcntl" => said(unsafe { libc::fcntl(fd, number(words, 3), number::<i32>(words, 4)) } as isize),
        "ioctl" => {
            let mut value: i32 = number(words, 4);
            // SAFETY: a live int.
            let got = unsafe { libc::ioctl(fd, number(words, 3), &raw mut value) };
            format!("{} value {value}", said(got as isize))
        }
        "set" => {
            let (level, name): (i32, i32) = (number(words, 3), number(words, 4));
            let value: [i64; 2] = [number(words, 5), number(words, 6)];
            let len = number::<u32>(words, 7);
            // SAFETY: not more than 16 bytes.
            said(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len.min(16)) } as isize)
        }
        "get" => {
            let (mut value, mut len) = ([0i32; 4], 16u32);
            let (level, name): (i32, i32) = (number(words, 3), number(words, 4));
            // SAFETY: room for `len` bytes.
            let got = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
            format!("{} value {value:?} of {len}", said(got as isize))
        }
        "names" => {
            let (mut address, mut len) = ([0u8; 28], 28u32);
            // SAFETY: room for `len` bytes.
            let local = said(unsafe { libc::getsockname(fd, address.as_mut_ptr().cast(), &raw mut len) } as isize);
            // SAFETY: as before.
            let remote = said(unsafe { libc::getpeername(fd, address.as_mut_ptr().cast(), &raw mut len) } as isize);
            format!("local {local}, remote {remote}")
        }
        other => panic!("{other}"),
    }
}

/// Cuts a buffer into three pieces, of which the second may be empty.
fn pieces(buffer: &mut [u8]) -> [libc::iovec; 3] {
    let (one, two) = (buffer.len() / 3, buffer.len() / 3 + buffer.len() % 5 * (buffer.len() / 7));
    let base = buffer.as_mut_ptr();
    let two = two.min(buffer.len());
    let part = |from: usize, to: usize| libc::iovec { iov_base: base.wrapping_add(from).cast(), iov_len: to - from };
    [part(0, one), part(one, two), part(two, buffer.len())]
}

fn header(pieces: &mut [libc::iovec; 3]) -> libc::msghdr {
    // SAFETY: a header of zeroes is an empty one.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (pieces.as_mut_ptr(), 3);
    header
}

/// A message for each piece. What a call does not write is seen.
fn several(pieces: &mut [libc::iovec; 3]) -> [libc::mmsghdr; 3] {
    let mut base = pieces.as_mut_ptr();
    std::array::from_fn(|_| {
        // SAFETY: a header of zeroes is an empty one.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen, header.msg_flags) = (base, 1, 0x77);
        base = base.wrapping_add(1);
        libc::mmsghdr { msg_hdr: header, msg_len: 77_777 }
    })
}

/// What a call has written to the headers of messages. It keeps errno.
fn told(got: i32, all: &[libc::mmsghdr; 3]) -> String {
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let done = all.iter().take(got.max(0) as usize);
    let text = done.map(|one| format!(" {}:{:#x}", one.msg_len, one.msg_hdr.msg_flags)).collect();
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = error };
    text
}

/// Sends by sendfile(2): from a place, from the file's own, or of a file that is shorter than the call says. Second:
/// where both places are afterwards.
fn sendfile(fd: i32, form: &str, data: &[u8]) -> (isize, String) {
    use std::io::Seek;
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: a name that lives until the call returns, and a descriptor that is nobody else's.
    let mut file = unsafe { std::fs::File::from_raw_fd(libc::memfd_create(c"data".as_ptr(), libc::MFD_CLOEXEC)) };
    file.write_all(b"before").unwrap();
    file.write_all(data).unwrap();
    let (mut from, mut count) = (6i64, data.len());
    if form == "sendfile-short" {
        count += 5000;
    } else {
        file.write_all(b"behind").unwrap();
    }
    file.seek(std::io::SeekFrom::Start(6)).unwrap();
    let place = if form == "sendfile-position" { std::ptr::null_mut() } else { &raw mut from };
    // SAFETY: a place that lives until the call returns, or none.
    let got = unsafe { libc::sendfile(fd, file.as_raw_fd(), place, count) };
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let places = format!(" places {from} {}", file.stream_position().unwrap());
    drop(file);
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = error };
    (got, places)
}

/// A pipe with room for anything, reading end first.
fn pipe() -> [std::fs::File; 2] {
    use std::os::fd::FromRawFd;
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are nobody else's.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        // Without privileges, it may be more than the user's pipes may have (pipe(7)).
        libc::fcntl(ends[0], libc::F_SETPIPE_SZ, 1 << 20);
        ends.map(|end| std::fs::File::from_raw_fd(end))
    }
}

fn set_error(error: std::io::Error) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or(0) };
}

/// Sends what is in a pipe that nobody writes to, and perhaps more. Second: what is left in the pipe.
fn splice_from(fd: i32, data: &[u8], more: usize) -> (isize, String) {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    let [mut from, mut to] = pipe();
    to.write_all(data).unwrap();
    drop(to);
    let (null, len) = (std::ptr::null_mut(), data.len() + more);
    // SAFETY: no places.
    let got = unsafe { libc::splice(from.as_raw_fd(), null, fd, null, len, 0) };
    let error = std::io::Error::last_os_error();
    let mut left = Vec::new();
    from.read_to_end(&mut left).unwrap();
    drop(from);
    set_error(error);
    (got, format!(" left {}", left.len()))
}

/// Receives into a pipe, by splice(2) or sendfile(2), and from there into the buffer.
fn splice_into(fd: i32, form: &str, buffer: &mut [u8]) -> isize {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    let [mut from, to] = pipe();
    let null = std::ptr::null_mut();
    // SAFETY: no places.
    let got = unsafe {
        match form {
            "splice" => libc::splice(fd, null, to.as_raw_fd(), null, buffer.len(), 0),
            _ => libc::sendfile(to.as_raw_fd(), fd, null, buffer.len()),
        }
    };
    let error = std::io::Error::last_os_error();
    from.read_exact(&mut buffer[..got.max(0) as usize]).unwrap();
    drop((from, to));
    set_error(error);
    got
}

/// send END FD FORM LENGTH OFFSET SALT FLAGS
fn send(fd: i32, words: &[&str]) -> String {
    let (length, offset, salt): (u64, u64, u64) = (number(words, 4), number(words, 5), number(words, 6));
    let flags: i32 = number(words, 7);
    let mut data: Vec<u8> = (offset..offset + length).map(|at| byte(salt, at)).collect();
    let mut parts = pieces(&mut data);
    let header = header(&mut parts);
    let (base, len) = (data.as_ptr().cast(), data.len());
    let mut more = String::new();
    // SAFETY: buffers that live until the call returns.
    let sent = unsafe {
        match words[3] {
            "write" => libc::write(fd, base, len),
            "writev" => libc::writev(fd, parts.as_ptr(), 3),
            "send" => libc::send(fd, base, len, flags),
            "sendto" => libc::sendto(fd, base, len, flags, std::ptr::null(), 0),
            "sendmsg" => libc::sendmsg(fd, &raw const header, flags),
            "sendmmsg" => {
                let mut both = [libc::mmsghdr { msg_hdr: header, msg_len: 0 }; 1];
                match libc::sendmmsg(fd, both.as_mut_ptr(), 1, flags) {
                    1 => both[0].msg_len as isize,
                    other => other as isize,
                }
            }
            "sendmmsg-several" => {
                let mut all = several(&mut parts);
                let got = libc::sendmmsg(fd, all.as_mut_ptr(), 3, flags);
                more = told(got, &all);
                got as isize
            }
            "sendfile" | "sendfile-position" | "sendfile-short" => {
                let (got, places) = sendfile(fd, words[3], &data);
                more = places;
                got
            }
            "splice" | "splice-more" => {
                let (got, left) = splice_from(fd, &data, if words[3] == "splice" { 0 } else { 100 });
                more = left;
                got
            }
            other => panic!("{other}"),
        }
    };
    let answer = said(sent) + &more;
    match PIPES.swap(0, Ordering::SeqCst) {
        0 => answer,
        some => format!("{answer} SIGPIPE {some}"),
    }
}

/// recv END FD FORM LENGTH FLAGS
fn receive(fd: i32, words: &[&str]) -> String {
    let (length, flags): (usize, i32) = (number(words, 4), number(words, 5));
    let mut buffer = vec![0xEEu8; length];
    let mut parts = pieces(&mut buffer);
    let mut header = header(&mut parts);
    let (mut address, mut address_len) = ([0u8; 28], 28u32);
    let (base, mut more) = (buffer.as_mut_ptr().cast(), String::new());
    // SAFETY: buffers that live until the call returns.
    let got = unsafe {
        match words[3] {
            "read" => libc::read(fd, base, length),
            "readv" => libc::readv(fd, parts.as_ptr(), 3),
            "recv" => libc::recv(fd, base, length, flags),
            "recvfrom" => {
                let got = libc::recvfrom(fd, base, length, flags, address.as_mut_ptr().cast(), &raw mut address_len);
                more = format!(" address {address_len}");
                got
            }
            "recvmsg" => {
                header.msg_name = address.as_mut_ptr().cast();
                header.msg_namelen = 28;
                let got = libc::recvmsg(fd, &raw mut header, flags);
                let error = *libc::__errno_location();
                if got >= 0 {
                    more = format!(" name {} flags {:#x}", header.msg_namelen, header.msg_flags);
                }
                *libc::__errno_location() = error;
                got
            }
            "recvmmsg" | "recvmmsg-time" => {
                let mut all = several(&mut parts);
                let mut time = libc::timespec { tv_sec: 30, tv_nsec: 0 };
                let time = if words[3] == "recvmmsg" { std::ptr::null_mut() } else { &raw mut time };
                let got = libc::recvmmsg(fd, all.as_mut_ptr(), 3, flags, time);
                more = told(got, &all);
                got as isize
            }
            "splice" | "sendfile" => splice_into(fd, words[3], &mut buffer),
            other => panic!("{other}"),
        }
    };
    let answer = said(got);
    // All of the buffer: what lies behind the bytes received has to stay as it was.
    format!("{answer}{more} bytes {:016x}", hash(&buffer))
}

fn select(fd: i32, which: u32, millis: i64) -> String {
    // SAFETY: sets of this function, and a descriptor below 1024.
    unsafe {
        let mut sets: [libc::fd_set; 3] = std::mem::zeroed();
        for (n, set) in sets.iter_mut().enumerate() {
            if which >> n & 1 != 0 {
                libc::FD_SET(fd, set);
            }
        }
        let mut time = libc::timeval { tv_sec: millis / 1000, tv_usec: millis % 1000 * 1000 };
        let [read, write, except] = &mut sets;
        let time = if millis < 0 { std::ptr::null_mut() } else { &raw mut time };
        let got = libc::select(fd + 1, read, write, except, time);
        let answer = said(got as isize);
        let has = |set: &libc::fd_set| u8::from(libc::FD_ISSET(fd, set));
        if got < 0 { answer } else { format!("{answer} sets {}{}{}", has(read), has(write), has(except)) }
    }
}

/// The whole process: until its input ends.
pub fn run() {
    // SAFETY: a handler that only counts.
    unsafe { libc::signal(libc::SIGPIPE, pipe_broken as extern "C" fn(i32) as libc::sighandler_t) };
    let mut executor = Executor { files: BTreeMap::new(), listener: None, blocked: None };
    println!("\n=> ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        println!("=> {}", executor.act(&words));
    }
}
