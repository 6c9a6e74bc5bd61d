//! Packets, single copies, sleep and death between two processes.

mod common;

use std::time::{Duration, Instant};

use common::{LOCALHOST, NAP, Node, Other, packet, pattern, payload, say, span, told};
use verbs::{Access, CtxId, PdId, QpType, Qpn, RKey};
use wire::prelude::*;
use wire::{Export, ExportId, LinkId, OneSided, OneSidedOp, Payload, SendError, SingleCopyError, Span, TicketRef};

/// The rkey that the other process shows.
const KEY: u32 = 0x12_3456;
const CTX: CtxId = CtxId { index: 1, generation: 0 };

/// A queue pair whose peer is number 0x777.
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
            node.env.publish(&Export::Region { key: KEY, ctx: CTX, pd, access, addr, length: 1 << 20, iova: 4096 });
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

/// Who cannot be let in, and not be turned away either, is not looked at again and again; and comes in later.
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

/// A ticket in the memory of the role "memory": the first bytes of its pattern, which nobody changes.
fn ticket_in(addr: u64) -> TicketRef {
    TicketRef { addr, value: u64::from_ne_bytes(pattern(1, 8).try_into().unwrap()) }
}

#[test]
fn single_copies() {
    // Set, not inherited: the whole suite also runs where the environment forbids them.
    let mut other = Other::start_with("memory", &[("SOFTRNIC_SINGLE_COPY", "1")]);
    let peer = Qpn::new(other.hear_number() as u32);
    let theirs = other.hear_number();
    let ticket = ticket_in(theirs);
    let mut node = Node::with(window::Config { single_copy: true, ..Default::default() });
    let link = node.resolve(peer);
    assert!(node.env.caps(link).single_copy.is_none(), "nothing is known yet");
    assert_eq!(node.env.pull(link, ticket, &[], &[]), Err(SingleCopyError::Denied));
    node.until("single copies", |node| node.env.caps(link).single_copy.is_some());

    let at = |offset: u64, len: u32| Span { addr: theirs + offset, len, guarded: false };
    let mut ours = vec![0; 1 << 20];
    let (a, b) = ours.split_at_mut(300_001);
    node.env.pull(link, ticket, &[at(0, 77), at(77, (1 << 20) - 77)], &[span(a), span(b)]).unwrap();
    assert!(ours == pattern(1, 1 << 20));

    let mut new = pattern(2, 5000);
    node.env.push(link, ticket, &[span(&mut new)], &[at(1000, 4000), at(9000, 1000)]).unwrap();
    let mut back = vec![0; 1 << 20];
    node.env.pull(link, ticket, &[at(0, 1 << 20)], &[span(&mut back)]).unwrap();
    assert!(back[1000..5000] == new[..4000] && back[9000..10000] == new[4000..]);
    assert!(back[..1000] == ours[..1000] && back[10000..] == ours[10000..]);

    let nowhere = Span { addr: 4096, len: 10, guarded: false };
    let mut ten = [0; 10];
    let void = TicketRef { value: ticket.value ^ 1, ..ticket };
    assert_eq!(node.env.pull(link, void, &[at(0, 10)], &[span(&mut ten)]), Err(SingleCopyError::Void));
    assert_eq!(node.env.push(link, void, &[span(&mut ten)], &[at(0, 10)]), Err(SingleCopyError::Void));
    let lost = TicketRef { addr: 4096, ..ticket };
    assert_eq!(node.env.pull(link, lost, &[at(0, 10)], &[span(&mut ten)]), Err(SingleCopyError::Remote));
    assert_eq!(node.env.pull(link, ticket, &[nowhere], &[span(&mut ten)]), Err(SingleCopyError::Remote));
    assert_eq!(node.env.pull(link, ticket, &[at(0, 10)], &[nowhere]), Err(SingleCopyError::Local));
    assert_eq!(node.env.push(link, ticket, &[nowhere], &[at(0, 10)]), Err(SingleCopyError::Local));
    assert_eq!(node.env.push(link, ticket, &[span(&mut ten)], &[nowhere]), Err(SingleCopyError::Remote));

    other.process.kill().unwrap();
    other.process.wait().unwrap();
    let error = node.env.pull(link, ticket, &[at(0, 10)], &[span(&mut ten)]);
    assert_eq!(error, Err(SingleCopyError::Denied));
}

