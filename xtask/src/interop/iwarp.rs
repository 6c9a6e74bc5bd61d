//! iWARP between two hosts, which are network namespaces of this one: over a veth pair, and over a network that loses,
//! doubles, delays and reorders packets.

use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::Program;
use crate::{Options, root, target_dir};

use super::net::{Ip, Missing, Net, Weather};
use super::sandbox::Sandbox;
use super::{both_devices, iwarp_ends, iwarp_rdmacm, iwarp_shown};

/// The limit of a case of a second, or of some seconds on the bad network.
const LIMIT: Duration = Duration::from_secs(100);

/// The limit of a build.
const BUILD: Duration = Duration::from_secs(400);

/// The port of servers that take any.
const PORT: u16 = 7174;

/// A bad network, on which each connection loses some packets and nearly all of them overtake each other.
const WEATHER: Weather = Weather { seed: 7, lose: 40, double: 50, delay: 2000 };

/// Options of both sides of the example `peer`, and bytes of the text.
const PEERS: &[(&str, &str, usize)] = &[
    ("", "", 64),
    ("", "", 65535),
    ("--no-crc", "--no-crc", 65535),
    ("--markers", "--markers", 65535),
    ("--markers --no-crc", "--no-crc --emss 9000", 65535),
    ("--emss 9000", "--markers --emss 600", 20000),
    ("--ready wr", "", 4000),
    ("--revision 1", "", 4000),
    ("--private 508", "--private 508", 64),
];

/// A server and a client on the device; `@` is the server's address, `%` the client's.
struct Pair {
    server: &'static str,
    client: &'static str,
    port: u16,
    /// The server does not end by itself.
    stays: bool,
    /// What the client prints.
    wants: &'static str,
    /// On the bad network, too, where each loss costs a fifth of a second.
    anywhere: bool,
}

/// The port of librdmacm's own programs.
const RDMACM: u16 = 7471;

/// The port of libfabric's fi_pingpong, by which its two sides tell each other their addresses.
const PINGPONG: u16 = 47592;

/// The port that fio is told.
const FIO: u16 = 19921;

/// The port of perftest.
const PERFTEST: u16 = 18515;

