//! What a process with the library tells of its connections: the bytes of a memfd that other processes read.
//!
//! ```text
//! 0                         MAGIC: u64
//! FILES   LIMIT x u32       for each descriptor: its state in the lower 8 bits, a number above (Moved: the entry's)
//! ENTRIES SLOTS x 8 x u64   for each connection that has memory: the fields of `Counts`, in their order
//! ```
//!
//! All words are of the machine's byte order. Whoever reads them believes nothing: any process of the user may have
//! made such a file.

/// The file's name, as memfd_create(2) takes it.
pub const NAME: &core::ffi::CStr = c"softrnic-sock-status";
/// The first word.
pub const MAGIC: u64 = 0x0001_6B63_6F73_7266;
/// Descriptors.
pub const LIMIT: usize = 1 << 16;
/// Connections with memory.
pub const SLOTS: usize = 4096;
/// Words of an entry.
pub const WORDS: usize = 8;
/// Where the descriptors begin.
pub const FILES: usize = 4096;
/// Where the entries begin.
pub const ENTRIES: usize = FILES + 4 * LIMIT;
/// Bytes of the file.
pub const LEN: usize = ENTRIES + 8 * WORDS * SLOTS;

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident $number:literal $text:literal;)*) => {
        /// Where a connection is, or why it is not in memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum State { $($(#[$doc])* $name = $number),* }

        impl State {
            /// The state of a word. `None`: nothing is known of the descriptor, or the number is none.
            pub fn of(word: u32) -> Option<State> {
                match word as u8 { $($number => Some(State::$name),)* _ => None }
            }

            /// For the user.
            pub fn text(self) -> &'static str {
                match self { $(State::$name => $text),* }
            }
        }
    };
}

states! {
    /// It has shared memory.
    Moved 1 "";
    /// A few calls are made first.
    Young 2 "it has moved few messages yet";
    /// It looks for the other end.
    Waiting 3 "the other end has not come to the meeting point";
    /// A rule says so.
    Rule 4 "a rule says tcp";
    /// Nobody is at the meeting point any more, or somebody that is not to be believed.
    NotMet 5 "the other end has not come, is this process or another user's, or memory or descriptors are short";
    /// It had two holders before it had memory.
    Forked 6 "the process has forked before the connection had memory";
    /// A second descriptor.
    Copied 7 "its descriptor was copied before it had memory";
    /// Others use the socket.
    Given 8 "it was given to another program, to stdio, or used by a call that memory does not have";
    /// An epoll set that the library does not take part in.
    Epoll 9 "its epoll set is one that memory does not have (EPOLLEXCLUSIVE, two sets, a set in a set)";
}

/// What is counted of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The numbers of the ways of its two directions, by [`Way::number`]: `sending | receiving << 8`.
    pub ways: u64,
    /// Bytes sent by memory.
    pub sent: u64,
    /// Bytes received by memory.
    pub received: u64,
    /// How often the other process's bell was rung for it.
    pub rings: u64,
    /// How often a thread of this process has slept in a call on it.
    pub sleeps: u64,
    /// How often there was no room to send.
    pub stalls: u64,
}

/// The way of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// TCP, and never yet memory.
    Before,
    /// Memory.
    Memory,
    /// TCP again.
    After,
}

impl Way {
    /// The way of a number.
    pub fn of(number: u8) -> Option<Way> {
        match number {
            0 => Some(Way::Before),
            1 => Some(Way::Memory),
            2 => Some(Way::After),
            _ => None,
        }
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// A descriptor that something is known of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// The descriptor.
    pub fd: usize,
    /// Where it is.
    pub state: State,
    /// What is counted, if it has memory.
    pub counts: Option<Counts>,
}

/// Reads a file's bytes. `None`: they are none of ours.
pub fn parse(bytes: &[u8]) -> Option<Vec<File>> {
    let long = |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map(|word| u64::from_ne_bytes(*word));
    if bytes.len() != LEN || long(0) != Some(MAGIC) {
        return None;
    }
    let words = bytes.get(FILES..ENTRIES)?.chunks_exact(4);
    let words = words.map(|word| word.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word)));
    let counts = |slot: usize| {
        let field = |n: usize| long(ENTRIES + 8 * (WORDS * slot + n)).unwrap_or(0);
        (slot < SLOTS).then(|| Counts {
            ways: field(0),
            sent: field(1),
            received: field(2),
            rings: field(3),
            sleeps: field(4),
            stalls: field(5),
        })
    };
    let known = words.enumerate().filter_map(|(fd, word)| {
        let state = State::of(word)?;
        let counts = if state == State::Moved { Some(counts(word as usize >> 8)?) } else { None };
        Some(File { fd, state, counts })
    });
    Some(known.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(words: &[(usize, u32)], slot: usize, fields: [u64; 6]) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        for (fd, word) in words {
            bytes[FILES + 4 * fd..][..4].copy_from_slice(&word.to_ne_bytes());
        }
        for (n, field) in fields.into_iter().enumerate() {
            bytes[ENTRIES + 8 * (WORDS * slot + n)..][..8].copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_file_tells_of_each_descriptor() {
        let bytes = file(&[(3, 1 | 4095 << 8), (7, 4), (65_535, 2)], 4095, [0x101, 5, 6, 7, 8, 9]);
        let counts = Counts { ways: 0x101, sent: 5, received: 6, rings: 7, sleeps: 8, stalls: 9 };
        let expected = [
            File { fd: 3, state: State::Moved, counts: Some(counts) },
            File { fd: 7, state: State::Rule, counts: None },
            File { fd: 65_535, state: State::Young, counts: None },
        ];
        assert_eq!(parse(&bytes).unwrap(), expected);
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        // A slot that is none, and states that are none.
        assert_eq!(parse(&file(&[(3, 1 | 4096 << 8), (4, 0xFF), (5, u32::MAX)], 0, [1; 6])), Some(vec![]));
        let good = file(&[], 0, [0; 6]);
        assert_eq!(parse(&good[..LEN - 1]), None);
        assert_eq!(parse(&[good.clone(), vec![0]].concat()), None);
        let mut other = good;
        other[0] ^= 1;
        assert_eq!(parse(&other), None);
        assert_eq!(parse(&[]), None);
    }

    #[test]
    fn ways_have_numbers() {
        for way in [Way::Before, Way::Memory, Way::After] {
            assert_eq!(Way::of(way.number()), Some(way));
        }
        assert_eq!(Way::of(3), None);
    }
}
