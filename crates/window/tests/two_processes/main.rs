//! Packets, single copies, sleep and death between two processes.

#[path = "../common/mod.rs"]
mod common;
mod copies;
mod deaths;

use std::time::{Duration, Instant};

use common::{LOCALHOST, NAP, Node, Other, packet, pattern, payload, say, span, told};
use copies::{hear, ticket_in};
use verbs::{Access, CtxId, PdId, QpType, Qpn, RKey};
use wire::prelude::*;
use wire::{Export, ExportId, LinkId, OneSided, OneSidedOp, Payload, SendError, SingleCopyError, Span, TicketRef};

/// The rkey that the other process shows.
const KEY: u32 = 0x12_3456;
const CTX: CtxId = CtxId { index: 1, generation: 0 };

/// A queue pair connected to queue pair number 0x777.
fn queue_pair(qpn: Qpn, pd: PdId, access: Access, epoch: u64) -> Export {
    Export::Qp { qpn, service: QpType::Rc, peer: Qpn::new(0x777), ctx: CTX, pd: Some(pd), access, mtu: 1024, epoch }
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn child() {
    let Some(role) = common::role() else { return };
    let at_first = open_fds();
    let mut node = Node::new();
    say(node.qpn.get());
    match role.as_str() {
        "echo" => common::echo(&mut node, false, || false),
        "sleeper" => common::echo(&mut node, true, || false),
        "memory" => {
            let mut bytes = pattern(1, 1 << 20);
            say(span(&mut bytes).addr);
            let (pd, access) = (PdId { index: 3, generation: 1 }, Access::REMOTE_READ | Access::REMOTE_WRITE);
            let addr = span(&mut bytes).addr;
            node.env.publish(&Export::Region {
                key: KEY,
                through: None,
                ctx: CTX,
                pd,
                access,
                addr,
                length: 1 << 20,
                iova: 4096,
            });
            node.env.publish(&queue_pair(node.qpn, pd, access, 99));
            common::echo(&mut node, true, || false);
        }
        // Has a link from the peer, and then no descriptor left.
        "crowded" => {
            let peer = Qpn::new(told().parse().unwrap());
            node.until("a link", |node| node.env.links().len() == 2);
            let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            let mut all = Vec::new();
            while let Ok(file) = std::fs::File::open("/dev/null") {
                all.push(file);
            }
            let links = node.env.links().to_vec();
            let found = node.env.resolve(&common::LOCALHOST, peer);
            say(u8::from(found == Some(links[1])));
        }
        // May have no descriptors at all, not even the spare one, while a peer comes; then it may again.
        "poor" => {
            let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            let limit = |limit| rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            limit(rustix::process::Rlimit { current: Some(3), ..before });
            say("come");
            told();
            let (start, mut woken) = (Instant::now(), 0);
            while start.elapsed() < Duration::from_millis(500) {
                let now = node.now();
                let wait = node.env.deadline().map_or(50_000_000, |at| at.saturating_sub(now).min(50_000_000));
                let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: wait as i64 };
                let epoll = node.env.epoll_fd();
                let mut fds = [rustix::event::PollFd::new(&epoll, rustix::event::PollFlags::IN)];
                let _ = rustix::event::poll(&mut fds, Some(&wait));
                woken += 1;
                let now = node.now();
                node.env.handle_events(now);
            }
            say(woken);
            limit(before);
            node.until("a link", |node| node.env.links().len() == 2);
            say("in");
        }
        // Pushes for each ticket, from 0 on, until that is void.
        "pusher" => {
            let line = told();
            let (word, memory) = line.split_once(' ').unwrap();
            let (word, memory): (u64, u64) = (word.parse().unwrap(), memory.parse().unwrap());
            node.until("a peer that permits it", |node| {
                node.env.links().get(1).is_some_and(|&link| node.env.caps(link).single_copy.is_some())
            });
            let link = node.env.links()[1];
            let mut bytes = vec![0u8; 1 << 20];
            for value in 0u32.. {
                let mut pushes = 0u8;
                loop {
                    bytes.fill(pushes);
                    let ticket = TicketRef { addr: word, value: u64::from(value) };
                    let remote = [Span { addr: memory, len: 1 << 20, guarded: false }];
                    match node.env.push(link, ticket, &[span(&mut bytes)], &remote) {
                        Ok(()) => {}
                        Err(SingleCopyError::Void) => break,
                        Err(e) => panic!("{e:?}"),
                    }
                    if pushes == 0 {
                        let begun = packet(Qpn::new(4096), node.qpn, value, 0);
                        node.env.send(link, &begun, Payload::default()).unwrap();
                        node.env.ring_doorbells();
                    }
                    pushes = pushes.wrapping_add(1);
                }
                hear(&mut node, value);
            }
        }
        // Writes to what its peer shows, again and again.
        "reacher" => {
            let peer = Qpn::new(told().parse().unwrap());
            node.until("a peer that permits it", |node| {
                node.env.links().get(1).is_some_and(|&link| node.env.caps(link).single_copy.is_some())
            });
            let link = node.env.links()[1];
            let mut bytes = vec![0u8; 1 << 20];
            for n in (0..=250u8).cycle() {
                bytes.fill(n);
                let local = Payload { prefix: &bytes, spans: &[] };
                let (src, rkey, len) = (Qpn::new(0x777), RKey(KEY), 1 << 20);
                let request = OneSided {
                    service: QpType::Rc,
                    src,
                    dst: peer,
                    epoch: None,
                    op: OneSidedOp::Write,
                    rkey,
                    addr: 0,
                    len,
                    before: 0,
                    after: 0,
                    mtu: 1024,
                    queues: false,
                    local,
                };
                node.env.one_sided(link, &request);
                if n == 250 {
                    node.round(|_, _, _, _| {});
                    if !node.dead.is_empty() {
                        return; // the test is over
                    }
                }
            }
        }
        // Takes nothing until told.
        "lazy" => {
            told();
            common::echo(&mut node, true, || false);
        }
        // Answers every packet with one like it, as fast as it can.
        "mirror" => {
            let mut bytes = vec![0; 16384];
            loop {
                for _ in 0..10_000 {
                    for i in 1..node.env.links().len() {
                        let link = node.env.links()[i];
                        let Some((p, rx)) = node.env.peek(link) else {
                            continue;
                        };
                        let len = node.env.rx_len(rx) as usize;
                        node.env.rx_fetch(rx, 0, &mut bytes[..len]);
                        node.env.release(link);
                        let payload = Payload { prefix: &bytes[..len], spans: &[] };
                        node.env.send(link, &p, payload).unwrap();
                        node.env.ring_doorbells();
                    }
                    std::hint::spin_loop();
                }
                let now = node.now();
                node.env.handle_events(now);
            }
        }
        // Does what a forked child does, and tells which descriptors are left.
        "forked" => {
            let mut other = Node::new();
            other.resolve(node.qpn);
            node.round(|_, _, _, _| {});
            other.round(|_, _, _, _| {});
            say(open_fds() > at_first + 10);
            other.env.close_after_fork();
            node.env.close_after_fork();
            say(open_fds() == at_first);
            std::process::abort();
        }
        // Connects to the parent, sends, and is gone.
        "brief" => {
            let parent = Qpn::new(told().parse().unwrap());
            let link = node.resolve(parent);
            for n in 0..500 {
                let bytes = pattern(n, 100);
                let payload = Payload { prefix: &bytes, spans: &[] };
                node.env.send(link, &packet(parent, node.qpn, n, 100), payload).unwrap();
            }
            std::process::abort();
        }
        other => panic!("no role {other}"),
    }
}

