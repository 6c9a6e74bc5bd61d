//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng) that are needed here: one section, an interface for each
//! process, packets.

/// The type and the byte-order magic of a section header block.
pub(super) const SECTION: u32 = 0x0a0d_0d0a;
pub(super) const MAGIC: u32 = 0x1a2b_3c4d;
pub(super) const INTERFACE: u32 = 1;
pub(super) const PACKET: u32 = 6;
/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;
/// The place of the section's length in a section header block: 8 bytes, the number of bytes of the section behind the
/// block.
pub(super) const SECTION_LENGTH_AT: u64 = 16;

/// Options; their codes mean different things in different blocks.
mod option {
    pub const COMMENT: u16 = 1;
    pub const PACKET_FLAGS: u16 = 2;
    pub const INTERFACE_NAME: u16 = 2;
    pub const INTERFACE_DESCRIPTION: u16 = 3;
    pub const INTERFACE_EUI: u16 = 7;
    pub const INTERFACE_TIME_RESOLUTION: u16 = 9;
    pub const SECTION_APPLICATION: u16 = 4;
}

/// Append a section header block, of a section that has nothing in it yet.
pub(super) fn section(out: &mut Vec<u8>) {
    block(out, SECTION, |out| {
        out.extend_from_slice(&MAGIC.to_ne_bytes());
        out.extend_from_slice(&1u16.to_ne_bytes());
        out.extend_from_slice(&0u16.to_ne_bytes());
        out.extend_from_slice(&0u64.to_ne_bytes());
        let application = concat!("softrnic ", env!("CARGO_PKG_VERSION"));
        put(out, option::SECTION_APPLICATION, application.as_bytes());
        end_of_options(out);
    });
}

/// Append an interface description block. Times are in nanoseconds.
pub(super) fn interface(out: &mut Vec<u8>, name: &str, description: &str, eui: u64, snaplen: u32) {
    block(out, INTERFACE, |out| {
        out.extend_from_slice(&ETHERNET.to_ne_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&snaplen.to_ne_bytes());
        // The first option, at a fixed place: other processes look for it.
        put(out, option::INTERFACE_EUI, &eui.to_be_bytes());
        put(out, option::INTERFACE_NAME, name.as_bytes());
        put(out, option::INTERFACE_DESCRIPTION, description.as_bytes());
        put(out, option::INTERFACE_TIME_RESOLUTION, &[9]);
        end_of_options(out);
    });
}

/// The place, from the block's beginning, where [`interface`] puts the 8 bytes of the device's address.
pub(super) const EUI_AT: u64 = 20;

/// The place, from the block's beginning, where [`packet`] puts the bytes of the packet.
pub(super) const FRAME_AT: usize = 28;

/// A captured packet.
pub(super) struct Captured<'a> {
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// The bytes that are kept.
    pub bytes: &'a [u8],
    /// The number of bytes that the packet had.
    pub length: u32,
    /// True if this process sent it, false if it received it.
    pub outbound: bool,
    pub comment: Option<&'a str>,
}

/// Append an enhanced packet block.
pub(super) fn packet(out: &mut Vec<u8>, packet: &Captured<'_>) {
    block(out, PACKET, |out| {
        out.extend_from_slice(&packet.interface.to_ne_bytes());
        out.extend_from_slice(&((packet.time >> 32) as u32).to_ne_bytes());
        out.extend_from_slice(&(packet.time as u32).to_ne_bytes());
        out.extend_from_slice(&(packet.bytes.len() as u32).to_ne_bytes());
        out.extend_from_slice(&packet.length.to_ne_bytes());
        out.extend_from_slice(packet.bytes);
        pad(out);
        let direction: u32 = if packet.outbound { 2 } else { 1 };
        put(out, option::PACKET_FLAGS, &direction.to_ne_bytes());
        if let Some(comment) = packet.comment {
            put(out, option::COMMENT, comment.as_bytes());
        }
        end_of_options(out);
    });
}

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = (out.len() + 4 - start) as u32;
    out.extend_from_slice(&len.to_ne_bytes());
    out[start + 4..start + 8].copy_from_slice(&len.to_ne_bytes());
}

fn put(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(1024)];
    out.extend_from_slice(&code.to_ne_bytes());
    out.extend_from_slice(&(value.len() as u16).to_ne_bytes());
    out.extend_from_slice(value);
    pad(out);
}

fn end_of_options(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

/// Pad to 32 bits: blocks begin at multiples of 4, and all lengths so far are such.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}
