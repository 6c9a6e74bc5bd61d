//! Long requests that the initiator executes piece by piece, one under each hold of the lock. Whatever happens between
//! two pieces, nothing is executed twice or out of order, and the rest ends as packets would have ended.

use verbs::{
    Access, MrId, Opcode, QpAttr, QpAttrMask, QpId, QpState, QpType, RKey, SendBody, SendFlags, WcStatus as St,
};

use super::mock::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Bytes of a piece here, which is a multiple of the path MTU.
const PIECE: u32 = 4096;
/// Where the data lie in both nodes, and where a SEND goes.
const AT: u64 = 8192;
const MESSAGE: u64 = 0;

struct Joined {
    w: World,
    qa: QpId,
    qb: QpId,
    /// The target's region, and its rkey.
    mr: MrId,
    key: RKey,
}

/// Two nodes, the first of which executes its requests in small pieces.
fn joined() -> Joined {
    let mut w = World::new(2, 9);
    w.net.borrow_mut().one_sided = true;
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let (body, from) = (w.rdma(1, 0), [w.sge(0, 0, 8)]);
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 0).unwrap();
    w.settle();
    assert_eq!(statuses(&mut w, 0), [St::Success], "it has been answered");
    w.nodes[0].engine.piece = PIECE;
    let n = &mut w.nodes[1];
    let (mr, _, key) = n.engine.reg_mr(n.pd, BASE + AT, 1 << 20, BASE + AT, ALL).unwrap();
    Joined { w, qa, qb, mr, key }
}

fn statuses(w: &mut World, node: usize) -> Vec<St> {
    w.poll(node).iter().map(|c| c.status).collect()
}

fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i / 64 + i * 7) as u8 | 1).collect()
}

fn quiet(w: &World) -> bool {
    w.net.borrow().queues.values().all(|q| q.is_empty())
}

/// Number of pieces that have been executed.
fn executed(w: &World) -> u64 {
    w.net.borrow().executed
}

impl Joined {
    /// Posts a WRITE or READ of so many bytes between the same places of both nodes. Its first piece is executed at
    /// once.
    fn post(&mut self, opcode: Opcode, len: u32, id: u64) {
        let w = &mut self.w;
        let (body, sges) = (SendBody::Rdma { remote_addr: BASE + AT, rkey: self.key }, [w.sge(0, AT, len)]);
        w.post(0, self.qa, opcode, body, &sges, id).unwrap();
    }

    /// Posts a request whose data come from the other side, and executes its first piece.
    fn begin(&mut self, opcode: Opcode, len: u32) {
        let from = usize::from(opcode == Opcode::RdmaRead);
        self.w.write(from, AT, &pattern(len));
        self.post(opcode, len, 1);
        assert_eq!((executed(&self.w), quiet(&self.w)), (1, true));
        assert_eq!(self.moved(opcode, len), PIECE as usize);
    }

    /// Number of bytes that have come to their place.
    fn moved(&self, opcode: Opcode, len: u32) -> usize {
        let to = usize::from(opcode == Opcode::RdmaWrite);
        self.w.read(to, AT, len as usize).iter().filter(|b| **b != 0).count()
    }
}

const BOTH: [Opcode; 2] = [Opcode::RdmaWrite, Opcode::RdmaRead];

#[test]
fn one_for_each_hold_of_the_lock() {
    for opcode in BOTH {
        for (len, pieces) in [(PIECE, 1), (PIECE + 1, 2), (3 * PIECE, 3), (3 * PIECE + 5, 4)] {
            let mut j = joined();
            j.begin(opcode, len);
            for piece in 1..pieces {
                assert!(j.w.nodes[0].engine.is_in_pieces() && j.w.poll(0).is_empty());
                assert_eq!(j.moved(opcode, len), (piece * PIECE) as usize);
                j.w.run_all();
            }
            assert!(!j.w.nodes[0].engine.is_in_pieces());
            let done: Vec<_> = j.w.poll(0).iter().map(|c| (c.wr_id, c.status, c.byte_len)).collect();
            assert_eq!(done, [(1, St::Success, if opcode == Opcode::RdmaRead { len } else { 0 })]);
            assert_eq!(j.w.read(0, AT, len as usize), j.w.read(1, AT, len as usize));
            assert_eq!((j.moved(opcode, len), executed(&j.w), quiet(&j.w)), (len as usize, u64::from(pieces), true));
            j.w.run_for(SECOND);
            assert!(j.w.poll(0).is_empty() && quiet(&j.w));
        }
    }
}

