//! Tests of specifications and of when they strike. Faults of packets are tested in `path_tests.rs`, and with programs
//! in the suite `faults`.

use verbs::Errno;

use super::calls::{CallFaults, Failure};
use super::rule::Armed;
use super::spec::{Fault, Key, Op, Pattern, Spec};

fn spec(text: &str) -> Spec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The numbers of those of `calls` calls that are struck.
fn hits(text: &str, seed: u64, looks: u64) -> Vec<u64> {
    let armed = Armed::new(spec(text).rules.remove(0), 0);
    (0..looks).filter_map(|_| armed.strikes(seed, 0)).collect()
}

#[test]
fn what_is_said_is_understood() {
    let said = spec("drop:n=100; delay:t=1.5ms,p=0.1,op=read-response ;reorder:by=3,every=7;seed=0x2a;");
    assert_eq!(said.seed, Some(42));
    assert_eq!(said.rules.len(), 3);
    assert_eq!((&said.rules[0].fault, said.rules[0].when.n), (&Fault::Drop, Some(100)));
    assert_eq!((&said.rules[1].fault, said.rules[1].when.p), (&Fault::Delay(1_500_000), Some(0.1)));
    assert_eq!(said.rules[1].only.op, Some(Op::ReadResponse));
    assert_eq!(said.rules[2].fault, Fault::Reorder(3, 1_000_000));
    let said = spec("errno:call=ibv_create_*,n=2,errno=ENOSPC;errno:call=ibv_reg_mr,errno=12,count=1");
    assert_eq!(said.rules[0].fault, Fault::Errno(Pattern("ibv_create_*".into()), Errno::ENOSPC));
    assert_eq!(said.rules[1].fault, Fault::Errno(Pattern("ibv_reg_mr".into()), Errno::ENOMEM));
    assert_eq!(spec("port-down:after=1s,for=250us").rules[0].lasts, Some(250_000));
    assert!(spec("drop:n=1,side=rx").rules[0].only.received);
}

#[test]
fn every_fault_can_be_asked_for_by_its_name() {
    for about in super::spec::FAULTS {
        let has = |key| about.keys.contains(&key);
        let call = if has(Key::Call) { ",call=ibv_reg_mr,errno=EIO" } else { "" };
        let t = if has(Key::T) { ",t=1ms" } else { "" };
        let rule = spec(&format!("{}:n=1{call}{t}", about.name)).rules.remove(0);
        assert_eq!(rule.fault.name(), about.name);
    }
}

#[test]
fn mistakes_are_told_with_their_place() {
    for (text, at, says) in [
        ("", 0, "no fault"),
        ("seed=3", 6, "no fault"),
        ("drop:n=1;dorp:n=2", 9, "unknown fault 'dorp'; there are drop,"),
        ("drop:n=1;seed=many", 14, "the seed is a number"),
        ("drop", 0, "when? drop needs one of n, every, p, after, count"),
        ("drop:n=0", 7, "n is at least 1"),
        ("drop:n=-1", 7, "n is a number"),
        ("drop:n=1,n=2", 9, "n twice"),
        ("drop:n=1,p=0.5", 0, "exclude each other"),
        ("drop:p=1.5", 7, "a probability from 0 to 1"),
        ("drop:p=nan", 7, "a probability from 0 to 1"),
        ("drop:n=1,op=sned", 12, "unknown op 'sned'; there are any,"),
        ("drop:n=1,side=up", 14, "side is tx"),
        ("drop:n=1,t=1ms", 9, "drop has no 't'; it has n, every, p, after, count, op, side, qp"),
        ("drop:n", 5, "'n' is no key=value"),
        ("drop:n=1,", 9, "'' is no key=value"),
        ("drop:n=1,qp=0x1000000", 12, "24 bits"),
        ("delay:n=1", 0, "delay needs t"),
        ("delay:n=1,t=5", 12, "'5' is no time"),
        ("delay:n=1,t=5h", 12, "'5h' is no time"),
        ("delay:n=1,t=1.2.3s", 12, "is no time"),
        ("delay:n=1,t=9999999999s", 12, "is no time"),
        ("reorder:n=1,side=rx", 12, "reorder has no 'side'"),
        ("errno:n=1,errno=EIO", 0, "errno needs call"),
        ("errno:n=1,call=ibv_reg_mr", 0, "errno needs errno"),
        ("errno:call=ibv_reg_rm,errno=EIO,n=1", 11, "no function 'ibv_reg_rm' that could fail"),
        ("errno:call=ibv_reg_mr,errno=EFOO,n=1", 28, "unknown errno 'EFOO'"),
        ("errno:call=ibv_reg_mr,errno=0,n=1", 28, "unknown errno '0'"),
        ("drop:n=1;\u{e9}:n=1", 9, "unknown fault"),
    ] {
        let error = text.parse::<Spec>().expect_err(text);
        assert_eq!(error.at, at, "{text}: {error}");
        assert!(error.message.contains(says), "{text}: {error}");
    }
}

