//! The client: it sends operations, and counts what comes back from the last replica.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma::{
    Access, CompChannel, Context, Cq, Data, Mr, Pd, Qp, QpCap, QpOptions, QpType, RecvList, RecvWr, SendFlags, SendOp,
    SendWr, Status, Wc,
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::MOST_WINDOW;
use crate::error::{Error, Result};
use crate::message::{self, Turn};
use crate::operation::Operation;
use crate::rounds::{Kind, RESULT, place};
use crate::setup::{self, Endpoint, Hello, Replica, Welcome, kind};

/// Every so many SENDs are signaled: a completion costs a poll of its own.
const EVERY: u64 = 32;
/// Of so many polls in a row without an answer one also looks at the completions of requests. They are awaited for
/// their places in the queue only, and to hear of an error; each look would delay the next one for the answer.
const LOOKS: u32 = 16;
/// Receives that are posted in one call, when so many were taken: the list costs little more than one receive.
const RECEIVES: u64 = 16;

/// The options of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientOptions {
    /// Operations under way at most, 1 to 2000.
    pub window: u32,
    /// How long an operation may take before the group counts as broken.
    pub timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions { window: 1, timeout: Duration::from_secs(20) }
    }
}

/// How to wait for a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// By polling.
    Poll,
    /// By sleeping until an event.
    Event,
}

/// An operation that all replicas have executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// What [`Client::submit`] gave.
    pub ticket: u64,
    /// Of a gCAS: what each replica had before; 0 where it was not executed.
    pub values: Option<Vec<u64>>,
}

/// A client of a chain.
pub struct Client {
    requests: Arc<Qp>,
    answers: Arc<Qp>,
    sent: Arc<Cq>,
    acks: Arc<Cq>,
    channel: Arc<CompChannel>,
    buffer: Arc<Mr>,
    messages: Arc<Mr>,
    /// What the replicas had before a gCAS, of each round.
    results: Arc<Mr>,
    receives: RecvList,
    replicas: Vec<Replica>,
    region: u64,
    control: TcpStream,
    timeout: Duration,
    window: usize,
    depth: u64,
    submitted: u64,
    done: u64,
    /// Rounds whose messages were sent, and those that were answered.
    sent_rounds: u64,
    answered: u64,
    /// Rounds whose SENDs are known to be completed.
    freed: u64,
    /// What the rounds under way have; a round may have nothing.
    under_way: VecDeque<Option<Operation>>,
    /// Operations under way that are no gWRITE.
    others: usize,
    /// Operations that were sent and that replicas execute on their own memory.
    all_own: u64,
    broken: Option<String>,
    /// Polls in a row without an answer.
    in_vain: u32,
    scratch: Vec<u8>,
    /// Of each place of `messages`: the message in it is that of a gWRITE.
    writes: Vec<bool>,
    /// Bytes of a full round's message and of a short one's, with what is before it.
    lengths: [usize; 2],
}