/// Order and fence: a request behind a long one begins when the last piece of the long one has been executed.
#[test]
fn nothing_overtakes_a_piece() {
    for flags in [SendFlags::empty(), SendFlags::FENCE] {
        let mut j = joined();
        let into = [j.w.sge(1, MESSAGE, 8)];
        j.w.recv(1, j.qb, &into, 9).unwrap();
        j.w.write(0, AT, &pattern(2 * PIECE + 100));
        j.post(Opcode::RdmaWrite, 2 * PIECE + 100, 1);
        j.post(Opcode::RdmaWrite, 100, 2);
        let (from, body) = ([j.w.sge(0, AT, 8)], SendBody::Plain);
        let data = verbs::SendData::Sges(&from);
        let flags = flags | SendFlags::SIGNALED;
        let wr =
            verbs::SendWr { wr_id: 3, opcode: Opcode::Send, flags, imm_or_rkey: 0, remote_srqn: 0, body: &body, data };
        // Each call is a hold of the lock of its own.
        assert_eq!(executed(&j.w), 2);
        j.w.post_wr(0, j.qa, &wr).unwrap();
        assert_eq!(executed(&j.w), 4, "what is left of the first, and the second, are less than a piece together");
        assert!(!quiet(&j.w) && j.w.read(1, MESSAGE, 8) == [0; 8]);
        j.w.settle();
        let done: Vec<_> = j.w.poll(0).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(done, [(1, St::Success), (2, St::Success), (3, St::Success)]);
        assert_eq!(statuses(&mut j.w, 1), [St::Success]);
    }
}

/// Two queue pairs, each with a long request, have their turns one after the other.
#[test]
fn others_have_their_turn() {
    let mut j = joined();
    let (qa, _) = j.w.pair(0, 1, QpType::Rc);
    let (body, from) = (j.w.rdma(1, 0), [j.w.sge(0, 0, 8)]);
    j.w.post(0, qa, Opcode::RdmaWrite, body, &from, 0).unwrap();
    j.w.settle();
    j.begin(Opcode::RdmaWrite, 3 * PIECE);
    let (body, from) = (j.w.rdma(1, 1 << 19), [j.w.sge(0, AT, 2 * PIECE)]);
    j.w.post(0, qa, Opcode::RdmaWrite, body, &from, 2).unwrap();
    // The queue pair that has had a piece executed comes behind the waiting one.
    assert_eq!((executed(&j.w), j.w.read(1, 1 << 19, 1)), (2, vec![0]));
    j.w.run_all();
    assert_eq!((executed(&j.w), j.w.read(1, 1 << 19, 1)), (3, vec![1]));
    j.w.poll(0);
    j.w.run_all();
    assert_eq!((j.w.poll(0)[0].wr_id, executed(&j.w)), (1, 4));
    j.w.run_all();
    assert_eq!((j.w.poll(0)[0].wr_id, executed(&j.w)), (2, 5));
}

/// A request that reaches too far is refused as a whole, as its packets would be.
#[test]
fn bounds_are_those_of_the_whole() {
    for opcode in BOTH {
        let mut j = joined();
        let len = (1 << 20) + 1;
        j.w.write(usize::from(opcode == Opcode::RdmaRead), AT, &[1; 100]);
        j.post(opcode, len, 1);
        j.w.run_for(SECOND);
        assert_eq!((statuses(&mut j.w, 0), executed(&j.w)), (vec![St::RemAccessErr], 0));
        assert_eq!(j.moved(opcode, 100), 0);
    }
}

