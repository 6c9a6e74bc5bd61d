//! UCX's own measuring program over RC and UD: every test of its upper layer, in small and large messages, polling and
//! sleeping. A test passes if it ends.

use std::time::Duration;

use crate::Options;
use crate::report::{Outcome, Suite};

use super::client_server::{ClientServer, Ready};
use super::sandbox::Sandbox;

/// Tests that take any size.
const SIZED: &[&str] = &[
    "tag_lat",
    "tag_bw",
    "tag_sync_lat",
    "tag_sync_bw",
    "ucp_put_lat",
    "ucp_put_bw",
    GET,
    "stream_lat",
    "stream_bw",
    "ucp_am_lat",
    "ucp_am_bw",
];

/// Tests of 8 bytes. Asleep they wait for ever over TCP as well, by the program's own fault: they only poll here.
const ATOMIC: &[&str] = &["ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"];

/// A test that only polls here, too. Over RC it is RDMA READ, as the tests of [`ONE_SIDED`] are RDMA WRITE. Over UD its
/// target waits, asleep, for as many events as its peer sends requests, though it may have served the first requests
/// in the barrier before. Then both wait for ever: over TCP without the device as well, and soon on a busy machine.
const GET: &str = "ucp_get";

/// Tests that over RC are RDMA WRITE, which completes at the initiator only: a target that sleeps until it has an event
/// sleeps for ever, on every adapter. Over UD they are messages.
const ONE_SIDED: &[&str] = &["ucp_put_lat", "ucp_put_bw"];

const TRANSPORTS: &[(&str, &[(&str, &str)])] =
    &[("rc_v", &[("UCX_TLS", "rc_v,self")]), ("ud_v", &[("UCX_TLS", "ud_v,self")])];

const PORT: u16 = 19951;

/// The limit of a run, which takes half a second; so many killed runs end the suite.
const LIMIT: Duration = Duration::from_secs(12);
const HANGS: usize = 3;

/// How often the test is repeated in which a lost event showed itself most often.
const REPEATS: usize = 20;

pub fn ucx(suite: &mut Suite, options: &Options) {
    let sandbox = match Sandbox::new("ucx", &[]) {
        Ok(sandbox) => sandbox,
        Err(e) => return suite.fail("preparation", e),
    };
    let mut hangs = 0;
    for case in cases(options.quick).into_iter().filter(|case| options.wants(&case.name)) {
        let case = ClientServer { limit: case.limit * options.patience(), ..case };
        let (outcome, log) = case.run(&sandbox);
        hangs += usize::from(matches!(&outcome, Outcome::Failed(why) if why.contains("hung")));
        suite.push(case.name, outcome, Some(log));
        if hangs == HANGS {
            return suite.fail("the rest", format!("not run: {HANGS} runs hung"));
        }
    }
}

fn cases(quick: bool) -> Vec<ClientServer> {
    let sizes: &[u32] = if quick { &[1024] } else { &[8, 4096, 1 << 20] };
    let mut cases = Vec::new();
    for transport in TRANSPORTS {
        for test in SIZED {
            cases.extend(sizes.iter().map(|size| case(transport, &format!("{test} -s {size} -n 100"), "")));
            if *test != GET && !(transport.0 == "rc_v" && ONE_SIDED.contains(test)) {
                cases.push(case(transport, &format!("{test} -s 1024 -n 100 -E sleep"), ""));
            }
        }
        cases.extend(ATOMIC.iter().map(|test| case(transport, &format!("{test} -s 8 -n 100"), "")));
        let repeats = if quick { 1 } else { REPEATS };
        let again = |n| case(transport, "ucp_am_lat -s 1024 -n 100 -E sleep", &format!(" again {n}"));
        cases.extend((1..repeats).map(again));
    }
    cases
}

fn case((name, environment): &(&str, &'static [(&'static str, &'static str)]), test: &str, mark: &str) -> ClientServer {
    let mut case = ClientServer::new(
        format!("ucx_perftest {name} {test}{mark}"),
        format!("ucx_perftest -p {PORT}"),
        format!("ucx_perftest -p {PORT} -t {test} -w 10 -f 127.0.0.1"),
        Ready::Tcp(PORT),
    );
    case.environment = environment;
    case.limit = LIMIT;
    case
}
