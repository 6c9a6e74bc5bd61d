//! A process dies at a random moment, by `kill -9`. Its peer must learn of it in time, and go on with another at once.
//!
//! `SOFTRNIC_KILL_ROUNDS` says how often (150), `SOFTRNIC_KILL_SEED` repeats what failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::{Bed, Far, Joint, Wire};
use rdma::{
    Access, Cq, Data, Gid, Mr, Qp, QpAttrMask, QpCap, QpOptions, QpState, QpType, RecvWr, SendOp, SendWr, Status, Wc,
};
use serde::{Deserialize, Serialize};

const ROUNDS: u64 = 150;
/// 4.096 us * 2^13 is 34 ms; three times.
const TIMEOUT: u8 = 13;
const RETRIES: u8 = 2;
/// How much longer than (retries + 1) timeouts it may take: IBTA vol. 1, 9.7.6.1.3 allows four times, and this machine is busy.
const SLACK: Duration = Duration::from_secs(3);
const LARGE: usize = 256 << 10;
/// Requests under way.
const DEEP: u64 = 16;

#[derive(Serialize, Deserialize)]
struct Place {
    qpn: u32,
    gid: [u8; 16],
    addr: u64,
    rkey: u32,
}

struct Random(u64);

impl Random {
    /// xorshift64*
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

struct End {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    mr: Arc<Mr>,
}

impl End {
    fn new(bed: &Bed) -> End {
        let cq = bed.context.create_cq(256, None, 0).expect("ibv_create_cq");
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
        let qp = bed.pd.create_qp(&options).expect("ibv_create_qp");
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = bed.pd.reg_mr(LARGE, rights).expect("ibv_reg_mr");
        End { qp, cq, mr }
    }

    fn place(&self, bed: &Bed) -> Place {
        Place { qpn: self.qp.number(), gid: bed.gid.0, addr: self.mr.addr(), rkey: self.mr.rkey() }
    }

    fn up(&self, peer: &Place) {
        let joint = Joint { timeout: TIMEOUT, retries: RETRIES, ..Joint::default() };
        joint.up(&self.qp, QpType::Rc, peer.qpn, Gid(peer.gid));
        for _ in 0..32 {
            self.recv();
        }
    }

    fn recv(&self) {
        let sges = [self.mr.sge(0, LARGE)];
        self.qp.post_recv(&RecvWr { wr_id: RECV, sges: &sges }).expect("ibv_post_recv");
    }

    /// One more request of a random kind and size.
    fn send(&self, random: &mut Random, peer: &Place) -> rdma::Result<()> {
        let len = match random.below(3) {
            0 => random.below(256) as usize,
            1 => random.below(20_000) as usize,
            _ => random.below(LARGE as u64) as usize,
        };
        let Place { addr, rkey, .. } = *peer;
        let op = match random.below(3) {
            0 => SendOp::Send,
            1 => SendOp::Write { addr, rkey },
            _ => SendOp::Read { addr, rkey },
        };
        self.qp.post_send(&SendWr::new(SEND, op, Data::Sges(&[self.mr.sge(0, len)])))
    }
}

const SEND: u64 = 1;
const RECV: u64 = 2;

/// Streams in both directions until something fails; says what, and how many requests were done.
fn stream(end: &End, peer: &Place, random: &mut Random, patience: Instant) -> Result<(Vec<Status>, u64), String> {
    let (mut under_way, mut done) = (0, 0);
    let mut out = [Wc::default(); 32];
    loop {
        while under_way < DEEP {
            end.send(random, peer).map_err(|error| error.to_string())?;
            under_way += 1;
        }
        let count = end.cq.poll(&mut out).map_err(|error| error.to_string())?;
        for at in 0..count {
            let wc = &out[at];
            if wc.status() != Status::SUCCESS {
                return Ok((out[at..count].iter().map(Wc::status).collect(), done));
            }
            match wc.wr_id() {
                SEND => (under_way, done) = (under_way - 1, done + 1),
                _ => end.recv(),
            }
        }
        if count == 0 {
            if Instant::now() > patience {
                return Err(format!("no failure in time; {done} requests done, {under_way} under way"));
            }
            std::thread::yield_now();
        }
    }
}

/// The process that will be killed.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn far_side() {
    let Some((seed, mut wire)) = Wire::to_test() else { return };
    let mut random = Random(seed.parse().expect("a seed"));
    let bed = Bed::open();
    let end = End::new(&bed);
    let peer: Place = wire.exchange(&end.place(&bed));
    end.up(&peer);
    let () = wire.exchange(&());
    let _ = stream(&end, &peer, &mut random, Instant::now() + Duration::from_secs(60));
    // Failed before it was killed: it waits for that.
    let _ = wire.try_hear::<()>();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd").count()
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn round(bed: &Bed, random: &mut Random) -> Result<u64, String> {
    let straight = if random.below(2) == 0 { "0" } else { "1" };
    let seed = (random.next() | 1).to_string();
    let mut far = Far::start("far_side", &seed, &[("SOFTRNIC_STRAIGHT", straight)]);
    let end = End::new(bed);
    let peer: Place = far.wire.exchange(&end.place(bed));
    end.up(&peer);
    let () = far.wire.exchange(&());
    let life = Duration::from_micros(random.below(30_000));
    let killer = std::thread::spawn(move || {
        std::thread::sleep(life);
        far.kill();
        Instant::now()
    });
    let limit = Duration::from_micros(4 << TIMEOUT) * (u32::from(RETRIES) + 1) + SLACK;
    let result = stream(&end, &peer, random, Instant::now() + life + limit);
    let learnt = Instant::now();
    let killed = killer.join().expect("the killer");
    let (statuses, done) = result.map_err(|error| format!("straight {straight}, killed after {life:?}: {error}"))?;
    let late = learnt.saturating_duration_since(killed);
    let state = end.qp.query(QpAttrMask::STATE).expect("ibv_query_qp").state;
    // A process that is being killed may close its sockets before its queue pair stops answering; it never refuses.
    let first = statuses[0];
    let right = first == Status::RETRIES && statuses[1..].iter().all(|status| *status == Status::FLUSHED);
    if !right || state != QpState::Err {
        return Err(format!("straight {straight}, killed after {life:?}: {statuses:?}, state {state:?}"));
    }
    if late > limit {
        return Err(format!("straight {straight}: learnt {late:?} after the death"));
    }
    Ok(done)
}

#[test]
fn peers_are_killed() {
    let seed = setting("SOFTRNIC_KILL_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        now.as_nanos() as u64 | 1
    });
    let rounds = setting("SOFTRNIC_KILL_ROUNDS").unwrap_or(ROUNDS);
    println!("SOFTRNIC_KILL_SEED={seed}");
    let mut random = Random(seed);
    let bed = Bed::open();
    let (mut before, mut done) = (0, 0);
    for number in 0..rounds {
        match round(&bed, &mut random) {
            Ok(count) => done += count,
            Err(error) => panic!("SOFTRNIC_KILL_SEED={seed}, round {number} of {rounds}: {error}"),
        }
        if number == 4 {
            before = descriptors(); // the library has what it keeps
        }
    }
    println!("{rounds} peers killed, {done} requests done");
    // The last links' descriptors are closed by the NIC thread.
    let leaked = |now: usize| rounds > 5 && now > before + 2;
    let start = Instant::now();
    while leaked(descriptors()) && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let after = descriptors();
    assert!(!leaked(after), "SOFTRNIC_KILL_SEED={seed}: {before} descriptors after 5 rounds, {after} after {rounds}");
}
