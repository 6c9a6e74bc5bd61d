use report::Settings;

use super::*;
use crate::now;

/// The links that so many polls take a packet from.
fn taken(round_robin: &mut RoundRobin, ready: &[bool], polls: u32) -> Vec<usize> {
    let poll = |_| {
        let first = round_robin.first(ready.len());
        let at = (first..ready.len()).chain(0..first).find(|at| ready[*at])?;
        round_robin.took(at);
        Some(at)
    };
    (0..polls).filter_map(poll).collect()
}

#[test]
fn a_busy_link_is_looked_at_first() {
    let mut round_robin = RoundRobin::default();
    taken(&mut round_robin, &[false, false, true], 1);
    assert_eq!(round_robin.first(3), 2);
    assert_eq!(taken(&mut round_robin, &[false, true, false], 3), [1; 3]);
    assert_eq!(round_robin.first(3), 1);
    assert_eq!(round_robin.first(1), 0, "links go");
    assert_eq!(round_robin.first(0), 0);
}

/// An adapter without a thread, and the device opened.
fn adapter() -> (Nic, ::verbs::CtxId) {
    let nic = Nic::new(Settings::of_process()).unwrap();
    let ctx = nic.core.lock().open_ctx().unwrap();
    (nic, ctx)
}

/// A queue pair in INIT with so many receives, each of which completes to the queue.
fn receiver(nic: &Nic, ctx: ::verbs::CtxId, cq: CqId, receives: u64) -> ::verbs::QpId {
    use ::verbs::{QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, state};
    let pd = nic.lock().alloc_pd(ctx).unwrap();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (Some(cq), Some(cq));
    let (pd, qp_type) = (Some(pd), QpType::Rc);
    let init = QpInit { pd, qp_type, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: false };
    let (qp, _) = nic.create_qp(ctx, &init, 0).unwrap();
    let attr = QpAttr { state: QpState::Init, port_num: 1, ..QpAttr::default() };
    let (mask, _) = state::transition(QpType::Rc, QpState::Reset, QpState::Init).unwrap();
    nic.modify_qp(qp, &attr, mask | QpAttrMask::STATE).unwrap();
    for wr_id in 0..receives {
        nic.post_recv(qp, &RecvWr { wr_id, sges: &[] }).unwrap();
    }
    qp
}

/// End the receives of the queue pair.
fn flush(nic: &Nic, qp: ::verbs::QpId) {
    let attr = ::verbs::QpAttr { state: ::verbs::QpState::Err, ..::verbs::QpAttr::default() };
    nic.modify_qp(qp, &attr, ::verbs::QpAttrMask::STATE).unwrap();
}

#[test]
fn armings_that_nobody_asked_for_are_a_rest_apart() {
    let (nic, ctx) = adapter();
    let (cq, _) = nic.lock().create_cq(ctx, 64, 0, engine::CqOpts::default()).unwrap();
    let mut core = nic.core.lock();
    let arms = |core: &mut Core, clock| {
        (core.mode, core.clock) = (Mode::Polled, clock);
        core.after_completions(&nic);
        core.mode == Mode::Armed
    };
    let start = now();
    assert!(arms(&mut core, start), "nothing is expected: peers must find a thread awake");
    assert_eq!(core.arm_not_before, core.clock + ARM_PAUSE);
    let until = core.arm_not_before;
    assert!(!arms(&mut core, start) && !arms(&mut core, until - 1));
    assert_eq!(core.arm_not_before, until, "what is put off is not put off further");
    assert!(arms(&mut core, until));
    // A program that polls again at once is not armed more seldom for that: it may watch its memory between two
    // completions, and what peers write as packets would wait for the NIC thread's checks.
    let until = core.arm_not_before;
    (0..POLLS_BEFORE_POLLED).for_each(|_| core.polled(&nic));
    assert_eq!((core.mode, core.arm_not_before), (Mode::Polled, until));
    assert!(arms(&mut core, until));
    // A request for an event arms at once.
    (core.mode, core.arm_not_before) = (Mode::Polled, u64::MAX);
    core.arm_for(&nic);
    assert_eq!(core.mode, Mode::Armed);
    // A program that expects a completion polls again for it.
    core.arm_not_before = 0;
    drop(core);
    let qp = receiver(&nic, ctx, cq, 1);
    assert!(!arms(&mut nic.core.lock(), until));
    flush(&nic, qp);
    assert!(arms(&mut nic.core.lock(), until));
}

