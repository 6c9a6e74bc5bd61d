//! `softrnic group`: replicas of a chain, gWRITEs along it, and their figures (docs/group.md).

mod bench;
mod client;
mod place;
mod serve;
mod status;

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use report::settings::variable;

/// The command of the group.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Be replicas of a chain, on whose memory a client works by itself
    ///
    /// The process has a region and queues, and sleeps. Clients write, copy, compare and swap in the regions of all
    /// replicas of the chain by entries that were posted beforehand. The end of the chain is started first; every other
    /// replica names the one behind it. It ends when it is killed.
    Serve(serve::Options),
    /// Send gWRITEs along a chain of replicas, and measure them
    ///
    /// The options are those of HyperLoop's client: 5000 gWRITEs of 1024 bytes, one at a time. A window above 2000 is
    /// taken as 2000.
    Client(client::Options),
    /// Ask the servers of a chain about their state
    ///
    /// For each hop: messages that came, and how many less than at the hop before (lag); rounds of its queues that
    /// no operation uses; requests that were posted, all of them at set-up. Then gFLUSHes of 8 bytes, which change
    /// nothing, go along the chain, and their times are shown.
    Status(status::Options),
    /// Measure group operations, beside chains with the replicas' processors on the path, and plain copies
    ///
    /// Everything is started here, and ended again: servers, the replicas' applications, and processes that keep the
    /// replicas' core busy. The client has a core of its own where there are two.
    Bench(bench::Options),
    /// A process of bench
    #[command(hide = true)]
    Part(bench::PartOptions),
}

/// Run the command.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    match &options.command {
        Command::Serve(options) => serve::run(options),
        Command::Client(options) => client::run(options),
        Command::Status(options) => status::run(options),
        Command::Bench(options) => bench::run(options),
        Command::Part(options) => bench::part(options),
    }
}

/// Have this process move what it registers to where peers map it. The device reads the setting once, from the
/// environment of its process, so this starts the program anew in its place if the setting is another one.
fn migrate() -> Result<(), String> {
    use std::os::unix::process::CommandExt as _;
    const WANTED: &str = "1";
    if std::env::var_os(variable::MIGRATE).is_some_and(|value| value == WANTED) {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = std::process::Command::new(program);
    command.args(std::env::args_os().skip(1)).env(variable::MIGRATE, WANTED);
    Err(format!("cannot start this program anew: {}", command.exec()))
}

fn resolve(name: &str) -> Result<SocketAddr, String> {
    let mut found = name.to_socket_addrs().map_err(|error| format!("{name}: {error}"))?;
    found.next().ok_or_else(|| format!("{name} has no address"))
}
