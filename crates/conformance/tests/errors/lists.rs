//! Lists of WRITEs and READs, of which one is not allowed: those in front of it are executed, those behind it are not
//! (IBTA vol. 1, 10.8.3.3), whatever executes them.

use conformance::{Fixture, Joined, Wire};
use rdma::{Data, Gid, Mr, QpState, QpType, SendOp, SendWr, Status};
use serde::{Deserialize, Serialize};

use crate::pair::{End, region};
use crate::{APART, Ends, NEAR, with_peer};

#[derive(Serialize, Deserialize)]
struct Place {
    qpn: u32,
    gid: [u8; 16],
    addr: u64,
    rkey: u32,
}

/// Requests of a list, and the bytes of the longest one.
const COUNT: usize = 6;
const LONGEST: usize = 64 << 10;

/// The first byte of each place.
fn firsts(mr: &Mr) -> [u8; COUNT] {
    std::array::from_fn(|at| {
        let mut byte = [0];
        mr.read(at * LONGEST, &mut byte);
        byte[0]
    })
}

fn fill(mr: &Mr, value: impl Fn(usize) -> u8) {
    (0..COUNT).for_each(|at| mr.write(at * LONGEST, &vec![value(at); LONGEST]));
}

/// The peer: a connection for each list, whose memory has 100 to 105 before, and says what it has afterwards.
pub fn remote(mut wire: Wire) {
    let fixture = Fixture::open();
    let mr = region(&fixture, COUNT * LONGEST);
    while wire.hear::<bool>() {
        let end = End::new(&fixture, QpType::Rc, None);
        fill(&mr, |at| 100 + at as u8);
        let place = Place { qpn: end.qp.number(), gid: fixture.gid.0, addr: mr.addr(), rkey: mr.rkey() };
        let peer: Place = wire.exchange(&place);
        Joined::default().up(&end.qp, QpType::Rc, peer.qpn, Gid(peer.gid));
        wire.tell(&());
        let () = wire.hear();
        wire.tell(&firsts(&mr));
    }
}

/// Post a list of requests of `len` bytes; the one at `wrong` has another key.
fn list(fixture: &Fixture, mr: &Mr, wire: &mut Wire, (reads, len, wrong): (bool, usize, Option<usize>), ends: Ends) {
    let what = format!("{ends:?}, READs {reads}, {len} bytes, wrong {wrong:?}");
    wire.tell(&true);
    let end = End::new(fixture, QpType::Rc, None);
    fill(mr, |at| 1 + at as u8);
    let place: Place = wire.exchange(&Place { qpn: end.qp.number(), gid: fixture.gid.0, addr: 0, rkey: 0 });
    Joined::default().up(&end.qp, QpType::Rc, place.qpn, Gid(place.gid));
    let () = wire.hear();
    let sges: Vec<_> = (0..COUNT).map(|at| [mr.sge(at * LONGEST, len)]).collect();
    let request = |at: usize, id: u64| {
        let addr = place.addr + (at * LONGEST) as u64;
        let rkey = if wrong == Some(at) { place.rkey ^ 1 } else { place.rkey };
        let op = if reads { SendOp::Read { addr, rkey } } else { SendOp::Write { addr, rkey } };
        SendWr::new(id, op, Data::Sges(&sges[at]))
    };
    // The first ones of a connection are sent. Then the initiator may execute them.
    if wrong != Some(0) {
        for id in [100, 101] {
            end.qp.post_send(&request(0, id)).expect("ibv_post_send");
            assert_eq!(end.completions(1), [(id, Status::SUCCESS)], "{what}");
        }
    }
    let wrs: Vec<_> = (0..COUNT).map(|at| request(at, at as u64)).collect();
    end.qp.post_sends(&wrs).expect("ibv_post_send");
    let status = |at| match wrong {
        Some(wrong) if at == wrong => Status::REMOTE_ACCESS,
        Some(wrong) if at > wrong => Status::FLUSHED,
        _ => Status::SUCCESS,
    };
    let wanted: Vec<_> = (0..COUNT).map(|at| (at as u64, status(at))).collect();
    assert_eq!(end.completions(COUNT), wanted, "{what}");
    assert_eq!(end.state(), if wrong.is_some() { QpState::Err } else { QpState::Rts }, "{what}");
    wire.tell(&());
    let theirs: [u8; COUNT] = wire.hear();
    let moved = |at| at < wrong.unwrap_or(COUNT);
    let ours = std::array::from_fn(|at| if reads && moved(at) { 100 + at as u8 } else { 1 + at as u8 });
    assert_eq!(firsts(mr), ours, "{what}");
    let there = std::array::from_fn(|at| if !reads && moved(at) { 1 + at as u8 } else { 100 + at as u8 });
    assert_eq!(theirs, there, "{what}");
}

#[test]
fn lists_end_where_one_is_not_allowed() {
    let fixture = Fixture::open();
    let mr = region(&fixture, COUNT * LONGEST);
    for ends in [NEAR, APART, Ends::Threads] {
        with_peer(ends, "lists", |wire| {
            for reads in [false, true] {
                for (len, wrong) in
                    [(LONGEST, None), (8192, None), (64, None), (LONGEST, Some(0)), (LONGEST, Some(3)), (8192, Some(5))]
                {
                    list(&fixture, &mr, wire, (reads, len, wrong), ends);
                }
            }
            wire.tell(&false);
        });
    }
}
