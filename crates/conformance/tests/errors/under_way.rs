//! Regions that are deregistered while requests use them (IBTA vol. 1, 10.6.3.3; `ibv_dereg_mr(3)`): after the call has
//! returned, nothing is read or written there any more.

use std::time::Duration;

use conformance::{Fixture, Joined, Wire, collect, until};
use rdma::sys::IBV_EVENT_QP_ACCESS_ERR;
use rdma::{Data, Gid, Mr, QpState, QpType, SendOp, SendWr, Status};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::pair::{End, events, region};
use crate::side::{ALL, joined};
use crate::{APART, Ends, LARGE, NEAR, SMALL, with_peer};

/// A length beyond that of a window.
const LEN: usize = 8 << 20;

/// The order to the peer.
#[derive(Serialize, Deserialize)]
struct Order {
    qpn: u32,
    gid: [u8; 16],
}

#[derive(Serialize, Deserialize)]
struct Place {
    qpn: u32,
    addr: u64,
    rkey: u32,
}

/// The peer's action on the memory that it granted.
#[derive(Serialize, Deserialize, PartialEq)]
enum Then {
    /// Deregister it when the first byte has been written.
    Deregister,
    /// Report whether any byte was written.
    Look,
}

/// The peer.
pub fn remote(mut wire: Wire) {
    let fixture = Fixture::open();
    while let Some(order) = wire.hear::<Option<Order>>() {
        let memory = region(&fixture, LEN);
        let granted = fixture.pd.reg_mr_again(&memory, ALL).expect("ibv_reg_mr");
        let end = End::new(&fixture, QpType::Rc, None);
        end.qp.init(QpType::Rc, conformance::PORT, ALL, 0).expect("RESET to INIT");
        end.recv(100, &[]);
        joined().rtr(&end.qp, QpType::Rc, order.qpn, Gid(order.gid)).expect("INIT to RTR");
        joined().rts(&end.qp, QpType::Rc, order.qpn, Gid(order.gid)).expect("RTR to RTS");
        wire.tell(&Place { qpn: end.qp.number(), addr: granted.addr(), rkey: granted.rkey() });
        if wire.hear::<Then>() == Then::Look {
            assert_eq!(end.state(), QpState::Rts);
            wire.tell(&is_clear(&memory));
            continue;
        }
        until("the first byte", || (memory.load(0) != 0).then_some(()));
        drop(granted);
        memory.write(0, &vec![0; LEN]);
        assert_eq!(events(&fixture, 1), [IBV_EVENT_QP_ACCESS_ERR]);
        assert_eq!(end.completions(1), [(100, Status::FLUSHED)]);
        assert_eq!(end.state(), QpState::Err);
        std::thread::sleep(Duration::from_millis(20));
        wire.tell(&is_clear(&memory));
    }
}

fn is_clear(mr: &Mr) -> bool {
    let mut bytes = vec![0; LEN];
    mr.read(0, &mut bytes);
    bytes == vec![0; LEN]
}

fn connected(fixture: &Fixture, wire: &mut Wire, joined: &Joined) -> (End, Place) {
    let end = End::new(fixture, QpType::Rc, None);
    let place: Place = wire.exchange(&Some(Order { qpn: end.qp.number(), gid: fixture.gid.0 }));
    joined.up(&end.qp, QpType::Rc, place.qpn, fixture.gid);
    (end, place)
}

/// Write, and read, until the target refuses.
fn use_up(end: &End, place: &Place, mr: &Mr, len: usize, read: bool) {
    let Place { addr, rkey, .. } = *place;
    let list = [mr.sge(0, len)];
    let (mut posted, mut done) = (0, 0);
    let room = end.qp.cap().max_send_wr as u64;
    let refused = loop {
        while posted < done + room {
            let other = read && posted > 0;
            let op = if other { SendOp::Read { addr, rkey } } else { SendOp::Write { addr, rkey } };
            // A request that was executed in time was not refused.
            if end.qp.post_send(&SendWr::new(posted, op, Data::Sges(&list))).is_err() {
                break;
            }
            posted += 1;
        }
        let wc = collect(&end.cq, 1)[0];
        assert_eq!(wc.wr_id(), done);
        done += 1;
        if wc.status() != Status::SUCCESS {
            break wc.status();
        }
    };
    assert_eq!(refused, Status::REMOTE_ACCESS);
    for (id, status) in end.completions((posted - done) as usize) {
        assert_eq!((id, status), (done, Status::FLUSHED));
        done += 1;
    }
    assert_eq!(end.state(), QpState::Err);
}

