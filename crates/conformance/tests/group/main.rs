//! Groups: a client and chains of replicas, each replica in a process of its own or all in one.

mod bad;
mod rounds;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use conformance::{Fixture, Random, Remote, Wire, program, softrnic};
use group::{Client, ClientOptions, Done, Error, Operation, Server, ServerOptions, Wait};
use rdma::{Access, Mr};

const REGION: usize = 64 << 10;
const ENTRY: &str = "the_other_process";

/// A replica's process: it tells where it listens, then answers questions; meanwhile its program sleeps.
#[test]
#[ignore = "a part of other tests"]
fn the_other_process() {
    let Some((part, mut wire)) = Wire::to_test() else { return };
    if part == "client" {
        let fixture = Fixture::open();
        let (mut client, _) = client(&fixture, wire.hear(), 16);
        wire.tell(&());
        let run = |_| client.run(&[Operation::Write { offset: 0, size: 1024 }; 100], Wait::Poll).err();
        let failed = (0..wire.hear::<u64>()).find_map(run);
        return wire.tell(&failed.map(|error| error.to_string()));
    }
    if part != "replica" {
        return with_file(&part, &mut wire);
    }
    let fixture = Fixture::open();
    let (count, next): (usize, Option<SocketAddr>) = wire.hear();
    let servers = start(&fixture, count, next);
    wire.tell(&servers.last().expect("a replica").addr());
    while let Some(replica) = wire.try_hear::<usize>() {
        let mut bytes = vec![0; REGION];
        servers[replica].region().read(0, &mut bytes);
        wire.tell(&(bytes, servers[replica].counts().expect("counts")));
    }
}

/// Parts with a file: a replica whose region it is, or the application that reads it.
fn with_file(part: &str, wire: &mut Wire) {
    let path: String = wire.hear();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the file");
    if part == "application" {
        let mut bytes = [0; 8];
        while wire.try_hear::<()>().is_some() {
            file.read_exact_at(&mut bytes, 0).expect("the region");
            wire.tell(&u64::from_ne_bytes(bytes));
        }
        return;
    }
    let fixture = Fixture::open();
    let next = wire.hear();
    let options = ServerOptions { listen: "127.0.0.1:0".parse().expect("an address"), next, region: REGION };
    let server = Server::start_on(&fixture.context, &options, file.as_fd()).expect("a server");
    wire.tell(&server.addr());
    while wire.try_hear::<()>().is_some() {
        wire.tell(&server.counts().expect("counts"));
    }
}

/// Replicas of one process, the last of the chain first.
fn start(fixture: &Fixture, count: usize, mut next: Option<SocketAddr>) -> Vec<Server> {
    let one = |_| {
        let options = ServerOptions { listen: "127.0.0.1:0".parse().expect("an address"), next, region: REGION };
        let server = Server::start(&fixture.context, &options).expect("a server");
        next = Some(server.addr());
        server
    };
    (0..count).map(one).collect()
}

/// A chain of processes, each with some replicas; the last of the chain first.
struct Chain {
    processes: Vec<(Remote, usize)>,
    first: SocketAddr,
}

impl Chain {
    fn start(counts: &[usize]) -> Chain {
        Chain::start_in(counts, &[])
    }

    /// A chain whose processes have these variables.
    fn start_in(counts: &[usize], env: &[(&str, &str)]) -> Chain {
        let mut next: Option<SocketAddr> = None;
        let mut processes = Vec::new();
        for count in counts {
            let mut process = Remote::start(ENTRY, "replica", env);
            next = Some(process.wire.exchange(&(*count, next)));
            processes.push((process, *count));
        }
        Chain { processes, first: next.expect("a replica") }
    }

    /// The regions, and the counts of posts and operations, in the order of the chain.
    fn look(&mut self) -> Vec<(Vec<u8>, [u64; 2])> {
        let mut all = Vec::new();
        for (process, count) in self.processes.iter_mut().rev() {
            all.extend((0..*count).rev().map(|i| process.wire.exchange::<usize, (Vec<u8>, [u64; 2])>(&i)));
        }
        all
    }
}

