//! The other process: the test program again, which finds its part in its environment.
//!
//! The two communicate over a stream socket, which is the other process's standard input: the test harness writes to
//! standard output, and no other code uses the input.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wait::PATIENCE;

/// The variable that names the part of the process.
const VARIABLE: &str = "SOFTRNIC_CONFORMANCE_PART";

/// One end of the connection: values as lines of JSON.
pub struct Wire {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Wire {
    /// A wire over a connected socket.
    ///
    /// # Panics
    /// If there are no descriptors left.
    pub fn new(stream: UnixStream) -> Self {
        // A wait longer than a hang counts as one. The more messages there are, the longer a process is silent.
        let factor = crate::setting("SOFTRNIC_LOAD_FACTOR").unwrap_or(1).clamp(1, 1000) as u32;
        stream.set_read_timeout(Some(PATIENCE * 2 * factor)).expect("a socket");
        let lines = BufReader::new(stream.try_clone().expect("a descriptor"));
        Wire { stream, lines }
    }

    /// In the other process: its part and the wire to the test; `None` in the test itself.
    pub fn to_test() -> Option<(String, Wire)> {
        let part = std::env::var(VARIABLE).ok()?;
        let input = std::io::stdin().as_fd().try_clone_to_owned().expect("standard input");
        Some((part, Wire::new(input.into())))
    }

    /// Send a value.
    ///
    /// # Panics
    /// If the other process is gone.
    pub fn tell<T: Serialize>(&mut self, value: &T) {
        let mut line = serde_json::to_vec(value).expect("plain data");
        line.push(b'\n');
        self.stream.write_all(&line).expect("the other process lives");
    }

    /// Receive a value; `None` when the other process is gone.
    ///
    /// # Panics
    /// If it sends nothing for long, or no valid value.
    pub fn try_hear<T: DeserializeOwned>(&mut self) -> Option<T> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("the other process says nothing: {error}"),
        }
    }

    /// Receive a value.
    ///
    /// # Panics
    /// If the other process is gone or silent.
    pub fn hear<T: DeserializeOwned>(&mut self) -> T {
        self.try_hear().expect("the other process ended")
    }

    /// Send, then receive, as the other side does.
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
    /// Start this program again. `entry` is the name of the ignored test that plays parts; `part` names the part.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn start(entry: &str, part: &str, env: &[(&str, &str)]) -> Remote {
        Remote::start_with(entry, part, env, Stdio::inherit())
    }

    /// Start this program again, as [`Remote::start`]; its standard error is kept for [`Remote::errors`].
    ///
    /// # Panics
    /// If that is not possible.
    pub fn start_heard(entry: &str, part: &str, env: &[(&str, &str)]) -> Remote {
        Remote::start_with(entry, part, env, Stdio::piped())
    }

    /// Start this program again, as [`Remote::start`], by a program that gets this one as its last arguments, if there
    /// is one: `unshare -U`.
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

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error until its end, if it was started by [`Remote::start_heard`].
    pub fn errors(&mut self) -> String {
        let mut said = Vec::new();
        if let Some(errors) = &mut self.child.stderr {
            let _ = errors.read_to_end(&mut said);
        }
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Send it a signal.
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

    /// Send it SIGKILL, and wait for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Wait for its end; true if it ended with success.
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
