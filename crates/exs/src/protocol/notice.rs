//! Notices: words in memory to an end that looks at them, in place of the DATA of a stream and the ACKs of packets.
//!
//! A WRITE or READ behind a SEND waits for the peer's answer, one behind a WRITE does not. So an end whose program
//! looks again and again says that it looks at notices (LOOKS). The peer then WRITEs a [`Notice`] behind each long
//! transfer, into places that this end has for them. Before its program sleeps, the end says so (SLEEPS). From then on
//! the peer sends messages, and its answer (SLEPT) is one that wakes the program. Messages and notices are one
//! sequence: each notice says how many messages are in front of it. So with SLEPT the end takes all notices that the
//! peer has written, and none is lost.
//!
//! The peer may write anything into these places at any time. A notice counts if its sum is right, and then it is what
//! the message would be, with the same checks.

use super::table::Reset;
use super::wire::{Message, be32, be64};

/// Bytes of a notice.
pub const NOTICE: usize = 32;

/// A transfer that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// Its number among the notices of a connection, from 1; it wraps.
    pub number: u32,
    /// Messages and WRITEs with immediate that its sender has sent before it.
    pub behind: u32,
    /// See [`super::Immediate`]; the number of an ACK.
    pub imm: u32,
    /// The number of bytes; 0 of an ACK.
    pub len: u32,
}

impl Notice {
    /// The bytes.
    pub fn emit(&self) -> [u8; NOTICE] {
        let mut out = [0; NOTICE];
        let words = [self.number, self.behind, self.imm, self.len];
        for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
        out[16..24].copy_from_slice(&self.sum().to_be_bytes());
        out
    }

    /// The notice of this number. `None`: it is not there, or not whole yet.
    pub fn parse(bytes: &[u8; NOTICE], number: u32) -> Option<Notice> {
        let [number_there, behind, imm, len] = std::array::from_fn(|at| be32(bytes, 4 * at));
        let notice = Notice { number: number_there, behind, imm, len };
        (number_there == number && be64(bytes, 16) == notice.sum() && be64(bytes, 24) == 0).then_some(notice)
    }

    /// A number that a mixture of two notices does not have: bytes of a WRITE become visible in any order.
    fn sum(&self) -> u64 {
        // Multipliers of splitmix64; the start makes the sum of zeroes another number than 0.
        let mix = |sum: u64, word: u32| (sum ^ u64::from(word)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31);
        [self.number, self.behind, self.imm, self.len].into_iter().fold(0x9e37_79b9_7f4a_7c15, mix)
    }
}

/// The places for notices, which lie behind the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoticePlaces {
    /// Bytes from the start of the ring to the first one.
    start: u64,
    /// How many they are, a power of two.
    count: u32,
}

impl NoticePlaces {
    /// Those of an end with this ring, and so many credits. A notice of a stream holds a credit until its receiver has
    /// given it back. That of an ACK is about an advertisement, or several, whose sender has no more under way than
    /// it has credits, until it has taken the notice. So its place is free when the next one goes there.
    pub fn new(ring: u32, credits: u16) -> NoticePlaces {
        NoticePlaces {
            start: u64::from(ring).next_multiple_of(NOTICE as u64),
            count: u32::from(credits).next_power_of_two(),
        }
    }

    /// How many they are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes from the start of the ring to the end of the last one.
    pub fn end(&self) -> u64 {
        self.start + u64::from(self.count) * NOTICE as u64
    }

    /// Bytes from the start of the ring to the place of a notice.
    pub fn of(&self, number: u32) -> u64 {
        self.start + u64::from(number & (self.count - 1)) * NOTICE as u64
    }
}

/// What the two ends of a connection have said of notices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Looking {
    this: This,
    /// The peer looks, and this end writes notices for it.
    pub peer: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum This {
    #[default]
    No,
    Looks,
    /// SLEEPS is sent, and SLEPT has not come.
    Sleeps,
}

impl Looking {
    /// This end looks from now on: the message that says so. `None`: it does already, or the last time is not over.
    pub fn begin(&mut self) -> Option<Message> {
        (self.this == This::No).then(|| {
            self.this = This::Looks;
            Message::Looks
        })
    }

    /// This end will look no more: the message that says so. `None`: it has said so.
    pub fn end(&mut self) -> Option<Message> {
        (self.this == This::Looks).then(|| {
            self.this = This::Sleeps;
            Message::Sleeps
        })
    }

    /// True if [`Looking::begin`] would begin.
    pub fn may_begin(&self) -> bool {
        self.this == This::No
    }

