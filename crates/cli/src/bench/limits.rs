//! Limits of the machine itself, measured beside the device: the crate `limits`, on both sides.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use limits::copy::{self, Walk, memcpy};
use limits::wake::{Bells, bell};
use limits::{Buffer, Place, Remote, Shared, line, stream};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use super::answer;
use super::case::{Bytes, Case, Operation, Quantity, Waiting};
use super::end::{SPAN, WALKED};
use super::{begin, finish};
use crate::fixture::text;
use crate::link::Link;

/// A limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// A cache line from one core to the other, one way.
    CacheLine,
    /// A system call.
    SystemCall,
    /// A thousand steps of arithmetic, while the other process does nothing.
    Work,
    /// That arithmetic while the other process does as much.
    WorkBeside,
    /// An eventfd wakes a process that sleeps in epoll, one way.
    EventfdEpoll,
    /// memcpy within a process.
    Memcpy,
    /// The kernel copies to the other process.
    ProcessVmWritev,
    /// The kernel copies from the other process.
    ProcessVmReadv,
    /// A unix socket, one way.
    UnixSocket,
    /// TCP over the loopback interface, one way.
    TcpLoopback,
}

impl Limit {
    /// The limits that have no size.
    pub const PLAIN: [Limit; 5] =
        [Limit::CacheLine, Limit::SystemCall, Limit::EventfdEpoll, Limit::Work, Limit::WorkBeside];
    /// The limits that move bytes.
    pub const SIZED: [Limit; 5] =
        [Limit::Memcpy, Limit::ProcessVmWritev, Limit::ProcessVmReadv, Limit::UnixSocket, Limit::TcpLoopback];
    /// The limits that copy, and can walk.
    pub const COPIES: [Limit; 3] = [Limit::Memcpy, Limit::ProcessVmWritev, Limit::ProcessVmReadv];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Limit::CacheLine => "cache line, core to core",
            Limit::SystemCall => "system call",
            Limit::Work => "arithmetic, one core at work",
            Limit::WorkBeside => "arithmetic, both cores at work",
            Limit::EventfdEpoll => "eventfd wakes epoll",
            Limit::Memcpy => "memcpy",
            Limit::ProcessVmWritev => "process_vm_writev",
            Limit::ProcessVmReadv => "process_vm_readv",
            Limit::UnixSocket => "unix socket",
            Limit::TcpLoopback => "TCP loopback",
        }
    }
}

/// A measurement of a limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct LimitCase {
    /// The limit.
    pub limit: Limit,
    /// The bytes at a time; 0 where there are none.
    pub bytes: usize,
    /// True if it goes through [`SPAN`] bytes of memory.
    pub walking: bool,
}

impl LimitCase {
    /// A measurement of a limit without a size.
    pub fn plain(limit: Limit) -> Self {
        LimitCase { limit, bytes: 0, walking: false }
    }

    /// A measurement over and over with the same memory.
    pub fn of(limit: Limit, bytes: usize) -> Self {
        LimitCase { limit, bytes, walking: false }
    }

    /// The limits that a case is compared with: the first of these lists whose limits were all measured; their sum.
    pub fn beside(case: &Case) -> Vec<Vec<LimitCase>> {
        let of = |limit| LimitCase { limit, bytes: case.bytes, walking: case.walking };
        let (write, read, copy) = (of(Limit::ProcessVmWritev), of(Limit::ProcessVmReadv), of(Limit::Memcpy));
        match (case.quantity, case.operation, case.waiting) {
            (Quantity::Bandwidth, Operation::Read, _) => vec![vec![read], vec![copy]],
            (Quantity::Bandwidth, ..) => vec![vec![write], vec![copy]],
            // The initiator of a READ may execute it itself, and wake no thread.
            (_, Operation::Send | Operation::FetchAdd | Operation::CompareSwap, Waiting::Events) => {
                vec![vec![LimitCase::plain(Limit::EventfdEpoll)]]
            }
            // The cache line that announces a message has room for a small one.
            (_, Operation::Send, _) if case.bytes <= 64 => vec![vec![LimitCase::plain(Limit::CacheLine)]],
            (_, Operation::Send, _) => vec![vec![LimitCase::plain(Limit::CacheLine), copy]],
            (_, Operation::Write, _) => vec![vec![write], vec![copy]],
            _ => vec![vec![read], vec![copy]],
        }
    }

    /// All measurements for some sizes.
    pub fn all(sizes: &[usize]) -> Vec<LimitCase> {
        let mut cases: Vec<_> = Limit::PLAIN.into_iter().map(LimitCase::plain).collect();
        cases.extend(
            Limit::SIZED.into_iter().flat_map(|limit| sizes.iter().map(move |size| LimitCase::of(limit, *size))),
        );
        let walking = |limit| LimitCase { limit, bytes: WALKED, walking: true };
        cases.extend(Limit::COPIES.into_iter().map(walking));
        cases
    }
}