/// Memory that the target takes back between two pieces is refused from there on, and the target hears of it.
#[test]
fn rights_are_looked_at_for_each_piece() {
    type Change = fn(&mut Joined);
    let changes: [(&str, Change); 4] = [
        ("deregistered", |j| j.w.nodes[1].engine.dereg_mr(j.mr, false).unwrap()),
        ("rights", |j| {
            j.w.nodes[1].engine.rereg_mr(j.mr, None, None, Some(Access::LOCAL_WRITE)).unwrap();
        }),
        ("bounds", |j| {
            let new = Some((BASE + AT, u64::from(PIECE) + 1, BASE + AT));
            j.w.nodes[1].engine.rereg_mr(j.mr, new, None, None).unwrap();
        }),
        ("rights of the queue pair", |j| {
            let mut attr = j.w.nodes[1].engine.query_qp(j.qb).unwrap().0;
            (attr.state, attr.access) = (QpState::Rts, Access::empty());
            j.w.modify(1, j.qb, &attr, QpAttrMask::ACCESS_FLAGS).unwrap();
        }),
    ];
    for opcode in BOTH {
        for (name, change) in &changes {
            let mut j = joined();
            j.begin(opcode, 3 * PIECE);
            change(&mut j);
            j.post(opcode, 8, 2);
            j.w.run_for(SECOND);
            let refused = if name.ends_with("pair") { St::RemInvReqErr } else { St::RemAccessErr };
            assert_eq!(statuses(&mut j.w, 0), [refused, St::WrFlushErr], "{name}");
            assert_eq!((j.moved(opcode, 3 * PIECE), executed(&j.w)), (PIECE as usize, 1), "{name}");
            assert_eq!(j.w.nodes[1].engine.qp_state(j.qb), Ok(QpState::Err), "{name}");
        }
    }
}

/// When the way ends in the middle the rest is a message of its own. What has been executed is not executed again,
/// whatever is lost.
#[test]
fn the_rest_goes_as_packets() {
    for opcode in BOTH {
        for (lose, single_copy) in [(0, false), (200, false), (0, true), (200, true)] {
            let mut j = joined();
            let len = 5 * PIECE + 3;
            j.begin(opcode, len);
            j.w.run_all();
            {
                let mut net = j.w.net.borrow_mut();
                (net.one_sided, net.lose, net.repeat) = (false, lose, lose);
                (net.single_copy, net.single_copy_above) = (single_copy, 0);
            }
            // The program has seen the pieces, and has put other data there.
            let to = usize::from(opcode == Opcode::RdmaWrite);
            j.w.write(to, AT, &[0xee; 2 * PIECE as usize]);
            let into = [j.w.sge(1, MESSAGE, 8)];
            j.w.recv(1, j.qb, &into, 9).unwrap();
            let from = [j.w.sge(0, AT, 8)];
            j.w.post(0, j.qa, Opcode::Send, SendBody::Plain, &from, 2).unwrap();
            j.w.run_for(100 * SECOND);
            let done: Vec<_> = j.w.poll(0).iter().map(|c| (c.wr_id, c.status, c.byte_len)).collect();
            let bytes = if opcode == Opcode::RdmaRead { len } else { 0 };
            assert_eq!(done, [(1, St::Success, bytes), (2, St::Success, 0)], "{opcode:?} {lose} {single_copy}");
            assert_eq!(statuses(&mut j.w, 1), [St::Success]);
            let (has, rest) = (j.w.read(to, AT, len as usize), &pattern(len)[2 * PIECE as usize..]);
            assert!(has[..2 * PIECE as usize] == [0xee; 2 * PIECE as usize] && &has[2 * PIECE as usize..] == rest);
            assert_eq!(executed(&j.w), 2);
            // And the sequence goes on.
            j.w.net.borrow_mut().lose = 0;
            j.w.net.borrow_mut().one_sided = true;
            j.post(opcode, 100, 3);
            j.w.run_for(SECOND);
            assert_eq!((statuses(&mut j.w, 0), executed(&j.w)), (vec![St::Success], 3));
        }
    }
}

/// The program takes back its own memory in the middle.
#[test]
fn local_memory_is_looked_at_for_each_piece() {
    for opcode in BOTH {
        let mut j = joined();
        let n = &mut j.w.nodes[0];
        let (mr, lkey, _) = n.engine.reg_mr(n.pd, BASE + AT, 1 << 20, BASE + AT, ALL).unwrap();
        let (body, mut sges) = (SendBody::Rdma { remote_addr: BASE + AT, rkey: j.key }, [j.w.sge(0, AT, 3 * PIECE)]);
        sges[0].lkey = lkey;
        j.w.post(0, j.qa, opcode, body, &sges, 1).unwrap();
        assert_eq!(executed(&j.w), 1);
        j.w.nodes[0].engine.dereg_mr(mr, false).unwrap();
        j.w.run_for(SECOND);
        assert_eq!((statuses(&mut j.w, 0), executed(&j.w)), (vec![St::LocProtErr], 1));
    }
}

