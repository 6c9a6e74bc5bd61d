//! The cases of a measurement.

use std::fmt;

use clap::ValueEnum;
use rdma::QpType;
use serde::{Deserialize, Serialize};

/// Transport service of the queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ValueEnum)]
pub enum Transport {
    /// Reliable connection
    #[value(name = "RC", alias = "rc")]
    #[serde(rename = "RC")]
    Rc,
    /// Unreliable connection
    #[value(name = "UC", alias = "uc")]
    #[serde(rename = "UC")]
    Uc,
    /// Unreliable datagrams
    #[value(name = "UD", alias = "ud")]
    #[serde(rename = "UD")]
    Ud,
}

impl Transport {
    /// All services.
    pub const ALL: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];

    /// The name of the service.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
        }
    }

    /// The type of its queue pairs in verbs.
    pub fn qp_type(self) -> QpType {
        match self {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
        }
    }

    /// True if the service carries the operation.
    pub fn carries(self, operation: Operation) -> bool {
        match self {
            Transport::Rc => true,
            Transport::Uc => matches!(operation, Operation::Send | Operation::Write),
            Transport::Ud => operation == Operation::Send,
        }
    }
}

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ValueEnum)]
pub enum Operation {
    /// A message into a receive that the other program has posted
    #[value(name = "SEND", alias = "send")]
    #[serde(rename = "SEND")]
    Send,
    /// RDMA WRITE; where latency is measured, the other program sees it in its memory
    #[value(name = "WRITE", alias = "write")]
    #[serde(rename = "WRITE")]
    Write,
    /// RDMA READ; the other program sleeps
    #[value(name = "READ", alias = "read")]
    #[serde(rename = "READ")]
    Read,
    /// Fetch and add; the other program sleeps
    #[value(name = "FETCH_ADD", alias = "fetch_add")]
    #[serde(rename = "FETCH_ADD")]
    FetchAdd,
    /// Compare and swap; the other program sleeps
    #[value(name = "CMP_SWAP", alias = "cmp_swap")]
    #[serde(rename = "CMP_SWAP")]
    CompareSwap,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 5] =
        [Operation::Send, Operation::Write, Operation::Read, Operation::FetchAdd, Operation::CompareSwap];

    /// The name of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Send => "SEND",
            Operation::Write => "WRITE",
            Operation::Read => "READ",
            Operation::FetchAdd => "FETCH_ADD",
            Operation::CompareSwap => "CMP_SWAP",
        }
    }

    /// True for operations that a device may lack, and that have one size.
    pub fn is_atomic(self) -> bool {
        matches!(self, Operation::FetchAdd | Operation::CompareSwap)
    }

    /// True if latency is that of one way; otherwise there and back, for the initiator waits for the answer.
    pub fn one_way(self) -> bool {
        matches!(self, Operation::Send | Operation::Write)
    }
}

/// The way in which a program waits for a completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Waiting {
    /// It polls
    Polling,
    /// It sleeps until an event comes
    Events,
}

/// The quantity that is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantity {
    /// The time of one message, one at a time.
    Latency,
    /// The messages in a time, as many under way as there is room for.
    Bandwidth,
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Case {
    /// The quantity.
    pub quantity: Quantity,
    /// The service.
    pub transport: Transport,
    /// The operation.
    pub operation: Operation,
    /// The way of waiting for the completion.
    pub waiting: Waiting,
    /// True if the messages walk through [`super::end::SPAN`] bytes of memory on either side; otherwise all use the
    /// same.
    pub walking: bool,
    /// True if the target polls while others read and write its memory; otherwise it sleeps. Where two processors share
    /// one core, a thread that is awake slows down the other one, whatever it does.
    pub awake: bool,
    /// The bytes of a message.
    pub bytes: usize,
}

impl Case {
    /// A case of latency, with polling.
    pub fn latency(transport: Transport, operation: Operation, bytes: usize) -> Self {
        let bytes = if operation.is_atomic() { 8 } else { bytes };
        let (quantity, waiting) = (Quantity::Latency, Waiting::Polling);
        Case { quantity, transport, operation, waiting, walking: false, awake: false, bytes }
    }

    /// A case of bandwidth, with polling.
    pub fn bandwidth(transport: Transport, operation: Operation, bytes: usize) -> Self {
        Case { quantity: Quantity::Bandwidth, ..Case::latency(transport, operation, bytes) }
    }

    /// This case, with events instead of polling.
    pub fn by_events(self) -> Self {
        Case { waiting: Waiting::Events, ..self }
    }

    /// This case, with messages that walk.
    pub fn walking(self) -> Self {
        Case { walking: true, ..self }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.transport.name(), self.operation.name(), Bytes(self.bytes))?;
        if self.waiting == Waiting::Events {
            write!(f, ", by events")?;
        }
        if self.walking {
            write!(f, ", through {}", Bytes(super::end::SPAN))?;
        }
        if self.awake {
            write!(f, ", target awake")?;
        }
        Ok(())
    }
}

/// A number of bytes as text: `8 B`, `64 KiB`, `1.5 MiB`.
#[derive(Clone, Copy)]
pub struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            1024..0x10_0000 => write!(f, "{} KiB", self.0 as f64 / 1024.0),
            _ => write!(f, "{} MiB", self.0 as f64 / 1_048_576.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people() {
        assert_eq!(
            [8, 1024, 65536, 1 << 20, 1536].map(|n| Bytes(n).to_string()),
            ["8 B", "1 KiB", "64 KiB", "1 MiB", "1.5 KiB"]
        );
    }

    #[test]
    fn a_case_names_all_that_distinguishes_it() {
        let case = Case::bandwidth(Transport::Rc, Operation::Send, 1 << 20).walking();
        assert_eq!(case.to_string(), "RC SEND of 1 MiB, through 64 MiB");
        assert_eq!(Case { awake: true, ..case }.to_string(), "RC SEND of 1 MiB, through 64 MiB, target awake");
        assert_eq!(Case::latency(Transport::Rc, Operation::FetchAdd, 64).bytes, 8);
    }
}
