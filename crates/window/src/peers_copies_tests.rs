//! Single copies: of this process, of peers, and of both together.

use super::*;

#[test]
fn single_copies_inside_the_process() {
    let mut env = env();
    let link = LinkId::LOOPBACK;
    let (mut a, mut b) = (vec![3u8; 5000], vec![0u8; 5000]);
    let (from, to) = ([span(&mut a)], [span(&mut b)]);
    let word = Box::new(77u64);
    let ticket = TicketRef { addr: std::ptr::from_ref(&*word).expose_provenance() as u64, value: 77 };
    env.pull(link, ticket, &from, &to).unwrap();
    assert!(a == b);
    let mut four = [1; 4];
    let good = [span(&mut four)];
    assert_eq!(env.pull(link, ticket, &[NOWHERE], &good), Err(SingleCopyError::Remote));
    assert_eq!(env.pull(link, ticket, &good, &[NOWHERE]), Err(SingleCopyError::Local));
    assert_eq!(env.push(link, ticket, &[NOWHERE], &good), Err(SingleCopyError::Local));
    assert_eq!(env.push(link, ticket, &good, &[NOWHERE]), Err(SingleCopyError::Remote));
    assert_eq!(env.pull(LinkId(3), ticket, &good, &good), Err(SingleCopyError::Denied));
    for (addr, value, error) in [(ticket.addr, 78, SingleCopyError::Void), (NOWHERE.addr, 77, SingleCopyError::Remote)]
    {
        let ticket = TicketRef { addr, value };
        assert_eq!(env.pull(link, ticket, &good, &good), Err(error));
        assert_eq!(env.push(link, ticket, &good, &good), Err(error));
    }
    env.quiesce(Some(link));
    env.quiesce(None);
    assert_eq!(env.stats().single_copy_bytes, 5000);
    assert_eq!(env.atomic(NOWHERE.addr, true, AtomicOp::FetchAdd(1)), Err(Fault));
}

/// Does what the holder of the lock does after it has let go. True if a peer was waited for in vain.
fn settle(env: &mut WindowEnv) -> bool {
    let links = |env: &WindowEnv| env.stats().links;
    let before = links(env);
    if env.is_unquiet() {
        let in_vain = env.unquiet().wait();
        env.judge(&in_vain);
    }
    assert!(!env.is_unquiet());
    links(env) < before
}

/// How often this thread has given the processor away to wait (`proc_pid_status(5)`).
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

fn mark(env: &WindowEnv, link: LinkId, value: u64) {
    env.link(link).unwrap().producer.memory().copying().store(value, Ordering::SeqCst);
}

/// A peer that says that it is copying is waited for, milliseconds and not under the lock.
#[test]
fn a_copy_without_end() {
    let (mut a, b, _, _) = linked();
    let theirs = b.links()[1];
    mark(&b, theirs, 77);
    let slept = sleeps();
    a.quiesce(None);
    assert_eq!(sleeps(), slept, "it waited under the lock");
    assert!(a.is_unquiet());
    mark(&b, theirs, 78);
    assert!(!settle(&mut a), "it has ended");
    a.quiesce(None);
    assert!(!a.is_unquiet());
    mark(&b, theirs, 79);
    a.quiesce(None);
    // Another copy than that which was under way.
    mark(&b, theirs, 81);
    assert!(!settle(&mut a));
    a.quiesce(None);
    let began = Instant::now();
    assert!(settle(&mut a), "it is a lie");
    assert!(began.elapsed().as_millis() < 2000, "{:?}", began.elapsed());
}

/// A key that is taken back waits for a copy that goes by it, or by no key, and for no other one.
#[test]
fn a_copy_by_another_key_is_not_waited_for() {
    let (mut a, b, _, _) = linked();
    let theirs = b.links()[1];
    let (pd, ctx) = (verbs::PdId { index: 0, generation: 0 }, verbs::CtxId { index: 0, generation: 0 });
    for (by, waits) in [(5, true), (6, false), (0, true)] {
        let access = verbs::Access::REMOTE_WRITE;
        a.publish(&wire::Export::Region { key: 5, through: None, ctx, pd, access, addr: 0, length: 1, iova: 0 });
        mark(&b, theirs, by << 32 | 77);
        a.retract(ExportId::Region(5));
        assert_eq!(a.is_unquiet(), waits, "by key {by}");
        mark(&b, theirs, 78);
        assert!(!settle(&mut a), "by key {by}");
    }
}

