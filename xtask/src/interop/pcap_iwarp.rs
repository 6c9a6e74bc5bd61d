//! `softrnic run --pcap` with the device softiw0: TCP connections, as tshark reads them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::Program;
use crate::{Options, target_dir};

use super::iwarp::prepare;
use super::net::{Ip, Missing, Net};
use super::sandbox::Sandbox;

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 7174;

/// What tshark is asked about each frame.
const FIELDS: [&str; 12] = [
    "frame.number",
    "tcp.len",
    "tcp.flags.syn",
    "iwarp_mpa.key.req",
    "iwarp_mpa.key.rep",
    "iwarp_mpa.ulpdulength",
    "iwarp_rdma.opcode",
    "iwarp_rdma.term_layer",
    "iwarp_rdma.term_etype_llp",
    "iwarp_rdma.term_errcode_llp",
    "_ws.malformed",
    "_ws.expert.message",
];

/// Numbers of RDMAP's messages.
const WRITE: u8 = 0;
const READ: u8 = 1;
const ANSWER: u8 = 2;
const SEND: u8 = 3;
const TERMINATE: u8 = 7;

struct Case {
    name: &'static str,
    ip: Ip,
    /// Whether the server and the client capture.
    captures: [bool; 2],
    /// Options of the client's `softrnic run`.
    options: &'static [&'static str],
    server: &'static str,
    client: &'static str,
    /// Messages by their numbers. WRITEs may be more: some only have the peer look.
    messages: &'static [(u8, usize)],
}

const SERVER: &str = "rping -s -a @ -p 7174 -S 5000";
const CLIENT: &str = "rping -c -a @ -p 7174 -V -C 3 -S 5000";
/// In each of rping's rounds both sides SEND twice, and the server READs and WRITEs once.
const ROUNDS: &[(u8, usize)] = &[(WRITE, 3), (READ, 3), (ANSWER, 3), (SEND, 12)];

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "both capture", ip: Ip::V4, captures: [true, true], options: &[], server: SERVER, client: CLIENT, messages: ROUNDS },
    Case { name: "both capture, IPv6", ip: Ip::V6, captures: [true, true], options: &[], server: SERVER, client: CLIENT, messages: ROUNDS },
    Case { name: "the server captures", ip: Ip::V4, captures: [true, false], options: &[], server: SERVER, client: CLIENT, messages: ROUNDS },
    Case { name: "the client captures", ip: Ip::V4, captures: [false, true], options: &[], server: SERVER, client: CLIENT, messages: ROUNDS },
    Case {
        name: "without CRCs", ip: Ip::V4, captures: [true, true], options: &[],
        server: "env SOFTRNIC_MPA_CRC=0 rping -s -a @ -p 7174 -S 5000",
        client: "env SOFTRNIC_MPA_CRC=0 rping -c -a @ -p 7174 -V -C 3 -S 5000",
        messages: ROUNDS,
    },
    Case {
        name: "Terminate", ip: Ip::V4, captures: [true, true], options: &["--fault", "corrupt:n=2,op=send;seed=1"],
        server: SERVER, client: CLIENT, messages: &[(READ, 1), (ANSWER, 1), (SEND, 3), (TERMINATE, 1)],
    },
];

/// The cases with softiw0.
pub fn pcap_iwarp(suite: &mut Suite, options: &Options, sandbox: &Sandbox) {
    let wanted: Vec<&Case> = CASES.iter().filter(|case| options.wants(&name_of(case.name))).collect();
    let markers = name_of("markers");
    if wanted.is_empty() && !options.wants(&markers) {
        return;
    }
    let net = match Net::veth("pcap") {
        Ok(net) => net,
        Err(Missing::Forbidden(why)) => return suite.skip("softiw0", why),
        Err(Missing::Broken(why)) => return suite.fail("softiw0", why),
    };
    for case in wanted {
        let outcome = captured(sandbox, &net, case);
        suite.push(name_of(case.name), outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed), None);
    }
    if options.wants(&markers) {
        let outcome = prepare().and_then(|()| marked(sandbox, &net));
        suite.push(markers, outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed), None);
    }
}

