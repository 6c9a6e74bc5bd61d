//! `softrnic run --pcap`: the packets of the programs, as tshark and `capture.rs` read them.

use std::path::Path;
use std::time::Duration;

use crate::Options;
use crate::report::{Outcome, Suite};
use crate::run::Finished;

use super::capture::{self, Packet};
use super::pair::{Order, Pair};
use super::pcap_iwarp::pcap_iwarp;
use super::sandbox::Sandbox;
use super::{Mode, pairs_on, perftest, pingpong};

/// The exchanges, or messages, of each case.
const N: usize = 100;

/// The options that keep Wireshark from guessing, where payloads are of random bytes ([`guesses`]). Wireshark guesses
/// from a payload which protocol it could be. It reads 16 bytes for that, and calls the payload malformed if it has
/// fewer. One random payload of 16 begins as a frame of Ethernet over InfiniBand would (EoIB), and one in 60 of these
/// is malformed as that.
const NO_GUESSES: &[&str] = &[
    "-o",
    "infiniband.identify_payload:FALSE",
    "--disable-protocol",
    "fcoib",
    "--disable-protocol",
    "infiniband.eoib",
    "--disable-protocol",
    "infiniband_sdp",
    "--disable-protocol",
    "iser",
    "--disable-protocol",
    "lnet",
    "--disable-protocol",
    "nvme-rdma",
    "--disable-protocol",
    "rpcordma",
    "--disable-protocol",
    "smb_direct",
    "--disable-protocol",
    "smc",
];

/// `cargo xtask pcap`.
pub fn pcap(suite: &mut Suite, options: &Options) {
    let Some(sandbox) = Mode::Every.sandbox(suite) else {
        return;
    };
    let cases = cases(&sandbox);
    let wanted = cases.into_iter().filter(|case| options.wants(&case.name));
    pairs_on(suite, &sandbox, Mode::Every, wanted);
    pcap_iwarp(suite, options, &sandbox);
    for (name, run) in [
        ("a program is killed", killed as fn(&Sandbox) -> Result<(), String>),
        ("the standard output", looked_at),
        ("connections", connections),
        ("no room for the capture", no_room),
        ("no more than RLIMIT_FSIZE", limited),
    ] {
        if options.wants(name) {
            match run(&sandbox) {
                Ok(()) => suite.pass(name),
                Err(why) if why.starts_with("skip: ") => suite.push(name, Outcome::Skipped(why[6..].to_owned()), None),
                Err(why) => suite.fail(name, why),
            }
        }
    }
}

fn cases(sandbox: &Sandbox) -> Vec<Pair> {
    let mut cases = Vec::new();
    for program in ["rc", "uc", "ud", "srq", "xsrq"] {
        let name = format!("ibv_{program}_pingpong");
        for events in ["", "-e"] {
            let pair = pingpong::one(&name, &format!("-n {N} -s 3001 {events}"), Order::ServerFirst);
            // ibv_srq_pingpong may do a few more, on its 16 queue pairs.
            let most = if program == "srq" { 4 * N } else { 2 * N };
            cases.push(captured(sandbox, pair, 2 * N, most, [true, true]));
        }
    }
    let pair = pingpong::one("ibv_rc_pingpong", &format!("-n {N} -s 100000 -m 256"), Order::ServerFirst);
    cases.push(captured(sandbox, pair, 2 * N, 2 * N, [true, true]));
    let mut programs = perftest::everything(&format!("-n {N}"));
    programs.extend(perftest::some(&["send_bw", "write_bw", "read_bw"], &format!("-n {N} -s 100001")));
    programs.extend(perftest::some(&["send_bw"], &format!("-n {N} -q 4 -s 5000")));
    let small = perftest::transports(&format!("-n {N} -s 16")).into_iter();
    programs.extend(small.filter(|pair| pair.program != "ib_atomic_bw"));
    programs.extend(perftest::some(&["send_lat", "write_lat", "read_lat"], &format!("-n {N} -s 16")));
    // There are fewer receives than messages under way: RNR NAKs, and packets that are sent again.
    programs.extend(perftest::some(&["send_bw"], &format!("-n {N} -r 2 -s 5000")));
    for pair in programs {
        let both_ways = pair.program.ends_with("_lat") && !["ib_read_lat", "ib_atomic_lat"].contains(&&*pair.program);
        let pairs = if pair.args.iter().any(|arg| arg == "-q") { 4 } else { 1 };
        let n = N * pairs * if both_ways { 2 } else { 1 };
        cases.push(captured(sandbox, pair, n, n, [true, true]));
    }
    // The connection manager's messages, and the messages that perftest then exchanges over the connection.
    for pair in perftest::some(&["send_bw", "write_lat", "read_bw"], &format!("-n {N} -R")) {
        let n = if pair.program == "ib_write_lat" { 2 * N } else { N };
        cases.push(captured(sandbox, pair, n + 5, n + 80, [true, true]));
    }
    // One side has no capture; the other captures both directions.
    for (server, client) in [(true, false), (false, true)] {
        let mut programs = perftest::some(&["send_bw", "send_lat", "read_bw"], &format!("-n {N} -s 4096"));
        programs.extend(perftest::some(&["write_bw"], &format!("-n {N} -s 20000")));
        programs.extend(perftest::some(&["atomic_bw"], &format!("-n {N}")));
        for pair in programs {
            let n = N * if pair.program == "ib_send_lat" { 2 } else { 1 };
            cases.push(captured(sandbox, pair, n, n, [server, client]));
        }
    }
    cases
}