/// Several such peers are not waited for one after the other, and none is waited for a second time. Nothing is copied
/// directly any more between this process and a peer that has done that once.
#[test]
fn copies_without_end() {
    let mut a = env();
    let mut liars: Vec<_> = (0..3).map(|_| env()).collect();
    for b in &mut liars {
        let there = Qpn::new(b.claim_block().unwrap());
        a.resolve(&gid("127.0.0.1"), there).unwrap();
        for _ in 0..3 {
            b.handle_events(monotonic());
            a.handle_events(monotonic());
        }
        mark(b, b.links()[1], 77);
    }
    let began = Instant::now();
    a.quiesce(None);
    assert!(settle(&mut a));
    assert!(began.elapsed().as_millis() < 2000, "{:?}", began.elapsed());
    assert!(a.links()[1..].iter().all(|&id| a.link(id).is_none_or(|link| link.state == State::Dead)));
    a.take_dead_links(&mut Vec::new());
    // The process may connect again: here all of them are one, this one.
    for b in &mut liars {
        let first = u32::from(b.own_blocks[0].0) * BLOCK_QPNS;
        let link = a.resolve(&gid("127.0.0.1"), Qpn::new(first)).unwrap();
        for _ in 0..3 {
            b.handle_events(monotonic());
            a.handle_events(monotonic());
        }
        let remote = a.link(link).unwrap().remote.as_ref().unwrap();
        assert!(remote.proved && !remote.it_permitted && !remote.we_permitted && remote.export_table.is_none());
        mark(b, *b.links().last().unwrap(), 77);
        let (pd, access) = (verbs::PdId { index: 0, generation: 0 }, verbs::Access::REMOTE_READ);
        let ctx = verbs::CtxId { index: 0, generation: 0 };
        a.publish(&wire::Export::Region { key: 5, through: None, ctx, pd, access, addr: 0, length: 1, iova: 0 });
        a.retract(ExportId::Region(5));
        assert!(!a.is_unquiet(), "who may not copy is not copying");
    }
}

/// A peer may name its memory in a packet as soon as it has sent TABLE, which lies in the socket then.
#[test]
fn a_reference_may_come_before_the_table_has_had_its_turn() {
    let (mut env, mut other) = (env(), env());
    let qpn = Qpn::new(other.claim_block().unwrap());
    let link = env.resolve(&gid("::1"), qpn).unwrap();
    other.handle_events(monotonic());
    env.handle_events(monotonic());
    other.handle_events(monotonic());
    let back = other.links()[1];
    assert!(other.caps(back).single_copy.is_some(), "the peer knows all, and may send references");
    assert!(!env.link(link).unwrap().remote.as_ref().unwrap().given);
    let word = Box::new(77u64);
    let ticket = TicketRef { addr: std::ptr::from_ref(&*word).expose_provenance() as u64, value: 77 };
    let (mut from, mut to) = ([5u8; 64], [0u8; 64]);
    let spans = ([span(&mut from)], [span(&mut to)]);
    assert_eq!(env.pull(link, ticket, &spans.0, &spans.1), Ok(()));
    assert_eq!(memory_of(&to), [5; 64]);
}

/// What another process, or the kernel, has written.
fn memory_of(bytes: &[u8; 64]) -> [u8; 64] {
    let mut seen = [0; 64];
    memory::local::load(bytes.as_ptr().expose_provenance() as u64, false, &mut seen).unwrap();
    seen
}

/// A single copy of which the initiator makes a part. On a busy machine the follower may have no processor while a copy
/// lasts, or none for longer than it is waited for; another pair of processes is tried then.
#[test]
fn a_copy_is_made_by_both() {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let allowed = sched_getaffinity(None).unwrap();
    let mut processors = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let (Some(leader), Some(follower)) = (processors.next(), processors.next_back()) else { return };
    pin(leader);
    assert!((0..200).any(|_| both_copy(follower)), "200 pairs: none copied together");
}