fn name_of(case: &str) -> String {
    format!("softiw0, {case}")
}

fn captured(sandbox: &Sandbox, net: &Net, case: &Case) -> Result<(), String> {
    let address = net.address(0, case.ip);
    let log = format!("pcap_softiw0_{}", case.name.replace([' ', ','], "_"));
    let file = sandbox.home().join(format!("{log}.pcapng")).display().to_string();
    let program = |host: usize, side: &str, line: &str| {
        let mut options = vec!["--device", "iwarp"];
        if case.captures[host] {
            options.extend(["--pcap", &file]);
        }
        if host == 1 {
            options.extend(case.options);
        }
        sandbox.elsewhere(&net.words(host), &format!("{log}.{side}"), &options, &line.replace('@', address))
    };
    let (server, client) = (program(0, "server", case.server), program(1, "client", case.client));
    net.run(server, PORT, client, LIMIT)?;
    let seen = read(sandbox, &log, &file)?;
    for (op, count) in case.messages {
        let found = seen.messages.get(op).copied().unwrap_or(0);
        if found != *count && !(*op == WRITE && found > *count) {
            return Err(format!("{found} messages of number {op} instead of {count}; the capture is {file}"));
        }
    }
    if seen.cut == 0 {
        return Err("no FPDU is longer than a frame".to_owned());
    }
    let terminated = case.messages.iter().any(|(op, _)| *op == TERMINATE);
    // RFC 5044, section 8: a wrong CRC is error 2 of the layer below (2), type 0.
    if seen.terminates != if terminated { vec!["2 0 2"] } else { vec![] } {
        return Err(format!("Terminate messages: {:?}", seen.terminates));
    }
    let wrong = tshark(sandbox, &log, &file, &["-V"])?.matches("(Bad CRC32").count();
    if wrong != usize::from(terminated) {
        return Err(format!("{wrong} wrong CRCs"));
    }
    let _ = std::fs::remove_file(&file);
    Ok(())
}

/// Only a peer that is not the device asks for markers. The capture has them where MPA wants them.
fn marked(sandbox: &Sandbox, net: &Net) -> Result<(), String> {
    let log = "pcap_softiw0_markers";
    let file = sandbox.home().join(format!("{log}.pcapng")).display().to_string();
    let address = net.address(0, Ip::V4);
    let options = ["--device", "iwarp", "--pcap", &file];
    let server = sandbox.elsewhere(
        &net.words(0),
        &format!("{log}.server"),
        &options,
        &format!("rping -s -a {address} -p {PORT} -S 5000"),
    );
    let program = target_dir().join("release/examples/peer");
    let client: Program = net.inside(1, &format!("{log}.client"), &[&program]).args([
        "connect",
        &format!("{address}:{PORT}"),
        "rping",
        "--markers",
        "--count",
        "3",
        "--size",
        "5000",
    ]);
    net.run(server, PORT, client, LIMIT)?;
    let frames = tshark(sandbox, log, &file, &["-T", "fields", "-e", "tcp.srcport", "-e", "tcp.payload"])?;
    let hex = |text: &str| -> Vec<u8> {
        (0..text.len() / 2).filter_map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()).collect()
    };
    let mut said = Vec::new();
    for line in frames.lines() {
        if let Some(data) = line.strip_prefix(&format!("{PORT}\t")) {
            said.extend(hex(data));
        }
    }
    // The reply is in front of full operation; its length says how long its private data are.
    let private = said.get(18..20).map_or(0, |len| usize::from(u16::from_be_bytes([len[0], len[1]])));
    let stream = said.get(20 + private..).unwrap_or_default();
    let mut inside = 0;
    for at in (0..stream.len().saturating_sub(3)).step_by(512) {
        let marker = &stream[at..at + 4];
        let pointer = usize::from(u16::from_be_bytes([marker[2], marker[3]]));
        if marker[..2] != [0, 0] || pointer > at || !pointer.is_multiple_of(4) {
            return Err(format!("no marker at {at}: {marker:x?}"));
        }
        inside += usize::from(pointer > 0);
    }
    // The answers to READs, of 5000 bytes each, are the client's; the WRITEs are the server's.
    if inside < 3 * 5000 / 512 {
        return Err(format!("{inside} markers inside of FPDUs, in {} bytes", stream.len()));
    }
    let _ = std::fs::remove_file(&file);
    Ok(())
}

