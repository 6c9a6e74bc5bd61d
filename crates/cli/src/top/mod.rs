//! `softrnic top`: the activity of processes with the device, as it happens.

mod rates;
mod screen;
mod view;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use ask::{ask, processes, state};
use clap::Args;
use report::Report;

use crate::out::say;
use crate::sockets;
use rates::Process;

/// Options of `softrnic top`.
#[derive(Args)]
pub struct Options {
    /// Only these processes; without any: all of this user that have the device open
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Show the TCP connections of programs under softrnic sock: whether each is in memory, why not, and what it moves
    #[arg(long)]
    sockets: bool,
    /// Print one table and end
    #[arg(long)]
    once: bool,
    /// Print JSON: an object for each look, on a line of its own
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if (0.05..=3600.0).contains(&n) => Ok(n),
        _ => Err("a number of seconds from 0.05 to 3600".into()),
    }
}

/// Show the activity until the user ends it.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let pause = Duration::from_secs_f64(options.interval);
    if options.sockets {
        return show_sockets(options, pause);
    }
    let mut looks = Looks::new(&options.pids);
    looks.next();
    if options.json || options.once || !std::io::stdout().is_terminal() {
        loop {
            std::thread::sleep(pause);
            let processes = looks.next();
            if options.json {
                say!("{}", serde_json::to_string(&processes).map_err(|error| error.to_string())?);
            } else {
                view::lines(&processes).iter().for_each(|line| say!("{line}"));
            }
            if options.once {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    screen::show(pause, || view::lines(&looks.next()))?;
    Ok(ExitCode::SUCCESS)
}

/// Show connections until the user ends it. All numbers are those since a connection began.
fn show_sockets(options: &Options, pause: Duration) -> Result<ExitCode, String> {
    let look = || sockets::all(&options.pids);
    let follows = !options.once && !options.json && std::io::stdout().is_terminal();
    if follows {
        screen::show(pause, || sockets::lines(&look()))?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        let found = look();
        if options.json {
            say!("{}", serde_json::to_string(&found).map_err(|error| error.to_string())?);
        } else {
            sockets::lines(&found).iter().for_each(|line| say!("{line}"));
        }
        if options.once {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(pause);
    }
}

/// The last report of every process.
struct Looks {
    only: Vec<u32>,
    last: BTreeMap<u32, Report>,
}

impl Looks {
    fn new(only: &[u32]) -> Self {
        Looks { only: only.to_vec(), last: BTreeMap::new() }
    }

    /// Ask for new reports: the result is the activity since the last ones.
    fn next(&mut self) -> Vec<Process> {
        let pids = if self.only.is_empty() { processes() } else { self.only.clone() };
        let answers: Vec<(u32, Result<Report, String>)> = pids.into_iter().map(|pid| (pid, ask(pid))).collect();
        let others: BTreeMap<u32, Report> =
            answers.iter().filter_map(|(pid, answer)| Some((*pid, answer.as_ref().ok()?.clone()))).collect();
        let mut shown = Vec::new();
        for (pid, answer) in answers {
            match answer {
                Ok(report) => shown.push(Process::new(&report, self.last.get(&pid), &others)),
                // A process of another user, or one that ended between the two reports, is not shown.
                Err(_) if self.only.is_empty() && !(self.last.contains_key(&pid) && state(pid).is_some()) => {}
                Err(why) => shown.push(Process::silent(pid, why)),
            }
        }
        // A process that does not answer now is still the same one when it answers again.
        self.last.retain(|pid, _| state(*pid).is_some());
        self.last.extend(others);
        shown
    }
}
