//! The suites of `cargo xtask test`, and the suites that run beside each.

use std::iter;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::report::{Report, Suite};
use crate::{Options, arrows, busy, ctests, interop, miri, rdmacore, run, rust};

/// The suites that run beside a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// One after the other.
    Front,
    /// Beside the suites of [`Lane::Front`], [`BACKGROUND`] at a time, in the time of the processors that they leave
    /// unused ([`yield_to_others`]). This is for suites that compute, and neither measure time nor communicate with
    /// other processes: builds, models, fuzzing.
    Background,
    /// Behind all others, because it measures, or makes the load of its own that it is about.
    Alone,
}

use Lane::{Alone, Background, Front};

/// One suite: its name, its description, its lane, whether `--quick` leaves it out, and the function that runs it.
pub struct Step {
    pub name: &'static str,
    pub about: &'static str,
    pub lane: Lane,
    pub slow: bool,
    run: fn(&mut Suite, &Options),
}

/// The suites of `test`, in the order of its report, and within a lane in this order.
#[rustfmt::skip]
pub const STEPS: &[Step] = &[
    Step { name: "build", lane: Front, slow: false, run: rust::build,
        about: "cargo build --release: the program and, beside it, the library" },
    Step { name: "fmt", lane: Background, slow: false, run: rust::fmt,
        about: "cargo fmt --check" },
    Step { name: "arrows", lane: Background, slow: false, run: arrows_step,
        about: "the declared dependencies between the crates" },
    Step { name: "clippy", lane: Background, slow: false, run: rust::clippy,
        about: "cargo clippy -D warnings" },
    Step { name: "unit", lane: Front, slow: false, run: rust::test,
        about: "cargo test --workspace" },
    Step { name: "doc", lane: Background, slow: false, run: rust::doc,
        about: "cargo doc without warnings" },
    Step { name: "c", lane: Front, slow: false, run: ctests::plain,
        about: "the C tests against libibverbs-dev's headers" },
    Step { name: "sanitizers", lane: Front, slow: true, run: ctests::sanitized,
        about: "the C tests with AddressSanitizer and UndefinedBehaviorSanitizer" },
    Step { name: "sanitized", lane: Front, slow: false, run: interop::sanitized,
        about: "programs with a sanitizer's shared runtime, under softrnic run" },
    Step { name: "devices", lane: Front, slow: false, run: interop::devices,
        about: "ibv_devices, ibv_devinfo -v, rdma, softrnic devinfo" },
    Step { name: "loading", lane: Front, slow: false, run: interop::loading,
        about: "every way in which programs find the library" },
    Step { name: "selftest", lane: Front, slow: false, run: interop::selftest,
        about: "softrnic selftest" },
    Step { name: "bench", lane: Alone, slow: false, run: interop::bench,
        about: "softrnic bench: what it measures and writes, not how fast" },
    Step { name: "pingpong", lane: Front, slow: false, run: interop::pingpong,
        about: "libibverbs' pingpong programs" },
    Step { name: "perftest", lane: Front, slow: false, run: interop::perftest,
        about: "the perftest matrix" },
    Step { name: "pyverbs", lane: Front, slow: false, run: interop::pyverbs,
        about: "rdma-core's own suite; holds docs/conformance.md" },
    Step { name: "rdmacore", lane: Front, slow: true, run: interop::rdmacore,
        about: "the Python tests of a newer rdma-core than the distribution's" },
    Step { name: "rdmacm", lane: Front, slow: false, run: interop::rdmacm,
        about: "librdmacm: every function in a table, cycles and kills, its programs" },
    Step { name: "programs", lane: Front, slow: false, run: interop::programs,
        about: "perftest -R, qperf, fio, libfabric, UCX, Open MPI" },
    Step { name: "exs", lane: Front, slow: false, run: interop::exs,
        about: "extended sockets from C: every call, event and error, with sanitizers too; the examples" },
    Step { name: "hyperclient", lane: Front, slow: false, run: interop::hyperclient,
        about: "group operations from C and C++: every call and error, with sanitizers too; the report's listings" },
    Step { name: "ddp", lane: Front, slow: false, run: interop::ddp,
        about: "direct data placement from C: every call and error between two processes, with sanitizers too" },
    Step { name: "ucx", lane: Front, slow: false, run: interop::ucx,
        about: "ucx_perftest: every test of UCP over RC and UD, polling and asleep" },
    Step { name: "infiniband", lane: Front, slow: false, run: interop::infiniband,
        about: "programs that know LIDs only, on a port of InfiniBand" },
    Step { name: "migrated", lane: Front, slow: false, run: interop::migrated,
        about: "selftest, pingpong, perftest, rdma-core's own suite, load and killed peers with registered memory \
        that peers map" },
    Step { name: "iwarp", lane: Front, slow: true, run: interop::iwarp::iwarp,
        about: "iWARP between two network namespaces, over veth and over a network that loses and reorders packets" },
    Step { name: "siw", lane: Front, slow: true, run: interop::siw::siw,
        about: "Linux's siw in a virtual machine: rping and perftest as client and server, Terminate messages" },
    Step { name: "sock", lane: Front, slow: false, run: interop::sock,
        about: "TCP programs under softrnic sock: redis, nginx, Apache, PostgreSQL and others, each with the library in \
        none, one and both of them" },
    Step { name: "pcap", lane: Front, slow: false, run: interop::pcap,
        about: "captures of pingpong and perftest, as tshark and the specification have it" },
    Step { name: "faults", lane: Front, slow: false, run: interop::faults,
        about: "faults on purpose, and what programs see of them; holds docs/faults.md" },
    Step { name: "surroundings", lane: Front, slow: false, run: interop::surroundings,
        about: "programs in other namespaces, without process_vm_readv, and visited by another user" },
    Step { name: "busy", lane: Alone, slow: true, run: busy::busy,
        about: "a sample of pingpong, perftest and rdmacm, and load, with two runnable threads per core beside" },
    Step { name: "indirect", lane: Front, slow: true, run: indirect,
        about: "unit (crates above the window), selftest, pingpong, perftest, pyverbs, with single copies between \
        processes forbidden" },
    Step { name: "loom", lane: Background, slow: true, run: rust::loom,
        about: "models of the rings, doorbells, export tables, copies and the lock" },
    Step { name: "fuzz", lane: Background, slow: true, run: rust::fuzz,
        about: "a short run of every fuzz target" },
    Step { name: "miri", lane: Background, slow: true, run: miri::run,
        about: "miri on the crates that it can run" },
];

