//! The send queue: an array of 64-byte entries in memory with a producer index.
//!
//! An entry is read when it executes and not before, copied out first, and checked like anything from outside, so that
//! a program or peer that can write to the array may patch entries until then. A work request takes `stride` entries,
//! the same number for all requests of a queue:
//!
//! | bytes | first entry |
//! |---|---|
//! | 0 | opcode (`enum ibv_wr_opcode`; tasks: 0x80 NOP, 0x81 WAIT, 0x82 SEND_EN, 0x83 RECV_EN) |
//! | 1 | flags (`enum ibv_send_flags`) |
//! | 2..4 | number of scatter/gather entries |
//! | 4..8 | immediate value (network order) or rkey to invalidate |
//! | 8..16 | wr_id |
//! | 16..24 | remote address; datagrams: address handle index, generation; BIND_MW: start; executed at its post: when |
//! | 24..28 | rkey; datagrams: Q_Key; BIND_MW: the new rkey |
//! | 28..32 | bytes of inline data; datagrams with scatter/gather: 0; FLUSH: bytes |
//! | 32..40 | compare or add; datagrams: remote QP; BIND_MW: length; FLUSH: placement, level << 8; XRC: SRQ number |
//! | 40..48 | swap; BIND_MW: access rights, region index << 32 |
//! | 48..64 | first SGE (address u64, length u32, lkey u32), or inline data; BIND_MW: see below |
//!
//! WAIT and ENABLE ([`crate::wq::managed`]) have the count in 16..24, what is added to it in 28..32, and in 32..40 the
//! completion queue or the queue pair: index, generation << 32.
//!
//! BIND_MW has in 48..64: window index, window generation, region generation, and whether there is a region.
//!
//! No copy is kept of a request that is executed at its post (`fast`): its attributes are read here until it completes.
//! A write over a request under way changes its completion, and the packet of a repetition.
//!
//! The following entries hold four scatter/gather entries each, or more inline data. All fields are in host byte order
//! but for the immediate value.

mod copy;
mod inline;

use std::sync::atomic::{AtomicU64, Ordering};

use verbs::{Count, CqId, Errno, Opcode, QpId, Result, SendBody, SendData, SendFlags, SendWr, Sge};
use wire::Nanos;

pub(crate) use copy::Head;

use crate::wq::inflight::Inflight;
use crate::wq::managed::{Base, Entries, ManagedQueue, ManagedSend, Waiting};

const WORDS: usize = 8;
/// Bytes before the data in the first entry.
const HEAD: usize = 48;

#[repr(C, align(64))]
struct Entry([AtomicU64; WORDS]);

/// A small request that is executed when it is posted.
#[derive(Clone, Copy)]
pub(crate) struct Executed {
    pub wr_id: u64,
    pub opcode: Opcode,
    pub flags: SendFlags,
    pub imm: u32,
    pub since: Nanos,
}

pub(crate) struct SendQueue {
    entries: Box<[Entry]>,
    stride: usize,
    /// Number of places, less 1.
    mask: u64,
    /// Requests that the queue holds.
    pub depth: u32,
    pub max_sge: u32,
    pub max_inline: u32,
    /// Requests posted since creation or reset: the producer index.
    pub posted: u64,
    /// Requests fetched for execution.
    pub fetched: u64,
    /// Requests with a free place again: a completion behind them was polled.
    pub retired: u64,
    /// Requests posted before the last reset.
    before: u64,
    /// `posted` less this (modulo 2^64) is where fetching ends: 0, but for requests that are not enabled, and behind a
    /// WAIT.
    held_back: u64,
    /// What the WAIT at the head waits for.
    waiting: Option<Waiting>,
    /// Requests begun since the queue last waited or rested, and rests since it last waited.
    in_a_row: u32,
    rests: u32,
    /// No request begins: many have.
    is_at_rest: bool,
    pub managed: Option<Box<ManagedSend>>,
}

