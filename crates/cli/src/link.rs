//! The other process: this program once more, which gets its work in lines of JSON over a socket pair.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fixture::{DeviceOptions, text};

/// The longest silence between the two that is no failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// The part of the other process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Role {
    /// The far side of the bench.
    Bench,
    /// The first process of one of several pairs.
    BenchPair,
    /// The far side of exs-blast.
    ExsBlast,
    /// The far side of the selftest.
    Selftest,
}

/// The other process of bench and selftest, which reads its work from its standard input, a socket.
#[derive(Args)]
pub struct PeerOptions {
    role: Role,
    #[command(flatten)]
    device: DeviceOptions,
}

/// Run as the other process.
pub fn peer(options: &PeerOptions) -> Result<ExitCode, String> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().map_err(text)?;
    let mut link = Link::new(UnixStream::from(stdin))?;
    // The first process reports a failure here: it sees the end of the stream, and this text.
    match options.role {
        Role::Bench => crate::bench::peer(&mut link, &options.device),
        Role::BenchPair => crate::bench::pair(&mut link, &options.device),
        Role::ExsBlast => crate::bench::exs::serve(&mut link, &options.device),
        Role::Selftest => crate::selftest::peer(&mut link, &options.device),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Messages to and from the other process.
pub struct Link {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Link {
    fn new(stream: UnixStream) -> Result<Self, String> {
        stream.set_read_timeout(Some(PATIENCE)).map_err(text)?;
        Ok(Link { writer: stream.try_clone().map_err(text)?, reader: BufReader::new(stream) })
    }

    /// Send a message.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(text)?;
        line.push(b'\n');
        self.writer.write_all(&line).map_err(|error| format!("the other process does not listen: {error}"))
    }

    /// The next message; `None` at the end.
    pub fn receive_or_end<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => serde_json::from_str(&line).map(Some).map_err(text),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                Err(format!("the other process was silent for {} s", PATIENCE.as_secs()))
            }
            Err(error) => Err(format!("the other process: {error}")),
        }
    }

    /// The next message, without a limit of time.
    pub fn receive_at_last<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        self.writer.set_read_timeout(None).map_err(text)?;
        let message = self.receive();
        self.writer.set_read_timeout(Some(PATIENCE)).map_err(text)?;
        message
    }

    /// True if a message has begun to come, or the other process has ended.
    pub fn is_readable(&self) -> Result<bool, String> {
        let mut fds = [PollFd::new(&self.writer, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(ready) => Ok(ready > 0 || !self.reader.buffer().is_empty()),
            // The caller looks again.
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(text(error)),
        }
    }

    /// The next message.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        self.receive_or_end()?.ok_or_else(|| "the other process has ended".into())
    }
}

/// The other process, seen from the first. Killed when dropped.
pub struct Other {
    child: Child,
    /// Messages to and from it.
    pub link: Link,
}

impl Other {
    /// Start the other process.
    pub fn start(role: Role, device: &DeviceOptions) -> Result<Self, String> {
        let (ours, theirs) = UnixStream::pair().map_err(text)?;
        let name = role.to_possible_value().expect("no role is skipped");
        let program = std::env::current_exe().map_err(text)?;
        let child = Command::new(&program)
            .args(["peer", name.get_name()])
            .args(device.to_args())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start {} again: {error}", program.display()))?;
        Ok(Other { child, link: Link::new(ours)? })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It ends by itself when the stream ends, unless it hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_readable_once_something_comes_or_its_other_end_is_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut link, mut other) = (Link::new(ours).unwrap(), Link::new(theirs).unwrap());
        assert!(!link.is_readable().unwrap());
        (1..=2).for_each(|number| other.send(&number).unwrap());
        assert!(link.is_readable().unwrap());
        assert_eq!(link.receive(), Ok(1));
        assert!(link.is_readable().unwrap(), "the second message was read with the first one");
        assert_eq!(link.receive(), Ok(2));
        assert!(!link.is_readable().unwrap());
        drop(other);
        assert!(link.is_readable().unwrap());
    }
}
