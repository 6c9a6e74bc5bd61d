//! The friend: a process that has enough of everything, to which a process connects that has not.

use conformance::side::{self, Place, RECV, Side};
use conformance::{Fixture, Joined, Remote, Wire, collect};
use rdma::{Gid, QpType, Status};

/// The friend, seen from the test.
pub struct Friend(Remote);

impl Friend {
    pub fn start() -> Friend {
        Friend(Remote::start("remote_side", "friend", &[]))
    }

    /// Make a queue pair for the one at `place`; the result is its own place.
    pub fn meet(&mut self, place: &Place, sends: bool) -> Place {
        self.0.wire.exchange(&(*place, sends))
    }

    /// Play its part of the message; the result is the outcome of its sends.
    pub fn play(&mut self, on: bool) -> String {
        self.0.wire.exchange(&on)
    }
}

pub fn remote(mut wire: Wire) {
    let fixture = Fixture::open();
    while let Some((peer, begins)) = wire.try_hear::<(Place, bool)>() {
        let side = Side::new(&fixture);
        // The timeout of 34 ms passes twice.
        let joined = Joined { timeout: 13, retries: 1, ..Joined::default() };
        joined.up(&side.qp, QpType::Rc, peer.qpn, Gid(peer.gid));
        side::recv(&side.qp, RECV, &[side.mr.sge(side::LEN, side::LEN)]);
        wire.tell(&side::place(&fixture, &side.qp));
        let mut heard = Status::SUCCESS;
        let on = wire.hear::<bool>();
        if on {
            if !begins {
                collect(&side.cq, 1); // its message
            }
            side::send(&side.qp, 1, &[side.mr.sge(0, side::LEN)]);
            heard = collect(&side.cq, 1)[0].status();
        }
        wire.tell(&heard.to_string());
        if on && begins && heard == Status::SUCCESS {
            collect(&side.cq, 1); // the answer
        }
    }
}
