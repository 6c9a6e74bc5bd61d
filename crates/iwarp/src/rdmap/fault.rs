//! Errors of all layers, as a Terminate message tells them (RFC 5040, section 4.8; RFC 6581, section 8).

use core::fmt;

use wire::rdmap::terminate::Layer;

use crate::ddp::{self, TagFault};
use crate::mpa::receive::Fault as MpaFault;
use crate::mpa::start::Unmet;

/// The cause for which this side ended a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The stream of FPDUs.
    Mpa(MpaFault),
    /// The terms that the responder has accepted cannot be met.
    Start(Unmet),
    /// A segment.
    Ddp(ddp::Fault),
    /// Another version of RDMAP.
    Version,
    /// An opcode that is not defined, not supported, or not expected (RFC 5040, section 7.2). RFC 7306, section 1.1: a
    /// side that does not support the messages of that document refuses them in this way.
    Opcode,
    /// The region of a READ request, or one to be invalidated.
    Tag(TagFault),
    /// A READ request or a Terminate message of a wrong length.
    Length,
    /// This side cannot go on.
    Local,
}

/// An error as a Terminate message names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The layer that found the error.
    pub layer: Layer,
    /// The type of the error, of the layer.
    pub kind: u8,
    /// The error, of the type.
    pub code: u8,
}

/// The part of a segment that a Terminate message repeats (RFC 5040, section 4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    Nothing,
    /// The length of the segment, its DDP header, and what a READ request has behind it.
    Headers,
}

impl Fault {
    /// The name of the fault in a Terminate message.
    pub const fn reason(self) -> Reason {
        let (layer, (kind, code)) = match self {
            Fault::Mpa(MpaFault::Crc) => (Layer::Llp, (0, 2)),
            Fault::Mpa(MpaFault::Marker) => (Layer::Llp, (0, 3)),
            Fault::Start(Unmet::Ird) => (Layer::Llp, (0, 6)),
            Fault::Start(Unmet::Ready) => (Layer::Llp, (0, 7)),
            Fault::Ddp(fault) => (Layer::Ddp, fault.numbers()),
            Fault::Tag(TagFault::Invalid) => (Layer::Rdmap, (1, 0)),
            Fault::Tag(TagFault::Bounds) => (Layer::Rdmap, (1, 1)),
            Fault::Tag(TagFault::Rights) => (Layer::Rdmap, (1, 2)),
            Fault::Tag(TagFault::Stream) => (Layer::Rdmap, (1, 3)),
            Fault::Tag(TagFault::Wrap) => (Layer::Rdmap, (1, 4)),
            Fault::Tag(TagFault::NotInvalidated) => (Layer::Rdmap, (1, 9)),
            Fault::Version => (Layer::Rdmap, (2, 5)),
            Fault::Opcode => (Layer::Rdmap, (2, 6)),
            Fault::Length => (Layer::Rdmap, (2, 0xff)),
            Fault::Local => (Layer::Rdmap, (0, 0)),
        };
        Reason { layer, kind, code }
    }

    pub(super) const fn repeats(self) -> Repeats {
        match self {
            // RFC 5040, section 4.8: errors of the layer below, and of this side, are about no segment.
            Fault::Mpa(_) | Fault::Start(_) | Fault::Local | Fault::Ddp(ddp::Fault::Short) => Repeats::Nothing,
            Fault::Ddp(_) | Fault::Version | Fault::Opcode | Fault::Tag(_) | Fault::Length => Repeats::Headers,
        }
    }
}

impl Reason {
    /// The error's name in the specifications; empty if they do not define it.
    pub const fn name(&self) -> &'static str {
        match (self.layer, self.kind, self.code) {
            (Layer::Rdmap, 0, _) => "local catastrophic error",
            (Layer::Rdmap, 1, 0) => "READ or invalidation: invalid STag",
            (Layer::Rdmap, 1, 1) => "READ: out of bounds",
            (Layer::Rdmap, 1, 2) => "READ: no right to access",
            (Layer::Rdmap, 1, 3) => "READ or invalidation: STag of another stream",
            (Layer::Rdmap, 1, 4) => "READ: the offset wraps",
            (Layer::Rdmap, 1, 9) => "STag cannot be invalidated",
            (Layer::Rdmap, 1, 0xff) => "remote protection error",
            (Layer::Rdmap, 2, 5) => "invalid version of RDMAP",
            (Layer::Rdmap, 2, 6) => "unexpected opcode",
            (Layer::Rdmap, 2, 7) => "catastrophic error of the stream",
            (Layer::Rdmap, 2, 8) => "catastrophic error of the adapter",
            (Layer::Rdmap, 2, 9) => "STag cannot be invalidated",
            (Layer::Rdmap, 2, 0xff) => "remote operation error",
            (Layer::Ddp, 0, _) => "catastrophic error of DDP",
            (Layer::Ddp, 1, 0) => "tagged: invalid STag",
            (Layer::Ddp, 1, 1) => "tagged: out of bounds",
            (Layer::Ddp, 1, 2) => "tagged: STag of another stream",
            (Layer::Ddp, 1, 3) => "tagged: the offset wraps",
            (Layer::Ddp, 1, 4) => "tagged: invalid version of DDP",
            (Layer::Ddp, 2, 1) => "untagged: invalid queue",
            (Layer::Ddp, 2, 2) => "untagged: no buffer",
            (Layer::Ddp, 2, 3) => "untagged: message number out of range",
            (Layer::Ddp, 2, 4) => "untagged: invalid offset",
            (Layer::Ddp, 2, 5) => "untagged: message too long for its buffer",
            (Layer::Ddp, 2, 6) => "untagged: invalid version of DDP",
            (Layer::Llp, 0, 1) => "TCP connection lost",
            (Layer::Llp, 0, 2) => "wrong CRC",
            (Layer::Llp, 0, 3) => "marker and length disagree",
            (Layer::Llp, 0, 4) => "invalid MPA request or reply",
            (Layer::Llp, 0, 5) => "local catastrophic error of MPA",
            (Layer::Llp, 0, 6) => "not enough places for READs",
            (Layer::Llp, 0, 7) => "no common message that says ready to receive",
            _ => "",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reason { layer, kind, code } = self;
        match self.name() {
            "" => write!(f, "{layer:?} error, type {kind}, code {code}"),
            name => write!(f, "{name} ({} {kind} {code})", *layer as u8),
        }
    }
}
