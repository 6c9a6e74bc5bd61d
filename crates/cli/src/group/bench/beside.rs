//! An ordinary queue pair whose peer has a loop of ENABLEs beside it.

use std::io::BufRead as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use rdma::dv::{Count, Managed, Side, Task};
use rdma::{Access, Cq, Data, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendOp, SendWr, Status, Wc};

use super::parts::{Part, PartOptions};
use super::stand::{Process, Stand, endpoint, line};
use super::work::Work;
use crate::fixture::{Endpoint, Fixture, PATIENCE, PORT, text, wait};

/// Bytes of a message.
pub const SIZE: usize = 8;
/// Entries of each queue of the loop.
const ENTRIES: u32 = 4;
/// More entries than a queue executes in any run.
const FOR_EVER: Count = Count::Absolute(1 << 60);
/// The `wr_id` of a receive, and of a message.
const ARRIVED: u64 = 0;
const SENT: u64 = 1;

/// One end of the ordinary queue pair.
struct End {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    buffer: Arc<Mr>,
    own: Endpoint,
}

impl End {
    fn new(fixture: &Fixture) -> Result<End, String> {
        let cq = fixture.context.create_cq(8, None, 0).map_err(text)?;
        let buffer = fixture.pd.reg_mr(2 * SIZE, Access::LOCAL_WRITE).map_err(text)?;
        let (qp, own) = endpoint(fixture, &cq, 2, 0, 0)?;
        Ok(End { qp, cq, buffer, own })
    }

    /// Connect to the peer, with a receive for its first message.
    fn connect(&self, fixture: &Fixture, peer: &Endpoint) -> Result<(), String> {
        self.expect()?;
        self.qp.connect(QpType::Rc, &fixture.connect(self.own.psn, peer)).map_err(text)
    }

    fn expect(&self) -> Result<(), String> {
        let sges = [self.buffer.sge(SIZE, SIZE)];
        self.qp.post_recv(&RecvWr { wr_id: ARRIVED, sges: &sges }).map_err(text)
    }

    fn send(&self) -> Result<(), String> {
        let data = [self.buffer.sge(0, SIZE)];
        self.qp.post_send(&SendWr::new(SENT, SendOp::Send, Data::Sges(&data))).map_err(text)
    }
}

/// The number of a completion that is a success.
fn number(wc: &Wc) -> Result<u64, String> {
    match wc.status() {
        Status::SUCCESS => Ok(wc.wr_id()),
        status => Err(format!("a message failed: {status}")),
    }
}

/// Messages to the peer, and its answers.
pub struct Exchange {
    end: End,
    /// Completions of the operation under way: of the message and of the receive.
    found: u32,
}

impl Work for Exchange {
    fn begin(&mut self) -> Result<bool, String> {
        self.end.send().map(|()| true)
    }

    fn ended(&mut self) -> Result<u64, String> {
        let mut out = [Wc::default()];
        if self.end.cq.poll(&mut out).map_err(text)? == 0 {
            return Ok(0);
        }
        if number(&out[0])? == ARRIVED {
            self.end.expect()?;
        }
        self.found += 1;
        if self.found < 2 {
            return Ok(0);
        }
        self.found = 0;
        Ok(1)
    }
}

impl Stand {
    /// Messages to a process that answers them; with or without such a loop beside its queue pair.
    pub fn exchange(&self, fixture: &Fixture, looping: bool) -> Result<(Exchange, Process), String> {
        let options = PartOptions { looping, ..self.part() };
        let mut process = Process::part(Part::Answer, &options, Stdio::piped(), Stdio::piped())?;
        let peer: Endpoint = serde_json::from_str(&line(&mut process.lines()?)?).map_err(text)?;
        let end = End::new(fixture)?;
        end.connect(fixture, &peer)?;
        let mut told = serde_json::to_string(&end.own).map_err(text)?;
        told.push('\n');
        process.tell(&told)?;
        Ok((Exchange { end, found: 0 }, process))
    }
}

/// Answer each message, until the process that started this one ends it.
pub fn answer(fixture: &Fixture, looping: bool) -> Result<(), String> {
    let _loop = if looping { Some(Loop::start(fixture)?) } else { None };
    let end = End::new(fixture)?;
    crate::out::say!("{}", serde_json::to_string(&end.own).map_err(text)?);
    let mut told = String::new();
    std::io::stdin().lock().read_line(&mut told).map_err(text)?;
    end.connect(fixture, &serde_json::from_str(&told).map_err(text)?)?;
    loop {
        if number(&wait(&end.cq, 2 * PATIENCE)?)? == ARRIVED {
            end.expect()?;
            end.send()?;
        }
    }
}

/// A queue of ENABLEs that goes round for ever. Each of them lets a second queue execute one more entry.
struct Loop {
    _queues: [Arc<Qp>; 2],
    _counts: Arc<Cq>,
}

impl Loop {
    fn start(fixture: &Fixture) -> Result<Loop, String> {
        let cq = fixture.context.create_counting_cq(1, true).map_err(text)?;
        let queue = || {
            let cap =
                QpCap { max_send_wr: ENTRIES, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let (send_cq, recv_cq, qp_type) = (Some(&cq), Some(&cq), QpType::Rc);
            let options = QpOptions { qp_type, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: false };
            let rules = Managed { send: true, cyclic_send: true, ..Managed::default() };
            let qp = fixture.pd.create_managed_qp(&options, &rules).map_err(text)?;
            qp.init(QpType::Rc, PORT, Access::LOCAL_WRITE, 0).map_err(text)?;
            // It is connected to itself, and sends nothing.
            let (qpn, gid, lid) = (qp.number(), fixture.gid.0, fixture.lid);
            let own = Endpoint { qpn, sender_qpn: qpn, gid, lid, psn: 0, addr: 0, rkey: 0, srqn: 0 };
            qp.connect(QpType::Rc, &fixture.connect(0, &own)).map_err(text)?;
            Ok::<_, String>(qp)
        };
        let (enables, nops) = (queue()?, queue()?);
        // An ENABLE may name a count beyond what was posted only if the circle of its queue is full.
        (0..ENTRIES).try_for_each(|_| nops.post_task(&Task::nop())).map_err(text)?;
        for n in 0..ENTRIES {
            let count = Count::Absolute(u64::from(n) + 1);
            enables.post_task(&Task::enable(&nops, Side::Send, count).step(ENTRIES)).map_err(text)?;
        }
        enables.enable(Side::Send, FOR_EVER).map_err(text)?;
        // Both have gone round many times before anything is measured.
        let deadline = Instant::now() + PATIENCE;
        for qp in [&enables, &nops] {
            while qp.queue(Side::Send).map_err(text)?.begun < u64::from(100 * ENTRIES) {
                if Instant::now() > deadline {
                    return Err("a loop of ENABLEs does not run".into());
                }
                std::thread::yield_now();
            }
        }
        Ok(Loop { _queues: [enables, nops], _counts: cq })
    }
}
