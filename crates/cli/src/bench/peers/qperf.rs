//! qperf over TCP.

use super::client_server::Side;
use super::{Figure, Trial, send};
use crate::bench::case::Quantity;

/// The programs that have to be installed.
pub const PROGRAMS: &[&str] = &["qperf"];

/// All trials.
pub fn trials(sizes: &[usize]) -> Vec<Trial> {
    let trial = |quantity: Quantity, bytes: usize| {
        let (test, parse): (_, fn(&str) -> Option<Figure>) = match quantity {
            Quantity::Latency => ("tcp_lat", |text| value(text, "latency", "ns").map(latency)),
            Quantity::Bandwidth => ("tcp_bw", |text| bandwidth(text)),
        };
        Trial {
            by: "qperf (TCP)",
            what: "messages".into(),
            transport: None,
            case: send(quantity, bytes),
            server: Side::new("qperf -lp {port}"),
            // The size stands last but one, so that the figure of bandwidth can be divided by it.
            client: Side::new(&format!("qperf -lp {{port}} -t 1 -uu -vvu -m {bytes} 127.0.0.1 {test}")),
            samples: 0,
            parse,
        }
    };
    let of = |quantity| sizes.iter().map(move |bytes| trial(quantity, *bytes));
    of(Quantity::Latency).chain(of(Quantity::Bandwidth)).collect()
}

fn latency(nanoseconds: f64) -> Figure {
    Figure::Latency { typical: nanoseconds / 1e3, percentiles: None }
}

fn bandwidth(text: &str) -> Option<Figure> {
    Some(Figure::Rate(value(text, "bw", "bytes/sec")? / value(text, "msg_size", "bytes")?))
}

/// The value in a line like `latency = 7123 ns`.
fn value(text: &str, name: &str, unit: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let (key, rest) = line.split_once('=')?;
        let (figure, of) = rest.trim().split_once(' ')?;
        (key.trim() == name && of.trim() == unit).then(|| figure.replace(',', "").parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_qperf_prints() {
        let text = "tcp_lat:\n    latency   =  30966 ns\n    msg_size  =      8 bytes\n";
        assert_eq!(
            value(text, "latency", "ns").map(latency),
            Some(Figure::Latency { typical: 30.966, percentiles: None })
        );
        let text = "tcp_bw:\n    bw        =  7,224,000 bytes/sec\n    msg_size  =      8 bytes\n";
        assert_eq!(bandwidth(text), Some(Figure::Rate(903_000.0)));
        assert_eq!(bandwidth("failed to connect"), None);
    }
}
