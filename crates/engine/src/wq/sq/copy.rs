//! Entries copied out of the array, checked and understood.

use std::sync::atomic::Ordering;

use verbs::{
    Access, AhId, Count, CqId, LKey, MrId, MwId, Opcode, Psn, QpId, Qpn, RKey, SendBody, SendFlags, Sge, WcStatus,
};

use super::{HEAD, SendQueue, WORDS};
use crate::wq::inflight::{Carrier, Inflight};
use crate::wq::managed::Words;
use crate::wq::rq::set_list;

/// A NOP or a WAIT that was copied out of the array.
pub(crate) struct TaskEntry {
    pub wr_id: u64,
    pub flags: SendFlags,
    /// A WAIT's; a NOP has none.
    pub body: SendBody,
}

/// What a WAIT's entry says.
fn wait_body(w: &[u64; WORDS]) -> SendBody {
    SendBody::Wait {
        cq: CqId { index: w[4] as u32, generation: (w[4] >> 32) as u32 },
        count: Count::Absolute(w[2]),
        step: (w[3] >> 32) as u32,
    }
}

/// The entry of a managed queue that has one entry for each request: copied, and found to break no rule of its queue.
/// What its members mean depends on its operation ([`super`]).
pub(crate) struct Head([u64; WORDS]);

impl Head {
    #[inline(always)]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_entry(self.0[0] as u8)
    }

    #[inline(always)]
    pub fn flags(&self) -> SendFlags {
        SendFlags::from_bits_truncate((self.0[0] >> 8) as u32 & 0xff)
    }

    #[inline(always)]
    pub fn imm(&self) -> u32 {
        (self.0[0] >> 32) as u32
    }

    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.0[1]
    }

    #[inline(always)]
    pub fn remote_addr(&self) -> u64 {
        self.0[2]
    }

    #[inline(always)]
    pub fn rkey(&self) -> RKey {
        RKey(self.0[3] as u32)
    }

    /// What is added to the count of a WAIT for the next turn of the circle.
    #[inline(always)]
    pub fn step(&self) -> u32 {
        (self.0[3] >> 32) as u32
    }

    #[inline(always)]
    pub fn wait(&self) -> SendBody {
        wait_body(&self.0)
    }

    /// The scatter/gather list, if it has one member.
    #[inline(always)]
    pub fn only_sge(&self) -> Option<Sge> {
        let [addr, second] = [self.0[HEAD / 8], self.0[HEAD / 8 + 1]];
        let sge = Sge { addr, length: second as u32, lkey: LKey((second >> 32) as u32) };
        ((self.0[0] >> 16) as u16 == 1).then_some(sge)
    }

    /// Makes `to` this entry, which is a SEND with a list of one member, and which is sent in one packet now.
    #[inline(always)]
    pub fn list_send(&self, number: u64, sge: Sge, to: &mut Inflight) {
        set_list(&mut to.sges, &[sge]);
        (to.number, to.wr_id, to.opcode, to.flags) = (number, self.wr_id(), Opcode::Send, self.flags());
        (to.imm, to.srqn, to.body, to.inline_len) = (self.imm(), 0, SendBody::Plain, 0);
        (to.len, to.psns, to.sent, to.received, to.executed) = (sge.length, 1, 0, 0, 0);
        (to.one_sided, to.out, to.done, to.by_ref) = (false, false, false, false);
        (to.carrier, to.error) = (Carrier::Mixed, None);
    }
}

impl SendQueue {
    /// The entry at the head of a managed queue, which is runnable. `None` if it takes a look at all of its words: it
    /// breaks a rule, has inline data or a long list.
    #[inline(always)]
    pub fn head(&self) -> Option<Head> {
        let head = Head(self.managed.as_ref()?.entries.only(self.fetched)?);
        let plain = (head.0[0] >> 16) as u16 <= 1 && !head.flags().contains(SendFlags::INLINE);
        plain.then_some(head)
    }

    /// The words of the first entry of a request, copied and checked; `None` if they break a rule of a managed queue.
    #[inline(always)]
    fn first_words(&self, number: u64) -> Option<[u64; WORDS]> {
        match &self.managed {
            None => {
                let first = self.first(number);
                Some(std::array::from_fn(|at| first[at].load(Ordering::Relaxed)))
            }
            Some(managed) => managed.entries.first(number),
        }
    }

    /// The next request that may be fetched, if it is a NOP or a WAIT, without taking it.
    #[inline]
    pub fn peek_task(&self) -> Option<TaskEntry> {
        // Most entries are of another kind, which the first byte shows; it counts only when it has been copied.
        if !self.is_runnable() || self.get(self.base(self.fetched)) as u8 & 0xfe != Opcode::Nop as u8 {
            return None;
        }
        let w = self.first_words(self.fetched)?;
        let flags = SendFlags::from_bits_truncate((w[0] >> 8) as u32 & 0xff);
        let body = match Opcode::from_entry(w[0] as u8)? {
            Opcode::Nop => SendBody::Plain,
            Opcode::Wait => wait_body(&w),
            _ => return None,
        };
        let sound = (w[0] >> 16) as u16 as usize <= self.max_sge as usize && !flags.contains(SendFlags::INLINE);
        sound.then_some(TaskEntry { wr_id: w[1], flags, body })
    }