#[derive(Default)]
struct Seen {
    messages: BTreeMap<u8, usize>,
    terminates: Vec<String>,
    /// Frames that are only a part of an FPDU.
    cut: usize,
}

/// Reads a capture with tshark, which finds nothing wrong with any frame.
fn read(sandbox: &Sandbox, log: &str, file: &str) -> Result<Seen, String> {
    let mut args = vec!["-T", "fields"];
    FIELDS.iter().for_each(|field| args.extend(["-e", field]));
    let said = tshark(sandbox, log, file, &args)?;
    let mut seen = Seen::default();
    let (mut starts, mut kinds) = (0, Vec::new());
    for line in said.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[number, len, syn, req, rep, lengths, ops, layer, etype, code, malformed, expert] = &fields[..] else {
            return Err(format!("tshark says {line}"));
        };
        // The handshake and the end of a connection are remarks, too, and so is this file's own comment.
        let fine = |said: &&str| {
            ["", "Connection ", "This frame ", "a bit was flipped on purpose"].iter().any(|known| match *known {
                "" => said.is_empty(),
                known => said.starts_with(known),
            })
        };
        if let Some(trouble) = expert.split(',').find(|said| !fine(said)) {
            return Err(format!("tshark on frame {number} of {file}: {trouble}"));
        }
        if !malformed.is_empty() {
            return Err(format!("tshark on frame {number} of {file}: {malformed}"));
        }
        starts += usize::from(syn == "1");
        if !req.is_empty() || !rep.is_empty() {
            kinds.push(!req.is_empty());
        }
        let ops: Vec<&str> = ops.split(',').filter(|op| !op.is_empty()).collect();
        if ops.len() != lengths.split(',').filter(|len| !len.is_empty()).count() {
            return Err(format!("frame {number}: {} FPDUs, lengths {lengths}", ops.len()));
        }
        seen.cut += usize::from(ops.is_empty() && len.parse::<usize>().is_ok_and(|len| len > 1000));
        for op in ops {
            let op = u8::from_str_radix(op.trim_start_matches("0x"), 16).map_err(|e| format!("{op}: {e}"))?;
            *seen.messages.entry(op).or_default() += 1;
        }
        if !layer.is_empty() {
            let number = |text: &str| u8::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(255);
            seen.terminates.push(format!("{} {} {}", number(layer), number(etype), number(code)));
        }
    }
    if starts != 2 || kinds != [true, false] {
        return Err(format!("{starts} SYNs; requests and replies of MPA: {kinds:?}"));
    }
    Ok(seen)
}

fn tshark(sandbox: &Sandbox, log: &str, file: &str, args: &[&str]) -> Result<String, String> {
    // The guesses of protocols above are about the program's data: see `NO_GUESSES` of the other captures.
    let mut all = vec!["-n", "-r", file, "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"];
    all.extend(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]);
    all.extend(args);
    let done = sandbox.alone(&format!("{log}.tshark"), "tshark", &all).run(LIMIT).map_err(|e| e.to_string())?;
    match done.stderr.lines().find(|line| !line.starts_with("Running as user")) {
        Some(line) => Err(format!("tshark: {line}")),
        None if !done.ok() => Err(format!("tshark: {}", done.verdict())),
        None => Ok(done.stdout),
    }
}
