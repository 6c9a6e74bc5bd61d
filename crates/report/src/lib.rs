//! Reports of an adapter, and their explanation.
//!
//! * [`facts`]: the report: every queue pair, what its queues hold, what it waits for; completion queues, links, the
//!   connection manager's ids; counters. The engine, the wire, the adapter and the connection manager fill in their
//!   parts.
//! * [`rules`]: from facts to findings: the reason why something does not go on, in the words of the field.
//! * [`text`]: both as text.
//! * [`log()`] and [`log_once`]: a line on standard error.
//! * [`settings`]: the environment variables.
//!
//! A report is sent as JSON ([`encode`], [`decode`]) over the socket that [`socket_name`] names.
#![deny(unsafe_code)] // but for one call in `settings`

mod by_device;
pub mod facts;
mod log;
pub mod rules;
pub mod settings;
pub mod streams;
pub mod text;

pub use facts::Report;
pub use log::{Matter, log, log_once, logged};
pub use rules::{Finding, Severity, Situation};
pub use settings::{Device, Devices, LogLevel, Settings, logs};

/// The beginning of the names of the sockets at which processes with an open device answer.
pub const SOCKET_PREFIX: &str = "softrnic/1/doctor/";

/// The abstract name (without the leading 0 byte) of the socket at which a process answers each connection: a
/// SOCK_SEQPACKET listener. The answer is one packet of the byte [`ANSWER`] and the descriptor of a memfd with a
/// report; then the connection is closed. The process reads nothing from it.
pub fn socket_name(pid: u32) -> String {
    format!("{SOCKET_PREFIX}{pid}")
}

/// The byte that comes with the descriptor.
pub const ANSWER: u8 = b'R';

/// The greatest length of a report that is read, in bytes: a thousand times what thousands of queue pairs need.
pub const MAX_BYTES: u64 = 1 << 30;

/// The processes that listen according to a text like `/proc/net/unix`, in order.
pub fn listeners(proc_net_unix: &str) -> Vec<u32> {
    let mut found: Vec<u32> = proc_net_unix
        .lines()
        .filter_map(|line| line.rsplit_once(' ')?.1.strip_prefix('@')?.strip_prefix(SOCKET_PREFIX)?.parse().ok())
        .collect();
    found.sort_unstable();
    found.dedup(); // connections that wait to be accepted have the name, too
    found
}

/// The bytes of a report.
///
/// # Errors
/// None that is known: all of it can be written as JSON.
pub fn encode(report: &Report) -> Result<Vec<u8>, String> {
    serde_json::to_vec(report).map_err(|error| error.to_string())
}

/// Parse the bytes of a report.
///
/// # Errors
/// They are none, or those of another version of this software.
pub fn decode(bytes: &[u8]) -> Result<Report, String> {
    #[derive(serde::Deserialize)]
    struct Head {
        version: u32,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| format!("not a report: {error}"))?;
    if head.version != facts::VERSION {
        return Err(format!("a report of version {}, and this program reads {}", head.version, facts::VERSION));
    }
    serde_json::from_slice(bytes).map_err(|error| format!("not a report: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_among_other_sockets() {
        let text = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 20100 @softrnic/1/doctor/77
0000000000000000: 00000003 00000000 00000000 0005 03 20101 @softrnic/1/doctor/77
0000000000000000: 00000002 00000000 00010000 0005 01 20102 @softrnic/1/doctor/8
0000000000000000: 00000002 00000000 00010000 0005 01 20103 @softrnic/1/doctor/8x
0000000000000000: 00000002 00000000 00010000 0005 01 20104 /run/softrnic/1/doctor/9
0000000000000000: 00000002 00000000 00010000 0005 01 20105 @softrnic/2/qpn/001
0000000000000000: 00000002 00000000 00010000 0005 01 20106
";
        assert_eq!(listeners(text), [8, 77]);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        for bad in ["", "{}", "[1]", "{\"version\":1}", "\u{1}"] {
            assert!(decode(bad.as_bytes()).is_err(), "{bad}");
        }
        let other = Report { version: facts::VERSION + 1, ..Report::default() };
        assert!(decode(&encode(&other).unwrap()).unwrap_err().contains("version"));
        let report = Report { version: facts::VERSION, pid: 4, ..Report::default() };
        assert_eq!(decode(&encode(&report).unwrap()).unwrap(), report);
    }
}
