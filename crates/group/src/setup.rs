//! What client and servers tell each other over TCP: who they are, before the first operation, and how the group ends.
//!
//! A frame is its length and its kind, 4 bytes each, then its numbers, 8 bytes each. All are little endian. Texts are
//! bytes. Everything read is untrusted.

use std::io::{Read, Write};
use std::net::TcpStream;

use rdma::{Access, Connect, Context, Gid, Qp, QpType};

use crate::MOST_REPLICAS;
use crate::error::{Error, Result};

/// The version of the frames and of the records ([`crate::rounds`]).
pub const VERSION: u64 = 4;
/// The first number of whoever connects.
pub const MAGIC: u64 = u64::from_le_bytes(*b"softgrp\0");
const MOST_BYTES: u32 = 1 << 16;
/// Why a chain of more replicas is invalid.
pub const TOO_LONG: &str = "a chain has at most 64 replicas";
/// Why a question is refused.
const NO_CLIENT: &str = "the peer is no client of this project";
/// Why an answer is refused.
pub const NO_SERVER: &str = "the peer is no server of this project";
/// The device's port.
pub const PORT: u8 = 1;

/// The kinds of frames.
pub mod kind {
    pub const HELLO: u32 = 1;
    pub const WELCOME: u32 = 2;
    pub const REFUSED: u32 = 3;
    pub const PRINT: u32 = 4;
    pub const PRINTED: u32 = 5;
    pub const BROKEN: u32 = 6;
    pub const TOO_LONG: u32 = 7;
    pub const STATUS: u32 = 8;
}

/// A queue pair of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    pub qpn: u32,
    pub gid: Gid,
}

/// From the client, or from the hop before: a group is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Rounds of the queues; a power of two, and at least 2.
    pub depth: u32,
    /// The number of the hop that is addressed; the first is 0.
    pub hop: u32,
    /// Bytes of the sender's region; 0 from the client.
    pub region: u64,
    pub from: Endpoint,
    /// The client's queue pair that the last replica answers to.
    pub ack: Endpoint,
}

/// What the client must know of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replica {
    pub region: u64,
    pub rkey: u32,
    pub lkey: u32,
    /// The notes: address, and key for the replica itself.
    pub notes: u64,
    pub notes_lkey: u32,
    /// The entries of `own`: address, and key for the hop before.
    pub own: u64,
    pub own_rkey: u32,
}

/// The answer: the hop, and all behind it, are ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Bytes of each region.
    pub region: u64,
    pub entry: Endpoint,
    /// The last replica's queue pair towards the client.
    pub ack: Endpoint,
    /// The hop and those behind it.
    pub replicas: Vec<Replica>,
}

/// The numbers of a frame.
pub struct Numbers(std::vec::IntoIter<u64>);

impl Numbers {
    pub fn of(bytes: &[u8]) -> Numbers {
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        Numbers(words.collect::<Vec<_>>().into_iter())
    }

    pub fn take(&mut self) -> Result<u64> {
        self.0.next().ok_or(Error::Refused("a frame of the peer is too short".into()))
    }

    fn take_u32(&mut self) -> Result<u32> {
        u32::try_from(self.take()?).map_err(|_| Error::Refused("a number of the peer is too large".into()))
    }

    fn endpoint(&mut self) -> Result<Endpoint> {
        let qpn = self.take_u32()?;
        let halves = [self.take()?.to_le_bytes(), self.take()?.to_le_bytes()];
        Ok(Endpoint { qpn, gid: Gid(halves.concat().try_into().unwrap_or_default()) })
    }
}

fn numbers_of(endpoint: &Endpoint) -> [u64; 3] {
    let half = |at: usize| u64::from_le_bytes(endpoint.gid.0[at..at + 8].try_into().unwrap_or_default());
    [endpoint.qpn.into(), half(0), half(8)]
}

/// Send a frame of bytes.
pub fn tell(mut stream: &TcpStream, kind: u32, bytes: &[u8]) -> Result<()> {
    let bytes = &bytes[..bytes.len().min(MOST_BYTES as usize)];
    let head = [(bytes.len() as u32).to_le_bytes(), kind.to_le_bytes()].concat();
    stream.write_all(&[&head, bytes].concat())?;
    Ok(())
}

/// Send a frame of numbers.
pub fn tell_numbers(stream: &TcpStream, kind: u32, numbers: &[u64]) -> Result<()> {
    tell(stream, kind, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())
}

/// Receive a frame.
pub fn hear(mut stream: &TcpStream) -> Result<(u32, Vec<u8>)> {
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    let [a, b, c, d, kind @ ..] = head;
    let len = u32::from_le_bytes([a, b, c, d]);
    if len > MOST_BYTES {
        return Err(Error::Refused("a frame of the peer is too long".into()));
    }
    let mut bytes = vec![0; len as usize];
    stream.read_exact(&mut bytes)?;
    Ok((u32::from_le_bytes(kind), bytes))
}