#[rustfmt::skip]
const PAIRS: &[Pair] = &[
    // As README.md has it.
    Pair { server: "rping -s -a @ -v", client: "rping -c -a @ -v -C 10", port: PORT, stays: false, wants: "ping data: rdma-ping-9", anywhere: false },
    Pair { server: "rping -s -a @ -p 7174 -v", client: "rping -c -a @ -p 7174 -V -v -C 10", port: PORT, stays: false, wants: "ping data: rdma-ping-9", anywhere: true },
    Pair { server: "rping -s -a @ -p 7174 -S 65535", client: "rping -c -a @ -p 7174 -V -v -C 10 -S 65535", port: PORT, stays: false, wants: "ping data: rdma-ping-9", anywhere: true },
    Pair { server: "rping -s -P -a @ -p 7174", client: "rping -c -a @ -p 7174 -V -v -C 5", port: PORT, stays: true, wants: "ping data: rdma-ping-4", anywhere: false },
    Pair { server: "rping -s -q -a @ -p 7174", client: "rping -c -q -a @ -p 7174 -V -v -C 5", port: PORT, stays: false, wants: "ping data: rdma-ping-4", anywhere: true },
    Pair { server: "rping -s -d -a @ -p 7174", client: "rping -c -d -a @ -I % -p 7174 -V -v -C 5", port: PORT, stays: false, wants: "ping data: rdma-ping-4", anywhere: true },
    Pair { server: "ucmatose -b @ -p 7471", client: "ucmatose -s @ -p 7471", port: RDMACM, stays: false, wants: "return status 0", anywhere: true },
    Pair { server: "ucmatose -b @ -p 7471 -c 5 -C 50 -S 5000", client: "ucmatose -s @ -p 7471 -c 5 -C 50 -S 5000", port: RDMACM, stays: false, wants: "return status 0", anywhere: false },
    Pair { server: "cmtime -b @ -p 7471 -c 20", client: "cmtime -s @ -p 7471 -c 20", port: RDMACM, stays: true, wants: "disconnect", anywhere: true },
    Pair { server: "rdma_server -s @ -p 7471", client: "rdma_client -s @ -p 7471", port: RDMACM, stays: false, wants: "rdma_client: end 0", anywhere: true },
    Pair { server: "ib_send_lat -R -s 4000 -n 100 -F", client: "ib_send_lat -R -s 4000 -n 100 -F @", port: PERFTEST, stays: false, wants: " 4000 ", anywhere: false },
    Pair { server: "ib_write_lat -R -s 64 -n 50 -F", client: "ib_write_lat -R -s 64 -n 50 -F @", port: PERFTEST, stays: false, wants: " 64 ", anywhere: false },
    Pair { server: "ib_read_lat -R -s 4000 -n 100 -F", client: "ib_read_lat -R -s 4000 -n 100 -F @", port: PERFTEST, stays: false, wants: " 4000 ", anywhere: false },
    Pair { server: "ib_send_bw -R -a -n 50 -F", client: "ib_send_bw -R -a -n 50 -F @", port: PERFTEST, stays: false, wants: " 8388608 ", anywhere: false },
    Pair { server: "ib_write_bw -R -s 1048576 -n 50 -F", client: "ib_write_bw -R -s 1048576 -n 50 -F @", port: PERFTEST, stays: false, wants: " 1048576 ", anywhere: false },
    Pair { server: "ib_read_bw -R -s 1048576 -n 50 -F", client: "ib_read_bw -R -s 1048576 -n 50 -F @", port: PERFTEST, stays: false, wants: " 1048576 ", anywhere: false },
    Pair { server: "ib_send_bw -R -s 65536 -n 50 -F", client: "ib_send_bw -R -s 65536 -n 50 -F @", port: PERFTEST, stays: false, wants: " 65536 ", anywhere: true },
    Pair { server: "ib_read_bw -R -a -n 5 -F", client: "ib_read_bw -R -a -n 5 -F @", port: PERFTEST, stays: false, wants: " 8388608 ", anywhere: false },
    Pair { server: "ib_write_bw -R -a -n 5 -F", client: "ib_write_bw -R -a -n 5 -F @", port: PERFTEST, stays: false, wants: " 8388608 ", anywhere: false },
    Pair { server: "ib_send_lat -R -a -n 5 -F", client: "ib_send_lat -R -a -n 5 -F @", port: PERFTEST, stays: false, wants: " 8388608 ", anywhere: false },
    Pair { server: "ib_write_lat -R -a -n 5 -F", client: "ib_write_lat -R -a -n 5 -F @", port: PERFTEST, stays: false, wants: " 8388608 ", anywhere: false },
    Pair { server: "ib_read_lat -R -a -n 5 -F", client: "ib_read_lat -R -a -n 5 -F @", port: PERFTEST, stays: false, wants: " 8388608 ", anywhere: false },
    // The client writes, whatever the verb; the blocks of SENDs are checked where they arrive.
    Pair { server: "fio --name=x --ioengine=rdma --port=19921 --bs=64k --size=4m --iodepth=64 --thread --rw=read", client: "fio --name=x --ioengine=rdma --port=19921 --bs=64k --size=4m --iodepth=64 --thread --hostname=@ --verb=write --rw=write", port: FIO, stays: false, wants: "err= 0", anywhere: false },
    Pair { server: "fio --name=x --ioengine=rdma --port=19921 --bs=64k --size=4m --iodepth=64 --thread --rw=read", client: "fio --name=x --ioengine=rdma --port=19921 --bs=64k --size=4m --iodepth=64 --thread --hostname=@ --verb=read --rw=write", port: FIO, stays: false, wants: "err= 0", anywhere: false },
    Pair { server: "fio --name=x --ioengine=rdma --port=19921 --bs=64k --size=4m --iodepth=64 --thread --rw=read --verify=crc32c", client: "fio --name=x --ioengine=rdma --port=19921 --bs=64k --size=4m --iodepth=64 --thread --hostname=@ --verb=send --rw=write --verify=crc32c --do_verify=0", port: FIO, stays: false, wants: "err= 0", anywhere: true },
    Pair { server: "fi_pingpong -p verbs -e msg -I 10 -c", client: "fi_pingpong -p verbs -e msg -I 10 -c @", port: PINGPONG, stays: false, wants: "1m ", anywhere: false },
    Pair { server: "fi_pingpong -6 -p verbs -e msg -I 10 -c", client: "fi_pingpong -6 -p verbs -e msg -I 10 -c @", port: PINGPONG, stays: false, wants: "1m ", anywhere: false },
    Pair { server: "ib_write_bw -R -s 65536 -n 50 -F -q 4", client: "ib_write_bw -R -s 65536 -n 50 -F -q 4 @", port: PERFTEST, stays: false, wants: " 65536 ", anywhere: true },
    Pair { server: "ib_read_bw -R -s 65536 -n 50 -F", client: "ib_read_bw -R -s 65536 -n 50 -F @", port: PERFTEST, stays: false, wants: " 65536 ", anywhere: true },
];