/// An initiator that gives a request up gets its memory back: the copy that the target was in the middle of is over
/// then.
#[test]
fn memory_that_is_taken_back_stays_as_it_is() {
    const LEN: usize = 1 << 20;
    let mut other = Other::start_with("pusher", &[("SOFTRNIC_SINGLE_COPY", "1")]);
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::with(window::Config { single_copy: true, ..Default::default() });
    let link = node.resolve(peer);
    let mut memory = vec![0u8; LEN];
    let word = Box::leak(Box::new(std::sync::atomic::AtomicU64::new(0)));
    let word_at = std::ptr::from_ref(word).expose_provenance() as u64;
    other.tell(&format!("{word_at} {}", span(&mut memory).addr));
    for value in 0..300 {
        // It has begun to push for this ticket, and goes on until the ticket is void.
        hear(&mut node, value);
        word.store(u64::from(value) + 1, std::sync::atomic::Ordering::SeqCst);
        node.env.quiesce(Some(link));
        node.settle();
        let before = memory_of(&memory);
        std::thread::yield_now();
        assert!(memory_of(&memory) == before, "it changed after ticket {value} was void");
        node.env.send(link, &packet(peer, node.qpn, value, 0), Payload::default()).unwrap();
        node.env.ring_doorbells();
    }

    // Stopped, most likely in the middle of a copy, and then killed: nobody waits for the dead.
    hear(&mut node, 300);
    let pid = rustix::process::Pid::from_child(&other.process);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    word.store(301, std::sync::atomic::Ordering::SeqCst);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    node.env.quiesce(Some(link));
    node.env.quiesce(None);
    // Stopped in the middle of a copy, it is waited for, for milliseconds.
    let began = Instant::now();
    node.settle();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    killer.join().unwrap();
    other.process.wait().unwrap();
    let before = memory_of(&memory);
    assert!(memory_of(&memory) == before);
    // Told without having looked at any event.
    assert!(!node.env.lives(link) && node.env.lives(LinkId::LOOPBACK));
}

/// Waits for the packet with this number.
fn hear(node: &mut Node, n: u32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut heard = false;
    while !heard {
        assert!(Instant::now() < deadline, "packet {n}: not in time");
        if node.round(|_, _, p, _| heard |= p.imm == n) == 0 {
            std::thread::yield_now();
        }
    }
}

/// A copy of memory that another process may be writing to.
fn memory_of(memory: &[u8]) -> Vec<u8> {
    std::hint::black_box(memory).to_vec()
}

