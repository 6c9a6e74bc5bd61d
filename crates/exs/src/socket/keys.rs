//! Keys of transfers: a peer gets a key that reaches the advertised bytes only, and only until the operation ends.
//!
//! A key is that of a memory window of type 2, bound anew for each transfer and invalidated when it is over. A device
//! without such windows gives the key of the whole region (docs/exs.md). The peer's last message about a transfer
//! mostly invalidates the key: then nothing has to be done, and waited for, when it is over.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rdma::{Access, Bind, Data, Mr, Mw, MwKind, Pd, Qp, SendFlags, SendOp, SendWr};

use crate::protocol::{Buffer, Remote};

/// A window, and the key of its last bind. The low 8 bits are ours: each bind has others.
struct Window {
    mw: Arc<Mw>,
    rkey: u32,
    /// The peer has invalidated it.
    is_over: bool,
}

/// The windows of a queue pair.
pub(super) struct Keys {
    /// None: the device has none.
    pd: Option<Arc<Pd>>,
    free: Vec<Window>,
    bound: HashMap<u64, Window>,
    /// Their invalidation is posted.
    leaving: VecDeque<Window>,
}

impl Keys {
    pub fn new(pd: Option<Arc<Pd>>) -> Keys {
        Keys { pd, free: Vec::new(), bound: HashMap::new(), leaving: VecDeque::new() }
    }

    /// True if the device has windows of type 2.
    pub fn exist(pd: &Arc<Pd>) -> bool {
        pd.alloc_mw(MwKind::Type2).is_ok()
    }

    /// True if no key has to be taken back.
    pub fn is_unused(&self) -> bool {
        self.bound.is_empty()
    }

    /// Give the peer access to a buffer of operation `op`. Up to two requests are posted without a completion of their
    /// own, with `wr_id`; the result is the place for the peer, and their number.
    pub fn give(
        &mut self,
        qp: &Qp,
        mr: &Mr,
        buffer: Buffer,
        access: Access,
        wr_id: u64,
    ) -> rdma::Result<(Remote, usize)> {
        let addr = mr.addr() + buffer.offset;
        let Some(pd) = &self.pd else { return Ok((Remote { addr, rkey: mr.rkey() }, 0)) };
        if buffer.len == 0 {
            // A window has at least a byte (IBTA vol. 1, 10.6.6.2.2), and nothing will be read.
            return Ok((Remote { addr, rkey: 0 }, 0));
        }
        let mut posted = 1;
        let mut window = match self.bound.remove(&buffer.region) {
            // The advert before was void. The key of a window is invalidated before it is bound again (as above).
            Some(window) if window.is_over => window,
            Some(window) => {
                post(qp, wr_id, SendOp::LocalInv(window.rkey), SendFlags::empty())?;
                posted += 1;
                window
            }
            None => match self.free.pop() {
                Some(window) => window,
                None => {
                    let mw = pd.alloc_mw(MwKind::Type2)?;
                    Window { rkey: mw.rkey(), mw, is_over: false }
                }
            },
        };
        window.is_over = false;
        window.rkey = window.rkey & !0xff | window.rkey.wrapping_add(1) & 0xff;
        let (rkey, mw, Buffer { offset, len, .. }) = (window.rkey, &*window.mw, buffer);
        post(qp, wr_id, SendOp::BindMw(Bind { mw, rkey, mr, offset, len, access }), SendFlags::empty())?;
        self.bound.insert(buffer.region, window);
        Ok((Remote { addr, rkey }, posted))
    }

    /// Take the access back; its completion, with `wr_id`, ends in [`Keys::taken`]. False: there is none.
    pub fn take(&mut self, qp: &Qp, op: u64, wr_id: u64) -> rdma::Result<bool> {
        if self.bound.is_empty() {
            return Ok(false);
        }
        let Some(window) = self.bound.remove(&op) else { return Ok(false) };
        if window.is_over {
            self.free.push(window);
            return Ok(false);
        }
        post(qp, wr_id, SendOp::LocalInv(window.rkey), SendFlags::SIGNALED)?;
        self.leaving.push_back(window);
        Ok(true)
    }

    /// The peer has invalidated a key.
    pub fn invalidated(&mut self, rkey: u32) {
        if let Some(window) = self.bound.values_mut().find(|window| window.rkey == rkey) {
            window.is_over = true;
        }
    }

    /// The oldest [`Keys::take`] is completed.
    pub fn taken(&mut self) {
        self.free.extend(self.leaving.pop_front());
    }

    /// The queue pair is in state ERR, and no key of it works any more.
    pub fn drop_all(&mut self) {
        self.bound.clear();
        self.leaving.clear();
        self.free.clear();
    }
}

fn post(qp: &Qp, wr_id: u64, op: SendOp<'_>, flags: SendFlags) -> rdma::Result<()> {
    qp.post_send(&SendWr { flags, ..SendWr::new(wr_id, op, Data::Sges(&[])) })
}
