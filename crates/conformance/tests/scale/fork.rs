//! fork(2): the child owns nothing of its parent's device, and may have its own.

use std::sync::atomic::{AtomicBool, Ordering};

use conformance::{Fixture, PATIENCE, Remote, Wire, until};
use rdma::{Data, SendOp, SendWr, Status};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use conformance::side::{self, LEN, Place, RECV, Side};

/// The result of the child, as its exit status; 0 is success.
const MODIFY_WORKED: i32 = 10;
const POST_WORKED: i32 = 11;
const REGISTER_WORKED: i32 = 12;

/// Run `child` in a forked process, which ends with the result as its status.
fn fork(child: impl FnOnce() -> i32) -> Pid {
    // SAFETY: the child runs Rust code although other threads existed at the fork: glibc makes its allocator whole
    // again, and the library under test says that its verbs may be called there, which is what is tested.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
            // SAFETY: ends the process without running what the parent has registered.
            unsafe { libc::_exit(code) }
        }
        pid => Pid::from_raw(pid).expect("a process id"),
    }
}

fn exit_code(pid: Pid) -> i32 {
    until("the child's end", || {
        let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).expect("a child of ours")?;
        Some(status.exit_status().unwrap_or(1000 + status.terminating_signal().unwrap_or(0)))
    })
}

/// Check that the child is refused the parent's objects.
fn try_inherited(fixture: &Fixture, side: &Side) -> i32 {
    if side.qp.set_state(rdma::QpState::Err).is_ok() {
        return MODIFY_WORKED;
    }
    let list = [side.mr.sge(0, LEN)];
    if side.qp.post_send(&SendWr::new(5, SendOp::Send, Data::Sges(&list))).is_ok() {
        return POST_WORKED;
    }
    if fixture.pd.reg_mr(4096, rdma::Access::LOCAL_WRITE).is_ok() {
        return REGISTER_WORKED;
    }
    // An error or nothing is allowed, but neither a hang nor an end.
    let _ = side.cq.poll(&mut [rdma::Wc::default()]);
    0
}

#[test]
fn inherited_objects_are_refused_and_the_parent_goes_on() {
    let fixture = Fixture::open();
    let mut remote = Remote::start("remote_side", "exchange", &[]);
    remote.wire.tell(&true);
    let side = Side::new(&fixture);
    side.exchange(&fixture, &mut remote.wire);
    let child = fork(|| try_inherited(&fixture, &side));
    assert_eq!(exit_code(child), 0, "{MODIFY_WORKED}: modify, {POST_WORKED}: post, {REGISTER_WORKED}: register");
    remote.wire.tell(&true);
    Side::new(&fixture).exchange(&fixture, &mut remote.wire);
    remote.wire.tell(&false);
    assert!(remote.ended_well());
}

#[test]
fn a_child_exchanges_with_its_parent() {
    let fixture = Fixture::open();
    let side = Side::new(&fixture);
    side::up(&side.qp, &side::place(&fixture, &side.qp));
    let (here, there) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let child = fork(move || {
        let mut wire = Wire::new(there);
        let own = Fixture::open();
        Side::new(&own).exchange(&own, &mut wire);
        let () = wire.exchange(&());
        0
    });
    let mut wire = Wire::new(here);
    Side::new(&fixture).exchange(&fixture, &mut wire);
    let () = wire.exchange(&());
    assert_eq!(exit_code(child), 0);
    // The parent's earlier objects still work.
    side::recv(&side.qp, RECV, &[side.mr.sge(LEN, LEN)]);
    side.message(side.qp.number());
}

/// A process that forks, sends its child's number, and waits for its death. The child lives on.
pub fn parent(mut wire: Wire) {
    let fixture = Fixture::open();
    let side = Side::new(&fixture);
    side.exchange(&fixture, &mut wire);
    let child = fork(|| {
        std::thread::sleep(PATIENCE);
        0
    });
    wire.tell(&child.as_raw_nonzero().get());
    let _ = wire.try_hear::<()>();
}

/// The child has copies of all descriptors, but a peer must not wait for it.
#[test]
fn a_death_is_noticed_although_a_child_lives() {
    // The test runs in a process of its own, because it counts descriptors.
    assert!(Remote::start("remote_side", "mourner", &[]).ended_well());
}

/// The peer of a process that forks and is killed.
pub fn mourner() {
    let fixture = Fixture::open();
    let mut remote = Remote::start("remote_side", "fork", &[]);
    let side = Side::new(&fixture);
    let joined = conformance::Joined { timeout: 12, retries: 1, ..conformance::Joined::default() };
    let peer: Place = remote.wire.exchange(&side::place(&fixture, &side.qp));
    joined.up(&side.qp, rdma::QpType::Rc, peer.qpn, rdma::Gid(peer.gid));
    side::recv(&side.qp, RECV, &[side.mr.sge(LEN, LEN)]);
    let () = remote.wire.exchange(&());
    side.message(peer.qpn);
    let child: i32 = remote.wire.hear();
    let before = sockets();
    remote.kill();
    side::send(&side.qp, 1, &[side.mr.sge(0, LEN)]);
    let wc = conformance::collect(&side.cq, 1)[0];
    assert_eq!(wc.status(), Status::RETRIES);
    // The link's own descriptors go, because its socket says that the peer is gone.
    until("the end of the link", || (sockets() < before).then_some(()));
    kill_process(Pid::from_raw(child).expect("a process id"), Signal::KILL).expect("the child lives");
}

/// The number of open sockets of this process.
fn sockets() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd");
    let link = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    entries.filter_map(link).filter(|path| path.to_string_lossy().starts_with("socket:")).count()
}

/// Another thread may be anywhere in the library when the program forks.
#[test]
fn a_child_opens_its_device_whatever_others_did_at_the_fork() {
    let stop = AtomicBool::new(false);
    // The test's own initialization comes first: a fork in the middle of it would hang.
    conformance::library();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(Fixture::open());
                }
            });
        }
        let wrong: Vec<i32> = (0..200).map(|_| exit_code(fork(alone))).filter(|code| *code != 0).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(wrong.is_empty(), "{} of 200 children: {wrong:?}", wrong.len());
    });
}

/// A child with a device of its own, which talks to itself.
fn alone() -> i32 {
    // SAFETY: ends the process if it hangs.
    unsafe { libc::alarm(10) };
    let own = Fixture::open();
    let side = Side::new(&own);
    side::up(&side.qp, &side::place(&own, &side.qp));
    side::recv(&side.qp, RECV, &[side.mr.sge(LEN, LEN)]);
    side.message(side.qp.number());
    0
}

/// A process has no adapter before its first verb, and several threads may call that one at once while another forks. A
/// child has none either, so that each can do this again.
#[test]
fn a_child_opens_its_device_while_its_parent_opens_the_first() {
    conformance::library();
    let wrong: Vec<i32> = (0..60)
        .map(|nth: u64| {
            exit_code(fork(|| {
                std::thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| drop(Fixture::open()));
                    }
                    // The making takes 1 to 3 ms.
                    std::thread::sleep(std::time::Duration::from_micros(50 * nth));
                    exit_code(fork(alone)) % 256
                })
            }))
        })
        .filter(|code| *code != 0)
        .collect();
    assert!(wrong.is_empty(), "{} of 60 processes: {wrong:?}", wrong.len());
}