#[test]
fn requests_executed_by_the_initiator() {
    let mut other = Other::start_with("memory", &[("SOFTRNIC_SINGLE_COPY", "1")]);
    let peer = Qpn::new(other.hear_number() as u32);
    other.hear();
    let mut node = Node::with(window::Config { single_copy: true, ..Default::default() });
    let link = node.resolve(peer);
    node.until("single copies", |node| node.env.caps(link).single_copy.is_some());
    let mut bytes = vec![0; 5000];
    let spans = [span(&mut bytes)];
    let request = |op, addr, local| OneSided {
        service: QpType::Rc,
        src: Qpn::new(0x777),
        dst: peer,
        epoch: None,
        op,
        rkey: RKey(KEY),
        addr,
        len: 5000,
        before: 0,
        after: 0,
        mtu: 1024,
        queues: false,
        local,
    };
    let into = Payload { prefix: &[], spans: &spans };
    assert_eq!(
        node.env.one_sided(link, &request(OneSidedOp::Read, 4096 + 100, into)).map(|reached| reached.epoch),
        Some(99)
    );
    assert!(bytes[..] == pattern(1, 1 << 20)[100..5100]);

    let new = pattern(2, 5000);
    let from = Payload { prefix: &new, spans: &[] };
    assert_eq!(
        node.env.one_sided(link, &request(OneSidedOp::Write, 4096, from)).map(|reached| reached.epoch),
        Some(99)
    );
    assert_eq!(node.env.one_sided(link, &request(OneSidedOp::Read, 4096, into)).map(|reached| reached.epoch), Some(99));
    assert!(bytes == new);

    // What does not fit exactly is left to the peer.
    let good = request(OneSidedOp::Read, 4096, into);
    let wrong = [
        OneSided { service: QpType::Uc, ..good },
        OneSided { service: QpType::XrcIni, ..good },
        OneSided { src: Qpn::new(0x778), ..good },
        OneSided { dst: Qpn::new(peer.get() + 1), ..good },
        OneSided { epoch: Some(98), ..good },
        OneSided { mtu: 4096, ..good },
        OneSided { rkey: RKey(KEY + 1), ..good },
        OneSided { addr: 4095, ..good },
        OneSided { addr: 4096 + (1 << 20) - 4999, ..good },
        OneSided { after: (1 << 20) - 4999, ..good },
        OneSided { addr: u64::MAX - 10, ..good },
    ];
    for wrong in wrong {
        assert_eq!(node.env.one_sided(link, &wrong), None, "{wrong:?}");
    }
    assert_eq!(node.env.one_sided(LinkId::LOOPBACK, &good), None);

    // A peer that polls takes small requests itself; one that sleeps need not wake for them.
    let small = OneSided { len: 8, ..good };
    node.until("sleep", |node| node.env.one_sided(link, &small).is_some());

    // A stopped peer takes no part in a stream either: each is executed here. (It may have been seen to run just
    // before.)
    let pid = rustix::process::Pid::from_child(&other.process);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let stream = OneSided { queues: true, ..good };
    for n in 0..2000 {
        assert!(node.env.one_sided(link, &stream).is_some(), "{n}");
    }
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();

    other.process.kill().unwrap();
    other.process.wait().unwrap();
    assert_eq!(node.env.one_sided(link, &good), None);
}

#[test]
fn single_copies_can_be_refused() {
    for (ours, theirs) in [(false, "1"), (true, "0")] {
        let mut other = Other::start_with("memory", &[("SOFTRNIC_SINGLE_COPY", theirs)]);
        let peer = Qpn::new(other.hear_number() as u32);
        let addr = other.hear_number();
        let ticket = ticket_in(addr);
        let mut node = Node::with(window::Config { single_copy: ours, ..Default::default() });
        let link = node.resolve(peer);
        exchange(&mut node, peer, &[10, 20000 / 2]);
        assert!(node.env.caps(link).single_copy.is_none());
        let mut ten = [0; 10];
        let remote = [Span { addr, len: 10, guarded: false }];
        assert_eq!(node.env.pull(link, ticket, &remote, &[span(&mut ten)]), Err(SingleCopyError::Denied));
    }
}

#[test]
fn death_is_noticed_and_the_block_can_be_found_again() {
    let mut other = Other::start("echo");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    let link = node.resolve(peer);
    exchange(&mut node, peer, &[8; 100]);
    other.process.kill().unwrap();
    node.until("death", |node| node.dead == [link]);
    let lost = node.env.send(link, &packet(peer, node.qpn, 0, 0), Payload::default());
    assert_eq!(lost, Err(SendError::Down));
    assert!(node.env.taken(link, 1 << 40));
    assert_eq!(node.env.resolve(&LOCALHOST, peer), None);
    assert_eq!(node.env.links(), [LinkId::LOOPBACK]);
}

