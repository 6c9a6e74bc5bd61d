//! `SOFTRNIC_LOG=error`: the failed request, and the rule that it broke. Otherwise there is no line.

use conformance::{Fixture, Joined, Remote, Wire};
use rdma::{Data, QpType, SendOp, SendWr, Sge, Status};

use crate::pair::{pair, region};

/// Break a rule on either side: an unknown key at the requester, and one at the responder.
pub fn remote(mut wire: Wire) {
    let fixture = Fixture::open();
    let mr = region(&fixture, 8);
    let mut numbers = Vec::new();
    for (id, op, lkey) in
        [(0x77, SendOp::Send, !mr.lkey()), (0x78, SendOp::Write { addr: mr.addr(), rkey: !mr.rkey() }, mr.lkey())]
    {
        let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
        let sge = Sge::raw(mr.addr(), 8, lkey);
        a.qp.post_send(&SendWr::new(id, op, Data::Sges(&[sge]))).expect("ibv_post_send");
        let wrong = if id == 0x77 { Status::LOCAL_PROTECTION } else { Status::REMOTE_ACCESS };
        assert_eq!(a.completions(1), [(id, wrong)]);
        numbers.push(a.qp.number());
    }
    wire.tell(&numbers);
}

#[test]
fn a_broken_rule_is_told_who_asks() {
    for level in ["error", "off"] {
        let mut remote = Remote::start_heard("remote_side", "log", &[("SOFTRNIC_LOG", level)]);
        let numbers: Vec<u32> = remote.wire.hear();
        assert!(remote.ended_well(), "{}", remote.errors());
        let said = remote.errors();
        let lines: Vec<&str> =
            said.lines().filter(|line| line.starts_with("softrnic[") && line.contains(": QP ")).collect();
        if level == "off" {
            assert!(lines.is_empty(), "{said}");
            continue;
        }
        for (number, request, status) in
            [(numbers[0], "wr_id 0x77", "LocProtErr"), (numbers[1], "wr_id 0x78", "RemAccessErr")]
        {
            let about = format!("QP {number:#08x} {request}: {status}: ");
            let line =
                lines.iter().find_map(|line| line.split_once(&about)).unwrap_or_else(|| panic!("{about}: {said}"));
            assert!(line.1.len() > 10, "and the rule: {said}");
        }
    }
}
