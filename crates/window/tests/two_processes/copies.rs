//! Single copies, and requests that the initiator executes.

use super::*;

/// A ticket in the memory of the role "memory": the first bytes of its pattern, which no process changes.
pub fn ticket_in(addr: u64) -> TicketRef {
    TicketRef { addr, value: u64::from_ne_bytes(pattern(1, 8).try_into().unwrap()) }
}

#[test]
fn single_copies() {
    // The setting is set, not inherited: the whole suite also runs where the environment forbids single copies.
    let mut other = Other::start_with("memory", &[("SOFTRNIC_SINGLE_COPY", "1")]);
    let peer = Qpn::new(other.hear_number() as u32);
    let theirs = other.hear_number();
    let ticket = ticket_in(theirs);
    let mut node = Node::with(window::Config { single_copy: true, ..Default::default() });
    let link = node.resolve(peer);
    assert!(node.env.caps(link).single_copy.is_none(), "nothing is known yet");
    // The peer's proof may come during the call. Without it, the call is refused.
    let early = node.env.pull(link, ticket, &[], &[]);
    assert!(early == Err(SingleCopyError::Denied) || node.env.caps(link).single_copy.is_some(), "{early:?}");
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
        // The other process has begun to push for this ticket, and goes on until the ticket is void.
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

    // The other process is stopped, most likely in the middle of a copy, and then killed. A dead process is not waited
    // for.
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
    // While it is stopped in the middle of a copy, it is waited for, for milliseconds.
    let began = Instant::now();
    node.settle();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    killer.join().unwrap();
    other.process.wait().unwrap();
    let before = memory_of(&memory);
    assert!(memory_of(&memory) == before);
    // The death is told without a look at any event.
    assert!(!node.env.lives(link) && node.env.lives(LinkId::LOOPBACK));
}

/// Waits for the packet with this number.
pub fn hear(node: &mut Node, n: u32) {
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

    // A request that does not fit exactly is left to the peer.
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

/// Memory that is no longer shown is the owner's alone, from the moment at which it was taken back.
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
        node.env.publish(&Export::Region { key: KEY, through: None, ctx: CTX, pd, access, addr, length, iova: 0 });
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