/// Gives this thread one processor: the scheduler may leave two busy threads on the same one for a minute.
fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Whether both sides of a new link have copied together, and each was waited for.
fn both_copy(follower: usize) -> bool {
    const LEN: usize = 1 << 20;
    let (mut initiator, mut target, link, _) = linked();
    let there = target.links()[1];
    let word = Box::new(77u64);
    let ticket = TicketRef { addr: std::ptr::from_ref(&*word).expose_provenance() as u64, value: 77 };
    let (mut from, mut to) = (vec![0u8; LEN], vec![0u8; LEN]);
    let (from_span, to_span) = (span(&mut from), span(&mut to));
    let (over, mut right, mut denied) = (AtomicBool::new(false), true, false);
    let helped = std::thread::scope(|threads| {
        let follower = threads.spawn(|| {
            pin(follower);
            while !over.load(Ordering::Relaxed) {
                if let Some(offer) = initiator.offered(link) {
                    let ours = if offer.to_us { to_span } else { from_span };
                    assert_eq!((offer.ticket, offer.span.addr, offer.span.len), (ticket, ours.addr, LEN as u32));
                    initiator.co_copy(link, &Offer { ticket: TicketRef { value: 78, ..ticket }, ..offer });
                    initiator.co_copy(link, &Offer { to_us: !offer.to_us, ..offer });
                    initiator.co_copy(link, &Offer { span: Span { len: 5, ..offer.span }, ..offer });
                    let before = initiator.stats().co_copied_bytes;
                    assert!(before == 0 || before >= 1 << 14, "what was not offered so is not helped with");
                    initiator.co_copy(link, &offer);
                }
            }
            initiator.stats().co_copied_bytes
        });
        for round in 0..400u64 {
            let (ours, theirs) = ([from_span, to_span], round % 2 == 0);
            memory::local::store(from_span.addr, false, &[round as u8; LEN]).unwrap();
            let copied = match theirs {
                true => target.pull(there, ticket, &ours[..1], &ours[1..]),
                false => target.push(there, ticket, &ours[..1], &ours[1..]),
            };
            denied = copied == Err(SingleCopyError::Denied);
            if denied {
                break;
            }
            let mut seen = vec![0; LEN];
            memory::local::load(to_span.addr, false, &mut seen).unwrap();
            right &= copied.is_ok() && seen.iter().all(|byte| *byte == round as u8);
        }
        over.store(true, Ordering::Relaxed);
        follower.join().unwrap()
    });
    assert!(right);
    if denied || helped == 0 {
        return false;
    }
    // The leader tells which memory is not there, and short copies are made alone.
    let nowhere = Span { len: LEN as u32, ..NOWHERE };
    assert_eq!(target.pull(there, ticket, &[nowhere], &[to_span]), Err(SingleCopyError::Remote));
    assert_eq!(target.pull(there, ticket, &[from_span], &[nowhere]), Err(SingleCopyError::Local));
    assert_eq!(target.push(there, ticket, &[from_span], &[nowhere]), Err(SingleCopyError::Remote));
    true
}

/// A peer that begins to help and does not end it is given up, and what it may do later is waited for when memory is
/// given back.
#[test]
fn who_does_not_end_his_part_is_given_up() {
    let (initiator, mut target, link, _) = linked();
    let there = target.links()[1];
    let word = Box::new(77u64);
    let ticket = TicketRef { addr: std::ptr::from_ref(&*word).expose_provenance() as u64, value: 77 };
    let (mut from, mut to) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
    let (from, to) = ([span(&mut from)], [span(&mut to)]);
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let memory = initiator.link(link).unwrap().consumer.memory().clone();
        let (initiator, over) = (&initiator, &over);
        threads.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if initiator.offered(link).is_some() {
                    // Claims what is left, and marks itself as copying.
                    let words = memory.co_copy();
                    let raw = words.claims.load(Ordering::Relaxed);
                    let (front, back) = (raw >> 16 & 0xffff, raw & 0xffff);
                    let claimed = raw & !0xffff | front;
                    if front < back
                        && words.claims.compare_exchange(raw, claimed, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                    {
                        initiator.link(link).unwrap().producer.memory().copying().store(1, Ordering::SeqCst);
                        return;
                    }
                }
            }
        });
        let mut result = Ok(());
        for _ in 0..10_000 {
            let began = std::time::Instant::now();
            result = target.pull(there, ticket, &from, &to);
            if result.is_err() {
                // It is waited for under the lock.
                assert!(began.elapsed() < std::time::Duration::from_secs(3), "{:?}", began.elapsed());
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(result, Err(SingleCopyError::Denied));
    });
    assert_eq!(target.offence_of(std::process::id()), Some(crate::quiet::Offence::Follower), "remembered");
    assert!(target.has_late_writer(there));
    // Copies are made alone from now on.
    assert_eq!(target.pull(there, ticket, &from, &to), Ok(()));
    assert_eq!(initiator.offered(link), None);
    // A region that no peer was shown.
    target.retract(ExportId::Region(5));
    assert!(target.is_unquiet());
    mark(&initiator, link, 2);
    assert!(!settle(&mut target));
    // It is over, although the peer has not said so.
    assert!(!target.has_late_writer(there));
    assert_eq!(target.link(there).unwrap().state, State::Up);
}

