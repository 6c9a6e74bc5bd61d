//! libsdp's file of rules: which programs' connections may leave TCP.
//!
//! ```text
//! config    := statement*      one in each line; # starts a comment
//! statement := "log" ( "destination" ("stderr" | "syslog" | "file" NAME) | "min-level" INT )*
//!            | "use" family role program address ":" ports
//! family    := "tcp" | "sdp" | "both"       role := "server" | "listen" | "client" | "connect"
//! program   := pattern of fnmatch(3), against the program's name without its directory
//! address   := "*" | a.b.c.d [ "/" INT ] | "[" IPv6 "]" [ "/" INT ]       ports := "*" | INT [ "-" INT ]
//! ```
//!
//! There is one list for each role, in the file's order. The first rule that matches decides; where none matches it
//! is `both`; where there is no rule at all it is `sdp`. Rules for servers look at the local address, those for
//! clients at the remote one.
//!
//! Beyond libsdp: addresses of IPv6, and a mask covers the rule's own address, too (libsdp compares an unmasked
//! address with a masked one, so that `192.168.1.5/24` matches nothing there); such a rule gets a warning.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::glob;

mod parse;

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// TCP only.
    Tcp,
    /// Shared memory only: an error where that is impossible.
    Sdp,
    /// Shared memory where it is possible, else TCP.
    Both,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A socket that listens, or was accepted.
    Server,
    /// A socket that connects.
    Client,
}

/// Where messages go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// To standard error.
    #[default]
    Stderr,
    /// To syslog(3).
    Syslog,
    /// To a file of this name.
    File(String),
}

/// What is said, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Where.
    pub destination: Destination,
    /// 9: errors, 8: warnings, 7: connections, 4 and 3: rules that match and that do not, 2: calls, 1: everything.
    pub min_level: u32,
}

impl Default for Log {
    fn default() -> Self {
        Log { destination: Destination::default(), min_level: 9 }
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its line in the file, from 1.
    pub line: usize,
    family: Family,
    program: String,
    /// An address and the number of bits that count; `None`: any.
    address: Option<(IpAddr, u32)>,
    /// First and last port; `None`: any.
    ports: Option<(u16, u16)>,
}

/// All rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    servers: Vec<Rule>,
    clients: Vec<Rule>,
    /// What is said of them.
    pub log: Log,
}

/// What decides, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How.
    pub family: Family,
    /// The rule's line; `None`: no rule matches, or there is none.
    pub line: Option<usize>,
}

/// What the connections of a socket that listens may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Some may leave TCP.
    pub may_move: bool,
    /// Some must, or are refused.
    pub may_refuse: bool,
}

/// What is wrong with a file, or would be with libsdp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// From 1.
    pub line: usize,
    /// From 1, in bytes.
    pub column: usize,
    /// What.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.what)
    }
}

/// A file that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The rules; those before an error.
    pub rules: Rules,
    /// What libsdp would do otherwise.
    pub warnings: Vec<Complaint>,
    /// The first error: nothing behind it was read.
    pub error: Option<Complaint>,
}

impl Rules {
    /// Reads a file.
    pub fn parse(text: &str) -> Parsed {
        parse::file(text)
    }

    /// The rules of a role, in the file's order.
    pub fn of(&self, role: Role) -> &[Rule] {
        match role {
            Role::Server => &self.servers,
            Role::Client => &self.clients,
        }
    }

    /// Which way a connection of this program may go.
    pub fn decide(&self, role: Role, program: &str, address: SocketAddr) -> Decision {
        match self.of(role).iter().find(|rule| rule.names(program) && rule.covers(address)) {
            Some(rule) => Decision { family: rule.family, line: Some(rule.line) },
            None => Decision { family: self.unmatched(), line: None },
        }
    }

    /// What holds where no rule matches: `both`, or `sdp` if there is no rule at all.
    pub fn unmatched(&self) -> Family {
        if self.servers.is_empty() && self.clients.is_empty() { Family::Sdp } else { Family::Both }
    }

    /// What the connections of a socket may be that listens at this address. One that listens at all addresses of the
    /// machine gets connections of each.
    pub fn of_listener(&self, program: &str, address: SocketAddr) -> Listening {
        let own = self.decide(Role::Server, program, address).family;
        let mut listening = Listening { may_move: own != Family::Tcp, may_refuse: own == Family::Sdp };
        if address.ip().to_canonical().is_unspecified() {
            let others = self.servers.iter().filter(|rule| rule.names(program) && rule.has_port(address.port()));
            for family in others.map(|rule| rule.family) {
                listening.may_move |= family != Family::Tcp;
                listening.may_refuse |= family == Family::Sdp;
            }
        }
        listening
    }
}

impl Rule {
    /// What it says.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether it is about programs of this name.
    pub fn names(&self, program: &str) -> bool {
        glob::matches(self.program.as_bytes(), program.as_bytes())
    }

    fn covers(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.address.is_none_or(|(rule, bits)| masked(rule, bits) == masked(ip, bits)) && self.has_port(address.port())
    }

    fn has_port(&self, port: u16) -> bool {
        self.ports.is_none_or(|(first, last)| (first..=last).contains(&port))
    }
}

/// The first bits of an address.
fn masked(ip: IpAddr, bits: u32) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => std::net::Ipv4Addr::from_bits(ip.to_bits() & !u32::MAX.checked_shr(bits).unwrap_or(0)).into(),
        IpAddr::V6(ip) => {
            std::net::Ipv6Addr::from_bits(ip.to_bits() & !u128::MAX.checked_shr(bits).unwrap_or(0)).into()
        }
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
