//! The TCP connections of programs under `softrnic sock`, as those programs tell of them (`sock::status`).
//!
//! A program's file is any file that a process of its user may have made: it is opened without waiting, checked,
//! copied and parsed. The addresses of a connection are the kernel's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use ::sock::status::{self, State, Way};
use report::text;
use serde::Serialize;

/// A connection of a process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Connection {
    pub pid: u32,
    pub program: String,
    pub fd: usize,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// By which way it sends and receives: "memory", or "TCP".
    pub sends: &'static str,
    pub receives: &'static str,
    /// Why it is not in memory; empty: it is, or nothing hinders it.
    pub why: &'static str,
    /// Bytes by memory.
    pub sent: u64,
    pub received: u64,
    /// How often the other process was woken, how often a call slept, and how often there was no room to send.
    pub wakes: u64,
    pub sleeps: u64,
    pub stalls: u64,
}

/// The connections of these processes; of all whose files may be read, if there are none.
pub fn all(pids: &[u32]) -> Vec<Connection> {
    let mut found = Vec::new();
    let numbers = || fs::read_dir("/proc").into_iter().flatten().flatten();
    let running = numbers().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = if pids.is_empty() { running.collect() } else { pids.to_vec() };
    pids.sort_unstable();
    for pid in pids {
        found.extend(of_process(pid).unwrap_or_default());
    }
    found
}

fn of_process(pid: u32) -> Option<Vec<Connection>> {
    let folder = format!("/proc/{pid}/fd");
    let (mut sockets, mut file) = (BTreeMap::new(), None);
    for entry in fs::read_dir(&folder).ok()?.flatten() {
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        let (link, number) = (link.to_string_lossy().into_owned(), entry.file_name().to_str()?.parse::<usize>().ok()?);
        if link.strip_prefix("/memfd:").and_then(|rest| rest.split(' ').next()) == status::NAME.to_str().ok() {
            file = Some(entry.path());
        } else if let Some(inode) = link.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
            sockets.insert(number, inode.parse::<u64>().ok()?);
        }
    }
    let told = status::parse(&contents(&file?)?)?;
    let program = text::clean(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end());
    let addresses = addresses(pid);
    let connection = |told: status::File| {
        let (local, remote) = *addresses.get(sockets.get(&told.fd)?)?;
        Some(Connection::new(pid, program.clone(), told, (local, remote)))
    };
    Some(told.into_iter().filter_map(connection).collect())
}

/// The bytes of a file that must be a regular one of the right length. Opening it does not wait.
fn contents(path: &Path) -> Option<Vec<u8>> {
    let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits().cast_signed();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let meta = file.metadata().ok().filter(|meta| meta.is_file() && meta.len() == status::LEN as u64)?;
    let mut bytes = vec![0; meta.len() as usize];
    // At an offset: other programs that read the same file move its position.
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

/// The addresses of the TCP connections in a process's network namespace, by their inodes (proc_net_tcp(5)).
fn addresses(pid: u32) -> BTreeMap<u64, (SocketAddr, SocketAddr)> {
    let lines = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let all = [lines("tcp"), lines("tcp6")];
    all.iter().flat_map(|text| text.lines()).filter_map(connection).collect()
}

/// A line of /proc/net/tcp or tcp6 about a connection: its inode and its addresses.
fn connection(line: &str) -> Option<(u64, (SocketAddr, SocketAddr))> {
    const LISTEN: &str = "0A";
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, remote, state, _, _, _, _, _, inode, ..] = words[..] else { return None };
    (state != LISTEN).then_some(())?;
    Some((inode.parse().ok()?, (address(local)?, address(remote)?)))
}

/// An address as the kernel prints it: words of the machine's byte order in hexadecimal, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

impl Connection {
    fn new(pid: u32, program: String, told: status::File, (local, remote): (SocketAddr, SocketAddr)) -> Connection {
        let counts = told.counts.unwrap_or_default();
        let way = |number: u64| Way::of(number as u8);
        let ways = [way(counts.ways), way(counts.ways >> 8)];
        let name = |way: Option<Way>| if way == Some(Way::Memory) { "memory" } else { "TCP" };
        let why = match told.state {
            State::Moved if ways.contains(&Some(Way::After)) => {
                "TCP again: a call that memory does not have, or an end of the stream"
            }
            State::Moved if ways == [Some(Way::Before); 2] => "it has memory, and no end has read from it yet",
            State::Moved => "",
            other => other.text(),
        };
        Connection {
            pid,
            program,
            fd: told.fd,
            local,
            remote,
            sends: name(ways[0]),
            receives: name(ways[1]),
            why,
            sent: counts.sent,
            received: counts.received,
            wakes: counts.rings,
            sleeps: counts.sleeps,
            stalls: counts.stalls,
        }
    }