/// A thread that is stopped between reading the clock and posting must not shorten the timeout.
#[test]
fn timers_begin_when_it_was_sent() {
    use ::verbs::{AhAttr, Opcode, QpAttr, QpAttrMask, QpState, QpType, SendBody, SendData, SendFlags, SendWr, state};
    const MS: u64 = 1_000_000;
    let (nic, ctx) = adapter();
    let (cq, _) = nic.lock().create_cq(ctx, 64, 0, engine::CqOpts::default()).unwrap();
    let qp = receiver(&nic, ctx, cq, 0);
    let dgid = nic.gids(report::Device::Roce)[0].gid;
    let attr = QpAttr {
        path_mtu: 3,
        ah: AhAttr { dgid, is_global: true, port_num: 1, ..AhAttr::default() },
        // No queue pair has this number.
        dest_qp_num: 0xff_fffe,
        timeout: 14,
        ..QpAttr::default()
    };
    for (from, to) in [(QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)] {
        let (mask, _) = state::transition(QpType::Rc, from, to).unwrap();
        nic.modify_qp(qp, &QpAttr { state: to, ..attr }, mask | QpAttrMask::STATE).unwrap();
    }
    let mut core = nic.lock();
    let stopped = 50 * MS;
    core.clock = now() - stopped;
    (core.clock_fresh, core.clock_uses) = (true, 8);
    let wr = SendWr {
        wr_id: 1,
        opcode: Opcode::Send,
        flags: SendFlags::SIGNALED,
        imm_or_rkey: 0,
        remote_srqn: 0,
        body: &SendBody::Plain,
        data: SendData::Sges(&[]),
    };
    let sent = now();
    let then = core.time();
    core.post_send(qp, &wr, then).unwrap();
    drop(core);
    let (due, mut core) = (sent + (4096 << 14), nic.core.lock());
    core.engine.expire(due - 1);
    let next = core.engine.next_deadline().unwrap();
    assert!((due..due + 10 * MS).contains(&next), "next at {} ms, and not yet run out", (next - sent) / MS);
}

#[test]
fn who_polls_seldom_is_looked_at_twice_and_then_left_alone() {
    let mut poll_check = PollCheck::at_rest(0);
    let mut polls = 0;
    let mut next = |poll_check: &mut PollCheck, seldom| {
        polls += 1;
        poll_check.next(polls, 7 * TICK_MAX, seldom, false) - 7 * TICK_MAX
    };
    assert_eq!([false, false].map(|seldom| next(&mut poll_check, seldom)), [2 * TICK_MIN, 4 * TICK_MIN]);
    let waits = [true; 6].map(|seldom| next(&mut poll_check, seldom));
    assert_eq!(waits, [PAUSE, 8 * TICK_MIN, PAUSE, TICK_MAX, PAUSE, TICK_MAX]);
    // A doubt that the second check has settled is forgotten.
    assert_eq!([true, false, true].map(|seldom| next(&mut poll_check, seldom)), [PAUSE, TICK_MAX, PAUSE]);
}

#[test]
fn checks_of_who_is_seldom_in_doubt_come_at_whole_ticks() {
    let mut poll_check = PollCheck { tick: TICK_MAX, ..PollCheck::at_rest(0) };
    let mut polls = 0;
    for at in [0, 1, TICK_MAX / 2 - 1, TICK_MAX / 2, TICK_MAX - 1] {
        let now = 5 * TICK_MAX + at;
        polls += 1;
        let next = poll_check.next(polls, now, false, false);
        assert_eq!((next % TICK_MAX, next, poll_check.due(now)), (0, poll_check.due(now), next));
        assert!(next - now > TICK_MAX / 2 && next - now <= TICK_MAX + TICK_MAX / 2, "{at}");
    }
    assert_eq!(PollCheck::at_rest(0).due(1), 1 + TICK_MIN, "the first ones come soon");
}

#[test]
fn a_check_is_left_out_while_the_program_holds_the_lock_and_not_for_ever() {
    let mut poll_check = PollCheck::at_rest(0);
    assert!(!poll_check.passes_over(true), "the program was not at work");
    for polls in 1..3 {
        poll_check.found_at_nothing_else(polls, false);
        poll_check.next(polls, TICK_MAX, false, false);
        assert!(!poll_check.passes_over(false), "something has come");
        assert_eq!((0..).take_while(|_| poll_check.passes_over(true)).count(), PASSED_OVER as usize);
    }
    // So many in a row make checks rare, and then few are left out.
    poll_check.next(3, TICK_MAX, false, false);
    assert_eq!((0..).take_while(|_| poll_check.passes_over(true)).count(), 1);
    poll_check = PollCheck::at_rest(3);
    assert!(!poll_check.passes_over(true));
}

