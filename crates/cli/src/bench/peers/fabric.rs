//! libfabric over its shared memory provider.

use super::client_server::Side;
use super::{Figure, Trial, iterations, send};
use crate::bench::case::Quantity;

/// The programs that have to be installed.
pub const PROGRAMS: &[&str] = &["fi_pingpong"];

/// All trials.
pub fn trials(sizes: &[usize]) -> Vec<Trial> {
    let trial = |bytes: &usize| {
        let samples = iterations(Quantity::Latency, *bytes);
        let line = format!("fi_pingpong -p shm -e rdm -I {samples} -S {bytes}");
        Trial {
            by: "libfabric (shared memory)",
            what: "messages".into(),
            transport: None,
            case: send(Quantity::Latency, *bytes),
            server: Side::new(&format!("{line} -B {{port}}")),
            client: Side::new(&format!("{line} -P {{port}} 127.0.0.1")),
            samples,
            parse,
        }
    };
    sizes.iter().map(trial).collect()
}

/// The figure in the line below the heading that begins with `bytes`; the seventh column is microseconds of one way, a
/// mean.
fn parse(text: &str) -> Option<Figure> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("bytes")).skip(1);
    let typical = lines.next()?.split_whitespace().nth(6)?.parse().ok()?;
    Some(Figure::Latency { typical, percentiles: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fi_pingpong_prints() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64      10k     =10k     1.2m        0.42s      3.05      20.95       0.05\n";
        assert_eq!(parse(text), Some(Figure::Latency { typical: 20.95, percentiles: None }));
        assert_eq!(parse("bytes\n"), None);
    }
}
