//! The victim's connections: one on which everything must stay right, and one with the attacker.

use std::cell::Cell;
use std::sync::Arc;

use conformance::{Fixture, Joined, Wire, collect, until};
use rdma::{
    Access, Cq, Data, Gid, Mr, Pd, Qp, QpAttrMask, QpCap, QpOptions, QpState, QpType, RecvWr, SendOp, SendWr, Status,
    Wc,
};
use serde::{Deserialize, Serialize};

use conformance::Random;

/// An end of a connection, as sent to the other side.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Place {
    pub qpn: u32,
    pub gid: [u8; 16],
    pub addr: u64,
    pub rkey: u32,
}

/// The greatest number of bytes of a message: more than a segment, more than a message by single copy needs.
pub const LEN: usize = 100 << 10;
const RECV: u64 = 2;

/// A queue pair with a region: the first half to send from, the second to receive into.
pub struct End {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub mr: Arc<Mr>,
}

impl End {
    pub fn new(fixture: &Fixture, pd: &Arc<Pd>) -> End {
        let cq = fixture.context.create_cq(256, None, 0).expect("ibv_create_cq");
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let options = QpOptions {
            qp_type: QpType::Rc,
            send_cq: Some(&cq),
            recv_cq: Some(&cq),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: true,
        };
        let qp = pd.create_qp(&options).expect("ibv_create_qp");
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        End { qp, cq, mr: pd.reg_mr(2 * LEN, rights).expect("ibv_reg_mr") }
    }

    pub fn place(&self, fixture: &Fixture) -> Place {
        Place { qpn: self.qp.number(), gid: fixture.gid.0, addr: self.mr.addr(), rkey: self.mr.rkey() }
    }

    pub fn up(&self, peer: &Place, joined: Joined) {
        joined.up(&self.qp, QpType::Rc, peer.qpn, Gid(peer.gid));
    }

    pub fn recv(&self) -> rdma::Result<()> {
        self.qp.post_recv(&RecvWr { wr_id: RECV, sges: &[self.mr.sge(LEN, LEN)] })
    }

    pub fn send(&self, op: SendOp<'_>, at: usize, len: usize) -> rdma::Result<()> {
        self.qp.post_send(&SendWr::new(1, op, Data::Sges(&[self.mr.sge(at, len)])))
    }
}

/// The victim's connection with the honest third.
pub struct Friend {
    end: End,
    peer: Place,
    own: Place,
    /// The next sequence numbers, of packets sent and received.
    psns: Cell<(u32, u32)>,
}

/// The number of packets of a message: the path's MTU is 1024.
fn packets(len: usize) -> u32 {
    (len as u32).div_ceil(1024).max(1)
}

impl Friend {
    pub fn new(fixture: &Fixture, wire: &mut Wire) -> Friend {
        let end = End::new(fixture, &fixture.pd);
        let own = end.place(fixture);
        let peer: Place = wire.exchange(&own);
        end.up(&peer, Joined::default());
        let () = wire.exchange(&());
        // Sequence numbers begin at the receiver's number.
        let psns = Cell::new((peer.qpn, own.qpn));
        Friend { end, peer, own, psns }
    }

    /// Both ends and the sequence numbers, for attackers that want to disturb them: a peer could not know these.
    pub fn places(&self) -> (Place, Place, (u32, u32)) {
        (self.own, self.peer, self.psns.get())
    }