/// The queue pair leaves its connection in the middle.
#[test]
fn nothing_goes_on_without_its_queue_pair() {
    for opcode in BOTH {
        for end in ["error", "reset", "destroyed"] {
            let mut j = joined();
            j.begin(opcode, 3 * PIECE);
            let to = |state| QpAttr { state, ..Default::default() };
            match end {
                "error" => j.w.modify(0, j.qa, &to(QpState::Err), QpAttrMask::STATE).unwrap(),
                "reset" => j.w.modify(0, j.qa, &to(QpState::Reset), QpAttrMask::STATE).unwrap(),
                _ => j.w.nodes[0].engine.destroy_qp(j.qa).unwrap(),
            }
            j.w.run_for(SECOND);
            let flushed = if end == "error" { vec![St::WrFlushErr] } else { vec![] };
            assert_eq!((statuses(&mut j.w, 0), executed(&j.w), quiet(&j.w)), (flushed, 1, true), "{end}");
            assert_eq!(j.moved(opcode, 3 * PIECE), PIECE as usize, "{end}");
        }
    }
}

/// In SQD a request that has begun goes on, and then the queue has drained (IBTA vol. 1, 10.3.1.5).
#[test]
fn a_send_queue_drains_behind_the_last_piece() {
    let mut j = joined();
    j.begin(Opcode::RdmaWrite, 3 * PIECE);
    j.post(Opcode::RdmaWrite, 8, 2);
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..Default::default() };
    j.w.modify(0, j.qa, &attr, QpAttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    j.w.settle();
    let drained = |n: &crate::Notice| matches!(n, crate::Notice::Async { kind: verbs::EventKind::SqDrained, .. });
    assert_eq!(j.w.nodes[0].notices.iter().filter(|n| drained(n)).count(), 1);
    assert_eq!((statuses(&mut j.w, 0), executed(&j.w)), (vec![St::Success], 3));
}

/// The peer dies: nothing more comes of it than of any request.
#[test]
fn a_peer_that_dies_between_two() {
    for opcode in BOTH {
        for noticed in [false, true] {
            let mut j = joined();
            j.begin(opcode, 3 * PIECE);
            {
                let mut net = j.w.net.borrow_mut();
                (net.one_sided, net.lose) = (false, 1000);
                net.dead.push(1);
            }
            if noticed {
                j.w.net.borrow_mut().lonely.push(0);
                let link = j.w.nodes[0].engine.env().link(1);
                j.w.nodes[0].engine.link_down(link, None);
            }
            j.post(opcode, 8, 2);
            j.w.run_for(100 * SECOND);
            assert_eq!(statuses(&mut j.w, 0), [St::RetryExcErr, St::WrFlushErr], "{opcode:?} {noticed}");
            assert_eq!(executed(&j.w), 1);
        }
    }
}

/// While a long request waits for its turn, the responses that the queue pair owes its peer go out.
#[test]
fn answers_do_not_wait() {
    let mut j = joined();
    j.begin(Opcode::RdmaWrite, 8 * PIECE);
    let (body, from) = (j.w.rdma(0, 0), [j.w.sge(1, 0, 8)]);
    let now = j.w.now;
    let wr = verbs::SendWr {
        wr_id: 7,
        opcode: Opcode::RdmaWriteWithImm,
        flags: SendFlags::SIGNALED,
        imm_or_rkey: 1,
        remote_srqn: 0,
        body: &body,
        data: verbs::SendData::Sges(&from),
    };
    let into = [j.w.sge(0, MESSAGE, 8)];
    j.w.recv(0, j.qa, &into, 6).unwrap();
    j.w.nodes[1].engine.post_send(j.qb, &wr, now).unwrap();
    j.w.run_all();
    assert_eq!(j.w.deliver(1, 0, 1), 1);
    j.w.run_all();
    assert_eq!((j.w.deliver(0, 1, 1), statuses(&mut j.w, 1)), (1, vec![St::Success]));
    assert!(j.w.nodes[0].engine.is_in_pieces());
}
