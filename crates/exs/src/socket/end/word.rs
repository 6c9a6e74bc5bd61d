//! The words to the peer that WRITEs of a stream are done (DATA), and when they go out.
//!
//! A device may execute a WRITE at once, with one copy, if nothing is under way in front of it. Behind a SEND it waits
//! for the peer's answer. So the words of several WRITEs go out together, behind the last one.
//!
//! A word waits only while the completion of a WRITE behind it, or of its own, has not been taken. The thread that
//! takes the last one sends all words. A WRITE that is alone has its word at once.
//!
//! While a completion is to come, a WRITE has none of its own: that of the words behind it says that it is done, too.
//! So each request says how many WRITEs are in front of it. What completes with an error says it as well.

use std::collections::VecDeque;

use super::{End, SEND};
use crate::protocol::{Message, ROW, Reset};

/// The most words that wait: the peer posts new receives while the next transfers are under way. A peer that hears of
/// all its receives at once has none left for a moment, and says that it is late.
const MOST: usize = 4;
/// The bytes of their transfers from which on they do not wait: the answer to a SEND takes less time.
const BYTES: u64 = 256 << 10;

/// The place of [`Words::mark`] in a wr_id: 16 bits.
const MARK: u32 = 40;

/// Words that wait, and WRITEs that are not completed.
#[derive(Default)]
pub(super) struct Words {
    /// Each with the key that the peer needs no more.
    held: VecDeque<(Message, Option<u32>)>,
    bytes: u64,
    /// WRITEs that were posted, those in front of the last request that has a completion, and those that are done; they
    /// wrap. Not so many are under way.
    posted: u16,
    asked: u16,
    done: u16,
    /// The last time, several went out together.
    several: bool,
}

impl Words {
    /// The number of those that wait.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// A WRITE is being posted.
    pub fn wrote(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// So many were not posted, and the connection ends.
    pub fn dropped(&mut self, count: u16) {
        self.posted = self.posted.wrapping_sub(count);
        // A completion of one of them will not come.
        self.asked = self.done;
    }

    /// A request with a completion is posted.
    pub fn asked(&mut self) {
        self.asked = self.posted;
    }

    /// True while the completion of a WRITE, or of a request behind one, is to come.
    pub fn awaits(&self) -> bool {
        self.asked != self.done
    }

    /// True if the next request behind a WRITE must have a completion.
    pub fn are_due(&self) -> bool {
        self.asked != self.posted
    }

    /// The part of a request's number that says how many WRITEs are in front of it, or up to it.
    pub fn mark(&self) -> u64 {
        u64::from(self.posted) << MARK
    }

    /// A request is completed: the WRITEs that are done now, those of before not counted.
    pub fn completed(&mut self, wr_id: u64) -> u16 {
        let mark = (wr_id >> MARK) as u16;
        let new = mark.wrapping_sub(self.done);
        if new > u16::MAX / 2 {
            return 0;
        }
        self.done = mark;
        new
    }

    /// Keep the word of the last WRITE. True: all are to go out now.
    /// `waiting`: WRITEs that are not posted.
    pub fn hold(&mut self, word: Message, len: u32, key: Option<u32>, waiting: usize) -> bool {
        self.held.push_back((word, key));
        self.bytes += u64::from(len);
        let under_way = usize::from(self.posted.wrapping_sub(self.done)) + waiting;
        let alone = under_way == 1 && !self.several;
        self.several |= under_way > 1;
        alone || self.held.len() >= MOST || self.bytes >= BYTES
    }

    /// The oldest one that waits.
    pub fn pop(&mut self) -> Option<Message> {
        self.held.pop_front().map(|(word, _)| word)
    }

    /// The queue pair is in state ERR.
    pub fn clear(&mut self) {
        self.held.clear();
        self.bytes = 0;
    }
}

impl End {
    /// Send all words that wait.
    pub(super) fn tell(&mut self) -> rdma::Result<()> {
        if self.words.held.is_empty() {
            return Ok(());
        }
        self.send_row()?;
        self.post_writes()?;
        if self.peer_looks() {
            self.notify()?;
            self.words.clear();
            return Ok(());
        }
        let mut over = None;
        while let Some((word, key)) = self.words.held.pop_front() {
            if self.inline < ROW {
                let op = self.ending(key);
                self.send_header(SEND, op, word, None)?;
                continue;
            }
            // One key can be taken back by a SEND.
            over = key.or(over);
            self.row.push(word);
            if self.row.is_full() || self.words.held.is_empty() {
                let op = self.ending(over.take());
                self.send_row_by(op)?;
            }
        }
        self.words.clear();
        Ok(())
    }

    /// All WRITEs are done.
    #[cold]
    pub(super) fn written_all(&mut self) {
        let count = self.words.completed(self.words.mark());
        if let Some(protocol) = &mut self.protocol {
            protocol.transfers_done(count.into());
        }
    }

    /// Send the words if no completion of a WRITE is to come.
    pub(super) fn tell_when_written(&mut self) {
        if self.words.awaits() {
            return;
        }
        self.words.several = self.words.len() > 1;
        if self.tell().is_err() {
            self.reset(Reset::Peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(words: &mut Words, len: u32) -> bool {
        words.wrote();
        if !words.awaits() {
            words.asked();
        }
        words.hold(Message::Data { imm: 0, len }, len, None, 0)
    }

    /// All that are posted are completed.
    fn complete(words: &mut Words) -> u16 {
        words.completed(words.mark())
    }

    #[test]
    fn a_write_that_is_alone_has_its_word_at_once() {
        let mut words = Words::default();
        for _ in 0..3 {
            assert!(written(&mut words, 1 << 16));
            words.clear();
            complete(&mut words);
        }
    }

    #[test]
    fn words_of_several_writes_go_out_together() {
        let mut words = Words::default();
        assert!(written(&mut words, 1 << 16));
        words.clear();
        for held in 1..MOST {
            assert!(!written(&mut words, 1), "{held}");
        }
        assert!(written(&mut words, 1), "not more than so many wait");
        words.clear();
        assert!(!written(&mut words, (BYTES - 1) as u32));
        assert!(written(&mut words, 1), "not so many bytes wait");
    }

    #[test]
    fn the_next_word_waits_where_several_have_gone_out() {
        let mut words = Words::default();
        written(&mut words, 1);
        written(&mut words, 1);
        words.clear();
        complete(&mut words);
        assert!(!written(&mut words, 1), "the program has several under way");
    }

    #[test]
    fn a_completion_counts_the_writes_in_front_of_it() {
        // The numbers wrap.
        let mut words = Words { posted: u16::MAX, asked: u16::MAX, done: u16::MAX, ..Words::default() };
        assert!(!words.awaits() && !words.are_due());
        written(&mut words, 1);
        let first = words.mark();
        assert!(words.awaits() && !words.are_due(), "the first one has a completion of its own");
        written(&mut words, 1);
        written(&mut words, 1);
        assert!(words.are_due(), "those behind it have none");
        let word = words.mark();
        words.asked();
        assert!(!words.are_due());
        assert_eq!((words.completed(first), words.completed(first)), (1, 0));
        assert!(words.awaits());
        assert_eq!((words.completed(word), words.completed(word), words.completed(first)), (2, 0, 0));
        assert!(!words.awaits());
    }
}