    /// Exchange a WRITE, a READ of the written bytes, and a SEND that the other side sends back; every byte is
    /// compared.
    pub fn exchange(&self, random: &mut Random) {
        let (end, Place { addr, rkey, .. }) = (&self.end, self.peer);
        let most = [64, 5000, LEN as u64][random.below(3) as usize];
        let len = 1 + random.below(most) as usize;
        let bytes = random.bytes(len);
        let mut got = vec![0; len];
        end.mr.write(0, &bytes);
        for op in [SendOp::Write { addr, rkey }, SendOp::Read { addr, rkey }] {
            let at = if matches!(op, SendOp::Read { .. }) { LEN } else { 0 };
            end.send(op, at, len).expect("ibv_post_send");
            good(&collect(&end.cq, 1));
        }
        end.mr.read(LEN, &mut got);
        assert!(got == bytes, "what was written is not what is read");
        end.mr.write(LEN, &vec![0; len]);
        end.recv().expect("ibv_post_recv");
        end.send(SendOp::Send, 0, len).expect("ibv_post_send");
        let both = collect(&end.cq, 2);
        good(&both);
        let received = both.iter().find(|wc| wc.wr_id() == RECV).expect("a receive");
        assert_eq!(received.byte_len() as usize, len);
        end.mr.read(LEN, &mut got);
        assert!(got == bytes, "what came back is not what was sent");
        let (sent, heard) = self.psns.get();
        self.psns.set((sent + 3 * packets(len), heard + packets(len)));
    }
}

fn good(all: &[Wc]) {
    assert!(all.iter().all(|wc| wc.status() == Status::SUCCESS), "the honest peer's connection suffers: {all:?}");
}

/// The honest third process: it sends messages back until the victim closes the wire.
pub fn serve(mut wire: Wire) {
    let fixture = Fixture::open();
    let end = End::new(&fixture, &fixture.pd);
    let peer: Place = wire.exchange(&end.place(&fixture));
    end.up(&peer, Joined::default());
    end.recv().expect("ibv_post_recv");
    let () = wire.exchange(&());
    loop {
        let mut out = [Wc::default(); 1];
        // The victim may pause between two messages; it kills this process in the end.
        let wc =
            until("a message of the victim", || (end.cq.poll(&mut out).expect("ibv_poll_cq") > 0).then_some(out[0]));
        good(&[wc]);
        if wc.wr_id() == RECV {
            let len = wc.byte_len() as usize;
            end.send(SendOp::Send, LEN, len).expect("ibv_post_send");
            let () = until("the end of the answer", || (end.cq.poll(&mut out).expect("ibv_poll_cq") > 0).then_some(()));
            good(&out);
            end.recv().expect("ibv_post_recv");
        }
    }
}

/// An end of the connection between victim and attacker, in a domain of its own.
pub struct Toy {
    end: End,
}

/// A retry after 17 ms: this connection breaks all the time.
const SHORT: u8 = 12;

impl Toy {
    pub fn new(fixture: &Fixture) -> Toy {
        let pd = fixture.context.alloc_pd().expect("ibv_alloc_pd");
        Toy { end: End::new(fixture, &pd) }
    }

    pub fn place(&self, fixture: &Fixture) -> Place {
        self.end.place(fixture)
    }

    pub fn up(&self, peer: &Place) {
        self.end.up(peer, Joined { timeout: SHORT, retries: 2, ..Joined::default() });
        for _ in 0..16 {
            self.end.recv().expect("ibv_post_recv");
        }
    }

    /// Begin again if the connection is broken.
    pub fn revive(&self, peer: &Place) {
        let state = self.end.qp.query(QpAttrMask::STATE).expect("ibv_query_qp").state;
        if state != QpState::Rts {
            self.end.qp.set_state(QpState::Reset).expect("to RESET");
            self.up(peer);
        }
    }

    /// Post a request, and take what has come: nothing on this connection is certain, but every call returns.
    pub fn play(&self, peer: &Place, random: &mut Random) {
        let Place { addr, rkey, .. } = *peer;
        let op = match random.below(4) {
            0 => SendOp::Send,
            1 => SendOp::Write { addr, rkey },
            2 => SendOp::Read { addr, rkey },
            _ => SendOp::FetchAdd { addr, rkey, add: 1 },
        };
        let len = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { random.below(LEN as u64) as usize };
        let _ = self.end.send(op, 0, len);
        let _ = self.end.recv();
        let mut out = [Wc::default(); 64];
        let _ = self.end.cq.poll(&mut out).expect("ibv_poll_cq");
    }
}
