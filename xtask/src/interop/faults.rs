//! Deliberate faults: for each a program that meets it, and the program's output. `docs/faults.md` is made of the
//! tables here.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::Finished;
use crate::{Options, root};

use super::client_server::{ClientServer, Ready};
use super::programs::{Record, run_client_servers};
use super::rdmacm::compile;
use super::sandbox::Sandbox;
use super::{at_once, run_beside};

/// A fault, the arguments of `interop/faults` under it, and all of its output.
struct Row(&'static str, &'static str, &'static [&'static str]);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row("drop:n=5", "near rc 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received"]),
    Row("drop:n=3,count=4", "near rc 20", &["2 x IBV_WC_SUCCESS", "17 x IBV_WC_WR_FLUSH_ERR", "1 x \
        IBV_WC_RETRY_EXC_ERR", "2 of 20 received"]),
    Row("drop:n=3,op=ack,count=3", "far rc 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received"]),
    Row("drop:n=5", "near uc 20", &["20 x IBV_WC_SUCCESS", "19 of 20 received"]),
    Row("drop:every=4,side=rx", "far ud 20", &["20 x IBV_WC_SUCCESS", "15 of 20 received"]),
    Row("duplicate:every=3", "near rc 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received"]),
    Row("duplicate:every=3", "near ud 20", &["20 x IBV_WC_SUCCESS", "26 of 20 received"]),
    Row("delay:every=5,t=5ms", "near rc 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received"]),
    Row("reorder:every=3", "near ud 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received"]),
    Row("slow:t=100us", "near rc 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received"]),
    Row("slow:t=5ms", "far rc 20 7 leave", &["20 x IBV_WC_SUCCESS"]),
    Row("corrupt:n=7", "near rc 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received, 1 with wrong data"]),
    Row("corrupt:n=7,side=rx", "far ud 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received, 1 with wrong data"]),
    Row("rnr:n=3,count=5", "far rc 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received"]),
    Row("rnr:n=3,count=5", "far rc 20 3", &["2 x IBV_WC_SUCCESS", "17 x IBV_WC_WR_FLUSH_ERR", "1 x \
        IBV_WC_RNR_RETRY_EXC_ERR", "2 of 20 received"]),
    Row("rnr:n=3,for=20ms", "far rc 20", &["20 x IBV_WC_SUCCESS", "20 of 20 received"]),
    Row("qp-error:n=5", "near rc 8", &["4 x IBV_WC_SUCCESS", "4 x IBV_WC_WR_FLUSH_ERR", "4 of 8 received", "IBV_EVENT_QP_FATAL"]),
    Row("link-kill:n=5", "near rc 8", &["4 x IBV_WC_SUCCESS", "3 x IBV_WC_WR_FLUSH_ERR", "1 x IBV_WC_RETRY_EXC_ERR", "4 of 8 received"]),
    Row("link-kill:n=5,for=20ms", "near rc 8", &["8 x IBV_WC_SUCCESS", "8 of 8 received"]),
    Row("errno:call=ibv_post_send,n=5,errno=ENOMEM", "near rc 8", &["ibv_post_send: ENOMEM", "7 x IBV_WC_SUCCESS", "7 \
        of 8 received"]),
    Row("errno:call=ibv_reg_mr,n=2,errno=ENOMEM", "near calls", &["ibv_reg_mr: ENOMEM", "the rest succeeded"]),
    Row("errno:call=ibv_create_*,every=3,errno=ENOSPC", "near calls", &["ibv_create_srq: ENOSPC", "ibv_create_cq: \
        ENOSPC", "ibv_create_srq: ENOSPC", "the rest succeeded"]),
    Row("errno:call=ibv_modify_qp,n=3,errno=ETIMEDOUT;errno:call=ibv_poll_cq,n=1,errno=EIO", "near calls", &["ibv_poll_cq: EIO", "ibv_modify_qp: ETIMEDOUT", "ibv_post_recv: EINVAL", "the rest succeeded"]),
    Row("errno:call=ibv_post_recv,n=1,errno=ENOMEM;errno:call=ibv_req_notify_cq,n=1,errno=EIO", "near calls", &["ibv_post_recv: ENOMEM", "ibv_req_notify_cq: EIO", "the rest succeeded"]),
    Row("device-fatal:n=5", "near rc 8", &["4 x IBV_WC_SUCCESS", "4 x IBV_WC_WR_FLUSH_ERR", "4 of 8 received", "IBV_EVENT_DEVICE_FATAL"]),
    Row("device-fatal:after=500ms", "near events 1", &["IBV_EVENT_DEVICE_FATAL, ibv_query_port: EIO", "ibv_reg_mr: EIO"]),
    Row("device-removal:after=4s", "near cm", &["listener at an address: RDMA_CM_EVENT_DEVICE_REMOVAL", "connection: \
        RDMA_CM_EVENT_DEVICE_REMOVAL", "rdma_disconnect: ENXIO", "rdma_bind_addr: ENODEV", "the peer: \
            RDMA_CM_EVENT_DISCONNECTED"]),
    Row("port-down:after=500ms,for=2s", "near events 2", &["IBV_EVENT_PORT_ERR, ibv_query_port: down", "IBV_EVENT_PORT_ACTIVE, ibv_query_port: active", "ibv_reg_mr: done"]),
    Row("port-down:n=5,for=20ms", "near rc 8", &["8 x IBV_WC_SUCCESS", "8 of 8 received", "IBV_EVENT_PORT_ERR", "IBV_EVENT_PORT_ACTIVE"]),
    Row("gid-change:after=500ms", "near events 1", &["IBV_EVENT_GID_CHANGE, ibv_query_port: active", "ibv_reg_mr: done"]),
    Row("addr-change:after=4s", "near cm", &["listener at an address: RDMA_CM_EVENT_ADDR_CHANGE", "connection: \
        RDMA_CM_EVENT_ADDR_CHANGE", "rdma_disconnect: done", "rdma_bind_addr: done", "the peer: \
            RDMA_CM_EVENT_DISCONNECTED"]),
];