/// The first word of an entry.
fn first_word(opcode: Opcode, flags: SendFlags, sges: u16, imm: u32) -> u64 {
    u64::from(opcode as u8) | u64::from(flags.bits() as u8) << 8 | u64::from(sges) << 16 | u64::from(imm) << 32
}

/// The second word of a scatter/gather entry.
fn length_and_key(sge: &Sge) -> u64 {
    u64::from(sge.length) | u64::from(sge.lkey.0) << 32
}

/// The count that a task's entry holds. A post has made it absolute.
fn absolute(count: Count) -> u64 {
    match count {
        Count::Absolute(count) => count,
        Count::Relative { count, .. } => count.into(),
    }
}

impl SendQueue {
    /// A new queue; ENOMEM without memory for so many requests.
    pub fn new(depth: u32, max_sge: u32, max_inline: u32) -> Result<Self> {
        let data = (max_sge as usize * 16).max(max_inline as usize);
        let stride = 1 + data.saturating_sub(64 - HEAD).div_ceil(64);
        // A power of two: finding an entry costs no division.
        let count = (depth as usize).next_power_of_two() * stride;
        let mut entries = Vec::new();
        entries.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        entries.resize_with(count, || Entry(std::array::from_fn(|_| AtomicU64::new(0))));
        let entries = entries.into_boxed_slice();
        let mask = u64::from(depth).next_power_of_two() - 1;
        Ok(SendQueue {
            entries,
            stride,
            mask,
            depth,
            max_sge,
            max_inline,
            posted: 0,
            fetched: 0,
            retired: 0,
            before: 0,
            held_back: 0,
            waiting: None,
            in_a_row: 0,
            rests: 0,
            is_at_rest: false,
            managed: None,
        })
    }

    /// A managed queue. Its depth is a power of two. It takes no inline data: they would be read from the array when a
    /// packet is sent again, and the entry may have been patched for its next turn then.
    ///
    /// # Errors
    /// As [`Entries::new`].
    pub fn new_managed(depth: u32, max_sge: u32, managed: &ManagedQueue) -> Result<Self> {
        let entries = Entries::new(managed, depth, max_sge)?;
        let mut queue = SendQueue::new(0, max_sge, 0)?;
        queue.stride = entries.stride() as usize / 64;
        (queue.depth, queue.mask) = (depth, u64::from(depth) - 1);
        queue.managed = Some(Box::new(ManagedSend { entries, enabled: 0, base: Base::default(), looks_again: false }));
        Ok(queue)
    }

    pub fn room(&self) -> u32 {
        self.depth.saturating_sub((self.posted - self.retired) as u32)
    }

    pub fn is_full(&self) -> bool {
        self.posted - self.retired >= u64::from(self.depth)
    }

    fn base(&self, number: u64) -> usize {
        (number & self.mask) as usize * self.stride * WORDS
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        match &self.managed {
            None => &self.entries[at / WORDS].0[at % WORDS],
            Some(managed) => &managed.entries.array().words()[at],
        }
    }

    /// The first entry of a request.
    fn first(&self, number: u64) -> &[AtomicU64; WORDS] {
        let at = self.base(number) / WORDS;
        match &self.managed {
            None => &self.entries[at].0,
            Some(managed) => &managed.entries.array().words().as_chunks().0[at],
        }
    }

