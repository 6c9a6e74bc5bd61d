//! The processes that a measurement needs. Each ends with the value that started it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use group::{Client, ClientOptions, Operation};
use limits::{Buffer, Shared, chain};
use rdma::{Access, QpCap, QpOptions, QpType};
use rustix::process::{Pid, Signal, kill_process};

use super::parts::{Part, PartOptions};
use super::work::{Bare, Copies, FanOut, Nic, OnPath};
use crate::fixture::{DeviceOptions, Endpoint, Fixture, PORT, text};
use crate::group::place::PlaceOptions;

/// Bytes of a region, and of the client's buffer.
pub const REGION: usize = 64 << 10;

/// A process of this program.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(args: &[String], stdin: Stdio, stdout: Stdio) -> Result<Process, String> {
        let program = std::env::current_exe().map_err(text)?;
        let started = Command::new(program).arg("group").args(args).stdin(stdin).stdout(stdout).spawn();
        started.map(Process).map_err(|error| format!("cannot start a process: {error}"))
    }

    pub fn part(part: Part, options: &PartOptions, stdin: Stdio, stdout: Stdio) -> Result<Process, String> {
        Process::start(&options.to_args(part), stdin, stdout)
    }

    /// Write to its standard input.
    pub fn tell(&mut self, text: &str) -> Result<(), String> {
        self.0.stdin.as_mut().ok_or("no input")?.write_all(text.as_bytes()).map_err(crate::fixture::text)
    }

    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).ok_or("no such process")?;
        kill_process(pid, signal).map_err(text)
    }

    pub fn lines(&mut self) -> Result<BufReader<ChildStdout>, String> {
        self.0.stdout.take().map(BufReader::new).ok_or_else(|| "its output is taken".into())
    }
}

/// The next line that a process says.
pub fn line(from: &mut BufReader<ChildStdout>) -> Result<String, String> {
    let mut line = String::new();
    match from.read_line(&mut line).map_err(text)? {
        0 => Err("a process of the measurement ended".into()),
        _ => Ok(line.trim().to_owned()),
    }
}

