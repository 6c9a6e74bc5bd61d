//! SIGUSR1: a report where it would have ended the process, and nothing where the program has its own use for it.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use conformance::{Fixture, Wire, until};

/// The variable that says what the process does about the signal.
const VARIABLE: &str = "SOFTRNIC_CONFORMANCE_SIGNAL";

static CAUGHT: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

fn dispose(handler: libc::sighandler_t) {
    // SAFETY: `count` touches an atomic only.
    unsafe { libc::signal(libc::SIGUSR1, handler) };
}

fn handler() -> libc::sighandler_t {
    count as extern "C" fn(libc::c_int) as libc::sighandler_t
}

fn raise() {
    // SAFETY: signals this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
}

/// The process that is signalled: it prints what happened, if it lives.
pub fn remote(_: Wire) {
    let how = std::env::var(VARIABLE).expect("told");
    match how.as_str() {
        "before" => dispose(handler()),
        "ignored" => dispose(libc::SIG_IGN),
        _ => {}
    }
    let fixture = Fixture::open();
    match how.as_str() {
        "after" => dispose(handler()),
        "closed" => drop(fixture),
        "child" => {
            // SAFETY: the child calls async-signal-safe functions only.
            let child = unsafe { libc::fork() };
            if child == 0 {
                raise();
                // SAFETY: as said; reached only if the signal had no effect.
                unsafe { libc::_exit(7) };
            }
            let mut status = 0;
            // SAFETY: a child of this process, a live variable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            eprintln!("child: signal {}", libc::WTERMSIG(status));
            return;
        }
        _ => {}
    }
    raise();
    if matches!(how.as_str(), "before" | "after") {
        until("the program's own handler", || (CAUGHT.load(Ordering::Relaxed) == 1).then_some(()));
    }
    // Time for a report that must not come, or must.
    std::thread::sleep(std::time::Duration::from_millis(300));
    eprintln!("lived");
}

/// The end of the process, and its standard error.
fn run(how: &str, off: bool) -> (std::process::ExitStatus, String) {
    let (_near, remote) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command
        .args(["--exact", "remote_side", "--ignored", "--nocapture", "--test-threads=1"])
        .env("SOFTRNIC_CONFORMANCE_PART", "signalled")
        .env(VARIABLE, how)
        .stdin(std::process::Stdio::from(std::os::fd::OwnedFd::from(remote)));
    if off {
        command.env("SOFTRNIC_SIGNAL", "0");
    }
    let out = command.output().expect("a second process");
    (out.status, String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn a_program_with_its_own_use_for_the_signal_notices_nothing() {
    for how in ["before", "after", "ignored"] {
        let (status, said) = run(how, false);
        assert!(status.success() && said.contains("lived") && !said.contains("nothing stands"), "{how}: {said}");
    }
}

#[test]
fn where_the_signal_would_be_deadly_there_is_a_report() {
    let (status, said) = run("default", false);
    assert!(status.success() && said.contains("lived") && said.contains("nothing stands in the way"), "{said}");
}

#[test]
fn without_a_device_the_signal_is_as_deadly_as_ever() {
    use std::os::unix::process::ExitStatusExt;
    for (how, off) in [("closed", false), ("default", true)] {
        let (status, said) = run(how, off);
        assert_eq!(status.signal(), Some(libc::SIGUSR1), "{how}: {said}");
    }
    let (_, said) = run("child", false);
    assert!(said.contains(&format!("child: signal {}", libc::SIGUSR1)), "{said}");
}
