//! Two queue pairs and the objects that they need; the other process; and the doctor.

use std::sync::Arc;

use conformance::{Fixture, Joined, Wire, softrnic};
use rdma::{
    Access, CompChannel, Cq, Data, Gid, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendFlags, SendOp, SendWr, Srq,
};

pub const LEN: usize = 64;

/// The attributes of a queue pair.
pub struct Wish {
    pub qp_type: QpType,
    pub depth: u32,
    pub cqe: u32,
    pub channel: bool,
    pub sq_sig_all: bool,
    pub srq: bool,
}

impl Default for Wish {
    fn default() -> Self {
        Wish { qp_type: QpType::Rc, depth: 16, cqe: 64, channel: false, sq_sig_all: true, srq: false }
    }
}

/// A queue pair with queues and memory of its own.
pub struct End {
    pub qp: Arc<Qp>,
    pub sends: Arc<Cq>,
    pub receives: Arc<Cq>,
    pub channel: Option<Arc<CompChannel>>,
    pub srq: Option<Arc<Srq>>,
    pub mr: Arc<Mr>,
    pub fixture: Fixture,
}

impl End {
    pub fn new(wish: &Wish) -> End {
        let fixture = Fixture::open();
        let channel = wish.channel.then(|| fixture.context.create_comp_channel().expect("ibv_create_comp_channel"));
        let sends = fixture.context.create_cq(wish.cqe, None, 0).expect("ibv_create_cq");
        let receives = fixture.context.create_cq(wish.cqe, channel.as_ref(), 0).expect("ibv_create_cq");
        let srq = wish.srq.then(|| fixture.pd.create_srq(wish.depth, 1, 0).expect("ibv_create_srq"));
        let options = QpOptions {
            qp_type: wish.qp_type,
            send_cq: Some(&sends),
            recv_cq: Some(&receives),
            srq: srq.as_ref(),
            xrcd: None,
            cap: QpCap {
                max_send_wr: wish.depth,
                max_recv_wr: wish.depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: wish.sq_sig_all,
        };
        let qp = fixture.pd.create_qp(&options).expect("ibv_create_qp");
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = fixture.pd.reg_mr(2 * LEN, all).expect("ibv_reg_mr");
        End { qp, sends, receives, channel, srq, mr, fixture }
    }

    /// Move from RESET to RTS, connected to a queue pair of this host.
    pub fn up(&self, joined: &Joined, qp_type: QpType, qpn: u32) {
        joined.up(&self.qp, qp_type, qpn, self.fixture.gid);
    }

    pub fn recv(&self) {
        let list = [self.mr.sge(LEN, LEN)];
        let wr = RecvWr { wr_id: 100, sges: &list };
        match &self.srq {
            Some(srq) => srq.post_recv(&wr).expect("ibv_post_srq_recv"),
            None => self.qp.post_recv(&wr).expect("ibv_post_recv"),
        }
    }

    pub fn try_post(&self, op: SendOp<'_>, flags: SendFlags) -> rdma::Result<()> {
        let list = [self.mr.sge(0, 8)];
        let mut wr = SendWr::new(7, op, Data::Sges(&list));
        wr.flags = flags;
        self.qp.post_send(&wr)
    }

    pub fn send(&self) {
        self.try_post(SendOp::Send, SendFlags::SIGNALED).expect("ibv_post_send");
    }

    pub fn read(&self, flags: SendFlags) {
        let op = SendOp::Read { addr: self.mr.addr(), rkey: self.mr.rkey() };
        self.try_post(op, SendFlags::SIGNALED | flags).expect("ibv_post_send");
    }
}

/// Two ends in this process, connected to each other.
pub fn pair(joined: &Joined, wish: &Wish) -> (End, End) {
    let (a, b) = (End::new(wish), End::new(wish));
    a.up(joined, wish.qp_type, b.qp.number());
    b.up(joined, wish.qp_type, a.qp.number());
    (a, b)
}

/// A process with a queue pair that is connected to the test's; it posts as many receives as the test says.
pub fn peer(mut wire: Wire) {
    let end = End::new(&Wish::default());
    let qpn: u32 = wire.exchange(&end.qp.number());
    end.up(&Joined::default(), QpType::Rc, qpn);
    wire.tell(&());
    while let Some(n) = wire.try_hear::<u32>() {
        (0..n).for_each(|_| end.recv());
        wire.tell(&());
    }
}

/// A process that opens the device and does nothing else.
pub fn silent(mut wire: Wire) {
    let _bed = Fixture::open();
    wire.tell(&());
    let _ = wire.try_hear::<()>();
}

/// A local end, connected to a peer's.
pub fn meet(joined: &Joined, wire: &mut Wire) -> End {
    let end = End::new(&Wish::default());
    let qpn: u32 = wire.exchange(&end.qp.number());
    joined.up(&end.qp, QpType::Rc, qpn, Gid(end.fixture.gid.0));
    let () = wire.hear();
    end
}

/// The output of the doctor about a process, and its exit status.
pub fn doctor(args: &[&str]) -> (i32, String) {
    softrnic(&[&["doctor"], args].concat())
}

/// Ask until the doctor prints this sentence about the process.
pub fn must_say(pid: u32, sentence: &str) -> String {
    let mut last = String::new();
    let start = std::time::Instant::now();
    while start.elapsed() < conformance::PATIENCE {
        let (_, text) = doctor(&[&pid.to_string()]);
        if text.contains(sentence) {
            return text;
        }
        last = text;
    }
    panic!("process {pid}: not said: {sentence}\n{last}");
}
