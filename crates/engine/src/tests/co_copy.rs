//! Help for a target with its single copies for our requests: the target's offers are checked against the requests.

use verbs::{Opcode, QpState, QpType, RKey, SendBody};
use wire::{Offer, Span, TicketRef};

use super::mock::*;

const LEN: u32 = 200_000;

fn world() -> (World, verbs::QpId, verbs::QpId) {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().single_copy = true;
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    assert!(!w.nodes[0].engine.lends());
    (w, qa, qb)
}

/// The offer that the target would make for the request by reference that is on its way.
fn offer(w: &World, to_us: bool) -> Offer {
    let net = w.net.borrow();
    let list = &net.queues[&(0, 1)].back().unwrap().payload;
    let word = |at: usize| u64::from_le_bytes(list[at..at + 8].try_into().unwrap());
    let span = Span { addr: word(16), len: word(24) as u32, guarded: true };
    Offer { ticket: TicketRef { addr: word(0), value: word(8) }, span, to_us }
}

fn is_followed(w: &mut World, offer: Offer) -> bool {
    w.net.borrow_mut().offer = Some(offer);
    w.nodes[0].engine.co_copy();
    let followed = w.net.borrow_mut().followed.take();
    assert!(followed.is_none_or(|followed| followed == offer));
    followed.is_some()
}

#[test]
fn only_what_a_request_has_named() {
    for (opcode, to_us) in [(Opcode::Send, false), (Opcode::RdmaWrite, false), (Opcode::RdmaRead, true)] {
        let (mut w, qa, qb) = world();
        w.recv(1, qb, &[w.sge(1, 0, LEN)], 9).unwrap();
        let (remote_addr, rkey) = (BASE, RKey(w.nodes[1].key));
        let body = if opcode == Opcode::Send { SendBody::Plain } else { SendBody::Rdma { remote_addr, rkey } };
        w.post(0, qa, opcode, body, &[w.sge(0, 64, LEN)], 1).unwrap();
        assert!(w.nodes[0].engine.lends());
        let good = offer(&w, to_us);
        assert!(is_followed(&mut w, good), "{opcode:?}");
        let part = Span { addr: good.span.addr + 100, len: 1000, ..good.span };
        assert!(is_followed(&mut w, Offer { span: part, ..good }));
        let TicketRef { addr, value } = good.ticket;
        let bad = [
            Offer { to_us: !to_us, ..good },
            Offer { ticket: TicketRef { addr, value: value + 1 }, ..good },
            Offer { ticket: TicketRef { addr: addr + 8, value }, ..good },
            Offer { span: Span { len: LEN + 1, ..good.span }, ..good },
            Offer { span: Span { addr: good.span.addr - 1, ..good.span }, ..good },
            Offer { span: Span { addr: good.span.addr + 1, ..good.span }, ..good },
            Offer { span: Span { addr: u64::MAX, len: 5, ..good.span }, ..good },
        ];
        for bad in bad {
            assert!(!is_followed(&mut w, bad), "{opcode:?} {bad:?}");
        }
        // When the request is done, or given up, there is nothing to help with.
        w.settle();
        assert_eq!(w.poll(0).len(), 1);
        assert!(!is_followed(&mut w, good) && !w.nodes[0].engine.lends());
    }
}

#[test]
fn not_what_was_given_up() {
    let (mut w, qa, _) = world();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &[w.sge(0, 0, LEN)], 1).unwrap();
    let good = offer(&w, false);
    assert!(is_followed(&mut w, good));
    let attr = verbs::QpAttr { state: QpState::Err, ..Default::default() };
    w.nodes[0].engine.modify_qp(qa, &attr, verbs::QpAttrMask::STATE, w.now).unwrap();
    assert!(!is_followed(&mut w, good) && !w.nodes[0].engine.lends());
}

/// The list keeps nothing of a queue pair that is gone.
#[test]
fn not_for_those_that_are_gone() {
    let (mut w, qa, _) = world();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &[w.sge(0, 0, LEN)], 1).unwrap();
    let good = offer(&w, false);
    w.nodes[0].engine.destroy_qp(qa).unwrap();
    assert!(!is_followed(&mut w, good) && !w.nodes[0].engine.lends());
}

