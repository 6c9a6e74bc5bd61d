//! One side of a connection: its objects, and its tasks.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma::{
    Access, Ah, AhAttr, Bind, CompChannel, Cq, Data, Gid, Mr, Mw, MwKind, Qp, QpCap, QpOptions, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Sge, Srq, Status, Wc, Xrcd, sys,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::pattern;
use super::shape::Piece;
use crate::fixture::{Endpoint, Fixture, PORT, text, wait};

/// The longest wait for a completion or an event.
const PATIENCE: Duration = Duration::from_secs(15);
/// The number of requests of a queue.
const DEPTH: u32 = 64;
/// The Q_Key of datagrams.
const QKEY: u32 = 0x1111_1111;
/// The numbers of inline bytes to ask for; a device that refuses one is asked for the next.
const INLINE: [u32; 5] = [256, 128, 64, 32, 0];
/// The cookie of the queue of sends.
const SENDS: u64 = 1;
/// The cookie of the queue of receives.
const RECEIVES: u64 = 2;

/// Transport service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the specification's
pub enum Service {
    Rc,
    Uc,
    Ud,
    Xrc,
}

/// The properties of a side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// The service of its queue pairs.
    pub service: Service,
    /// True if it receives from a shared receive queue. XRC always does.
    pub srq: bool,
    /// True if it waits for events instead of polling.
    pub events: bool,
    /// The bytes of each region.
    pub room: usize,
}

/// The abilities of the device that the tests need to know.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// The number of entries of a request.
    pub sges: usize,
    /// True for memory windows of type 1.
    pub windows: bool,
    /// True for memory windows of type 2, and the invalidation of their keys.
    pub windows2: bool,
    /// True for extended reliable connections.
    pub xrc: bool,
    /// True for atomics.
    pub atomics: bool,
    /// True for shared receive queues.
    pub srq: bool,
    /// The largest datagram, in bytes.
    pub datagram: usize,
}

/// Ask the device for its abilities.
pub fn caps(fixture: &Fixture) -> Result<Caps, String> {
    let attr = fixture.context.query_device().map_err(text)?;
    let has = |flag: u32| attr.device_cap_flags & flag != 0;
    Ok(Caps {
        sges: usize::try_from(attr.max_sge).unwrap_or(1),
        windows: has(sys::IBV_DEVICE_MEM_WINDOW) && attr.max_mw > 0,
        windows2: has(sys::IBV_DEVICE_MEM_WINDOW_TYPE_2A) || has(sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
        xrc: has(sys::IBV_DEVICE_XRC),
        atomics: attr.atomic_cap != sys::IBV_ATOMIC_NONE,
        srq: attr.max_srq > 0,
        datagram: 128 << fixture.mtu,
    })
}

/// A part of the region that peers use, and its expected content.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stretch {
    /// Its place.
    pub offset: usize,
    /// The number of bytes.
    pub len: usize,
    /// The seed of the pattern.
    pub seed: u64,
    /// The first of the pattern's bytes.
    pub start: usize,
}

/// A task of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Makes everything anew.
    Build(Spec),
    /// Connects to the other side.
    Connect(Endpoint),
    /// Fills parts of the region that peers use.
    Fill(Vec<Stretch>),
    /// Compares parts of the region that peers use.
    Compare(Vec<Stretch>),
    /// Posts a receive.
    Receive {
        /// Its number.
        wr_id: u64,
        /// The places of the data.
        pieces: Vec<Piece>,
    },
    /// Waits for a receive.
    Take {
        /// Where events are used: true to wait only for a solicited one.
        solicited: bool,
    },
    /// Sets the word for atomics.
    Store(u64),
    /// Reads the word for atomics.
    Load,
    /// Binds a window, of type 1 or 2.
    Bind {
        /// The type, 1 or 2.
        kind: u8,
        /// The first byte, in the region that peers use.
        offset: usize,
        /// The number of bytes.
        len: usize,
    },
    /// Makes the window's key invalid.
    Unbind,
}

