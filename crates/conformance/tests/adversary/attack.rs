//! The adversary: it connects to every socket of the honest pair, as its scenario says.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use conformance::{Random, Wire};
use memory::backing::Memfd;
use memory::{Half, OwnTable};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use window::rendezvous::{self, Greeting, Message};

use crate::model::{After, Marks, Names, OTHER_UID, ReceivedFd, Scenario, Who, Words};

/// Descriptors that one message can carry (SCM_MAX_FD).
const MANY: usize = 253;
/// Connections of the first strike, and of a flood.
const FEW: usize = 18;
const FLOOD: usize = 300;
/// The number of connections that it keeps while it goes on.
const KEPT: usize = 200;
/// The number of names of each kind that it takes.
const NAMES: u64 = 150;

/// The sockets of the pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub pids: [u32; 2],
    /// The names of abstract sockets at which a process listens.
    pub doors: Vec<String>,
}

/// The results of the attack.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Spoils {
    /// The connections that the kernel made.
    pub connected: usize,
    /// The rendezvous's answers that accept the adversary.
    pub welcomes: usize,
    /// The descriptors that came with these.
    pub descriptors: usize,
    /// The greatest number of links that lived at one time, with one process of the pair.
    pub links: usize,
    /// The names that it holds.
    pub names: usize,
}

/// A connection to a socket of the pair.
struct Visits {
    door: usize,
    socket: OwnedFd,
    /// For the rendezvous only: true if the adversary was accepted.
    welcome: bool,
    window: Option<File>,
    /// Connections that must not be closed here before.
    _kept: Vec<TcpStream>,
}

struct Adversary {
    scenario: Scenario,
    target: Target,
    random: Random,
    spoils: Spoils,
    open: Vec<Visits>,
    names: Vec<OwnedFd>,
    /// The identity that one of the pair sends in its greeting.
    borrowed: Option<[u8; 16]>,
}

pub fn run(mut wire: Wire, scenario: Scenario) {
    if scenario.who == Who::Other {
        // The change is of this thread alone, which does everything.
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(OTHER_UID)).expect("to be another user");
    }
    // Set after the change of user, which clears it (prctl(2)).
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("PR_SET_PDEATHSIG");
    let target = wire.exchange(&());
    let random = Random::new(scenario.seed);
    let mut it = Adversary {
        scenario,
        target,
        random,
        spoils: Spoils::default(),
        open: Vec::new(),
        names: Vec::new(),
        borrowed: None,
    };
    it.take_names();
    if scenario.after == After::Floods {
        it.visits_silently(0);
    }
    let count = if scenario.after == After::Floods { FLOOD } else { FEW };
    for n in 0..count {
        it.visits(n % it.target.doors.len());
    }
    it.look();
    wire.tell(&it.spoils);
    match scenario.after {
        After::Stops => {
            rustix::process::kill_process(rustix::process::getpid(), Signal::STOP).expect("to stop");
        }
        After::Dies => {}
        After::Closes | After::Stays | After::Floods => it.go_on(),
    }
    // The test ends this process by killing it.
    let _ = wire.try_hear::<()>();
}

