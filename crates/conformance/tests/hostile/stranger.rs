//! An attacker that implements the rendezvous itself: it connects with windows of its own making, and accepts
//! connections.
//!
//! It knows the formats that `window/src/rendezvous.rs` and `memory/src/{ring,shared}.rs` document. If they change so
//! that no WELCOME comes any more, the test fails.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use conformance::{PORT, Wire, until};
use memory::ring::RingMemory;
use memory::{Half, OwnTable};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use window::rendezvous;

use crate::honest::Place;
use conformance::Random;

const SLOTS: u64 = Half::SLOTS as u64;
const HALF: u64 = Half::BYTES as u64;
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const PROOF: u8 = 3;
const TABLE: u8 = 5;
/// The flag that says that an export table comes with a table.
const EXPORT_TABLE: u8 = 2;

fn name(block: u32) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(rendezvous::block_name(block as u16).as_bytes()).expect("a name")
}

fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

/// Send bytes and descriptors; it does not matter whether they arrive.
fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}

/// A message that came: its bytes, and its descriptors.
fn receive_all(socket: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
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
    (got.bytes > 12).then(|| (bytes[..got.bytes].to_vec(), fds))
}

/// A message that came: its kind, and its descriptors.
fn receive(socket: &OwnedFd) -> Option<(u8, Vec<OwnedFd>)> {
    receive_all(socket).map(|(bytes, fds)| (bytes[12], fds))
}

/// A message with the right head.
fn message(random: &mut Random, kind: u8) -> Vec<u8> {
    let version = rendezvous::VERSION.to_le_bytes();
    let mut bytes = [&b"softrnic"[..], &version, &[kind, random.below(2) as u8, 0, 0]].concat();
    match kind {
        // The nonce's address may be anything: it is read from this process's memory, not from the victim's.
        HELLO | WELCOME => {
            bytes.extend(random.bytes(16 + 8));
            // The secret of the link and a block, which only HELLO has.
            bytes.extend(if kind == HELLO { random.bytes(16 + 2) } else { vec![0; 16 + 2] });
            bytes.extend([0; 6]);
        }
        PROOF => {
            bytes[13] = 0;
            bytes.extend(random.bytes(32));
        }
        _ => {}
    }
    bytes
}

/// Prove that this process may trace the victim, whose greeting this is. False if the kernel forbids it.
fn prove(socket: &OwnedFd, greeting: &[u8]) -> bool {
    let Some(addr) = greeting.get(32..40).and_then(|addr| addr.try_into().ok()) else { return false };
    let (victim, mut nonce) = (std::os::unix::process::parent_id(), [0; 32]);
    if memory::single_copy::peek(victim, u64::from_le_bytes(addr), &mut nonce).is_err() {
        return false;
    }
    let head = [&b"softrnic"[..], &rendezvous::VERSION.to_le_bytes(), &[PROOF, 0, 0, 0]].concat();
    send(socket, &[head, nonce.to_vec()].concat(), &[]);
    true
}

