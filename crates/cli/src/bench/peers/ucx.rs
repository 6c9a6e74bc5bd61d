//! UCX over its shared memory transports, which know nothing of verbs.

use super::client_server::Side;
use super::{Figure, Trial, iterations, send};
use crate::bench::case::{Case, Operation, Quantity};
use crate::bench::summary::UCX;

/// The programs that have to be installed.
pub const PROGRAMS: &[&str] = &["ucx_perftest"];

/// The environment that leaves only the transports of one host.
const ENVIRONMENT: &[(&str, &str)] =
    &[("UCX_TLS", "shm"), ("UCX_LOG_LEVEL", "error"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];

/// All trials.
pub fn trials(sizes: &[usize]) -> Vec<Trial> {
    let tests = [
        ("tag_lat", "tagged send", Quantity::Latency, Operation::Send),
        ("ucp_put_lat", "put", Quantity::Latency, Operation::Write),
        ("tag_bw", "tagged send", Quantity::Bandwidth, Operation::Send),
        ("ucp_put_bw", "put", Quantity::Bandwidth, Operation::Write),
    ];
    let of = |(test, what, quantity, operation): (&str, &str, Quantity, Operation)| {
        let trial = move |bytes: &usize| trial(test, what, Case { operation, ..send(quantity, *bytes) });
        sizes.iter().map(trial).collect::<Vec<_>>()
    };
    tests.into_iter().flat_map(of).collect()
}

fn trial(test: &str, what: &str, case: Case) -> Trial {
    let (bytes, samples) = (case.bytes, iterations(case.quantity, case.bytes));
    let warm_up = (samples / 10).max(10);
    let line = format!("ucx_perftest 127.0.0.1 -p {{port}} -t {test} -s {bytes} -n {samples} -w {warm_up} -f");
    Trial {
        by: UCX,
        what: what.into(),
        transport: None,
        case,
        server: Side::new("ucx_perftest -p {port}").with(ENVIRONMENT),
        client: Side::new(&line).with(ENVIRONMENT),
        samples,
        parse: if case.quantity == Quantity::Latency { parse_latency } else { parse_bandwidth },
    }
}

/// The figures of a line: iterations; median, mean and all in microseconds; MB/s twice; messages a second twice.
fn figures(text: &str) -> Option<Vec<f64>> {
    let numbers = |line: &str| line.split_whitespace().map(|field| field.parse().ok()).collect::<Option<Vec<f64>>>();
    text.lines().filter_map(numbers).rfind(|fields| fields.len() >= 8)
}

fn parse_latency(text: &str) -> Option<Figure> {
    Some(Figure::Latency { typical: figures(text)?[1], percentiles: None })
}

fn parse_bandwidth(text: &str) -> Option<Figure> {
    Some(Figure::Rate(figures(text)?[7]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ucx_perftest_prints() {
        let text = "+------+------+\n|     Test     | # iterations | 50.0%ile | average | overall |  average |  \
            overall |\n+---+\n        100000      0.431    15.738    24.392        0.48       0.31       63540       \
            40997\n+---+\n";
        assert_eq!(parse_latency(text), Some(Figure::Latency { typical: 0.431, percentiles: None }));
        assert_eq!(parse_bandwidth(text), Some(Figure::Rate(40997.0)));
        assert_eq!(parse_latency("connection refused"), None);
    }
}
