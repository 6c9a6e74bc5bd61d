//! Peers that keep to no rule. The victim must go on, close what it was given, and serve honest peers meanwhile.

mod common;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use common::{Node, packet, pattern};
use engine::platform::{LinkId, Payload, Platform, Reach, Shown};
use memory::Half;
use memory::backing::Memfd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use verbs::{Access, PdId, Qpn, RKey};
use window::rendezvous::{self, Greeting, Message};

/// A reproducible source of bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

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

fn hello() -> Vec<u8> {
    rendezvous::emit(&Message::Hello(Greeting {
        instance: [9; 16],
        cookie_addr: 0,
        cookie: [9; 64],
        straight: true,
        board: false,
    }))
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

/// Links other than the loopback link.
fn peers(node: &mut Node) -> usize {
    for _ in 0..3 {
        node.round(|_, _, _, _| {});
    }
    node.platform.stats().links - 1
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
    let honest = Node::new();
    // It has something to show, so its own board counts with what was open before.
    let (pd, access) = (PdId { index: 0, generation: 0 }, Access::REMOTE_READ);
    node.platform.show(&Shown::Region { key: 5, pd, access, addr: 0, length: 1, iova: 0 });
    offers_that_are_refused(&mut node);
    garbage(&mut node);
    silence(&mut node);
    nonsense_after_hello(&mut node);
    a_doorbell_that_is_none(&mut node);
    boards_that_are_none(&mut node);
    let taken: u32 = (1..=40).map(|seed| scribbler(&mut node, seed)).sum();
    assert!(taken > 1000, "{taken}");
    foreign_answers();
    still_works(node, honest);
}

/// A board that is none, or says what is not so: requests find nothing to act on, or memory that is not there.
fn boards_that_are_none(node: &mut Node) {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let bytes = 32 * 1024 * 64 + 4096;
    let cookie = Box::new([7u8; 64]);
    let offer = Greeting {
        instance: [9; 16],
        cookie_addr: cookie.as_ptr().expose_provenance() as u64, // ours, as this process is its own peer here
        cookie: *cookie,
        straight: true,
        board: true,
    };
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
    let boards =
        [eventfd(), memfd(bytes - 4096, all), memfd(bytes, SealFlags::SHRINK), memfd(bytes, all), wild(1), wild(2)];
    for board in &boards {
        let (window, fd) = Memfd::create(Half::WINDOW).unwrap();
        let bell = eventfd();
        let socket = connect(node);
        let hello = rendezvous::emit(&Message::Hello(offer.clone()));
        assert!(send(&socket, &hello, &[fd.as_fd(), bell.as_fd(), board.as_fd()]));
        assert_eq!(peers(node), 1);
        assert!(send(&socket, &rendezvous::emit(&Message::Probed(true)), &[]));
        let link = node.platform.links()[1];
        node.until("straight", |node| {
            node.platform.caps(link).straight || std::env::var_os("SOFTRNIC_STRAIGHT").is_some()
        });
        let mut local = vec![0; 5000];
        for key in 0..2000 {
            let request = Reach {
                src: node.qpn,
                dst: Qpn::new(key),
                epoch: None,
                op: engine::platform::ReachOp::Read,
                rkey: RKey(key),
                addr: u64::from(key),
                len: 5000,
                queues: key % 2 == 0,
                local: Payload { prefix: &[], spans: &[common::span(&mut local)] },
            };
            assert_eq!(node.platform.reach(link, &request), None);
        }
        drop((window, fd, bell, socket));
        node.until("the end", |node| node.platform.stats().links == 1);
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
        assert!(send(&socket, &hello(), &[window.as_fd(), bell.as_fd()]));
        assert_eq!(peers(node), 0);
        assert!(closed(&socket));
    }
    let (window, fd) = Memfd::create(Half::WINDOW).unwrap();
    drop(window);
    for fds in [
        &[] as &[BorrowedFd<'_>],
        &[fd.as_fd()],
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
    assert_eq!(open_fds(), before);
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
                    bytes[at] = 4; // and 2, a board, needs its descriptor
                }
            }
            2 => bytes.truncate(random.below(104) as usize),
            _ => bytes.resize(105 + random.below(9000) as usize, 0),
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
    assert_eq!(open_fds(), before);
}

fn silence(node: &mut Node) {
    let before = open_fds();
    let sockets: Vec<_> = (0..300).map(|_| connect(node)).collect();
    for _ in 0..10 {
        node.platform.handle_events(1_000_000_000);
    }
    // Only so many are kept waiting, the oldest go first.
    assert_eq!(sockets.iter().filter(|s| !closed(s)).count(), 64);
    assert!(closed(&sockets[0]) && !closed(&sockets[299]));
    assert_eq!(node.platform.deadline(), Some(6_000_000_000));
    node.platform.handle_events(5_999_999_999);
    assert!(!closed(&sockets[299]));
    // One that speaks in time is heard.
    let (_window, fd) = Memfd::create(Half::WINDOW).unwrap();
    let bell = eventfd();
    assert!(send(&sockets[299], &hello(), &[fd.as_fd(), bell.as_fd()]));
    node.platform.handle_events(5_999_999_999);
    assert_eq!(node.platform.stats().links, 2);
    node.platform.handle_events(6_000_000_000);
    assert_eq!(sockets.iter().filter(|s| !closed(s)).count(), 1);
    assert_eq!(node.platform.deadline(), None);
    drop((sockets, _window, fd, bell));
    node.until("the end", |node| node.platform.stats().links == 1);
    assert_eq!(open_fds(), before);
}

fn nonsense_after_hello(node: &mut Node) {
    let greeting = Greeting { instance: [9; 16], cookie_addr: 0, cookie: [9; 64], straight: true, board: false };
    let bell = eventfd();
    for (bytes, fds) in [
        (hello(), 0),
        (rendezvous::emit(&Message::Welcome(greeting.clone())), 0),
        (rendezvous::emit(&Message::Welcome(greeting.clone())), 1),
        (rendezvous::emit(&Message::Welcome(Greeting { board: true, ..greeting })), 1),
        (rendezvous::emit(&Message::Ring), 1),
        (rendezvous::emit(&Message::Probed(true)), 2),
        (vec![0; 16], 0),
        (vec![1], 0),
        (Vec::new(), 0),
    ] {
        let (_window, fd) = Memfd::create(Half::WINDOW).unwrap();
        let socket = connect(node);
        assert!(send(&socket, &hello(), &[fd.as_fd(), bell.as_fd()]));
        assert_eq!(peers(node), 1);
        // These two are fine.
        assert!(send(&socket, &rendezvous::emit(&Message::Ring), &[]));
        assert!(send(&socket, &rendezvous::emit(&Message::Probed(true)), &[]));
        assert_eq!(peers(node), 1);
        let link = node.platform.links()[1];
        // It says that it can copy from us; we cannot from it (its cookie is not where it says), so nobody does.
        assert!(!node.platform.caps(link).straight);
        assert!(send(&socket, &bytes, &[bell.as_fd(), bell.as_fd()][..fds]));
        node.until("the end", |node| node.platform.stats().links == 1);
        assert!(closed(&socket));
    }
}

fn a_doorbell_that_is_none(node: &mut Node) {
    // A full pipe: writing to it would block.
    let (rx, tx) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    while rustix::io::write(&tx, &[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&tx, false).unwrap();
    let (window, fd) = Memfd::create(Half::WINDOW).unwrap();
    let socket = connect(node);
    assert!(send(&socket, &hello(), &[fd.as_fd(), tx.as_fd()]));
    assert_eq!(peers(node), 1);
    let link = node.platform.links()[1];
    // We sleep (the word is in the half towards us), so it wants to ring.
    rustix::io::pwrite(&fd, &1u32.to_ne_bytes(), (Half::BYTES + 128) as u64).unwrap();
    node.platform.send(link, &packet(node.qpn, node.qpn, 0, 0), Payload::default()).unwrap();
    let rings = node.platform.stats().rings;
    node.platform.kick();
    assert_eq!(node.platform.stats().rings, rings + 1);
    drop((rx, tx, window, fd, socket));
    node.until("the end", |node| node.platform.stats().links == 1);
}

/// Writes anything anywhere into the window while the victim uses it. Gives the packets that were taken for good.
fn scribbler(node: &mut Node, seed: u64) -> u32 {
    let mut taken = 0;
    let (window, fd) = Memfd::create(Half::WINDOW).unwrap();
    let bell = eventfd();
    let socket = connect(node);
    assert!(send(&socket, &hello(), &[fd.as_fd(), bell.as_fd()]));
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
        while start.elapsed() < Duration::from_millis(50) && node.platform.stats().links == 2 {
            let mut out = vec![0u8; 16384];
            let mut links = Vec::new();
            node.round(|platform, link, _, rx| {
                let len = platform.rx_len(rx);
                assert!(len <= 16384);
                platform.rx_fetch(rx, 0, &mut out[..len as usize]);
                links.push(link);
                taken += 1;
            });
            for link in links {
                let bytes = pattern(seen, seen as usize % 16384);
                let _ = node.platform.send(
                    link,
                    &packet(from, from, seen, bytes.len()),
                    Payload { prefix: &bytes, spans: &[] },
                );
                let mark = node.platform.sent_mark(link);
                node.platform.taken(link, mark);
            }
            node.platform.take_writable(&mut Vec::new());
            if node.platform.announce_sleep() {
                node.platform.suppress_doorbells();
            }
            seen += 1;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    drop((window, fd, bell, socket));
    node.until("the end", |node| node.platform.stats().links == 1);
    node.dead.clear();
    taken
}

/// The other way round: the victim connects to someone who has bound a block's name.
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
    // Bound, but nobody listens.
    assert_eq!(node.platform.resolve(&common::LOCALHOST, qpn), None);
    rustix::net::listen(&listener, 1).unwrap();
    let bell = eventfd();
    let greeting = Greeting { instance: [9; 16], cookie_addr: 8, cookie: [9; 64], straight: true, board: false };
    for (bytes, fds) in [
        (rendezvous::emit(&Message::Welcome(greeting.clone())), 0),
        (rendezvous::emit(&Message::Welcome(greeting.clone())), 2),
        (hello(), 1),
        (vec![7; 50], 1),
    ] {
        let link = node.resolve(qpn);
        assert_ne!(link, LinkId::LOOPBACK);
        let socket = rustix::net::accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).unwrap();
        assert!(send(&socket, &bytes, &[bell.as_fd(), bell.as_fd()][..fds]));
        node.until("the end", |node| node.dead == [link]);
        node.dead.clear();
    }
    // A good one, twice.
    let link = node.resolve(qpn);
    let socket = rustix::net::accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).unwrap();
    let welcome = rendezvous::emit(&Message::Welcome(greeting));
    assert!(send(&socket, &welcome, &[bell.as_fd()]));
    assert_eq!(peers(&mut node), 1);
    assert!(send(&socket, &welcome, &[bell.as_fd()]));
    node.until("the end", |node| node.dead == [link]);
}

fn still_works(mut node: Node, mut honest: Node) {
    let link = honest.resolve(node.qpn);
    let bytes = pattern(3, 10_000);
    let p = packet(node.qpn, honest.qpn, 3, bytes.len());
    honest.platform.send(link, &p, Payload { prefix: &bytes, spans: &[] }).unwrap();
    let mut got = 0;
    node.round(|platform, _, _, rx| {
        assert!(common::payload(platform, rx) == bytes);
        got += 1;
    });
    assert_eq!(got, 1);
}