#[test]
fn rules_strike_when_they_say() {
    assert_eq!(hits("drop:n=3", 1, 10), [3]);
    assert_eq!(hits("drop:n=3,count=4", 1, 10), [3, 4, 5, 6]);
    assert_eq!(hits("drop:every=4", 1, 12), [4, 8, 12]);
    assert_eq!(hits("drop:every=4,count=2", 1, 12), [4, 8]);
    assert_eq!(hits("drop:count=2", 1, 10), [1, 2]);
    assert_eq!(hits("drop:p=0", 1, 1000), [0u64; 0]);
    assert_eq!(hits("drop:p=1", 1, 1000).len(), 1000);
    assert_eq!(hits("drop:p=1,count=5", 1, 1000).len(), 5);
    assert_eq!(hits("slow:t=1us", 1, 50).len(), 50);
    let some = hits("drop:p=0.1", 42, 10_000).len();
    assert!((900..1100).contains(&some), "{some}");
}

#[test]
fn the_seed_decides() {
    let once = hits("drop:p=0.01", 42, 10_000);
    assert_eq!(once, hits("drop:p=0.01", 42, 10_000));
    assert_ne!(once, hits("drop:p=0.01", 43, 10_000));
    // Two rules that are alike have chances of their own.
    let rules = spec("drop:p=0.01;drop:p=0.01").rules;
    let second = Armed::new(rules[1].clone(), 1);
    let second: Vec<u64> = (0..10_000).filter_map(|_| second.strikes(42, 0)).collect();
    assert_ne!(once, second);
}

#[test]
fn nothing_is_counted_before_its_time() {
    let armed = Armed::new(spec("drop:after=1ms,n=2").rules.remove(0), 0);
    assert_eq!(armed.strikes(1, 0), None);
    assert_eq!(armed.strikes(1, 999_999), None);
    assert_eq!(armed.strikes(1, 1_000_000), None);
    assert_eq!(armed.strikes(1, 1_000_000), Some(2));
    let armed = Armed::new(spec("drop:after=1ms").rules.remove(0), 0);
    assert_eq!((armed.strikes(1, 5), armed.strikes(1, 2_000_000), armed.strikes(1, 2_000_000)), (None, Some(1), None));
}

#[test]
fn incidents_come_by_time_alone() {
    let armed = Armed::new(spec("qp-error:after=1s").rules.remove(0), 0);
    assert_eq!(armed.strikes(1, 2_000_000_000), None);
    assert_eq!(armed.due(), Some(1_000_000_000));
    armed.came();
    assert_eq!(armed.due(), None);
    assert_eq!(Armed::new(spec("qp-error:after=1s,n=3").rules.remove(0), 0).due(), None);
    assert_eq!(Armed::new(spec("drop:after=1s").rules.remove(0), 0).due(), None);
}