/// Files for regions, in a folder of their own.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Result<Folder, String> {
        let path = std::env::temp_dir().join(format!("softrnic-group-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Folder(path))
    }

    /// The file of a replica.
    pub fn file(&self, hop: usize) -> PathBuf {
        self.0.join(format!("region.{hop}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where things run.
#[derive(Clone)]
pub struct Stand {
    pub device: DeviceOptions,
    /// The replicas' core.
    pub core: Option<usize>,
}

/// Servers that run.
pub struct Servers {
    _processes: Vec<Process>,
    /// Where to connect: the first of the chain, or all of them.
    pub at: Vec<SocketAddr>,
    /// Core and priority.
    pub place: String,
}

impl Stand {
    pub fn part(&self) -> PartOptions {
        PartOptions { core: self.core, device: self.device.clone(), ..PartOptions::default() }
    }

    /// Start a process with replicas.
    fn serve(&self, place: &PlaceOptions, more: &[String]) -> Result<(Process, Vec<SocketAddr>, String), String> {
        let region = REGION.to_string();
        let mut args: Vec<String> = ["serve", "--port", "0", "--region", &region].map(str::to_owned).into();
        args.extend(PlaceOptions { core: self.core, ..place.clone() }.to_args());
        args.extend(self.device.to_args());
        args.extend_from_slice(more);
        let mut process = Process::start(&args, Stdio::null(), Stdio::piped())?;
        let said = line(&mut process.lines()?)?;
        let mut words = said.split("; ").skip(1);
        let got = words.next().unwrap_or_default().to_owned();
        let ports = words.next().and_then(|word| word.strip_prefix("port ")).unwrap_or_default();
        let at: Result<Vec<u16>, _> = ports.split(',').map(str::parse).collect();
        let at = at.map_err(|_| format!("a server says {said:?}"))?;
        Ok((process, at.into_iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect(), got))
    }

    /// One server for all replicas; their regions are files if there is a folder.
    pub fn server(
        &self,
        replicas: usize,
        place: &PlaceOptions,
        apart: bool,
        files: Option<&Folder>,
    ) -> Result<Servers, String> {
        let mut more = vec!["--replicas".to_owned(), replicas.to_string()];
        if apart {
            more.push("--apart".into());
        }
        if files.is_none() {
            more.push("--migrate".into());
        }
        if let Some(folder) = files {
            more.extend(["--file".to_owned(), folder.0.join("region").display().to_string()]);
        }
        let (process, at, place) = self.serve(place, &more)?;
        Ok(Servers { _processes: vec![process], at, place })
    }

    /// A server for each replica.
    pub fn servers(&self, replicas: usize, place: &PlaceOptions) -> Result<Servers, String> {
        let mut all = Servers { _processes: Vec::new(), at: Vec::new(), place: String::new() };
        for _ in 0..replicas {
            let mut more = vec!["--migrate".to_owned()];
            more.extend(all.at.first().into_iter().flat_map(|at| ["--connect".to_owned(), at.to_string()]));
            let (process, at, place) = self.serve(place, &more)?;
            all._processes.push(process);
            (all.at, all.place) = (at, place);
        }
        Ok(all)
    }

    /// Processes that keep the replicas' core busy.
    pub fn busy(&self, count: u32) -> Result<Vec<Process>, String> {
        (0..count).map(|_| Process::part(Part::Busy, &self.part(), Stdio::null(), Stdio::null())).collect()
    }

    /// Applications that look at their replica's region now and then.
    pub fn applications(&self, replicas: usize, files: &Folder) -> Result<Vec<Process>, String> {
        let one = |hop| {
            let options = PartOptions { file: Some(files.file(hop)), ..self.part() };
            Process::part(Part::Look, &options, Stdio::null(), Stdio::null())
        };
        (0..replicas).map(one).collect()
    }

    /// Applications on the path of servers that are apart; the client's work with them.
    pub fn on_path(
        &self,
        fixture: &Fixture,
        servers: &Servers,
        files: &Folder,
        size: usize,
        window: u32,
    ) -> Result<(OnPath, Vec<Process>), String> {
        let (to, mut before) = UnixStream::pair().map_err(text)?;
        let mut processes = Vec::new();
        for hop in 0..servers.at.len() {
            let (after, here) = UnixStream::pair().map_err(text)?;
            let options = PartOptions {
                file: Some(files.file(hop)),
                next: servers.at.get(hop + 1).copied(),
                window: Some(window),
                ..self.part()
            };
            let (stdin, stdout) = (Stdio::from(OwnedFd::from(before)), Stdio::from(OwnedFd::from(here)));
            processes.push(Process::part(Part::Application, &options, stdin, stdout)?);
            before = after;
        }
        before.set_nonblocking(true).map_err(text)?;
        let first = nic(fixture, servers, size, window)?;
        Ok((OnPath { first, size: size as u64, to, from: before }, processes))
    }

    /// WRITEs to each of so many replicas.
    pub fn fan_out(
        &self,
        fixture: &Fixture,
        replicas: usize,
        size: usize,
        window: u32,
    ) -> Result<(FanOut, Process), String> {
        let options = PartOptions { replicas: Some(replicas), ..self.part() };
        let mut process = Process::part(Part::Target, &options, Stdio::piped(), Stdio::piped())?;
        let theirs: Vec<Endpoint> = serde_json::from_str(&line(&mut process.lines()?)?).map_err(text)?;
        let cq = fixture.context.create_cq(window * replicas as u32 + 8, None, 0).map_err(text)?;
        let buffer = fixture.pd.reg_mr(REGION, Access::LOCAL_WRITE).map_err(text)?;
        let (mut qps, mut ours) = (Vec::new(), Vec::new());
        for peer in &theirs {
            let (qp, own) = endpoint(fixture, &cq, window + 8, 0, 0)?;
            qp.connect(QpType::Rc, &fixture.connect(own.psn, peer)).map_err(text)?;
            qps.push(qp);
            ours.push(own);
        }
        let mut told = serde_json::to_string(&ours).map_err(text)?;
        told.push('\n');
        process.tell(&told)?;
        let places = theirs.iter().map(|peer| (peer.addr, peer.rkey)).collect();
        let completed = vec![0; replicas];
        Ok((FanOut { qps, cq, buffer, places, size, completed, done: 0 }, process))
    }

    /// A chain without a device: a process that spins, or one for each replica.
    pub fn bare(&self, replicas: usize, size: usize, each: bool) -> Result<(Bare, Vec<Process>), String> {
        let (shared, memory) = Shared::create(chain::bytes(replicas, size)).map_err(text)?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()));
        let options = PartOptions { file: Some(path), replicas: Some(replicas), size: Some(size), ..self.part() };
        let mut processes = Vec::new();
        if !each {
            let mut process = Process::part(Part::Spin, &options, Stdio::null(), Stdio::piped())?;
            // It has opened the memory, whose descriptor is closed here.
            line(&mut process.lines()?)?;
            processes.push(process);
            return Ok((Bare::One { shared, size, asked: 0, ended: 0 }, processes));
        }
        let bell = || chain::sleeping_bell().map_err(text);
        let to = bell()?;
        let mut before = to.try_clone().map_err(text)?;
        for hop in 0..replicas {
            let after = match hop + 1 == replicas {
                true => limits::wake::bell().map_err(text)?,
                false => bell()?,
            };
            let stdout = Stdio::from(after.try_clone().map_err(text)?);
            let options = PartOptions { hop: Some(hop), ..options.clone() };
            processes.push(Process::part(Part::Relay, &options, Stdio::from(before), stdout)?);
            before = after;
        }
        let mut bare = Bare::Each { to, from: before, ended: 0 };
        // The first round shows that all have opened the memory.
        super::work::Work::begin(&mut bare)?;
        super::work::Work::ended(&mut bare)?;
        Ok((bare, processes))
    }
}

/// A queue pair, and how the other side finds it and a region.
pub fn endpoint(
    fixture: &Fixture,
    cq: &std::sync::Arc<rdma::Cq>,
    sends: u32,
    addr: u64,
    rkey: u32,
) -> Result<(std::sync::Arc<rdma::Qp>, Endpoint), String> {
    let wanted = QpCap { max_send_wr: sends, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (Some(cq), Some(cq));
    let (cap, qp_type) = (fixture.cap(wanted)?, QpType::Rc);
    let qp =
        fixture.pd.create_qp(&QpOptions { qp_type, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: false });
    let qp = qp.map_err(text)?;
    qp.init(QpType::Rc, PORT, Access::LOCAL_WRITE | Access::REMOTE_WRITE, 0).map_err(text)?;
    let qpn = qp.number();
    let gid = fixture.gid.0;
    let own = Endpoint { qpn, sender_qpn: qpn, gid, lid: fixture.lid, psn: qpn & 0xff_ffff, addr, rkey, srqn: 0 };
    Ok((qp, own))
}

/// A client of the first server.
pub fn nic(fixture: &Fixture, servers: &Servers, size: usize, window: u32) -> Result<Nic, String> {
    let buffer = fixture.pd.reg_mr(REGION, Access::LOCAL_WRITE).map_err(text)?;
    let options = ClientOptions { window, ..ClientOptions::default() };
    let to = *servers.at.first().ok_or("no server")?;
    let client = Client::connect(&fixture.context, &fixture.pd, to, buffer, &options).map_err(text)?;
    Ok(Nic { client, op: Operation::Write { offset: 0, size: size as u64 } })
}

/// Copies to so many buffers.
pub fn copies(replicas: usize, size: usize) -> Result<Copies, String> {
    let buffer = || Buffer::new(size).map_err(text);
    let to: Result<Vec<Buffer>, String> = (0..replicas).map(|_| buffer()).collect();
    Ok(Copies { from: buffer()?, to: to?, size, done: 0 })
}

/// What a path is in an argument.
pub fn shown(path: &Path) -> String {
    path.display().to_string()
}
