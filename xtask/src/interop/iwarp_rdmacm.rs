//! rdma-core's own tests of librdmacm on softiw0.

use crate::Options;
use crate::report::{Outcome, Suite};

use super::net::Net;
use super::pyverbs::{Ran, Runner, lay_out};
use super::sandbox::Sandbox;

const MODULE: &str = "test_rdmacm";

/// The tests that no device of iWARP can pass, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("multicast", "iWARP has no multicast"),
    ("udp", "iWARP has no datagrams"),
    ("external_qp", "it waits for CONNECT_RESPONSE, an event that Linux's iw_cm does not have"),
    ("test_rdmacm_async_traffic", "it asks the queue pair for its timeout of acknowledgements, which iWARP has not"),
];

/// Run them.
pub fn tests(suite: &mut Suite, options: &Options, sandbox: &Sandbox, net: &Net) {
    if !options.wants("softiw0: test_rdmacm") && !options.filter.as_ref().is_some_and(|part| part.contains(MODULE)) {
        return;
    }
    let folder = match lay_out(sandbox) {
        Ok(folder) => folder,
        Err(why) => return suite.fail(MODULE, why),
    };
    let runner = Runner { sandbox, folder, suite: "iwarp", variables: Vec::new(), iwarp: Some(net.words(0)) };
    let names = match runner.list(MODULE) {
        Ok(names) => names,
        Err(why) => return suite.fail(MODULE, why),
    };
    let reason = |name: &str| {
        let last = name.rsplit('.').next().unwrap_or_default();
        // The names of some tests begin with those of others.
        let is = |part: &str| if part.starts_with("test_") { last == part } else { last.contains(part) };
        NOT_HERE.iter().find(|(part, _)| is(part)).map(|(_, why)| *why)
    };
    let (left_out, names): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| reason(name).is_some());
    for name in left_out {
        suite.skip(format!("softiw0: {name}"), reason(&name).unwrap_or_default());
    }
    for Ran { row, log, took } in runner.run(MODULE, &names) {
        // None of these has a reason to leave itself out.
        let outcome = match row.outcome.clone() {
            Outcome::Skipped(why) => Outcome::Failed(format!("left itself out: {why}")),
            outcome => outcome,
        };
        suite.push_timed(format!("softiw0: {}", row.name()), outcome, Some(log), took);
    }
}
