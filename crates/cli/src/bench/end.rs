//! One end of the connection, and what the two tell each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma::{Access, Cq, Data, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendFlags, SendOp, SendWr, Status, Wc};
use serde::{Deserialize, Serialize};

use crate::bed::{Bed, DeviceOptions, Endpoint, PATIENCE, PORT, text};

/// Largest message.
pub const LARGEST: usize = 1 << 20;
/// Where in the region the data to send are.
pub const SOURCE: usize = 0;
/// Where in the region the peer's data go.
pub const SINK: usize = LARGEST;
/// Where in the region the word for atomics is.
pub const WORD: usize = 2 * LARGEST;
/// Bytes of the region.
const REGION: usize = WORD + 64;

/// Requests of a queue.
pub const DEPTH: u32 = 512;
/// Receives that the target keeps posted.
pub const RECEIVES: u32 = 256;
/// Inline bytes to ask for; a device with fewer is asked again.
const INLINE: [u32; 4] = [220, 128, 64, 0];
/// First sequence number; both sides.
pub const PSN: u32 = 0x5_0f7;

/// `wr_id` of receives. Those of sends are the number of requests that the completion stands for.
pub const RECEIVE: u64 = u64::MAX;

/// First message to the target's process.
#[derive(Serialize, Deserialize)]
pub struct Hello {
    /// Where it runs.
    pub core: Option<usize>,
}

/// What the target does.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Job {
    /// Answers SENDs by SENDs.
    PongSend {
        /// Bytes.
        size: usize,
        /// How often.
        count: u32,
    },
    /// Answers WRITEs by WRITEs, seeing them in its memory.
    PongWrite {
        /// Bytes.
        size: usize,
        /// How often.
        count: u32,
    },
    /// Polls, and posts receives, until an immediate value comes.
    Serve {
        /// Bytes of a receive.
        size: usize,
    },
    /// Sleeps until told that it is over.
    Sleep,
    /// Ends.
    End,
}

/// One end.
pub struct End {
    /// Where it stands.
    pub bed: Bed,
    /// Its memory.
    pub mr: Arc<Mr>,
    /// All completions.
    pub cq: Arc<Cq>,
    /// The connection.
    pub qp: Arc<Qp>,
    /// Messages up to this many bytes go inline.
    pub inline: usize,
    /// True if the device has atomics.
    pub atomics: bool,
}

impl End {
    /// Opens the device and makes everything but the connection.
    pub fn open(options: &DeviceOptions) -> Result<Self, String> {
        let bed = options.open()?;
        let atomics = bed.context.query_device().map_err(text)?.atomic_cap != 0;
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        if atomics {
            access |= Access::REMOTE_ATOMIC;
        }
        let mr = bed.pd.reg_mr(REGION, access).map_err(text)?;
        let cq = bed.context.create_cq(2 * DEPTH, None, 0).map_err(text)?;
        let mut made = Err(String::new());
        for max_inline_data in INLINE {
            let cap = bed.cap(QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data,
            })?;
            let options = QpOptions {
                qp_type: QpType::Rc,
                send_cq: Some(&cq),
                recv_cq: Some(&cq),
                srq: None,
                xrcd: None,
                cap,
                sq_sig_all: false,
            };
            made = bed.pd.create_qp(&options).map(|qp| (qp, max_inline_data)).map_err(text);
            if made.is_ok() {
                break;
            }
        }
        let (qp, inline) = made?;
        qp.init(QpType::Rc, PORT, access, 0).map_err(text)?;
        Ok(End { bed, mr, cq, qp, inline: inline as usize, atomics })
    }

    /// What the peer must know.
    pub fn endpoint(&self) -> Result<Endpoint, String> {
        Ok(Endpoint {
            qpn: self.qp.number(),
            sender_qpn: self.qp.number(),
            gid: self.bed.gid.0,
            lid: self.bed.lid,
            psn: PSN,
            addr: self.mr.addr(),
            rkey: self.mr.rkey(),
            srqn: 0,
        })
    }

    /// Posts a receive of `size` bytes.
    pub fn post_receive(&self, size: usize) -> Result<(), String> {
        let sges = [self.mr.sge(SINK, size)];
        self.qp.post_recv(&RecvWr { wr_id: RECEIVE, sges: &sges }).map_err(text)
    }

    /// Posts a request with `size` bytes of our memory at `offset`; `stands_for` is how many requests its completion is
    /// for, 0 for none.
    #[inline]
    pub fn post(&self, op: SendOp<'_>, offset: usize, size: usize, stands_for: u32) -> Result<(), String> {
        let flags = if stands_for > 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let takes_data = matches!(op, SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
        if !takes_data && size <= self.inline {
            let mut data = [0u8; INLINE[0] as usize];
            self.mr.read(offset, &mut data[..size]);
            let pieces = [&data[..size]];
            let wr = SendWr { flags, ..SendWr::new(stands_for.into(), op, Data::Inline(&pieces)) };
            return self.qp.post_send(&wr).map_err(text);
        }
        let sges = [self.mr.sge(offset, size)];
        let wr = SendWr { flags, ..SendWr::new(stands_for.into(), op, Data::Sges(&sges)) };
        self.qp.post_send(&wr).map_err(text)
    }
}

/// What completions told so far.
#[derive(Default)]
pub struct Tally {
    /// Sends that are done.
    pub sent: u64,
    /// Receives that are done.
    pub received: u64,
    /// One of them had an immediate value.
    pub immediate: bool,
}

impl Tally {
    /// Polls once.
    #[inline]
    pub fn poll(&mut self, cq: &Cq) -> Result<(), String> {
        let mut out = [Wc::default(); 16];
        let count = cq.poll(&mut out).map_err(text)?;
        for wc in &out[..count] {
            if wc.status() != Status::SUCCESS {
                return Err(format!("a request failed with {}", wc.status()));
            }
            if wc.wr_id() == RECEIVE {
                self.received += 1;
                self.immediate |= wc.imm().is_some();
            } else {
                self.sent += wc.wr_id();
            }
        }
        Ok(())
    }

    /// Polls until `done`.
    #[inline]
    pub fn wait(&mut self, cq: &Cq, mut done: impl FnMut(&Tally) -> bool) -> Result<(), String> {
        let mut watch = Watch::new();
        while !done(self) {
            self.poll(cq)?;
            watch.tick()?;
        }
        Ok(())
    }
}

/// Ends a wait that takes too long, at little cost.
pub struct Watch {
    spins: u32,
    deadline: Option<Instant>,
}

impl Watch {
    /// Starts.
    pub fn new() -> Self {
        Watch { spins: 0, deadline: None }
    }

    /// One more turn.
    #[inline]
    pub fn tick(&mut self) -> Result<(), String> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(1 << 16) { self.look() } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self) -> Result<(), String> {
        let now = Instant::now();
        // Where both share a core, the other one must run.
        std::thread::yield_now();
        match *self.deadline.get_or_insert(now + PATIENCE) {
            deadline if now > deadline => Err(format!("nothing happened for {} s", PATIENCE.as_secs())),
            _ => Ok(()),
        }
    }
}

/// Median and 99th percentile.
pub fn percentiles(samples: &mut [Duration]) -> (Duration, Duration) {
    samples.sort_unstable();
    let at = |part: usize| samples[(samples.len() * part / 100).min(samples.len() - 1)];
    (at(50), at(99))
}
