//! Lines on standard error.

use std::fmt;
use std::io::stderr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;

use crate::settings::{LogLevel, Settings};

/// The number of lines that were left out.
static UNSAID: AtomicU64 = AtomicU64::new(0);

/// Obstacles between programs that the library knows of, and that no verb reports to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matter {
    /// A peer of another user.
    OtherUser,
    /// An address that is none of this host's, or of this network namespace.
    OtherHost,
    /// A queue pair number that no process has claimed.
    NoPeer,
    /// No descriptors are left.
    NoDescriptors,
    /// The kernel forbids tracing a peer, and so copying from and to its memory.
    NoTracing,
}

/// The lines that were logged, each with its subject.
static TOLD: Mutex<Vec<(Matter, String)>> = Mutex::new(Vec::new());

/// Log a line of its kind once in the life of the process, and keep it for reports. With `SOFTRNIC_LOG=off` it is only
/// kept.
pub fn log_once(matter: Matter, line: fmt::Arguments<'_>) {
    let mut logged = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.iter().all(|(known, _)| *known != matter) {
        logged.push((matter, line.to_string()));
        drop(logged);
        if Settings::of_process().log != LogLevel::Off {
            log(line);
        }
    }
}

/// The lines that were logged in this process.
pub fn logged() -> Vec<String> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, line)| line.clone()).collect()
}

/// Write a line to standard error, with the name of the device and the process in front of it.
///
/// Threads that hold locks call this, so it never waits. If no process reads the output, and there is no room for more,
/// the line is left out, and the next line that is written tells how many were. It is no error if no process can ever
/// read it.
pub fn log(line: fmt::Arguments<'_>) {
    let unsaid = UNSAID.swap(0, Ordering::Relaxed);
    if !speak(stderr().as_fd(), &text(line, unsaid)) {
        UNSAID.fetch_add(unsaid + 1, Ordering::Relaxed);
    }
}

fn text(line: fmt::Arguments<'_>, unsaid: u64) -> String {
    let pid = std::process::id();
    match unsaid {
        0 => format!("softrnic[{pid}]: {line}\n"),
        _ => format!("softrnic[{pid}]: {line} (standard error had no room for {unsaid} lines before this one)\n"),
    }
}

/// Write a line; false if there is no room. A pipe that reports room has it for a whole line (`PIPE_BUF`).
fn speak(to: BorrowedFd<'_>, line: &str) -> bool {
    if !is_for_lines(to) {
        return true;
    }
    let mut fds = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if rustix::event::poll(&mut fds, Some(&now)) == Ok(0) {
        return false;
    }
    // No process will ever read the line, and a signal would end the program, to which the line does not belong.
    if fds[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL) {
        return true;
    }
    // The standard library's lock is not used: a thread that waits for room may hold it. One write keeps a line whole.
    let _ = rustix::io::write(to, line.as_bytes());
    true
}

/// True for a terminal, a file and a pipe. A program that closes descriptor 2 gets it again for another purpose, a
/// connection for instance, whose peer would read the line.
fn is_for_lines(fd: BorrowedFd<'_>) -> bool {
    let kind = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
    match kind {
        Ok(FileType::RegularFile | FileType::Fifo) => true,
        Ok(FileType::CharacterDevice) => rustix::termios::isatty(fd),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_full_pipe_is_not_waited_for() {
        let (mut heard, to) = std::io::pipe().unwrap();
        let mut said = 0;
        while speak(to.as_fd(), "softrnic[1]: a line of thirty-two B\n") {
            said += 1;
            assert!(said < 1 << 20, "a pipe has an end");
        }
        let mut room = [0; 8192];
        heard.read_exact(&mut room).unwrap();
        assert!(speak(to.as_fd(), "again\n"));
        drop(heard);
        assert!(speak(to.as_fd(), "to nobody\n"));
    }

    #[test]
    fn nothing_is_written_to_what_is_not_for_lines() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        assert!(speak(near.as_fd(), "softrnic[1]: a line\n"));
        assert_eq!(rustix::io::read(&far, &mut [0; 8]), Err(rustix::io::Errno::AGAIN));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_for_lines(null.as_fd()));
        let (_, pipe) = std::io::pipe().unwrap();
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(is_for_lines(pipe.as_fd()) && is_for_lines(file.as_fd()));
    }

    #[test]
    fn a_matter_is_told_once() {
        log_once(Matter::NoPeer, format_args!("one"));
        log_once(Matter::NoPeer, format_args!("two"));
        assert_eq!(logged(), ["one"]);
    }

    #[test]
    fn what_was_not_said_is_counted() {
        let pid = std::process::id();
        assert_eq!(text(format_args!("a {}", 1), 0), format!("softrnic[{pid}]: a 1\n"));
        assert!(text(format_args!("b"), 3).ends_with(": b (standard error had no room for 3 lines before this one)\n"));
    }
}