fn client(fixture: &Fixture, first: SocketAddr, window: u32) -> (Client, Arc<Mr>) {
    let buffer = fixture.pd.reg_mr(REGION, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    let options = ClientOptions { window, timeout: Duration::from_secs(40) };
    let client = Client::connect(&fixture.context, &fixture.pd, first, buffer.clone(), &options).expect("a group");
    (client, buffer)
}

/// What operations do, by the letter.
struct Model {
    regions: Vec<Vec<u8>>,
    values: Vec<Option<Vec<u64>>>,
}

impl Model {
    fn apply(&mut self, op: &Operation, buffer: &Mr) {
        let mut values = vec![0; self.regions.len()];
        for (i, region) in self.regions.iter_mut().enumerate() {
            match *op {
                Operation::Write { offset, size } => {
                    buffer.read(offset as usize, &mut region[offset as usize..][..size as usize]);
                }
                Operation::Copy { from, to, size } => {
                    region.copy_within(from as usize..(from + size) as usize, to as usize);
                }
                Operation::CompareSwap { offset, old, new, execute } if execute >> i & 1 != 0 => {
                    let place = &mut region[offset as usize..][..8];
                    values[i] = u64::from_ne_bytes(place.try_into().expect("8 bytes"));
                    if values[i] == old {
                        place.copy_from_slice(&new.to_ne_bytes());
                    }
                }
                _ => {}
            }
        }
        self.values.push(matches!(op, Operation::CompareSwap { .. }).then_some(values));
    }
}

/// An operation in one part of the region, of `lot` bytes at `base`.
fn any(random: &mut Random, base: u64, lot: u64, replicas: usize) -> Operation {
    let half = lot / 2;
    match random.below(4) {
        0 => Operation::CompareSwap {
            offset: base + 8 * random.below(4),
            // Words that were never swapped are 0; a swap leaves a small number behind.
            old: random.below(3),
            new: random.below(3),
            execute: random.next() & (u64::MAX >> (64 - replicas)),
        },
        1 => {
            let (from, to) = (random.below(half - 256), half + random.below(half - 256));
            Operation::Copy { from: base + from, to: base + to, size: 1 + random.below(256) }
        }
        2 => Operation::Flush { offset: base + random.below(half), size: 1 + random.below(half) },
        _ => Operation::Write { offset: base + 64 + random.below(half), size: 1 + random.below(half - 64) },
    }
}

/// Random operations, compared with a model, byte for byte; no replica posts anything meanwhile.
fn compare(counts: &[usize], window: u32, ops: usize, how: Wait) {
    compare_in(Chain::start(counts), counts, window, ops, how);
}

fn compare_in(mut chain: Chain, counts: &[usize], window: u32, ops: usize, how: Wait) {
    let fixture = Fixture::open();
    let (mut client, buffer) = client(&fixture, chain.first, window);
    let replicas = client.replicas();
    assert_eq!(replicas, counts.iter().sum::<usize>());
    let mut random = Random::new(u64::from(window) + replicas as u64);
    buffer.write(0, &(0..REGION).map(|_| random.next() as u8).collect::<Vec<_>>());
    let mut model = Model { regions: vec![vec![0; REGION]; replicas], values: Vec::new() };
    let list: Vec<Operation> = (0..ops).map(|_| any(&mut random, 0, REGION as u64, replicas)).collect();
    list.iter().for_each(|op| model.apply(op, &buffer));
    let before = chain.look();
    let done = client.run(&list, how).unwrap_or_else(|error| panic!("{error}"));
    for (n, (done, values)) in done.iter().zip(&model.values).enumerate() {
        assert_eq!(*done, Done { ticket: n as u64, values: values.clone() }, "{:?}", list[n]);
    }
    let after = chain.look();
    for (i, (region, counts)) in after.iter().enumerate() {
        let wrong = region.iter().zip(&model.regions[i]).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "replica {i} of {replicas}");
        assert_eq!(counts[0], before[i].1[0], "a post after set-up at replica {i}");
        assert!(counts[1] >= ops as u64);
    }
}