#[test]
fn what_the_dead_had_sent_still_arrives() {
    let mut other = Other::start("brief");
    other.hear();
    let mut node = Node::new();
    other.tell(&node.qpn.get().to_string());
    other.process.wait().unwrap();
    let mut got = 0;
    let deadline = Instant::now() + Duration::from_secs(10);
    while node.dead.is_empty() {
        node.round(|env, _, packet, rx| {
            assert_eq!((packet.imm, payload(env, rx)), (got, pattern(got, 100)));
            got += 1;
        });
        assert!(Instant::now() < deadline);
    }
    assert_eq!(got, 500);
}

#[test]
fn kill_at_any_moment() {
    let mut node = Node::new();
    for round in 0..30u32 {
        let mut other = Other::start(if round % 2 == 0 { "echo" } else { "sleeper" });
        let peer = Qpn::new(other.hear_number() as u32);
        let link = node.resolve(peer);
        let (from, start) = (node.qpn, Instant::now());
        let mut n = 0;
        let mut killed = false;
        while !node.dead.contains(&link) {
            let len = n as usize * 7 % 16384;
            let bytes = pattern(n, len);
            if node.env.send(link, &packet(peer, from, n, len), Payload { prefix: &bytes, spans: &[] }).is_ok() {
                n += 1;
            }
            node.round(|env, _, packet, rx| {
                assert_eq!(payload(env, rx).len(), packet.len as usize);
            });
            if !killed && start.elapsed() > Duration::from_micros(u64::from(round) * 137) {
                other.process.kill().unwrap();
                killed = true;
            }
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        node.dead.clear();
    }
}

#[test]
fn after_fork_nothing_stays_open() {
    let mut other = Other::start("forked");
    other.hear();
    assert_eq!((other.hear(), other.hear()), ("true".to_owned(), "true".to_owned()));
}

/// Needs root, to be two users.
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
    // Root may read anybody's memory, but that is not what was agreed.
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

#[test]
fn who_is_stopped_is_not_waiting_for_its_turn() {
    let mut other = Other::start("lazy");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    let link = node.resolve(peer);
    assert!(node.env.lives(link));
    let pid = rustix::process::Pid::from_child(&other.process);
    let stop = |signal| rustix::process::kill_process(pid, signal).unwrap();
    stop(rustix::process::Signal::STOP);
    node.until("stop", |node| !node.env.lives(link));
    stop(rustix::process::Signal::CONT);
    node.until("going on", |node| node.env.lives(link));
    other.process.kill().unwrap();
    node.until("death", |node| !node.env.lives(link));
}

/// What is shown no longer is the owner's alone, from the moment that it was taken back.
#[test]
fn nobody_writes_to_what_was_taken_back() {
    let mut other = Other::start_with("reacher", &[("SOFTRNIC_SINGLE_COPY", "1")]);
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::with(window::Config { single_copy: true, ..Default::default() });
    let link = node.resolve(peer);
    other.tell(&node.qpn.get().to_string());
    node.until("single copies", |node| node.env.caps(link).single_copy.is_some());
    let mut memory = vec![255u8; 1 << 20];
    let (addr, length) = (span(&mut memory).addr, 1 << 20);
    let (pd, access) = (PdId { index: 3, generation: 1 }, Access::REMOTE_WRITE);
    node.env.publish(&queue_pair(node.qpn, pd, access, 1));
    let all = |node: &Node| {
        let mut now = vec![0u8; 1 << 20];
        node.env.load(addr, false, &mut now).unwrap();
        now
    };
    for _ in 0..300 {
        node.env.store(addr, false, &[255]).unwrap();
        node.env.publish(&Export::Region { key: KEY, ctx: CTX, pd, access, addr, length, iova: 0 });
        node.until("a write", |node| {
            let mut first = [0];
            node.env.load(addr, false, &mut first).unwrap();
            first != [255]
        });
        node.env.retract(ExportId::Region(KEY));
        node.settle();
        let then = all(&node);
        std::thread::sleep(Duration::from_millis(2));
        assert!(then == all(&node));
    }
    drop(other);
    drop(memory);
}
