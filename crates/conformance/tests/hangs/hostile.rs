//! Rude connections do no harm, and a forked child does not answer for its parent.

use std::io::IoSlice;

use conformance::{Fixture, Remote, until};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};

use crate::place::{Wish, doctor, must_say, pair};

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

fn connect(pid: u32) -> Option<OwnedFd> {
    let socket = socket();
    let name = SocketAddrUnix::new_abstract_name(format!("softrnic/1/doctor/{pid}").as_bytes()).expect("a name");
    rustix::net::connect(&socket, &name).ok().map(|()| socket)
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc").count()
}

/// A few thousand connections that send nothing, send much, send descriptors, and close at every moment.
#[test]
fn many_and_rude_connections_do_no_harm() {
    let mut remote = Remote::start("remote_side", "silent", &[]);
    let () = remote.wire.hear();
    let pid = remote.pid();
    must_say(pid, "nothing stands in the way");
    let before = descriptors(pid);
    let garbage = vec![0xa5u8; 60_000];
    let mut kept = Vec::new();
    for round in 0..4000 {
        let Some(socket) = connect(pid) else { continue }; // the backlog is full: that is an answer, too
        if round % 3 == 0 {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = rustix::net::send(&socket, &garbage[..round % garbage.len() + 1], flags);
        }
        if round % 7 == 0 {
            use rustix::fd::AsFd;
            use std::mem::MaybeUninit;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            let fds = [socket.as_fd()];
            control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = rustix::net::sendmsg(&socket, &[IoSlice::new(b"x")], &mut control, flags);
        }
        if round % 5 == 0 && kept.len() < 200 {
            kept.push(socket);
        }
    }
    drop(kept);
    must_say(pid, "nothing stands in the way");
    until("the end of all connections", || (descriptors(pid) <= before).then_some(()));
    remote.wire.tell(&());
    assert!(remote.ended_well());
}

/// The work of a process goes on while it is asked without pause.
#[test]
fn who_is_asked_all_the_time_works_on() {
    let (a, b) = pair(&conformance::Joined::default(), &Wish::default());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drop(connect(std::process::id()));
            }
        });
        for _ in 0..2000 {
            b.recv();
            a.send();
            conformance::collect(&a.sends, 1);
            conformance::collect(&b.receives, 1);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// The child has copies of its parent's descriptors, and must not be taken for it; with a device of its own it answers
/// for itself.
#[test]
fn a_forked_child_does_not_answer_for_its_parent() {
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let fixture = Fixture::open();
    // SAFETY: as in the tests of fork: glibc makes its allocator whole again, and the library's verbs may be called
    // there.
    let child = match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            use std::io::{Read, Write};
            let mut stream = theirs;
            let mut step = || drop((stream.write_all(b"x"), stream.read_exact(&mut [0])));
            step();
            let own = std::panic::catch_unwind(Fixture::open);
            step();
            drop(own);
            // SAFETY: ends the process without running what the parent has registered.
            unsafe { libc::_exit(0) }
        }
        child => child,
    };
    use std::io::{Read, Write};
    ours.read_exact(&mut [0]).expect("the child lives");
    let (parent, asked) = (std::process::id().to_string(), child.to_string());
    let (status, text) = doctor(&[&asked]);
    assert!(status == 2 && text.contains("has not opened softrnic0"), "{text}");
    assert!(doctor(&[&parent]).1.contains(&format!("process {parent} ")));
    ours.write_all(b"x").expect("the child lives");
    ours.read_exact(&mut [0]).expect("the child lives");
    let text = must_say(child as u32, &format!("process {child} "));
    assert!(text.contains("0 QPs"), "{text}");
    kill_process(Pid::from_raw(child).expect("a process id"), Signal::KILL).expect("a child of ours");
    let _ = rustix::process::waitpid(Pid::from_raw(child), rustix::process::WaitOptions::empty());
    drop(fixture);
}