/// The answer to a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The task is done.
    Done,
    /// The endpoint of this side.
    Endpoint(Endpoint),
    /// The first difference in the memory: the stretch, the byte in it, the expected value and the one that is there.
    Difference(Option<(usize, usize, u8, u8)>),
    /// A receive that was taken.
    Received(Received),
    /// The word for atomics.
    Word(u64),
    /// The key of the window.
    Key(u32),
}

/// A completion of a receive.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the ABI's
pub struct Received {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub byte_len: u32,
    pub imm: Option<u32>,
    pub invalidated: Option<u32>,
    pub grh: bool,
    pub src_qp: u32,
    pub qp_num: u32,
}

/// The place of the word for atomics, in the region that peers use.
pub const WORD: usize = 0;
/// The first place where messages may lie.
pub const BASE: usize = 256;

/// A window, and its type.
struct Window {
    kind: MwKind,
    rkey: u32,
    mw: Arc<Mw>,
}

/// One side.
pub struct Side {
    /// Its properties.
    pub spec: Spec,
    fixture: Rc<Fixture>,
    peer: RefCell<Option<(Endpoint, Option<Arc<Ah>>)>>,
    // The window is dropped before the region that it is bound to.
    window: RefCell<Option<Window>>,
    /// The queue pair for sends, and for receives if it is not XRC.
    qp: Arc<Qp>,
    /// The queue pair for receives, for XRC only.
    target: Option<Arc<Qp>>,
    srq: Option<Arc<Srq>>,
    sends: Arc<Cq>,
    receives: Arc<Cq>,
    /// The region of this side's own data.
    pub local: Arc<Mr>,
    /// The region that peers use.
    pub remote: Arc<Mr>,
    /// The number of inline bytes.
    pub inline: usize,
    psn: u32,
}

impl Side {
    /// Make everything but the connection.
    pub fn build(fixture: &Rc<Fixture>, spec: Spec) -> Result<Side, String> {
        let caps = caps(fixture)?;
        let Fixture { context, pd, .. } = &**fixture;
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        access.set(Access::REMOTE_ATOMIC, caps.atomics);
        let mut qp_access = access.difference(Access::LOCAL_WRITE);
        if spec.service == Service::Uc {
            qp_access = Access::REMOTE_WRITE;
        }
        access.set(Access::MW_BIND, caps.windows);
        let local = pd.reg_mr(spec.room, Access::LOCAL_WRITE).map_err(text)?;
        let remote = pd.reg_mr(spec.room, access).map_err(text)?;
        let channel = || -> Result<Option<Arc<CompChannel>>, String> {
            if !spec.events {
                return Ok(None);
            }
            let channel = context.create_comp_channel().map_err(text)?;
            channel.set_nonblocking().map_err(text)?;
            Ok(Some(channel))
        };
        let cq = |cookie| context.create_cq(2 * DEPTH, channel()?.as_ref(), cookie).map_err(text);
        let (sends, receives) = (cq(SENDS)?, cq(RECEIVES)?);
        let mut side = Parts { fixture, spec, caps, sends: &sends, receives: &receives }.queue_pairs()?;
        let qp_type = spec.service.sender();
        side.qp.init(qp_type, PORT, qp_access, QKEY).map_err(text)?;
        if let Some(target) = &side.target {
            target.init(QpType::XrcTgt, PORT, qp_access, QKEY).map_err(text)?;
        }
        let psn = side.qp.number().wrapping_mul(0x9e37) & 0xff_ffff;
        Ok(Side {
            spec,
            fixture: fixture.clone(),
            peer: RefCell::new(None),
            window: RefCell::new(None),
            qp: side.qp,
            target: side.target.take(),
            srq: side.srq.take(),
            sends,
            receives,
            local,
            remote,
            inline: side.inline,
            psn,
        })
    }

