//! The words to the peer that WRITEs of a stream are done (DATA), and when they go out.
//!
//! A device may execute a WRITE at once, with one copy, if nothing is under way in front of it. Behind a SEND it waits
//! for the peer's answer. So the words of several WRITEs go out together, behind the last one.
//!
//! A word waits only while the completion of a WRITE behind it, or of its own, has not been taken. The thread that
//! takes the last one sends all words. A WRITE that is alone has its word at once.

use std::collections::VecDeque;

use super::{End, SEND};
use crate::protocol::{Message, ROW, Reset};

/// The most words that wait: the peer posts new receives while the next transfers are under way. A peer that hears of
/// all its receives at once has none left for a moment, and says that it is late.
const MOST: usize = 4;
/// The bytes of their transfers from which on they do not wait: the answer to a SEND takes less time.
const BYTES: u64 = 256 << 10;

/// Words that wait, and WRITEs that are not completed.
#[derive(Default)]
pub(super) struct Words {
    /// Each with the key that the peer needs no more.
    held: VecDeque<(Message, Option<u32>)>,
    bytes: u64,
    writes: usize,
    /// The last time, several went out together.
    several: bool,
}

impl Words {
    /// The number of those that wait.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// A WRITE is posted.
    pub fn wrote(&mut self) {
        self.writes += 1;
    }

    /// A WRITE is completed.
    pub fn written(&mut self) {
        self.writes = self.writes.saturating_sub(1);
    }

    /// Keep the word of the last WRITE. True: all are to go out now.
    pub fn hold(&mut self, word: Message, len: u32, key: Option<u32>) -> bool {
        self.held.push_back((word, key));
        self.bytes += u64::from(len);
        let alone = self.writes == 1 && !self.several;
        self.several |= self.writes > 1;
        alone || self.held.len() >= MOST || self.bytes >= BYTES
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

    /// Send the words if all WRITEs are completed.
    pub(super) fn tell_when_written(&mut self) {
        if self.words.writes > 0 {
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
        words.hold(Message::Data { imm: 0, len }, len, None)
    }

    #[test]
    fn a_write_that_is_alone_has_its_word_at_once() {
        let mut words = Words::default();
        for _ in 0..3 {
            assert!(written(&mut words, 1 << 16));
            words.clear();
            words.written();
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
        words.written();
        words.written();
        assert!(!written(&mut words, 1), "the program has several under way");
    }
}