    fn is_in_memory(&self) -> bool {
        self.sends == "memory" || self.receives == "memory"
    }
}

/// A table.
pub fn lines(all: &[Connection]) -> Vec<String> {
    if all.is_empty() {
        return vec!["no program under softrnic sock has a TCP connection".to_owned()];
    }
    let mut lines = vec![format!(
        "{:>7} {:15} {:>5} {:21} {:21} {:6} {:6} {:>12} {:>12} {:>8} {:>8} {:>8} why not memory",
        "PID",
        "program",
        "fd",
        "local",
        "remote",
        "sends",
        "recvs",
        "bytes sent",
        "received",
        "wakes",
        "sleeps",
        "stalls"
    )];
    lines.extend(all.iter().map(|one| {
        let line = format!(
            "{:>7} {:15} {:>5} {:21} {:21} {:6} {:6} {:>12} {:>12} {:>8} {:>8} {:>8} {}",
            one.pid,
            one.program,
            one.fd,
            one.local.to_string(),
            one.remote.to_string(),
            one.sends,
            one.receives,
            one.sent,
            one.received,
            one.wakes,
            one.sleeps,
            one.stalls,
            one.why
        );
        line.trim_end().to_owned()
    }));
    lines
}

/// A line for each process, and one for each reason why connections are not in memory.
pub fn findings(all: &[Connection]) -> Vec<String> {
    let mut lines = Vec::new();
    let processes: BTreeSet<u32> = all.iter().map(|one| one.pid).collect();
    for pid in processes {
        let own: Vec<&Connection> = all.iter().filter(|one| one.pid == pid).collect();
        let in_memory = own.iter().filter(|one| one.is_in_memory()).count();
        let program = &own[0].program;
        lines.push(format!("{program} ({pid}): {in_memory} of {} TCP connections in memory", own.len()));
        let mut reasons: BTreeMap<&str, Vec<&Connection>> = BTreeMap::new();
        for one in own.iter().filter(|one| !one.why.is_empty()) {
            reasons.entry(one.why).or_default().push(one);
        }
        for (why, those) in reasons {
            let example = format!("descriptor {}, {}", those[0].fd, those[0].remote);
            lines.push(format!("   {} on TCP ({example}): {why}", those.len()));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_prints_them() {
        let line =
            "   1: 0100007F:1F90 0200007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 20";
        let (inode, (local, remote)) = connection(line).unwrap();
        assert_eq!(
            (inode, local.to_string(), remote.to_string()),
            (4711, "127.0.0.1:8080".into(), "127.0.0.2:49153".into())
        );
        assert_eq!(address("00000000000000000000000001000000:0016").unwrap().to_string(), "[::1]:22");
        assert_eq!(address("0000000000000000FFFF00000100007F:0016").unwrap().to_string(), "127.0.0.1:22");
        assert_eq!(connection(&line.replace(" 01 ", " 0A ")), None);
        for bad in ["", "7F:", "0100007F", "0100007F:10000", "0100007G:1", "é100007:1"] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }

    fn told(state: State, ways: u64) -> Connection {
        let counts = status::Counts { ways, sent: 10, received: 20, rings: 3, sleeps: 4, stalls: 5 };
        let counts = (state == State::Moved).then_some(counts);
        let addresses = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        Connection::new(77, "redis".into(), status::File { fd: 9, state, counts }, addresses)
    }

    #[test]
    fn each_connection_has_a_way_or_a_reason() {
        let moved = told(State::Moved, 0x101);
        assert_eq!((moved.sends, moved.receives, moved.why), ("memory", "memory", ""));
        assert_eq!(told(State::Moved, 0x201).receives, "TCP");
        assert!(told(State::Moved, 0x201).why.starts_with("TCP again"));
        assert!(!told(State::Moved, 0).why.is_empty());
        // Numbers that are no ways.
        assert_eq!(told(State::Moved, u64::MAX).sends, "TCP");
        let all = [moved, told(State::Rule, 0), told(State::Rule, 0)];
        let lines = lines(&all);
        assert!(
            lines[1].contains("memory memory           10           20        3        4        5"),
            "{}",
            lines[1]
        );
        assert!(lines[2].ends_with("a rule says tcp"), "{}", lines[2]);
        let findings = findings(&all);
        assert_eq!(findings[0], "redis (77): 1 of 3 TCP connections in memory");
        assert_eq!(findings[1], "   2 on TCP (descriptor 9, 127.0.0.1:2): a rule says tcp");
        assert_eq!(super::lines(&[]).len(), 1);
    }
}
