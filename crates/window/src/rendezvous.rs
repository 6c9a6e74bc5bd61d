//! The way in which processes of one host find each other, and the messages that they send when they meet.
//!
//! QP numbers are given out in blocks of 4096. A process claims a block by binding the abstract unix socket named after
//! it: `\0softrnic/<version>/qpn/<block, 3 hex digits>` (SOCK_SEQPACKET). Binding is atomic, and the kernel frees the
//! name when the process dies, however it dies. Membership of a multicast group is announced in the same way:
//! `\0softrnic/<version>/mc/<MGID, 32 hex digits>/<first block of the process>`.
//!
//! Each name has variants, so that strangers that hold it can be passed over ([`memory::names`]).
//!
//! A process that wants to reach a QP connects to its block's socket. Messages, little endian, each one packet of the
//! socket:
//!
//! ```text
//!  0  magic "softrnic"      8  version u32      12  kind u8      13  flags u8      14  0 u16
//! 16  instance, 16 bytes   32  address of the nonce u64                               (HELLO and WELCOME)
//! 40  secret, 16 bytes     56  block u16          58  0, 6 bytes                      (HELLO; zeros in WELCOME)
//! 16  secret, 16 bytes     32  block u16          34  0, 6 bytes                      (ECHO only)
//! 16  nonce, 32 bytes                                                                 (PROOF only)
//! ```
//!
//! * HELLO, from the side that connects, with the descriptor of the window. Flag 1: single copies are not refused.
//! * WELCOME, the answer. Flag likewise.
//! * PROOF, from each side that could read the other one's nonce, 32 random bytes at the address that the greeting
//!   names: the kernel lets it trace the other side (`process_vm_readv` makes the check of ptrace(2)), so whatever the
//!   other side tells it could be read from that one's memory anyway.
//! * TABLE, the answer to a right PROOF, with descriptors: an eventfd that is this link's doorbell, and with flag 2 the
//!   sender's export table. Without PROOF there is none, and everything travels through the window.
//! * ECHO: the secret of a HELLO of the receiver's over another link, and the sender's block at which that link came in
//!   (`identity`), so that a process without a process number here is known by the links that lead to it.
//! * RING: a doorbell for the side that has no eventfd of the receiver.

use verbs::Gid;

/// Version of everything that two processes must agree on: names, messages, the window's layout.
pub const VERSION: u32 = 6;
/// QP numbers per block.
pub const BLOCK_QPNS: u32 = 4096;
/// Blocks that can be claimed. Not the first (QP 0 and 1 are management queue pairs), not the last (its last number
/// addresses multicast groups).
pub const BLOCKS: core::ops::RangeInclusive<u16> = 1..=0xffe;
/// Bytes of a nonce.
pub const NONCE: usize = 32;
/// Bytes of a link's secret.
pub const SECRET: usize = 16;
/// Length of HELLO and WELCOME.
pub const GREETING_BYTES: usize = NOTE_BYTES + 48;
/// Length of PROOF.
pub const PROOF_BYTES: usize = NOTE_BYTES + NONCE;
/// Length of RING and TABLE, and of what all messages begin with.
pub const NOTE_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"softrnic";
const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_PROOF: u8 = 3;
const KIND_RING: u8 = 4;
const KIND_TABLE: u8 = 5;
const KIND_ECHO: u8 = 6;

/// The sender, and the means to find out which of the two processes may trace the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// 128 random bits that name the process's device, for captures.
    pub instance: [u8; 16],
    /// Where the nonce for the receiver lies in the sender's memory.
    pub nonce_addr: u64,
    /// The sender does not refuse single copies.
    pub single_copy: bool,
    /// Random bits that only this link's receiver hears; zeros in WELCOME.
    pub secret: [u8; SECRET],
    /// A block of the sender's, at which it hears secrets that are returned; 0 in WELCOME.
    pub block: u16,
}

/// A message on the socket between two processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first message of the side that connects.
    Hello(Greeting),
    /// The answer.
    Welcome(Greeting),
    /// The receiver's nonce, read from its memory.
    Proof([u8; NONCE]),
    /// The descriptors for a process that may trace the sender.
    Table {
        /// The descriptor of the sender's export table comes behind that of the doorbell.
        export_table: bool,
    },
    /// What the receiver's HELLO over another link said, and where that link came in.
    Echo {
        /// The secret.
        secret: [u8; SECRET],
        /// The sender's block.
        block: u16,
    },
    /// Wakes the receiver.
    Ring,
}

