//! `softrnic run --pcap -`: a process beside the program that copies the capture to a pipe while it grows.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, PidfdFlags, pidfd_open, setsid};
use taps::pcap::Stream;

use crate::fixture::text;

/// How long packets may wait until they are copied.
const PAUSE: Duration = Duration::from_millis(20);

/// Copies a capture while it grows.
#[derive(Args)]
pub struct FollowOptions {
    /// The capture; it is removed at the end
    file: PathBuf,
    /// The process at whose end it may end
    pid: i32,
    /// Where it is copied to, instead of the standard output
    #[arg(long)]
    to: Option<PathBuf>,
    /// Let another process do it
    #[arg(long)]
    leave: bool,
}

/// Start the process beside this one; the result is the file that it follows. The program that this process is about to
/// become must not find a child that it does not know.
pub fn start(to: Option<&Path>) -> Result<PathBuf, String> {
    let name = format!("softrnic-pcap-{}-{:08x}", std::process::id(), crate::run::rand());
    let make = |file: &PathBuf| OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map(drop);
    let mut made = Err("no directory for temporary files".to_owned());
    for file in view::place::bases(report::Settings::of_process()).iter().map(|base| base.join(&name)) {
        made = make(&file).map(|()| file).map_err(text);
        if made.is_ok() {
            break;
        }
    }
    let file = made?;
    taps::pcap::prepare(&file).map_err(text)?;
    let pid = std::process::id() as i32;
    let status = follower(&file, pid, to)?.arg("--leave").status().map_err(text)?;
    if status.success() { Ok(file) } else { Err("the process that copies packets cannot be started".to_owned()) }
}

fn follower(file: &Path, pid: i32, to: Option<&Path>) -> Result<Command, String> {
    let mut command = Command::new(std::env::current_exe().map_err(text)?);
    command.stdin(Stdio::null()).arg("follow").arg(file).arg(pid.to_string());
    if let Some(to) = to {
        command.arg("--to").arg(to).stdout(Stdio::null());
    }
    Ok(command)
}

/// Run as that process.
pub fn run(options: &FollowOptions) -> Result<ExitCode, String> {
    if options.leave {
        follower(&options.file, options.pid, options.to.as_deref())?.spawn().map_err(text)?;
        return Ok(ExitCode::SUCCESS);
    }
    // A signal from the keyboard that ends the program must not take its last packets.
    let _ = setsid();
    let done = follow(options);
    let _ = std::fs::remove_file(&options.file);
    match done {
        // The reader has closed the pipe, and needs no more packets.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        done => done.map(|()| ExitCode::SUCCESS).map_err(|error| format!("packets are no longer copied: {error}")),
    }
}

fn follow(options: &FollowOptions) -> io::Result<()> {
    let program = Pid::from_raw(options.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let mut stream = Stream::open(&options.file)?;
    let mut to = match &options.to {
        Some(path) => OpenOptions::new().write(true).open(path)?, // waits for the reader of a FIFO
        None => File::from(io::stdout().as_fd().try_clone_to_owned()?),
    };
    loop {
        let over = program.as_ref().is_none_or(is_over) && stream.is_idle();
        if let Err(error) = stream.copy(&mut to) {
            let _ = stream.close();
            return Err(error);
        }
        if over {
            return Ok(());
        }
        sleep(PAUSE);
    }
}

/// True if the process has ended.
fn is_over(pidfd: &impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
}
