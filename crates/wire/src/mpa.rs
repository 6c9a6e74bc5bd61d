//! MPA: framing of iWARP on TCP (RFC 5044; RFC 6581 for enhanced connection establishment). A connection starts with a
//! [`start`] frame in each direction; then each direction is a sequence of FPDUs ([`fpdu`]), with [`marker`]s between
//! and inside of them if the receiver asked for them.

pub mod enhanced;
pub mod fpdu;
pub mod marker;
pub mod start;