/// Long messages go by either way, until it is known which is faster.
#[test]
fn both_ways_are_tried() {
    for opcode in [Opcode::Send, Opcode::RdmaRead] {
        let (mut w, qa, qb) = world();
        {
            let mut net = w.net.borrow_mut();
            (net.single_copy_above, net.flowing_above, net.shared_above) = (u32::MAX, Some(u32::MAX), Some(16384));
            net.maps = false;
            net.either_from = LEN;
        }
        let mut by_ref = [0; 2];
        for id in 0..400 {
            if opcode == Opcode::Send {
                w.recv(1, qb, &[w.sge(1, 0, LEN)], id).unwrap();
            }
            let (remote_addr, rkey) = (BASE, RKey(w.nodes[1].key));
            let body = if opcode == Opcode::Send { SendBody::Plain } else { SendBody::Rdma { remote_addr, rkey } };
            w.post(0, qa, opcode, body, &[w.sge(0, 0, LEN)], id).unwrap();
            by_ref[usize::from(w.nodes[0].engine.lends())] += 1;
            w.settle();
            w.nodes[0].engine.co_copy();
            assert_eq!(w.poll(0).iter().map(|c| c.status).collect::<Vec<_>>(), [verbs::WcStatus::Success]);
            w.poll(1);
        }
        assert!(by_ref[0] > 100 && by_ref[1] > 100, "{opcode:?} {by_ref:?}");
    }
}

/// A receive of a shared queue to which a peer that was given up may still copy: no other queue pair gets it, and it is
/// not lost.
#[test]
fn a_receive_with_a_late_writer_is_kept_for_its_link() {
    for ends in [Ends::Again, Ends::Error, Ends::Reset, Ends::Destroyed] {
        let mut w = World::new(2, 5);
        w.net.borrow_mut().single_copy = true;
        let n = &mut w.nodes[1];
        let init = verbs::SrqInit { pd: n.pd, max_wr: 8, max_sge: 1, limit: 0, xrc: None };
        let srq = n.engine.create_srq(n.ctx, &init, 3).unwrap().0;
        let pairs = [1, 2].map(|_| {
            let ((qa, na), (qb, nb)) = (w.qp(0, QpType::Rc), w.qp_with(1, QpType::Rc, Some(srq), cap(), false));
            w.connect(0, qa, World::attr(nb, 0xff_fff0, 100));
            w.connect(1, qb, World::attr(na, 100, 0xff_fff0));
            (qa, qb)
        });
        let data = (0..LEN).map(|i| (i % 251) as u8).collect::<Vec<_>>();
        w.write(0, 0, &data);
        let room = [w.sge(1, 0, LEN)];
        let now = w.now;
        w.nodes[1].engine.post_srq_recv(srq, &verbs::RecvWr { wr_id: 9, sges: &room }, now).unwrap();
        w.post(0, pairs[0].0, Opcode::Send, SendBody::Plain, &[w.sge(0, 0, LEN)], 1).unwrap();
        (w.net.borrow_mut().deny_single_copy, w.net.borrow_mut().late_writer) = (true, true);
        w.deliver(0, 1, 1);
        // The other queue pair finds no receive.
        w.post(0, pairs[1].0, Opcode::Send, SendBody::Plain, &[w.sge(0, 0, 8)], 2).unwrap();
        w.deliver(0, 1, 1);
        assert!(w.poll(1).is_empty());
        (w.net.borrow_mut().deny_single_copy, w.net.borrow_mut().late_writer) = (false, false);
        let to = |state| verbs::QpAttr { state, ..Default::default() };
        match ends {
            Ends::Again => {}
            Ends::Error => w.modify(1, pairs[0].1, &to(QpState::Err), verbs::QpAttrMask::STATE).unwrap(),
            Ends::Reset => w.modify(1, pairs[0].1, &to(QpState::Reset), verbs::QpAttrMask::STATE).unwrap(),
            Ends::Destroyed => w.nodes[1].engine.destroy_qp(pairs[0].1).unwrap(),
        }
        w.run_for(200_000_000);
        let got: Vec<_> = w.poll(1).iter().map(|c| (c.wr_id, c.status, c.byte_len)).collect();
        match ends {
            Ends::Again => {
                assert_eq!(got, [(9, verbs::WcStatus::Success, LEN)]);
                assert!(w.read(1, 0, LEN as usize) == data);
            }
            Ends::Error => assert_eq!(got, [(9, verbs::WcStatus::WrFlushErr, 0)]),
            Ends::Reset | Ends::Destroyed => assert_eq!(got, [(9, verbs::WcStatus::Success, 8)], "the other one's"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Ends {
    Again,
    Error,
    Reset,
    Destroyed,
}