/// Sends and receives with an echo, as many in flight as fit.
fn exchange(node: &mut Node, peer: Qpn, sizes: &[usize]) {
    let link = node.resolve(peer);
    let (mut sent, mut got) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    let from = node.qpn;
    while got < sizes.len() {
        while sent < sizes.len() {
            let mut bytes = pattern(sent as u32, sizes[sent]);
            // A prefix and two spans.
            let (prefix, rest) = bytes.split_at_mut(sizes[sent] / 3);
            let (a, b) = rest.split_at_mut(rest.len() / 2);
            let spans = [span(a), Span { guarded: true, ..span(b) }];
            match node.env.send(link, &packet(peer, from, sent as u32, sizes[sent]), Payload { prefix, spans: &spans })
            {
                Ok(()) => sent += 1,
                Err(SendError::Full) => break,
                Err(e) => panic!("{e:?}"),
            }
        }
        node.env.ring_doorbells();
        let taken = node.round(|env, _, packet, rx| {
            assert_eq!(packet.imm, got as u32);
            let bytes = if got % 2 == 0 {
                payload(env, rx)
            } else {
                let mut bytes = vec![0; packet.len as usize];
                let half = bytes.len() / 2;
                env.rx_fetch(rx, 0, &mut bytes[..half]);
                let (c, d) = bytes[half..].split_at_mut(packet.len as usize / 4);
                let spans = [span(c), Span { guarded: true, ..span(d) }];
                env.rx_scatter(rx, half as u32, &spans).unwrap();
                bytes
            };
            assert!(bytes == pattern(got as u32, sizes[got]), "bytes of packet {got}");
            got += 1;
        });
        assert!(Instant::now() < deadline, "sent {sent}, got {got}");
        if taken == 0 {
            std::thread::yield_now();
        }
    }
}