#[test]
fn who_does_nothing_but_poll_is_looked_at_more_seldom() {
    let mut poll_check = PollCheck { tick: TICK_MAX, ..PollCheck::at_rest(0) };
    let (mut polls, now) = (0, 8 * TICK_CALM);
    let mut next = |poll_check: &mut PollCheck, more, held, parked| {
        polls += more;
        poll_check.found_at_nothing_else(polls, held);
        poll_check.next(polls, now, false, parked) - now
    };
    for (more, held) in [(ALL_THE_TIME, false), (1, true)] {
        for _ in 1..CALM {
            assert_eq!(next(&mut poll_check, more, held, false), TICK_MAX);
        }
        assert_eq!(next(&mut poll_check, more, held, false), TICK_CALM);
        assert_eq!(next(&mut poll_check, ALL_THE_TIME - 1, false, false), TICK_MAX, "it does something else");
    }
    for _ in 0..CALM {
        next(&mut poll_check, 1, true, false);
    }
    assert!(poll_check.passes_over(true));
    assert_eq!(poll_check.due(now) - now, TICK_CALM);
    assert_eq!(next(&mut poll_check, 1, true, true), TICK_PARKED, "a request waits for room");
    assert_eq!(PollCheck::at_rest(polls).calm, 0);
}

#[test]
fn who_waits_for_room_is_looked_at_sooner() {
    let mut poll_check = PollCheck { tick: TICK_MAX, ..PollCheck::at_rest(0) };
    assert_eq!(poll_check.next(1, 0, false, true), TICK_PARKED);
    assert_eq!(poll_check.next(2, 0, false, false), 2 * TICK_PARKED, "and then more seldom again");
}

#[test]
fn who_may_wait_for_events_has_to_poll_more_than_once() {
    let (nic, ctx) = adapter();
    let (cq, _) = nic.lock().create_cq(ctx, 64, 0, engine::CqOpts::default()).unwrap();
    let polls = nic.core.lock().polls;
    let poll = |times| (0..times).for_each(|_| assert_eq!(nic.poll_cq(cq, 1, |_, _| {}), 0));
    assert!(!nic.core.lock().polls_since(polls));
    poll(1);
    assert!(nic.core.lock().polls_since(polls));
    let channel = nic.create_channel().unwrap();
    nic.bind_cq_channel(cq, &channel);
    assert!(nic.core.lock().polls_since(polls), "the program never asks for one");
    nic.arm_cq(cq, false).unwrap();
    assert!(!nic.core.lock().polls_since(polls));
    let polls = nic.core.lock().polls;
    poll(POLLS_BEFORE_POLLED - 1);
    assert!(!nic.core.lock().polls_since(polls));
    poll(1);
    assert!(nic.core.lock().polls_since(polls));
    // Whether the program still waits is seen in armed mode.
    for asks in [false, true] {
        nic.arm_cq(cq, false).unwrap();
        for _ in 0..POLLS_UNASKED - 1 {
            assert!(nic.core.lock().may_await_events());
        }
        if asks {
            nic.arm_cq(cq, false).unwrap();
        }
        assert!(nic.core.lock().engine.env().awaits_events());
        assert!(nic.core.lock().may_await_events(), "the event has not come yet");
        assert_eq!(nic.core.lock().engine.env().awaits_events(), asks, "a thread that polls is awake all the same");
    }
    let qp = receiver(&nic, ctx, cq, 1);
    flush(&nic, qp);
    nic.core.lock().polls_unasked = 0;
    for _ in 0..POLLS_UNASKED - 1 {
        assert!(nic.core.lock().may_await_events());
    }
    assert!(!nic.core.lock().may_await_events(), "it has, and the program goes on polling");
    nic.arm_cq(cq, false).unwrap();
    assert!(nic.core.lock().awaits_events);
    nic.unbind_cq_channel(cq);
    assert!(!nic.core.lock().awaits_events);
}

