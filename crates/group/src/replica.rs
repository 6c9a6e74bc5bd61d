//! A replica: a process with a region and queues, whose threads sleep while operations are done.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rdma::{Context, Gid, Mr, Pd, Status, Wc, sys};
use rustix::event::{PollFd, PollFlags, poll};

use crate::error::{Error, Result};
use crate::rounds::Rounds;
use crate::setup::{self, Endpoint, Hello, Welcome, kind};
use crate::status::{self, HopStatus};

/// How long a peer may be silent while a group is set up.
const PATIENCE: Duration = Duration::from_secs(40);

/// The options of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerOptions {
    /// Where clients, and replicas before this one, connect; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The replica behind this one; the last one has none.
    pub next: Option<SocketAddr>,
    /// Bytes of the region: the same on all replicas of a chain.
    pub region: usize,
}

/// A replica. Its threads live as long as the process.
pub struct Server {
    host: Arc<Host>,
    addr: SocketAddr,
}

struct Host {
    context: Arc<Context>,
    pd: Arc<Pd>,
    gid: Gid,
    region: Arc<Mr>,
    next: Option<SocketAddr>,
    groups: Mutex<Vec<Arc<Rounds>>>,
}

impl Server {
    /// Register a region, and listen for groups.
    ///
    /// # Errors
    /// Those of sockets and verbs; EOPNOTSUPP: the device has no managed queues.
    pub fn start(context: &Arc<Context>, options: &ServerOptions) -> Result<Server> {
        Self::start_with(context, options, |pd| pd.reg_mr(options.region, setup::access()))
    }

    /// As [`Server::start`]; the region is the beginning of a file, for applications that read or map it from other
    /// processes. Groups go on while these are stopped or end.
    ///
    /// # Errors
    /// As of [`Server::start`]; EINVAL: the file is shorter than the region.
    pub fn start_on(context: &Arc<Context>, options: &ServerOptions, file: BorrowedFd<'_>) -> Result<Server> {
        Self::start_with(context, options, |pd| pd.reg_mr_file(file, options.region, setup::access()))
    }

    fn start_with(
        context: &Arc<Context>,
        options: &ServerOptions,
        register: impl FnOnce(&Arc<Pd>) -> rdma::Result<Arc<Mr>>,
    ) -> Result<Server> {
        if options.region == 0 || !options.region.is_multiple_of(8) {
            return Err(Error::Invalid("a region is a multiple of 8 bytes"));
        }
        let pd = context.alloc_pd()?;
        let region = register(&pd)?;
        let (gid, next) = (setup::own_gid(context)?, options.next);
        let host = Arc::new(Host { context: context.clone(), pd, gid, region, next, groups: Mutex::default() });
        let listener = TcpListener::bind(options.listen)?;
        let addr = listener.local_addr()?;
        let shared = host.clone();
        thread::Builder::new().name("group".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let host = shared.clone();
                // Without a thread the connection is closed, which its client sees.
                let _ = thread::Builder::new().name("group".into()).spawn(move || host.serve(&stream));
            }
        })?;
        Ok(Server { host, addr })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its memory. Groups write there at any time.
    pub fn region(&self) -> &Arc<Mr> {
        &self.host.region
    }

    /// Of the groups that live: requests that were posted to their queues, and messages that came.
    ///
    /// # Errors
    /// Those of verbs.
    pub fn counts(&self) -> Result<[u64; 2]> {
        let groups = self.host.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter().try_fold([0, 0], |sum, rounds| {
            let counts = rounds.counts()?;
            Ok([sum[0] + counts[0], sum[1] + counts[1]])
        })
    }
}

/// A group on this replica: its queues, the socket to the server behind, and the number of the hop.
type Joined = (Arc<Rounds>, Option<TcpStream>, u32);

