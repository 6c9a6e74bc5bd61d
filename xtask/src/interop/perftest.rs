//! The perftest matrix: eight programs, the transports that each is legal on, polling and by events, over all sizes;
//! and in turn the options that change how the queues are used.
//!
//! perftest's own rules: ib_write_* has no `-e`; reads and atomics are RC (or XRC) only; writes not on UD; atomics have
//! one size, and no `--odp`; `-l` must divide the number of iterations; `--use-srq` is for sends. Unreliable transports
//! drop messages that find no receive posted, and the receiving side then waits for ever: so they get receives for all
//! messages.

use std::time::Duration;

use crate::run::Finished;

use super::pair::{Around, Order, Pair, Side};
use super::{DEVICE, GID};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Send,
    Write,
    Read,
    Atomic,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lat,
    Bw,
}

use Kind::{Bw, Lat};
use Verb::{Atomic, Read, Send, Write};

/// A row of options that is tried with every program that it is legal for.
struct Row {
    options: &'static str,
    verbs: &'static [Verb],
    kinds: &'static [Kind],
    transports: &'static [&'static str],
    /// True if a quick run leaves it out, and a run on the quick clock: the other rows show what perftest measures.
    slow: bool,
}

const ALL: &[Verb] = &[Send, Write, Read, Atomic];
const SIZED: &[Verb] = &[Send, Write, Read];
const EVENTS: &[Verb] = &[Send, Read, Atomic];
const BOTH: &[Kind] = &[Lat, Bw];
const EVERY: &[&str] = &["RC", "UC", "UD", "XRC"];
const CONNECTED: &[&str] = &["RC", "UC"];
const RC: &[&str] = &["RC"];
const OTHERS: &[&str] = &["UC", "UD", "XRC"];

/// Legal transports of each verb are taken from `legal`; the row narrows them further.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    // The default options, in both orders.
    Row { options: "-n 1000",                      verbs: ALL,             kinds: BOTH,   transports: EVERY,     slow: false },
    Row { options: "-n 1000 -e",                   verbs: EVENTS,          kinds: BOTH,   transports: EVERY,     slow: false },
    // The whole range of sizes. (Atomics have one size.)
    Row { options: "-a -n 200",                    verbs: SIZED,           kinds: BOTH,   transports: RC,        slow: false },
    Row { options: "-a -n 200",                    verbs: SIZED,           kinds: BOTH,   transports: OTHERS,    slow: true  },
    Row { options: "-a -n 200 -e",                 verbs: &[Send, Read],   kinds: BOTH,   transports: EVERY,     slow: true  },
    Row { options: "-n 1000 -b",                   verbs: ALL,             kinds: &[Bw],  transports: EVERY,     slow: false },
    Row { options: "-n 1000 -b -e",                verbs: EVENTS,          kinds: &[Bw],  transports: EVERY,     slow: true  },
    Row { options: "-a -n 200 -b",                 verbs: SIZED,           kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-n 500 -q 16",                 verbs: ALL,             kinds: &[Bw],  transports: EVERY,     slow: false },
    Row { options: "-n 500 -q 16 -b",              verbs: ALL,             kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-n 500 -q 16 -e",              verbs: EVENTS,          kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-n 1600 -l 16",                verbs: ALL,             kinds: &[Bw],  transports: EVERY,     slow: false },
    Row { options: "-n 1600 -l 16 -q 4",           verbs: ALL,             kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-n 1000 -I 64 -s 64",          verbs: &[Send, Write],  kinds: BOTH,   transports: EVERY,     slow: false },
    // The longest message that goes inline, and one byte more.
    Row { options: "-n 1000 -I 200 -s 200",        verbs: &[Send, Write],  kinds: BOTH,   transports: RC,        slow: true  },
    Row { options: "-n 1000 -I 200 -s 201",        verbs: &[Send, Write],  kinds: BOTH,   transports: RC,        slow: true  },
    Row { options: "-n 1000 --use-srq",            verbs: &[Send],         kinds: BOTH,   transports: &["RC", "UD"], slow: false },
    Row { options: "-n 1000 --use-srq -e",         verbs: &[Send],         kinds: BOTH,   transports: RC,        slow: true  },
    Row { options: "-n 1000 --use-srq -q 16",      verbs: &[Send],         kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-n 1000 -t 1",                 verbs: ALL,             kinds: &[Bw],  transports: EVERY,     slow: false },
    Row { options: "-n 1000 -t 2",                 verbs: ALL,             kinds: &[Bw],  transports: CONNECTED, slow: true  },
    Row { options: "-n 1000 -t 512",               verbs: ALL,             kinds: &[Bw],  transports: EVERY,     slow: false },
    // There are fewer receives than messages under way: receiver not ready, and again. Reliable transports only.
    Row { options: "-n 1000 -r 2",                 verbs: &[Send],         kinds: BOTH,   transports: RC,        slow: false },
    Row { options: "-n 1000 -r 16 -s 4096",        verbs: &[Send],         kinds: BOTH,   transports: RC,        slow: true  },
    Row { options: "-n 1000 -r 4096",              verbs: &[Send],         kinds: BOTH,   transports: &["RC", "UC", "UD"], slow: false },
    Row { options: "-n 1000 --odp",                verbs: SIZED,           kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-n 1000 --use_old_post_send",  verbs: ALL,             kinds: BOTH,   transports: EVERY,     slow: true  },
    Row { options: "-n 1000 -o 1",                 verbs: &[Read, Atomic], kinds: BOTH,   transports: RC,        slow: true  },
    Row { options: "-n 1000 -Q 1",                 verbs: ALL,             kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-n 1000 --mr_per_qp -q 4",     verbs: ALL,             kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-n 1000 -m 256",               verbs: SIZED,           kinds: BOTH,   transports: CONNECTED, slow: true  },
    Row { options: "-n 200 -s 8388608",            verbs: SIZED,           kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-D 2",                         verbs: ALL,             kinds: &[Bw],  transports: RC,        slow: true  },
    Row { options: "-D 2",                         verbs: &[Send],         kinds: &[Lat], transports: RC,        slow: true  },
];

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Send => "send",
            Write => "write",
            Read => "read",
            Atomic => "atomic",
        }
    }

    fn legal(self) -> &'static [&'static str] {
        match self {
            Send => &["RC", "UC", "UD", "XRC"],
            Write => &["RC", "UC", "XRC"],
            Read | Atomic => &["RC", "XRC"],
        }
    }

    /// The variants of a verb: both atomic operations are run.
    fn flavours(self) -> &'static [&'static str] {
        if self == Atomic { &["-A FETCH_AND_ADD", "-A CMP_AND_SWAP"] } else { &[""] }
    }
}

