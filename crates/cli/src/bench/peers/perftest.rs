//! perftest, unmodified, through `softrnic run`.

use super::client_server::Side;
use super::{Figure, Trial, iterations};
use crate::bench::Options;
use crate::bench::case::{Case, Operation, Quantity, Transport};
use crate::bench::stats::{Percentiles, Spread};
use crate::bench::summary::PERFTEST;

/// The programs that have to be installed.
pub const PROGRAMS: &[&str] = &["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat", "ib_send_bw"];

/// All trials.
pub fn trials(options: &Options, sizes: &[usize]) -> Vec<Trial> {
    let mut cases = Vec::new();
    for operation in [Operation::Send, Operation::Write, Operation::Read] {
        cases.extend(sizes.iter().map(|size| Case::latency(Transport::Rc, operation, *size)));
        cases.extend(sizes.iter().map(|size| Case::bandwidth(Transport::Rc, operation, *size)));
    }
    let small = sizes.iter().filter(|size| **size == 8);
    for size in small {
        cases.push(Case::latency(Transport::Rc, Operation::FetchAdd, *size));
        cases.push(Case::latency(Transport::Rc, Operation::CompareSwap, *size));
        cases.push(Case::latency(Transport::Rc, Operation::Send, *size).by_events());
    }
    let prefix = prefix(options);
    cases.into_iter().map(|case| trial(case, &prefix, options)).collect()
}

/// The words in front of the program.
fn prefix(options: &Options) -> Vec<String> {
    let own = std::env::current_exe().map_or_else(|_| "softrnic".to_owned(), |path| path.display().to_string());
    let mut prefix = vec![own, "run".to_owned()];
    if let Some(lib) = &options.device.lib {
        prefix.extend(["--lib".to_owned(), lib.display().to_string()]);
    }
    prefix.push("--".to_owned());
    prefix
}

fn trial(case: Case, prefix: &[String], options: &Options) -> Trial {
    let latency = case.quantity == Quantity::Latency;
    let (name, more) = match case.operation {
        Operation::Send => ("send", ""),
        Operation::Write => ("write", ""),
        Operation::Read => ("read", ""),
        Operation::FetchAdd => ("atomic", "-A FETCH_AND_ADD"),
        Operation::CompareSwap => ("atomic", "-A CMP_AND_SWAP"),
    };
    let events = if case.waiting == crate::bench::case::Waiting::Events { "-e" } else { "" };
    let samples = iterations(case.quantity, case.bytes);
    let size = if case.operation.is_atomic() { String::new() } else { format!("-s {}", case.bytes) };
    let kind = if latency { "lat" } else { "bw" };
    let gid = options.device.gid.map_or_else(String::new, |index| format!("-x {index}"));
    let device = options.device.device.as_ref().map_or_else(String::new, |name| format!("-d {name}"));
    // A test whose atomics have no size of their own refuses one; reports in Gb/s are the same in all versions. Samples
    // have more digits than the median, which is in hundredths of a microsecond.
    let report = if latency { "-U" } else { "--report_gbits" };
    let line = format!("ib_{name}_{kind} -F -p {{port}} -n {samples} {size} {more} {events} {report} {gid} {device}");
    Trial {
        by: PERFTEST,
        what: format!("RC {}", case.operation.name()),
        transport: Some(Transport::Rc),
        case,
        server: Side::new(&line).under(prefix),
        client: Side::new(&format!("{line} 127.0.0.1")).under(prefix),
        samples,
        parse: if latency { parse_latency } else { parse_bandwidth },
    }
}

/// The line of figures below the heading that begins with `#bytes`: the last one, since samples have a heading of their
/// own.
fn figures(text: &str) -> Option<Vec<f64>> {
    let mut lines = text.lines().rev();
    let below = lines.by_ref().take_while(|line| !line.trim_start().starts_with("#bytes")).last()?;
    below.split_whitespace().map(|field| field.parse().ok()).collect()
}

/// The figure in a line of bytes, iterations, least, longest, typical, mean, deviation, 99 %, 99.9 %. perftest divides
/// round trips by two itself.
fn parse_latency(text: &str) -> Option<Figure> {
    let fields = figures(text)?;
    let at = |index: usize| fields.get(index).copied();
    let percentiles = Percentiles { p99: at(7)?, p99_9: at(8)?, max: at(3)? };
    let typical = at(4)?;
    // The exact median of the samples, if it agrees: there may be samples of something else.
    let exact = Some(Spread::of(&samples(text)).median).filter(|exact| (exact - typical).abs() < 0.0101);
    Some(Figure::Latency { typical: exact.unwrap_or(typical), percentiles: Some(percentiles) })
}

/// The samples below their heading, where each has its number.
fn samples(text: &str) -> Vec<f64> {
    let lines = text.lines().skip_while(|line| line.trim() != "#, usec").skip(1);
    let sample = |line: &str| line.split_once(',')?.1.trim().parse().ok();
    lines.map_while(sample).collect()
}

/// The figure in a line of bytes, iterations, peak, mean, millions of messages a second.
fn parse_bandwidth(text: &str) -> Option<Figure> {
    let fields = figures(text)?;
    Some(Figure::Rate(fields.get(3)? * 1e9 / 8.0 / fields.first()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perftest_prints() {
        let text = "---\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
            t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n 8       20000          0.59           \
            7649.19      0.75     \t       3.11        \t97.94  \t\t1.19    \t\t200.01 \n---\n";
        let percentiles = Some(Percentiles { p99: 1.19, p99_9: 200.01, max: 7649.19 });
        assert_eq!(parse_latency(text), Some(Figure::Latency { typical: 0.75, percentiles }));
        let all = format!("---\n #bytes #iterations  t_min[usec]\n#, usec\n1, 700.8\n2, 0.745958\n3, 0.2\n{text}");
        assert_eq!(parse_latency(&all), Some(Figure::Latency { typical: 0.745958, percentiles }));
        let text = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                    8          50000           0.000000            0.0512 \t   0.793468\n";
        assert_eq!(parse_bandwidth(text), Some(Figure::Rate(800_000.0)));
        assert_eq!(parse_latency("Couldn't connect"), None);
    }
}
