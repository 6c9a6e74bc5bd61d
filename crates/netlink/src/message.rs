//! Netlink's messages (`struct nlmsghdr`) and attributes (`struct nlattr`), of linux/netlink.h: in the machine's byte
//! order, each padded to 4 bytes.

/// The size of a header, in bytes.
pub const HEADER: usize = 16;

/// `NLM_F_REQUEST`.
pub const REQUEST: u16 = 0x1;
/// `NLM_F_MULTI`: one of several messages, which end with [`DONE`].
pub const MULTI: u16 = 0x2;
/// `NLM_F_ACK`.
pub const ACK: u16 = 0x4;
/// `NLM_F_CAPPED`: an error that does not repeat the request behind its header.
const CAPPED: u16 = 0x100;
/// `NLM_F_DUMP`.
pub const DUMP: u16 = 0x300;

/// `NLMSG_ERROR`.
pub const ERROR: u16 = 2;
/// `NLMSG_DONE`.
pub const DONE: u16 = 3;
/// `NLMSG_MIN_TYPE`: below it are netlink's own messages.
pub const FIRST_TYPE: u16 = 16;

/// The bits of a type, without the flags `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = 0x3fff;

/// `struct nlmsghdr`, without the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`.
    pub seq: u32,
    /// `nlmsg_pid`: the port of the socket.
    pub port: u32,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn aligned(len: usize) -> usize {
    (len + 3) & !3
}

/// The messages in a datagram with their headers; the first that is malformed ends them.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        let header = Header {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            seq: u32_at(bytes, 8)?,
            port: u32_at(bytes, 12)?,
        };
        let whole = bytes.get(..len).filter(|_| len >= HEADER)?;
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some((header, whole))
    })
}

/// The attributes behind a message's header, or in a nest; the first that is malformed ends them.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attribute of this type; the last one if there are several, as the kernel has it.
pub fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).filter(|(kind, _)| *kind == wanted).last().map(|(_, value)| value)
}

/// The attribute of this type, as a number of 32 bits.
pub fn number(bytes: &[u8], wanted: u16) -> Option<u32> {
    u32_at(attribute(bytes, wanted)?, 0)
}

/// A message that is being written.
#[derive(Clone, Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// A message without attributes.
    pub fn new(header: Header) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(header.kind.to_ne_bytes());
        bytes.extend(header.flags.to_ne_bytes());
        bytes.extend(header.seq.to_ne_bytes());
        bytes.extend(header.port.to_ne_bytes());
        Writer(bytes)
    }

    /// The number of bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// False: there is always a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Add an attribute. One that is too long is left out.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        let Ok(len) = u16::try_from(value.len() + 4) else { return };
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(aligned(self.0.len()), 0);
    }

    /// Add a number of 8 bits.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    /// Add a number of 32 bits.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Add a number of 64 bits.
    pub fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Add a string, with its terminator.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat());
    }

    /// Add an attribute that holds what `fill` writes. One that would be too long is left out.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        fill(self);
        match u16::try_from(self.0.len() - at) {
            Ok(len) => self.0[at..at + 2].copy_from_slice(&len.to_ne_bytes()),
            Err(_) => self.0.truncate(at),
        }
    }

    /// The bytes of the message.
    pub fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// `NLMSG_ERROR`: the answer to `request`, an errno or 0 for an acknowledgement.
pub fn error(request: Header, request_len: usize, errno: i32) -> Vec<u8> {
    let flags = if errno == 0 { 0 } else { CAPPED };
    let mut answer = Writer::new(Header { kind: ERROR, flags, ..request });
    answer.0.extend((-errno).to_ne_bytes());
    answer.0.extend((request_len as u32).to_ne_bytes());
    answer.0.extend(request.kind.to_ne_bytes());
    answer.0.extend(request.flags.to_ne_bytes());
    answer.0.extend(request.seq.to_ne_bytes());
    answer.0.extend(request.port.to_ne_bytes());
    answer.finish()
}

/// `NLMSG_DONE`: the end of a dump.
pub fn done(request: Header) -> Vec<u8> {
    let mut answer = Writer::new(Header { kind: DONE, flags: MULTI, ..request });
    answer.0.extend(0i32.to_ne_bytes());
    answer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Header = Header { kind: 0x1401, flags: REQUEST, seq: 7, port: 9 };

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::new(HEAD);
        writer.u8(14, 1);
        writer.text(2, "softrnic0");
        writer.nest(15, |w| w.u64(18, 77));
        let bytes = [writer.finish(), done(HEAD)].concat();
        let found: Vec<_> = messages(&bytes).collect();
        assert_eq!((found.len(), found[0].0, found[1].0.kind), (2, HEAD, DONE));
        let body = &found[0].1[HEADER..];
        assert_eq!(attribute(body, 14), Some(&[1][..]));
        assert_eq!(attribute(body, 2), Some(&b"softrnic0\0"[..]));
        assert_eq!(attribute(attribute(body, 15).unwrap(), 18), Some(&77u64.to_ne_bytes()[..]));
        assert_eq!((number(body, 14), number(body, 99)), (None, None));
    }

    #[test]
    fn an_error_names_the_request() {
        let bytes = error(HEAD, 20, 22);
        assert_eq!(bytes.len(), 36, "nlmsghdr, int, nlmsghdr");
        assert_eq!(&bytes[16..20], (-22i32).to_ne_bytes());
        assert_eq!(&bytes[20..24], 20u32.to_ne_bytes());
    }

    #[test]
    fn what_is_no_message_ends_the_datagram() {
        let whole = Writer::new(HEAD).finish();
        for len in [0u32, 15, 17, u32::MAX] {
            let mut bad = whole.clone();
            bad[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(messages(&bad).count(), 0, "{len}");
        }
        for short in 0..whole.len() {
            assert_eq!(messages(&whole[..short]).count(), 0, "{short}");
        }
        for bad in [&[0u8, 0, 1, 0][..], &[3, 0, 1, 0], &[5, 0, 1, 0], &[255, 255, 1, 0], &[4, 0, 1]] {
            assert_eq!(attributes(bad).count(), 0, "{bad:?}");
        }
    }
}
