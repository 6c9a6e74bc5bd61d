//! What is wrong with a segment (RFC 5041, section 7).

/// Why a steering tag does not permit what is asked of it. DDP and RDMAP number these reasons differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagFault {
    /// The steering tag names no region.
    Invalid,
    /// The place is not inside the region.
    Bounds,
    /// The region does not permit this access.
    Rights,
    /// The region belongs to another stream, or to another protection domain.
    Stream,
    /// The end of the place is beyond the largest offset.
    Wrap,
    /// The region cannot be invalidated.
    NotInvalidated,
}

/// An error in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The segment is too short for its header.
    Short,
    /// A tagged header of another version.
    TaggedVersion,
    /// An untagged header of another version.
    UntaggedVersion,
    /// The place of a tagged segment.
    Tag(TagFault),
    /// No such queue, or another one than the message's.
    Queue,
    /// The queue has no buffer.
    NoBuffer,
    /// The message is not the next one of its queue.
    Message,
    /// The offset is not the next one of its message.
    Offset,
    /// The message is longer than its buffer.
    TooLong,
}

impl Fault {
    /// The type and code of the error, of the layer DDP (RFC 5041, section 7.2). The RFC has no code for a lack of
    /// rights. Linux says "invalid STag" for it, and this function does, too.
    pub const fn numbers(self) -> (u8, u8) {
        match self {
            Fault::Short => (0, 0),
            Fault::Tag(TagFault::Invalid | TagFault::Rights | TagFault::NotInvalidated) => (1, 0),
            Fault::Tag(TagFault::Bounds) => (1, 1),
            Fault::Tag(TagFault::Stream) => (1, 2),
            Fault::Tag(TagFault::Wrap) => (1, 3),
            Fault::TaggedVersion => (1, 4),
            Fault::Queue => (2, 1),
            Fault::NoBuffer => (2, 2),
            Fault::Message => (2, 3),
            Fault::Offset => (2, 4),
            Fault::TooLong => (2, 5),
            Fault::UntaggedVersion => (2, 6),
        }
    }
}