fn window(len: u64, seals: SealFlags) -> File {
    let fd = rustix::fs::memfd_create(c"window", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    rustix::fs::ftruncate(&fd, len).expect("room");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
    fd.into()
}

/// An export table with random content.
fn export_table(random: &mut Random) -> File {
    let (_, real) = OwnTable::create().expect("an export table");
    let len = File::from(real).metadata().expect("its length").len();
    let export_table = window(len, SEALS);
    let rows: Vec<u8> = (0..len / 8).flat_map(|_| random.any().to_le_bytes()).collect();
    let _ = export_table.write_all_at(&rows, 0);
    export_table
}

/// The seals that the victim accepts.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

struct Stranger {
    random: Random,
    /// The victim's end of the connection with this process.
    toy: Place,
    /// Both ends of the connection with the honest third process, and its sequence numbers.
    friends: (Place, Place, (u32, u32)),
    block: u32,
    listener: OwnedFd,
    blows: u64,
}

/// Be accepted as any process is, once: if the protocol is not the one that this test implements, this fails.
fn be_welcome(random: &mut Random, block: u32) {
    let (socket, window) = (seqpacket(), window(2 * HALF, SEALS));
    rustix::net::connect(&socket, &name(block)).expect("the victim listens");
    send(&socket, &message(random, HELLO), &[window.as_fd()]);
    let (welcome, fds) = until("a WELCOME", || receive_all(&socket));
    assert!(welcome[12] == WELCOME && fds.is_empty());
    if prove(&socket, &welcome) {
        // The victim's own answer to the greeting may come first.
        let (_, fds) = until("a TABLE", || receive(&socket).filter(|(kind, _)| *kind == TABLE));
        assert!(!fds.is_empty());
    }
}

pub fn run(mut wire: Wire, seed: u64) {
    let mut random = Random::new(seed);
    // A block of this process, so that the victim connects to it.
    let (block, listener) = loop {
        let (block, socket) = (1 + random.below(0xffe) as u32, seqpacket());
        if rustix::net::bind(&socket, &name(block)).is_ok() {
            rustix::net::listen(&socket, 64).expect("listen");
            break (block, socket);
        }
    };
    let gid =
        conformance::Fixture::open().context.query_gid(PORT, 0).expect("ibv_query_gid").expect("an address").gid.0;
    let own = Place { qpn: block << 12 | 5, gid, addr: random.next(), rkey: random.next() as u32 };
    let toy: Place = wire.exchange(&own);
    let friends = wire.hear();
    be_welcome(&mut random, toy.qpn >> 12);
    let () = wire.exchange(&());
    let mut stranger = Stranger { random, toy, friends, block, listener, blows: 0 };
    let (over, heard) = std::sync::mpsc::channel();
    let hearing = std::thread::spawn(move || {
        let () = wire.hear();
        let _ = over.send(());
        wire
    });
    let mut open = Vec::new();
    while heard.try_recv().is_err() {
        // Connections stay for a while.
        if open.len() > 40 {
            open.clear();
        }
        stranger.visit(&mut open);
        stranger.be_visited(&mut open);
    }
    let mut wire = hearing.join().expect("the wire");
    wire.tell(&stranger.blows);
    let _ = wire.try_hear::<()>();
}

impl Stranger {
    /// Connect to the victim and send something.
    fn visit(&mut self, open: &mut Vec<OwnedFd>) {
        let socket = seqpacket();
        if rustix::net::connect(&socket, &name(self.toy.qpn >> 12)).is_err() {
            std::thread::yield_now();
            return;
        }
        self.blows += 1;
        let random = &mut self.random;
        let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let null = File::open("/dev/null").expect("/dev/null");
        match random.below(8) {
            // Nothing, or random bytes.
            0 => {}
            1 => {
                let len = random.below(200) as usize;
                send(&socket, &random.bytes(len), &[]);
            }
            2 => send(&socket, &random.bytes(104), &[null.as_fd(), bell.as_fd(), null.as_fd(), bell.as_fd()]),
            // The beginning of a greeting, and more than one.
            3 => {
                let mut hello = message(random, HELLO);
                hello.resize(random.below(150) as usize, 0);
                send(&socket, &hello, &[null.as_fd(), bell.as_fd()]);
            }
            // A greeting with a file that is no window, or a window that could be truncated while the victim uses it.
            4 => {
                let some = [
                    window(2 * HALF, SealFlags::empty()),
                    window(2 * HALF, SealFlags::SHRINK),
                    window(2 * HALF - 4096, SEALS),
                    window(1 << 21, SEALS),
                    null,
                ];
                let bad = &some[random.below(some.len() as u64) as usize];
                send(&socket, &message(random, HELLO), &[bad.as_fd()]);
                let _ = bad.set_len(0);
            }
            5 => {
                let bells = [bell.as_fd(), bell.as_fd()];
                send(&socket, &message(random, HELLO), &bells[..1 + random.below(2) as usize]);
            }
            // A valid greeting.
            _ => {
                let window = window(2 * HALF, SEALS);
                self.forge(&window, 0);
                send(&socket, &message(&mut self.random, HELLO), &[window.as_fd()]);
                self.chat(&socket, &window, 0);
            }
        }
        open.push(socket);
    }

    /// Accept the victim's connections, and with them the windows that it makes.
    fn be_visited(&mut self, open: &mut Vec<OwnedFd>) {
        let Ok(socket) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
            return;
        };
        self.blows += 1;
        let Some((hello, fds)) = receive_all(&socket).filter(|(hello, _)| hello[12] == HELLO) else { return };
        let Some(window) = fds.into_iter().next() else { return };
        let window = File::from(window);
        if self.random.below(4) > 0 {
            send(&socket, &message(&mut self.random, WELCOME), &[]);
            if self.random.coin() && prove(&socket, &hello) {
                self.give(&socket);
            }
        }
        self.forge(&window, HALF);
        self.chat(&socket, &window, HALF);
        open.push(socket);
    }

    /// Give the victim a doorbell, and an export table with random content.
    fn give(&mut self, socket: &OwnedFd) {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let export_table = export_table(&mut self.random);
        let mut table = message(&mut self.random, TABLE);
        table[13] = EXPORT_TABLE;
        send(socket, &table, &[bell.as_fd(), export_table.as_fd()]);
    }

    /// Go on sending messages, and writing into the window, for a while.
    fn chat(&mut self, socket: &OwnedFd, window: &File, half: u64) {
        for _ in 0..self.random.below(20) {
            if let Some((heard, fds)) = receive_all(socket) {
                if heard[12] == WELCOME && self.random.coin() && prove(socket, &heard) {
                    self.give(socket);
                }
                // This process may ring the victim's doorbell as often as it likes, and make it block.
                for fd in &fds {
                    let _ = rustix::io::ioctl_fionbio(fd, self.random.coin());
                    let _ = rustix::io::write(fd, &u64::MAX.wrapping_sub(1).to_ne_bytes());
                }
            }
            match self.random.below(6) {
                0 => {
                    let kind = self.random.below(6) as u8;
                    send(socket, &message(&mut self.random, kind), &[]);
                }
                1 => {
                    let (at, word) = (self.random.below(HALF / 4) * 8, self.random.any());
                    let _ = window.write_all_at(&word.to_le_bytes(), at);
                }
                _ => self.forge(window, half),
            }
            std::thread::yield_now();
        }
    }

    /// Write records for the victim into the half of the window from which it takes: well-formed for the most part.
    fn forge(&mut self, window: &File, half: u64) {
        let first = if self.random.below(4) == 0 { self.random.below(SLOTS) } else { 0 };
        for slot in first..(first + 64).min(SLOTS) {
            let random = &mut self.random;
            let (own, peer) = match random.below(3) {
                0 => (self.toy.qpn, self.block << 12 | 5),
                _ => (self.friends.0.qpn, self.friends.1.qpn),
            };
            let place = if own == self.toy.qpn { &self.toy } else { &self.friends.0 };
            let (op, flags) = (random.below(12), if random.coin() { 0x23 } else { random.below(256) });
            // Answers continue the victim's packets, requests the packets for the victim.
            let psn = match matches!(op, 3 | 7 | 8) {
                _ if own == self.toy.qpn => own + random.below(200) as u32,
                true => self.friends.2.0 + random.below(500) as u32,
                false => self.friends.2.1 + random.below(150) as u32,
            } & 0xff_ffff;
            let len = random.below(56 - 24 + 1);
            let words = [
                // Numbers that have no meaning come, too.
                if random.below(8) > 0 { op | flags << 8 | random.below(256) << 16 | u64::from(own) << 24 } else { 0 },
                u64::from(peer) | u64::from(psn) << 24,
                random.below(1 << 32) | if random.below(2) == 0 { len } else { random.any() & 0xffff_ffff } << 32,
                u64::from(place.rkey) | (random.any() & 0xffff_ffff) << 32,
                place.addr.wrapping_add(if random.below(2) == 0 { random.below(4096) } else { random.any() }),
                random.any(),
                random.any(),
            ];
            // lap 1, header of 3 to 7 words, payload within the slot or anywhere
            let low = match random.below(4) {
                0 => random.below(1 << 32),
                1 => 1 << 31 | random.below(4096) << 17 | random.below(4) << 15 | random.below(16385),
                _ => [3 << 15, 2 << 15 | 8, 16 | 1 << 15, len][random.below(4) as usize],
            };
            let at = half + Half::slot_at(slot as u32) as u64;
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let _ = window.write_all_at(&body, at + 8);
            let _ = window.write_all_at(&(1 << 32 | low).to_le_bytes(), at);
        }
        self.blows += 1;
    }
}
