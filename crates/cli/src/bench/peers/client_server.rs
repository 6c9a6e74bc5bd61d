//! A server and a client: started, waited for, and ended.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::bench::pin;
use crate::fixture::text;

/// The longest time for one run: on a busy machine a ping-pong makes a step per turn of the scheduler, and takes longer
/// than 30 s.
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest time from a program's end to the end of its output.
const SOON: Duration = Duration::from_secs(2);

/// The command of a side. `{port}` in its arguments is a port that is free.
#[derive(Clone, Debug)]
pub struct Side {
    /// The program and its arguments.
    pub args: Vec<String>,
    /// The variables of its environment.
    pub environment: &'static [(&'static str, &'static str)],
}

impl Side {
    /// A side from a line whose words have no spaces.
    pub fn new(line: &str) -> Self {
        Side { args: line.split_whitespace().map(str::to_owned).collect(), environment: &[] }
    }

    /// This side, run by another command: `softrnic run --`.
    pub fn under(mut self, prefix: &[String]) -> Self {
        self.args.splice(0..0, prefix.iter().cloned());
        self
    }

    /// This side, with variables.
    pub fn with(mut self, environment: &'static [(&'static str, &'static str)]) -> Self {
        self.environment = environment;
        self
    }

    fn command(&self, port: u16) -> Command {
        let mut args = self.args.iter().map(|arg| arg.replace("{port}", &port.to_string()));
        let mut command = Command::new(args.next().unwrap_or_default());
        command.args(args).envs(self.environment.iter().copied()).stdin(Stdio::null());
        command
    }
}

/// True if the program is in `PATH`.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A child process, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Run both sides. The result is the client's output.
pub fn run(cores: Option<[usize; 2]>, server: &Side, client: &Side) -> Result<String, String> {
    let port = free_port()?;
    // A child runs on the cores of the thread that starts it.
    let start = |core: usize, mut command: Command| {
        if let Some(cores) = cores {
            pin::pin(cores[core]);
        }
        command.spawn()
    };
    let mut command = server.command(port);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let name = server.args.iter().find(|arg| arg.contains("ib_")).or(server.args.first()).cloned().unwrap_or_default();
    let mut server = Running(start(1, command).map_err(|error| format!("cannot start {name}: {error}"))?);
    if let Some([ours, _]) = cores {
        pin::pin(ours);
    }
    let deadline = Instant::now() + PATIENCE;
    while !listening(port) {
        if server.0.try_wait().map_err(text)?.is_some() || Instant::now() > deadline {
            return Err(format!("the server of {name} does not listen"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut command = client.command(port);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let client = start(0, command).map_err(|error| format!("cannot start {name}: {error}"))?;
    let told = collect(client, deadline)?;
    // Most servers end with their client; the others are ended now.
    let soon = Instant::now() + Duration::from_millis(200);
    while server.0.try_wait().map_err(text)?.is_none() && Instant::now() < soon {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(told)
}

/// Collect a child's output until it ends. A test of latency prints every sample, which is more than fits into a pipe.
fn collect(child: Child, deadline: Instant) -> Result<String, String> {
    let mut child = Running(child);
    let [out, errors] = [reader(child.0.stdout.take()), reader(child.0.stderr.take())];
    let status = loop {
        match child.0.try_wait().map_err(text)? {
            Some(status) => break status,
            None if Instant::now() > deadline => return Err(format!("no end after {} s", PATIENCE.as_secs())),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // The pipe is not read to its end: a process that has inherited it may hold it open for long.
    let told = |pieces: Receiver<Vec<u8>>| {
        let until = Instant::now() + SOON;
        let next = || pieces.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
        let bytes: Vec<u8> = std::iter::from_fn(next).flatten().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let out = told(out);
    if status.success() {
        return Ok(out);
    }
    let errors = told(errors);
    let said = errors.lines().chain(out.lines()).find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    Err(format!("{status}; it said: {}", said.trim()))
}

/// Read the output of a pipe, piece by piece, on a thread that ends with it.
fn reader(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let Some(mut pipe) = pipe else { return };
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut piece) {
            if sender.send(piece[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(text)?;
    Ok(listener.local_addr().map_err(text)?.port())
}

/// True if a server listens. This is looked up, not tried: these servers serve one client only.
fn listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|table| std::fs::read_to_string(table).is_ok_and(|table| table.lines().any(|line| listens(line, port))))
}

/// True for a line of `/proc/net/tcp` about a listener: number, local address and port, remote ones, state (0A:
/// listening).
fn listens(line: &str, port: u16) -> bool {
    let mut fields = line.split_whitespace().skip(1);
    let local = fields.next().and_then(|address| address.rsplit(':').next());
    local.and_then(|local| u16::from_str_radix(local, 16).ok()) == Some(port) && fields.nth(1) == Some("0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_seen() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listening(port));
        drop(listener);
        // Between fork and exec, a child that another test starts has it too.
        let patience = Instant::now() + Duration::from_secs(20);
        while listening(port) {
            assert!(Instant::now() < patience, "still there");
            std::thread::sleep(Duration::from_millis(5));
        }
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000";
        assert!(listens(line, 8080) && !listens(line, 8081) && !listens(&line.replace("0A", "01"), 8080));
    }

    #[test]
    fn what_a_client_says_is_told() {
        let listener = "import socket,sys,time; s=socket.socket(); s.bind(('127.0.0.1',int(sys.argv[1]))); \
            s.listen(); time.sleep(20)";
        let side = |program: &str, args: &[&str]| Side {
            args: std::iter::once(program).chain(args.iter().copied()).map(str::to_owned).collect(),
            environment: &[("SAID", "hello")],
        };
        if !installed("python3") {
            return;
        }
        let server = side("python3", &["-c", listener, "{port}"]);
        let told = run(None, &server, &side("sh", &["-c", "echo $SAID {port}"])).unwrap();
        assert!(told.starts_with("hello "), "{told}");
        let told = run(None, &server, &side("sh", &["-c", "echo $SAID; sleep 20 &"])).unwrap();
        assert_eq!(told, "hello\n", "a child of the client's still has the pipe");
        let error = run(None, &server, &side("sh", &["-c", "echo wrong >&2; exit 3"])).unwrap_err();
        assert!(error.contains("wrong") && error.contains('3'), "{error}");
        let error = run(None, &side("true", &[]), &side("true", &[])).unwrap_err();
        assert!(error.contains("does not listen"), "{error}");
    }
}