impl Adversary {
    /// Go on, for two seconds at most: the process is killed before.
    fn go_on(&mut self) {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            let door = self.random.below(self.target.doors.len() as u64) as usize;
            self.visits(door);
            match self.scenario.after {
                After::Closes => self.open.clear(),
                _ if self.open.len() > KEPT => drop(self.open.remove(0)),
                _ => {}
            }
            for n in 0..self.open.len().min(4) {
                self.mark(n);
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    fn take_names(&mut self) {
        for _ in 0..NAMES {
            let variant = match self.random.below(4) {
                0 => String::new(),
                n => format!(".{n}"),
            };
            let name = match self.scenario.names {
                Names::None => return,
                Names::Blocks => rendezvous::block_name(1 + self.random.below(0xffe) as u16),
                // The port space of TCP (RDMA_PS_TCP).
                Names::Ports if self.random.coin() => {
                    format!("softrnic/1/cm/0106/{:04x}/lock", self.random.below(1 << 16))
                }
                Names::Ports => format!("softrnic/1/cm/0106/block/{:x}", self.random.below(1 << 11)),
            };
            let socket = seqpacket();
            if rustix::net::bind(&socket, &address(&(name + &variant))).is_ok() {
                if self.random.coin() {
                    rustix::net::listen(&socket, 1).expect("listen");
                }
                self.names.push(socket);
            }
        }
        self.spoils.names = self.names.len();
    }

    /// Connect, and send something.
    fn visits(&mut self, door: usize) {
        if let Some(socket) = self.arrive(door) {
            self.greet(door, socket);
        }
    }

    /// Connect several times before any of the connections says HELLO: the limit of links holds for these as well.
    fn visits_silently(&mut self, door: usize) {
        let silent: Vec<_> = (0..12).filter_map(|_| self.arrive(door)).collect();
        std::thread::sleep(Duration::from_millis(50));
        silent.into_iter().for_each(|socket| self.greet(door, socket));
    }

    fn arrive(&mut self, door: usize) -> Option<OwnedFd> {
        let socket = seqpacket();
        rustix::net::connect(&socket, &address(&self.target.doors[door])).ok()?;
        // In a network namespace of its own it may hold the name itself, and visit itself.
        let listener = rustix::net::sockopt::socket_peercred(&socket).map(|who| who.pid);
        if listener.is_ok_and(|pid| pid == rustix::process::getpid()) {
            return None;
        }
        self.spoils.connected += 1;
        Some(socket)
    }

    fn greet(&mut self, door: usize, socket: OwnedFd) {
        let (fds, window, kept) = self.received_fd();
        let mut hello = rendezvous::emit(&Message::Hello(Greeting {
            instance: self.borrowed.unwrap_or([7; 16]),
            nonce_addr: self.random.any(),
            single_copy: true,
            secret: std::array::from_fn(|_| self.random.any() as u8),
            // Some greetings have the identity of one of the pair.
            block: if self.random.coin() { self.random.below(0xffe) as u16 } else { self.any_block() },
        }));
        match self.scenario.words {
            Words::Hello => {}
            Words::Noise => {
                let len = 1 + self.random.below(300) as usize;
                hello = self.random.bytes(len);
            }
            Words::Nothing => hello.truncate(1),
        }
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        send(&socket, &hello, &borrowed);
        if let (ReceivedFd::Shrinks, Some(fd)) = (self.scenario.received_fd, fds.first()) {
            let _ = rustix::fs::ftruncate(fd, 0);
        }
        // It is not known whether this copy or the receiver's is closed last, and the process that closes the last one
        // waits.
        if matches!(self.scenario.received_fd, ReceivedFd::Lingers | ReceivedFd::LingersLong) {
            std::thread::spawn(move || drop(fds));
        }
        self.open.push(Visits { door, socket, welcome: false, window, _kept: kept });
    }

    /// A block of one of the pair.
    fn any_block(&mut self) -> u16 {
        let blocks: Vec<_> = self.target.doors.iter().filter_map(|door| rendezvous_block(door)).collect();
        let n = self.random.below(blocks.len().max(1) as u64) as usize;
        blocks.get(n).copied().unwrap_or_default()
    }

    /// The descriptors to send, the window if one of them is, and the objects to keep so that a close takes as long as
    /// it should.
    fn received_fd(&mut self) -> (Vec<OwnedFd>, Option<File>, Vec<TcpStream>) {
        let bell = || eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let fds = match self.scenario.received_fd {
            ReceivedFd::None => vec![],
            ReceivedFd::Window => {
                let (_, fd) = Memfd::create(Half::WINDOW).expect("a window");
                let window = File::from(fd.try_clone().expect("a descriptor"));
                return (vec![fd], Some(window), vec![]);
            }
            ReceivedFd::Shrinks => {
                let fd = rustix::fs::memfd_create(c"shrinks", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
                let fd = fd.expect("a memfd");
                rustix::fs::ftruncate(&fd, Half::WINDOW as u64).expect("room");
                rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW).expect("a seal");
                vec![fd]
            }
            ReceivedFd::Eventfd => vec![bell()],
            ReceivedFd::Many => {
                let one = bell();
                (0..MANY).map(|_| one.try_clone().expect("a descriptor")).collect()
            }
            ReceivedFd::Pipe => {
                let (_, tx) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).expect("a pipe");
                while rustix::io::write(&tx, &[0; 4096]).is_ok() {}
                vec![tx]
            }
            ReceivedFd::Nested => {
                let (near, remote) = UnixDatagram::pair().expect("sockets");
                let bells = [bell(), bell()];
                send(
                    &near.as_fd().try_clone_to_owned().expect("a descriptor"),
                    b"in flight",
                    &[bells[0].as_fd(), bells[1].as_fd(), near.as_fd()],
                );
                vec![remote.into()]
            }
            ReceivedFd::Lingers | ReceivedFd::LingersLong => {
                let (near, remote) = match slow_to_close() {
                    Ok(both) => both,
                    // There is no network, and nothing listens here either.
                    Err(_) if self.scenario.who == Who::NetNamespace => return (vec![], None, vec![]),
                    Err(error) => panic!("a connection that is slow to close: {error}"),
                };
                let mut kept = vec![];
                if matches!(self.scenario.received_fd, ReceivedFd::Lingers) {
                    // Unread data make this a reset, which ends a lingering close.
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(100));
                        drop(remote);
                    });
                } else {
                    kept.push(remote);
                }
                return (vec![near.into()], None, kept);
            }
        };
        (fds, None, vec![])
    }

    /// Take the answers that are there, for a moment, and prove what can be proved.
    fn look(&mut self) {
        let end = Instant::now() + Duration::from_millis(60);
        while Instant::now() < end {
            for n in 0..self.open.len() {
                while self.hear(n) {}
                self.mark(n);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for door in 0..self.target.doors.len() {
            let lives = |visits: &&Visits| visits.door == door && visits.welcome && !is_closed(&visits.socket);
            self.spoils.links = self.spoils.links.max(self.open.iter().filter(lives).count());
        }
    }

    /// Take one answer; false if there is none.
    fn hear(&mut self, n: usize) -> bool {
        let visits = &mut self.open[n];
        let Some((bytes, fds)) = receive(&visits.socket) else { return false };
        let Ok(message) = rendezvous::parse(&bytes) else { return !bytes.is_empty() };
        self.spoils.descriptors += fds.len();
        if let Message::Welcome(greeting) = message {
            self.spoils.welcomes += 1;
            visits.welcome = true;
            self.borrowed = Some(greeting.instance);
            for pid in self.target.pids {
                let mut nonce = [0; rendezvous::NONCE];
                // Both are tried: there is one attempt only, but a wrong process has nothing readable there.
                if memory::single_copy::peek(pid, greeting.nonce_addr, &mut nonce).is_ok() {
                    send(&visits.socket, &rendezvous::emit(&Message::Proof(nonce)), &[]);
                    let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
                    let export_table = self.export_table();
                    let table = rendezvous::emit(&Message::Table { export_table: true });
                    send(&self.open[n].socket, &table, &[bell.as_fd(), export_table.as_fd()]);
                    break;
                }
            }
        }
        // This rings the doorbells, also so often that a ring of another process would be lost, or would have to wait.
        for fd in &fds {
            let _ = rustix::io::ioctl_fionbio(fd, false);
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
            let _ = rustix::io::ioctl_fionbio(fd, true);
            let _ = rustix::io::read(fd, &mut [0; 8]);
            let _ = rustix::io::ioctl_fionbio(fd, false);
        }
        true
    }

    /// An export table with the content that the scenario chooses.
    fn export_table(&mut self) -> OwnedFd {
        let (_, fd) = OwnTable::create().expect("an export table");
        let file = File::from(fd.try_clone().expect("a descriptor"));
        let len = file.metadata().expect("its length").len();
        for _ in 0..512 {
            let (at, word) = (self.random.below(len / 8) * 8, self.word());
            let _ = file.write_all_at(&word.to_ne_bytes(), at);
        }
        fd
    }

    fn word(&mut self) -> u64 {
        match self.scenario.marks {
            Marks::None => 0,
            Marks::Odd => self.random.below(1 << 16) | 1 | (self.random.below(1 << 16) | 1) << 32,
            Marks::Garbage => self.random.any(),
            Marks::Counts => 1 << 32 | self.random.below(1 << 16),
        }
    }

    /// Write into the window of a connection.
    fn mark(&mut self, n: usize) {
        if matches!(self.scenario.marks, Marks::None) || self.open[n].window.is_none() {
            return;
        }
        for _ in 0..32 {
            let word = self.word();
            let random = &mut self.random;
            let half = random.below(2) * Half::BYTES as u64;
            let at = match self.scenario.marks {
                Marks::Counts => half + random.below(512) * 8,
                _ if random.coin() => half + Half::slot_at(random.below(1024) as u32) as u64 + random.below(8) * 8,
                _ => half + random.below(Half::BYTES as u64 / 8) * 8,
            };
            if let Some(window) = &self.open[n].window {
                let _ = window.write_all_at(&word.to_ne_bytes(), at);
            }
        }
    }
}

/// The number in the name of a block's socket.
fn rendezvous_block(door: &str) -> Option<u16> {
    let (_, block) = door.split_once("/qpn/")?;
    u16::from_str_radix(block.get(..3)?, 16).ok()
}

fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

fn address(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name")
}

/// Send a message; it does not matter whether it arrives.
fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let _ =
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

fn receive(socket: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).ok()?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    (got.bytes > 0).then(|| (bytes[..got.bytes].to_vec(), fds))
}

/// True if the other end has closed the connection.
fn is_closed(socket: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = rustix::event::poll(&mut fds, Some(&now));
    fds[0].revents().intersects(rustix::event::PollFlags::HUP | rustix::event::PollFlags::ERR)
}

/// A connection whose close takes ten minutes: its buffers are full, its peer does not read, and it lingers.
fn slow_to_close() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let remote = listener.accept()?.0;
    near.set_nonblocking(true)?;
    while near.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(600)))?;
    Ok((near, remote))
}
