//! Counters of a queue pair: plain additions, in places where something happens anyway.

use report::facts::QpCounters;
use verbs::{Completion, Opcode, WcOpcode, WcStatus};
use wire::Nanos;

#[derive(Default)]
pub(crate) struct Counts {
    pub counters: QpCounters,
    /// The first RNR NAK since something was acknowledged, and the number of RNR NAKs before it.
    pub rnr_since: Option<(Nanos, u64)>,
}

impl Counts {
    /// Counts a send request of `len` bytes that is over.
    #[inline]
    pub fn completed(&mut self, opcode: Opcode, len: u32, status: WcStatus) {
        let counters = &mut self.counters;
        match status {
            WcStatus::Success => {
                counters.sent += 1;
                match opcode {
                    Opcode::RdmaRead => counters.received_bytes += u64::from(len),
                    // A request that was patched to a task may have a list.
                    _ if opcode.is_task() => {}
                    _ => counters.sent_bytes += u64::from(len),
                }
            }
            WcStatus::WrFlushErr => {}
            WcStatus::RemInvReqErr | WcStatus::RemAccessErr | WcStatus::RemOpErr => {
                counters.send_errors += 1;
                counters.remote_errors += 1;
            }
            _ => counters.send_errors += 1,
        }
    }

    /// Counts so many SENDs that are over, of so many bytes together.
    #[inline]
    pub fn sent(&mut self, n: u64, bytes: u64) {
        self.counters.sent += n;
        self.counters.sent_bytes += bytes;
    }

    /// Counts a receive that is over. The bytes of a WRITE with immediate data were counted as they came.
    #[inline]
    pub fn received(&mut self, wc: &Completion) {
        if wc.status == WcStatus::Success {
            self.received_bytes(1, if wc.opcode == WcOpcode::Recv { wc.byte_len.into() } else { 0 });
        }
    }

    /// Counts so many receives that are over, and that brought so many bytes together.
    #[inline]
    pub fn received_bytes(&mut self, n: u64, bytes: u64) {
        self.counters.received += n;
        self.counters.received_bytes += bytes;
    }

    /// Counts an RNR NAK that has come.
    pub fn not_ready(&mut self, now: Nanos) {
        self.rnr_since.get_or_insert((now, self.counters.rnr_naks_in));
        self.counters.rnr_naks_in += 1;
    }
}