/// The part of the matrix that is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Quick,
    /// All rows, but none in both orders.
    OneOrder,
    Full,
}

pub fn cases(extent: Extent) -> Vec<Pair> {
    let mut cases = Vec::new();
    let mut number = 0;
    for row in ROWS.iter().filter(|row| !(extent == Extent::Quick && row.slow)) {
        for &verb in row.verbs {
            for &kind in row.kinds {
                for transport in verb.legal().iter().filter(|t| row.transports.contains(t)) {
                    for flavour in verb.flavours() {
                        let options = format!("{} {flavour}", row.options);
                        for order in orders(extent, row, number) {
                            let case = case(verb, kind, transport, &options, *order);
                            cases.push(if row.slow { case.on_quick_clock() } else { case });
                        }
                        number += 1;
                    }
                }
            }
        }
    }
    cases
}

/// The orders of a row: the plain matrix in both; of the rest every third case with the client first. The order matters
/// until the queue pairs are connected, so one size is enough for that.
fn orders(extent: Extent, row: &Row, number: usize) -> &'static [Order] {
    let plain = row.options.split_whitespace().all(|word| ["-e", "-n", "1000"].contains(&word));
    match number % 3 {
        _ if plain && extent == Extent::Full => &[Order::ServerFirst, Order::ClientFirst],
        1 => &[Order::ClientFirst],
        _ => &[Order::ServerFirst],
    }
}

/// The RC cases of the programs named, such as `send_bw`.
pub fn some(names: &[&str], options: &str) -> Vec<Pair> {
    let mut cases = Vec::new();
    for verb in ALL {
        for (kind, kind_name) in [(Lat, "lat"), (Bw, "bw")] {
            if names.contains(&format!("{}_{kind_name}", verb.name()).as_str()) {
                cases.push(case(*verb, kind, "RC", options, Order::ServerFirst));
            }
        }
    }
    cases
}

/// Every program on every transport that is legal for it.
pub fn everything(options: &str) -> Vec<Pair> {
    let mut cases = Vec::new();
    for &verb in ALL {
        for &kind in BOTH {
            for transport in verb.legal() {
                for flavour in verb.flavours() {
                    cases.push(case(verb, kind, transport, &format!("{options} {flavour}"), Order::ServerFirst));
                }
            }
        }
    }
    cases
}

/// The bandwidth of every operation on every transport that is legal for it.
pub fn transports(options: &str) -> Vec<Pair> {
    let mut cases = Vec::new();
    for &verb in ALL {
        for transport in verb.legal() {
            cases.push(case(verb, Bw, transport, options, Order::ServerFirst));
        }
    }
    cases
}