/// The suite of the long forms, which is none of `test`: it takes as long as all of these.
pub const STRESS: Step = Step {
    name: "stress",
    lane: Front,
    slow: true,
    run: rust::stress,
    about: "peers killed and objects made, for a long time",
};

/// The long form of a test in `unit`, which is none of `test`.
pub const SOCK_PROGRAMS: Step = Step {
    name: "sock-programs",
    lane: Front,
    slow: true,
    run: rust::sock_programs,
    about: "random programs of socket calls, on TCP and with the library of softrnic sock",
};

/// The suites of `quick` after a change, before all the rest: it needs neither root nor the distribution's packages.
#[rustfmt::skip]
pub const QUICK: &[Step] = &[
    Step { name: "build", lane: Front, slow: false, run: rust::build,
        about: "cargo build --release" },
    Step { name: "fmt", lane: Background, slow: false, run: rust::fmt,
        about: "cargo fmt --check" },
    Step { name: "arrows", lane: Background, slow: false, run: arrows_step,
        about: "the declared dependencies between the crates" },
    Step { name: "clippy", lane: Background, slow: false, run: rust::clippy,
        about: "cargo clippy -D warnings" },
    Step { name: "unit", lane: Front, slow: false, run: rust::test_units,
        about: "cargo test --workspace --lib --bins" },
    Step { name: "selftest", lane: Front, slow: false, run: interop::selftest,
        about: "softrnic selftest" },
    Step { name: "pingpong", lane: Front, slow: false, run: interop::one_pingpong,
        about: "ibv_rc_pingpong, if it is installed" },
];

