//! A peer that is gone: the request is repeated, and then fails (IBTA vol. 1, 9.7.6.1.3, 9.9.2.1.3).

use std::time::{Duration, Instant};

use conformance::{Fixture, Joined, Remote, Wire};
use rdma::{Data, Gid, Qp, QpState, QpType, RecvWr, SendOp, SendWr, Status};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::pair::{End, region};
use crate::{APART, Ends, NEAR, with_peer};

/// How the peer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum How {
    Destroyed,
    Reset,
    Error,
    Killed,
}

#[derive(Serialize, Deserialize)]
struct Place {
    qpn: u32,
    gid: [u8; 16],
    addr: u64,
    rkey: u32,
}

/// The timeout of 4.096 us * 2^12 is 17 ms; it passes twice.
const JOINED: fn() -> Joined =
    || Joined { timeout: 12, retries: 1, rnr_retries: 7, dest_reads: 1, ..Joined::default() };
const LEN: usize = 200_000;

/// The peer.
pub fn remote(mut wire: Wire) {
    let fixture = Fixture::open();
    let mr = region(&fixture, LEN);
    while let Some(how) = wire.hear::<Option<How>>() {
        let end = End::new(&fixture, QpType::Rc, None);
        let place = Place { qpn: end.qp.number(), gid: fixture.gid.0, addr: mr.addr(), rkey: mr.rkey() };
        let peer: Place = wire.exchange(&place);
        JOINED().up(&end.qp, QpType::Rc, peer.qpn, Gid(peer.gid));
        for i in 0..4 {
            end.qp.post_recv(&RecvWr { wr_id: i, sges: &[mr.sge(0, LEN)] }).expect("ibv_post_recv");
        }
        match how {
            How::Destroyed => drop(end.qp),
            How::Reset => end.qp.set_state(QpState::Reset).expect("to RESET"),
            How::Error => end.qp.set_state(QpState::Err).expect("to ERR"),
            How::Killed => {}
        }
        wire.tell(&());
        let () = wire.hear();
    }
}

fn connected(fixture: &Fixture, wire: &mut Wire, how: How, joined: &Joined) -> (End, Place) {
    let end = End::new(fixture, QpType::Rc, None);
    wire.tell(&Some(how));
    let place: Place = wire.exchange(&Place { qpn: end.qp.number(), gid: fixture.gid.0, addr: 0, rkey: 0 });
    joined.up(&end.qp, QpType::Rc, place.qpn, Gid(place.gid));
    let () = wire.hear();
    (end, place)
}

fn post_some(qp: &Qp, place: &Place, list: &[rdma::Sge]) {
    let Place { addr, rkey, .. } = *place;
    let ops = [SendOp::Send, SendOp::Write { addr, rkey }, SendOp::Read { addr, rkey }];
    let wrs: Vec<SendWr<'_>> = (1..).zip(ops).map(|(id, op)| SendWr::new(id, op, Data::Sges(list))).collect();
    qp.post_sends(&wrs).expect("ibv_post_send");
}

/// Check that requests to a peer that is gone fail.
fn fails(mr: &rdma::Mr, end: &End, place: &Place, len: usize, what: &str) {
    end.recv(200, &[]);
    let start = Instant::now();
    post_some(&end.qp, place, &[mr.sge(0, len)]);
    let flushed = Status::FLUSHED;
    let wanted = [(1, Status::RETRIES), (2, flushed), (3, flushed), (200, flushed)];
    assert_eq!(end.completions(4), wanted, "{what}");
    assert_eq!(end.state(), QpState::Err);
    let took = start.elapsed();
    // Both timeouts have passed.
    assert!(took > Duration::from_micros(2 * (4096 << 12) / 1000), "{what}: given up after {took:?}");
    assert!(took < Duration::from_secs(15), "{what}: given up only after {took:?}");
}

#[test]
fn lost_peers() {
    let fixture = Fixture::open();
    let mr = region(&fixture, LEN);
    for (ends, len) in [(NEAR, 64), (NEAR, LEN), (APART, LEN), (Ends::Threads, 64), (Ends::Threads, LEN)] {
        with_peer(ends, "lost", |wire| {
            for how in [How::Destroyed, How::Reset, How::Error] {
                let (end, place) = connected(&fixture, wire, how, &JOINED());
                fails(&mr, &end, &place, len, &format!("{how:?}, {len} bytes, {ends:?}"));
                wire.tell(&());
            }
            wire.tell(&None::<How>);
        });
    }
}

#[test]
fn killed_peers() {
    let fixture = Fixture::open();
    let mr = region(&fixture, LEN);
    for (single_copy, len) in [("1", 64), ("1", LEN), ("0", LEN)] {
        let mut remote = Remote::start("remote_side", "lost", &[("SOFTRNIC_SINGLE_COPY", single_copy)]);
        let (end, place) = connected(&fixture, &mut remote.wire, How::Killed, &JOINED());
        remote.kill();
        fails(&mr, &end, &place, len, &format!("killed, {len} bytes, single copy {single_copy}"));
    }
}

/// More READs than `max_dest_rd_atomic` (9.7.4.1.7). They arrive together because the target is stopped meanwhile.
#[test]
fn too_many_reads() {
    let fixture = Fixture::open();
    let mr = region(&fixture, LEN);
    for (single_copy, len) in [("1", 64), ("1", LEN), ("0", LEN)] {
        let mut remote = Remote::start("remote_side", "lost", &[("SOFTRNIC_SINGLE_COPY", single_copy)]);
        // No timeout may pass while the target is stopped.
        let (end, place) = connected(&fixture, &mut remote.wire, How::Killed, &Joined::default());
        remote.signal(Signal::STOP);
        let list = [mr.sge(0, len)];
        let Place { addr, rkey, .. } = place;
        let wrs: Vec<SendWr<'_>> =
            (1..=4).map(|id| SendWr::new(id, SendOp::Read { addr, rkey }, Data::Sges(&list))).collect();
        end.qp.post_sends(&wrs).expect("ibv_post_send");
        remote.signal(Signal::CONT);
        let got = end.completions(4);
        let refused = got.iter().position(|(_, status)| *status != Status::SUCCESS);
        // The first is within the limit, and its data come before the refusal of another (9.7.5.1).
        assert_eq!(got[0], (1, Status::SUCCESS), "single copy {single_copy}, {len} bytes: {got:?}");
        let refused = refused.unwrap_or_else(|| panic!("single copy {single_copy}, {len} bytes: {got:?}"));
        assert_eq!(got[refused].1, Status::REMOTE_INVALID_REQUEST, "single copy {single_copy}, {len} bytes: {got:?}");
        assert!(got[refused + 1..].iter().all(|(_, status)| *status == Status::FLUSHED), "{got:?}");
    }
}
