//! Where a server runs, and how the scheduler treats it.

use clap::Args;
use limits::sched;

use crate::bench::pin;

/// The priority of SCHED_FIFO: before ordinary processes, behind what the system itself runs.
const PRIORITY: u32 = 10;

/// Options of a server.
#[derive(Args, Clone, Default, Debug)]
pub struct PlaceOptions {
    /// Run on this core only
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// Have slices of so many microseconds: shorter ones come sooner where others are busy (100 to 100000)
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(100..=100_000))]
    pub slice: Option<u64>,
    /// Have this nice value; below 0 needs a privilege
    #[arg(long, value_name = "VALUE", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub nice: Option<i32>,
    /// Run before all ordinary processes (SCHED_FIFO), if that is permitted
    #[arg(long)]
    pub fifo: bool,
}

impl PlaceOptions {
    /// Ask for it, for this thread and those that it starts; the result says what there is now. What is refused is
    /// said on standard error, and left out.
    pub fn take(&self) -> String {
        let refused = |what: &str, error: std::io::Error| eprintln!("softrnic: {what} is not to be had: {error}");
        let mut got = Vec::new();
        if let Some(core) = self.core {
            match pin::try_pin(core) {
                Ok(()) => got.push(format!("core {core}")),
                Err(error) => refused(&format!("core {core}"), error.into()),
            }
        }
        if self.fifo {
            match sched::fifo(PRIORITY) {
                Ok(()) => {
                    got.push(format!("SCHED_FIFO {PRIORITY}"));
                    return got.join(", ");
                }
                Err(error) => refused("SCHED_FIFO", error),
            }
        }
        let mut nice = self.nice.unwrap_or(0);
        let present = rustix::process::getpriority_process(None).unwrap_or(0);
        if self.nice.is_some()
            && let Err(error) = rustix::process::setpriority_process(None, nice)
        {
            refused(&format!("nice {nice}"), error.into());
            nice = present;
        }
        if self.nice.is_none() {
            nice = present;
        }
        got.push(format!("nice {nice}"));
        if let Some(slice) = self.slice {
            match sched::slice(slice, nice) {
                Ok(()) => got.push(format!("slices of {slice} us")),
                Err(error) => refused("a slice of its own", error),
            }
        }
        got.join(", ")
    }

    /// These options as arguments.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut push = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                args.extend([name.to_owned(), value]);
            }
        };
        push("--core", self.core.map(|core| core.to_string()));
        push("--slice", self.slice.map(|slice| slice.to_string()));
        push("--nice", self.nice.map(|nice| nice.to_string()));
        if self.fifo {
            args.push("--fifo".into());
        }
        args
    }
}