/// What is known of a peer's rows holds for what they allow, and until one of them is written.
#[test]
fn what_is_known_of_rows_ends_with_them() {
    use verbs::{Access, CtxId, PdId, QpType, RKey};
    use wire::{Export, OneSided, OneSidedOp};
    let (mut env, mut other, link, dst) = linked();
    let Some(mapped) = other.allocate_shared(8192) else { panic!("memory cannot be shared here") };
    let (src, pd, ctx) = (Qpn::new(0x777), PdId { index: 1, generation: 1 }, CtxId { index: 1, generation: 0 });
    let (addr, write, service) = (mapped.addr(), Access::REMOTE_WRITE, QpType::Rc);
    let shows = |other: &mut WindowEnv, access, epoch, length| {
        other.publish(&Export::Region { key: 5, through: None, ctx, pd, access, addr, length, iova: 100 });
        other.publish(&Export::Qp { qpn: dst, service, peer: src, ctx, pd: Some(pd), access: write, mtu: 4096, epoch });
    };
    let (own, rkey, op, before, after) = ([7u8; 64], RKey(5), OneSidedOp::Write, 0, 0);
    let local = Payload { prefix: &own, spans: &[] };
    let (len, mtu, queues) = (64, 4096, false);
    let good = OneSided { service, src, dst, epoch: None, op, rkey, addr: 100, len, before, after, mtu, queues, local };
    let mut epoch = |request| env.one_sided(link, &request).map(|done| done.epoch);
    // Each is asked twice: the second time all is known.
    let mut all = |found: [Option<u64>; 7]| {
        let last = OneSided { addr: 100 + 4096 - 64, ..good };
        let strange = OneSided { src: Qpn::new(0x778), ..good };
        let wrong = [OneSided { addr: 99, ..good }, OneSided { addr: last.addr + 1, ..good }, strange];
        let [low, high, strange] = wrong;
        let read = OneSided { op: OneSidedOp::Read, ..good };
        for request in
            [good, last, low, high, strange, read, OneSided { epoch: Some(9), ..good }].into_iter().zip(found)
        {
            assert_eq!([epoch(request.0), epoch(request.0)], [request.1; 2], "{:?}", request.0);
        }
    };
    let allowed = |n| [Some(n), Some(n), None, None, None, None, (n == 9).then_some(9)];
    shows(&mut other, write, 9, 4096);
    all(allowed(9));
    shows(&mut other, write, 10, 4096);
    all(allowed(10));
    shows(&mut other, write, 9, 4095);
    all([Some(9), None, None, None, None, None, Some(9)]);
    shows(&mut other, Access::REMOTE_READ, 9, 4096);
    all([None; 7]);
    shows(&mut other, write, 9, 4096);
    all(allowed(9));
    for id in [ExportId::Qp(dst), ExportId::Region(5)] {
        other.retract(id);
        all([None; 7]);
        shows(&mut other, write, 9, 4096);
        all(allowed(9));
    }
}

/// The row of a region says whether its place in the arena is to be looked for.
#[test]
fn only_what_has_a_place_is_looked_for() {
    use verbs::{Access, CtxId, PdId};
    let (env, mut other, link, _) = linked();
    let Some(mapped) = other.allocate_shared(8192) else { panic!("memory cannot be shared here") };
    let own = vec![0u8; 8192];
    let (pd, ctx) = (PdId { index: 1, generation: 1 }, CtxId { index: 1, generation: 0 });
    let remote = env.link(link).unwrap().remote.as_ref().unwrap();
    let mut shown = |addr, access| {
        other.publish(&wire::Export::Region { key: 5, through: None, ctx, pd, access, addr, length: 8192, iova: 0 });
        crate::export_table::is_unplaced(remote, 5)
    };
    let ordinary = std::ptr::from_ref(&own[0]).expose_provenance() as u64;
    assert_eq!(shown(ordinary, Access::REMOTE_WRITE), Some(true));
    assert_eq!(shown(mapped.addr(), Access::REMOTE_WRITE), Some(false));
    assert_eq!(shown(mapped.addr(), Access::REMOTE_WRITE | Access::ON_DEMAND), Some(true));
}