/// Not a message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads a message. Exact: the right length, no unknown flags, zeros where zeros belong.
///
/// # Errors
/// [`Malformed`].
pub fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
    let (head, rest) = bytes.split_first_chunk::<NOTE_BYTES>().ok_or(Malformed)?;
    let [magic @ .., v0, v1, v2, v3, kind, flags, 0, 0] = *head else {
        return Err(Malformed);
    };
    if magic != MAGIC || u32::from_le_bytes([v0, v1, v2, v3]) != VERSION {
        return Err(Malformed);
    }
    match (kind, flags) {
        (KIND_HELLO, 0 | 1) => Ok(Message::Hello(greeting(rest, flags == 1)?)),
        (KIND_WELCOME, 0 | 1) => match greeting(rest, flags == 1)? {
            welcome if welcome.secret == [0; SECRET] && welcome.block == 0 => Ok(Message::Welcome(welcome)),
            _ => Err(Malformed),
        },
        (KIND_ECHO, 0) => {
            let (secret, block) = secret_and_block(rest)?;
            Ok(Message::Echo { secret, block })
        }
        (KIND_PROOF, 0) => rest.try_into().map(Message::Proof).map_err(|_| Malformed),
        (KIND_TABLE, 0 | 2) if rest.is_empty() => Ok(Message::Table { export_table: flags == 2 }),
        (KIND_RING, 0) if rest.is_empty() => Ok(Message::Ring),
        _ => Err(Malformed),
    }
}

fn greeting(rest: &[u8], single_copy: bool) -> Result<Greeting, Malformed> {
    let (instance, rest) = rest.split_first_chunk::<16>().ok_or(Malformed)?;
    let (addr, rest) = rest.split_first_chunk::<8>().ok_or(Malformed)?;
    let (secret, block) = secret_and_block(rest)?;
    Ok(Greeting { instance: *instance, nonce_addr: u64::from_le_bytes(*addr), single_copy, secret, block })
}

fn secret_and_block(rest: &[u8]) -> Result<([u8; SECRET], u16), Malformed> {
    let (secret, rest) = rest.split_first_chunk::<SECRET>().ok_or(Malformed)?;
    let [b0, b1, 0, 0, 0, 0, 0, 0] = *rest else { return Err(Malformed) };
    Ok((*secret, u16::from_le_bytes([b0, b1])))
}

/// Writes a message.
pub fn emit(message: &Message) -> Vec<u8> {
    let (kind, flags) = match message {
        Message::Hello(g) => (KIND_HELLO, u8::from(g.single_copy)),
        Message::Welcome(g) => (KIND_WELCOME, u8::from(g.single_copy)),
        Message::Proof(_) => (KIND_PROOF, 0),
        Message::Table { export_table } => (KIND_TABLE, u8::from(*export_table) << 1),
        Message::Echo { .. } => (KIND_ECHO, 0),
        Message::Ring => (KIND_RING, 0),
    };
    let mut out = Vec::with_capacity(GREETING_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[kind, flags, 0, 0]);
    match message {
        Message::Hello(g) | Message::Welcome(g) => {
            out.extend_from_slice(&g.instance);
            out.extend_from_slice(&g.nonce_addr.to_le_bytes());
            put_secret_and_block(&mut out, &g.secret, g.block);
        }
        Message::Proof(nonce) => out.extend_from_slice(nonce),
        Message::Echo { secret, block } => put_secret_and_block(&mut out, secret, *block),
        Message::Table { .. } | Message::Ring => {}
    }
    out
}

fn put_secret_and_block(out: &mut Vec<u8>, secret: &[u8; SECRET], block: u16) {
    out.extend_from_slice(secret);
    out.extend_from_slice(&block.to_le_bytes());
    out.extend_from_slice(&[0; 6]);
}

/// The abstract name of a block, without the leading 0 byte.
pub fn block_name(block: u16) -> String {
    format!("softrnic/{VERSION}/qpn/{block:03x}")
}

/// The abstract name of a group's member, without the leading 0 byte.
pub fn member_name(group: &Gid, first_block: u16) -> String {
    let mgid = u128::from_be_bytes(group.0);
    format!("softrnic/{VERSION}/mc/{mgid:032x}/{first_block:03x}")
}

/// The members of a group that a text like `/proc/net/unix` shows, by their first blocks.
pub fn members(proc_net_unix: &str, group: &Gid) -> Vec<u16> {
    let mgid = u128::from_be_bytes(group.0);
    let prefix = format!("@softrnic/{VERSION}/mc/{mgid:032x}/");
    let mut found: Vec<u16> = proc_net_unix
        .lines()
        .filter_map(|line| line.rsplit_once(' ')?.1.strip_prefix(prefix.as_str()))
        .map(memory::names::base)
        .filter(|digits| digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .filter_map(|digits| u16::from_str_radix(digits, 16).ok())
        .filter(|block| BLOCKS.contains(block))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
#[path = "rendezvous_tests.rs"]
mod tests;
