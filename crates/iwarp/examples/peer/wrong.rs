//! Errors that this side makes for the other one to find.

use iwarp::rdmap::Work;
use verbs::RKey;
use wire::mpa::fpdu::{self, Crc};
use wire::rdmap::read_request;

use crate::link::Link;
use crate::memory::Region;

/// A SEND's header, behind the length of the FPDU.
const HEADER: usize = fpdu::LEN;
/// A steering tag that names no region.
const NOBODY: RKey = RKey(0xdead_be00);

/// Makes the error of this name.
pub fn provoke(link: &mut Link, name: &str) -> Result<(), String> {
    let send = Work::Send { len: 16, solicited: false, invalidate: None };
    // The place and the new value of one byte of a SEND's headers; with its CRC right again.
    let field = |at: usize, value: u8| {
        move |bytes: &mut Vec<u8>| {
            bytes[HEADER + at] = value;
            let end = bytes.len() - fpdu::CRC_LEN;
            let crc = Crc::new().bytes(&bytes[..end]).finish();
            bytes[end..].copy_from_slice(&crc);
        }
    };
    match name {
        "write-stag" => link.send(Work::Write { stag: NOBODY, offset: 0, len: 8 }, &[1; 8]),
        "read-stag" => {
            let sink = RKey(0x55);
            link.memory.regions.push(Region { stag: sink, base: 0, bytes: vec![0; 8] });
            link.send(
                Work::Read(read_request::Repr {
                    sink_stag: sink,
                    sink_offset: 0,
                    size: 8,
                    source_stag: NOBODY,
                    source_offset: 0,
                }),
                &[],
            )
        }
        "send-long" => link.send(Work::Send { len: 100, solicited: false, invalidate: None }, &[1; 100]),
        "crc" => link.send_spoilt(send, &[1; 16], |bytes| {
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
        }),
        "ddp-version" => link.send_spoilt(send, &[1; 16], field(0, 0x42)),
        "rdmap-version" => link.send_spoilt(send, &[1; 16], field(1, 0x83)),
        "opcode" => link.send_spoilt(send, &[1; 16], field(1, 0x4e)),
        "queue" => link.send_spoilt(send, &[1; 16], field(9, 9)),
        "message" => link.send_spoilt(send, &[1; 16], field(13, 7)),
        "offset" => link.send_spoilt(send, &[1; 16], field(17, 4)),
        _ => Err(format!("no error {name}")),
    }
}
