//! The table of hangs.

use std::any::Any;

use conformance::{Joined, PORT, Remote, Wire, collect, until};
use rdma::{Access, Data, QpState, QpType, SendFlags, SendOp, SendWr};
use rustix::process::Signal;

use crate::place::{End, Wish, doctor, meet, must_say, pair};

/// The result of a case: the process to ask, and the objects that have to live on meanwhile.
struct Hang {
    pid: u32,
    _keep: Box<dyn Any>,
}

fn here(keep: impl Any) -> Hang {
    Hang { pid: std::process::id(), _keep: Box::new(keep) }
}

type Case = (&'static str, fn() -> Hang, &'static str);

/// The attributes of connections that do not give up during a case.
fn patient() -> Joined {
    Joined { timeout: 0, ..Joined::default() }
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("the peer posts no receive", || {
        let (a, b) = pair(&Joined { rnr_timer: 20, ..patient() }, &Wish::default());
        a.send();
        here((a, b))
    }, "RNR: the peer has posted no receive for"),
    ("the peer has used up its receives, and polls no completion", || {
        let (a, b) = pair(&Joined { rnr_timer: 20, ..patient() }, &Wish::default());
        b.recv();
        a.send();
        a.send();
        here((a, b))
    }, "the receive queue holds 0 receives, of 1 posted so far; one completion waits in its CQ"),
    ("seen from the peer that posts no receive", || {
        let (a, b) = pair(&Joined { rnr_timer: 20, ..patient() }, &Wish::default());
        a.send();
        here((a, b))
    }, "no receive is posted: "),
    ("a shared receive queue is empty", || {
        let (a, b) = pair(&Joined { rnr_timer: 20, ..patient() }, &Wish { srq: true, ..Wish::default() });
        a.send();
        here((a, b))
    }, "holds 0 receives, of 0 posted so far"),
    ("a shared receive queue is below its limit", || {
        let (a, b) = pair(&patient(), &Wish { srq: true, ..Wish::default() });
        b.recv();
        b.srq.as_ref().unwrap().set_limit(4).expect("ibv_modify_srq");
        here((a, b))
    }, "below its limit: 1 posted, limit 4"),
    ("the peer's queue pair is in INIT", || {
        let (a, b) = (End::new(&Wish::default()), End::new(&Wish::default()));
        a.up(&patient(), QpType::Rc, b.qp.number());
        patient().init(&b.qp, QpType::Rc);
        a.send();
        here((a, b))
    }, "is in INIT and receives nothing"),
    ("the peer's queue pair is connected to another", || {
        let (a, b) = (End::new(&Wish::default()), End::new(&Wish::default()));
        a.up(&patient(), QpType::Rc, b.qp.number());
        b.up(&patient(), QpType::Rc, b.qp.number());
        a.send();
        here((a, b))
    }, ", not to us"),
    ("the two do not agree about sequence numbers", || {
        let (a, b) = (End::new(&Wish::default()), End::new(&Wish::default()));
        a.up(&patient(), QpType::Rc, b.qp.number());
        patient().init(&b.qp, QpType::Rc);
        let attr = rdma::QpAttr {
            state: QpState::Rtr,
            rq_psn: b.qp.number() + 1000,
            ..patient().attr(a.qp.number(), b.qp.number(), b.fixture.gid)
        };
        let (must, _) = verbs::state::transition(QpType::Rc, QpState::Init, QpState::Rtr).unwrap();
        b.qp.modify(&attr, rdma::QpAttrMask::STATE | must).expect("INIT to RTR");
        a.send();
        here((a, b))
    }, "sq_psn here and rq_psn there differ"),
    ("the peer has destroyed its queue pair", || {
        let (a, b) = pair(&patient(), &Wish::default());
        let End { qp, fixture, .. } = b;
        drop(qp);
        a.send();
        here((a, fixture))
    }, "has no QP 0x"),
    ("nobody owns the peer's number", || {
        let a = End::new(&Wish::default());
        a.up(&patient(), QpType::Rc, 0xffe_123);
        a.send();
        here(a)
    }, "no link to QP 0xffe123"),
    ("acknowledgements are waited for without a timeout", || {
        let (a, b) = (End::new(&Wish::default()), End::new(&Wish::default()));
        a.up(&patient(), QpType::Rc, b.qp.number());
        a.send();
        here((a, b))
    }, "timeout 0: it waits for ever"),
    ("retries are under way", || {
        let (a, b) = (End::new(&Wish::default()), End::new(&Wish::default()));
        a.up(&Joined { timeout: 19, ..Joined::default() }, QpType::Rc, b.qp.number());
        a.send();
        here((a, b))
    }, " of 7, timeout 2.1 s"),
    ("a READ waits for others", || {
        let (a, b) = (End::new(&Wish::default()), End::new(&Wish::default()));
        a.up(&Joined { reads: 1, ..patient() }, QpType::Rc, b.qp.number());
        a.read(SendFlags::empty());
        a.read(SendFlags::empty());
        here((a, b))
    }, "one send request waits: 1 READs or atomics are outstanding, and max_rd_atomic is 1"),
    ("a SEND waits behind a fence", || {
        let (a, b) = (End::new(&Wish::default()), End::new(&Wish::default()));
        a.up(&patient(), QpType::Rc, b.qp.number());
        a.read(SendFlags::empty());
        a.try_post(SendOp::Send, SendFlags::FENCE).expect("ibv_post_send");
        here((a, b))
    }, "the next send request is fenced"),
    ("the send queue is full of unsignaled requests", || {
        let (a, b) = pair(&patient(), &Wish { sq_sig_all: false, ..Wish::default() });
        while a.try_post(SendOp::Write { addr: b.mr.addr(), rkey: b.mr.rkey() }, SendFlags::empty()).is_ok() {}
        here((a, b))
    }, "send queue full: 16 unsignaled, none signaled: no completion can ever free it (ibv_post_send(3))"),
    ("the send queue is full of what nobody polls", || {
        let (a, b) = pair(&patient(), &Wish::default());
        let op = || SendOp::Write { addr: b.mr.addr(), rkey: b.mr.rkey() };
        while a.try_post(op(), SendFlags::SIGNALED).is_ok() {}
        here((a, b))
    }, "send queue full: all 16 requests are complete, and their completions wait in CQ"),
    ("send requests wait in SQD", || {
        let (a, b) = pair(&patient(), &Wish::default());
        a.qp.set_state(QpState::Sqd).expect("RTS to SQD");
        a.send();
        here((a, b))
    }, "in SQD: one send request that had not begun waits for RTS"),
    ("the queue pair is in INIT", || {
        let a = End::new(&Wish::default());
        patient().init(&a.qp, QpType::Rc);
        a.recv();
        here(a)
    }, "in INIT: nothing is received"),
    ("a completion queue has overrun", || {
        let (a, b) = pair(&patient(), &Wish { cqe: 1, ..Wish::default() });
        let write = || SendOp::Write { addr: b.mr.addr(), rkey: b.mr.rkey() };
        (0..3).for_each(|_| a.try_post(write(), SendFlags::SIGNALED).unwrap());
        here((a, b))
    }, "overrun: it was full with one completion"),
    ("nobody polls a full completion queue", || {
        let (a, b) = pair(&patient(), &Wish { cqe: 1, ..Wish::default() });
        a.try_post(SendOp::Write { addr: b.mr.addr(), rkey: b.mr.rkey() }, SendFlags::SIGNALED).unwrap();
        here((a, b))
    }, "full: one completion, no thread polls them"),
    ("armed for solicited completions only", || {
        let (a, b) = pair(&patient(), &Wish { channel: true, ..Wish::default() });
        b.receives.arm(true).expect("ibv_req_notify_cq");
        b.recv();
        a.send();
        collect(&a.sends, 1);
        here((a, b))
    }, "armed for solicited completions only, one completion inside that is not"),
    ("armed without having polled what the event was for", || {
        let (a, b) = pair(&patient(), &Wish { channel: true, ..Wish::default() });
        b.receives.arm(false).expect("ibv_req_notify_cq");
        b.recv();
        a.send();
        b.channel.as_ref().expect("a channel").event().expect("ibv_get_cq_event");
        b.receives.arm(false).expect("ibv_req_notify_cq");
        here((a, b))
    }, "armed, and one completion came before the last event"),
    ("a thread waits for an event that nobody has asked for", || {
        let remote = Remote::start("remote_side", "waiter", &[]);
        Hang { pid: remote.pid(), _keep: Box::new(remote) }
    }, "not armed, and one thread in ibv_get_cq_event: no event will come"),
    ("an event waits to be got", || {
        let (a, b) = pair(&patient(), &Wish { channel: true, ..Wish::default() });
        b.receives.arm(false).expect("ibv_req_notify_cq");
        b.recv();
        a.send();
        collect(&a.sends, 1);
        here((a, b))
    }, "one event waits in its completion channel"),
    ("the destruction of a completion queue waits for acknowledgements", || {
        let remote = Remote::start("remote_side", "destroyer", &[]);
        Hang { pid: remote.pid(), _keep: Box::new(remote) }
    }, "waits: one event got and not acknowledged"),
    ("an asynchronous event waits to be got", || {
        let (a, b) = pair(&patient(), &Wish::default());
        b.qp.set_state(QpState::Err).expect("to ERR");
        // The key is wrong: the responder's side gets the event.
        let (a2, b2) = pair(&patient(), &Wish::default());
        a2.try_post(SendOp::Write { addr: b2.mr.addr(), rkey: !b2.mr.rkey() }, SendFlags::SIGNALED).unwrap();
        collect(&a2.sends, 1);
        here((a, b, a2, b2))
    }, "asynchronous events that the program has not got (ibv_get_async_event(3)): IBV_EVENT_QP_ACCESS_ERR"),
    ("datagrams find no receive", || {
        let datagrams = Wish { qp_type: QpType::Ud, ..Wish::default() };
        let (a, b) = (End::new(&datagrams), End::new(&datagrams));
        for end in [&a, &b] {
            end.qp.init(QpType::Ud, PORT, Access::empty(), 5).expect("RESET to INIT");
            end.qp.activate_ud(0).expect("INIT to RTS");
        }
        let dgid = a.fixture.gid;
        let to = rdma::AhAttr { dgid, hop_limit: 64, is_global: true, port_num: PORT, ..Default::default() };
        let ah = a.fixture.pd.create_ah(&to).expect("ibv_create_ah");
        let list = [a.mr.sge(0, 8)];
        let mut wr = SendWr::new(1, SendOp::Send, Data::Sges(&list));
        wr.to = Some((&ah, b.qp.number(), 5));
        a.qp.post_send(&wr).expect("ibv_post_send");
        collect(&a.sends, 1);
        here((a, b, ah))
    }, "one message was lost: no receive was posted"),
    ("the peer is stopped", || {
        let mut remote = Remote::start("remote_side", "peer", &[]);
        let a = meet(&patient(), &mut remote.wire);
        remote.signal(Signal::STOP);
        a.send();
        here((a, remote))
    }, "is stopped (SIGSTOP, or a debugger)"),
    ("the peer in another process posts no receive", || {
        let mut remote = Remote::start("remote_side", "peer", &[]);
        let a = meet(&Joined { rnr_timer: 20, ..patient() }, &mut remote.wire);
        a.send();
        here((a, remote))
    }, "the receive queue holds 0 receives, of 0 posted so far"),
];