impl Client {
    /// Connect to the first replica of a chain; `buffer` is what gWRITEs send.
    ///
    /// # Errors
    /// [`Error::Refused`] says which hop refuses, and why.
    pub fn connect(
        context: &Arc<Context>,
        pd: &Arc<Pd>,
        to: SocketAddr,
        buffer: Arc<Mr>,
        options: &ClientOptions,
    ) -> Result<Client> {
        if !(1..=MOST_WINDOW).contains(&options.window) {
            return Err(Error::Invalid("a window is 1 to 2000"));
        }
        // A full round and a short one take turns.
        let depth = options.window.next_power_of_two().max(2);
        let channel = context.create_comp_channel()?;
        channel.set_nonblocking()?;
        let most = 2 * (depth + EVERY as u32);
        // All of them may end in an error.
        let sent = context.create_cq(most + 8, Some(&channel), 0)?;
        let acks = context.create_cq(2 * (depth + RECEIVES as u32) + 8, Some(&channel), 1)?;
        let qp = |cq: &Arc<Cq>, sends, recvs| {
            let cap =
                QpCap { max_send_wr: sends, max_recv_wr: recvs, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let (send_cq, recv_cq) = (Some(cq), Some(cq));
            pd.create_qp(&QpOptions {
                qp_type: QpType::Rc,
                send_cq,
                recv_cq,
                srq: None,
                xrcd: None,
                cap,
                sq_sig_all: false,
            })
        };
        let requests = qp(&sent, most, 1)?;
        let answers = qp(&acks, 1, depth + RECEIVES as u32)?;

        let control = TcpStream::connect(to)?;
        control.set_nodelay(true)?;
        control.set_read_timeout(Some(2 * options.timeout))?;
        let gid = setup::own_gid(context)?;
        let end = |qp: &Qp| Endpoint { qpn: qp.number(), gid };
        Hello { depth, hop: 0, region: 0, from: end(&requests), ack: end(&answers) }.tell(&control)?;
        let Welcome { region, entry, ack, replicas } = Welcome::hear(&control)?;
        setup::connect(context, &answers, &ack)?;
        setup::connect(context, &requests, &entry)?;

        let results = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let results = pd.reg_mr(replicas.len() * RESULT * depth as usize, results)?;
        // An answer has no bytes; but a receive without an entry is out of the ordinary for the device.
        let into = [results.sge(0, RESULT)];
        let receives = RecvList::new(&[RecvWr { wr_id: 0, sges: &into }; RECEIVES as usize]);
        let lengths = [Kind::Full, Kind::Short].map(|kind| kind.lead() + kind.message_len(0, replicas.len()));
        let messages = pd.reg_mr(message_at(depth.into(), lengths), Access::LOCAL_WRITE)?;
        let mut client = Client {
            requests,
            answers,
            sent,
            acks,
            channel,
            buffer,
            messages,
            results,
            receives,
            replicas,
            region,
            control,
            timeout: options.timeout,
            window: options.window as usize,
            depth: depth.into(),
            submitted: 0,
            done: 0,
            sent_rounds: 0,
            answered: 0,
            freed: 0,
            under_way: VecDeque::with_capacity(depth as usize),
            others: 0,
            all_own: 0,
            broken: None,
            in_vain: 0,
            scratch: Vec::new(),
            writes: vec![false; depth as usize],
            lengths,
        };
        // One for each round, and those that are taken before they are posted again.
        for at in (0..client.depth + RECEIVES).step_by(RECEIVES as usize) {
            client.post_receives((client.depth + RECEIVES - at).min(RECEIVES) as usize)?;
        }
        Ok(client)
    }

    /// The number of replicas.
    pub fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// Bytes of the replicas' regions.
    pub fn region(&self) -> u64 {
        self.region
    }

    /// Operations under way.
    pub fn under_way(&self) -> usize {
        (self.submitted - self.done) as usize
    }

    fn post_receives(&mut self, count: usize) -> Result<()> {
        Ok(self.answers.post_recv_part(&mut self.receives, 0..count).map_err(|(_, error)| error)?)
    }

    /// Send an operation; the ticket counts from 0.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it is outside of something; nothing is sent. [`Error::Full`]: the window is full, or an
    /// operation under way touches the same bytes and the outcome depends on their order.
    pub fn submit(&mut self, op: &Operation) -> Result<u64> {
        op.check(self.region, self.buffer.len() as u64, self.replicas.len())?;
        if let Some(why) = &self.broken {
            return Err(Error::Broken(why.clone()));
        }
        if self.under_way() >= self.window {
            return Err(Error::Full);
        }
        let write = matches!(op, Operation::Write { .. });
        if !(write && self.others == 0) && self.under_way.iter().flatten().any(|other| op.conflicts(other)) {
            return Err(Error::Full);
        }
        // What does not fit a short round goes into the one behind it.
        let skips = op.uses_own() && Kind::of(self.sent_rounds) == Kind::Short;
        let end = self.sent_rounds + 1 + u64::from(skips);
        if end - self.answered > self.depth {
            return Err(Error::Full);
        }
        if end - self.freed > self.depth + EVERY {
            self.take_sent()?;
            if end - self.freed > self.depth + EVERY {
                return Err(Error::Full);
            }
        }
        if skips {
            self.send(None)?;
        }
        self.send(Some(op))?;
        self.submitted += 1;
        self.others += usize::from(!write);
        self.all_own += u64::from(op.uses_own());
        Ok(self.submitted - 1)
    }

    /// Send the message of the next round, behind the bytes that it needs at the first replica.
    fn send(&mut self, op: Option<&Operation>) -> Result<()> {
        let round = self.sent_rounds;
        let place = self.place(round);
        let results = (self.results.addr() + (place * self.replicas.len() * RESULT) as u64, self.results.rkey());
        let turn = Turn { round: place as u64, before: self.all_own, places: self.depth / 2, results };
        let (at, kind) = (self.message(turn, op), Kind::of(round));
        let first = &self.replicas[0];
        let bytes = match op {
            Some(&Operation::Write { offset, size }) => {
                let data = self.buffer.sge(offset as usize, size as usize);
                Some((data, first.region + offset, first.rkey))
            }
            Some(op) if op.uses_own() => {
                Some((self.messages.sge(at, kind.lead()), message::own_place(first, turn), first.own_rkey))
            }
            _ => None,
        };
        if let Some((data, addr, rkey)) = bytes {
            let list = [data];
            let wr = SendWr::new(round, SendOp::Write { addr, rkey }, Data::Sges(&list));
            self.requests.post_send(&SendWr { flags: SendFlags::empty(), ..wr })?;
        }
        // A post of its own: a short SEND alone has fewer instructions than one behind another request in a list.
        let note = [self.messages.sge(at + kind.lead(), self.lengths[(round & 1) as usize] - kind.lead())];
        let flags = if (round + 1).is_multiple_of(EVERY) { SendFlags::SIGNALED } else { SendFlags::empty() };
        self.requests.post_send(&SendWr { flags, ..SendWr::new(round + 1, SendOp::Send, Data::Sges(&note)) })?;
        self.sent_rounds += 1;
        self.under_way.push_back(op.copied());
        Ok(())
    }

    /// Makes the message of a round in its place, and gives the place.
    fn message(&mut self, turn: Turn, op: Option<&Operation>) -> usize {
        let (at, kind) = (message_at(turn.round, self.lengths), Kind::of(turn.round));
        let write = matches!(op, Some(Operation::Write { .. }));
        let before = std::mem::replace(&mut self.writes[turn.round as usize], write);
        match op {
            Some(&Operation::Write { offset, size }) if before => {
                message::write_words(&self.replicas, kind, offset, size, |word, value| {
                    self.messages.word(at + word).store(value, Ordering::Relaxed);
                });
            }
            _ => {
                message::put(&self.replicas, turn, op, &mut self.scratch);
                self.messages.write(at, &self.scratch);
            }
        }
        at
    }

    /// The place of a round among those that the queues have, which are a power of two.
    fn place(&self, round: u64) -> usize {
        (round & (self.depth - 1)) as usize
    }

    fn fail(&mut self, why: String) -> Error {
        self.broken = Some(why.clone());
        Error::Broken(why)
    }

    /// Take the completions of requests.
    fn take_sent(&mut self) -> Result<()> {
        let mut found = [Wc::default(); 4];
        loop {
            let count = self.sent.poll(&mut found)?;
            for wc in &found[..count] {
                if wc.status() != Status::SUCCESS {
                    return Err(self.fail(format!("a request to hop 0 failed: {}", wc.status())));
                }
                self.freed = self.freed.max(wc.wr_id());
            }
            if count < found.len() {
                return Ok(());
            }
        }
    }

    /// The next completion, if there is one. Completions come in the order of the operations.
    ///
    /// # Errors
    /// [`Error::Broken`]: the group ended.
    pub fn poll(&mut self) -> Result<Option<Done>> {
        let mut wc = [Wc::default()];
        loop {
            if self.acks.poll(&mut wc)? == 0 {
                if let Some(why) = &self.broken {
                    return Err(Error::Broken(why.clone()));
                }
                self.in_vain += 1;
                if self.in_vain >= LOOKS {
                    self.in_vain = 0;
                    self.take_sent()?;
                }
                return Ok(None);
            }
            self.in_vain = 0;
            let round = self.answered;
            if wc[0].status() != Status::SUCCESS {
                return Err(self.fail(format!("the answer of the last hop failed: {}", wc[0].status())));
            }
            let Some(op) = self.under_way.pop_front() else {
                return Err(self.fail("an answer to nothing".into()));
            };
            let values = matches!(op, Some(Operation::CompareSwap { .. })).then(|| {
                let count = self.replicas.len();
                let mut bytes = vec![0; count * RESULT];
                self.results.read(self.place(round) * bytes.len(), &mut bytes);
                bytes.chunks_exact(RESULT).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect()
            });
            self.answered += 1;
            if self.answered.is_multiple_of(RECEIVES) {
                self.post_receives(RECEIVES as usize)?;
            }
            let Some(op) = op else { continue };
            self.others -= usize::from(!matches!(op, Operation::Write { .. }));
            self.done += 1;
            return Ok(Some(Done { ticket: self.done - 1, values }));
        }
    }

    /// What a server says about the end of the group, if it has said it.
    fn look_at_control(&mut self, patience: Duration) -> Result<()> {
        let timeout = timespec(patience);
        let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout))? == 0 {
            return Ok(());
        }
        let why = match setup::hear(&self.control) {
            Ok((kind::BROKEN, bytes)) => setup::text(&bytes),
            Ok(_) => return Ok(()),
            Err(_) => "hop 0: its server is gone".into(),
        };
        Err(self.fail(why))
    }

    /// Wait for the next completion.
    ///
    /// # Errors
    /// [`Error::Invalid`]: nothing is under way. [`Error::Broken`]: the group ended, or did not answer in time.
    pub fn wait(&mut self, how: Wait) -> Result<Done> {
        if self.under_way() == 0 {
            return Err(Error::Invalid("no operation is under way"));
        }
        let start = Instant::now();
        let mut turns = 0u32;
        loop {
            match self.poll() {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(error) => {
                    // A server may know better which hop it was.
                    self.look_at_control(Duration::from_millis(200))?;
                    return Err(error);
                }
            }
            turns = turns.wrapping_add(1);
            if how == Wait::Event {
                self.take_sent()?;
            }
            let sleeps = how == Wait::Event && turns.is_multiple_of(2);
            if sleeps {
                self.sleep()?;
            } else if how == Wait::Event {
                // Whatever is completed from here on makes an event; the next turn polls once more.
                while self.channel.try_event()?.is_some() {}
                self.acks.arm(false)?;
                self.sent.arm(false)?;
                continue;
            }
            if sleeps || turns.is_multiple_of(512) {
                self.look_at_control(Duration::ZERO)?;
                if start.elapsed() > self.timeout {
                    return Err(self.fail(format!("no answer within {} s", self.timeout.as_secs_f32())));
                }
                std::thread::yield_now();
            }
        }
    }

    fn sleep(&self) -> Result<()> {
        let mut fds =
            [PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
        let short = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut fds, Some(&short.min(timespec(self.timeout))))?;
        Ok(())
    }

    /// Do operations, at most the window of them at a time, and return the completions.
    ///
    /// # Errors
    /// Those of [`Client::submit`] and [`Client::wait`]. All operations are checked before the first one is sent.
    pub fn run(&mut self, ops: &[Operation], how: Wait) -> Result<Vec<Done>> {
        self.run_within(ops, self.window as u32, how)
    }

    /// Do operations as [`Client::run`] does, at most `window` of them at a time. The client's own window holds, too.
    ///
    /// # Errors
    /// Those of [`Client::run`]. [`Error::Invalid`]: a window of 0.
    pub fn run_within(&mut self, ops: &[Operation], window: u32, how: Wait) -> Result<Vec<Done>> {
        if window == 0 {
            return Err(Error::Invalid("a window is 1 to 2000"));
        }
        ops.iter().try_for_each(|op| op.check(self.region, self.buffer.len() as u64, self.replicas.len()))?;
        let mut all = Vec::with_capacity(ops.len());
        let mut next = 0;
        while all.len() < ops.len() {
            let op = ops.get(next).filter(|_| self.under_way() < window as usize);
            match op.map(|op| self.submit(op)) {
                Some(Ok(_)) => {
                    next += 1;
                    continue;
                }
                Some(Err(Error::Full)) if self.under_way() == 0 => {
                    std::thread::yield_now();
                    continue;
                }
                Some(Err(Error::Full)) | None => {}
                Some(Err(error)) => return Err(error),
            }
            all.push(self.wait(how)?);
        }
        Ok(all)
    }

    /// Have all replicas write a part of their regions to their standard output.
    ///
    /// # Errors
    /// [`Error::Invalid`]: outside the region. [`Error::Broken`].
    pub fn print_buffer(&mut self, offset: u64, length: u64) -> Result<()> {
        Operation::Flush { offset, size: length }.check(self.region, 0, self.replicas.len())?;
        setup::tell_numbers(&self.control, kind::PRINT, &[offset, length])?;
        match setup::hear(&self.control) {
            Ok((kind::PRINTED, _)) => Ok(()),
            Ok((kind::BROKEN, bytes)) => Err(self.fail(setup::text(&bytes))),
            _ => Err(self.fail("hop 0: its server is gone".into())),
        }
    }
}

/// The place of a round's message among all of them, and of what is before it.
fn message_at(round: u64, [full, short]: [usize; 2]) -> usize {
    place(round, |kind| if kind == Kind::Full { full } else { short })
}

fn timespec(duration: Duration) -> rustix::event::Timespec {
    rustix::event::Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}