/// True if Wireshark finds nothing to remark on as it is installed: no payload of the program is random. perftest fills
/// its memory with random bytes, and only the packets of atomic operations have no payload.
fn guesses(pair: &Pair) -> bool {
    !pair.program.starts_with("ib_") || pair.program.contains("atomic")
}

/// The pair with a capture, in which there are so many messages.
fn captured(sandbox: &Sandbox, mut pair: Pair, least: usize, most: usize, sides: [bool; 2]) -> Pair {
    pair.name = match sides {
        [true, true] => format!("{}, captured", pair.name),
        [true, false] => format!("{}, captured by the server", pair.name),
        _ => format!("{}, captured by the client", pair.name),
    };
    let file = sandbox.home().join(format!("{}.pcapng", pair.name.replace([' ', '/', ','], "_")));
    let name = Some(file.display().to_string());
    pair.captures = sides.map(|side| name.clone().filter(|_| side));
    let log = pair.name.replace([' ', '/', ','], "_");
    let leaves = pair.program == "ibv_srq_pingpong";
    let rnr = pair.args.iter().any(|arg| arg == "-r");
    let guesses = guesses(&pair);
    pair.after = Some(Box::new(move |sandbox| {
        let look = || {
            let found = capture::check(&agreed(sandbox, &log, &file, guesses)?, leaves)?;
            if (least..=most).contains(&found.messages) {
                Ok(found)
            } else {
                Err(format!("{} messages instead of {least}", found.messages))
            }
        };
        let found = look().inspect_err(|_| keep(&log, &file))?;
        if found.again > 0 && !rnr {
            println!("  note: {log}: {} packets came again", found.again);
        }
        let _ = std::fs::remove_file(&file);
        Ok(())
    }));
    pair.on_quick_clock()
}

/// Keep a capture with an error beside the logs, for an error of one in a thousand runs can only be examined then.
fn keep(log: &str, file: &Path) {
    let kept = crate::logs().join(format!("{log}.pcapng"));
    if std::fs::copy(file, &kept).is_ok() {
        println!("  kept: {}", kept.display());
    }
}

/// The packets of a file, about which tshark and `capture.rs` agree, and with which tshark finds nothing wrong.
fn agreed(sandbox: &Sandbox, log: &str, file: &Path, guesses: bool) -> Result<Vec<Packet>, String> {
    let packets = capture::read(file)?;
    let done = tshark(sandbox, log, file, guesses)?;
    let mut lines = done.stdout.lines();
    for (number, packet) in packets.iter().enumerate() {
        let line = lines.next().ok_or_else(|| format!("tshark has {number} packets of {}", packets.len()))?;
        let fields: Vec<&str> = line.split('\t').collect();
        let [opcode, dest, psn, port, trouble @ ..] = &fields[..] else {
            return Err(format!("tshark says {line}"));
        };
        if let Some(trouble) = trouble.iter().find(|text| !text.is_empty()) {
            return Err(format!("tshark on packet {}: {trouble}", number + 1));
        }
        let dest = u32::from_str_radix(dest.trim_start_matches("0x"), 16).ok();
        let same = opcode.parse() == Ok(packet.opcode)
            && dest == Some(packet.dest)
            && psn.parse() == Ok(packet.psn)
            && port.parse() == Ok(packet.port);
        if !same {
            return Err(format!("packet {}: tshark says {line}, and here it is {packet:?}", number + 1));
        }
    }
    if lines.next().is_some() {
        return Err(format!("tshark has more packets than {}", packets.len()));
    }
    Ok(packets)
}