    /// Copies a request to `to`, as one that has not begun. `None` if the entry makes no sense; then `to` is of no use.
    // The request is made in its place, since it is larger than what one copy of it should cost.
    #[inline]
    pub(super) fn read(&self, number: u64, to: &mut Inflight) -> Option<()> {
        // What is checked is used: all words of a managed queue's entry are copied first.
        let copied: Option<Words> = match &self.managed {
            Some(managed) if self.stride > 1 => Some(managed.entries.checked(number)?),
            _ => None,
        };
        let w: [u64; WORDS] = match &copied {
            None => self.first_words(number)?,
            Some(words) => std::array::from_fn(|at| words[at]),
        };
        let opcode = Opcode::from_entry(w[0] as u8)?;
        let flags = SendFlags::from_bits_truncate((w[0] >> 8) as u32 & 0xff);
        let count = (w[0] >> 16) as u16 as usize;
        let (key, extra) = (RKey(w[3] as u32), (w[3] >> 32) as u32);
        let inline_len = if flags.contains(SendFlags::INLINE) { extra } else { 0 };
        if count > self.max_sge as usize || inline_len > self.max_inline {
            return None;
        }
        let body = match opcode {
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead | Opcode::AtomicWrite => {
                SendBody::Rdma { remote_addr: w[2], rkey: key }
            }
            Opcode::CmpAndSwp | Opcode::FetchAndAdd => {
                SendBody::Atomic { remote_addr: w[2], rkey: key, compare_add: w[4], swap: w[5] }
            }
            Opcode::BindMw => SendBody::BindMw {
                mw: MwId { index: w[6] as u32, generation: (w[6] >> 32) as u32 },
                rkey: key,
                mr: (w[7] >> 32 != 0).then_some(MrId { index: (w[5] >> 32) as u32, generation: w[7] as u32 }),
                addr: w[2],
                length: w[4],
                access: Access::from_bits_truncate(w[5] as u32),
            },
            Opcode::Flush => SendBody::Flush {
                remote_addr: w[2],
                rkey: key,
                length: extra,
                placement: w[4] as u8,
                level: (w[4] >> 8) as u8,
            },
            Opcode::Nop => SendBody::Plain,
            Opcode::Wait => wait_body(&w),
            Opcode::SendEn | Opcode::RecvEn => SendBody::Enable {
                qp: QpId { index: w[4] as u32, generation: (w[4] >> 32) as u32 },
                count: Count::Absolute(w[2]),
                step: extra,
            },
            Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInv | Opcode::LocalInv => SendBody::Datagram {
                ah: AhId { index: w[2] as u32, generation: (w[2] >> 32) as u32 },
                remote_qpn: Qpn::new(w[4] as u32),
                remote_qkey: key.0,
            },
        };
        to.sges.clear();
        let sge = |addr, second: u64| Sge { addr, length: second as u32, lkey: LKey((second >> 32) as u32) };
        if count > 0 {
            to.sges.push(sge(w[HEAD / 8], w[HEAD / 8 + 1]));
        }
        let base = self.base(number);
        let word = |at: usize| copied.as_ref().map_or_else(|| self.get(base + at), |words| words[at]);
        for at in (1..count).map(|i| HEAD / 8 + 2 * i) {
            to.sges.push(sge(word(at), word(at + 1)));
        }
        (to.number, to.wr_id, to.opcode, to.flags) = (number, w[1], opcode, flags);
        (to.imm, to.srqn, to.body, to.inline_len) = ((w[0] >> 32) as u32, w[4] as u32, body, inline_len);
        to.len = if flags.contains(SendFlags::INLINE) {
            inline_len
        } else {
            to.sges.iter().fold(0, |len: u32, sge| len.saturating_add(sge.length))
        };
        (to.psns, to.sent, to.received, to.executed) = (0, 0, 0, 0);
        (to.one_sided, to.out, to.done, to.by_ref, to.queued) = (false, false, false, false, false);
        (to.refused, to.carrier, to.error) = (false, Carrier::Free, None);
        Some(())
    }

    /// Makes `to` the request of this number, which was executed as it was posted ([`SendQueue::write_executed`]): one
    /// packet, which is out. If its entry makes no sense (it was overwritten), `to` is a request that failed.
    pub fn list(&self, number: u64, first_psn: Psn, mtu: u32, to: &mut Inflight) {
        let sound = self.read(number, to).is_some()
            && matches!(to.opcode, Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInv);
        if !sound {
            *to = Inflight::failed(number, self.wr_id(number), WcStatus::LocQpOpErr, first_psn);
            return;
        }
        let len = to.len.min(mtu);
        (to.len, to.sent, to.psns, to.out) = (len, len, 1, true);
        (to.first_psn, to.since) = (first_psn, self.get(self.base(number) + 2));
    }

    /// A request of the array, as one that has not begun; `None` if the entry makes no sense.
    pub(super) fn copy(&self, number: u64) -> Option<Inflight> {
        let mut request = Inflight::default();
        self.read(number, &mut request)?;
        Some(request)
    }

    /// Copies the next request to `to`, without taking it; the queue is runnable. False if its entry makes no sense;
    /// then `to` is of no use.
    #[inline(always)]
    pub fn peek_into(&self, to: &mut Inflight) -> bool {
        self.read(self.fetched, to).is_some()
    }
}
