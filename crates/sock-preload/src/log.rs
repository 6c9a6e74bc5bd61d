//! What the library says, where and as far as the file of rules wants it.
//!
//! A message is made on the stack and written by the kernel's calls, so that a signal handler may cause one. Nothing
//! waits for a reader, and no signal comes of a message: one that cannot be written is lost. No descriptor is kept.

use std::ffi::{CStr, CString};
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use sock::rules::{Destination, Log};

use crate::kernel::{self, borrow};
use crate::{next, rules};

/// libsdp's levels.
pub const ERROR: u32 = 9;
pub const WARNING: u32 = 8;
pub const CONNECTION: u32 = 7;
pub const MATCH: u32 = 4;
pub const NO_MATCH: u32 = 3;

const STDERR: i32 = 2;

/// Where messages go.
enum Place {
    /// Descriptor 2, as long as it is this file.
    Stderr(Option<Identity>),
    Syslog,
    File {
        /// A directory of this user's, which is made; `None`: the name has its directory.
        directory: Option<CString>,
        name: CString,
    },
}

/// A file: its device and its inode.
type Identity = (u64, u64);

static PLACE: OnceLock<Place> = OnceLock::new();
static LEAST: AtomicU32 = AtomicU32::new(ERROR);

/// Takes what the file of rules says, before the program begins.
pub fn start(log: &Log) {
    LEAST.store(log.min_level, Ordering::Relaxed);
    PLACE.get_or_init(|| place(&log.destination, rustix::process::geteuid().as_raw()));
}

/// Whether messages of this level are written.
pub fn has(level: u32) -> bool {
    level >= LEAST.load(Ordering::Relaxed)
}

/// Writes a message, if its level is high enough.
pub fn say(level: u32, what: fmt::Arguments<'_>) {
    if !has(level) {
        return;
    }
    let Some(place) = PLACE.get() else { return };
    let error = next::errno();
    let mut line = Line::new();
    let (program, pid) = (rules::program(), rustix::process::getpid());
    let _ = match place {
        // RFC 3164, 4.1 and 5.4: facility 1 (user), and the severities error, warning, info and debug.
        Place::Syslog => {
            let severity = match level {
                ERROR.. => 3,
                WARNING => 4,
                CONNECTION => 6,
                _ => 7,
            };
            write!(line, "<{}>{program}[{pid}]: softrnic: {what}", 8 + severity)
        }
        _ => write!(line, "softrnic: {program}[{pid}]: {what}"),
    };
    match place {
        Place::Stderr(identity) => {
            if identity.is_some() && *identity == identity_of_stderr() {
                write_to(STDERR, line.ended());
            }
        }
        Place::Syslog => drop(send(c"/dev/log", line.text())),
        Place::File { directory, name } => drop(append(directory.as_deref(), name, line.ended())),
    }
    next::set_errno(error);
}

/// Where a destination is. A file is as libsdp places it: root's in /var/log, whatever its directory; a user's in a
/// directory of its own, NAME.UID, which is in /tmp if the name has no directory.
fn place(destination: &Destination, user: u32) -> Place {
    let name = match destination {
        Destination::Stderr => return Place::Stderr(identity_of_stderr()),
        Destination::Syslog => return Place::Syslog,
        Destination::File(name) => name,
    };
    let base = name.rsplit('/').next().unwrap_or_default();
    let (directory, name) = if user == 0 {
        (None, format!("/var/log/{base}").into_bytes())
    } else {
        let directory = if name.contains('/') { format!("{name}.{user}") } else { format!("/tmp/{name}.{user}") };
        // The program may change its directory.
        let Ok(directory) = std::path::absolute(directory) else { return Place::Stderr(identity_of_stderr()) };
        (Some(directory.as_os_str().as_bytes().to_vec()), b"log".to_vec())
    };
    match (directory.map(CString::new).transpose(), CString::new(name)) {
        (Ok(directory), Ok(name)) => Place::File { directory, name },
        _ => Place::Stderr(identity_of_stderr()),
    }
}

/// What descriptor 2 is. `None`: it is closed, or a connection, to which nothing may be added.
fn identity_of_stderr() -> Option<Identity> {
    let status = rustix::fs::fstat(borrow(STDERR)).ok()?;
    let family = kernel::option(STDERR, libc::SOL_SOCKET, libc::SO_DOMAIN);
    let is_connection = matches!(family, Some(libc::AF_INET | libc::AF_INET6));
    (!is_connection).then_some((status.st_dev, status.st_ino))
}

/// Writes to a file that may be a pipe without a reader, or a full one.
fn write_to(fd: i32, line: &[u8]) {
    let mut ready = [rustix::event::PollFd::from_borrowed_fd(borrow(fd), rustix::event::PollFlags::OUT)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let is_ready = rustix::event::poll(&mut ready, Some(&now)).is_ok();
    if is_ready && ready[0].revents() == rustix::event::PollFlags::OUT {
        quietly(|| rustix::io::write(borrow(fd), line));
    }
}

/// Writes without the signals of write(2) to a pipe without a reader (SIGPIPE) and beyond RLIMIT_FSIZE (SIGXFSZ).
fn quietly(write: impl FnOnce() -> rustix::io::Result<usize>) {
    let mut set = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let (mut before, mut pending) = (set, set);
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: sets and times on this stack; each set is written by the call before it is read. sigtimedwait(2) takes
    // only what was not pending before, which write(2) has then sent to this thread.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
        let signal = match write() {
            Err(rustix::io::Errno::PIPE) => Some(libc::SIGPIPE),
            Err(rustix::io::Errno::FBIG) => Some(libc::SIGXFSZ),
            _ => None,
        };
        if let Some(signal) = signal.filter(|signal| libc::sigismember(pending.as_ptr(), *signal) == 0) {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), signal);
            libc::sigtimedwait(set.as_ptr(), core::ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut());
    }
}