fn tshark(sandbox: &Sandbox, log: &str, file: &Path, guesses: bool) -> Result<Finished, String> {
    let file = file.display().to_string();
    let mut args = vec!["-n", "-r", &file, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];
    if !guesses {
        args.extend(NO_GUESSES);
    }
    args.extend(["-T", "fields"]);
    for field in [
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "udp.srcport",
        "_ws.malformed",
        "_ws.expert.message",
    ] {
        args.extend(["-e", field]);
    }
    let done = sandbox.alone(&format!("{log}.tshark"), "tshark", &args).run(Duration::from_secs(60));
    let done = done.map_err(|e| e.to_string())?;
    let noise = |line: &str| line.starts_with("Running as user");
    match done.stderr.lines().find(|line| !noise(line)) {
        Some(line) => Err(format!("tshark: {line}")),
        None if !done.ok() => Err(format!("tshark: {}", done.verdict())),
        None => Ok(done),
    }
}

/// Run a script with `$RUN` for `softrnic run`, and read the capture that it leaves in `$FILE`.
fn script(sandbox: &Sandbox, name: &str, wrapper: &[&str], text: &str) -> Result<(Finished, Vec<Packet>), String> {
    let file = sandbox.home().join(format!("{name}.pcapng"));
    let log = format!("pcap_{name}");
    let softrnic = format!("{} run", sandbox.dir().join("softrnic").display());
    let args = [wrapper, &["sh", "-c", text]].concat();
    let done =
        sandbox.alone(&log, args[0], &args[1..]).env("RUN", softrnic).env("FILE", &file).run(Duration::from_secs(60));
    let done = done.map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(done.verdict());
    }
    let packets = agreed(sandbox, &log, &file, false)?;
    let _ = std::fs::remove_file(&file);
    Ok((done, packets))
}

/// One of two programs that write all the time is killed at a random moment; the other goes on.
fn killed(sandbox: &Sandbox) -> Result<(), String> {
    let text = "
        export SOFTRNIC_PCAP=$FILE
        for n in 1 2 3; do
            $RUN -- ib_send_bw -d softrnic0 -x 0 -F -D 20 -s 4096 -p 2730$n >/dev/null 2>&1 & server=$!
            until ss -ltn | grep -q :2730$n; do sleep 0.02; done
            $RUN -- ib_send_bw -d softrnic0 -x 0 -F -D 20 -s 4096 -p 2730$n 127.0.0.1 >/dev/null 2>&1 & client=$!
            sleep 0.2$n
            kill -9 $client; sleep 0.1; kill -9 $server
            wait
        done
        # Whoever comes next cuts off what the last one could not finish.
        $RUN -- ibv_devinfo >/dev/null";
    let (_, packets) = script(sandbox, "killed", &[], text)?;
    let processes = packets.iter().map(|packet| packet.interface).max().unwrap_or(0);
    // Each round starts anew, and no program has to finish.
    match packets.iter().find(|packet| !packet.icrc_is_right) {
        Some(_) => Err("an ICRC is wrong".to_owned()),
        None if processes < 4 || packets.len() < 100 => {
            Err(format!("{} packets of {processes} processes: nothing was tested", packets.len()))
        }
        None => Ok(()),
    }
}