/// Run the suite.
pub fn iwarp(suite: &mut Suite, options: &Options) {
    if let Err(why) = prepare() {
        return suite.fail("preparation", why);
    }
    let sandbox = match Sandbox::new("iwarp", &[]) {
        Ok(sandbox) => sandbox,
        Err(why) => return suite.fail("preparation", why),
    };
    let program = match iwarp_ends::program(&sandbox) {
        Ok(program) => program,
        Err(why) => return suite.fail("ends", why),
    };
    let late = iwarp_ends::begin(options, &sandbox, &program);
    iwarp_ends::ends(suite, options, &sandbox, &program);
    let links: [(&str, Result<Net, Missing>); 2] =
        [("veth", Net::veth("veth")), ("bad network", Net::forwarded("bad", WEATHER))];
    for (name, net) in links {
        match net {
            Ok(net) => {
                link(suite, options, name, &net);
                device(suite, options, &sandbox, name, &net, 1);
                if name == "veth" {
                    device(suite, options, &sandbox, "one host", &net, 0);
                    iwarp_rdmacm::tests(suite, options, &sandbox, &net);
                    iwarp_shown::shown(suite, options, &sandbox, &net, &program);
                    both_devices::cases(suite, options, &sandbox, &net);
                }
            }
            Err(Missing::Forbidden(why)) => {
                println!("  SKIPPED iwarp: two hosts, {name}: {why}: nothing here has left its host");
                suite.skip(format!("two hosts, {name}"), why);
            }
            Err(Missing::Broken(why)) => suite.fail(format!("two hosts, {name}"), why),
        }
    }
    match late {
        Ok(Some(late)) => late.finish(suite),
        Ok(None) => {}
        Err(why) => suite.fail("connections that do not come about", why),
    }
}

/// Build the example `peer`.
pub fn prepare() -> Result<(), String> {
    let done = Program::new(env!("CARGO"), crate::logs().join("iwarp/peer"))
        .args(["build", "--release", "--package", "softrnic-iwarp", "--example", "peer"])
        .dir(root())
        .run(BUILD)
        .map_err(|e| e.to_string())?;
    if done.ok() { Ok(()) } else { Err(format!("the example `peer`: {}", done.verdict())) }
}

/// The cases of one link.
fn link(suite: &mut Suite, options: &Options, link: &str, net: &Net) {
    for ip in [Ip::V4, Ip::V6] {
        // Programs of TCP alone: if they fail, it is the link that fails.
        let name = format!("{link}, {ip:?}: qperf tcp_lat");
        if options.wants(&name) {
            let log = log(&name);
            let server = net.inside(0, &format!("{log}.server"), &["qperf"]);
            let client = net.inside(1, &format!("{log}.client"), &["qperf"]).args([
                "-t",
                "1",
                net.address(0, ip),
                "tcp_lat",
                "quit",
            ]);
            let outcome =
                net.run(server, 19765, client, LIMIT).and_then(|(_, client)| wants(&client.stdout, "latency"));
            suite.push(name, outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed), None);
        }
        for (ours, theirs, size) in PEERS {
            let name = format!("{link}, {ip:?}: peer, {size} bytes, {ours} and {theirs}");
            if options.wants(&name) {
                let log = log(&name);
                let outcome = peers(net, ip, &log, (ours, theirs), *size);
                suite.push(name, outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed), None);
            }
        }
    }
}

