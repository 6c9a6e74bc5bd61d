//! Peers that keep to no rule. The victim must go on, close what it was given, and serve honest peers meanwhile.

mod common;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use common::{Node, Random, packet, pattern};
use memory::Half;
use memory::backing::Memfd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use verbs::{Access, CtxId, PdId, QpType, Qpn, RKey};
use window::rendezvous::{self, Greeting, Message, NONCE};
use wire::prelude::*;
use wire::{Export, LinkId, OneSided, Payload};

fn connect(node: &Node) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let name = rendezvous::block_name((node.qpn.get() >> 12) as u16);
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}

fn greeting() -> Greeting {
    Greeting { instance: [9; 16], nonce_addr: 0, single_copy: true, secret: [3; rendezvous::SECRET], block: 0 }
}

fn welcome() -> Greeting {
    Greeting { secret: [0; rendezvous::SECRET], ..greeting() }
}

fn hello() -> Vec<u8> {
    rendezvous::emit(&Message::Hello(greeting()))
}

/// A peer that has been let in, and has proved that it may trace the victim: the victim is this process.
struct Proven {
    socket: OwnedFd,
    window: OwnedFd,
    /// The eventfd that rings the victim.
    bell: OwnedFd,
}

impl Proven {
    /// Its own nonce is `nonce`.
    fn new(node: &mut Node, nonce: &[u8; NONCE]) -> Proven {
        let (_, window) = Memfd::create(Half::WINDOW).unwrap();
        let socket = connect(node);
        let own = Greeting { nonce_addr: nonce.as_ptr().expose_provenance() as u64, ..greeting() };
        assert!(send(&socket, &rendezvous::emit(&Message::Hello(own)), &[window.as_fd()]));
        assert_eq!(peers(node), 1);
        let (Some(Message::Welcome(greeting)), _) = receive(&socket) else { panic!("no WELCOME") };
        let (Some(Message::Proof(seen)), _) = receive(&socket) else { panic!("no PROOF") };
        assert_eq!(&seen, nonce);
        let proof = Message::Proof(read_nonce(&greeting));
        assert!(send(&socket, &rendezvous::emit(&proof), &[]));
        assert_eq!(peers(node), 1);
        let (Some(Message::Table { export_table }), fds) = receive(&socket) else { panic!("no TABLE") };
        assert_eq!(fds.len(), 1 + usize::from(export_table));
        Proven { socket, window, bell: fds.into_iter().next().unwrap() }
    }

    /// Gives the victim this as an export table, and a doorbell.
    fn give(&self, bell: &OwnedFd, export_table: Option<&OwnedFd>) {
        let table = rendezvous::emit(&Message::Table { export_table: export_table.is_some() });
        let fds: Vec<_> =
            [Some(bell.as_fd()), export_table.map(|export_table| export_table.as_fd())].into_iter().flatten().collect();
        assert!(send(&self.socket, &table, &fds));
    }
}

fn read_nonce(greeting: &Greeting) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    memory::single_copy::peek(std::process::id(), greeting.nonce_addr, &mut nonce).unwrap();
    nonce
}

