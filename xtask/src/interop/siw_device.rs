//! Unmodified programs on softiw0 against those of siw in the guest, in both roles, with and without CRCs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use super::gate::Gate;
use super::pair::{Around, listens};
use super::sandbox::Sandbox;
use super::siw::{Guest, PERFTEST, RPING, wants};
use crate::report::{Outcome, Suite};
use crate::run::{Finished, Running};
use crate::{Options, logs};

/// The port at which clients of this host find perftest's server in the guest.
const GATE: u16 = 18516;

/// Options of both sides of `rping`, and of its client.
const RPINGS: &[(&str, &str)] = &[("-S 20000", "-V -v -C 5")];

/// A program of perftest and its options, and the size that its table ends with.
///
/// ib_write_lat is left out with siw as the client: its server sends first, and the responder of a connection may not
/// (RFC 5044, section 7.1.2) unless the initiator offers the messages of RFC 6581, section 9, which siw's does not.
const PERFTESTS: &[(&str, &str)] = &[
    ("ib_send_lat -s 8 -n 100", "8"),
    ("ib_send_bw -s 65536 -n 50", "65536"),
    ("ib_write_lat -s 4000 -n 100", "4000"),
    ("ib_write_bw -s 1048576 -n 10", "1048576"),
    ("ib_read_lat -s 64 -n 100", "64"),
    ("ib_read_bw -s 20000 -n 50", "20000"),
];

/// Where the client is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    Here,
    Guest,
}

/// Programs of one case.
struct Case {
    name: String,
    /// `SOFTRNIC_MPA_CRC`.
    crc: &'static str,
    client: Client,
}

/// Run the cases.
pub fn cases(suite: &mut Suite, options: &Options, guest: &Guest) {
    let sandbox = match Sandbox::new("siw", &[]) {
        Ok(sandbox) => sandbox,
        Err(why) => return suite.fail("softiw0", why),
    };
    for (crc, on) in [("1", "with CRCs"), ("0", "without CRCs")] {
        for (client, role) in [(Client::Here, "client"), (Client::Guest, "server")] {
            let mut case = |line: &str, run: &dyn Fn(&Case, &Path) -> Result<(), String>| {
                let case = Case { name: format!("softiw0 as {role}, {on}: {line}"), crc, client };
                if options.wants(&case.name) {
                    let log = logs().join("siw").join(case.file());
                    let outcome = run(&case, &log).map_or_else(Outcome::Failed, |()| Outcome::Passed);
                    suite.push(case.name, outcome, Some(log));
                }
            };
            for (both, of_client) in RPINGS {
                case(&format!("rping {of_client} {both}"), &|case, log| {
                    let said = case.rping(&sandbox, guest, log, both, of_client)?;
                    // The client has compared what it got back.
                    wants(&said, "ping data: rdma-ping-4")
                });
            }
            for (line, last) in PERFTESTS {
                if client == Client::Guest && line.starts_with("ib_write_lat") {
                    continue;
                }
                case(line, &|case, log| {
                    let said = case.perftest(&sandbox, guest, log, line)?;
                    wants(&said, &format!("\n {last} "))
                });
            }
        }
    }
}

impl Case {
    fn file(&self) -> String {
        self.name.replace([' ', ',', ':'], "_")
    }

    /// Starts a program on the device.
    fn start(&self, sandbox: &Sandbox, line: &str) -> Result<Running, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let (program, args) = words.split_first().ok_or("no program")?;
        sandbox
            .program_with(Around::Plain, &["--device", "iwarp"], &self.file(), program, args)
            .env("SOFTRNIC_MPA_CRC", self.crc)
            .spawn()
            .map_err(|e| e.to_string())
    }

    /// What the client said, if both ended well.
    fn client(&self, here: &Finished, in_guest: String) -> Result<String, String> {
        let verdict = here.verdict();
        match self.client {
            _ if !here.ok() => Err(format!("here: {verdict}; guest: {in_guest}")),
            Client::Here => Ok(here.stdout.clone()),
            Client::Guest => Ok(in_guest),
        }
    }

    fn rping(
        &self,
        sandbox: &Sandbox,
        guest: &Guest,
        log: &Path,
        both: &str,
        of_client: &str,
    ) -> Result<String, String> {
        let (here, in_guest) = match self.client {
            Client::Here => guest.serve(&format!("rping -s -p {RPING} {both}"), RPING, log, || {
                self.start(sandbox, &format!("rping -c -a {} -p {RPING} {of_client} {both}", guest.address))
            })?,
            Client::Guest => {
                let port = free();
                guest.visit(&format!("rping -c -a {} -p {port} {of_client} {both}", Guest::HOST), port, log, || {
                    self.start(sandbox, &format!("rping -s -p {port} {both}"))
                })?
            }
        };
        // rping's thread for events tells the main one of the end, and then asks the channel again. If the main one has
        // destroyed the channel by then, rping ends with this error. Its client has compared all data.
        let asks_again = here.stderr.trim_end().ends_with("rdma_get_cm_event: Bad file descriptor");
        if self.client == Client::Guest && here.status.and_then(|s| s.code()).is_some() && asks_again {
            return Ok(in_guest);
        }
        self.client(&here, in_guest)
    }

    fn perftest(&self, sandbox: &Sandbox, guest: &Guest, log: &Path, line: &str) -> Result<String, String> {
        let (here, in_guest) = match self.client {
            Client::Here => {
                let ip: IpAddr = guest.address.into();
                let waits = guest.waits(PERFTEST);
                let gate = Gate::new(ip, GATE, SocketAddr::new(ip, PERFTEST), waits).map_err(|e| e.to_string())?;
                guest.serve(&format!("{line} -R -F -p {PERFTEST}"), PERFTEST, log, || {
                    self.start(sandbox, &format!("{line} -R -F -p {} {ip}", gate.port()))
                })?
            }
            Client::Guest => {
                let (port, ip) = (free(), IpAddr::V4(Ipv4Addr::LOCALHOST));
                let gate = Gate::new(ip, 0, SocketAddr::new(ip, port), move || listens(port));
                let gate = gate.map_err(|e| e.to_string())?;
                guest.visit(&format!("{line} -R -F -p {} {}", gate.port(), Guest::HOST), port, log, || {
                    self.start(sandbox, &format!("{line} -R -F -p {port}"))
                })?
            }
        };
        self.client(&here, in_guest)
    }
}

/// A port that no other program gets by chance, because it is below 32768.
fn free() -> u16 {
    20000 + u16::try_from(std::process::id() % 10000).unwrap_or_default()
}
