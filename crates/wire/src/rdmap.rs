//! RDMAP: the messages of iWARP (RFC 5040; RFC 7306 for atomics and immediate data). Its [`control`] byte lies in the
//! header of DDP; what some messages have behind that header has a file here (RFC 5040, section 4.2).

pub mod atomic_request;
pub mod atomic_response;
pub mod control;
pub mod immediate;
pub mod read_request;
pub mod terminate;

/// Numbers of the queues of untagged messages (RFC 5040, section 4.1; RFC 7306, section 4.1).
pub mod queue {
    /// SENDs and immediate data.
    pub const SEND: u32 = 0;
    /// READ and atomic requests.
    pub const REQUEST: u32 = 1;
    /// Terminate messages.
    pub const TERMINATE: u32 = 2;
    /// Atomic responses.
    pub const ATOMIC_RESPONSE: u32 = 3;
}
