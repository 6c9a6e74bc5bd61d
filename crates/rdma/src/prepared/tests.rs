//! The requests that `ibv_post_send` would find behind the first pointer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

const LOCAL: u32 = 5;

fn sge(addr: u64) -> Sge {
    Sge::raw(addr, 16, LOCAL)
}

fn list() -> SendList {
    let (pair, one) = ([sge(0x1000), sge(0x2000)], [sge(0x3000)]);
    SendList::new(&[
        SendWr::new(10, SendOp::Write { addr: 1, rkey: 2 }, Data::Sges(&pair)),
        SendWr::new(11, SendOp::SendImm(3), Data::Inline(&[b"in", b"line"])),
        SendWr::new(12, SendOp::FetchAdd { addr: 4, rkey: 5, add: 6 }, Data::Sges(&one)),
        SendWr::new(13, SendOp::CompareSwap { addr: 7, rkey: 8, compare: 9, swap: 10 }, Data::Sges(&one)),
        SendWr::new(14, SendOp::SendInv(11), Data::Sges(&[])),
    ])
    .expect("a list")
}

/// A request as the library finds it: wr_id, address and length of each entry, inline bytes.
type Found = (u64, Vec<(u64, u32)>, Vec<u8>);

/// Follow the pointers, as the library does.
fn walk(list: &mut SendList, part: Range<usize>) -> Vec<Found> {
    let mut at = list.link(&part);
    let mut found = Vec::new();
    for _ in part {
        // SAFETY: `link` has just set the pointers, and inline bytes have an exposed address.
        unsafe {
            let raw = &*at;
            let entries = std::slice::from_raw_parts(raw.sg_list, raw.num_sge as usize);
            let (mut named, mut inline) = (Vec::new(), Vec::new());
            for entry in entries {
                if raw.send_flags & IBV_SEND_INLINE != 0 {
                    let from = std::ptr::with_exposed_provenance::<u8>(entry.addr as usize);
                    inline.extend_from_slice(std::slice::from_raw_parts(from, entry.length as usize));
                } else {
                    named.push((entry.addr, entry.length));
                }
            }
            found.push((raw.wr_id, named, inline));
            at = raw.next;
        }
    }
    assert!(at.is_null(), "the last has no next");
    found
}

#[test]
fn requests_are_linked_in_order_with_their_entries() {
    let mut list = list();
    let all = walk(&mut list, 0..5);
    assert_eq!(all[0], (10, vec![(0x1000, 16), (0x2000, 16)], vec![]));
    assert_eq!(all[1], (11, vec![], b"inline".to_vec()));
    assert_eq!(all[2], (12, vec![(0x3000, 16)], vec![]));
    assert_eq!(all[4], (14, vec![], vec![]));
}

#[test]
fn a_part_ends_where_it_was_told() {
    let mut list = list();
    let ids: Vec<u64> = walk(&mut list, 1..3).iter().map(|request| request.0).collect();
    assert_eq!(ids, [11, 12]);
    assert_eq!(walk(&mut list, 0..5).len(), 5, "the links of a part are not kept");
    assert!(walk(&mut list, 5..5).is_empty());
    assert!(catch_unwind(AssertUnwindSafe(|| list.link(&(3..6)))).is_err());
}

