//! A process that waits for a completion costs nothing.

use std::time::Duration;

use conformance::{Fixture, Remote, Wire, collect};
use rdma::Status;

use conformance::side::{self, LEN, Place, RECV};

/// How long it waits, and how much time it may use: 1 %.
const WAIT: Duration = Duration::from_secs(3);
const MOST: Duration = Duration::from_millis(30);

/// User and system time of a process with all its threads (`proc_pid_stat(5)`).
fn used(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("/proc");
    let behind_name = stat.rsplit(')').next().expect("a name in parentheses");
    let fields: Vec<&str> = behind_name.split_whitespace().collect();
    // Fields 14 and 15, counted from 1; two are before the parenthesis.
    let ticks: u64 = fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Connect, wait for one event, and report that it came.
pub fn remote(mut wire: Wire) {
    let fixture = Fixture::open();
    let channel = fixture.context.create_comp_channel().expect("ibv_create_comp_channel");
    let cq = fixture.context.create_cq(16, Some(&channel), 7).expect("ibv_create_cq");
    let qp = side::create_qp(&fixture, &cq, 16);
    let mr = side::buffer(&fixture, LEN);
    let peer: Place = wire.exchange(&side::place(&fixture, &qp));
    side::up(&qp, &peer);
    for wr_id in 0..2 {
        side::recv(&qp, wr_id, &[mr.sge(0, LEN)]);
    }
    // One message by polling first: a program that has polled must come to rest, too.
    let () = wire.exchange(&());
    collect(&cq, 1);
    cq.arm(false).expect("ibv_req_notify_cq");
    wire.tell(&());
    assert_eq!(channel.event().expect("ibv_get_cq_event"), 7);
    assert_eq!(collect(&cq, 1)[0].status(), Status::SUCCESS);
    wire.tell(&());
}

#[test]
fn a_blocked_process_uses_no_cpu() {
    let fixture = Fixture::open();
    let mut remote = Remote::start("remote_side", "idle", &[]);
    let side = side::Side::new(&fixture);
    let peer: Place = remote.wire.exchange(&side::place(&fixture, &side.qp));
    side::up(&side.qp, &peer);
    let () = remote.wire.exchange(&());
    side::send(&side.qp, RECV, &[side.mr.sge(0, LEN)]);
    collect(&side.cq, 1);
    let () = remote.wire.hear();
    std::thread::sleep(Duration::from_millis(50));
    let before = used(remote.pid());
    std::thread::sleep(WAIT);
    let used = used(remote.pid()) - before;
    assert!(used < MOST, "{used:?} of processor time in {WAIT:?} of waiting");
    side::send(&side.qp, RECV, &[side.mr.sge(0, LEN)]);
    collect(&side.cq, 1);
    let () = remote.wire.hear();
    assert!(remote.ended_well());
}
