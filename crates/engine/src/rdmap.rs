//! The transport of iWARP: a queue pair over one TCP connection (RFC 5040, 5041, 5044), beside the connected services
//! of InfiniBand. It has no sequence numbers, no retries and no RNR: TCP has brought or lost all that was sent.
//!
//! The protocol is the crate `iwarp`; here it is put over regions, queues and completions. The engine knows no socket:
//! the device's driver asks for bytes to be sent ([`Engine::stream_output`](crate::Engine::stream_output)) and brings
//! bytes that have come ([`Engine::stream_input`](crate::Engine::stream_input)).
//!
//! * `state`: what a queue pair has beside its queues.
//! * `stream`: the start, the end, and what the driver asks and tells.
//! * `outbound`: requests and answers on their way out.
//! * `output`: what waits for TCP.
//! * `inbound`: the peer's messages.

mod inbound;
mod outbound;
mod output;
pub(crate) mod state;
mod stream;

pub(crate) use outbound::takes;
pub use output::Output;