/// A thread in ibv_get_cq_event on a channel whose queue is not armed.
pub fn waiter(mut wire: Wire) {
    let end = End::new(&Wish { channel: true, ..Wish::default() });
    let channel = end.channel.clone().expect("a channel");
    std::thread::spawn(move || channel.event());
    let _ = wire.try_hear::<()>();
    // The thread keeps the channel; nothing is to be destroyed in order.
    std::process::exit(0);
}

/// A thread in ibv_destroy_cq, because an event was not acknowledged.
pub fn destroyer(mut wire: Wire) {
    let (a, b) = pair(&patient(), &Wish { channel: true, ..Wish::default() });
    b.receives.arm(false).expect("ibv_req_notify_cq");
    b.recv();
    a.send();
    let event = b.channel.as_ref().expect("a channel").pending_event().expect("ibv_get_cq_event");
    std::mem::forget(event);
    let End { qp, receives, sends, .. } = b;
    drop(qp);
    std::thread::spawn(move || drop((sends, receives)));
    let _ = wire.try_hear::<()>();
    std::process::exit(0);
}

#[test]
fn every_hang_is_explained() {
    for (name, make, sentence) in CASES {
        eprintln!("{name}");
        let hang = make();
        must_say(hang.pid, sentence);
    }
}

#[test]
fn exit_statuses_are_as_documented() {
    let nobody = u32::MAX / 2;
    assert_eq!(doctor(&[&nobody.to_string()]).0, 2);
    let (status, text) = doctor(&["1"]);
    assert_eq!(status, 2, "{text}");
    // A process that does nothing has no findings.
    let mut remote = Remote::start("remote_side", "silent", &[]);
    let () = remote.wire.hear();
    let pid = remote.pid().to_string();
    let well = || doctor(&[&pid]);
    assert_eq!(well().0, 0, "{}", well().1);
    assert!(well().1.contains("nothing stands in the way"));
    // A stopped process cannot answer, and the doctor names the reason.
    remote.signal(Signal::STOP);
    let (status, text) = doctor(&[&pid]);
    assert!(status == 2 && text.contains(&format!("process {pid} is stopped")), "{status}: {text}");
    remote.signal(Signal::CONT);
    until("an answer after it was continued", || (well().0 == 0).then_some(()));
    assert!(doctor(&[]).1.contains(&format!("process {pid} ")));
}