/// A visitor that can neither be let in nor be turned away is not looked at again and again. It comes in later.
#[test]
fn a_visitor_who_cannot_be_let_in_keeps_nobody_awake() {
    let mut other = Other::start("poor");
    let mut node = Node::new();
    let qpn = Qpn::new(other.hear_number() as u32);
    assert_eq!(other.hear(), "come");
    node.resolve(qpn);
    other.tell("");
    let woken = other.hear_number();
    assert!((1..40).contains(&woken), "{woken} times in half a second");
    assert_eq!(other.hear(), "in");
}

#[test]
fn all_sizes_both_ways() {
    let mut other = Other::start("echo");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    let mut sizes: Vec<usize> = (0..=700).collect();
    sizes.extend((700..=16384).step_by(61));
    sizes.extend([16383, 16384, 4096, 1, 0, 16384, 64, 65, 16320]);
    exchange(&mut node, peer, &sizes);
    assert!(node.env.stats().sent_packets as usize >= sizes.len());
}

#[test]
fn a_peer_that_sleeps_is_woken() {
    let mut other = Other::start("sleeper");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    let link = node.resolve(peer);
    let from = node.qpn;
    for n in 0..300 {
        if n % 3 == 0 {
            // Time to fall asleep.
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes = pattern(n, 8);
        node.env.send(link, &packet(peer, from, n, 8), Payload { prefix: &bytes, spans: &[] }).unwrap();
        node.env.ring_doorbells();
        let start = Instant::now();
        let mut back = false;
        while !back {
            node.round(|env, _, packet, rx| {
                assert_eq!((packet.imm, payload(env, rx)), (n, pattern(n, 8)));
                back = true;
            });
            if !back {
                node.sleep(NAP);
            }
            // A lost wake-up costs a whole nap.
            assert!(start.elapsed() < NAP / 2, "round {n} took {:?}", start.elapsed());
        }
    }
    assert!(node.env.stats().rings > 0);
    exchange(&mut node, peer, &vec![9000; 3000]);
}

/// Sends packets of one size until the ring is full, to a peer that takes none; then lets the peer go and counts what
/// comes back. Gives how many fitted.
fn fill(len: usize) -> u32 {
    let mut other = Other::start("lazy");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    let link = node.resolve(peer);
    let (from, bytes) = (node.qpn, pattern(7, len));
    let mut sent = 0;
    let error = loop {
        match node.env.send(link, &packet(peer, from, sent, len), Payload { prefix: &bytes, spans: &[] }) {
            Ok(()) => sent += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(error, SendError::Full);
    let mark = node.env.sent_mark(link);
    assert!(!node.env.taken(link, mark));
    let mut room = Vec::new();
    node.env.take_writable(&mut room);
    assert!(room.is_empty());

    other.tell("go");
    let mut back = 0;
    let start = Instant::now();
    while back < sent || room.is_empty() {
        node.round(|env, _, packet, rx| {
            assert_eq!(packet.imm, back);
            assert!(payload(env, rx) == bytes);
            back += 1;
        });
        node.env.take_writable(&mut room);
        if back < sent || room.is_empty() {
            node.sleep(NAP);
        }
        // A lost wake-up costs a whole nap.
        assert!(start.elapsed() < NAP / 2, "{back} of {sent} after {:?}", start.elapsed());
    }
    assert_eq!(room, [link]);
    node.until("taken", |node| node.env.taken(link, mark));
    exchange(&mut node, peer, &[100; 100]);
    sent
}

#[test]
fn a_ring_full_of_slots_says_so_and_goes_on() {
    assert_eq!(fill(0), 1024);
    assert_eq!(fill(32), 1024);
}

#[test]
fn a_ring_full_of_bytes_says_so_and_goes_on() {
    assert_eq!(fill(16384), 16);
    assert_eq!(fill(1000), 256);
}

/// A case of two users, for which the test needs root.
#[test]
fn another_user_is_a_peer_only_if_so_configured() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let any = [("SOFTRNIC_PEERS", "any")];
    let Some(mut other) = Other::start_as(65534, "memory", &any) else { return };
    let peer = Qpn::new(other.hear_number() as u32);
    let theirs = other.hear_number();
    let ticket = ticket_in(theirs);
    let mut node = Node::new();
    assert_eq!(node.env.resolve(&LOCALHOST, peer), None);
    drop(node);

    let mut node = Node::with(window::Config { any_user: true, ..Default::default() });
    let link = node.resolve(peer);
    // With sleeps on both sides: the doorbell is a message on the socket.
    for n in 0..20 {
        std::thread::sleep(Duration::from_millis(1));
        exchange(&mut node, peer, &[n * 100]);
    }
    assert!(node.env.stats().rings > 0);
    // Root may read the memory of any process, but that is not what was agreed.
    assert!(node.env.caps(link).single_copy.is_none());
    let mut ten = [0; 10];
    let remote = [Span { addr: theirs, len: 10, guarded: false }];
    assert_eq!(node.env.pull(link, ticket, &remote, &[span(&mut ten)]), Err(SingleCopyError::Denied));
    drop(node);

    let Some(mut strict) = Other::start_as(65534, "sleeper", &[]) else { return };
    let peer = Qpn::new(strict.hear_number() as u32);
    let mut node = Node::with(window::Config { any_user: true, ..Default::default() });
    let link = node.resolve(peer);
    node.until("refusal", |node| node.dead == [link]);
}

#[test]
fn two_links_when_both_connect_at_once() {
    // Two devices in this process stand for two processes that connect before either has heard of the other.
    let (mut a, mut b) = (Node::new(), Node::new());
    let (ab, ba) = (a.resolve(b.qpn), b.resolve(a.qpn));
    for n in 0..10 {
        a.env.send(ab, &packet(b.qpn, a.qpn, n, 0), Payload::default()).unwrap();
        b.env.send(ba, &packet(a.qpn, b.qpn, n, 0), Payload::default()).unwrap();
    }
    let (mut at_a, mut at_b) = (0, 0);
    a.round(|_, _, p, _| {
        assert_eq!(p.imm, at_a);
        at_a += 1;
    });
    b.round(|_, _, p, _| {
        assert_eq!(p.imm, at_b);
        at_b += 1;
    });
    assert_eq!((at_a, at_b), (10, 10));
    assert_eq!((a.env.stats().links, b.env.stats().links), (3, 3));

    // The engine is told that both lead to one process, and that a third process is another one.
    let mut third = Other::start("echo");
    let ac = a.resolve(Qpn::new(third.hear_number() as u32));
    let links = a.env.links().to_vec();
    let to_b: Vec<_> = links.iter().copied().filter(|&id| id != LinkId::LOOPBACK && id != ac).collect();
    assert_eq!(to_b.len(), 2);
    assert!(a.env.same_peer(to_b[0], to_b[1]) && a.env.same_peer(ac, ac));
    for id in to_b {
        assert!(!a.env.same_peer(id, ac) && !a.env.same_peer(ac, id));
        assert!(!a.env.same_peer(id, LinkId::LOOPBACK));
    }
}

#[test]
fn a_peer_that_connected_is_found_without_a_free_descriptor() {
    let mut other = Other::start("crowded");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    node.resolve(peer);
    other.tell(&node.qpn.get().to_string());
    assert_eq!(other.hear_number(), 1);
}

#[test]
fn a_peer_that_connected_is_not_connected_to_again() {
    let mut other = Other::start("echo");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    // The echo answers by resolving our number: over the link that it has from us.
    exchange(&mut node, peer, &[8; 10]);
    assert_eq!(node.env.stats().links, 2);
    let again = Qpn::new(peer.get() + 4095);
    assert_eq!(node.resolve(peer), node.resolve(again));
}

/// `cargo test --release -p softrnic-window --test two_processes -- --ignored --nocapture speed`
#[test]
#[ignore = "a measurement"]
fn speed() {
    let mut other = Other::start("mirror");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    let from = node.qpn;
    // What the processor alone has to do: there and back inside one process.
    for len in [0usize, 8, 64, 4096] {
        let bytes = pattern(0, len);
        let mut out = vec![0; len];
        let mut best = f64::INFINITY;
        for _ in 0..50 {
            let start = Instant::now();
            for n in 0..2000 {
                let payload = Payload { prefix: &bytes, spans: &[] };
                node.env.send(LinkId::LOOPBACK, &packet(from, from, n, len), payload).unwrap();
                let (_, rx) = node.env.peek(LinkId::LOOPBACK).unwrap();
                node.env.rx_fetch(rx, 0, &mut out);
                node.env.release(LinkId::LOOPBACK);
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e9 / 2000.0);
        }
        println!("{len:6} B: {best:.0} ns of work");
    }
    let link = node.resolve(peer);
    for len in [0usize, 8, 64, 1024, 4096, 16384] {
        let bytes = pattern(0, len);
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let rounds = 20_000;
            let start = Instant::now();
            for n in 0..rounds {
                let payload = Payload { prefix: &bytes, spans: &[] };
                node.env.send(link, &packet(peer, from, n, len), payload).unwrap();
                node.env.ring_doorbells();
                while node.env.peek(link).is_none() {
                    std::hint::spin_loop();
                }
                node.env.release(link);
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0);
        }
        println!("{len:6} B: {best:.3} us one way");
    }
}
