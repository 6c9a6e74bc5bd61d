//! Path MTUs that differ: a difference that shows on a wire in the lengths of packets shows here, whichever way the
//! data take.

use verbs::{EventKind, Opcode, QpAttr, QpId, QpState, QpType, SendBody, WcStatus as St};

use super::mock::*;
use crate::Notice;

const SECOND: u64 = 1_000_000_000;
/// `enum ibv_mtu`
const MTU_1024: u8 = 3;
const MTU_4096: u8 = 5;

/// Two connected queue pairs with these path MTUs. The first has been answered once, so that it may execute requests
/// itself.
fn pair(w: &mut World, ty: QpType, ours: u8, theirs: u8) -> (QpId, QpId) {
    let ((qa, na), (qb, nb)) = (w.qp(0, ty), w.qp(1, ty));
    w.connect(0, qa, QpAttr { path_mtu: ours, ..World::attr(nb, 500, 100) });
    w.connect(1, qb, QpAttr { path_mtu: theirs, ..World::attr(na, 100, 500) });
    let (body, list) = (w.rdma(1, 0), [w.sge(0, 0, 8)]);
    w.post(0, qa, Opcode::RdmaWrite, body, &list, 0).unwrap();
    w.settle();
    assert_eq!(w.poll(0)[0].status, St::Success);
    (qa, qb)
}

#[test]
#[cfg_attr(miri, ignore = "many worlds, and long messages")]
fn packets_of_another_length_are_refused() {
    // Through the link, by reference, executed by the initiator.
    for (single_copy, one_sided) in [(false, false), (true, false), (false, true)] {
        for (ours, theirs) in [(MTU_4096, MTU_1024), (MTU_1024, MTU_4096), (MTU_1024, MTU_1024)] {
            for len in [1024, 1025, 40_000] {
                for opcode in [Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaRead] {
                    let mut w = World::new(2, 5);
                    {
                        let mut net = w.net.borrow_mut();
                        (net.single_copy, net.single_copy_above, net.one_sided) = (single_copy, 0, one_sided);
                    }
                    let (qa, qb) = pair(&mut w, QpType::Rc, ours, theirs);
                    let (list, into) = ([w.sge(0, 0, len)], [w.sge(1, 0, len)]);
                    w.recv(1, qb, &into, 9).unwrap();
                    let body = if opcode == Opcode::Send { SendBody::Plain } else { w.rdma(1, 0) };
                    w.post(0, qa, opcode, body, &list, 1).unwrap();
                    w.run_for(SECOND);
                    let fits = ours == theirs || len <= 1024;
                    let wanted = match opcode {
                        _ if fits => St::Success,
                        Opcode::RdmaRead => St::BadRespErr,
                        _ => St::RemInvReqErr,
                    };
                    let what = format!("{ours} {theirs} {len} {opcode:?} {single_copy} {one_sided}");
                    assert_eq!(w.poll(0)[0].status, wanted, "{what}");
                    let refused = wanted == St::RemInvReqErr;
                    let error = |n: &Notice| matches!(n, Notice::Async { kind: EventKind::QpReqErr, .. });
                    assert_eq!(w.nodes[1].notices.iter().any(error), refused, "{what}");
                    assert_eq!(w.nodes[1].engine.qp_state(qb) == Ok(QpState::Err), refused, "{what}");
                    let taken = w.poll(1).iter().any(|c| c.status == St::Success);
                    assert!(!(refused && taken), "{what}: it was refused, and taken all the same");
                }
            }
        }
    }
}

/// The last packet of a long message may be a short one.
#[test]
#[cfg_attr(miri, ignore = "long messages")]
fn the_last_packet_may_have_any_length() {
    let mut w = World::new(2, 5);
    let (qa, qb) = pair(&mut w, QpType::Rc, MTU_1024, MTU_1024);
    for (id, len) in [(1, 16384 + 3), (2, 16384), (3, 0)] {
        let (list, into) = ([w.sge(0, 0, len)], [w.sge(1, 0, 20_000)]);
        w.recv(1, qb, &into, id).unwrap();
        w.post(0, qa, Opcode::Send, SendBody::Plain, &list, id).unwrap();
        w.settle();
        let got = w.poll(1);
        assert_eq!((got[0].status, got[0].byte_len), (St::Success, len));
    }
}

/// 9.8.2: on an unreliable connection such messages are dropped, and the next message is whole again.
#[test]
fn unreliable_connections_drop_them() {
    let mut w = World::new(2, 5);
    let ((qa, na), (qb, nb)) = (w.qp(0, QpType::Uc), w.qp(1, QpType::Uc));
    w.connect(0, qa, QpAttr { path_mtu: MTU_4096, ..World::attr(nb, 500, 100) });
    w.connect(1, qb, QpAttr { path_mtu: MTU_1024, ..World::attr(na, 100, 500) });
    let into = [w.sge(1, 0, 20_000)];
    w.recv(1, qb, &into, 9).unwrap();
    for len in [16_384, 512] {
        let list = [w.sge(0, 0, len)];
        w.post(0, qa, Opcode::Send, SendBody::Plain, &list, u64::from(len)).unwrap();
    }
    w.settle();
    assert_eq!(w.poll(0).len(), 2);
    let got = w.poll(1);
    assert_eq!((got.len(), got[0].byte_len, got[0].status), (1, 512, St::Success));
}