impl std::fmt::Display for LimitCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.limit.name())?;
        if self.bytes > 0 {
            write!(f, " of {}", Bytes(self.bytes))?;
        }
        if self.walking {
            write!(f, ", through {}", Bytes(SPAN))?;
        }
        Ok(())
    }
}

/// The other process's part of a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Comes to the port and the socket of this name, and says where its memory is.
    Meet {
        /// The port of TCP.
        port: u16,
        /// The name in the abstract namespace.
        name: String,
    },
    /// Answers so many cache lines.
    Line(u32),
    /// Does so much work.
    Work(u32),
    /// Answers so many wake-ups.
    Wake(u32),
    /// Answers so many messages over the unix socket, or over TCP.
    Stream {
        /// True for TCP.
        tcp: bool,
        /// The bytes of a message.
        bytes: usize,
        /// The number of messages.
        count: u32,
    },
}

/// The number of the other process, and the place of its memory.
#[derive(Serialize, Deserialize)]
struct Whereabouts {
    pid: u32,
    addr: u64,
    len: usize,
}

/// The objects of either side.
pub struct Stand {
    shared: Shared,
    bells: Bells,
    tcp: TcpStream,
    unix: UnixStream,
    buffers: Vec<Buffer>,
    remote: Option<Remote>,
    /// The memory for copies by `process_vm_writev(2)`: the very memory that the device's messages go from and to. The
    /// speed of a copy depends, by a tenth and more, on where in physical memory pages happen to lie. Copies that are
    /// longer than those messages use the buffers.
    registered: Option<(Place, Remote)>,
    /// The number of copies that walked. They go on where those of the last batch ended: a batch alone might fit into a
    /// cache.
    walked: u64,
    /// The bytes that go over the streams, kept so that their pages are there.
    message: Vec<u8>,
}

const PATIENCE: Option<Duration> = Some(limits::PATIENCE);

impl Stand {
    /// Make near's side; the other process comes to it. `ours` and `theirs` are where the device's messages come from
    /// and go to.
    pub fn new(link: &mut Link, ours: Place, theirs: Place) -> Result<Self, String> {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(text)?;
        let port = tcp.local_addr().map_err(text)?.port();
        let name = format!("softrnic/bench/{}/{port}", std::process::id());
        let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).map_err(text)?).map_err(text)?;
        link.send(&answer::Job::Limit(Job::Meet { port, name }))?;
        let Whereabouts { pid, addr, len } = link.receive()?;
        let meet = || -> io::Result<Stand> {
            let (unix, tcp) = (unix.accept()?.0, tcp.accept()?.0);
            tcp.set_nodelay(true)?;
            tcp.set_read_timeout(PATIENCE)?;
            unix.set_read_timeout(PATIENCE)?;
            let (shared, memory) = Shared::create(line::BYTES)?;
            let (near, remote) = (bell()?, bell()?);
            give(&unix, &[memory.as_fd(), remote.as_fd(), near.as_fd()])?;
            let buffers = vec![Buffer::new(SPAN)?, Buffer::new(SPAN)?];
            Ok(Stand {
                shared,
                bells: Bells::new(near, remote)?,
                tcp,
                unix,
                buffers,
                remote: Some(Remote::new(pid, Place { addr, len })?),
                registered: Some((ours, Remote::new(pid, theirs)?)),
                walked: 0,
                message: Vec::new(),
            })
        };
        let stand = meet().map_err(text)?;
        finish(link)?;
        Ok(stand)
    }

    /// Measure the microseconds of one; `None` if the system does not permit it.
    pub fn measure(&mut self, link: &mut Link, case: LimitCase, budget: Duration) -> Result<Option<f64>, String> {
        match self.steps(link, case, budget) {
            Ok(figure) => Ok(Some(figure)),
            Err(Failure::Forbidden) => Ok(None),
            Err(Failure::Other(error)) => Err(format!("{case}: {error}")),
        }
    }

    /// Measure batches, each of some microseconds at least, until the time is over; then take their median.
    fn steps(&mut self, link: &mut Link, case: LimitCase, budget: Duration) -> Result<f64, Failure> {
        let mut figures = Vec::new();
        let began = Instant::now();
        // The first batch warms up, and shows how many fit into a tenth of the time.
        let mut count = 4;
        loop {
            let time = self.batch(link, case, count)?;
            let each = time.as_secs_f64() / f64::from(count);
            if figures.is_empty() && time < budget / 20 && count < 1 << 20 {
                count *= 4;
                continue;
            }
            figures.push(each * 1e6);
            if began.elapsed() >= budget {
                break;
            }
        }
        let one_way =
            matches!(case.limit, Limit::CacheLine | Limit::EventfdEpoll | Limit::UnixSocket | Limit::TcpLoopback);
        Ok(super::stats::Spread::of(&figures).median / if one_way { 2.0 } else { 1.0 })
    }

    fn batch(&mut self, link: &mut Link, case: LimitCase, count: u32) -> Result<Duration, Failure> {
        let LimitCase { limit, bytes, walking } = case;
        let walk = Walk { size: bytes, span: if walking { SPAN } else { bytes } };
        let first = self.walked;
        self.walked += u64::from(count);
        let ask = |link: &mut Link, job: Job| begin(link, &answer::Job::Limit(job));
        let time = match limit {
            Limit::SystemCall => return Ok(limits::system_call(count)),
            Limit::Work => return Ok(limits::work(count)),
            Limit::WorkBeside => {
                ask(link, Job::Work(count))?;
                limits::work(count)
            }
            Limit::Memcpy => return Ok(memcpy(&self.buffers[0], &self.buffers[1], walk, first, count)),
            Limit::ProcessVmWritev => {
                let registered = self.registered.as_ref().filter(|(from, _)| walk.bytes() <= from.len);
                let own = || Some((self.buffers[0].place(), self.remote.as_ref()?));
                let (from, to) = registered.map(|(from, to)| (*from, to)).or_else(own).ok_or(Failure::Forbidden)?;
                return Ok(copy::write(from, to, walk, first, count)?);
            }
            Limit::ProcessVmReadv => {
                let from = self.remote.as_ref().ok_or(Failure::Forbidden)?;
                return Ok(copy::read(&self.buffers[0], from, walk, first, count)?);
            }
            Limit::CacheLine => {
                line::reset(&self.shared);
                ask(link, Job::Line(count))?;
                line::near(&self.shared, count)?
            }
            Limit::EventfdEpoll => {
                ask(link, Job::Wake(count))?;
                self.bells.near(count)?
            }
            Limit::UnixSocket | Limit::TcpLoopback => {
                let tcp = limit == Limit::TcpLoopback;
                ask(link, Job::Stream { tcp, bytes, count })?;
                let message = room(&mut self.message, bytes);
                match tcp {
                    true => stream::near(&mut self.tcp, message, count)?,
                    false => stream::near(&mut self.unix, message, count)?,
                }
            }
        };
        finish(link)?;
        Ok(time)
    }
}