#[test]
fn chains_of_processes_do_what_the_model_does() {
    for (counts, window) in [(&[1][..], 1), (&[1, 1, 1], 1), (&[1, 1, 1], 7)] {
        compare(counts, window, 300, Wait::Poll);
    }
}

#[test]
fn one_process_holds_many_replicas() {
    for (counts, window) in [(&[3][..], 1), (&[5], 16), (&[16], 3), (&[2, 3], 64)] {
        compare(counts, window, 200, Wait::Poll);
    }
}

/// Replicas whose registered memory lies where their peers map it: no hop needs a system call for its bytes.
#[test]
fn regions_are_where_peers_map_them() {
    for (counts, window) in [(&[1, 1, 1][..], 1), (&[3], 16)] {
        compare_in(Chain::start_in(counts, &[("SOFTRNIC_MIGRATE", "1")]), counts, window, 200, Wait::Poll);
    }
}

#[test]
fn completions_are_waited_for_by_events() {
    compare(&[2, 1], 4, 200, Wait::Event);
}

#[test]
fn a_group_has_up_to_64_replicas() {
    compare(&[64], 2, 60, Wait::Poll);
    let fixture = Fixture::open();
    let chain = Chain::start(&[65]);
    let buffer = fixture.pd.reg_mr(64, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    let refused = Client::connect(&fixture.context, &fixture.pd, chain.first, buffer, &ClientOptions::default());
    assert!(matches!(refused.err(), Some(Error::Invalid("a chain has at most 64 replicas"))));
}

/// The largest window, many times around the circle.
#[test]
fn a_window_of_2000() {
    let fixture = Fixture::open();
    let mut chain = Chain::start(&[3]);
    let (mut client, buffer) = client(&fixture, chain.first, 2000);
    buffer.write(0, &(0..REGION).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    let ops: Vec<Operation> = (0..6000).map(|n| Operation::Write { offset: n * 8 % 65_000, size: 100 }).collect();
    client.run(&ops, Wait::Poll).unwrap_or_else(|error| panic!("{error}"));
    let mut expected = vec![0; REGION];
    for op in &ops {
        let Operation::Write { offset, size } = *op else { unreachable!() };
        let range = offset as usize..(offset + size) as usize;
        range.for_each(|i| expected[i] = (i % 251) as u8);
    }
    assert!(chain.look().iter().all(|(region, _)| *region == expected));
}

/// Several clients at once, each in its own part of the region.
fn clients(mut chain: Chain, replicas: usize, clients: u64, ops: usize) {
    let fixture = Fixture::open();
    let lot = REGION as u64 / clients;
    let mut expected = vec![vec![0; REGION]; replicas];
    let all: Vec<_> = (0..clients).map(|_| client(&fixture, chain.first, 8)).collect();
    let before = chain.look();
    let ended: Vec<_> = std::thread::scope(|scope| {
        let one = |(i, (mut client, buffer)): (usize, (Client, Arc<Mr>))| {
            scope.spawn(move || {
                let mut random = Random::new(i as u64);
                buffer.write(0, &(0..REGION).map(|_| random.next() as u8).collect::<Vec<_>>());
                let mut model = Model { regions: vec![vec![0; REGION]; replicas], values: Vec::new() };
                let base = i as u64 * lot;
                let list: Vec<Operation> = (0..ops).map(|_| any(&mut random, base, lot, replicas)).collect();
                list.iter().for_each(|op| model.apply(op, &buffer));
                let done = client.run(&list, Wait::Poll).unwrap_or_else(|error| panic!("{error}"));
                let found: Vec<_> = done.into_iter().map(|done| done.values).collect();
                // The counts of a server are those of the groups that live.
                (found == model.values, model.regions, client)
            })
        };
        let clients: Vec<_> = all.into_iter().enumerate().map(one).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    for (i, (same, regions, _)) in ended.iter().enumerate() {
        assert!(same, "a gCAS of client {i} of {clients} found other values than the model's");
        let range = i * lot as usize..(i + 1) * lot as usize;
        for (whole, part) in expected.iter_mut().zip(regions) {
            whole[range.clone()].copy_from_slice(&part[range.clone()]);
        }
    }
    for (i, (region, counts)) in chain.look().iter().enumerate() {
        assert!(*region == expected[i], "replica {i} of {replicas}, {clients} clients");
        assert_eq!(counts[0], before[i].1[0], "a post after set-up at replica {i}");
        assert!(counts[1] >= before[i].1[1] + clients * ops as u64);
    }
}

#[test]
fn four_clients_use_one_chain() {
    clients(Chain::start(&[2, 1]), 3, 4, 150);
}

/// Chains of 1, 3, 5 and 16 in one process and in three, with one client and with four.
fn every_chain(env: &[(&str, &str)]) {
    for counts in [&[1][..], &[3], &[5], &[16], &[1, 1, 1], &[2, 2, 1], &[6, 5, 5]] {
        for number in [1, 4] {
            clients(Chain::start_in(counts, env), counts.iter().sum(), number, 40);
        }
    }
}

#[test]
fn chains_of_every_length_serve_one_client_and_four() {
    every_chain(&[]);
}

#[test]
fn chains_of_every_length_have_regions_where_peers_map_them() {
    every_chain(&[("SOFTRNIC_MIGRATE", "1")]);
}

/// A gCAS that succeeds at some replicas only is taken back there.
#[test]
fn a_partial_compare_and_swap_is_undone() {
    let fixture = Fixture::open();
    let mut chain = Chain::start(&[3]);
    let (mut client, _) = client(&fixture, chain.first, 1);
    let lock = |old, new, execute| Operation::CompareSwap { offset: 16, old, new, execute };
    client.run(&[lock(0, 9, 0b010)], Wait::Poll).expect("another's lock");
    let done = client.run(&[lock(0, 5, 0b111)], Wait::Poll).expect("a partial one");
    let undo = lock(0, 5, 0b111).undo(done[0].values.as_ref().expect("a gCAS")).expect("a partial one");
    client.run(&[undo], Wait::Poll).expect("undo");
    let words: Vec<u64> =
        chain.look().iter().map(|(region, _)| u64::from_ne_bytes(region[16..24].try_into().expect("8"))).collect();
    assert_eq!(words, [0, 9, 0]);
}

/// Nothing is sent of a list with a bad operation.
#[test]
fn bad_operations_are_refused_before_anything_is_sent() {
    let fixture = Fixture::open();
    let mut chain = Chain::start(&[2]);
    let (mut client, _) = client(&fixture, chain.first, 4);
    let good = Operation::Write { offset: 0, size: 8 };
    for bad in [
        Operation::Write { offset: 0, size: 0 },
        Operation::Flush { offset: REGION as u64, size: 1 },
        Operation::CompareSwap { offset: 4, old: 0, new: 0, execute: 1 },
        Operation::CompareSwap { offset: 0, old: 0, new: 0, execute: 4 },
    ] {
        assert!(matches!(client.run(&[good, bad], Wait::Poll), Err(Error::Invalid(_))), "{bad:?}");
    }
    assert!(chain.look().iter().all(|(_, counts)| counts[1] == 0));
}

/// The end of a server ends the group, with the number of its hop; the rest goes on for others.
#[test]
fn a_killed_server_is_named() {
    let fixture = Fixture::open();
    let mut chain = Chain::start(&[1, 1, 1]);
    let (mut client, _) = client(&fixture, chain.first, 1);
    let op = [Operation::Write { offset: 0, size: 100 }];
    client.run(&op, Wait::Poll).expect("a group");
    chain.processes[1].0.kill();
    let error = (0..).find_map(|_| client.run(&op, Wait::Event).err()).expect("it ends");
    assert!(matches!(&error, Error::Broken(why) if why.contains("hop 1")), "{error}");
    assert!(matches!(client.submit(&op[0]), Err(Error::Broken(_))));
    let told = group::status(chain.first);
    assert!(matches!(&told, Err(Error::Refused(why)) if why.starts_with("hop 1 at ")), "{told:?}");
}

/// A child that is killed at the end.
struct Serving(std::process::Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The nice values of all threads of a process (proc_pid_stat(5)).
fn nice_values(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    let one = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        // The name, in parentheses, may have spaces; the field is number 19, and the name number 2.
        stat.rsplit(')').next()?.split_whitespace().nth(16).map(str::to_owned)
    };
    tasks.filter_map(one).collect()
}

/// The programs: `group serve` says its port, `group client` measures along the chain.
#[test]
fn the_programs_work_together() {
    use std::io::BufRead as _;
    let library = conformance::library();
    let lib = ["--lib", library.path()];
    let mut command = std::process::Command::new(program());
    command.args(["group", "serve", "--port", "0", "--replicas", "3", "--nice", "5"]);
    command.args(lib).stdout(std::process::Stdio::piped());
    let mut serving = Serving(command.spawn().expect("softrnic"));
    let mut line = String::new();
    let out = serving.0.stdout.take().expect("a pipe");
    std::io::BufReader::new(out).read_line(&mut line).expect("a line");
    assert!(line.contains("; nice 5; "), "{line}");
    let nice = nice_values(serving.0.id());
    assert!(nice.len() > 1 && nice.iter().all(|nice| nice == "5"), "the device's thread, too: {nice:?}");
    let port = line.trim().rsplit(' ').next().expect("a port");
    let to = format!("127.0.0.1:{port}");
    for wait in [&[][..], &["--use-notify"]] {
        let args = ["group", "client", "-c", &to, "-s", "100", "-n", "300", "-w", "20", "--json"];
        let (status, text) = softrnic(&[&args[..], &lib, wait].concat());
        assert_eq!(status, 0, "{text}");
        let found: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!((&found["replicas"], &found["operations"]), (&3.into(), &300.into()), "{text}");
        let [p50, most] = ["p50", "max"].map(|key| found["microseconds"][key].as_f64().expect("a number"));
        assert!(0.0 < p50 && p50 <= most, "{text}");
    }
    the_servers_tell_their_state(&to, lib, serving.0.id());
    drop(serving);
    let (status, text) = softrnic(&[&["group", "client", "-c", &to][..], &lib].concat());
    assert!(status == 1 && text.starts_with(&format!("softrnic: {to}: ")), "{text}");
}

/// `group status` of three replicas: first while a client's group lives, whose operations are all done.
fn the_servers_tell_their_state(to: &str, lib: [&str; 2], pid: u32) {
    let ask = |more: &[&str]| -> serde_json::Value {
        let (status, text) = softrnic(&[&["group", "status", "-c", to, "--json"], more, &lib].concat());
        assert_eq!(status, 0, "{text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    // The groups of clients that have ended go when the servers see the ends of their sockets.
    conformance::until("no group", || {
        let hops = ask(&["--probes", "0"])["hops"].as_array().cloned().expect("hops");
        (hops.len() == 3 && hops.iter().all(|hop| hop["groups"] == 0)).then_some(())
    });
    let fixture = Fixture::open();
    let buffer = fixture.pd.reg_mr(64, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    let options = ClientOptions { window: 7, timeout: Duration::from_secs(40) };
    let first = to.parse().expect("an address");
    let mut client = Client::connect(&fixture.context, &fixture.pd, first, buffer, &options).expect("a group");
    client.run(&[Operation::Write { offset: 0, size: 64 }; 21], Wait::Poll).expect("gWRITEs");
    let found = ask(&["--probes", "9"]);
    let hops = found["hops"].as_array().expect("hops");
    assert_eq!(hops.len(), 3, "{found}");
    for (i, hop) in hops.iter().enumerate() {
        let keys = ["hop", "groups", "arrived", "done", "lag", "rounds", "rounds_left"];
        assert_eq!(keys.map(|key| hop[key].as_u64().expect("a number")), [i as u64, 1, 21, 21, 0, 8, 8], "{found}");
        assert!(hop["posted"].as_u64() > Some(0), "{found}");
    }
    let [p50, p99] = ["p50", "p99"].map(|key| found["microseconds"][key].as_f64().expect("a number"));
    assert!(0.0 < p50 && p50 <= p99, "{found}");
    assert!(matches!(&group::status(first), Ok(all) if all.len() == 3 && all.iter().all(|hop| hop.posted > 0)));
    an_idle_group_does_not_run(pid);
    // Queues that wait for the next operation are not stuck.
    let (_, told) = softrnic(&["doctor", &pid.to_string()]);
    assert!(told.contains("a WAIT holds the send queue back"), "{told}");
    for fault in ["!! ", "full", "no thread polls"] {
        assert!(!told.contains(fault), "{fault}: {told}");
    }
}

/// A server whose groups have nothing to do uses no processor: none of its threads is woken. What the last operations
/// left behind, such as acknowledgements and timers, has come to its end after some seconds.
fn an_idle_group_does_not_run(pid: u32) {
    // By thread: one of the last client's may end just now, between the listing and the reading, too.
    let switches = || -> BTreeMap<OsString, u64> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the server").flatten();
        let read = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).ok();
        tasks.filter_map(|task| read(&task).map(|text| (task.file_name(), counted(&text)))).collect()
    };
    // A thread that looks around now and then would be woken hundreds of times in this time.
    conformance::until("an idle server", || {
        let before = switches();
        std::thread::sleep(Duration::from_secs(1));
        (switches() == before).then_some(())
    });
}

/// The context switches of a thread, by its status.
fn counted(status: &str) -> u64 {
    let lines = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    lines.map(|(_, count)| count.trim().parse::<u64>().expect("a number")).sum()
}

/// `group bench` measures every curve, and writes its page and its plots; nothing of what is by hand is lost.
#[test]
fn figures_come_from_one_run() {
    let library = conformance::library();
    let folder = std::env::temp_dir().join(format!("softrnic-group-page-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let page = folder.join("group.md");
    std::fs::write(&page, "# By hand\n").expect("a file");
    let path = page.to_str().expect("a name");
    let args = ["group", "bench", "--quick", "--time", "5", "--rounds", "1", "--page", path, "--lib", library.path()];
    let (status, text) = softrnic(&args);
    assert_eq!(status, 0, "{text}");
    let text = std::fs::read_to_string(&page).expect("the page");
    assert!(text.starts_with("# By hand\n"), "{text}");
    let curves =
        ["NIC only, one server", "NIC only, a server each", "CPU on the path", "client fan-out", "plain copies"];
    let others = [
        "NIC only, gMEMCPY",
        "NIC only, gCAS",
        "bare chain, spinning",
        "bare chain, eventfds",
        "applications stopped",
        "applications killed",
    ];
    let ratios =
        ["p50, message and answer beside a loop of ENABLEs / alone | ", "p50, applications killed / running | "];
    for wanted in curves.iter().chain(&others).chain(&ratios) {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert!(text.contains("after set-up, beside applications: 0.\n"), "{text}");
    for plot in ["group-latency.svg", "group-rate.svg", "group-window.svg", "group-tail.svg"] {
        assert!(text.contains(&format!("({plot})")), "{text}");
        let svg = std::fs::read_to_string(folder.join(plot)).expect("a plot");
        assert!(svg.contains("CPU on the path"), "{plot}");
    }
    std::fs::remove_dir_all(&folder).expect("a folder of ours");
}

/// Operations go on while the replicas' applications are stopped, and when they have been killed; nothing is posted.
#[test]
fn applications_may_stop_and_die() {
    without_applications(3, 1, 2000);
}

/// A million gWRITEs without applications to three servers, and chains of other lengths and with more clients.
#[test]
#[ignore = "the full length: 10^6 operations"]
fn a_million_writes_without_applications() {
    without_applications(3, 1, 500_000);
    for (replicas, clients, ops) in [(1, 4, 10_000), (3, 4, 10_000), (5, 1, 10_000), (5, 4, 5000), (16, 1, 2000)] {
        without_applications(replicas, clients, ops);
    }
}

/// gWRITEs that are sent between two questions to the servers, whose processes end when no question comes for long.
const PIECE: u64 = 2000;

/// `ops` gWRITEs of each client while the applications are stopped, and as many after they were killed.
fn without_applications(replicas: usize, clients: usize, ops: u64) {
    use rustix::process::Signal;
    let fixture = Fixture::open();
    let (mut next, mut servers, mut applications, mut paths) = (None::<SocketAddr>, vec![], vec![], vec![]);
    for i in 0..replicas {
        let name = format!("softrnic-group-{}-{replicas}-{clients}-{i}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, vec![0; REGION]).expect("a file");
        let mut server = Remote::start(ENTRY, "server", &[]);
        server.wire.tell(&path);
        next = Some(server.wire.exchange(&next));
        let mut application = Remote::start(ENTRY, "application", &[]);
        application.wire.tell(&path);
        assert_eq!(application.wire.exchange::<(), u64>(&()), 0);
        servers.push(server);
        applications.push(application);
        paths.push(path);
    }
    let mut all: Vec<_> = (0..clients).map(|_| client(&fixture, next.expect("a replica"), 16)).collect();
    let counts = |servers: &mut Vec<Remote>| -> Vec<[u64; 2]> {
        servers.iter_mut().map(|server| server.wire.exchange::<(), [u64; 2]>(&())).collect()
    };
    let before = counts(&mut servers);
    let mut sent = 0;
    let mut write = |value: u64, mut ops: u64| {
        all.iter().enumerate().for_each(|(i, (_, buffer))| buffer.write(i * 1024, &value.to_ne_bytes()));
        while ops > 0 {
            let piece = ops.min(PIECE);
            std::thread::scope(|scope| {
                for (i, (client, _)) in all.iter_mut().enumerate() {
                    let list = vec![Operation::Write { offset: i as u64 * 1024, size: 1024 }; piece as usize];
                    scope.spawn(move || client.run(&list, Wait::Poll).unwrap_or_else(|error| panic!("{error}")));
                }
            });
            ops -= piece;
            sent += piece * clients as u64;
            for (before, after) in before.iter().zip(counts(&mut servers)) {
                assert_eq!((before[0], before[1] + sent), (after[0], after[1]));
            }
        }
        for path in &paths {
            let bytes = std::fs::read(path).expect("the region");
            (0..clients).for_each(|i| assert_eq!(bytes[i * 1024..][..8], value.to_ne_bytes()));
        }
    };
    write(1, ops.min(PIECE));
    applications.iter_mut().for_each(|it| assert_eq!(it.wire.exchange::<(), u64>(&()), 1));
    applications.iter().for_each(|it| it.signal(Signal::STOP));
    write(2, ops);
    applications.iter_mut().for_each(Remote::kill);
    write(3, ops);
    paths.iter().for_each(|path| std::fs::remove_file(path).expect("a file of ours"));
}