/// Several requests are executed by one copy if all of them are allowed, and none of them otherwise.
#[test]
fn requests_are_executed_together_or_not_at_all() {
    use verbs::{Access, CtxId, PdId, QpType, RKey};
    use wire::{Export, OneSided, OneSidedOp};
    let (mut env, mut other, link, dst) = linked();
    let (src, pd, ctx) = (Qpn::new(0x777), PdId { index: 1, generation: 1 }, CtxId { index: 1, generation: 0 });
    let (both, service, len) = (Access::REMOTE_WRITE | Access::REMOTE_READ, QpType::Rc, 4096);
    let mut theirs = [vec![0u8; len as usize], vec![0u8; len as usize], vec![0u8; len as usize]];
    let places: Vec<u64> = theirs.iter_mut().map(|memory| memory.as_mut_ptr().expose_provenance() as u64).collect();
    let shows = |other: &mut WindowEnv, key: u32, access| {
        let addr = places[key as usize];
        other.publish(&Export::Region { key, through: None, ctx, pd, access, addr, length: len.into(), iova: 0 });
    };
    (0..3).for_each(|key| shows(&mut other, key, both));
    let qp = |epoch| Export::Qp { qpn: dst, service, peer: src, ctx, pd: Some(pd), access: both, mtu: 4096, epoch };
    other.publish(&qp(9));
    let mut ours = [vec![1u8; len as usize], vec![2u8; len as usize], vec![3u8; len as usize]];
    let spans = ours
        .each_mut()
        .map(|memory| [Span { addr: memory.as_mut_ptr().expose_provenance() as u64, len, guarded: false }]);
    let requests = |op| {
        [0usize, 1, 2].map(|at| {
            let (rkey, local) = (RKey(at as u32), Payload { prefix: &[], spans: &spans[at] });
            let (addr, epoch, before, after, mtu, queues) = (0, None, 0, 0, 4096, false);
            OneSided { service, src, dst, epoch, op, rkey, addr, len, before, after, mtu, queues, local }
        })
    };
    let byte = |memory: &[Vec<u8>; 3]| memory.each_ref().map(|memory| std::hint::black_box(memory)[len as usize - 1]);
    let writes = requests(OneSidedOp::Write);
    shows(&mut other, 2, Access::REMOTE_READ);
    assert_eq!(env.one_sided_together(link, &writes), None, "the last one is not allowed");
    assert_eq!(byte(&theirs), [0; 3]);
    assert_eq!(env.one_sided_together(link, &writes[..2]), Some((9, 2)));
    assert_eq!(byte(&theirs), [1, 2, 0]);
    theirs[2].fill(7);
    assert_eq!(env.one_sided_together(link, &requests(OneSidedOp::Read)), Some((9, 3)));
    assert_eq!(byte(&ours), [1, 2, 7]);
    // Memory of the second one is not there.
    let [first, second, third] = requests(OneSidedOp::Read);
    let gone = [Span { addr: 4096, len, guarded: false }];
    let second = OneSided { local: Payload { prefix: &[], spans: &gone }, ..second };
    assert_eq!(env.one_sided_together(link, &[first, second, third]), Some((9, 1)));
    assert_eq!(env.one_sided_together(link, &[second, third]), None);
    other.publish(&qp(10));
    let old = requests(OneSidedOp::Read).map(|request| OneSided { epoch: Some(9), ..request });
    assert_eq!(env.one_sided_together(link, &old), None, "of an earlier connection");
    let [first, second, _] = requests(OneSidedOp::Write);
    let mixed = [first, OneSided { op: OneSidedOp::Read, ..second }];
    assert_eq!(env.one_sided_together(link, &mixed), None, "two operations");
    assert_eq!(env.one_sided_together(link, &[first; 9]), None, "too many");
}
