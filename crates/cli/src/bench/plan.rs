//! The choice of the cases that are measured.

use std::collections::BTreeSet;

use super::Options;
use super::case::{Case, Operation, Transport, Waiting};
use super::end::{LARGEST, WALKED};
use super::summary;

/// The sizes of a run without options.
const FEW: [usize; 6] = [8, 64, 512, 4096, 64 << 10, 1 << 20];

/// A choice of message sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// The sizes of [`FEW`].
    Few,
    /// Every power of two, up to the largest.
    All,
    /// The sizes in this list.
    These(Vec<usize>),
}

impl Sizes {
    /// A choice from the command line: `few`, `all`, or numbers like `8,4K,1M`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "few" => Ok(Sizes::Few),
            "all" => Ok(Sizes::All),
            _ => text.split(',').map(size).collect::<Result<_, _>>().map(Sizes::These),
        }
    }

    /// The sizes in order, each once.
    pub fn list(&self) -> Vec<usize> {
        let set: BTreeSet<usize> = match self {
            Sizes::Few => FEW.into_iter().collect(),
            Sizes::All => (0..).map(|power| 1 << power).take_while(|size| *size <= LARGEST).collect(),
            Sizes::These(sizes) => sizes.iter().copied().collect(),
        };
        set.into_iter().collect()
    }
}

fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "KiB" | "k" => 1 << 10,
        "M" | "MiB" | "m" => 1 << 20,
        other => return Err(format!("{other} is no unit: B, K, M")),
    };
    let size = digits.parse::<usize>().map_err(|error| format!("{text}: {error}"))?.saturating_mul(factor);
    match size {
        1..=LARGEST => Ok(size),
        _ => Err(format!("{text}: from 1 to 8M")),
    }
}

/// The cases that are measured in every round.
pub struct Plan {
    /// The message sizes.
    pub sizes: Vec<usize>,
    /// The device's cases.
    pub cases: Vec<Case>,
}

impl Plan {
    /// The plan for these options. `largest`: the largest message of a transport.
    pub fn new(options: &Options, sizes: &Sizes, atomics: bool, largest: impl Fn(Transport) -> usize) -> Self {
        let sizes = sizes.list();
        let operations = || {
            Operation::ALL
                .into_iter()
                .filter(|operation| options.wants(*operation))
                .filter(|operation| atomics || !operation.is_atomic())
        };
        let transports =
            || Transport::ALL.into_iter().filter(|t| options.transports.is_empty() || options.transports.contains(t));
        let wanted = |waiting| options.waiting.is_none_or(|only| only == waiting);
        let mut cases = BTreeSet::new();
        for transport in transports() {
            for operation in operations().filter(|operation| transport.carries(*operation)) {
                for size in sizes.iter().filter(|size| **size <= largest(transport)) {
                    let latency = Case::latency(transport, operation, *size);
                    if wanted(Waiting::Polling) {
                        cases.insert(latency);
                        if !operation.is_atomic() {
                            cases.insert(Case::bandwidth(transport, operation, *size));
                        }
                    }
                    if wanted(Waiting::Events) {
                        // A program that looks for a WRITE in its memory gets no event.
                        if operation != Operation::Write {
                            cases.insert(latency.by_events());
                        }
                        if !operation.is_atomic() {
                            cases.insert(Case::bandwidth(transport, operation, *size).by_events());
                        }
                    }
                }
                let walks = transport == Transport::Rc && !operation.is_atomic() && sizes.contains(&WALKED);
                if wanted(Waiting::Polling) && walks {
                    cases.insert(Case::bandwidth(transport, operation, WALKED).walking());
                }
            }
        }
        Plan { sizes, cases: cases.into_iter().collect() }
    }

    /// The sizes for the limits: those of the messages, and those that the summary compares with.
    pub fn limit_sizes(&self) -> Vec<usize> {
        self.sizes.iter().copied().chain(summary::SIZES).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_from_the_command_line() {
        assert_eq!(Sizes::parse("1M,8,4KiB,8").unwrap().list(), [8, 4096, 1 << 20]);
        assert_eq!(Sizes::parse("all").unwrap().list().len(), 24);
        for wrong in ["", "x", "0", "9M", "8G", "8,"] {
            assert!(Sizes::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_summary_compares_is_measured_without_options() {
        assert!(summary::SIZES.iter().all(|size| FEW.contains(size)));
    }
}