#[test]
fn who_was_at_work_just_now_still_is() {
    let mut poll_check = PollCheck::at_rest(5);
    let now = 3 * TICK_MAX;
    assert!(!poll_check.at_work(false, now) && poll_check.at_work(true, now));
    poll_check.next(6, now, false, false);
    let tick = poll_check.tick;
    assert!(poll_check.at_work(false, now + PAUSE - 1) && !poll_check.at_work(false, now + PAUSE));
    // A check in between changes nothing.
    assert_eq!(
        (poll_check.next(6, now + 1, true, false), poll_check.tick, poll_check.doubted),
        (now + PAUSE, tick, false)
    );
    assert!(!poll_check.at_work(false, now + PAUSE));
    assert!(!PollCheck::at_rest(6).at_work(false, now + 1), "a thread that has taken over asks nothing");
}

#[test]
fn peers_that_are_not_seen_to_sleep_are_rung_by_the_next_poll_in_vain() {
    let (nic, ctx) = adapter();
    let (cq, _) = nic.lock().create_cq(ctx, 64, 0, engine::CqOpts::default()).unwrap();
    let send = |mode| {
        let mut core = nic.lock();
        (core.mode, core.clock_uses) = (mode, 8);
        core.engine.env_mut().suppress_doorbells();
        let packet = Packet { op: wire::PacketOp::Ack, ..Packet::NONE };
        assert!(core.engine.env_mut().send_short(LinkId::LOOPBACK, &packet, &[]).is_some());
        assert!(core.engine.env_mut().peek(LinkId::LOOPBACK).is_some());
        core.engine.env_mut().release(LinkId::LOOPBACK);
    };
    let owed = || nic.core.lock().engine.env().owes_ring();
    send(Mode::Armed);
    assert!(!owed());
    send(Mode::Polled);
    assert!(owed(), "the fence is for later");
    assert_eq!(nic.poll_cq(cq, 1, |_, _| {}), 0);
    assert!(!owed());
    // The NIC thread rings, too, at any reading of the clock.
    send(Mode::Polled);
    nic.lock().read_time();
    assert!(!owed());
    // A peer that sleeps is rung at once.
    nic.core.lock().engine.env_mut().announce_sleep();
    let mut core = nic.lock();
    (core.mode, core.clock_uses) = (Mode::Polled, 8);
    let packet = Packet { op: wire::PacketOp::Ack, ..Packet::NONE };
    assert!(core.engine.env_mut().send_short(LinkId::LOOPBACK, &packet, &[]).is_some());
    drop(core);
    assert!(!owed());
}

#[test]
fn who_only_polls_is_seen_to_poll_whatever_he_finds() {
    let (nic, ctx) = adapter();
    let (cq, _) = nic.lock().create_cq(ctx, 64, 0, engine::CqOpts::default()).unwrap();
    let qp = receiver(&nic, ctx, cq, 64);
    flush(&nic, qp);
    // 64 completions are in the queue that the polls did not have to bring, and nothing comes behind them.
    nic.core.lock().arm_not_before = u64::MAX;
    let poll = |times| (0..times).for_each(|_| assert_eq!(nic.poll_cq(cq, 1, |_, _| {}), 1));
    let mode = || nic.core.lock().mode;
    // With a channel a thread may be waiting for events, and peers have to ring.
    nic.core.lock().mode = Mode::Armed;
    let channel = nic.create_channel().unwrap();
    nic.bind_cq_channel(cq, &channel);
    nic.arm_cq(cq, false).unwrap();
    poll(POLLS_BEFORE_POLLED + 1);
    assert_eq!(mode(), Mode::Armed);
    nic.unbind_cq_channel(cq);
    poll(POLLS_BEFORE_POLLED - 1);
    assert_eq!(mode(), Mode::Armed);
    poll(1);
    assert_eq!(mode(), Mode::Polled);
    // Now the polls show nothing: the NIC thread has no reason to stay away.
    let polls = nic.core.lock().polls;
    poll(POLLS_BEFORE_POLLED);
    assert_eq!(nic.core.lock().polls, polls);
    // Each arming begins the count anew.
    let half = POLLS_BEFORE_POLLED / 2;
    nic.core.lock().arm_for(&nic);
    poll(half);
    nic.core.lock().arm_for(&nic);
    poll(half - 1);
    assert_eq!((mode(), nic.core.lock().polls_armed), (Mode::Armed, half - 1));
}

#[test]
fn no_link_is_starved_by_others_that_are_always_ready() {
    let mut round_robin = RoundRobin::default();
    let taken = taken(&mut round_robin, &[false, true, true, true], 6 * BUDGET);
    for link in 1..4 {
        assert_eq!(taken.iter().filter(|at| **at == link).count(), 2 * BUDGET as usize, "{link}");
    }
}
