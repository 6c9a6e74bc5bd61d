//! The completions that give an event (IBTA vol. 1, 11.4.2.2; `ibv_req_notify_cq(3)`, `ibv_modify_cq(3)`).

use std::sync::Arc;

use conformance::{Fixture, Joined, until};
use rdma::{CompChannel, Cq, Data, Errno, Mr, Qp, QpOptions, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge};

use crate::pair::{CAP, region};

const COOKIE: u64 = 5;

/// A queue pair that is connected to itself, with a queue of its own for its receives that has a channel.
struct Rig {
    fixture: Fixture,
    qp: Arc<Qp>,
    sends: Arc<Cq>,
    receives: Arc<Cq>,
    channel: Arc<CompChannel>,
    mr: Arc<Mr>,
}

impl Rig {
    fn new() -> Rig {
        let fixture = Fixture::open();
        let channel = fixture.context.create_comp_channel().expect("ibv_create_comp_channel");
        channel.set_nonblocking().expect("fcntl");
        let sends = fixture.context.create_cq(16, None, 0).expect("ibv_create_cq");
        let receives = fixture.context.create_cq(16, Some(&channel), COOKIE).expect("ibv_create_cq");
        let options = QpOptions {
            qp_type: QpType::Rc,
            send_cq: Some(&sends),
            recv_cq: Some(&receives),
            srq: None,
            xrcd: None,
            cap: CAP,
            sq_sig_all: false,
        };
        let qp = fixture.pd.create_qp(&options).expect("ibv_create_qp");
        Joined::default().up(&qp, QpType::Rc, qp.number(), fixture.gid);
        let mr = region(&fixture, 64);
        Rig { fixture, qp, sends, receives, channel, mr }
    }

    /// Send a message of 8 bytes into a list, and wait for its completion at the sender.
    fn message(&self, into: &[Sge], flags: SendFlags) {
        self.qp.post_recv(&RecvWr { wr_id: 100, sges: into }).expect("ibv_post_recv");
        let list = [self.mr.sge(0, 8)];
        let mut wr = SendWr::new(1, SendOp::Send, Data::Sges(&list));
        wr.flags |= flags;
        self.qp.post_send(&wr).expect("ibv_post_send");
        conformance::collect(&self.sends, 1);
    }

    fn fired(&self) {
        assert_eq!(until("an event", || self.channel.event().ok()), COOKIE);
    }

    fn is_quiet(&self) {
        assert_eq!(self.channel.event().expect_err("no event").errno, Errno::EAGAIN);
    }
}

/// An unsuccessful completion is an event also for a program that waits for solicited ones (11.4.2.2).
#[test]
fn an_error_is_solicited() {
    let rig = Rig::new();
    let good = [rig.mr.sge(0, 8)];
    rig.receives.arm(true).expect("ibv_req_notify_cq");
    rig.message(&good, SendFlags::empty());
    rig.is_quiet();
    rig.message(&[], SendFlags::empty());
    rig.fired();
}

/// A request for solicited completions does not take back one for any completion.
#[test]
fn arming_for_less_does_not_disarm() {
    let rig = Rig::new();
    let good = [rig.mr.sge(0, 8)];
    rig.receives.arm(false).expect("ibv_req_notify_cq");
    rig.receives.arm(true).expect("ibv_req_notify_cq");
    rig.message(&good, SendFlags::empty());
    rig.fired();
}

/// A completion that waits, and that no event has covered, gives one as soon as the queue is armed. A completion that
/// an event has covered gives no other one, though it was not polled.
#[test]
fn what_came_before_arming_is_not_lost() {
    let rig = Rig::new();
    let good = [rig.mr.sge(0, 8)];
    rig.message(&good, SendFlags::empty());
    rig.receives.arm(true).expect("ibv_req_notify_cq");
    rig.is_quiet();
    rig.receives.arm(false).expect("ibv_req_notify_cq");
    rig.fired();
    rig.receives.arm(false).expect("ibv_req_notify_cq");
    rig.is_quiet();
    rig.message(&good, SendFlags::empty());
    rig.fired();
    rig.message(&good, SendFlags::SOLICITED);
    rig.is_quiet();
    rig.receives.arm(true).expect("ibv_req_notify_cq");
    rig.fired();
    conformance::collect(&rig.receives, 3);
}

/// One event for several completions, or when the time is over.
#[test]
fn moderation_gathers_completions() {
    let rig = Rig::new();
    let good = [rig.mr.sge(0, 8)];
    // The period is longer than this test should take; if it passes, the count has not failed.
    rig.receives.moderate(3, u16::MAX).expect("ibv_modify_cq");
    rig.receives.arm(false).expect("ibv_req_notify_cq");
    let start = std::time::Instant::now();
    for _ in 0..2 {
        rig.message(&good, SendFlags::empty());
    }
    let event = rig.channel.event();
    assert!(event.is_err() || start.elapsed().as_micros() >= u128::from(u16::MAX), "an event for two completions");
    rig.message(&good, SendFlags::empty());
    if event.is_err() {
        rig.fired();
    }
    // The time counts from the first completion.
    rig.receives.moderate(3, 1000).expect("ibv_modify_cq");
    rig.receives.arm(false).expect("ibv_req_notify_cq");
    rig.message(&good, SendFlags::empty());
    rig.fired();
    // Moderation is off.
    rig.receives.moderate(1, 0).expect("ibv_modify_cq");
    rig.receives.arm(false).expect("ibv_req_notify_cq");
    rig.message(&good, SendFlags::empty());
    rig.fired();
    drop(rig.fixture);
}