/// A program that knows nothing of faults: the fault, the server if there is one, the program, and words of its last
/// output. With a server, it is the client, and the server meets nothing.
struct Stranger(&'static str, Option<(&'static str, Ready)>, &'static str, &'static [&'static str]);

#[rustfmt::skip]
const STRANGERS: &[Stranger] = &[
    Stranger("errno:call=ibv_reg_mr,n=1,errno=ENOMEM", None, "ibv_rc_pingpong -g 0", &["Couldn't register MR"]),
    Stranger("errno:call=ibv_query_port,n=1,errno=EIO", None, "ibv_rc_pingpong -g 0", &["Couldn't get port info"]),
    Stranger("qp-error:n=50", Some(("ibv_rc_pingpong -g 0 -p 24301", Ready::Tcp(24301))), "ibv_rc_pingpong -g 0 -p \
        24301 localhost", &["Failed status Work Request Flushed Error (5)"]),
    Stranger("link-kill:n=50", Some(("ibv_rc_pingpong -g 0 -p 24302", Ready::Tcp(24302))), "ibv_rc_pingpong -g 0 -p \
        24302 localhost", &["Failed status transport retry counter exceeded (12)"]),
    Stranger("link-kill:n=500", Some(("ib_send_bw -p 24303", Ready::Tcp(24303))), "ib_send_bw -p 24303 localhost", &["Failed status 12"]),
    Stranger("errno:call=ibv_post_send,n=5,errno=ENOMEM", Some(("ib_send_bw -p 24306", Ready::Tcp(24306))), "ib_send_bw -p 24306 localhost", &["ibv_wr_complete: ENOMEM", "Couldn't post send"]),
    Stranger("drop:n=100000000", Some(("ib_send_lat -p 24307", Ready::Tcp(24307))), "ib_send_lat -p 24307 localhost", &["fault drop:n=100000000 has not \
        happened"]),
    Stranger("errno:call=rdma_resolve_route,n=1,errno=EHOSTUNREACH", None, "rping -c -a 127.0.0.1 -p 24304", &["rdma_resolve_route: No route to host"]),
    Stranger("slow:t=1ms;device-removal:after=3s", Some(("rping -s -p 24305", Ready::Rdma(24305))), "rping -c -a \
        127.0.0.1 -p 24305 -C 100000", &["cma detected device removal!!!!"]),
];

/// Faults that both sides meet and programs do not notice: a name, the faults, and the programs.
struct Weather(&'static str, [(&'static str, &'static str); 1], &'static [(&'static str, &'static str, Ready)]);

/// Packets that are lost, doubled, late and overtaken. No answer is lost: a side that has all that it waits for may
/// end, and could not send the answer again.
const LOSSY: Weather = Weather(
    "lossy",
    [("SOFTRNIC_FAULT", "drop:p=0.01,count=10;duplicate:p=0.02,op=any;reorder:p=0.02;delay:p=0.01,t=2ms;seed=42")],
    &[
        ("ibv_rc_pingpong -g 0 -c -p 24311", "localhost", Ready::Tcp(24311)),
        ("ibv_rc_pingpong -g 0 -c -e -s 1048576 -n 30 -p 24312", "localhost", Ready::Tcp(24312)),
        ("ibv_srq_pingpong -g 0 -c -p 24313", "localhost", Ready::Tcp(24313)),
        ("ib_send_bw -n 1000 -p 24314", "localhost", Ready::Tcp(24314)),
        ("ib_write_bw -n 1000 -s 8192 -p 24315", "localhost", Ready::Tcp(24315)),
        ("ib_read_bw -n 1000 -s 32768 -p 24316", "localhost", Ready::Tcp(24316)),
        ("ib_atomic_bw -n 1000 -p 24317", "localhost", Ready::Tcp(24317)),
        ("ib_write_lat -n 1000 -p 24318", "localhost", Ready::Tcp(24318)),
    ],
);

/// All answers are late, also the last one, behind which the program ends.
const SLOW: Weather = Weather(
    "slow",
    [("SOFTRNIC_FAULT", "slow:t=1ms")],
    &[
        ("ibv_rc_pingpong -g 0 -c -n 30 -p 24321", "localhost", Ready::Tcp(24321)),
        ("ibv_srq_pingpong -g 0 -c -n 30 -p 24322", "localhost", Ready::Tcp(24322)),
    ],
);

/// Some answers are late.
const LATE: Weather = Weather(
    "late",
    [("SOFTRNIC_FAULT", "delay:every=3,t=2ms,op=any")],
    &[
        ("ibv_rc_pingpong -g 0 -c -n 30 -p 24323", "localhost", Ready::Tcp(24323)),
        ("ibv_srq_pingpong -g 0 -c -n 30 -p 24324", "localhost", Ready::Tcp(24324)),
    ],
);

static WEATHERS: [Weather; 3] = [SLOW, LATE, LOSSY];

/// Faults that reliable services repair without a trace. Responses are not dropped: a NAK that ends a queue pair comes
/// once.
const REPAIRED: &str = "drop:p=0.01,count=6;drop:p=0.01,count=2,side=rx,op=send;duplicate:p=0.03,op=any;\
                        duplicate:p=0.02,op=any,side=rx;reorder:p=0.03,op=any;delay:p=0.01,t=2ms,op=any;rnr:p=0.01";

/// How long one of the programs may take.
const LIMIT: Duration = Duration::from_secs(60);

/// `cargo xtask faults`.
pub fn faults(suite: &mut Suite, options: &Options) {
    let sandbox = match Sandbox::new("faults", &[]) {
        Ok(sandbox) => sandbox,
        Err(e) => return suite.fail("preparation", e),
    };
    let program = match compile(&sandbox, "gcc", "faults", "meet", &["-lrdmacm", "-libverbs"]) {
        Ok(program) => program,
        Err(e) => return suite.fail("meet", e),
    };
    let meet = Meet { sandbox: &sandbox, program };
    // The cases that take longest come first: the others then run beside them.
    let mut cases = selftests();
    cases.extend(ROWS.iter().map(|row| Case::new(name(row), move |meet| meet.row(row))));
    cases.push(Case::new("the seed decides", |meet| meet.the_seed_decides()));
    cases.extend(STRANGERS.iter().map(|row| Case::new(stranger_name(row), |meet| meet_unknowing(meet.sandbox, row))));
    cases.retain(|case| options.wants(&case.name));
    run_beside(suite, &cases, at_once(), |case| match (case.run)(&meet) {
        Ok((outcome, log)) => (case.name.clone(), outcome, log),
        Err(e) => (case.name.clone(), Outcome::Failed(e.to_string()), PathBuf::from(log_of(&case.name))),
    });
    let client_servers = WEATHERS.iter().flat_map(|Weather(name, environment, programs)| {
        programs.iter().map(move |(line, host, ready)| {
            let mut client_server =
                ClientServer::new(format!("{name} {line}"), *line, format!("{line} {host}"), *ready);
            client_server.environment = environment;
            client_server.beside = true;
            client_server
        })
    });
    run_client_servers(suite, options, &sandbox, &mut Record::default(), client_servers.collect());
    page(suite, options);
}

fn name(Row(fault, scene, _): &Row) -> String {
    format!("{fault} {scene}")
}

fn stranger_name(Stranger(fault, _, program, _): &Stranger) -> String {
    format!("{fault} {program}")
}

fn log_of(name: &str) -> String {
    name.replace([' ', '/', ':', ';', ',', '*'], "_")
}

/// The outcome of a case, and the place of its output.
type Ended = io::Result<(Outcome, PathBuf)>;

/// A case that may run beside others: most of its time it waits for packets that are lost or late.
struct Case {
    name: String,
    run: Box<dyn Fn(&Meet) -> Ended + Sync>,
}

impl Case {
    fn new(name: impl Into<String>, run: impl Fn(&Meet) -> Ended + Sync + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// The program of `interop/faults`.
struct Meet<'a> {
    sandbox: &'a Sandbox,
    program: String,
}

impl Meet<'_> {
    fn run(&self, log: &str, spec: &str, scene: &str) -> io::Result<Finished> {
        let words: Vec<&str> = scene.split_whitespace().collect();
        self.sandbox.program(&log_of(log), &self.program, &words).env("SOFTRNIC_FAULT", spec).run(LIMIT)
    }

    /// Run a row, and check the program's output.
    fn row(&self, row: &Row) -> Ended {
        let Row(fault, scene, saw) = row;
        let done = self.run(&name(row), &format!("{fault};seed=42"), scene)?;
        let said: Vec<&str> = done.stdout.lines().collect();
        let outcome = match done.ok() && said == *saw {
            true => Outcome::Passed,
            false if !done.ok() => Outcome::Failed(done.verdict()),
            false => Outcome::Failed(format!("saw {said:?} instead of {saw:?}")),
        };
        Ok((outcome, done.log))
    }

    fn the_seed_decides(&self) -> Ended {
        let which = |log: &str, seed: u32| -> io::Result<(Vec<String>, PathBuf)> {
            let done = self.run(log, &format!("drop:p=0.3;seed={seed}"), "near uc 60")?;
            let numbers = done.stderr.lines().filter_map(|line| line.split_once("), ")?.1.split(':').next());
            Ok((numbers.map(str::to_owned).collect(), done.log))
        };
        let ((a, log), (b, _), (c, _)) = (which("seed_7", 7)?, which("seed_7_again", 7)?, which("seed_8", 8)?);
        let right = a == b && a != c && !a.is_empty();
        Ok((if right { Outcome::Passed } else { Outcome::Failed(format!("{a:?}, {b:?}, {c:?}")) }, log))
    }
}

/// Run a program that was written for adapters, and check its output.
fn meet_unknowing(sandbox: &Sandbox, row: &Stranger) -> Ended {
    let Stranger(fault, server, program, saw) = row;
    let log = log_of(&stranger_name(row));
    let words = |line: &'static str| line.split_whitespace().collect::<Vec<_>>();
    let server = match server {
        Some((line, ready)) => {
            let words = words(line);
            let mut running = sandbox.program(&format!("{log}.server"), words[0], &words[1..]).spawn()?;
            ready.wait(&mut running)?;
            Some(running)
        }
        None => None,
    };
    let words = words(program);
    let spec = format!("{fault};seed=42");
    let done = sandbox.program(&log, words[0], &words[1..]).env("SOFTRNIC_FAULT", spec).run(LIMIT);
    if let Some(server) = server {
        server.stop()?;
    }
    let done = done?;
    let missing = saw.iter().find(|words| !done.stdout.contains(**words) && !done.stderr.contains(**words));
    let outcome = match missing {
        _ if done.status.is_none() => Outcome::Failed(done.verdict()),
        Some(words) => Outcome::Failed(format!("does not say {words:?}: {}", done.verdict())),
        None => Outcome::Passed,
    };
    Ok((outcome, done.log))
}

/// The cases of `softrnic selftest` with the reliable services, which compares every byte. `SOFTRNIC_FAULT_SEEDS` is
/// the number of seeds (1).
fn selftests() -> Vec<Case> {
    let seeds = std::env::var("SOFTRNIC_FAULT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1u32);
    let all = (1..=seeds).flat_map(|seed| [(seed, ", XRC", "0"), (seed, ", RC", "1")]);
    all.map(|(seed, service, straight)| {
        let name = format!("selftest{service}, seed {seed}");
        let log = log_of(&name);
        Case::new(name, move |meet| {
            let program = meet.sandbox.softrnic(&log, &["selftest", "--quick", "--filter", service]);
            let program = program.env("SOFTRNIC_FAULT", format!("{REPAIRED};seed={seed}"));
            let done = program.env("SOFTRNIC_SINGLE_COPY", straight).run(Duration::from_secs(240))?;
            Ok((if done.ok() { Outcome::Passed } else { Outcome::Failed(done.verdict()) }, done.log))
        })
    })
    .collect()
}

const INTRODUCTION: &str = "# Faults

`softrnic run --fault SPEC -- PROGRAM` (or `SOFTRNIC_FAULT=SPEC`) makes the device misbehave, by a specification and \
a seed, so that
the error paths of a program can be tested. `softrnic help run` and softrnic-run(1) have the grammar. Every fault \
that happens is
told on stderr, with the seed; of packets that are `slow` the first, and their number when the process ends. What has \
not happened by
then is told, too, and how many packets or calls it has looked at. This page shows for each fault a program that \
meets it, and what it
saw: statuses, events and errnos. Generated by `cargo xtask faults --bless`; every test run compares it with what the \
programs see.

What a specification means, where it could be meant otherwise:

- Each process counts for itself, from 1, what its own device sends (or with `side=rx` receives); a retry is one more \
packet.
- Faults stand where packets meet the wire, so the services do about them what they would do on a network: RC and XRC \
repair
  what is lost, doubled, late or overtaken, and end in RETRY_EXC_ERR when that fails too often; UC and UD lose it. A \
NAK that ends a
  queue pair is sent once: if it is lost, the requester sees RETRY_EXC_ERR in its place.
- What is late is under way, whatever becomes of its queue pair. When the process closes its last context or ends, \
what still waits
  goes out at once; only if it is killed or calls _exit with a context open is it lost.
- A queue pair that breaks by `qp-error`, and all of them by `device-fatal` and `device-removal`, flush what is \
posted, as adapters do
  whose driver sees the error.
- `device-removal` is for the rdma_cm_ids what Linux makes of it: bound ones hear of it, listeners at all addresses \
do not;
  connections are ended, so their peers hear DISCONNECTED; from then on calls with these ids fail with ENXIO, and \
binding anew with ENODEV.
  The device does not come back.
- `addr-change` reaches ids with an interface's address, as when a bond fails over; nothing else happens to them.
- `call=ibv_post_send` is every posting of send requests, by `ibv_wr_complete` too (Debian's perftest posts so); who \
means only that names it.
- Between processes of one host there is no checksum, so what is corrupted there is received as it is. A wire that \
has one must find it.
- A completion channel that loses a wake-up is not among the faults: no adapter does that.

";

const OF_MEET: &str = "## Status, event, errno

`meet` is `interop/faults`: it sends 64 bytes at a time, each behind the completion of the one before (`rc`, `uc`, \
`ud`), waits for
asynchronous events, makes objects (`calls`), or connects (`cm`). `near`: it meets the faults itself, `far`: the \
process that it
talks to does. `leave`: the one that receives ends as soon as it has all.

| fault | program | what it saw |
|---|---|---|
";

const OF_STRANGERS: &str = "
## Programs that were written for adapters

| fault | program | what it said |
|---|---|---|
";

/// What `crates/nic/tests/stream_faults.rs` sees.
const OF_STREAMS: &str = "
## On TCP: softiw0

With `--device iwarp` faults strike FPDUs that the process sends; WRITEs of no bytes do not count. A SEND is complete \
when TCP has it, or the
fault has, and so succeeds in every row (RFC 5040, section 5.5). `crates/nic/tests/stream_faults.rs` sees each row, \
and that other connections go
on. In every row that ends the connection, rdma_cm tells both sides DISCONNECTED (`cargo xtask iwarp --filter ends`).

| fault of a SEND | the peer's receive | the connection | event |
|---|---|---|---|
| `corrupt`, with CRC | IBV_WC_WR_FLUSH_ERR | ends: the peer sends Terminate: layer 2 (MPA), type 0, code 2 (CRC) | \
the peer: IBV_EVENT_QP_FATAL |
| `corrupt`, without CRC (`SOFTRNIC_MPA_CRC=0` on both sides) | IBV_WC_SUCCESS, a bit is wrong | stays | |
| `reset` | IBV_WC_WR_FLUSH_ERR | ends: RST | |
| `half-close` | IBV_WC_WR_FLUSH_ERR | ends: FIN, which the peer answers with its own | |
| `stall` with `for`, `delay`, `slow` | IBV_WC_SUCCESS, that much later | stays | |
| `stall` without `for` | never completes | stays, until one side ends it | |
| `qp-error` | IBV_WC_SUCCESS or IBV_WC_WR_FLUSH_ERR | ends | this side: IBV_EVENT_QP_FATAL |

While a connection is stalled nothing is read either: the peer's sends succeed as long as TCP has room, and then wait. \
`port-down` stalls all
connections. `drop`, `duplicate`, `reorder`, `rnr` and `link-kill` do nothing on TCP.
";

/// An event that processes and systems cause without being asked: its description, the test, and the expected view of
/// the program.
struct Met(&'static str, &'static str, &'static str, &'static str);

const OF_THE_SYSTEM: &str = "
## What happens by itself

No fault of ours, but what a program meets all the same; `crates/conformance` makes it happen. `cargo xtask stress` \
kills 5,000 peers.

| what happens | test | what the other program sees |
|---|---|---|
";

#[rustfmt::skip]
const BY_ITSELF: &[Met] = &[
    Met("the peer dies (`kill -9`), at any moment", "kill.rs", "peers_are_killed",
        "after about (retries + 1) timeouts IBV_WC_RETRY_EXC_ERR for the oldest request, IBV_WC_WR_FLUSH_ERR for the \
         others and for posted receives; IBV_EVENT_QP_LAST_WQE_REACHED where receives are shared; a new connection \
         works at once"),
    Met("the peer is stopped (SIGSTOP) beyond the timeouts", "stopped.rs", "beyond_the_timeouts_it_is_a_dead_path",
        "the same; what the peer does when it goes on changes nothing any more, but for one copy (below)"),
    Met("the peer is stopped, and goes on in time", "stopped.rs", "who_goes_on_in_time_has_lost_nothing",
        "IBV_WC_SUCCESS for all, each once"),
    Met("no more descriptors (RLIMIT_NOFILE)", "exhaustion/table.rs", "descriptors",
        "EMFILE from the verb that needs one; IBV_WC_RETRY_EXC_ERR where a connection cannot be made; what is \
         connected goes on"),
    Met("no more memory (RLIMIT_AS)", "exhaustion/table.rs", "memory",
        "ENOMEM, or EAGAIN where a thread is to be made; otherwise as above; datagrams and UC messages that find no \
         receive are lost instead of kept"),
    Met("files, or shared memory, may not be so large (RLIMIT_FSIZE)", "exhaustion/table.rs", "file_sizes",
        "EFBIG; otherwise as above"),
    Met("memfd, eventfd, timerfd, epoll or sockets are forbidden (seccomp)", "exhaustion/table.rs", "system_calls",
        "EPERM, EACCES, as the sandbox answers, from the verb that needs it"),
    Met("process_vm_readv and process_vm_writev are forbidden", "exhaustion/table.rs", "system_calls",
        "nothing: data go through shared memory, with two copies"),
];

const BESIDE_THE_TABLE: &str = "
A process that is stopped while it copies directly (`process_vm_readv`, `process_vm_writev`: between its look at what \
is permitted and the end of
the call, some microseconds) is waited for, 5 seconds at most, before its peer's requests fail or `ibv_dereg_mr(3)` \
returns there. If it goes on
later than that, it goes on with this one copy, of 1 MiB at most: nothing takes the right to it away from a living \
process. Who must exclude that
uses `softrnic run --no-single-copy`.

Where the kernel counts memory when it is touched (`vm.overcommit_memory` = 2) and has no more, a verb that needs \
some answers ENOMEM, and a
connection cannot be made (IBV_WC_RETRY_EXC_ERR); what is connected has its memory. No test sets that, for it is the \
whole machine's.

Data never lie in /dev/shm, nor in any other file system that has a name: windows are sealed memfds. So its size \
means nothing here, nor does a
container that has none; what a memory cgroup permits does.

Another user's process that connects to the device's sockets is not let in, and what it leaves there (a TCP \
connection that takes minutes to close,
say) holds up nobody who is connected, nor those who come (`cargo xtask surroundings`). [SECURITY.md](../SECURITY.md) \
says what remains possible.
";

/// The text of `docs/faults.md`.
fn page(suite: &mut Suite, options: &Options) {
    let mut text = format!("{INTRODUCTION}{OF_MEET}");
    for Row(fault, scene, saw) in ROWS {
        text += &format!("| `{fault}` | `meet {scene}` | {} |\n", saw.join("; "));
    }
    text += OF_STRANGERS;
    for Stranger(fault, _, program, said) in STRANGERS {
        text += &format!("| `{fault}` | `{program}` | {} |\n", said.join("; "));
    }
    for Weather(_, [(_, fault)], programs) in &WEATHERS {
        let programs = programs.iter().map(|(line, ..)| format!("`{}`", line.split(" -p ").next().unwrap_or(line)));
        let programs = programs.collect::<Vec<_>>().join(", ");
        text += &format!("\nUnder `{fault}` on both sides, {programs} run as ever.\n");
    }
    text += "\n`softrnic selftest` of RC and XRC finds every byte right under more than the last.\n";
    text += OF_STREAMS;
    text += OF_THE_SYSTEM;
    for Met(what, file, test, sees) in BY_ITSELF {
        text += &format!("| {what} | `{}`: `{test}` | {sees} |\n", file.split(['.', '/']).next().unwrap_or(file));
        let source = fs::read_to_string(root().join("crates/conformance/tests").join(file)).unwrap_or_default();
        if !source.contains(&format!("fn {test}()")) {
            suite.fail("docs/faults.md", format!("{file} has no test {test}"));
        }
    }
    text += BESIDE_THE_TABLE;
    let path = root().join("docs/faults.md");
    if options.bless
        && let Err(e) = fs::write(&path, &text)
    {
        suite.fail("docs/faults.md", e.to_string());
    }
    match fs::read_to_string(&path) {
        Ok(there) if there == text => suite.pass("docs/faults.md"),
        Ok(_) => suite.fail("docs/faults.md", "is not as the tables of the suite have it: cargo xtask faults --bless"),
        Err(e) => suite.fail("docs/faults.md", e.to_string()),
    }
}