#[test]
fn changes_are_what_is_posted_and_the_rest_stays() {
    let mut list = list();
    let moved: Box<SendList> = Box::new(list);
    list = *moved;
    list.request(0).wr_id(20).remote(21, 22).sges(&[sge(0x4000)]).flags(SendFlags::FENCE);
    list.request(1).inline(b"out").imm(23);
    list.request(2).remote(24, 25).add(26).sge(0, sge(0x5000));
    list.request(3).compare_swap(27, 28);
    list.request(4).invalidate(29);
    let all = walk(&mut list, 0..5);
    assert_eq!(all[0], (20, vec![(0x4000, 16)], vec![]));
    assert_eq!(all[1], (11, vec![], b"out".to_vec()));
    assert_eq!(all[2], (12, vec![(0x5000, 16)], vec![]));
    let raws = &list.raws;
    // SAFETY: the members of the unions that the operations use.
    unsafe {
        assert_eq!((raws[0].wr.rdma.remote_addr, raws[0].wr.rdma.rkey), (21, 22));
        assert_eq!(raws[0].send_flags, SendFlags::FENCE.bits());
        assert_eq!(raws[1].anon_1.imm_data, 23u32.to_be());
        assert_eq!(raws[1].send_flags & IBV_SEND_INLINE, IBV_SEND_INLINE);
        assert_eq!((raws[2].wr.atomic.remote_addr, raws[2].wr.atomic.rkey), (24, 25));
        assert_eq!(raws[2].wr.atomic.compare_add, 26);
        assert_eq!((raws[3].wr.atomic.remote_addr, raws[3].wr.atomic.rkey), (7, 8));
        assert_eq!((raws[3].wr.atomic.compare_add, raws[3].wr.atomic.swap), (27, 28));
        assert_eq!(raws[4].anon_1.invalidate_rkey, 29);
    }
    list.request(0).sges(&[sge(1), sge(2)]);
    list.request(1).inline(b"six by").flags(SendFlags::SIGNALED);
    let all = walk(&mut list, 0..2);
    assert_eq!((all[0].1.len(), &*all[1].2), (2, &b"six by"[..]), "up to what it was built with");
}

#[test]
fn changes_that_do_not_fit_panic() {
    type Change = fn(&mut SendList);
    let changes: [Change; 12] = [
        |list| _ = list.request(5),
        |list| _ = list.request(0).imm(1),
        |list| _ = list.request(0).add(1),
        |list| _ = list.request(0).compare_swap(1, 1),
        |list| _ = list.request(0).invalidate(1),
        |list| _ = list.request(1).remote(1, 1),
        |list| _ = list.request(1).sge(0, sge(1)),
        |list| _ = list.request(1).inline(b"sevenbytes"),
        |list| _ = list.request(0).inline(b""),
        |list| _ = list.request(0).sge(2, sge(1)),
        |list| _ = list.request(0).sges(&[sge(1); 3]),
        |list| _ = list.request(2).compare_swap(1, 1),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut list = list();
        assert!(catch_unwind(AssertUnwindSafe(|| change(&mut list))).is_err(), "change {number}");
    }
}

#[test]
fn receives_are_linked_and_changed() {
    let (pair, one) = ([sge(0x1000), sge(0x2000)], [sge(0x3000)]);
    let mut list = RecvList::new(&[RecvWr { wr_id: 1, sges: &pair }, RecvWr { wr_id: 2, sges: &one }]);
    list.request(0).wr_id(3).sges(&[sge(0x4000)]);
    list.request(1).sge(0, sge(0x5000));
    let first = list.link(&(0..2));
    // SAFETY: `link` has just set the pointers.
    unsafe {
        assert_eq!(((*first).wr_id, (*first).num_sge, (*(*first).sg_list).addr), (3, 1, 0x4000));
        let second = (*first).next;
        assert_eq!(((*second).wr_id, (*second).num_sge, (*(*second).sg_list).addr), (2, 1, 0x5000));
        assert!((*second).next.is_null());
    }
    assert!(catch_unwind(AssertUnwindSafe(|| _ = list.request(1).sge(1, sge(1)))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| _ = list.request(0).sges(&[sge(1); 3]))).is_err());
}

#[test]
fn what_a_list_cannot_hold_is_refused() {
    let flush = SendOp::Flush { addr: 0, rkey: 0, len: 0, placement: 1, level: 0 };
    let error = SendList::new(&[SendWr::new(1, flush, Data::Sges(&[]))]).map(drop).expect_err("a FLUSH");
    assert_eq!(error.errno, verbs::Errno::EINVAL);
}

#[test]
fn the_refused_request_is_found_by_its_address() {
    let list = list();
    assert_eq!(refused(&list.raws, &(1..4), &raw const list.raws[3]), 3);
    assert_eq!(refused(&list.raws, &(1..4), std::ptr::null()), 1);
}
