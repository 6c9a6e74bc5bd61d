//! Reading the file.

use std::net::IpAddr;

use super::{Complaint, Destination, Family, Parsed, Role, Rule, masked};

/// Words that cannot be a program's name.
const KEYWORDS: [&str; 16] = [
    "log",
    "destination",
    "stderr",
    "syslog",
    "file",
    "min-level",
    "use",
    "tcp",
    "sdp",
    "both",
    "server",
    "listen",
    "client",
    "connect",
    "*:*",
    ":",
];

pub(super) fn file(text: &str) -> Parsed {
    let mut parsed = Parsed::default();
    for (number, line) in text.lines().enumerate() {
        let mut cursor = Cursor { line: number + 1, text: line.split('#').next().unwrap_or_default(), at: 0 };
        if let Err(error) = statement(&mut cursor, &mut parsed) {
            parsed.error = Some(error);
            return parsed;
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        let line = text.lines().count();
        let what = "the last line has no end; libsdp would not read it".to_owned();
        parsed.warnings.push(Complaint { line, column: text.lines().last().map_or(0, str::len) + 1, what });
    }
    parsed
}

/// A place in a line.
struct Cursor<'a> {
    line: usize,
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn complain(&self, at: usize, what: impl Into<String>) -> Complaint {
        Complaint { line: self.line, column: at + 1, what: what.into() }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start_matches([' ', '\t', '\r']).len();
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.rest().is_empty()
    }

    /// What stands up to the next of these characters, and where it begins.
    fn until(&mut self, stops: &[char]) -> (&'a str, usize) {
        self.skip_blanks();
        let start = self.at;
        let word = self.rest().split(stops).next().unwrap_or_default();
        self.at += word.len();
        (word, start)
    }

    fn word(&mut self) -> (&'a str, usize) {
        self.until(&[' ', '\t', '\r'])
    }

    fn expected(&self, at: usize, what: &str, found: &str) -> Complaint {
        let found = if found.is_empty() { "the line's end".to_owned() } else { format!("\"{found}\"") };
        self.complain(at, format!("expected {what}, found {found}"))
    }

    /// Takes a character if it is the next.
    fn takes(&mut self, what: char) -> bool {
        self.skip_blanks();
        let there = self.rest().starts_with(what);
        self.at += if there { what.len_utf8() } else { 0 };
        there
    }

    fn number(&mut self, what: &str, most: u32) -> Result<u32, Complaint> {
        let (word, at) = self.until(&[' ', '\t', '\r', ':', '/', '-']);
        let number = word.parse().ok().filter(|n| *n <= most && word.bytes().all(|b| b.is_ascii_digit()));
        number.ok_or_else(|| self.expected(at, &format!("{what} (0 to {most})"), word))
    }
}

fn statement(cursor: &mut Cursor<'_>, parsed: &mut Parsed) -> Result<(), Complaint> {
    match cursor.word() {
        ("", _) => Ok(()),
        ("log", _) => log(cursor, parsed),
        ("use", _) => rule(cursor, parsed),
        (other, at) => Err(cursor.expected(at, "\"use\" or \"log\"", other)),
    }
}

fn log(cursor: &mut Cursor<'_>, parsed: &mut Parsed) -> Result<(), Complaint> {
    while !cursor.is_at_end() {
        let log = &mut parsed.rules.log;
        match cursor.word() {
            ("destination", _) => match cursor.word() {
                ("stderr", _) => log.destination = Destination::Stderr,
                ("syslog", _) => log.destination = Destination::Syslog,
                ("file", _) => match cursor.word() {
                    ("", at) => return Err(cursor.expected(at, "a file's name", "")),
                    (name, _) => log.destination = Destination::File(name.to_owned()),
                },
                (other, at) => return Err(cursor.expected(at, "\"stderr\", \"syslog\" or \"file\"", other)),
            },
            ("min-level", _) => log.min_level = cursor.number("a level", u32::MAX)?,
            (other, at) => return Err(cursor.expected(at, "\"destination\" or \"min-level\"", other)),
        }
    }
    Ok(())
}

fn rule(cursor: &mut Cursor<'_>, parsed: &mut Parsed) -> Result<(), Complaint> {
    let family = match cursor.word() {
        ("tcp", _) => Family::Tcp,
        ("sdp", _) => Family::Sdp,
        ("both", _) => Family::Both,
        (other, at) => return Err(cursor.expected(at, "\"tcp\", \"sdp\" or \"both\"", other)),
    };
    let role = match cursor.word() {
        ("server" | "listen", _) => Role::Server,
        ("client" | "connect", _) => Role::Client,
        (other, at) => return Err(cursor.expected(at, "\"server\", \"listen\", \"client\" or \"connect\"", other)),
    };
    let (program, at) = cursor.word();
    if program.is_empty() || KEYWORDS.contains(&program) || program.bytes().all(|b| b.is_ascii_digit()) {
        return Err(cursor.expected(at, "a program's name or *", program));
    }
    let address = address(cursor, parsed)?;
    if !cursor.takes(':') {
        let found = cursor.rest();
        return Err(cursor.expected(cursor.at, "\":\"", found));
    }
    let ports = ports(cursor)?;
    if !cursor.is_at_end() {
        let (found, at) = cursor.word();
        return Err(cursor.expected(at, "the line's end", found));
    }
    let rule = Rule { line: cursor.line, family, program: program.to_owned(), address, ports };
    match role {
        Role::Server => parsed.rules.servers.push(rule),
        Role::Client => parsed.rules.clients.push(rule),
    }
    Ok(())
}

fn address(cursor: &mut Cursor<'_>, parsed: &mut Parsed) -> Result<Option<(IpAddr, u32)>, Complaint> {
    if cursor.takes('*') {
        return Ok(None);
    }
    let (word, at) = match cursor.takes('[') {
        true => {
            let (word, at) = cursor.until(&[']', ' ', '\t']);
            if !cursor.takes(']') {
                return Err(cursor.expected(cursor.at, "\"]\"", cursor.rest()));
            }
            parsed.warnings.push(cursor.complain(at, "libsdp knows no addresses of IPv6"));
            (word, at)
        }
        false => cursor.until(&[':', '/', ' ', '\t', '\r']),
    };
    let ip: IpAddr = word.parse().map_err(|_| cursor.expected(at, "an address or *", word))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let bits = if cursor.takes('/') { cursor.number("a number of bits", most)? } else { most };
    if masked(ip, bits) != ip {
        let what = format!("{ip}/{bits} is taken for {}/{bits}; with libsdp it would match nothing", masked(ip, bits));
        parsed.warnings.push(cursor.complain(at, what));
    }
    // Addresses of IPv4 that are written as such of IPv6 are compared as what they are.
    Ok(Some(match (ip, ip.to_canonical()) {
        (IpAddr::V6(_), v4 @ IpAddr::V4(_)) => (v4, bits.saturating_sub(96)),
        (ip, _) => (ip, bits),
    }))
}

fn ports(cursor: &mut Cursor<'_>) -> Result<Option<(u16, u16)>, Complaint> {
    if cursor.takes('*') {
        return Ok(None);
    }
    const MOST: u32 = u16::MAX as u32;
    let first = cursor.number("a port", MOST)?;
    let last = if cursor.takes('-') { cursor.number("a port", MOST)? } else { first };
    Ok(Some((first as u16, last as u16)))
}
