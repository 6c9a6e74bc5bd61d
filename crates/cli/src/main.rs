//! `softrnic`: run programs on the NIC in software, look at it, measure it, test it.
#![forbid(unsafe_code)]

mod bench;
mod c_manual;
mod ddp_manual;
mod devinfo;
mod doctor;
mod dv_manual;
mod elf;
mod exs_manual;
mod fixture;
mod follow;
mod group;
mod hyperclient_manual;
mod install;
mod link;
mod locate;
mod manual;
mod out;
mod rules_manual;
mod run;
mod selftest;
mod settings;
mod sock;
mod sockets;
mod top;

use std::process::ExitCode;

use clap::{FromArgMatches as _, Parser, Subcommand};

/// An RDMA NIC in software: unmodified verbs programs run without an adapter.
#[derive(Parser)]
#[command(name = "softrnic", version, after_help = settings::help(), max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program, and the programs that it starts, with the device softrnic0
    ///
    /// PROGRAM sees a machine with an RDMA adapter. The exit status is the program's; 125 if softrnic refuses to run
    /// it, 126 if it cannot be run, 127 if there is none.
    Run(run::Options),
    /// Run a TCP program, and the programs that it starts, with connections that may move onto shared memory
    ///
    /// Where both ends of a TCP connection are programs that were started so, by one user on one machine, its bytes
    /// go through shared memory instead of the kernel's network. Every other connection is plain TCP. The exit status
    /// is the program's; 125 if softrnic refuses to run it, 126 if it cannot be run, 127 if there is none.
    Sock(sock::Options),
    /// Show the device, its port, its addresses and its limits
    ///
    /// Shows what a verbs program sees, and how data may move between processes here.
    Devinfo(devinfo::Options),
    /// Measure latency and bandwidth between two processes, beside what the machine could do
    ///
    /// The two are connected through the public C functions of the verbs library, and pinned to two cores where there
    /// are two. In the same run it measures what the machine itself can do (a cache line from core to core, memcpy,
    /// copies by the kernel from process to process, wake-ups, sockets), and shows every figure beside its limit. It
    /// takes some twenty seconds.
    Bench(bench::Options),
    /// Measure extended sockets (EXS), beside the verbs that they are made of, and beside TCP
    ///
    /// Two processes transfer messages in every way that the sockets have. In turns it measures what the same bytes
    /// take in verbs alone, and shows the ratio. docs/exs.md explains the ways.
    ExsBlast(bench::exs::Options),
    /// Move data by every operation and compare every byte
    ///
    /// Every operation, on every kind of queue pair, in many sizes and shapes: on a queue pair that is connected to
    /// itself, between two of one process, and between two processes. What the device says it cannot do is skipped, and
    /// counted. The exit status is 1 if anything failed.
    Selftest(selftest::Options),
    /// Say what a program with the device waits for, and why
    ///
    /// Asks a running process, which goes on undisturbed, and the processes that it is connected to, and says for every
    /// queue pair what its queues hold and what it waits for. Without PID: all processes of this user that have the
    /// device open, one line each, and the TCP connections of programs under softrnic sock, with the reason why one is
    /// not in memory.
    Doctor(doctor::Options),
    /// Show what processes with the device do, second by second
    ///
    /// A table of processes, their queue pairs and completion queues: messages and bytes per second, how full their
    /// queues are, and what stands in the way (RNR NAKs, retries, full rings). In a terminal it is refreshed until q is
    /// pressed; else a new table follows the last. With --sockets it is a table of the TCP connections of programs
    /// under softrnic sock.
    Top(top::Options),
    /// Group operations along a chain of replicas
    ///
    /// A client writes, copies, compares and swaps in the memory of all replicas by entries that were posted beforehand
    /// (docs/group.md): serve is a replica, client sends gWRITEs, bench measures.
    Group(group::Options),
    /// Make a directory with the library under the names that programs look for
    ///
    /// For programs that are to find the device without softrnic run: with LD_LIBRARY_PATH set to its lib, or built
    /// against it. May be repeated; needs no root.
    Install(install::Options),
    /// The other process of bench and selftest
    #[command(hide = true)]
    Peer(link::PeerOptions),
    /// The process that copies packets while they come
    #[command(hide = true)]
    Follow(follow::FollowOptions),
}

fn main() -> ExitCode {
    let matches = manual::command_line().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        Command::Run(options) => return run::run(&options),
        Command::Sock(options) => return sock::run(&options),
        Command::Devinfo(options) => devinfo::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::ExsBlast(options) => bench::exs::run(&options),
        Command::Selftest(options) => selftest::run(&options),
        Command::Doctor(options) => return doctor::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Group(options) => group::run(&options),
        Command::Install(options) => install::run(&options),
        Command::Peer(options) => link::peer(&options),
        Command::Follow(options) => follow::run(&options),
    };
    outcome.unwrap_or_else(|message| {
        eprintln!("softrnic: {message}");
        ExitCode::FAILURE
    })
}