    /// The endpoint of this side.
    pub fn endpoint(&self) -> Result<Endpoint, String> {
        let srqn = match (&self.srq, self.spec.service) {
            (Some(srq), Service::Xrc) => srq.number().map_err(text)?,
            _ => 0,
        };
        Ok(Endpoint {
            qpn: self.target.as_ref().unwrap_or(&self.qp).number(),
            sender_qpn: self.qp.number(),
            gid: self.fixture.gid.0,
            lid: self.fixture.lid,
            psn: self.psn,
            addr: self.remote.addr(),
            rkey: self.remote.rkey(),
            srqn,
        })
    }

    /// Connect to the other side, which may be this one.
    pub fn connect(&self, peer: &Endpoint) -> Result<(), String> {
        let with = self.fixture.connect(self.psn, peer);
        let mut ah = None;
        match self.spec.service {
            Service::Rc => self.qp.connect(QpType::Rc, &with).map_err(text)?,
            Service::Uc => self.qp.connect(QpType::Uc, &with).map_err(text)?,
            Service::Ud => {
                self.qp.activate_ud(self.psn).map_err(text)?;
                let to = AhAttr {
                    dgid: Gid(peer.gid),
                    sgid_index: self.fixture.gid_index,
                    hop_limit: 64,
                    dlid: peer.lid,
                    is_global: peer.gid != [0; 16],
                    port_num: PORT,
                    ..AhAttr::default()
                };
                ah = Some(self.fixture.pd.create_ah(&to).map_err(text)?);
            }
            Service::Xrc => {
                self.qp.connect(QpType::XrcIni, &with).map_err(text)?;
                let target = self.target.as_ref().expect("made with it");
                let back = rdma::Connect { qpn: peer.sender_qpn, ..with };
                target.connect(QpType::XrcTgt, &back).map_err(text)?;
            }
        }
        *self.peer.borrow_mut() = Some((*peer, ah));
        Ok(())
    }

    /// The entries for pieces of a region.
    fn sges(mr: &Mr, pieces: &[Piece]) -> Vec<Sge> {
        pieces.iter().map(|(offset, len)| mr.sge(*offset, *len)).collect()
    }

    /// Post a request with pieces of this side's own data.
    pub fn post(
        &self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        pieces: &[Piece],
        inline: bool,
    ) -> Result<(), String> {
        let sges = Self::sges(&self.local, pieces);
        let copies: Vec<Vec<u8>> = match inline {
            false => Vec::new(),
            true => pieces
                .iter()
                .map(|(offset, len)| {
                    let mut bytes = vec![0; *len];
                    self.local.read(*offset, &mut bytes);
                    bytes
                })
                .collect(),
        };
        let slices: Vec<&[u8]> = copies.iter().map(Vec::as_slice).collect();
        let data = if inline { Data::Inline(&slices) } else { Data::Sges(&sges) };
        let peer = self.peer.borrow();
        let (peer, ah) = peer.as_ref().ok_or("not connected")?;
        let to = ah.as_ref().map(|ah| (&**ah, peer.qpn, QKEY));
        let wr = SendWr { flags: flags | SendFlags::SIGNALED, to, srqn: peer.srqn, ..SendWr::new(wr_id, op, data) };
        self.qp.post_send(&wr).map_err(text)
    }

    /// Post a SEND out of memory that no region covers.
    pub fn post_unregistered(&self, wr_id: u64, len: usize) -> Result<(), String> {
        // Address 8 is in no region; the key is a valid one.
        let sges = [Sge::raw(8, len as u32, self.local.lkey())];
        let wr = SendWr::new(wr_id, SendOp::Send, Data::Sges(&sges));
        self.qp.post_send(&wr).map_err(text)
    }

    /// The next completion of a send.
    pub fn sent(&self) -> Result<Wc, String> {
        self.next(&self.sends, SENDS, false)
    }