    fn put(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Relaxed);
    }

    fn get(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Writes a checked request behind the last one and advances the producer index.
    #[inline] // the only call
    pub fn push(&mut self, wr: &SendWr<'_>, flags: SendFlags) {
        let (mut w2, mut key, mut extra, mut w4, mut w5) = (0u64, 0u32, 0u32, u64::from(wr.remote_srqn), 0u64);
        let mut tail = None;
        match *wr.body {
            SendBody::Plain => {}
            SendBody::Rdma { remote_addr, rkey } => (w2, key) = (remote_addr, rkey.0),
            SendBody::Atomic { remote_addr, rkey, compare_add, swap } => {
                (w2, key, w4, w5) = (remote_addr, rkey.0, compare_add, swap);
            }
            SendBody::Datagram { ah, remote_qpn, remote_qkey } => {
                w2 = u64::from(ah.index) | u64::from(ah.generation) << 32;
                (key, w4) = (remote_qkey, u64::from(remote_qpn.get()));
            }
            SendBody::BindMw { mw, rkey, mr, addr, length, access } => {
                (w2, key, w4) = (addr, rkey.0, length);
                w5 = u64::from(access.bits()) | u64::from(mr.map_or(0, |m| m.index)) << 32;
                tail = Some((
                    u64::from(mw.index) | u64::from(mw.generation) << 32,
                    u64::from(mr.map_or(0, |m| m.generation)) | u64::from(mr.is_some()) << 32,
                ));
            }
            SendBody::Flush { remote_addr, rkey, length, placement, level } => {
                (w2, key, extra) = (remote_addr, rkey.0, length);
                w4 = u64::from(placement) | u64::from(level) << 8;
            }
            SendBody::Wait { cq: CqId { index, generation }, count, step }
            | SendBody::Enable { qp: QpId { index, generation }, count, step } => {
                (w2, extra) = (absolute(count), step);
                w4 = u64::from(index) | u64::from(generation) << 32;
            }
        }
        let mut sges = 0;
        let first = self.first(self.posted);
        let put = |at: usize, value: u64| first[at].store(value, Ordering::Relaxed);
        if let Some((a, b)) = tail {
            put(HEAD / 8, a);
            put(HEAD / 8 + 1, b);
        } else {
            let data = self.base(self.posted) + HEAD / 8;
            match wr.data {
                SendData::Sges(list) => {
                    sges = list.len() as u16;
                    if let Some((sge, others)) = list.split_first() {
                        put(HEAD / 8, sge.addr);
                        put(HEAD / 8 + 1, length_and_key(sge));
                        for (i, sge) in others.iter().enumerate() {
                            self.put(data + 2 * i + 2, sge.addr);
                            self.put(data + 2 * i + 3, length_and_key(sge));
                        }
                    }
                }
                SendData::Inline(pieces) => extra = self.put_inline(self.posted, pieces),
            }
        }
        put(0, first_word(wr.opcode, flags, sges, wr.imm_or_rkey));
        put(1, wr.wr_id);
        put(2, w2);
        put(3, u64::from(key) | u64::from(extra) << 32);
        put(4, w4);
        put(5, w5);
        if let Some(managed) = &mut self.managed {
            managed.entries.keep(self.posted);
        }
        self.posted += 1;
        self.refresh();
        self.settle();
    }

    /// Notes that the program has done something for the queue: it runs in no circle that feeds itself.
    pub fn refresh(&mut self) {
        (self.in_a_row, self.rests) = (0, 0);
    }

    /// Finds anew where fetching ends.
    fn settle(&mut self) {
        let end = match &self.managed {
            _ if self.is_at_rest || self.waiting.is_some() => self.fetched,
            Some(managed) => managed.enabled,
            None => self.posted,
        };
        self.held_back = self.posted.wrapping_sub(end);
    }

    /// True if there is an entry that may be fetched.
    #[inline(always)]
    pub fn is_runnable(&self) -> bool {
        self.fetched != self.posted.wrapping_sub(self.held_back)
    }

    /// Holds back the entry at the head, which is a WAIT, and all behind it.
    pub fn wait(&mut self, waiting: Waiting) {
        (self.waiting, self.in_a_row, self.rests) = (Some(waiting), 0, 0);
        self.settle();
    }

    /// Counts an entry that begins; how many have begun without a wait.
    pub fn begin(&mut self) -> u32 {
        self.in_a_row += 1;
        self.in_a_row
    }

    /// Takes one back that was counted; how many were counted before that.
    pub fn unbegin(&mut self) -> u32 {
        self.in_a_row = self.in_a_row.saturating_sub(1);
        self.in_a_row + 1
    }

    /// Begins a rest, in which no entry begins; how many came before it without a wait.
    pub fn rest(&mut self) -> u32 {
        (self.is_at_rest, self.in_a_row, self.rests) = (true, 0, self.rests.saturating_add(1));
        self.settle();
        self.rests - 1
    }

    /// Notes that the queue waits for room. False if that is known, and a look at it is to come.
    pub fn look_again(&mut self) -> bool {
        self.managed.as_mut().is_some_and(|managed| !std::mem::replace(&mut managed.looks_again, true))
    }

    pub fn end_rest(&mut self) {
        self.is_at_rest = false;
        if let Some(managed) = &mut self.managed {
            managed.looks_again = false;
        }
        self.settle();
    }

    /// Lets the entry at the head be tried again; what it waited for.
    pub fn end_wait(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.take()?;
        self.settle();
        Some(waiting)
    }

    /// What the WAIT at the head waits for.
    pub fn waiting(&self) -> Option<Waiting> {
        self.waiting
    }

    /// Enables the entries below this count.
    ///
    /// # Errors
    /// EINVAL: the queue is not managed, or has no entries that far.
    pub fn enable(&mut self, count: u64) -> Result<()> {
        let posted = self.posted;
        let full = posted >= u64::from(self.depth);
        let managed = self.managed.as_mut().ok_or(Errno::EINVAL)?;
        // No count comes near 2^63 by executing entries: comparisons of counts need no wrap.
        if count > posted && !(managed.entries.rules.cyclic && full) || count >> 63 != 0 {
            return Err(Errno::EINVAL);
        }
        managed.enabled = managed.enabled.max(count);
        self.settle();
        Ok(())
    }

    /// The rule that the next entry breaks.
    pub fn broken(&self, number: u64) -> Option<&'static str> {
        self.managed.as_ref()?.entries.broken(number)
    }

    /// Adds to the count of an executed task, for the next turn of the circle.
    pub fn count_on(&mut self, number: u64, step: u32) {
        if let Some(managed) = self.managed.as_mut().filter(|_| step > 0) {
            managed.entries.count_on(number, step);
        }
    }

    /// True if the queue runs in a circle.
    pub fn is_cyclic(&self) -> bool {
        self.managed.as_ref().is_some_and(|managed| managed.entries.rules.cyclic)
    }

    /// Frees the places of a completed request of a managed queue. A cyclic queue is filled once.
    pub fn completed(&mut self, number: u64) {
        if self.managed.as_ref().is_some_and(|managed| !managed.entries.rules.cyclic) {
            self.retired = self.retired.max(number + 1);
        }
    }

    /// Address and bytes of the entries of a request, for a managed queue.
    pub fn array(&self) -> Option<(u64, u32)> {
        self.managed.as_ref().map(|managed| (managed.entries.array().addr(), managed.entries.stride()))
    }

    /// Writes a small request behind the last one. The request has one scatter/gather entry and is executed now. The
    /// producer index stays.
    #[inline(always)]
    pub fn write_sge(&self, first: Executed, sge: &Sge) {
        let entry = self.write_executed(first, 1);
        entry[HEAD / 8].store(sge.addr, Ordering::Relaxed);
        entry[HEAD / 8 + 1].store(length_and_key(sge), Ordering::Relaxed);
    }

    /// Writes the entry of an executed request with inline data.
    #[inline(always)]
    pub fn write_inline(&self, first: Executed, data: &[u8]) {
        let entry = self.write_executed(first, 0);
        entry[3].store((data.len() as u64) << 32, Ordering::Relaxed);
        match data.as_array::<8>() {
            Some(word) => entry[HEAD / 8].store(u64::from_ne_bytes(*word), Ordering::Relaxed),
            None => {
                self.put_inline(self.posted, &[data]);
            }
        }
    }

    #[inline(always)]
    fn write_executed(&self, first: Executed, sges: u16) -> &[AtomicU64; WORDS] {
        let entry = &self.entries[self.base(self.posted) / WORDS].0;
        entry[0].store(first_word(first.opcode, first.flags, sges, first.imm), Ordering::Relaxed);
        entry[1].store(first.wr_id, Ordering::Relaxed);
        entry[2].store(first.since, Ordering::Relaxed);
        entry
    }

    /// The fields of such a request for its completion: `wr_id`, flags, bytes.
    #[inline(always)]
    pub fn executed(&self, number: u64) -> (u64, SendFlags, u32) {
        let entry = &self.entries[self.base(number) / WORDS].0;
        let word = |at: usize| entry[at].load(Ordering::Relaxed);
        let flags = SendFlags::from_bits_truncate((word(0) >> 8) as u32 & 0xff);
        let len = if flags.contains(SendFlags::INLINE) { word(3) >> 32 } else { word(HEAD / 8 + 1) & 0xffff_ffff };
        (word(1), flags, len as u32)
    }

    /// Copies the next request out; `None` in the number's place when the entry makes no sense (it was overwritten).
    ///
    /// This takes entries that are held back, too.
    pub fn fetch(&mut self) -> Option<(u64, Option<Inflight>)> {
        if self.fetched >= self.posted {
            return None;
        }
        let number = self.advance();
        Some((number, self.copy(number)))
    }

    /// Takes the next request, which has been copied; its number.
    pub fn advance(&mut self) -> u64 {
        self.fetched += 1;
        self.fetched - 1
    }

    /// Requests that wait in the queue, for facts. Those of a circle wait again when they have been executed, as far as
    /// they are enabled.
    pub fn to_come(&self) -> u64 {
        let ahead = self.managed.as_ref().filter(|_| self.is_cyclic()).map_or(0, |managed| managed.enabled);
        ahead.max(self.posted).saturating_sub(self.fetched).min(self.depth.into())
    }

    /// Requests that have not begun.
    pub fn unfetched(&self) -> u64 {
        self.posted.saturating_sub(self.fetched)
    }

    /// The next request that may be fetched, without taking it.
    pub fn peek(&self) -> Option<Option<Inflight>> {
        self.is_runnable().then(|| self.copy(self.fetched))
    }

    /// `wr_id` of a request, also of one that is not understood.
    pub fn wr_id(&self, number: u64) -> u64 {
        self.get(self.base(number) + 1)
    }

    /// Requests posted since the queue was made.
    pub fn total(&self) -> u64 {
        self.before + self.posted
    }

    /// Places in use, and how many of them by signaled requests.
    pub fn held(&self) -> (u32, u32) {
        let flags = |number| SendFlags::from_bits_truncate((self.get(self.base(number)) >> 8) as u32 & 0xff);
        let signaled = (self.retired..self.posted).filter(|n| flags(*n).contains(SendFlags::SIGNALED)).count();
        ((self.posted - self.retired) as u32, signaled as u32)
    }

    /// A request of the array.
    #[cfg(test)]
    pub fn entry(&self, number: u64) -> Option<Inflight> {
        self.copy(number)
    }

    /// Overwrites a word of the array, as a program or peer that can write to it may.
    #[cfg(test)]
    pub fn poke(&self, at: usize, value: u64) {
        self.put(at % (self.entries.len() * WORDS), value);
    }

    /// Forgets everything (RESET).
    pub fn reset(&mut self) {
        self.before += self.posted;
        (self.posted, self.fetched, self.retired) = (0, 0, 0);
        (self.waiting, self.is_at_rest, self.in_a_row, self.rests) = (None, false, 0, 0);
        if let Some(managed) = &mut self.managed {
            (managed.enabled, managed.base) = (0, Default::default());
        }
        self.settle();
    }
}