    /// Take LOOKS, SLEEPS or SLEPT in; the answer to it. An error is a breach.
    pub fn take(&mut self, message: Message) -> Result<Option<Message>, Reset> {
        match message {
            Message::Looks if !self.peer => self.peer = true,
            Message::Sleeps if self.peer => {
                self.peer = false;
                return Ok(Some(Message::Slept));
            }
            Message::Slept if self.this == This::Sleeps => self.this = This::No,
            _ => return Err(Reset::Protocol),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    #[test]
    fn a_notice_is_taken_only_whole_and_by_its_number() {
        let notice = Notice { number: 7, behind: 3, imm: 0x8000_0001, len: 65536 };
        let bytes = notice.emit();
        assert_eq!(Notice::parse(&bytes, 7), Some(notice));
        assert_eq!(Notice::parse(&bytes, 8), None);
        assert_eq!(Notice::parse(&[0; NOTICE], 0), None);
        let old = Notice { number: 7u32.wrapping_sub(16), behind: 1, imm: 5, len: 1 << 20 }.emit();
        for cut in 1..24 {
            let mut mixed = bytes;
            mixed[cut..].copy_from_slice(&old[cut..]);
            assert_eq!(Notice::parse(&mixed, 7), None, "{cut} bytes of it");
            mixed[cut..].copy_from_slice(&bytes[cut..]);
            mixed[..cut].copy_from_slice(&old[..cut]);
            assert_eq!(Notice::parse(&mixed, 7), (old[..cut] == bytes[..cut]).then_some(notice), "without {cut} bytes");
        }
        for byte in 0..NOTICE {
            let mut other = bytes;
            other[byte] ^= 1;
            assert_eq!(Notice::parse(&other, 7), None, "byte {byte} is another one");
        }
    }

    #[test]
    fn places_are_behind_the_ring_and_as_many_as_credits() {
        let places = NoticePlaces::new(100, 12);
        assert_eq!((places.of(0), places.of(1), places.of(16), places.end()), (128, 160, 128, 640));
        assert_eq!(NoticePlaces::new(1 << 30, 1).of(u32::MAX), 1 << 30);
        assert_eq!(NoticePlaces::new(64, 1024).end(), 64 + 1024 * 32);
    }

    /// What is under way to the receiver, in order.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum Sent {
        Notice,
        Data,
        Slept,
    }

    /// A receiver that looks or sleeps, its sender, and what is between them.
    #[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
    struct World {
        receiver: Looking,
        sender: Looking,
        asleep: bool,
        /// LOOKS and SLEEPS.
        up: VecDeque<bool>,
        down: VecDeque<Sent>,
    }

    impl World {
        fn say(&mut self, message: Option<Message>) {
            self.up.extend(message.map(|message| message == Message::Looks));
            assert!(self.up.len() <= 2, "the sender has receives for two");
        }

        /// The first message has come, with the notices in front of it.
        fn message(&self) -> Option<World> {
            let at = self.down.iter().position(|sent| *sent != Sent::Notice)?;
            let mut next = self.clone();
            if next.down.drain(..=at).next_back() == Some(Sent::Slept) {
                assert_eq!(next.receiver.take(Message::Slept), Ok(None));
            }
            next.asleep = false;
            Some(next)
        }

        fn next(&self) -> Vec<World> {
            let mut all: Vec<World> = self.message().into_iter().collect();
            if !self.asleep {
                // It looks: at messages first, then at notices. Or begins to look, or sleeps.
                let mut look = self.clone();
                if look.down.front() == Some(&Sent::Notice) {
                    look.down.pop_front();
                    all.push(look);
                }
                let mut begin = self.clone();
                let said = begin.receiver.begin();
                begin.say(said);
                all.push(begin);
                let mut sleep = self.clone();
                let said = sleep.receiver.end();
                sleep.say(said);
                sleep.asleep = true;
                all.push(sleep);
            }
            if !self.up.is_empty() {
                let mut taken = self.clone();
                let looks = taken.up.pop_front() == Some(true);
                let message = if looks { Message::Looks } else { Message::Sleeps };
                if taken.sender.take(message).expect("no breach").is_some() {
                    taken.down.push_back(Sent::Slept);
                }
                all.push(taken);
            }
            if self.down.len() < 4 {
                let mut more = self.clone();
                more.down.push_back(if self.sender.peer { Sent::Notice } else { Sent::Data });
                all.push(more);
            }
            all
        }

        /// Nothing comes by itself, and the receiver sleeps.
        fn is_still(&self) -> bool {
            self.asleep && self.up.is_empty() && self.message().is_none()
        }
    }

    #[test]
    fn no_receiver_sleeps_over_a_notice() {
        let mut seen = HashSet::from([World::default()]);
        let mut open = vec![World::default()];
        while let Some(world) = open.pop() {
            assert!(!world.is_still() || world.down.is_empty(), "{world:?}");
            for next in world.next() {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        assert!(seen.len() > 100, "{}", seen.len());
    }

    #[test]
    fn messages_out_of_turn_are_breaches() {
        let mut looking = Looking::default();
        assert_eq!(looking.take(Message::Sleeps), Err(Reset::Protocol));
        assert_eq!(looking.take(Message::Slept), Err(Reset::Protocol));
        assert_eq!(looking.take(Message::Looks), Ok(None));
        assert_eq!(looking.take(Message::Looks), Err(Reset::Protocol));
        assert_eq!((looking.begin(), looking.begin()), (Some(Message::Looks), None));
        assert_eq!(looking.take(Message::Slept), Err(Reset::Protocol));
        assert_eq!((looking.end(), looking.end(), looking.begin()), (Some(Message::Sleeps), None, None));
        assert_eq!(looking.take(Message::Slept), Ok(None));
        assert!(looking.may_begin());
    }
}
