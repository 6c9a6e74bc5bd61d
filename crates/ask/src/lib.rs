//! Requests for the reports of running processes, as `softrnic doctor`, `softrnic top` and the answers to NETLINK_RDMA
//! make them.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use report::Report;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// How long a process may take to answer: it may wait for locks, and for its turn on a busy machine.
const PATIENCE: Duration = Duration::from_secs(3);

/// Longest report that is read of another user's process, in bytes: some ten thousand queue pairs.
const MOST_OF_OTHERS: u64 = 16 << 20;

/// The processes that have the device open, of any user.
pub fn processes() -> Vec<u32> {
    report::listeners(&std::fs::read_to_string("/proc/net/unix").unwrap_or_default())
}

/// The report of a process.
///
/// # Errors
/// A sentence for the user: why there is none.
pub fn ask(pid: u32) -> Result<Report, String> {
    await_report(pid, connect(pid), Instant::now() + PATIENCE)
}

/// The reports of several processes, which work on them at the same time. Only those are returned that came within
/// `patience`.
pub fn ask_all(pids: &[u32], patience: Duration) -> Vec<Report> {
    let deadline = Instant::now() + patience;
    let asked: Vec<_> = pids.iter().map(|pid| (*pid, connect(*pid))).collect();
    asked.into_iter().filter_map(|(pid, socket)| await_report(pid, socket, deadline).ok()).collect()
}

/// Wait for the answer of a process over the connection to it.
fn await_report(pid: u32, socket: Result<(OwnedFd, u64), String>, deadline: Instant) -> Result<Report, String> {
    let (socket, most) = socket?;
    if let Some(why) = stopped(pid) {
        return Err(why);
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let ready = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit));
    if ready.is_ok_and(|n| n == 0) {
        let silent =
            || format!("process {pid} does not answer within {} s: its NIC thread does not run", PATIENCE.as_secs());
        return Err(stopped(pid).unwrap_or_else(silent));
    }
    let memfd = receive(&socket).ok_or_else(|| format!("process {pid} has ended, or refuses to answer"))?;
    let file = File::from(memfd);
    let meta = file.metadata().ok().filter(|meta| meta.is_file() && meta.len() <= most);
    let mut bytes = vec![0; meta.map_or(0, |meta| meta.len() as usize)];
    // Read at an offset: other programs that got the same descriptor read as well.
    file.read_exact_at(&mut bytes, 0).map_err(|error| format!("process {pid}: {error}"))?;
    let mut report = report::decode(&bytes).map_err(|error| format!("process {pid}: {error}"))?;
    report.pid = pid; // the number by which it was asked: in its own PID namespace it may have another one
    Ok(report)
}

/// A connection to the process with this number, as the kernel confirms it, and the longest report to be read of it.
fn connect(pid: u32) -> Result<(OwnedFd, u64), String> {
    // The call does not wait for room in the queue of a process that accepts nothing.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| format!("no socket: {error}"))?;
    let name = SocketAddrUnix::new_abstract_name(report::socket_name(pid).as_bytes()).map_err(|e| e.to_string())?;
    if let Err(error) = rustix::net::connect(&socket, &name) {
        return Err(match state(pid) {
            Some('T' | 't') => stopped(pid).unwrap_or_default(),
            _ if error == rustix::io::Errno::AGAIN => format!("process {pid} is asked by too many at once"),
            None => format!("there is no process {pid}"),
            Some('Z') => format!("process {pid} has ended (its parent has not waited for it yet)"),
            Some(_) => format!("process {pid} has not opened softrnic0"),
        });
    }
    let (owner, uid) = memory::fds::peer_credentials(&socket).map_err(|error| error.to_string())?;
    let us = rustix::process::geteuid();
    if uid != us.as_raw() && !us.is_root() {
        return Err(format!("process {pid} is another user's"));
    }
    // 0 is a process of another PID namespace.
    if owner != pid && owner != 0 {
        return Err(format!("process {owner} answers in the place of process {pid}"));
    }
    // Root asks other users' processes, which may answer with any amount.
    let most = if uid == us.as_raw() { report::MAX_BYTES } else { MOST_OF_OTHERS };
    Ok((socket, most))
}

/// The descriptor of an answer: a memfd whose bytes and length can change no more.
fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0u8; 2];
    let heard = memory::received_fds::receive(socket, &mut byte).ok()?;
    let memfd = heard.received_fds.into_iter().next().filter(|_| heard.len == 1 && byte[0] == report::ANSWER)?;
    let seals = rustix::fs::fcntl_get_seals(&memfd).ok()?;
    let still = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    seals.contains(still).then(|| memfd.keep())
}

fn stopped(pid: u32) -> Option<String> {
    match state(pid)? {
        'T' => Some(format!("process {pid} is stopped (SIGSTOP, or job control): it answers when it is continued")),
        't' => Some(format!("process {pid} is stopped by a debugger: it answers when it is continued")),
        _ => None,
    }
}

/// The state of a process (`proc_pid_stat(5)`).
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_ends + 2).map(|byte| char::from(*byte))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Listen for requests to this process, as a process of this user would.
    fn answerer(uid: u32) -> OwnedFd {
        let listen = move || {
            // The change is of this thread alone (the system call knows no others).
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
            let flags = SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            let name = report::socket_name(std::process::id());
            rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
            rustix::net::listen(&socket, 4).unwrap();
            socket
        };
        std::thread::spawn(listen).join().unwrap()
    }

    #[test]
    fn others_may_not_answer_with_as_much_as_they_like() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root asks other users' processes");
        }
        for (uid, most) in [(0, report::MAX_BYTES), (65533, MOST_OF_OTHERS)] {
            let _answerer = answerer(uid);
            assert_eq!(connect(std::process::id()).unwrap().1, most, "{uid}");
        }
    }
}