#[test]
fn calls_fail_by_name_and_count() {
    let said = spec("errno:call=ibv_reg_mr,n=2,errno=ENOMEM;errno:call=ibv_create_*,n=3,errno=ENOSPC");
    let faults = CallFaults::new(&said, 1);
    assert!(faults.watches("ibv_reg_mr") && faults.watches("ibv_create_qp_ex"));
    assert!(!faults.watches("ibv_post_send") && !faults.watches("rdma_create_qp"));
    // verbs.h calls iova2 where the program wrote ibv_reg_mr.
    assert_eq!(faults.call("ibv_reg_mr_iova2", 0), None);
    assert_eq!(faults.call("ibv_reg_mr", 0), Some(Failure::Struck(2, Errno::ENOMEM)));
    assert_eq!(faults.call("ibv_reg_mr", 0), None);
    let told = std::cell::RefCell::new(Vec::new());
    faults.sum_up(|line| told.borrow_mut().push(line.to_owned()));
    assert_eq!(
        told.take(),
        ["fault errno:call=ibv_create_*,n=3,errno=ENOSPC has not happened; calls that it looks at: 0"]
    );
    assert_eq!(faults.call("ibv_create_cq", 0), None);
    assert_eq!(faults.call("ibv_create_qp", 0), None);
    assert_eq!(faults.call("ibv_create_cq", 0), Some(Failure::Struck(3, Errno::ENOSPC)));
    // A forked child counts for itself.
    faults.begin_anew();
    assert_eq!(faults.call("ibv_reg_mr", 0), None);
    assert_eq!(faults.call("ibv_reg_mr", 0), Some(Failure::Struck(2, Errno::ENOMEM)));
}

/// Send requests are posted by ibv_post_send or ibv_wr_complete; a rule for one of them only names the second.
#[test]
fn posts_fail_however_they_are_made() {
    let faults = CallFaults::new(&spec("errno:call=ibv_post_send,n=2,errno=ENOMEM"), 1);
    assert!(faults.watches("ibv_post_send") && faults.watches("ibv_wr_complete"));
    assert_eq!(faults.call("ibv_post_send", 0), None);
    assert_eq!(faults.call("ibv_wr_complete", 0), Some(Failure::Struck(2, Errno::ENOMEM)));
    assert!(!CallFaults::new(&spec("errno:call=ibv_wr_complete,n=2,errno=EIO"), 1).watches("ibv_post_send"));
}

#[test]
fn a_broken_device_still_gives_back() {
    let faults = CallFaults::new(&spec("device-fatal:after=1s"), 1);
    assert_eq!(faults.call("ibv_reg_mr", 0), None);
    faults.break_device();
    assert!(faults.is_broken());
    for (name, _) in super::calls::CALLS {
        let still =
            ["destroy", "dealloc", "dereg", "free", "close", "detach", "get_", "post", "poll", "notify_cq", "wr_"];
        let verbs = ["rdma_create_qp", "rdma_create_qp_ex", "rdma_create_srq", "rdma_create_srq_ex"].contains(name);
        let serves = (name.starts_with("rdma_") && !verbs)
            || still.iter().any(|part| name.contains(part))
            || matches!(*name, "ibv_init_ah_from_wc" | "ibv_query_gid" | "ibv_query_gid_ex" | "ibv_query_gid_table");
        assert_eq!(faults.call(name, 0).is_none(), serves, "{name}");
    }
}

#[test]
fn patterns_are_open_at_their_stars() {
    let covers = |pattern: &str, name: &str| Pattern(pattern.into()).covers(name);
    assert!(covers("ibv_reg_mr", "ibv_reg_mr") && !covers("ibv_reg_mr", "ibv_reg_mr_iova"));
    assert!(covers("ibv_reg_*", "ibv_reg_mr_iova") && !covers("ibv_reg_*", "ibv_rereg_mr"));
    assert!(covers("*_mr", "ibv_rereg_mr") && !covers("*_mr", "ibv_reg_mr_ex"));
    assert!(covers("*reg*", "ibv_dereg_mr") && covers("*", "anything"));
}
