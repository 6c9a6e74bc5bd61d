//! Notices of long transfers: see `protocol/notice.rs`. Here they are written, and found in the memory behind the ring,
//! or in that which packets have for them.

use std::sync::Arc;

use rdma::{Access, Data, Mr, SendOp};

use super::super::device::Device;
use super::{End, NO_SLOT, SEND};
use crate::protocol::{Connection, Kind, Message, NOTICE, Notice, NoticePlaces, Remote, Reset, Settings, TOGETHER};

/// What an end counts for notices in both directions.
pub(super) struct Notices {
    /// Those of this end. None: it has none.
    places: Option<NoticePlaces>,
    /// The number of the last one that was taken.
    taken: u32,
    /// Messages that have come.
    heard: u32,
    /// The number of the last one that was written.
    written: u32,
    /// Messages that were sent.
    sent: u32,
    /// A long transfer has come by a message.
    long: bool,
    /// The place of those that this end writes, in the memory of its slots, and how many there are room for.
    from: usize,
    count: u32,
}

/// A ring, and its count.
type Ring = (Option<Arc<Mr>>, Option<Arc<()>>);

/// The ring of a stream, or an empty one of packets, with places for notices behind it if peers map it; then it counts
/// among the rings that peers map.
pub(super) fn ring(device: &Device, settings: &Settings, places: &NoticePlaces) -> rdma::Result<Ring> {
    let (pd, access) = (&device.pd, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let stream = settings.kind == Kind::Stream;
    let Some(mapped) = device.ring_place(!stream) else {
        return Ok((stream.then(|| pd.reg_mr(settings.ring as usize, access)).transpose()?, None));
    };
    let ring = pd.reg_mr_mapped(places.end() as usize, access)?;
    // Other memory is of no use to packets.
    let is_mapped = ring.is_mapped();
    Ok(((stream || is_mapped).then_some(ring), is_mapped.then_some(mapped)))
}

impl Notices {
    /// For an end with this ring, if peers map it. Packets have an empty one.
    pub fn new(ring: Option<&Mr>, places: NoticePlaces, from: usize) -> Notices {
        let count = places.count();
        let places = ring.map(|ring| {
            // The memory may have had the notices of another connection.
            let start = places.of(0);
            ring.write(start as usize, &vec![0; (places.end() - start) as usize]);
            places
        });
        Notices { places, taken: 0, heard: 0, written: 0, sent: 0, long: false, from, count }
    }

    /// The most notices that wait to be taken.
    pub fn most(&self) -> usize {
        self.count as usize
    }

    /// True if this end has places for notices.
    #[inline(always)]
    pub fn are_there(&self) -> bool {
        self.places.is_some()
    }

    /// The place of a notice among those that this end writes.
    fn at(&self, number: u32) -> usize {
        self.from + (number & (self.count - 1)) as usize * NOTICE
    }

    /// A message has come.
    pub fn heard(&mut self) {
        self.heard = self.heard.wrapping_add(1);
    }

    /// A message is being sent.
    #[inline(always)]
    pub fn sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// A long transfer has come by a message.
    pub fn long_came(&mut self) {
        self.long = true;
    }
}

impl End {
    /// True if the peer looks at notices.
    pub(super) fn peer_looks(&self) -> bool {
        let looks = |protocol: &Connection| protocol.place_of_notice(0).is_some();
        self.protocol.as_ref().is_some_and(looks)
    }

    /// WRITE the notices of the words that wait. They are executed behind the WRITEs, and no request waits for them.
    pub(super) fn notify(&mut self) -> rdma::Result<()> {
        let (mut first, mut len) = (self.notices.written.wrapping_add(1), 0);
        while let Some(word) = self.words.pop() {
            let Message::Data { imm, len: bytes } = word else { continue };
            let number = self.notices.written.wrapping_add(1);
            self.notices.written = number;
            if len > 0 && self.begins_again(number) {
                self.write_notices(first, len)?;
                (first, len) = (number, 0);
            }
            // The peer has given back the credit of the last notice that was here.
            let notice = Notice { number, behind: self.notices.sent, imm, len: bytes }.emit();
            self.slots.write(self.notices.at(number), &notice);
            len += NOTICE;
        }
        self.write_notices(first, len)
    }

    /// True if the place of a notice is the first one, among those of this end or of the peer, which may be fewer.
    fn begins_again(&self, number: u32) -> bool {
        let place = |number| self.protocol.as_ref().and_then(|protocol| protocol.place_of_notice(number));
        self.notices.at(number) == self.notices.from || place(number) == place(0)
    }

    /// WRITE an ACK as a notice, behind the READs that it is about. The key that the peer has given stays valid: its
    /// owner takes it back.
    pub(super) fn notify_ack(&mut self, seq: u32) -> rdma::Result<()> {
        let number = self.notices.written.wrapping_add(1);
        self.notices.written = number;
        let notice = Notice { number, behind: self.notices.sent, imm: seq, len: 0 }.emit();
        self.slots.write(self.notices.at(number), &notice);
        self.write_notices(number, NOTICE)
    }

    /// WRITE so many bytes of notices, from this one on.
    fn write_notices(&mut self, first: u32, len: usize) -> rdma::Result<()> {
        let place = self.protocol.as_ref().and_then(|protocol| protocol.place_of_notice(first));
        let Some(Remote { addr, rkey }) = place else { return Ok(()) };
        // Not inline: a device may execute a WRITE of one entry at its post. As a message: nothing waits for its
        // completion.
        let from = self.slots.sge(self.notices.at(first), len);
        self.post(SEND | NO_SLOT, SendOp::Write { addr, rkey }, Data::Sges(&[from]))
    }

    /// The next notice, if its turn has come.
    pub(super) fn notice(&self) -> Option<Notice> {
        let (Some(places), Some(ring)) = (&self.notices.places, &self.ring) else { return None };
        let number = self.notices.taken.wrapping_add(1);
        let mut bytes = [0; NOTICE];
        ring.read(places.of(number) as usize, &mut bytes);
        let notice = Notice::parse(&bytes, number)?;
        // Messages in front of it come by the completion queue.
        let ahead = self.notices.heard.wrapping_sub(notice.behind);
        (ahead <= u32::MAX / 2).then_some(notice)
    }

    /// Take the notices in that are not behind a message that has not come, at most so many.
    pub(super) fn take_notices(&mut self, most: usize) -> Result<(), Reset> {
        for _ in 0..most {
            let Some(Notice { number, imm, len, .. }) = self.notice() else { break };
            self.notices.taken = number;
            if let Some(protocol) = &mut self.protocol {
                protocol.noticed(imm, len)?;
            }
        }
        Ok(())
    }

    /// Take a few notices in, and do what follows. False: there is none.
    ///
    /// The program posts new receives between two looks, while the peer has open ones. An end that hears of all its
    /// receives at once has none left for a moment, and the peer goes on in the ring.
    pub fn look_at_notices(&mut self) -> bool {
        if self.is_dead() || self.notice().is_none() {
            return false;
        }
        if let Err(why) = self.take_notices(TOGETHER) {
            self.reset(why);
        }
        self.act();
        true
    }

    /// True if it would be of use to look at notices: a long transfer has come by a message since the last question.
    pub fn wants_to_look(&mut self) -> bool {
        std::mem::take(&mut self.notices.long)
            && self.notices.are_there()
            && self.protocol.as_ref().is_some_and(Connection::may_look)
    }

    /// Tell the peer that this end looks at notices.
    pub fn begin_to_look(&mut self) {
        if let Some(protocol) = &mut self.protocol {
            protocol.look();
        }
        self.act();
    }

    /// Tell the peer that this end looks no more. Notices that come before the answer are taken in with it.
    pub fn stop_looking(&mut self) {
        if let Some(protocol) = &mut self.protocol {
            protocol.stop_looking();
        }
        self.act();
    }
}
