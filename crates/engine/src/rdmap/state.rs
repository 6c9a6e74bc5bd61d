//! The state of a queue pair over a TCP connection beside its queues.

use std::collections::VecDeque;

use iwarp::rdmap::Stream;
use wire::rdmap::read_request;

use super::output::Output;

/// The message that is being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Current {
    /// The request at the cursor of the send queue.
    Request,
    /// The answer to the oldest READ of the peer.
    Response,
}

/// The access that a tagged segment was checked for, and is placed by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tagged {
    /// A WRITE of the peer.
    Write,
    /// The answer to a READ of this side.
    Sink,
}

/// A READ of the peer that is to be answered: the number of its message, and the request.
pub(crate) type Owed = (u32, read_request::Repr);

/// A connection in full operation.
pub(crate) struct StreamState {
    pub stream: Stream,
    /// READs of the peer that are not answered, the oldest first.
    pub owed: VecDeque<Owed>,
    pub current: Option<Current>,
    /// Answers that were begun one after the other while requests waited.
    pub answers_in_row: u32,
    /// Whole FPDUs for TCP.
    pub output: Output,
    /// Bytes that TCP has taken.
    pub sent: u64,
    /// TCP has a part of an FPDU whose rest cannot be sent: nothing may follow, and no Terminate message can.
    pub torn: bool,
    /// Bytes that came and are no whole FPDU.
    pub pending: Vec<u8>,
    pub tagged: Tagged,
    /// Bytes have come from the peer.
    pub heard: bool,
    /// The program has asked for the end: it comes when all that was posted is done.
    pub closing: bool,
    /// The connection is over: the driver takes the rest of the output out.
    pub over: bool,
}

impl StreamState {
    pub fn new(stream: Stream) -> StreamState {
        StreamState {
            stream,
            owed: VecDeque::new(),
            current: None,
            answers_in_row: 0,
            output: Output::default(),
            sent: 0,
            torn: false,
            pending: Vec::new(),
            tagged: Tagged::Write,
            heard: false,
            closing: false,
            over: false,
        }
    }

    /// True if there is something to send that no request of this side stands for.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty() || !self.output.is_empty()
    }
}