/// The messages of the connection manager are there, and agree with the later traffic of the queue pairs.
fn connections(sandbox: &Sandbox) -> Result<(), String> {
    // The ports are 27314 and that of udaddy; the pattern is that of the manager's sockets.
    let text = "
        export SOFTRNIC_PCAP=$FILE
        listens() { until grep -q \"softrnic/.*/cm/$1/.*/listen\" /proc/net/unix; do sleep 0.02; done; }
        $RUN -- rping -s -a 127.0.0.1 -p 27314 -C 3 >/dev/null 2>&1 & server=$!
        listens 0106/6ab2
        $RUN -- rping -c -a 127.0.0.1 -p 27314 -C 3 >/dev/null || exit 3
        wait $server
        $RUN -- udaddy -b 127.0.0.1 -c 2 >/dev/null & server=$!
        listens 0111/1c06
        $RUN -- udaddy -s 127.0.0.1 -c 2 >/dev/null || exit 4
        wait $server";
    let (_, packets) = script(sandbox, "connections", &[], text)?;
    capture::check(&packets, false)?;
    let said: Vec<(u16, &[u8])> = packets.iter().filter_map(Packet::managed).collect();
    let kinds: Vec<u16> = said.iter().map(|(kind, _)| *kind).collect();
    // The messages are REQ, REP, RTU; DREQ of one or of both, and their answers.
    let Some(rest) = kinds.strip_prefix(&[0x10, 0x13, 0x14]) else { return Err(format!("first came {kinds:x?}")) };
    let count = |kind| rest.iter().filter(|is| **is == kind).count();
    if count(0x15) == 0 || count(0x16) == 0 || (count(0x17), count(0x18)) != (2, 2) {
        return Err(format!("then came {rest:x?}"));
    }
    let number = |mad: &[u8], at: usize| u32::from_be_bytes([0, mad[at], mad[at + 1], mad[at + 2]]);
    let (request, reply) = (said[0].1, said[1].1);
    let halves = [(number(request, 32), number(request, 44)), (number(reply, 12), number(reply, 20))];
    for [(_, psn), (dest, _)] in [halves, [halves[1], halves[0]]] {
        let first = packets.iter().find(|packet| packet.dest == dest && !packet.is_response());
        if first.is_none_or(|first| first.psn != psn) {
            return Err(format!("the first packet to QP {dest:#x} should have the number {psn}: {first:?}"));
        }
    }
    Ok(())
}

/// The capture as a stream comes complete, before the end of the pipe.
fn looked_at(sandbox: &Sandbox) -> Result<(), String> {
    let text = "
        $RUN --pcap - -- sh -c '
            ibv_rc_pingpong -d softrnic0 -g 0 -n 200 -c -p 27312 & server=$!
            until ss -ltn | grep -q :27312; do sleep 0.02; done
            ibv_rc_pingpong -d softrnic0 -g 0 -n 200 -c -p 27312 127.0.0.1 || exit 4
            wait $server || exit 5' 2>told | cat >$FILE
        cat told";
    let (done, packets) = script(sandbox, "looked_at", &[], text)?;
    let found = capture::check(&packets, false)?;
    if found.messages != 400 || !done.stdout.contains("200 iters") {
        return Err(format!("{} messages instead of 400", found.messages));
    }
    Ok(())
}

/// The file system is full: the programs work as before, and the file is whole.
fn no_room(sandbox: &Sandbox) -> Result<(), String> {
    if !sandbox.may_have_namespaces() {
        return Err("skip: an ordinary user may not make a user namespace here (chroot, container, sysctl)".to_owned());
    }
    let text = "
        mkdir -p full && mount -t tmpfs -o size=200k none full || exit 3
        rm -f told; $RUN --pcap full/f -- ibv_rc_pingpong -d softrnic0 -g 0 -n 300 -c -p 27310 >server 2>>told & \
server=$!
        until ss -ltn | grep -q :27310; do sleep 0.02; done
        $RUN --pcap full/f -- ibv_rc_pingpong -d softrnic0 -g 0 -n 300 -c -p 27310 127.0.0.1 2>>told || exit 4
        wait $server || exit 5
        cp full/f $FILE; cat told";
    let (done, packets) = script(sandbox, "full", &["unshare", "--user", "--map-root-user", "--mount"], text)?;
    ended_early(&done, &packets, "No space left on device")
}

/// Writing beyond RLIMIT_FSIZE would kill the program. (The limit must leave room for the windows, which are files,
/// too.)
fn limited(sandbox: &Sandbox) -> Result<(), String> {
    let text = "
        run=\"prlimit --fsize=4000000 $RUN\"
        rm -f told; $run --pcap $FILE -- ibv_rc_pingpong -d softrnic0 -g 0 -n 300 -c -s 65536 -p 27311 >server \
2>>told & server=$!
        until ss -ltn | grep -q :27311; do sleep 0.02; done
        $run --pcap $FILE -- ibv_rc_pingpong -d softrnic0 -g 0 -n 300 -c -s 65536 -p 27311 127.0.0.1 2>>told || exit 4
        wait $server || exit 5
        cat told";
    let (done, packets) = script(sandbox, "limited", &[], text)?;
    ended_early(&done, &packets, "file too large")
}

fn ended_early(done: &Finished, packets: &[Packet], why: &str) -> Result<(), String> {
    let said = done.stdout.lines().filter(|line| line.contains("no more packets") && line.contains(why)).count();
    if said != 2 {
        return Err(format!("{said} programs said that their packets are not recorded: {}", done.stdout));
    }
    if !(50..10_000).contains(&packets.len()) || !done.stdout.contains("300 iters") {
        return Err(format!("{} packets", packets.len()));
    }
    Ok(())
}