/// Appends to a regular file. A directory is made if it is not there; it must be this user's alone, and no link.
fn append(directory: Option<&CStr>, name: &CStr, line: &[u8]) -> rustix::io::Result<()> {
    const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
    let flags = FLAGS | OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = match directory {
        None => rustix::fs::openat(CWD, name, flags, mode)?,
        Some(directory) => {
            match rustix::fs::mkdirat(CWD, directory, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            let directory = rustix::fs::openat(CWD, directory, FLAGS | OFlags::DIRECTORY, Mode::empty())?;
            let status = rustix::fs::fstat(&directory)?;
            if status.st_uid != rustix::process::geteuid().as_raw() || status.st_mode & 0o777 != 0o700 {
                return Err(rustix::io::Errno::PERM);
            }
            rustix::fs::openat(&directory, name, flags, mode)?
        }
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(rustix::io::Errno::PERM);
    }
    quietly(|| rustix::io::write(&file, line));
    Ok(())
}

/// Sends a datagram to the system's log.
fn send(path: &CStr, line: &[u8]) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    rustix::net::sendto(&socket, line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &SocketAddrUnix::new(path)?)?;
    Ok(())
}

/// A line on the stack. What does not fit is cut off; a pipe takes the line as a whole (PIPE_BUF, pipe(7)).
struct Line {
    bytes: [u8; 1024],
    len: usize,
}

impl Line {
    fn new() -> Line {
        Line { bytes: [0; 1024], len: 0 }
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The text with the line's end, for which there is always room.
    fn ended(&mut self) -> &[u8] {
        self.bytes[self.len] = b'\n';
        &self.bytes[..=self.len]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.len + 1 == self.bytes.len() {
                return Err(fmt::Error);
            }
            // Names come from outside: they neither end the line nor command a terminal.
            self.bytes[self.len] = if byte.is_ascii_control() { b'?' } else { byte };
            self.len += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixDatagram;
    use std::path::PathBuf;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("softrnic-log-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn path(path: &std::path::Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).unwrap()
    }

    fn file_of(name: &str, user: u32) -> (Option<String>, String) {
        match place(&Destination::File(name.into()), user) {
            Place::File { directory, name } => {
                (directory.map(|it| it.into_string().unwrap()), name.into_string().unwrap())
            }
            _ => panic!("{name} is no file"),
        }
    }

    #[test]
    fn files_are_where_libsdp_has_them() {
        assert_eq!(file_of("/a/b/sdp.log", 0), (None, "/var/log/sdp.log".into()));
        assert_eq!(file_of("sdp.log", 0), (None, "/var/log/sdp.log".into()));
        assert_eq!(file_of("sdp.log", 7), (Some("/tmp/sdp.log.7".into()), "log".into()));
        assert_eq!(file_of("/a/b/sdp.log", 7), (Some("/a/b/sdp.log.7".into()), "log".into()));
        let here = std::env::current_dir().unwrap().join("b/sdp.log.7");
        assert_eq!(file_of("b/sdp.log", 7).0.as_deref(), here.to_str());
    }

    #[test]
    fn lines_are_appended_in_a_directory_of_this_users_alone() {
        let folder = folder("append");
        let own = folder.join("own");
        for _ in 0..2 {
            append(Some(&path(&own)), c"log", b"a\n").unwrap();
        }
        assert_eq!(fs::read_to_string(own.join("log")).unwrap(), "a\na\n");
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
        // A link to it, a directory that others may use, and files that are no regular ones.
        let link = folder.join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        assert!(append(Some(&path(&link)), c"log", b"a\n").is_err());
        fs::remove_file(own.join("log")).unwrap();
        std::os::unix::fs::symlink(folder.join("other"), own.join("log")).unwrap();
        assert!(append(Some(&path(&own)), c"log", b"a\n").is_err() && !folder.join("other").exists());
        assert!(append(None, c"/dev/null", b"a\n").is_err());
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(append(Some(&path(&own)), c"file", b"a\n"), Err(rustix::io::Errno::PERM));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_systems_log_gets_a_datagram_and_its_absence_is_an_error() {
        let folder = folder("syslog");
        let name = folder.join("log");
        assert!(send(&path(&name), b"x").is_err());
        let log = UnixDatagram::bind(&name).unwrap();
        send(&path(&name), b"<11>x[1]: y").unwrap();
        let mut bytes = [0; 64];
        let got = log.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..got], b"<11>x[1]: y");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_line_is_cut_off_and_has_no_control_characters() {
        let mut line = Line::new();
        write!(line, "a\nb\x1b").unwrap();
        assert_eq!(line.ended(), b"a?b?\n");
        assert!(write!(line, "{:2000}", 0).is_err());
        assert_eq!((line.ended().len(), line.ended().last()), (1024, Some(&b'\n')));
    }

    #[test]
    fn a_pipe_without_a_reader_or_without_room_takes_nothing_and_no_signal_comes() {
        use std::os::fd::AsRawFd;
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        write_to(writer.as_raw_fd(), b"x");
        drop(reader);
        write_to(writer.as_raw_fd(), b"x");
        // As if the reader had gone between poll(2) and write(2).
        quietly(|| rustix::io::write(&writer, b"x"));
    }
}
