//! The other process: the test program again, told by its environment which part to play.
//!
//! The two talk over a stream socket, which is the other process's standard input: the test harness writes to standard
//! output, and nobody else uses the input.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wait::PATIENCE;

/// Says which part the process plays.
const VARIABLE: &str = "SOFTRNIC_CONFORMANCE_PART";

/// One end of the conversation: values as lines of JSON.
pub struct Wire {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Wire {
    /// Over a connected socket.
    ///
    /// # Panics
    /// If there are no descriptors left.
    pub fn new(stream: UnixStream) -> Self {
        // Whoever waits longer than a hang is judged by waits for a process that hangs.
        // The more there is to do, the longer nothing is said.
        let factor = crate::setting("SOFTRNIC_LOAD_FACTOR").unwrap_or(1).clamp(1, 1000) as u32;
        stream.set_read_timeout(Some(PATIENCE * 2 * factor)).expect("a socket");
        let lines = BufReader::new(stream.try_clone().expect("a descriptor"));
        Wire { stream, lines }
    }

    /// In the other process: the part that it plays and the wire to the test; `None` in the test itself.
    pub fn to_test() -> Option<(String, Wire)> {
        let part = std::env::var(VARIABLE).ok()?;
        let input = std::io::stdin().as_fd().try_clone_to_owned().expect("standard input");
        Some((part, Wire::new(input.into())))
    }

    /// Tells something.
    ///
    /// # Panics
    /// If the other process is gone.
    pub fn tell<T: Serialize>(&mut self, value: &T) {
        let mut line = serde_json::to_vec(value).expect("plain data");
        line.push(b'\n');
        self.stream.write_all(&line).expect("the other process lives");
    }

    /// Hears something; `None` when the other process is gone.
    ///
    /// # Panics
    /// If it says nothing for long, or nonsense.
    pub fn try_hear<T: DeserializeOwned>(&mut self) -> Option<T> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("the other process says nothing: {error}"),
        }
    }

    /// Hears something.
    ///
    /// # Panics
    /// If the other process is gone or silent.
    pub fn hear<T: DeserializeOwned>(&mut self) -> T {
        self.try_hear().expect("the other process ended")
    }

    /// Tells, then hears: the other side does the same.
    pub fn exchange<T: Serialize, U: DeserializeOwned>(&mut self, value: &T) -> U {
        self.tell(value);
        self.hear()
    }
}

/// The other process, seen from the test. Killed when dropped.
pub struct Remote {
    /// The wire to it.
    pub wire: Wire,
    child: Child,
}

impl Remote {
    /// Starts this program again. `entry` is the name of the ignored test that plays parts; `part` which one.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn start(entry: &str, part: &str, env: &[(&str, &str)]) -> Remote {
        Remote::start_with(entry, part, env, Stdio::inherit())
    }

    /// As [`Remote::start`]; what it says on standard error is kept for [`Remote::errors`].
    ///
    /// # Panics
    /// If that is not possible.
    pub fn start_heard(entry: &str, part: &str, env: &[(&str, &str)]) -> Remote {
        Remote::start_with(entry, part, env, Stdio::piped())
    }

    /// As [`Remote::start`], by a program that is given this one as its last arguments, if there is one: `unshare -U`.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn start_by(words: &[&str], entry: &str, part: &str) -> Remote {
        let own = std::env::current_exe().expect("the path of this program");
        let command = match words {
            [] => Command::new(own),
            [program, words @ ..] => {
                let mut command = Command::new(program);
                command.args(words).arg(own);
                command
            }
        };
        Remote::spawn(command, entry, part, &[], Stdio::inherit())
    }

    fn start_with(entry: &str, part: &str, env: &[(&str, &str)], errors: Stdio) -> Remote {
        let own = std::env::current_exe().expect("the path of this program");
        Remote::spawn(Command::new(own), entry, part, env, errors)
    }

    fn spawn(mut command: Command, entry: &str, part: &str, env: &[(&str, &str)], errors: Stdio) -> Remote {
        let (near, remote) = UnixStream::pair().expect("a pair of sockets");
        let child = command
            .args(["--exact", entry, "--ignored", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, part)
            .envs(env.iter().copied())
            .stdin(Stdio::from(OwnedFd::from(remote)))
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .expect("a second process");
        Remote { wire: Wire::new(near), child }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said on standard error until its end, if it was started to be heard.
    pub fn errors(&mut self) -> String {
        let mut said = Vec::new();
        if let Some(errors) = &mut self.child.stderr {
            let _ = errors.read_to_end(&mut said);
        }
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is gone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("the process is a child of ours");
        if signal == rustix::process::Signal::STOP {
            crate::wait::until("the other process stops", || is_stopped(self.pid()).then_some(()));
        }
    }

    /// `kill -9`, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end; true if it ended well.
    pub fn ended_well(&mut self) -> bool {
        let ended = crate::wait::until("the end of the other process", || self.child.try_wait().expect("a child"));
        ended.success()
    }
}

/// True if all threads of a process are stopped: each stops by itself, some time after the signal was sent.
pub fn is_stopped(pid: u32) -> bool {
    let stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
    };
    let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process of ours").flatten();
    tasks.all(stopped)
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.kill();
    }
}