    /// The next completion of a queue, by polling or by an event.
    fn next(&self, cq: &Arc<Cq>, cookie: u64, solicited: bool) -> Result<Wc, String> {
        let Some(channel) = cq.channel() else { return wait(cq, PATIENCE) };
        let deadline = Instant::now() + PATIENCE;
        let mut out = [Wc::default()];
        loop {
            if cq.poll(&mut out).map_err(text)? == 1 {
                return Ok(out[0]);
            }
            cq.arm(solicited).map_err(text)?;
            // A completion that came before the queue was armed gives no event.
            if cq.poll(&mut out).map_err(text)? == 1 {
                return Ok(out[0]);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::new(channel, PollFlags::IN)];
            if poll(&mut fds, Some(&left)).map_err(text)? == 0 {
                // This tells a lost event from a lost completion.
                return Err(match cq.poll(&mut out).map_err(text)? {
                    0 => format!("no completion within {} s", PATIENCE.as_secs()),
                    _ => format!("no event for a completion within {} s", PATIENCE.as_secs()),
                });
            }
            let found = channel.event().map_err(text)?;
            if found != cookie {
                return Err(format!("the event names queue {found} instead of {cookie}"));
            }
        }
    }

    /// Carry out a task, except to build.
    pub fn perform(&self, task: Task) -> Result<Answer, String> {
        match task {
            Task::Build(_) => return Err("built already".into()),
            Task::Connect(peer) => self.connect(&peer)?,
            Task::Fill(stretches) => {
                for Stretch { offset, len, seed, start } in stretches {
                    pattern::fill(&self.remote, offset, len, seed, start);
                }
            }
            Task::Compare(stretches) => return Ok(Answer::Difference(compare(&self.remote, &stretches))),
            Task::Receive { wr_id, pieces } => {
                let sges = Self::sges(&self.remote, &pieces);
                let wr = RecvWr { wr_id, sges: &sges };
                match &self.srq {
                    Some(srq) => srq.post_recv(&wr),
                    None => self.qp.post_recv(&wr),
                }
                .map_err(text)?;
            }
            Task::Take { solicited } => {
                let wc = self.next(&self.receives, RECEIVES, solicited)?;
                return Ok(Answer::Received(Received {
                    wr_id: wc.wr_id(),
                    status: wc.status().0,
                    opcode: wc.opcode(),
                    byte_len: wc.byte_len(),
                    imm: wc.imm(),
                    invalidated: wc.invalidated_rkey(),
                    grh: wc.flags().contains(rdma::WcFlags::GRH),
                    src_qp: wc.src_qp(),
                    qp_num: wc.qp_num(),
                }));
            }
            Task::Store(value) => self.remote.word(WORD).store(value, std::sync::atomic::Ordering::SeqCst),
            Task::Load => {
                return Ok(Answer::Word(self.remote.word(WORD).load(std::sync::atomic::Ordering::SeqCst)));
            }
            Task::Bind { kind, offset, len } => return self.bind(kind, offset, len).map(Answer::Key),
            Task::Unbind => self.unbind()?,
        }
        Ok(Answer::Done)
    }

    fn done(&self, what: &str, opcode: u32) -> Result<(), String> {
        let wc = self.sent()?;
        if wc.status() != Status::SUCCESS {
            return Err(format!("{what} ended with {}", wc.status()));
        }
        if wc.opcode() != opcode {
            return Err(format!("the completion of {what} has opcode {} instead of {opcode}", wc.opcode()));
        }
        Ok(())
    }

    fn bind(&self, kind: u8, offset: usize, len: usize) -> Result<u32, String> {
        let kind = if kind == 1 { MwKind::Type1 } else { MwKind::Type2 };
        let mw = self.fixture.pd.alloc_mw(kind).map_err(text)?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        // Type 2: the low byte is the program's choice, any but the present one.
        let rkey = mw.rkey() ^ 1;
        let bind = Bind { mw: &mw, rkey, mr: &self.remote, offset: offset as u64, len: len as u64, access };
        let rkey = match kind {
            MwKind::Type1 => {
                self.qp.bind_mw(1, SendFlags::SIGNALED, &bind).map_err(text)?;
                mw.rkey()
            }
            MwKind::Type2 => {
                self.qp.post_send(&SendWr::new(1, SendOp::BindMw(bind), Data::Sges(&[]))).map_err(text)?;
                rkey
            }
        };
        self.done("the bind", sys::IBV_WC_BIND_MW)?;
        *self.window.borrow_mut() = Some(Window { kind, rkey, mw });
        Ok(rkey)
    }

