//! What the other processes of a measurement do.

use std::io::{BufRead as _, Read as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use group::{Client, ClientOptions, Operation, Wait};
use limits::{Shared, chain};
use rdma::{Access, QpType};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::stand::{REGION, endpoint, shown};
use super::work::{Note, note, numbers};
use crate::bench::pin;
use crate::fixture::{DeviceOptions, Endpoint, text};

/// The kinds of processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Part {
    /// Computes all the time.
    Busy,
    /// An application that looks at its replica's region now and then.
    Look,
    /// An application that sends on what comes.
    Application,
    /// Has regions, to which the client WRITEs.
    Target,
    /// Answers messages.
    Answer,
    /// A bare chain that spins.
    Spin,
    /// A hop of a bare chain that sleeps.
    Relay,
}

/// Options of a part.
#[derive(Args, Clone, Debug)]
pub struct PartOptions {
    /// The part
    #[arg(value_enum)]
    pub part: Option<Part>,
    #[arg(long)]
    pub core: Option<usize>,
    #[arg(long)]
    pub file: Option<PathBuf>,
    #[arg(long)]
    pub next: Option<SocketAddr>,
    #[arg(long)]
    pub window: Option<u32>,
    #[arg(long)]
    pub replicas: Option<usize>,
    #[arg(long)]
    pub size: Option<usize>,
    #[arg(long)]
    pub hop: Option<usize>,
    #[arg(long)]
    pub looping: bool,
    #[command(flatten)]
    pub device: DeviceOptions,
}

impl Default for PartOptions {
    fn default() -> Self {
        let device = DeviceOptions { lib: None, device: None, gid: None };
        let (part, core, file, next, window, replicas, size, hop) = (None, None, None, None, None, None, None, None);
        PartOptions { part, core, file, next, window, replicas, size, hop, looping: false, device }
    }
}

impl PartOptions {
    /// These options as arguments.
    pub fn to_args(&self, part: Part) -> Vec<String> {
        let name = part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut args = vec!["part".to_owned(), name];
        let mut push = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                args.extend([name.to_owned(), value]);
            }
        };
        push("--core", self.core.map(|core| core.to_string()));
        push("--file", self.file.as_deref().map(shown));
        push("--next", self.next.map(|next| next.to_string()));
        push("--window", self.window.map(|window| window.to_string()));
        push("--replicas", self.replicas.map(|replicas| replicas.to_string()));
        push("--size", self.size.map(|size| size.to_string()));
        push("--hop", self.hop.map(|hop| hop.to_string()));
        args.extend(self.looping.then(|| "--looping".to_owned()));
        args.extend(self.device.to_args());
        args
    }

    fn memory(&self) -> Result<Shared, String> {
        let path = self.file.as_ref().ok_or("no memory")?;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).map_err(text)?;
        Shared::open(&file, chain::bytes(self.replicas.unwrap_or(1), self.size.unwrap_or(0))).map_err(text)
    }
}

/// Be a part, until the process that started this one ends.
pub fn part(options: &PartOptions) -> Result<ExitCode, String> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(text)?;
    if let Some(core) = options.core {
        pin::pin(core);
    }
    let replicas = options.replicas.unwrap_or(1);
    let size = options.size.unwrap_or(0);
    match options.part.ok_or("no part")? {
        Part::Busy => loop {
            limits::work(1 << 16);
        },
        Part::Look => look(options),
        Part::Application => application(options),
        Part::Target => target(options),
        Part::Answer => {
            super::beside::answer(&options.device.open()?, options.looping)?;
            Ok(ExitCode::SUCCESS)
        }
        Part::Spin => {
            let shared = options.memory()?;
            crate::out::say!("ready");
            chain::answer(&shared, replicas, size).map_err(text)?;
            Ok(ExitCode::SUCCESS)
        }
        Part::Relay => {
            let (shared, hop) = (options.memory()?, options.hop.unwrap_or(0));
            chain::relay(&shared, hop, size, std::io::stdin(), std::io::stdout()).map_err(text)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn look(options: &PartOptions) -> Result<ExitCode, String> {
    let path = options.file.as_ref().ok_or("no file")?;
    let file = std::fs::File::open(path).map_err(text)?;
    let mut bytes = [0; 64];
    loop {
        file.read_exact_at(&mut bytes, 0).map_err(text)?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sleep until notes come, gWRITE to the next replica what came to this one, and tell the next application.
fn application(options: &PartOptions) -> Result<ExitCode, String> {
    let mut next = None;
    let fixture;
    if let Some(to) = options.next {
        fixture = options.device.open()?;
        let path = options.file.as_ref().ok_or("no file")?;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).map_err(text)?;
        let buffer = fixture.pd.reg_mr_file(file.as_fd(), REGION, Access::LOCAL_WRITE).map_err(text)?;
        let settings = ClientOptions { window: options.window.unwrap_or(1), ..ClientOptions::default() };
        next = Some(Client::connect(&fixture.context, &fixture.pd, to, buffer, &settings).map_err(text)?);
    }
    let (mut stdin, stdout) = (std::io::stdin().lock(), std::io::stdout());
    let mut one = Note::default();
    loop {
        if stdin.read_exact(&mut one).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        let [count, size] = numbers(&one);
        if let Some(client) = &mut next {
            let ops = vec![Operation::Write { offset: 0, size }; count as usize];
            client.run(&ops, Wait::Event).map_err(text)?;
        }
        // One write: standard output's own buffer would split it behind a byte that is a newline.
        rustix::io::write(&stdout, &note(count, size)).map_err(text)?;
    }
}

fn target(options: &PartOptions) -> Result<ExitCode, String> {
    let fixture = options.device.open()?;
    let cq = fixture.context.create_cq(8, None, 0).map_err(text)?;
    let (mut qps, mut regions) = (Vec::new(), Vec::new());
    for _ in 0..options.replicas.unwrap_or(1) {
        let region = fixture.pd.reg_mr(REGION, Access::LOCAL_WRITE | Access::REMOTE_WRITE).map_err(text)?;
        qps.push(endpoint(&fixture, &cq, 1, region.addr(), region.rkey())?);
        regions.push(region);
    }
    let ours: Vec<Endpoint> = qps.iter().map(|(_, own)| *own).collect();
    crate::out::say!("{}", serde_json::to_string(&ours).map_err(text)?);
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(text)?;
    let theirs: Vec<Endpoint> = serde_json::from_str(&line).map_err(text)?;
    for ((qp, own), peer) in qps.iter().zip(&theirs) {
        qp.connect(QpType::Rc, &fixture.connect(own.psn, peer)).map_err(text)?;
    }
    // The end of the client closes it.
    let _ = std::io::stdin().lock().read_line(&mut line);
    Ok(ExitCode::SUCCESS)
}