/// What has failed of a group's queues at a hop.
fn failure(rounds: &Rounds, hop: u32) -> Result<Option<String>> {
    rounds.failures.arm(false)?;
    // An unsuccessful completion counts as solicited (IBTA vol. 1, 11.4.2.2).
    rounds.done.arm(true)?;
    let mut found = [Wc::default(); 16];
    let count = rounds.done.poll(&mut found)?;
    // What is behind the first failure was flushed, and may be all that a queue of few places still has.
    let failed = |wc: &&Wc| wc.status() != Status::SUCCESS;
    if let Some(wc) = found[..count].iter().find(failed) {
        return Ok(Some(format!("hop {hop}: {} of the replica itself failed: {}", request(wc), wc.status())));
    }
    let count = rounds.failures.poll(&mut found)?;
    Ok(found[..count]
        .first()
        .map(|wc| format!("hop {hop}: {} to hop {} failed: {}", request(wc), hop + 1, wc.status())))
}

/// The name of a request that failed, by its status.
fn request(wc: &Wc) -> &'static str {
    // A request is checked at the post, so it has broken no rule then.
    match wc.status() {
        Status(sys::IBV_WC_LOC_QP_OP_ERR) => "a request that was patched beside the rules of its queue (opcode, bytes)",
        _ => "a request",
    }
}

impl Host {
    fn serve(&self, up: &TcpStream) {
        let set_up = || -> Result<Option<Joined>> {
            up.set_nodelay(true)?;
            up.set_read_timeout(Some(PATIENCE))?;
            let (first, bytes) = setup::hear(up)?;
            if first == kind::STATUS {
                status::answer(up, &self.status(status::asked(&bytes)?)?)?;
                return Ok(None);
            }
            let hello = Hello::of(first, &bytes)?;
            let (rounds, down, welcome) = self.join(&hello)?;
            let rounds = Arc::new(rounds);
            // Known before the client can send anything.
            self.groups.lock().unwrap_or_else(PoisonError::into_inner).push(rounds.clone());
            welcome.tell(up)?;
            up.set_read_timeout(None)?;
            Ok(Some((rounds, down, hello.hop)))
        };
        match set_up() {
            Ok(None) => {}
            Ok(Some((rounds, down, hop))) => {
                let _ = self.watch(up, down.as_ref(), &rounds, hop);
                let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
                groups.retain(|other| !Arc::ptr_eq(other, &rounds));
            }
            Err(error) => {
                let why = match error {
                    Error::Refused(why) => why,
                    Error::Invalid(why) if why == setup::TOO_LONG => {
                        let _ = setup::tell(up, kind::TOO_LONG, &[]);
                        return;
                    }
                    other => other.to_string(),
                };
                let _ = setup::tell(up, kind::REFUSED, why.as_bytes());
            }
        }
    }

    /// The state of this replica, which is hop `hop` of the question, and of those behind it.
    fn status(&self, hop: usize) -> Result<Vec<HopStatus>> {
        let behind = self.next.map(|next| {
            let named = |error| match error {
                Error::Refused(why) if why.starts_with("hop ") => Error::Refused(why),
                other => Error::Refused(format!("hop {} at {next}: {other}", hop + 1)),
            };
            status::ask(next, hop + 1).map_err(named)
        });
        let behind = behind.transpose()?;
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let own = groups.iter().try_fold(HopStatus::default(), |sum, rounds| -> Result<HopStatus> {
            let one = rounds.status()?;
            Ok(HopStatus {
                groups: sum.groups + one.groups,
                posted: sum.posted + one.posted,
                arrived: sum.arrived + one.arrived,
                done: sum.done + one.done,
                rounds: sum.rounds + one.rounds,
            })
        })?;
        Ok(std::iter::once(own).chain(behind.into_iter().flatten()).collect())
    }

