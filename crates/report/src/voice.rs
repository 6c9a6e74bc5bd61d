//! Lines on standard error.

use std::fmt;
use std::io::stderr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};

/// Lines that were not said.
static UNSAID: AtomicU64 = AtomicU64::new(0);

/// Says a line on standard error, with the name of the device and the process in front of it.
///
/// It is said by threads that hold locks, so it waits for nobody: where nobody reads what the program says, and there is no room
/// for more, the line is left out, and the next one that is said tells how many were. Nor does it matter if nobody can hear it.
pub fn say(line: fmt::Arguments<'_>) {
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

/// False if there is no room. A pipe that says it has some has it for a whole line (`PIPE_BUF`).
fn speak(to: std::os::fd::BorrowedFd<'_>, line: &str) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if rustix::event::poll(&mut fds, Some(&now)) == Ok(0) {
        return false;
    }
    // Nobody will ever hear it, and a signal would end the program that we only speak beside.
    if fds[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL) {
        return true;
    }
    // Not through the library's lock, which may be held by somebody who waits for room. One write keeps a line whole.
    let _ = rustix::io::write(to, line.as_bytes());
    true
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
    fn what_was_not_said_is_counted() {
        let pid = std::process::id();
        assert_eq!(text(format_args!("a {}", 1), 0), format!("softrnic[{pid}]: a 1\n"));
        assert!(text(format_args!("b"), 3).ends_with(": b (standard error had no room for 3 lines before this one)\n"));
    }
}