fn case(verb: Verb, kind: Kind, transport: &str, options: &str, order: Order) -> Pair {
    let program = format!("ib_{}_{}", verb.name(), if kind == Lat { "lat" } else { "bw" });
    let options: Vec<&str> = options.split_whitespace().collect();
    let first = if order == Order::ClientFirst { ", client first" } else { "" };
    // -F: no message about the processor's clock.
    let mut args = vec!["-d", DEVICE, "-x", GID, "-F", "-c", transport];
    args.extend(&options);
    let expected = Expected {
        kind,
        rows: match (options.contains(&"-a"), transport) {
            (false, _) => 1,
            // Sizes from 2 to 4096, the port's MTU; or from 2 to 8 MiB.
            (true, "UD") => 12,
            (true, _) => 23,
        },
        duration: options.contains(&"-D"),
    };
    Pair {
        name: format!("{program} {transport} {}{first}", options.join(" ")),
        program,
        args: args.into_iter().map(str::to_owned).collect(),
        server_args: Vec::new(),
        clients: 1,
        around: [Around::Plain; 2],
        // These rows are about sizes. Their 23 measurements of the clock need ten seconds of processor time.
        quick_clock: options.contains(&"-a"),
        captures: [None, None],
        after: None,
        order,
        limit: Duration::from_secs(180),
        alone: kind == Lat && !options.contains(&"-e"),
        check: Box::new(move |side, done| check(side, done, &expected)),
    }
}

struct Expected {
    kind: Kind,
    rows: usize,
    duration: bool,
}

/// Messages of perftest on stderr or stdout that mean no error.
const HARMLESS: &[&str] = &[
    "Max msg size in UD is MTU",
    "Changing to this MTU",
    "Post List requested",
    // perftest measures the processor's clock first, and prints this when the machine is busy.
    "Correlation coefficient",
    // For reads, which have nothing to send inline, on devices whose part number it does not know.
    "Device not recognized to implement inline feature",
];

/// Messages of perftest about errors, sometimes with an exit status of 0.
const HARMFUL: &[&str] = &["Completion with error", "rror", "ail", "Couldn't", "Unable", "Problem", "timeout"];

fn check(side: Side, done: &Finished, expected: &Expected) -> Result<(), String> {
    let harmless = |line: &str| line.trim().is_empty() || HARMLESS.iter().any(|word| line.contains(word));
    if let Some(line) = done.stderr.lines().find(|line| !harmless(line)) {
        return Err(format!("on stderr: {line}"));
    }
    if let Some(line) =
        done.stdout.lines().find(|line| !harmless(line) && HARMFUL.iter().any(|word| line.contains(word)))
    {
        return Err(format!("on stdout: {line}"));
    }
    // A server of a one-way test only serves; only some programs print figures there.
    if side == Side::Server {
        return Ok(());
    }
    let rows = rows(&done.stdout);
    if rows.len() != expected.rows {
        return Err(format!("{} rows of figures instead of {}", rows.len(), expected.rows));
    }
    // Without a measure of the clock perftest prints infinite times.
    if done.stderr.contains("Correlation coefficient") {
        return Ok(());
    }
    for row in rows {
        sane(&row, expected).map_err(|why| format!("{why}: {row:?}"))?;
    }
    Ok(())
}

/// The rows of figures behind the line that starts with `#bytes`.
fn rows(stdout: &str) -> Vec<Vec<f64>> {
    stdout
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"))
        .map(|line| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>())
        .filter_map(Result::ok)
        .filter(|row| row.len() >= 4)
        .collect()
}

/// Check a row: bytes, iterations, and then: bandwidth peak, average, message rate; or latency minimum, maximum,
/// typical, average...
fn sane(row: &[f64], expected: &Expected) -> Result<(), &'static str> {
    // The deviation is left out: perftest's own arithmetic makes it NaN at times.
    let positive = |n: &f64| n.is_finite() && *n > 0.0;
    if !row[..2].iter().all(positive) {
        return Err("no bytes or no iterations");
    }
    match expected.kind {
        // The peak is 0 when there were too many iterations to look for it; at a small size the average rounds to 0.00,
        // at a large one the rate.
        Bw if !(row[3..].iter().all(|n| n.is_finite() && *n >= 0.0) && row[3..].iter().take(2).any(positive)) => {
            Err("absurd bandwidth")
        }
        Bw if row[3] > 1e6 => Err("more than a TB/s"),
        // A second is ten on the quick clock.
        Lat if expected.duration && !(positive(&row[2]) && row[2] < 1e7) => Err("absurd latency"),
        Lat if !expected.duration && !row[2..6].iter().all(|n| positive(n) && *n < 1e7) => Err("absurd latency"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<String> = cases(Extent::Full).into_iter().map(|case| case.name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(all > 150, "{all}");
        assert!(cases(Extent::Quick).len() < all);
    }

    #[test]
    fn figures_are_read() {
        let bw = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n\
             65536      1000             9120.41            9010.55                  0.144169\n-----\n";
        assert_eq!(rows(bw), [[65536.0, 1000.0, 9120.41, 9010.55, 0.144169]]);
        let expected = Expected { kind: Bw, rows: 1, duration: false };
        assert!(sane(&rows(bw)[0], &expected).is_ok());
        assert!(sane(&[8.0, 1000.0, 0.0, 0.0, 0.0], &expected).is_err());
        let latency = Expected { kind: Lat, ..expected };
        assert!(sane(&[2.0, 1000.0, 1.1, 9.0, 1.2, 1.3, 0.0, 2.0, 9.0], &latency).is_ok());
        assert!(sane(&[2.0, 1000.0, 1.1, 9e9, 1.2, 1.3, 0.0, 2.0, 9.0], &latency).is_err());
    }
}
