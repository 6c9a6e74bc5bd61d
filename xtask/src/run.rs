//! Programs that are run with output to files, a limit on the time, and on a hang the stacks of everything that still
//! runs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// The time at which the whole run has to be over. Unset: never.
static END: OnceLock<Instant> = OnceLock::new();

/// Bound the whole run: programs that run at `end` are killed, and later ones are not started, so that the report still
/// comes and shows what took so long.
pub fn end_at(end: Instant) {
    let _ = END.set(end);
}

/// True once the time of the whole run is used up.
pub fn is_over() -> bool {
    END.get().is_some_and(|end| Instant::now() >= *end)
}

/// The reason why programs are not started once [`is_over`].
pub const OVER: &str = "not run: the time for the whole run is used up (`--minutes`)";

/// A program to run, and the place of its output: `LOG.out`, `LOG.err`, and `LOG.stacks` if it hangs.
#[derive(Debug)]
pub struct Program {
    command: Command,
    log: PathBuf,
}

/// The result of a program.
#[derive(Debug)]
pub struct Finished {
    /// The exit status; `None`: it had to be killed.
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
    pub log: PathBuf,
}

impl Finished {
    pub fn ok(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// One line for the report: how it ended, and the last line that looks like a reason.
    pub fn verdict(&self) -> String {
        let how = match self.status {
            None => "hung and was killed".to_owned(),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (None, Some(signal)) => format!("killed by signal {signal}"),
                (None, None) => status.to_string(),
            },
        };
        let last = [&self.stderr, &self.stdout]
            .into_iter()
            .find_map(|text| text.lines().rev().find(|line| !line.trim().is_empty()));
        match last {
            Some(line) => format!("{how}; last line: {}", shorten(line.trim(), 160)),
            None => format!("{how}; no output"),
        }
    }
}

impl Program {
    pub fn new(program: impl AsRef<OsStr>, log: impl Into<PathBuf>) -> Self {
        Self { command: Command::new(program), log: log.into() }
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Remove a variable that this process has itself.
    pub fn without(mut self, key: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(key);
        self
    }

    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Start it in a process group of its own, so that a hang can be ended with all its children.
    pub fn spawn(mut self) -> io::Result<Running> {
        if is_over() {
            return Err(io::Error::other(OVER));
        }
        if let Some(folder) = self.log.parent() {
            fs::create_dir_all(folder)?;
        }
        self.command
            .stdin(Stdio::null())
            .stdout(File::create(with(&self.log, "out"))?)
            .stderr(File::create(with(&self.log, "err"))?)
            .process_group(0);
        let shown = format!("{:?}", self.command);
        fs::write(with(&self.log, "cmd"), format!("{shown}\n"))?;
        let _ = fs::remove_file(with(&self.log, "stacks"));
        let child = self.command.spawn().map_err(|e| io::Error::new(e.kind(), format!("{shown}: {e}")))?;
        Ok(Running { child, log: self.log, status: None })
    }

    /// Run it to its end or to `limit`.
    pub fn run(self, limit: Duration) -> io::Result<Finished> {
        let mut running = self.spawn()?;
        running.wait(Instant::now() + limit)?;
        running.finish()
    }
}

/// A program under way. Dropping it kills the rest of its group.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
    status: Option<ExitStatus>,
}

impl Running {
    /// True when it has ended.
    pub fn ended(&mut self) -> io::Result<bool> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status.is_some())
    }

    /// True when it has ended before the deadline.
    pub fn wait(&mut self, deadline: Instant) -> io::Result<bool> {
        let deadline = END.get().map_or(deadline, |end| deadline.min(*end));
        loop {
            if self.ended()? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            // Fine enough for hundreds of runs of a tenth of a second, and no load on a machine with two cores.
            sleep(Duration::from_millis(4));
        }
    }

    /// Its process number, which is its group's.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// End a program that does not end by itself, and collect its output.
    pub fn stop(mut self) -> io::Result<Finished> {
        self.kill();
        self.finish()
    }

    /// Collect its output. If it still runs, its stacks are taken and it is killed with its group.
    pub fn finish(mut self) -> io::Result<Finished> {
        if !self.ended()? {
            let stacks = stacks_of_group(self.child.id());
            fs::write(with(&self.log, "stacks"), stacks)?;
        }
        self.kill();
        Ok(Finished {
            status: self.status,
            stdout: text(&with(&self.log, "out")),
            stderr: text(&with(&self.log, "err")),
            log: self.log.clone(),
        })
    }

    fn kill(&mut self) {
        // The group may outlive its leader: a forgotten child would disturb the next case.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if self.status.is_none() {
            let _ = self.child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `path.ending`, also when `path` has dots of its own.
pub fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

/// A file's text, with any bytes; empty if it is not there.
fn text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The first `max` characters.
pub fn shorten(line: &str, max: usize) -> &str {
    line.char_indices().nth(max).map_or(line, |(end, _)| &line[..end])
}

/// The stacks of every thread of every process in the group, by gdb; without gdb, the state that the kernel shows.
fn stacks_of_group(group: u32) -> String {
    let mut out = String::new();
    for pid in members(group) {
        let name = text(Path::new(&format!("/proc/{pid}/cmdline"))).replace('\0', " ");
        out.push_str(&format!("== {pid}: {name}\n"));
        let gdb = Command::new("timeout")
            .args(["20", "gdb", "-batch", "-nx", "-p", &pid.to_string(), "-ex", "thread apply all bt 24"])
            .stdin(Stdio::null())
            .output();
        match gdb {
            Ok(found) if found.status.success() => out.push_str(&String::from_utf8_lossy(&found.stdout)),
            _ => {
                for item in ["status", "wchan", "stack"] {
                    out.push_str(&format!("-- {item}\n{}\n", text(Path::new(&format!("/proc/{pid}/{item}")))));
                }
            }
        }
    }
    out
}

/// The processes of a group. The group's number is the third field behind the name's closing parenthesis in `stat`.
fn members(group: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let stat = text(Path::new(&format!("/proc/{pid}/stat")));
            let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            fields.split_whitespace().nth(2).and_then(|g| g.parse().ok()) == Some(group)
        })
        .collect()
}

/// Look a program up in `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(program)).find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-test-{}", std::process::id())).join(name)
    }

    #[test]
    fn output_and_status_are_kept() {
        let done = Program::new("sh", log("echo")).args(["-c", "echo one; echo two >&2; exit 3"]);
        let done = done.run(Duration::from_secs(10)).unwrap();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("one\n", "two\n"));
        assert_eq!(done.verdict(), "exit status 3; last line: two");
    }

    #[test]
    fn a_hang_ends_with_stacks_and_without_children() {
        let started = Instant::now();
        let done = Program::new("sh", log("hang")).args(["-c", "sleep 1000 & sleep 1000"]);
        let done = done.run(Duration::from_millis(100)).unwrap();
        assert!(done.status.is_none() && done.verdict().starts_with("hung"));
        assert!(started.elapsed() < Duration::from_secs(60));
        let stacks = text(&with(&done.log, "stacks"));
        assert!(stacks.contains("sleep 1000"), "{stacks}");
    }
}