/// Unmodified programs on the device, the clients on this host.
fn device(suite: &mut Suite, options: &Options, sandbox: &Sandbox, link: &str, net: &Net, clients: usize) {
    let pairs = PAIRS.iter().filter(|pair| pair.anywhere || link == "veth");
    for pair in pairs {
        for ip in [Ip::V4, Ip::V6] {
            // perftest and fio have IPv4 alone behind -R, fi_pingpong has IPv6 with -6 alone; what names the server's
            // address shows that IPv6 is no other.
            if !pair.server.contains('@') && (ip == Ip::V6) != pair.server.contains(" -6 ") {
                continue;
            }
            let address = net.address(0, ip);
            let fill = |line: &str| line.replace('@', address).replace('%', net.address(clients, ip));
            let name = format!("{link}, softiw0: {}", fill(pair.client));
            if !options.wants(&name) {
                continue;
            }
            let log = format!("{}-{}", log(link), log(&name));
            let program = |host: usize, side: &str, line: &str| {
                let words = net.words(host);
                let made = sandbox.elsewhere(&words, &format!("{log}.{side}"), &["--device", "iwarp"], &fill(line));
                match sandbox.quick_clock() {
                    Ok(clock) if line.contains(" -a -n ") => made.env("LD_PRELOAD", clock),
                    _ => made,
                }
            };
            let server = program(0, "server", pair.server);
            let client = program(clients, "client", pair.client);
            let done = match pair.stays {
                false => net.run(server, pair.port, client, LIMIT),
                true => net.run_beside(server, pair.port, client, LIMIT),
            };
            let outcome = done.and_then(|(server, client)| {
                wants(&client.stdout, pair.wants)?;
                // rping counts the end that the client makes as an error in some versions.
                if pair.stays || server.status.is_some() {
                    Ok(())
                } else {
                    Err(format!("server: {}", server.verdict()))
                }
            });
            suite.push(name, outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed), None);
        }
    }
}

fn log(name: &str) -> String {
    name.replace([' ', ',', ':'], "_")
}

/// `rping`'s protocol between two of the example `peer`.
fn peers(net: &Net, ip: Ip, log: &str, (ours, theirs): (&str, &str), size: usize) -> Result<(), String> {
    let address = match ip {
        Ip::V4 => format!("{}:{PORT}", net.address(0, ip)),
        Ip::V6 => format!("[{}]:{PORT}", net.address(0, ip)),
    };
    let program = target_dir().join("release/examples/peer");
    let peer = |host: usize, side: &str, how: &str, terms: &str| {
        net.inside(host, &format!("{log}.{side}"), &[&program])
            .args([how, &address, "rping"])
            .args(terms.split_whitespace())
    };
    let server = peer(0, "server", "listen", theirs);
    let client = peer(1, "client", "connect", &format!("{ours} --count 20 --size {size}"));
    let (server, client) = net.run(server, PORT, client, LIMIT)?;
    wants(&client.stdout, "20 rounds")?;
    wants(&server.stdout, "20 rounds")?;
    wants(&server.stdout, "end: closed")
}

/// Check that a text has a part.
pub fn wants(text: &str, part: &str) -> Result<(), String> {
    let last = || text.lines().rev().take(3).collect::<Vec<_>>().join(" / ");
    if text.contains(part) { Ok(()) } else { Err(format!("no `{part}` in: {}", last())) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_pair_is_the_one_of_the_readme() {
        let text = fs::read_to_string(root().join("README.md")).unwrap();
        let (server, client) = PAIRS.first().map(|pair| (pair.server, pair.client)).unwrap();
        // What README.md shows goes on until the reader ends it.
        for line in [server, client.trim_end_matches(" -C 10")] {
            let line = format!("softrnic run --device iwarp -- {}\n", line.replace('@', "192.0.2.1"));
            assert!(text.contains(&line), "{line}");
        }
    }
}
