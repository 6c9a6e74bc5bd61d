//! The protocol of rdma-core's `rping`: the server reads the client's text and writes it back.

use iwarp::rdmap::Work;
use verbs::RKey;
use wire::rdmap::read_request;

use crate::link::Link;
use crate::memory::Region;

/// Bytes of the message that names a region: address, key, length.
const INFO: usize = 16;
/// The client's text.
const TEXT: RKey = RKey(0x1234_5600);
/// The place to which the client's text comes back, or is read by the server.
const BACK: RKey = RKey(0x1234_5601);
/// The address of each region.
const BASE: u64 = 0x7f00_1234_5678;

/// A region of the other side.
struct Info {
    address: u64,
    key: u32,
    len: u32,
}

impl Info {
    fn emit(&self) -> [u8; INFO] {
        let mut bytes = [0; INFO];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Info, String> {
        let bytes: [u8; INFO] = bytes.try_into().map_err(|_| format!("{} bytes name no region", bytes.len()))?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Ok(Info { address: u64::from(word(0)) << 32 | u64::from(word(4)), key: word(8), len: word(12) })
    }
}

fn message(link: &mut Link, bytes: &[u8]) -> Result<(), String> {
    let len = u32::try_from(bytes.len()).map_err(|e| e.to_string())?;
    link.send(Work::Send { len, solicited: false, invalidate: None }, bytes)
}

fn region(stag: RKey, bytes: Vec<u8>) -> Region {
    Region { stag, base: BASE, bytes }
}

/// Text without zero bytes but for the last one, as the server measures it with strlen(3).
fn pattern(round: usize, len: usize) -> Vec<u8> {
    let mut text = format!("rdma-ping-{round}: ").into_bytes();
    text.extend((0..len).map(|at| b'A' + ((at + round) % 57) as u8));
    text.truncate(len);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// The client: `count` rounds with texts of `len` bytes. `lie`: the key of its text names no region.
pub fn client(link: &mut Link, count: usize, len: usize, lie: bool) -> Result<(), String> {
    for round in 0..count {
        let text = pattern(round, len);
        link.memory.regions = vec![region(TEXT, text.clone()), region(BACK, vec![0; len])];
        let len = u32::try_from(len).map_err(|e| e.to_string())?;
        for key in [TEXT, BACK] {
            link.memory.receives.push_back(INFO);
            let key = if lie { 0xbad } else { key.0 };
            message(link, &Info { address: BASE, key, len }.emit())?;
            link.message()?.ok_or_else(|| format!("round {round}: {:?}", link.stream.end()))?;
        }
        if link.memory.regions[1].bytes != text {
            return Err(format!("round {round}: the text has changed"));
        }
    }
    Ok(())
}

/// The server: rounds until the client goes. The number of rounds.
pub fn server(link: &mut Link) -> Result<usize, String> {
    let mut rounds = 0;
    link.memory.receives.extend([INFO; 2]);
    while let Some(info) = link.message()? {
        let Info { address, key, len } = Info::read(&info)?;
        link.memory.regions = vec![region(BACK, vec![0; len as usize])];
        link.read(read_request::Repr {
            sink_stag: BACK,
            sink_offset: BASE,
            size: len,
            source_stag: RKey(key),
            source_offset: address,
        })?;
        let text = link.memory.regions[0].bytes.clone();
        link.memory.receives.push_back(INFO);
        message(link, &[0; INFO])?;
        let Some(info) = link.message()? else { return Err("the client went in a round".to_owned()) };
        let Info { address, key, .. } = Info::read(&info)?;
        link.send(Work::Write { stag: RKey(key), offset: address, len }, &text)?;
        link.memory.receives.push_back(INFO);
        message(link, &[0; INFO])?;
        rounds += 1;
    }
    Ok(rounds)
}