#[test]
fn the_target_deregisters() {
    for (ends, len) in [(NEAR, SMALL), (NEAR, LEN), (APART, LEN), (Ends::Threads, SMALL), (Ends::Threads, LARGE)] {
        for read in [false, true] {
            with_peer(ends, "under way", |wire| {
                let fixture = Fixture::open();
                let mr = region(&fixture, len);
                mr.write(0, &vec![0xa5; len]);
                let (end, place) = connected(&fixture, wire, &joined());
                wire.tell(&Then::Deregister);
                use_up(&end, &place, &mr, len, read);
                assert!(wire.hear::<bool>(), "{len} bytes: written after the deregistration");
                wire.tell(&None::<Order>);
            });
        }
    }
}

/// The target is stopped, so that the request is under way for as long as it takes.
#[test]
fn the_initiator_deregisters() {
    for single_copy in ["1", "0"] {
        let mut remote =
            conformance::Remote::start("remote_side", "under way", &[("SOFTRNIC_SINGLE_COPY", single_copy)]);
        let fixture = Fixture::open();
        let memory = region(&fixture, LEN);
        memory.write(LEN - 1, &[0xa5]);
        let registered = fixture.pd.reg_mr_again(&memory, ALL).expect("ibv_reg_mr");
        // There is no timeout: nothing is sent a second time.
        let joined = Joined { timeout: 0, ..joined() };
        let (end, Place { addr, rkey, .. }) = connected(&fixture, &mut remote.wire, &joined);
        end.recv(200, &[]);
        remote.signal(Signal::STOP);
        let list = [registered.sge(0, LEN)];
        let wr = |id| SendWr::new(id, SendOp::Write { addr, rkey }, Data::Sges(&list));
        end.qp.post_sends(&[wr(1), wr(2)]).expect("ibv_post_send");
        drop(registered);
        remote.signal(Signal::CONT);
        let wanted = [(1, Status::LOCAL_PROTECTION), (2, Status::FLUSHED), (200, Status::FLUSHED)];
        assert_eq!(end.completions(3), wanted, "single copy {single_copy}");
        assert_eq!(end.state(), QpState::Err);
        // The last byte, the only one that is not 0, did not arrive.
        assert!(remote.wire.exchange::<_, bool>(&Then::Look), "single copy {single_copy}");
        remote.wire.tell(&None::<Order>);
        assert!(remote.ended_well());
    }
}

/// The other peer: it reads, and stops itself while it waits for the data. Then it reports the outcome of the requests.
pub fn reader(mut wire: Wire) {
    let fixture = Fixture::open();
    let mr = region(&fixture, LEN);
    let (end, Place { addr, rkey, .. }) = connected(&fixture, &mut wire, &joined());
    let list = [mr.sge(0, LEN)];
    let wrs: Vec<SendWr<'_>> =
        (0..READS).map(|id| SendWr::new(id, SendOp::Read { addr, rkey }, Data::Sges(&list))).collect();
    end.qp.post_sends(&wrs).expect("ibv_post_send");
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP).expect("a signal to itself");
    let statuses: Vec<u32> = end.completions(READS as usize).iter().map(|(_, status)| status.0).collect();
    wire.tell(&(statuses, end.state() as u32));
}

const READS: u64 = 8;

/// The data are on their way through the window, which the initiator does not empty.
#[test]
fn the_target_deregisters_what_is_being_read() {
    let mut remote = conformance::Remote::start("remote_side", "reader", &[("SOFTRNIC_SINGLE_COPY", "0")]);
    let fixture = Fixture::open();
    let memory = region(&fixture, LEN);
    let granted = fixture.pd.reg_mr_again(&memory, ALL).expect("ibv_reg_mr");
    let order: Option<Order> = remote.wire.hear();
    let Order { qpn, gid } = order.expect("a queue pair");
    let end = End::new(&fixture, QpType::Rc, None);
    joined().up(&end.qp, QpType::Rc, qpn, Gid(gid));
    remote.wire.tell(&Place { qpn: end.qp.number(), addr: granted.addr(), rkey: granted.rkey() });
    until("the other process stops", || conformance::is_stopped(remote.pid()).then_some(()));
    // The window fills.
    std::thread::sleep(Duration::from_millis(50));
    drop(granted);
    remote.signal(Signal::CONT);
    let (statuses, state): (Vec<u32>, u32) = remote.wire.hear();
    let refused = statuses.iter().position(|status| *status != Status::SUCCESS.0);
    let refused = refused.unwrap_or_else(|| panic!("all was read: {statuses:?}"));
    assert_eq!(statuses[refused], Status::REMOTE_ACCESS.0, "{statuses:?}");
    assert!(statuses[refused + 1..].iter().all(|status| *status == Status::FLUSHED.0), "{statuses:?}");
    assert_eq!(state, QpState::Err as u32);
    assert_eq!(events(&fixture, 1), [IBV_EVENT_QP_ACCESS_ERR]);
    assert_eq!(end.state(), QpState::Err);
    assert!(remote.ended_well());
}
