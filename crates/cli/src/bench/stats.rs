//! Figures from samples.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The median of the rounds' figures, and how far they are apart.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// The spread of one figure or more; of none, all is 0.
    pub fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        match sorted.as_slice() {
            [] => Spread::default(),
            [low, .., high] => Spread { median: median(&sorted), low: *low, high: *high },
            [only] => Spread { median: *only, low: *only, high: *only },
        }
    }
}

/// The median of the rounds' ratios of two figures. A disturbance of seconds, which slows down one of the two more than
/// the other, spoils only the rounds that it falls into. It would also spoil a ratio of medians by rounds that it was
/// not there in. Each list begins with the first round. `None` if one is empty.
pub fn ratio(figures: &[f64], besides: &[f64]) -> Option<f64> {
    let empty = figures.is_empty() || besides.is_empty();
    (!empty).then(|| ratios(figures, besides).median)
}

/// As [`ratio`], with the lowest and the highest ratio of a round.
pub fn ratios(figures: &[f64], besides: &[f64]) -> Spread {
    Spread::of(&figures.iter().zip(besides).map(|(figure, beside)| figure / beside).collect::<Vec<_>>())
}

/// The median of figures that are sorted, one at least.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// Percentiles of all samples, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Percentiles {
    /// One of a hundred is longer.
    pub p99: f64,
    /// One of a thousand is longer.
    pub p99_9: f64,
    /// The longest.
    pub max: f64,
}

/// Samples of several rounds.
pub struct Samples {
    all: Histogram<u64>,
    medians: Vec<f64>,
}

impl Samples {
    /// Samples of no round yet.
    pub fn new() -> Self {
        // Three digits, and no limit to the values.
        Samples { all: Histogram::new(3).expect("3 is a number of digits"), medians: Vec::new() }
    }

    /// Add the samples of a round.
    pub fn round(&mut self, samples: &[Duration]) {
        let mut round = Histogram::<u64>::new(3).expect("3 is a number of digits");
        for sample in samples {
            // It cannot fail: the histogram resizes itself.
            let _ = round.record(u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX / 2).max(1));
        }
        self.medians.push(round.value_at_quantile(0.5) as f64 / 1e3);
        let _ = self.all.add(round);
    }

    /// The median of each round, in microseconds: of a round trip divided by `ways`.
    pub fn rounds(&self, ways: f64) -> Vec<f64> {
        self.medians.iter().map(|median| median / ways).collect()
    }

    /// The spread of the rounds' medians, in microseconds: of a round trip divided by `ways`.
    pub fn spread(&self, ways: f64) -> Spread {
        Spread::of(&self.rounds(ways))
    }

    /// The percentiles of all samples, in microseconds: of a round trip divided by `ways`.
    pub fn percentiles(&self, ways: f64) -> Percentiles {
        let at = |quantile: f64| self.all.value_at_quantile(quantile) as f64 / 1e3 / ways;
        Percentiles { p99: at(0.99), p99_9: at(0.999), max: self.all.max() as f64 / 1e3 / ways }
    }

    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_rounds() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, low: 1.0, high: 3.0 });
        assert_eq!(Spread::of(&[1.0, 2.0]).median, 1.5);
        assert_eq!(Spread::of(&[7.0]), Spread { median: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn ratios_are_of_rounds() {
        // The machine was slow for one figure in one round, and for the other in another.
        assert_eq!(ratio(&[2.0, 8.0, 2.0], &[1.0, 1.0, 4.0]), Some(2.0));
        assert_eq!(ratios(&[2.0, 8.0, 2.0], &[1.0, 1.0, 4.0]), Spread { median: 2.0, low: 0.5, high: 8.0 });
        assert_eq!(ratio(&[3.0, 5.0, 100.0], &[1.0, 1.0]), Some(4.0), "as far as both were measured");
        assert_eq!(ratio(&[], &[1.0]), None);
    }

    #[test]
    fn percentiles_are_of_all_rounds_and_medians_of_each() {
        let mut samples = Samples::new();
        let us = Duration::from_micros;
        samples.round(&[us(2); 100]);
        samples.round(&[us(4); 100]);
        let mut slow = vec![us(6); 99];
        slow.push(us(1000));
        samples.round(&slow);
        let near = |a: f64, b: f64| assert!((a - b).abs() / b < 2e-3, "{a} {b}");
        near(samples.spread(2.0).median, 2.0);
        near(samples.spread(2.0).high, 3.0);
        near(samples.percentiles(1.0).p99, 6.0);
        near(samples.percentiles(1.0).max, 1000.0);
        assert_eq!(samples.count(), 300);
    }
}