enum Failure {
    Forbidden,
    Other(String),
}

impl From<String> for Failure {
    fn from(error: String) -> Self {
        Failure::Other(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let forbidden = matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported);
        if forbidden { Failure::Forbidden } else { Failure::Other(error.to_string()) }
    }
}

/// Carry out a job on far's side.
pub fn answer(stand: &mut Option<Stand>, job: Job, link: &mut Link) -> Result<(), String> {
    if let Job::Meet { port, name } = job {
        let meet = || -> io::Result<_> {
            let unix = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name)?)?;
            let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            tcp.set_nodelay(true)?;
            tcp.set_read_timeout(PATIENCE)?;
            unix.set_read_timeout(PATIENCE)?;
            Ok((unix, tcp, Buffer::new(SPAN)?))
        };
        let (unix, tcp, buffer) = meet().map_err(text)?;
        let Place { addr, len } = buffer.place();
        link.send(&Whereabouts { pid: std::process::id(), addr, len })?;
        let take = || -> io::Result<_> {
            let [memory, ours, theirs] = take(&unix)?;
            Ok((Shared::open(&memory, line::BYTES)?, Bells::new(ours, theirs)?))
        };
        let (shared, bells) = take().map_err(text)?;
        let (buffers, remote, registered, walked, message) = (vec![buffer], None, None, 0, Vec::new());
        *stand = Some(Stand { shared, bells, tcp, unix, buffers, remote, registered, walked, message });
        return Ok(());
    }
    let stand = stand.as_mut().ok_or("nothing to measure with")?;
    link.send(&())?;
    let done = match job {
        Job::Line(count) => line::remote(&stand.shared, count),
        Job::Work(count) => {
            limits::work(count);
            Ok(())
        }
        Job::Wake(count) => stand.bells.remote(count),
        Job::Stream { tcp: true, bytes, count } => {
            stream::remote(&mut stand.tcp, room(&mut stand.message, bytes), count)
        }
        Job::Stream { tcp: false, bytes, count } => {
            stream::remote(&mut stand.unix, room(&mut stand.message, bytes), count)
        }
        Job::Meet { .. } => Ok(()),
    };
    done.map_err(text)
}

fn room(message: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if message.len() < bytes {
        message.resize(bytes, 1);
    }
    &mut message[..bytes]
}

/// Send descriptors to the process at the other end.
fn give(socket: &UnixStream, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Receive the descriptors of [`give`].
fn take(socket: &UnixStream) -> io::Result<[OwnedFd; 3]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let fds: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    fds.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
}
