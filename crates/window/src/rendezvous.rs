//! How processes of one host find each other, and what they say when they meet.
//!
//! QP numbers are given out in blocks of 4096. A process claims a block by binding the abstract unix socket named after
//! it: `\0softrnic/<version>/qpn/<block, 3 hex digits>` (SOCK_SEQPACKET). Binding is atomic, and the kernel frees the
//! name when the process dies, however it dies. Membership of a multicast group is announced in the same way:
//! `\0softrnic/<version>/mc/<MGID, 32 hex digits>/<first block of the process>`.
//!
//! Who wants to reach a QP connects to its block's socket. Messages, little endian, each one packet of the socket:
//!
//! ```text
//!  0  magic "softrnic"      8  version u32      12  kind u8      13  flags u8      14  0 u16
//! 16  instance, 16 bytes   32  address of the cookie u64        40  cookie, 64 bytes        (HELLO and WELCOME only)
//! ```
//!
//! * HELLO, from who connects: descriptors of the window and (between processes of one user) of its doorbell.
//!   Flag 1: straight copies are not refused. Flag 2: the last descriptor is that of the sender's board.
//! * WELCOME, the answer: the descriptor of the doorbell. Flags likewise.
//! * PROBED, from both: flag 1 if the sender could read the receiver's cookie, so straight copies by it work.
//! * RING: a doorbell for those who have no eventfd of the receiver.

use verbs::Gid;

/// Version of everything that two processes must agree on: names, messages, the window's layout.
pub const VERSION: u32 = 4;
/// QP numbers per block.
pub const BLOCK_QPNS: u32 = 4096;
/// Blocks that can be claimed. Not the first (QP 0 and 1 are management queue pairs), not the last (its last number
/// addresses multicast groups).
pub const BLOCKS: core::ops::RangeInclusive<u16> = 1..=0xffe;
/// Length of HELLO and WELCOME.
pub const GREETING_BYTES: usize = 104;
/// Length of the other messages.
pub const NOTE_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"softrnic";
const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_PROBED: u8 = 3;
const KIND_RING: u8 = 4;

/// Who speaks, and how to probe straight copies from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// 128 random bits that name the process's device.
    pub instance: [u8; 16],
    /// Where the cookie lies in the sender's memory.
    pub cookie_addr: u64,
    /// What lies there.
    pub cookie: [u8; 64],
    /// The sender does not refuse straight copies.
    pub straight: bool,
    /// The descriptor of the sender's board comes with it.
    pub board: bool,
}

/// A message on the socket between two processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first message of who connects.
    Hello(Greeting),
    /// The answer.
    Welcome(Greeting),
    /// Whether the sender can copy straight.
    Probed(bool),
    /// Wake up.
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
    if magic != MAGIC || u32::from_le_bytes([v0, v1, v2, v3]) != VERSION || flags > 3 {
        return Err(Malformed);
    }
    let (flag, board) = (flags & 1 != 0, flags & 2 != 0);
    match (kind, rest.is_empty()) {
        (KIND_HELLO, false) => Ok(Message::Hello(greeting(rest, flag, board)?)),
        (KIND_WELCOME, false) => Ok(Message::Welcome(greeting(rest, flag, board)?)),
        (KIND_PROBED, true) if !board => Ok(Message::Probed(flag)),
        (KIND_RING, true) if flags == 0 => Ok(Message::Ring),
        _ => Err(Malformed),
    }
}

fn greeting(rest: &[u8], straight: bool, board: bool) -> Result<Greeting, Malformed> {
    let (instance, rest) = rest.split_first_chunk::<16>().ok_or(Malformed)?;
    let (addr, rest) = rest.split_first_chunk::<8>().ok_or(Malformed)?;
    let cookie = <[u8; 64]>::try_from(rest).map_err(|_| Malformed)?;
    Ok(Greeting { instance: *instance, cookie_addr: u64::from_le_bytes(*addr), cookie, straight, board })
}

/// Writes a message.
pub fn emit(message: &Message) -> Vec<u8> {
    let greeting = |g: &Greeting| u8::from(g.straight) | u8::from(g.board) << 1;
    let (kind, flags, body) = match message {
        Message::Hello(g) => (KIND_HELLO, greeting(g), Some(g)),
        Message::Welcome(g) => (KIND_WELCOME, greeting(g), Some(g)),
        Message::Probed(ok) => (KIND_PROBED, u8::from(*ok), None),
        Message::Ring => (KIND_RING, 0, None),
    };
    let mut out = Vec::with_capacity(GREETING_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[kind, flags, 0, 0]);
    if let Some(g) = body {
        out.extend_from_slice(&g.instance);
        out.extend_from_slice(&g.cookie_addr.to_le_bytes());
        out.extend_from_slice(&g.cookie);
    }
    out
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