    fn unbind(&self) -> Result<(), String> {
        let window = self.window.borrow();
        let Window { kind, rkey, mw } = window.as_ref().ok_or("there is no window")?;
        match kind {
            MwKind::Type1 => {
                let access = Access::empty();
                let bind = Bind { mw, rkey: 0, mr: &self.remote, offset: 0, len: 0, access };
                self.qp.bind_mw(2, SendFlags::SIGNALED, &bind).map_err(text)?;
                self.done("the unbind", sys::IBV_WC_BIND_MW)
            }
            MwKind::Type2 => {
                let wr = SendWr::new(2, SendOp::LocalInv(*rkey), Data::Sges(&[]));
                self.qp.post_send(&wr).map_err(text)?;
                self.done("the local invalidate", sys::IBV_WC_LOCAL_INV)
            }
        }
    }
}

/// The first difference in a list of stretches.
pub fn compare(mr: &Mr, stretches: &[Stretch]) -> Option<(usize, usize, u8, u8)> {
    stretches.iter().enumerate().find_map(|(i, Stretch { offset, len, seed, start })| {
        pattern::compare(mr, *offset, *len, *seed, *start).map(|found| (i, found.at, found.expected, found.found))
    })
}

impl Service {
    /// The type of the queue pair that sends.
    fn sender(self) -> QpType {
        match self {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
            Service::Xrc => QpType::XrcIni,
        }
    }
}

/// The objects that queue pairs are made from.
struct Parts<'a> {
    fixture: &'a Fixture,
    spec: Spec,
    caps: Caps,
    sends: &'a Arc<Cq>,
    receives: &'a Arc<Cq>,
}

/// The queue pairs of one side.
struct QueuePairs {
    qp: Arc<Qp>,
    target: Option<Arc<Qp>>,
    srq: Option<Arc<Srq>>,
    inline: usize,
}

impl Parts<'_> {
    fn queue_pairs(&self) -> Result<QueuePairs, String> {
        let Fixture { context, pd, .. } = self.fixture;
        let entries = self.caps.sges.min(super::MOST_ENTRIES) as u32;
        let (mut srq, mut target) = (None, None);
        if self.spec.service == Service::Xrc {
            let xrcd: Arc<Xrcd> = context.open_xrcd().map_err(text)?;
            srq = Some(pd.create_xrc_srq(DEPTH, entries, &xrcd, self.receives).map_err(text)?);
            let options = QpOptions {
                qp_type: QpType::XrcTgt,
                send_cq: None,
                recv_cq: None,
                srq: None,
                xrcd: Some(&xrcd),
                cap: QpCap::default(),
                sq_sig_all: false,
            };
            target = Some(pd.create_qp(&options).map_err(text)?);
        } else if self.spec.srq {
            srq = Some(pd.create_srq(DEPTH, entries, 0).map_err(text)?);
        }
        let xrc = self.spec.service == Service::Xrc;
        let mut made = Err(String::new());
        for max_inline_data in INLINE {
            let cap = self.fixture.cap(QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: if srq.is_some() { 0 } else { DEPTH },
                max_send_sge: entries,
                max_recv_sge: if srq.is_some() { 0 } else { entries },
                max_inline_data,
            })?;
            let options = QpOptions {
                qp_type: self.spec.service.sender(),
                send_cq: Some(self.sends),
                recv_cq: (!xrc).then_some(self.receives),
                srq: srq.as_ref().filter(|_| !xrc),
                xrcd: None,
                cap,
                sq_sig_all: false,
            };
            made = pd.create_qp(&options).map_err(text);
            if made.is_ok() {
                break;
            }
        }
        let qp = made?;
        let inline = qp.cap().max_inline_data as usize;
        Ok(QueuePairs { qp, target, srq, inline })
    }
}
