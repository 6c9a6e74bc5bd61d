//! libibverbs' pingpong programs: every transport, polling and by events, with the received data checked where the
//! program can, from one byte to a MiB.

use std::time::Duration;

use crate::run::Finished;

use super::pair::{Around, Order, Pair, Side};
use super::{DEVICE, GID};

/// One program: the options that exist for it, and the sizes that it takes.
struct Program {
    name: &'static str,
    /// True if `-c` validates the data. (For xsrq it is the number of clients.)
    validates: bool,
    sizes: &'static [u32],
    /// Further options, one case each.
    extra: &'static [&'static str],
    /// True if it prints at the end how long it took.
    reports: bool,
}

const SIZES: &[u32] = &[1, 64, 1000, 4096, 65536, 1 << 20];

/// The sizes of datagrams: a datagram is one packet, so the port's MTU of 4096 is the greatest.
const DATAGRAMS: &[u32] = &[1, 64, 1000, 4096];

#[rustfmt::skip]
const PROGRAMS: &[Program] = &[
    Program { name: "ibv_rc_pingpong",   validates: true,  sizes: SIZES,     reports: true,
              extra: &["-o", "-O", "-o -P", "-O -P", "-t", "-N", "-N -e", "-m 256", "-m 4096", "-r 1", "-l 3"] },
    Program { name: "ibv_uc_pingpong",   validates: true,  sizes: SIZES,     reports: true,
              extra: &["-m 256", "-m 4096", "-r 50"] },
    Program { name: "ibv_ud_pingpong",   validates: true,  sizes: DATAGRAMS, reports: true,
              extra: &["-r 50", "-l 3"] },
    Program { name: "ibv_srq_pingpong",  validates: true,  sizes: SIZES,     reports: true,
              extra: &["-q 1", "-q 64", "-o", "-r 64 -q 4"] },
    Program { name: "ibv_xsrq_pingpong", validates: false, sizes: SIZES,     reports: false,
              extra: &["-n 1000", "-o"] },
];

/// The number of exchanges, fewer for large sizes: a case tests correctness, not speed.
fn iterations(size: u32) -> u32 {
    match size {
        0..=4096 => 1000,
        4097..=65536 => 300,
        _ => 60,
    }
}

pub fn cases(quick: bool) -> Vec<Pair> {
    let mut cases = Vec::new();
    for program in PROGRAMS {
        let mut number = 0;
        for &size in program.sizes {
            for events in ["", "-e"] {
                for check in if program.validates { &["", "-c"][..] } else { &[""] } {
                    if quick && (size == 64 || size == 1000 || check.is_empty() && program.validates) {
                        continue;
                    }
                    let options = format!("-s {size} {}{events} {check}", count(program, size));
                    // Both orders come up with every option, without twice the cases.
                    let order = if number % 3 == 2 { Order::ClientFirst } else { Order::ServerFirst };
                    number += 1;
                    cases.push(case(program, &options, order));
                }
            }
        }
        for extra in program.extra {
            cases.push(case(program, extra, Order::ServerFirst));
        }
    }
    cases.push(several_clients());
    cases
}

fn count(program: &Program, size: u32) -> String {
    match program.name {
        // Exchanges for each of its 16 queue pairs.
        "ibv_srq_pingpong" => format!("-n {} ", iterations(size) / 4),
        "ibv_xsrq_pingpong" => String::new(),
        _ => format!("-n {} ", iterations(size)),
    }
}

/// One case of the program of this name.
pub fn one(name: &str, options: &str, order: Order) -> Pair {
    let program = PROGRAMS.iter().find(|program| program.name == name).expect("a program of the table");
    case(program, options, order)
}

fn case(program: &Program, options: &str, order: Order) -> Pair {
    let options: Vec<&str> = options.split_whitespace().collect();
    let first = if order == Order::ClientFirst { ", client first" } else { "" };
    let mut args = vec!["-d", DEVICE, "-g", GID];
    args.extend(&options);
    let reports = program.reports;
    Pair {
        name: format!("{} {}{first}", program.name, options.join(" ")),
        program: program.name.to_owned(),
        args: args.into_iter().map(str::to_owned).collect(),
        server_args: Vec::new(),
        clients: 1,
        around: [Around::Plain; 2],
        quick_clock: false,
        captures: [None, None],
        after: None,
        order,
        limit: Duration::from_secs(60),
        alone: !options.contains(&"-e"),
        check: Box::new(move |side, done| check(side, done, reports)),
    }
}

/// The case of the one program that serves several clients at once.
fn several_clients() -> Pair {
    let program = &PROGRAMS[4];
    let mut pair = case(program, "-n 100", Order::ServerFirst);
    pair.name = format!("{} with 3 clients", program.name);
    pair.server_args = vec!["-c".to_owned(), "3".to_owned()];
    pair.clients = 3;
    pair
}

fn check(_: Side, done: &Finished, reports: bool) -> Result<(), String> {
    if let Some(line) = done.stderr.lines().find(|line| !line.trim().is_empty()) {
        return Err(format!("on stderr: {line}"));
    }
    if let Some(line) = done.stdout.lines().find(|line| line.contains("invalid data")) {
        return Err(line.to_owned());
    }
    for want in ["local", "remote"] {
        if !done.stdout.contains(want) {
            return Err(format!("the output has no {want} address"));
        }
    }
    if !reports {
        return Ok(());
    }
    let figure = |unit: &str| {
        let line = done.stdout.lines().find(|line| line.ends_with(unit))?;
        line.strip_suffix(unit)?.split_whitespace().next_back()?.parse::<f64>().ok()
    };
    match (figure(" Mbit/sec"), figure(" usec/iter")) {
        // A slow exchange of one byte on a busy machine is printed as 0.00 Mbit/sec; the time is more exact.
        (Some(rate), Some(time)) if rate.is_finite() && time > 0.0 && time < 1e6 => Ok(()),
        (Some(rate), Some(time)) => Err(format!("absurd figures: {rate} Mbit/sec, {time} usec/iter")),
        _ => Err("no figures at the end".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_acceptance_is_covered() {
        let mut names: Vec<String> = cases(false).into_iter().map(|case| case.name).collect();
        let all = names.len();
        for program in PROGRAMS {
            for size in program.sizes {
                for events in [false, true] {
                    let found = names.iter().any(|name| {
                        name.starts_with(program.name)
                            && format!("{name} ").replace(',', " ").contains(&format!("-s {size} "))
                            && name.contains(" -e") == events
                    });
                    assert!(found, "{} {size} {events}", program.name);
                }
            }
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