    /// Make the queues of a group, here and behind.
    fn join(&self, hello: &Hello) -> Result<(Rounds, Option<TcpStream>, Welcome)> {
        let size = self.region.len() as u64;
        if hello.hop > 0 && hello.region != size {
            let why = format!("hop {} has a region of {size} bytes, the one before {}", hello.hop, hello.region);
            return Err(Error::Refused(why));
        }
        let mut rounds = Rounds::new(&self.context, &self.pd, hello.depth)?;
        let here = |qpn| Endpoint { qpn, gid: self.gid };
        let mut down = None;
        let mut behind = None;
        if let Some(next) = self.next {
            let name = |error| match error {
                Error::Invalid(why) if why == setup::TOO_LONG => Error::Invalid(why),
                other => Error::Refused(format!("hop {} at {next}: {other}", hello.hop + 1)),
            };
            let stream = TcpStream::connect_timeout(&next, PATIENCE).map_err(|error| name(error.into()))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let hop = hello.hop + 1;
            Hello { hop, region: size, from: here(rounds.next.number()), ..*hello }.tell(&stream).map_err(name)?;
            behind = Some(Welcome::hear(&stream).map_err(name)?);
            stream.set_read_timeout(None)?;
            down = Some(stream);
        }
        let after = behind.as_ref().map_or(0, |behind| behind.replicas.len());
        let replicas = hello.hop as usize + 1 + after;
        if replicas > crate::MOST_REPLICAS {
            return Err(Error::Invalid(setup::TOO_LONG));
        }
        setup::connect(&self.context, &rounds.previous, &hello.from)?;
        setup::connect(&self.context, &rounds.own, &rounds.own_end(self.gid))?;
        let towards = behind.as_ref().map_or(hello.ack, |behind| behind.entry);
        setup::connect(&self.context, &rounds.next, &towards)?;
        let next = behind.as_ref().and_then(|behind| behind.replicas.first().copied());
        rounds.start(&self.pd, &self.region, hello.hop as usize, replicas, &next)?;
        let mut all = vec![rounds.replica(&self.region)];
        let ack = behind.as_ref().map_or(here(rounds.next.number()), |behind| behind.ack);
        all.extend(behind.into_iter().flat_map(|behind| behind.replicas));
        let welcome = Welcome { region: size, entry: here(rounds.previous.number()), ack, replicas: all };
        Ok((rounds, down, welcome))
    }

    /// Sleep until the group ends, or one of its ends says something.
    fn watch(&self, up: &TcpStream, mut down: Option<&TcpStream>, rounds: &Rounds, hop: u32) -> Result<()> {
        let broken = |text: &str| setup::tell(up, kind::BROKEN, text.as_bytes());
        let mut failed = false;
        loop {
            let [from_up, from_down, from_queue] = {
                let mut fds = vec![PollFd::new(up, PollFlags::IN)];
                if !failed {
                    fds.push(PollFd::from_borrowed_fd(rounds.channel.as_fd(), PollFlags::IN));
                }
                if let Some(down) = down {
                    fds.push(PollFd::new(down, PollFlags::IN));
                }
                poll(&mut fds, None)?;
                let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
                let behind = if failed { 1 } else { 2 };
                [ready(0), ready(behind), !failed && ready(1)]
            };
            if from_queue {
                while rounds.channel.try_event()?.is_some() {}
                if let Some(why) = failure(rounds, hop)? {
                    failed = true;
                    broken(&why)?;
                }
            }
            if from_down && let Some(stream) = down {
                match setup::hear(stream) {
                    Ok((kind, bytes)) => setup::tell(up, kind, &bytes)?,
                    Err(_) => {
                        down = None;
                        broken(&format!("hop {}: its server is gone", hop + 1))?;
                    }
                }
            }
            if from_up {
                // An error is the end: the client is gone, or the hop before.
                let (what, bytes) = setup::hear(up)?;
                if what == kind::PRINT {
                    self.print(&bytes, hop)?;
                    match down {
                        Some(stream) => setup::tell(stream, what, &bytes)?,
                        None => setup::tell(up, kind::PRINTED, &[])?,
                    }
                }
            }
        }
    }

    /// Write a part of the region to standard output, 16 bytes a line.
    fn print(&self, range: &[u8], hop: u32) -> Result<()> {
        use std::io::Write as _;
        let [offset, length] = setup::two_numbers(range)?;
        let size = self.region.len() as u64;
        let end = offset.saturating_add(length).min(size);
        let mut out = std::io::stdout().lock();
        writeln!(out, "hop {hop}, {length} bytes at {offset:#x}")?;
        for at in (offset.min(end)..end).step_by(16) {
            let mut bytes = [0; 16];
            let line = &mut bytes[..(end - at).min(16) as usize];
            self.region.read(at as usize, line);
            let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(out, "{at:08x}  {}", hex.join(" "))?;
        }
        out.flush()?;
        Ok(())
    }
}