/// Check the first numbers of whoever connects.
pub fn check_version(numbers: &mut Numbers) -> Result<()> {
    if numbers.take()? != MAGIC {
        return Err(Error::Refused(NO_CLIENT.into()));
    }
    match numbers.take()? {
        VERSION => Ok(()),
        version => Err(Error::Refused(format!("the peer speaks version {version}, this is version {VERSION}"))),
    }
}

/// The two numbers of a frame.
pub fn two_numbers(bytes: &[u8]) -> Result<[u64; 2]> {
    let mut numbers = Numbers::of(bytes);
    Ok([numbers.take()?, numbers.take()?])
}

impl Hello {
    pub fn tell(&self, stream: &TcpStream) -> Result<()> {
        let head = [MAGIC, VERSION, self.depth.into(), self.hop.into(), self.region];
        let numbers = [&head[..], &numbers_of(&self.from), &numbers_of(&self.ack)].concat();
        tell_numbers(stream, kind::HELLO, &numbers)
    }

    /// The hello of a frame.
    pub fn of(kind: u32, bytes: &[u8]) -> Result<Hello> {
        if kind != kind::HELLO {
            return Err(Error::Refused(NO_CLIENT.into()));
        }
        let mut numbers = Numbers::of(bytes);
        check_version(&mut numbers)?;
        let (depth, hop, region) = (numbers.take_u32()?, numbers.take_u32()?, numbers.take()?);
        let hello = Hello { depth, hop, region, from: numbers.endpoint()?, ack: numbers.endpoint()? };
        if !depth.is_power_of_two() || !(2..=crate::MOST_WINDOW.next_power_of_two()).contains(&depth) {
            return Err(Error::Refused(format!("{depth} rounds are not a power of two from 2 to 2048")));
        }
        if hop as usize >= MOST_REPLICAS {
            return Err(Error::Invalid(TOO_LONG));
        }
        Ok(hello)
    }
}

impl Welcome {
    pub fn tell(&self, stream: &TcpStream) -> Result<()> {
        let mut numbers = vec![self.region];
        numbers.extend(numbers_of(&self.entry));
        numbers.extend(numbers_of(&self.ack));
        numbers.push(self.replicas.len() as u64);
        for it in &self.replicas {
            numbers.extend([it.region, it.rkey.into(), it.lkey.into(), it.notes, it.notes_lkey.into()]);
            numbers.extend([it.own, it.own_rkey.into()]);
        }
        tell_numbers(stream, kind::WELCOME, &numbers)
    }

    pub fn hear(stream: &TcpStream) -> Result<Welcome> {
        let (kind, bytes) = hear(stream)?;
        if kind == kind::REFUSED {
            return Err(Error::Refused(text(&bytes)));
        }
        if kind == kind::TOO_LONG {
            return Err(Error::Invalid(TOO_LONG));
        }
        if kind != kind::WELCOME {
            return Err(Error::Refused(NO_SERVER.into()));
        }
        let mut numbers = Numbers::of(&bytes);
        let (region, entry, ack) = (numbers.take()?, numbers.endpoint()?, numbers.endpoint()?);
        let count = numbers.take()? as usize;
        if !(1..=MOST_REPLICAS).contains(&count) {
            return Err(Error::Refused(format!("a chain of {count} replicas")));
        }
        let mut replicas = Vec::with_capacity(count);
        for _ in 0..count {
            let (region, rkey, lkey) = (numbers.take()?, numbers.take_u32()?, numbers.take_u32()?);
            let (notes, notes_lkey) = (numbers.take()?, numbers.take_u32()?);
            let (own, own_rkey) = (numbers.take()?, numbers.take_u32()?);
            replicas.push(Replica { region, rkey, lkey, notes, notes_lkey, own, own_rkey });
        }
        Ok(Welcome { region, entry, ack, replicas })
    }
}

/// The text of a frame.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The access of peers through a queue pair.
pub fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// The address of this process's device.
pub fn own_gid(context: &Context) -> Result<Gid> {
    let gids = context.gids(PORT)?;
    // RoCE v2 (`enum ibv_gid_type` 2) is routed.
    let best = gids.iter().find(|entry| entry.kind == Some(2)).or(gids.first());
    best.map(|entry| entry.gid).ok_or(Error::Invalid("the device has no address"))
}

/// Bring a queue pair from RESET to RTS.
pub fn connect(context: &Context, qp: &Qp, to: &Endpoint) -> Result<()> {
    let own = own_gid(context)?;
    let index = context.gids(PORT)?.iter().find(|entry| entry.gid == own).map_or(0, |entry| entry.index);
    qp.init(QpType::Rc, PORT, access(), 0)?;
    let with = Connect {
        qpn: to.qpn,
        gid: to.gid,
        lid: 0,
        rq_psn: qp.number() & 0xff_ffff,
        sq_psn: to.qpn & 0xff_ffff,
        sgid_index: index as u8,
        port: PORT,
        mtu: 3,
        access: access(),
        rd_atomic: 16,
        // A second until a retry: on a busy machine a process may not run for a while.
        timeout: 18,
        rnr_retry: 7,
    };
    Ok(qp.connect(QpType::Rc, &with)?)
}