/// The number of suites of [`Lane::Background`] that run at a time: a model and a fuzz target run on one core each.
const BACKGROUND: usize = 2;

/// Run the steps, and print a report of them behind the suites that this one has already.
pub fn run_all<'a>(mut report: Report, steps: impl Iterator<Item = &'a Step>, options: &Options) -> ExitCode {
    let steps: Vec<&Step> = steps.collect();
    let _busy = options.busy.then(busy::Busy::start);
    let lane = |lane| steps.iter().copied().filter(move |step| step.lane == lane).collect::<Vec<&Step>>();
    let (front, background, alone) = (lane(Lane::Front), lane(Lane::Background), lane(Lane::Alone));
    let run_some = |some: &[&Step]| some.iter().map(|step| run_one(step, options)).collect::<Vec<Suite>>();
    // On a machine that is kept busy there is no time that others leave.
    let beside = !front.is_empty() && !options.busy;
    let next = AtomicUsize::new(0);
    let mut suites = if beside {
        thread::scope(|scope| {
            let take = || {
                yield_to_others();
                let step = || background.get(next.fetch_add(1, Ordering::Relaxed));
                iter::from_fn(step).map(|step| run_one(step, options)).collect::<Vec<Suite>>()
            };
            if front.iter().any(|step| step.name == "rdmacore") {
                scope.spawn(|| {
                    yield_to_others();
                    // The suite waits for it, and reports an error in it.
                    let _ = rdmacore::built();
                });
            }
            let behind = [(); BACKGROUND].map(|()| scope.spawn(take));
            let mut suites = run_some(&front);
            for thread in behind {
                suites.extend(thread.join().expect("a suite does not panic"));
            }
            suites
        })
    } else {
        [run_some(&background), run_some(&front)].concat()
    };
    suites.extend(run_some(&alone));
    let place = |suite: &Suite| steps.iter().position(|step| step.name == suite.name);
    suites.sort_by_key(place);
    report.suites.extend(suites);
    report.print();
    let total = report.total();
    if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_one(step: &Step, options: &Options) -> Suite {
    println!("== {}: {}", step.name, step.about);
    let mut suite = Suite::new(step.name);
    let started = Instant::now();
    if run::is_over() {
        suite.fail(step.name, run::OVER);
    } else {
        (step.run)(&mut suite, options);
    }
    suite.took = started.elapsed();
    let (name, n, seconds) = (step.name, suite.count(), suite.took.as_secs_f64());
    println!("   {name}: {} passed, {} failed, {} skipped in {seconds:.1} s", n.passed, n.failed, n.skipped);
    suite
}

/// Give this thread, and the programs that it starts, only the processor time that no other thread wants (SCHED_IDLE,
/// sched(7)): a thread that becomes runnable does not wait for them.
fn yield_to_others() {
    let thread = rustix::thread::gettid().as_raw_pid().to_string();
    let done = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).output();
    if !done.is_ok_and(|out| out.status.success()) {
        println!(
            "  note: chrt (package util-linux) is missing, or it may not be used here: builds run at full priority"
        );
    }
}

fn arrows_step(suite: &mut Suite, _: &Options) {
    match arrows::check() {
        Ok(()) => suite.pass("arrows between the crates"),
        Err(e) => suite.fail("arrows between the crates", e),
    }
}

/// Run the suites again, each case's name marked, with the window as the only way.
fn indirect(suite: &mut Suite, options: &Options) {
    rust::test_indirect(suite, options);
    interop::indirect(suite, options);
}