/// The next message of the victim, and its descriptors.
fn receive(socket: &OwnedFd) -> (Option<Message>, Vec<OwnedFd>) {
    let mut bytes = [0; 200];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let Ok(got) = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) else {
        return (None, Vec::new());
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    (rendezvous::parse(&bytes[..got.bytes]).ok(), fds)
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK).unwrap()
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create(c"hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What a peer has sent is closed by a thread of its own, where it is no eventfd and no memfd.
fn settle(before: usize) {
    let start = Instant::now();
    while open_fds() != before {
        assert!(start.elapsed() < Duration::from_secs(10), "{before} descriptors before, {} now", open_fds());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Links other than the loopback link.
fn peers(node: &mut Node) -> usize {
    for _ in 0..3 {
        node.round(|_, _, _, _| {});
    }
    node.env.stats().links - 1
}

fn closed(socket: &OwnedFd) -> bool {
    let mut byte = [0; 200];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Ok(got) if got.bytes == 0 => return true,
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => return false,
            Err(_) => return true,
        }
    }
}

/// One test: the others would disturb its count of open descriptors.
#[test]
fn hostile_peers() {
    let mut node = Node::new();
    let mut honest = Node::new();
    // The victim has something to show, so its own export table counts with what was open before.
    let (pd, access) = (PdId { index: 0, generation: 0 }, Access::REMOTE_READ);
    let ctx = CtxId { index: 0, generation: 0 };
    node.env.publish(&Export::Region { key: 5, through: None, ctx, pd, access, addr: 0, length: 1, iova: 0 });
    offers_that_are_refused(&mut node);
    garbage(&mut node);
    silence(&mut node);
    nonsense_after_hello(&mut node);
    a_doorbell_that_is_none(&mut node);
    a_doorbell_of_the_unproven(&mut node);
    export_tables_that_are_none(&mut node);
    let taken: u32 = (1..=40).map(|seed| scribbler(&mut node, seed)).sum();
    assert!(taken > 1000, "{taken}");
    foreign_answers();
    a_thief_of_rings(&mut node, &mut honest);
    still_works(node, honest);
}

/// An export table that is none, or says what is not so: requests find nothing to act on, or memory that is not there.
fn export_tables_that_are_none(node: &mut Node) {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let bytes = 32 * 1024 * 64 + 4096;
    // Every row odd, or even and about nothing, or full of bytes.
    let wild = |seed: u64| {
        let fd = memfd(bytes, all);
        let mut random = Random(seed);
        for at in (0..bytes / 8).step_by(64) {
            let words: Vec<u8> = (0..64).flat_map(|_| (random.next() >> random.below(64)).to_ne_bytes()).collect();
            rustix::io::pwrite(&fd, &words, at * 8).unwrap();
        }
        fd
    };
    let export_tables =
        [eventfd(), memfd(bytes - 4096, all), memfd(bytes, SealFlags::SHRINK), memfd(bytes, all), wild(1), wild(2)];
    for export_table in &export_tables {
        let nonce = Box::new([7; NONCE]);
        let peer = Proven::new(node, &nonce);
        peer.give(&eventfd(), Some(export_table));
        let link = node.env.links()[1];
        node.until("single copies", |node| {
            node.env.caps(link).single_copy.is_some() || std::env::var_os("SOFTRNIC_SINGLE_COPY").is_some()
        });
        let mut local = vec![0; 5000];
        for key in 0..2000 {
            let request = OneSided {
                service: [QpType::Rc, QpType::Uc, QpType::XrcIni][key as usize % 3],
                src: node.qpn,
                dst: Qpn::new(key),
                epoch: None,
                op: wire::OneSidedOp::Read,
                rkey: RKey(key),
                addr: u64::from(key),
                len: 5000,
                before: 0,
                after: key / 2 % 2,
                mtu: 1024,
                queues: key % 2 == 0,
                local: Payload { prefix: &[], spans: &[common::span(&mut local)] },
            };
            assert_eq!(node.env.one_sided(link, &request), None);
        }
        drop(peer);
        node.until("the end", |node| node.env.stats().links == 1);
    }
}

fn offers_that_are_refused(node: &mut Node) {
    let before = open_fds();
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let good = Half::WINDOW as u64;
    let null = std::fs::File::open("/dev/null").unwrap();
    let bell = eventfd();
    let windows = [
        memfd(good, SealFlags::SHRINK | SealFlags::GROW),
        memfd(good, SealFlags::SHRINK | SealFlags::SEAL),
        memfd(good, SealFlags::GROW | SealFlags::SEAL),
        memfd(good, SealFlags::empty()),
        memfd(good, all | SealFlags::WRITE),
        memfd(good, all | SealFlags::FUTURE_WRITE),
        memfd(good - 4096, all),
        memfd(good + 4096, all),
        memfd(0, all),
        null.try_clone().unwrap().into(),
        eventfd(),
    ];
    for window in &windows {
        let socket = connect(node);
        assert!(send(&socket, &hello(), &[window.as_fd()]));
        assert_eq!(peers(node), 0);
        assert!(closed(&socket));
    }
    let (window, fd) = Memfd::create(Half::WINDOW).unwrap();
    drop(window);
    for fds in [
        &[] as &[BorrowedFd<'_>],
        &[fd.as_fd(), bell.as_fd()],
        &[bell.as_fd()],
        &[bell.as_fd(), fd.as_fd()],
        &[fd.as_fd(), bell.as_fd(), bell.as_fd()],
        &[fd.as_fd(); 16],
    ] {
        let socket = connect(node);
        assert!(send(&socket, &hello(), fds));
        assert_eq!(peers(node), 0);
        assert!(closed(&socket));
    }
    drop((windows, null, bell, fd));
    settle(before);
}

fn garbage(node: &mut Node) {
    let before = open_fds();
    let mut random = Random(42);
    let bell = eventfd();
    let (_window, fd) = Memfd::create(Half::WINDOW).unwrap();
    for i in 0..2000 {
        let socket = connect(node);
        let mut bytes = hello();
        match i % 4 {
            0 => {
                let len = random.below(400) as usize;
                bytes = (0..len).map(|_| random.next() as u8).collect();
            }
            1 => {
                // The flag is all that may differ.
                let at = random.below(16) as usize;
                bytes[at] ^= 1 << random.below(8);
                if at == 13 {
                    bytes[at] = 4;
                }
            }
            2 => bytes.truncate(random.below(40) as usize),
            _ => bytes.resize(41 + random.below(9000) as usize, 0),
        }
        let fds = [fd.as_fd(), bell.as_fd(), fd.as_fd()];
        send(&socket, &bytes, &fds[..random.below(4) as usize]);
        if random.below(2) == 0 {
            drop(socket);
            assert_eq!(peers(node), 0);
        } else {
            assert_eq!(peers(node), 0);
            assert!(closed(&socket));
        }
    }
    drop((bell, _window, fd));
    settle(before);
}

fn silence(node: &mut Node) {
    let before = open_fds();
    let sockets: Vec<_> = (0..300).map(|_| connect(node)).collect();
    for _ in 0..10 {
        node.env.handle_events(1_000_000_000);
    }
    // Only so many connections are kept waiting. The oldest go first.
    assert_eq!(sockets.iter().filter(|s| !closed(s)).count(), 64);
    assert!(closed(&sockets[0]) && !closed(&sockets[299]));
    assert_eq!(node.env.deadline(), Some(6_000_000_000));
    node.env.handle_events(5_999_999_999);
    assert!(!closed(&sockets[299]));
    // A connection that speaks in time is heard.
    let (_window, fd) = Memfd::create(Half::WINDOW).unwrap();
    assert!(send(&sockets[299], &hello(), &[fd.as_fd()]));
    node.env.handle_events(5_999_999_999);
    assert_eq!(node.env.stats().links, 2);
    node.env.handle_events(6_000_000_000);
    assert_eq!(sockets.iter().filter(|s| !closed(s)).count(), 1);
    assert_eq!(node.env.deadline(), None);
    drop((sockets, _window, fd));
    node.until("the end", |node| node.env.stats().links == 1);
    settle(before);
}

fn nonsense_after_hello(node: &mut Node) {
    let bell = eventfd();
    for (message, fds) in [
        (Some(Message::Hello(greeting())), 0),
        (Some(Message::Welcome(welcome())), 0),
        (Some(Message::Welcome(welcome())), 1),
        (Some(Message::Table { export_table: false }), 0),
        (Some(Message::Table { export_table: true }), 1),
        (Some(Message::Table { export_table: false }), 2),
        (Some(Message::Ring), 1),
        // There is one try, and it was wrong.
        (Some(Message::Proof([0; NONCE])), 0),
        (None, 16),
        (None, 1),
        (None, 0),
    ] {
        let (_window, fd) = Memfd::create(Half::WINDOW).unwrap();
        let socket = connect(node);
        assert!(send(&socket, &hello(), &[fd.as_fd()]));
        assert_eq!(peers(node), 1);
        let (Some(Message::Welcome(its)), fds_then) = receive(&socket) else { panic!("no WELCOME") };
        assert!(fds_then.is_empty());
        // These messages are well formed. The peer says that it can copy from us, and has not read what is to be read.
        assert!(send(&socket, &rendezvous::emit(&Message::Ring), &[]));
        let echo = Message::Echo { secret: [7; rendezvous::SECRET], block: 1 };
        assert!(send(&socket, &rendezvous::emit(&echo), &[]));
        assert!(send(&socket, &rendezvous::emit(&Message::Proof([1; NONCE])), &[]));
        assert_eq!(peers(node), 1);
        let link = node.env.links()[1];
        assert!(node.env.caps(link).single_copy.is_none());
        // Neither a doorbell nor the export table, also when the right answer comes behind a wrong one.
        let (heard, fds_then) = receive(&socket);
        assert_eq!((heard, fds_then.len()), (None, 0));
        let bytes = match &message {
            Some(Message::Proof(_)) => rendezvous::emit(&Message::Proof(read_nonce_or_zeros(&its))),
            Some(message) => rendezvous::emit(message),
            None => vec![0; fds],
        };
        assert!(send(&socket, &bytes, &[bell.as_fd(), bell.as_fd()][..if message.is_some() { fds } else { 0 }]));
        node.until("the end", |node| node.env.stats().links == 1);
        assert!(receive(&socket).1.is_empty() && closed(&socket));
    }
}

/// The bytes that lie where a nonce was, if any do.
fn read_nonce_or_zeros(greeting: &Greeting) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    let _ = memory::single_copy::peek(std::process::id(), greeting.nonce_addr, &mut nonce);
    nonce
}

/// A packet for a peer that sleeps, so that it is rung.
fn ring(node: &mut Node, peer: &Proven) {
    let link = node.env.links()[1];
    // The peer sleeps (the word is in the half towards it).
    rustix::io::pwrite(&peer.window, &1u32.to_ne_bytes(), (Half::BYTES + 128) as u64).unwrap();
    let rings = node.env.stats().rings;
    node.env.send_quietly(link, &packet(node.qpn, node.qpn, 0, 0), Payload::default()).unwrap();
    assert!(!node.env.owes_ring() && !node.env.must_ring_now());
    node.env.send(link, &packet(node.qpn, node.qpn, 0, 0), Payload::default()).unwrap();
    node.env.ring_doorbells();
    assert_eq!(node.env.stats().rings, rings + 1);
}

fn a_doorbell_that_is_none(node: &mut Node) {
    // A full pipe: writing to it would block.
    let (rx, tx) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    while rustix::io::write(&tx, &[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&tx, false).unwrap();
    let peer = Proven::new(node, &[3; NONCE]);
    peer.give(&tx, None);
    assert_eq!(peers(node), 1);
    ring(node, &peer);
    // The ring comes by the socket.
    assert_eq!(receive(&peer.socket).0, Some(Message::Ring));
    drop((rx, tx, peer));
    node.until("the end", |node| node.env.stats().links == 1);
}

/// A peer that has proved nothing gives an eventfd with a full counter, so that a write blocks: the victim never writes
/// to it.
fn a_doorbell_of_the_unproven(node: &mut Node) {
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let (_, window) = Memfd::create(Half::WINDOW).unwrap();
    let peer = Proven { socket: connect(node), window, bell: eventfd() };
    assert!(send(&peer.socket, &hello(), &[peer.window.as_fd()]));
    assert_eq!(peers(node), 1);
    peer.give(&full, None);
    assert_eq!(peers(node), 1);
    assert!(matches!(receive(&peer.socket).0, Some(Message::Welcome(_))));
    let began = Instant::now();
    ring(node, &peer);
    assert_eq!(receive(&peer.socket).0, Some(Message::Ring));
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    drop(peer);
    node.until("the end", |node| node.env.stats().links == 1);
}

/// Each peer has a doorbell of its own: one that reads it, or makes it block, hears nothing of the others' rings and
/// holds up no process.
fn a_thief_of_rings(node: &mut Node, honest: &mut Node) {
    let thief = Proven::new(node, &[4; NONCE]);
    let link = honest.resolve(node.qpn);
    for _ in 0..10 {
        node.round(|_, _, _, _| {});
        honest.round(|_, _, _, _| {});
    }
    rustix::io::ioctl_fionbio(&thief.bell, false).unwrap();
    for n in 0..20 {
        assert!(node.env.announce_sleep());
        let p = packet(node.qpn, honest.qpn, n, 0);
        honest.env.send(link, &p, Payload::default()).unwrap();
        honest.env.ring_doorbells();
        // The thief looks for a ring to steal.
        let mut none = [rustix::event::PollFd::new(&thief.bell, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut none, Some(&now)), Ok(0), "the ring of another peer");
        let epoll = node.env.epoll_fd();
        let mut fds = [rustix::event::PollFd::new(&epoll, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "not woken");
        // The thief's own ring is heard, too, and the victim does not wait when that ring is gone again.
        rustix::io::write(&thief.bell, &1u64.to_ne_bytes()).unwrap();
        rustix::io::read(&thief.bell, &mut [0; 8]).unwrap();
        let began = Instant::now();
        let mut got = 0;
        node.round(|_, _, _, _| got += 1);
        assert!(got == 1 && began.elapsed() < Duration::from_secs(8), "{got} in {:?}", began.elapsed());
        node.env.suppress_doorbells();
    }
    drop(thief);
    node.until("the end", |node| node.env.stats().links == 2);
}

/// Writes anything anywhere into the window while the victim uses it. Gives the packets that were taken for good.
fn scribbler(node: &mut Node, seed: u64) -> u32 {
    let mut taken = 0;
    let (window, fd) = Memfd::create(Half::WINDOW).unwrap();
    let socket = connect(node);
    assert!(send(&socket, &hello(), &[fd.as_fd()]));
    assert_eq!(peers(node), 1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(seed);
            let mut slot = 0u32;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let (bytes, at) = match random.below(if seed.is_multiple_of(2) { 4 } else { 64 }) {
                    // Anything anywhere.
                    0 => (random.next(), random.below(Half::WINDOW as u64 - 8)),
                    // The control words.
                    1 => (random.below(2000), random.below(2) * Half::BYTES as u64 + random.below(3) * 128),
                    // Good laps, bad rest.
                    2 => (1 << 32 | random.next() >> 32, Half::slot_at(slot) as u64),
                    // What an honest producer might write.
                    _ => {
                        slot = (slot + 1) % 1024;
                        (1 << 32 | random.below(32), Half::slot_at(slot) as u64)
                    }
                };
                let _ = rustix::io::pwrite(&fd, &bytes.to_ne_bytes(), at);
            }
        });
        let start = Instant::now();
        let (mut seen, from) = (0u32, node.qpn);
        while start.elapsed() < Duration::from_millis(50) && node.env.stats().links == 2 {
            let mut out = vec![0u8; 16384];
            let mut links = Vec::new();
            node.round(|env, link, _, rx| {
                let len = env.rx_len(rx);
                assert!(len <= 16384);
                env.rx_fetch(rx, 0, &mut out[..len as usize]);
                links.push(link);
                taken += 1;
            });
            for link in links {
                let bytes = pattern(seen, seen as usize % 16384);
                let _ =
                    node.env.send(link, &packet(from, from, seen, bytes.len()), Payload { prefix: &bytes, spans: &[] });
                let mark = node.env.sent_mark(link);
                node.env.taken(link, mark);
            }
            node.env.take_writable(&mut Vec::new());
            if node.env.announce_sleep() {
                node.env.suppress_doorbells();
            }
            seen += 1;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    drop((window, fd, socket));
    node.until("the end", |node| node.env.stats().links == 1);
    node.dead.clear();
    taken
}

/// The other direction: the victim connects to a process that has bound a block's name.
fn foreign_answers() {
    let mut node = Node::new();
    let mut random = Random(7);
    // Any block that is free.
    let (block, listener) = loop {
        let block = 1 + random.below(0xffe) as u16;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let name = rendezvous::block_name(block);
        if rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).is_ok() {
            break (block, socket);
        }
    };
    let qpn = verbs::Qpn::new(u32::from(block) << 12);
    // The name is bound, but no process listens.
    assert_eq!(node.env.resolve(&common::LOCALHOST, qpn), None);
    rustix::net::listen(&listener, 1).unwrap();
    let bell = eventfd();
    for (bytes, fds) in [
        (rendezvous::emit(&Message::Welcome(welcome())), 1),
        (rendezvous::emit(&Message::Welcome(welcome())), 2),
        (rendezvous::emit(&Message::Proof([0; NONCE])), 0),
        (rendezvous::emit(&Message::Table { export_table: false }), 1),
        (hello(), 0),
        (vec![7; 50], 1),
    ] {
        let link = node.resolve(qpn);
        assert_ne!(link, LinkId::LOOPBACK);
        let socket = rustix::net::accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).unwrap();
        assert!(send(&socket, &bytes, &[bell.as_fd(), bell.as_fd()][..fds]));
        node.until("the end", |node| node.dead == [link]);
        node.dead.clear();
    }
    // A good message, twice.
    let link = node.resolve(qpn);
    let socket = rustix::net::accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).unwrap();
    let welcome = rendezvous::emit(&Message::Welcome(welcome()));
    assert!(send(&socket, &welcome, &[]));
    assert_eq!(peers(&mut node), 1);
    assert!(send(&socket, &welcome, &[]));
    node.until("the end", |node| node.dead == [link]);
}

fn still_works(mut node: Node, mut honest: Node) {
    let link = honest.resolve(node.qpn);
    let bytes = pattern(3, 10_000);
    let p = packet(node.qpn, honest.qpn, 3, bytes.len());
    honest.env.send(link, &p, Payload { prefix: &bytes, spans: &[] }).unwrap();
    let mut got = 0;
    node.round(|env, _, _, rx| {
        assert!(common::payload(env, rx) == bytes);
        got += 1;
    });
    assert_eq!(got, 1);
}
