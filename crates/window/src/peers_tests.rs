#[path = "peers_copies_tests.rs"]
mod copies;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use verbs::{Gid, Psn, Qpn};
use wire::prelude::*;
use wire::{AtomicOp, ExportId, Fault, Offer, Packet, PacketOp, Payload, SendError, SingleCopyError, Span, TicketRef};

use rustix::event::Timespec;

use super::*;
use crate::Config;
use crate::rendezvous::Greeting;
use crate::stream_detector::StreamDetector;

/// The greeting of a peer that knows nothing.
fn greeting() -> Greeting {
    Greeting { instance: [1; 16], nonce_addr: 0, single_copy: true, secret: [0; rendezvous::SECRET], block: 0 }
}

fn env() -> WindowEnv {
    WindowEnv::new(Config::default()).unwrap()
}

/// Two devices, and the first one's link to the second, which has this number. Both have heard all that the other sends
/// on meeting.
fn linked() -> (WindowEnv, WindowEnv, LinkId, Qpn) {
    let (mut env, mut other) = (env(), env());
    let qpn = Qpn::new(other.claim_block().unwrap());
    let link = env.resolve(&gid("::1"), qpn).unwrap();
    for _ in 0..3 {
        other.handle_events(monotonic());
        env.handle_events(monotonic());
    }
    (env, other, link, qpn)
}

fn gid(ip: &str) -> Gid {
    Gid::from_ip(ip.parse().unwrap())
}

fn span(bytes: &mut [u8]) -> Span {
    Span { addr: bytes.as_mut_ptr().expose_provenance() as u64, len: bytes.len() as u32, guarded: false }
}

const NOWHERE: Span = Span { addr: 4096, len: 4, guarded: true };

#[test]
fn several_hundred_blocks() {
    let mut env = env();
    let claimed: HashSet<u32> = (0..400).map(|_| env.claim_block().unwrap()).collect();
    assert_eq!(claimed.len(), 400);
    for first in &claimed {
        assert!(first % BLOCK_QPNS == 0 && *first >= 4096 && *first <= 0xffe000);
        for qpn in [*first, first + 4095] {
            assert_eq!(env.resolve(&gid("127.0.0.1"), Qpn::new(qpn)), Some(LinkId::LOOPBACK));
        }
    }
    // A block that is freed can be claimed again, by others only then.
    let block = (*claimed.iter().next().unwrap() >> 12) as u16;
    assert_eq!(names::claim(&rendezvous::block_name(block), 1, false).err(), Some(Errno::EADDRINUSE));
    drop(env);
    names::claim(&rendezvous::block_name(block), 1, false).unwrap();
}

#[test]
fn only_local_addresses_and_numbers_that_exist() {
    let mut env = env();
    let qpn = Qpn::new(env.claim_block().unwrap());
    let there = |p: &mut WindowEnv, ip: &str| p.resolve(&gid(ip), qpn).is_some();
    assert!(there(&mut env, "127.0.0.1") && there(&mut env, "127.1.2.3") && there(&mut env, "::1"));
    assert!(!there(&mut env, "192.0.2.1") && !there(&mut env, "fe80::1") && !there(&mut env, "::"));
    env.set_local_gids(vec![gid("192.0.2.1"), gid("fe80::1")]);
    assert!(there(&mut env, "192.0.2.1") && there(&mut env, "fe80::1") && !there(&mut env, "192.0.2.2"));
    for qpn in [0, 1, 4095, 0xfff000, 0xffffff] {
        assert_eq!(env.resolve(&gid("::1"), Qpn::new(qpn)), None);
    }
}

#[test]
fn a_block_that_nobody_answers_for_is_tried_again_but_not_too_often() {
    let (mut env, mut other) = (env(), env());
    // The block is free with certainty: it was claimed and given back.
    let first = other.claim_block().unwrap();
    other.own_blocks.clear();
    let qpn = Qpn::new(first);
    let start = monotonic();
    assert_eq!(env.resolve(&gid("::1"), qpn), None);
    let block = (first >> 12) as u16;
    let listener = names::claim(&rendezvous::block_name(block), 1, false).unwrap();
    let early = env.resolve(&gid("::1"), qpn);
    assert!(early.is_none() || monotonic() - start >= RETRY_FIRST);
    while env.resolve(&gid("::1"), qpn).is_none() {
        assert!(monotonic() - start < 1_000_000_000);
    }
    drop(listener);
}

#[test]
fn what_keeps_from_peers_is_told() {
    let (mut env, mut other) = (env(), env());
    let first = other.claim_block().unwrap();
    // No process answers there any more, and no test that runs beside this one gets the block.
    rustix::net::shutdown(&other.own_blocks[0].1, rustix::net::Shutdown::Both).unwrap();
    let told = |words: &str| report::logged().iter().any(|line| line.contains(words));
    let (start, words) = (monotonic(), format!("no process has QP {first:#08x}"));
    while !told(&words) {
        assert_eq!(env.resolve(&gid("::1"), Qpn::new(first)), None);
        assert!(monotonic() - start < 5_000_000_000, "{:?}", report::logged());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(env.resolve(&gid("192.0.2.77"), Qpn::new(first)), None);
    assert!(told("no way to 192.0.2."), "{:?}", report::logged());
}

#[test]
fn the_loopback_link() {
    let mut env = env();
    let link = LinkId::LOOPBACK;
    let caps = env.caps(link);
    assert!(caps.single_copy.is_some() && caps.segment == 16384);
    let mut packet = Packet::new(PacketOp::Write, Qpn::new(5), Qpn::new(6), Psn::new(7));
    for len in [0u32, 8, 40, 16384] {
        packet.len = len;
        packet.remote_addr = 99;
        let mut data = vec![len as u8 + 1; len as usize];
        env.send(link, &packet, Payload { prefix: &[], spans: &[span(&mut data)] }).unwrap();
        assert!(env.any_ready());
        assert!(!env.announce_sleep(), "there is work");
        let mark = env.sent_mark(link);
        let (seen, rx) = env.peek(link).unwrap();
        assert_eq!((seen, env.rx_len(rx)), (packet, len));
        let mut out = vec![0; len as usize];
        env.rx_fetch(rx, 0, &mut out);
        assert!(out == data);
        out.fill(0);
        let (a, b) = out.split_at_mut(len as usize / 3);
        let spans = [span(a), span(b)];
        env.rx_scatter(rx, 0, &spans).unwrap();
        assert!(out == data);
        if len > 0 {
            assert_eq!(env.rx_scatter(rx, 0, &[NOWHERE]), Err(Fault));
        }
        env.release(link);
        assert!(env.peek(link).is_none());
        assert!(env.taken(link, mark));
    }
    assert!(env.announce_sleep());
    env.suppress_doorbells();
    env.ring_doorbells();
    assert_eq!(env.stats().rings, 0);
    assert_eq!(env.send(LinkId(77), &packet, Payload::default()), Err(SendError::Down));
    assert_eq!(env.send(LinkId(1 << 16), &packet, Payload::default()), Err(SendError::Down));
    let lost = env.send(link, &packet, Payload { prefix: &[], spans: &[NOWHERE] });
    assert_eq!(lost, Err(SendError::Fault));
}

#[test]
fn who_is_seen_to_sleep_is_rung_at_once_and_the_others_later() {
    let mut env = env();
    let link = LinkId::LOOPBACK;
    let packet = Packet::new(PacketOp::Ack, Qpn::new(5), Qpn::new(6), Psn::new(7));
    for short in [false, true] {
        let send = |env: &mut WindowEnv| {
            let payload = Payload::default();
            let sent = match short {
                true => env.send_short(link, &packet, &[]).is_some(),
                false => env.send(link, &packet, payload).is_ok(),
            };
            assert!(sent);
        };
        send(&mut env);
        send(&mut env);
        assert!(env.owes_ring() && !env.must_ring_now());
        // It falls asleep behind the look at it: only the ring of the doorbell finds out.
        env.link_mut(link).unwrap().consumer.announce_sleep();
        assert!(!env.must_ring_now());
        send(&mut env);
        assert!(env.owes_ring() && env.must_ring_now());
        env.ring_doorbells();
        assert!(!env.owes_ring() && !env.must_ring_now());
        env.link_mut(link).unwrap().consumer.retract_sleep();
    }
}

#[test]
fn the_loopback_link_is_looked_at_from_its_first_use_on() {
    let link = LinkId::LOOPBACK;
    let packet = Packet::new(PacketOp::Ack, Qpn::new(5), Qpn::new(6), Psn::new(7));
    // A packet that the environment does not know of shows whether it looks there.
    let mut unused = env();
    assert!(unused.link_mut(link).unwrap().producer.push_short(&[0; 5], false, 0));
    assert!(!unused.any_ready(), "before it is used nobody pays for a look");
    let qpn = Qpn::new(unused.claim_block().unwrap());
    assert!(!unused.any_ready(), "nobody has asked for the way yet");
    assert_eq!(unused.resolve(&gid("::1"), qpn), Some(link));
    assert!(unused.any_ready(), "whoever knows the way may use it");
    // A packet, whichever way it is sent.
    let mut plain = env();
    plain.send(link, &packet, Payload::default()).unwrap();
    assert!(plain.any_ready() && !plain.announce_sleep());
    let mut short = env();
    let qpn = Qpn::new(short.claim_block().unwrap());
    let found = short.resolve(&gid("127.0.0.1"), qpn).unwrap();
    assert!(!short.any_ready());
    assert!(short.send_short(found, &packet, &[1; 8]).is_some());
    assert!(short.any_ready() && !short.announce_sleep());
    // A member of a group that sends to it is one of its own listeners.
    let group = gid("ff0e::77");
    let mut member = env();
    member.claim_block().unwrap();
    member.announce_multicast(&group, true).unwrap();
    let mut links = Vec::new();
    member.resolve_multicast(&group, &mut links);
    assert_eq!(links, [link]);
    assert!(member.send_short(link, &packet, &[]).is_some());
    assert!(member.any_ready());
}

#[test]
fn groups_have_members() {
    let (mut a, mut b) = (env(), env());
    let group = gid("ff0e::4711");
    assert_eq!(a.announce_multicast(&group, true), Err(Errno::ENODEV), "no QP, no member");
    a.claim_block().unwrap();
    b.claim_block().unwrap();
    a.announce_multicast(&group, true).unwrap();
    a.announce_multicast(&group, true).unwrap();
    let members = |p: &mut WindowEnv| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        let mut links = Vec::new();
        p.resolve_multicast(&group, &mut links);
        links
    };
    assert_eq!(members(&mut a), [LinkId::LOOPBACK]);
    let to_a = members(&mut b);
    assert!(to_a.len() == 1 && to_a[0] != LinkId::LOOPBACK);
    b.announce_multicast(&group, true).unwrap();
    assert_eq!((members(&mut a).len(), members(&mut b).len()), (2, 2));
    a.announce_multicast(&group, false).unwrap();
    assert_eq!((members(&mut a).len(), members(&mut b)), (1, vec![LinkId::LOOPBACK]));
    drop(b);
    assert_eq!(members(&mut a), []);
}

#[test]
fn settings() {
    let with = |pairs: &'static [(&str, &str)]| {
        let get = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        Config::of(&report::Settings::from_lookup(get))
    };
    assert_eq!(with(&[]), Config::default());
    assert!(!with(&[("SOFTRNIC_SINGLE_COPY", "0")]).single_copy);
    assert!(with(&[("SOFTRNIC_SINGLE_COPY", "x")]).single_copy);
    let above = |pairs| with(pairs).single_copy_above;
    assert_eq!(above(&[("SOFTRNIC_SINGLE_COPY", "x")]), None);
    assert_eq!(above(&[("SOFTRNIC_SINGLE_COPY", "1")]), Some(16384));
    assert_eq!(above(&[("SOFTRNIC_SINGLE_COPY_ABOVE", "4096")]), Some(4096));
    assert_eq!(above(&[("SOFTRNIC_SINGLE_COPY_ABOVE", "many")]), None);
    assert_eq!(above(&[("SOFTRNIC_SINGLE_COPY_ABOVE", "4096"), ("SOFTRNIC_SINGLE_COPY", "1")]), Some(4096));
    assert!(with(&[("SOFTRNIC_PEERS", "any")]).any_user);
    assert!(!with(&[("SOFTRNIC_PEERS", "user")]).any_user);
}

#[test]
fn tokens_survive_packing() {
    for token in [
        Token::Bell(LinkId(9)),
        Token::Listener(0xffe),
        Token::HalfOpen(u32::MAX),
        Token::Socket(LinkId(u32::MAX)),
        Token::Process(LinkId(7 << 16 | 3)),
        Token::Wake,
        Token::Once,
    ] {
        assert_eq!(Token::unpack(token.pack()), Some(token));
    }
    assert_eq!(Token::unpack(u64::MAX), None);
}

#[test]
fn random_numbers_differ() {
    let mut env = env();
    let seen: HashSet<u64> = (0..1000).map(|_| env.random()).collect();
    assert_eq!(seen.len(), 1000);
}

/// A doorbell need not be read: it wakes once for each ring, whether the count is 0 or not.
#[test]
fn a_doorbell_wakes_once() {
    let (mut env, mut other, link, _) = linked();
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let wakes = |env: &WindowEnv| {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(env.epoll_fd().as_fd(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&zero)).unwrap() > 0
    };
    env.handle_events(0);
    assert!(!wakes(&env));
    let theirs = other.links()[1];
    assert!(other.link(theirs).unwrap().remote.as_ref().unwrap().doorbell.is_some());
    assert!(env.link(link).unwrap().remote.as_ref().unwrap().doorbell.is_some());
    for _ in 0..3 {
        for _ in 0..3 {
            other.link_mut(theirs).unwrap().ring();
        }
        assert!(wakes(&env));
        env.handle_events(0);
        assert!(!wakes(&env));
    }
}

#[test]
fn it_may_move_to_the_thread_that_holds_the_lock() {
    fn is_send<T: Send>() {}
    is_send::<WindowEnv>();
}

/// The descriptors of TABLE are lost, as when the process has no more between the acceptance and the arrival of TABLE.
#[test]
fn a_table_whose_descriptors_are_cut_off_ends_no_link() {
    let table = Message::Table { export_table: true };
    let (mut env, mut other) = (env(), env());
    // This test answers for the block.
    let first = other.claim_block().unwrap();
    let (_, listener) = other.own_blocks.pop().unwrap();

    let link = env.resolve(&gid("::1"), Qpn::new(first)).unwrap();
    let peer = socket::accept(&listener).unwrap();
    let its = Greeting { single_copy: false, ..greeting() };
    socket::send(&peer, &Message::Welcome(its), &[]).unwrap();
    env.handle_events(monotonic());
    assert!(env.obey(link, &table, None));
    let remote = env.link(link).unwrap().remote.as_ref().unwrap();
    assert!(remote.instance == Some([1; 16]) && remote.doorbell.is_none() && remote.export_table.is_none());
    // TABLE is accepted once.
    assert!(!env.obey(link, &table, None));
}

/// The quicker way for large messages: it depends on the machine, on the side that sleeps, and on where the messages
/// lie.
#[test]
fn large_messages_go_the_quicker_way() {
    let (mut env, mut other, link, _) = linked();
    assert!(env.caps(link).single_copy.is_some());
    let favours = |env: &mut WindowEnv, window| {
        env.link_mut(link).unwrap().remote.as_mut().unwrap().favours_window = window;
    };
    let above = |env: &WindowEnv| {
        let caps = env.caps(link).single_copy.unwrap();
        assert_eq!(caps.shared_above, 16384, "one copy is best where peers map the memory");
        (caps.above, caps.flowing_above)
    };
    favours(&mut env, false);
    assert_eq!(above(&env), (16384, 16384));
    favours(&mut env, true);
    assert_eq!(above(&env), (u32::MAX, u32::MAX));
    env.announce_sleep();
    assert_eq!(above(&env), (128 << 10, u32::MAX), "we would have to be woken, if nothing is under way");
    env.set_awaits_events(true);
    assert_eq!(above(&env), (128 << 10, 128 << 10), "we would have to be woken");
    env.suppress_doorbells();
    other.announce_sleep();
    assert_eq!(above(&env), (128 << 10, u32::MAX), "it would have to be woken, if nothing is under way");
    other.suppress_doorbells();
    assert_eq!(above(&env), (u32::MAX, u32::MAX));
    // A threshold from the settings holds in all cases.
    env.config.single_copy_above = Some(4096);
    let caps = env.caps(link).single_copy.unwrap();
    assert_eq!((caps.above, caps.flowing_above, caps.shared_above), (4096, 4096, 4096));
    assert_eq!(env.caps(LinkId::LOOPBACK).single_copy.unwrap().above, 1024);
    // Where the answer for one message is that none goes by single copy, no threshold would let that message.
    for wanted in [None, Some(0), Some(100), Some(1025), Some(u32::MAX)] {
        env.config.single_copy_above = wanted;
        for (link, len) in [link, LinkId::LOOPBACK].into_iter().flat_map(|link| (0..2048).map(move |len| (link, len))) {
            let all = env.caps(link).single_copy.unwrap();
            let least = all.above.min(all.flowing_above).min(all.shared_above).min(all.either_from.saturating_sub(1));
            assert!(env.caps_for(link, len).single_copy.is_some() || len <= least, "{wanted:?}, {len} bytes");
        }
    }

    let Some(mapped) = env.allocate_shared(8192) else { panic!("memory cannot be shared here") };
    let mut own = [0u8; 8];
    assert!(env.peers_map(&Span { addr: mapped.addr() + 8191, len: 1, guarded: true }));
    assert!(!env.peers_map(&span(&mut own)));
    env.free_shared(mapped);
}

/// A sender that sleeps while a window is full is rung when there is room. A sender that polls looks for room itself.
#[test]
fn room_in_a_window_is_announced_to_sleepers() {
    let (mut env, mut other, link, qpn) = linked();
    let rung = |env: &WindowEnv| {
        let bell = env.link(link).unwrap().remote.as_ref().unwrap().bell.as_ref().unwrap();
        rustix::io::read(bell, &mut [0; 8]).is_ok()
    };
    let packet = Packet::new(PacketOp::Send, qpn, Qpn::new(1), Psn::new(0));
    for sleeps in [false, true, false] {
        env.suppress_doorbells();
        while env.send(link, &packet, Payload::default()).is_ok() {}
        assert!(!sleeps || env.announce_sleep());
        let theirs = other.links()[1];
        while other.peek(theirs).is_some() {
            other.release(theirs);
        }
        assert_eq!(rung(&env), sleeps);
        env.handle_events(monotonic());
    }
}

/// Several requests in a row that are executed here are a stream: its next goes as a packet.
#[test]
fn of_a_stream_the_peer_does_its_part() {
    use verbs::{Access, CtxId, PdId, QpType, RKey};
    use wire::{Export, OneSided, OneSidedOp};
    let (mut env, mut other, link, dst) = linked();
    let src = Qpn::new(0x777);
    let (access, pd, mut memory) =
        (Access::REMOTE_READ | Access::REMOTE_WRITE, PdId { index: 1, generation: 1 }, vec![1u8; 200_000]);
    let (addr, ctx) = (span(&mut memory).addr, CtxId { index: 1, generation: 0 });
    other.publish(&Export::Region { key: 5, through: None, ctx, pd, access, addr, length: 200_000, iova: addr });
    let (service, exported_pd) = (QpType::Rc, Some(pd));
    other.publish(&Export::Qp { qpn: dst, service, peer: src, ctx, pd: exported_pd, access, mtu: 4096, epoch: 9 });
    other.announce_sleep();
    let (key, mut own) = (RKey(5), vec![2u8; 200_000]);
    let mut one_sided = |env: &mut WindowEnv, op, len, queues| {
        let local = Payload { prefix: &[], spans: &[Span { len, ..span(&mut own) }] };
        let (epoch, rkey, before, after, mtu) = (None, key, 0, 0, 4096);
        let request = OneSided { service, src, dst, epoch, op, rkey, addr, len, before, after, mtu, queues, local };
        env.one_sided(link, &request).is_some()
    };
    for op in [OneSidedOp::Write, OneSidedOp::Read] {
        for (len, peer_does) in [(8, true), (16384, true), (16385, false), (100_000, false), (200_000, true)] {
            for window in [false, true] {
                let verdict = |env: &mut WindowEnv| {
                    let link = env.link_mut(link).unwrap();
                    link.stream_detector = StreamDetector::stream(len, 0);
                    link.remote.as_mut().unwrap().favours_window = window;
                };
                verdict(&mut env);
                assert!(one_sided(&mut env, op, len, false), "{op:?} {len}: each is waited for");
                verdict(&mut env);
                assert_eq!(one_sided(&mut env, op, len, true), !(peer_does || window), "{op:?} {len} {window}");
                assert!(one_sided(&mut env, op, len, true), "{op:?} {len}: that is found out anew");
            }
        }
    }
    // A peer that takes longer for its part than a call is given none for a while.
    const LONG: u64 = 1_000_000_000;
    for (call, refused, took, goes_on) in
        [(u64::MAX / 4, true, LONG, true), (0, true, LONG, false), (0, false, LONG, true), (0, true, 0, true)]
    {
        let begin = |env: &mut WindowEnv| {
            let link = env.link_mut(link).unwrap();
            link.stream_detector = StreamDetector::stream(100_000, call);
            link.remote.as_mut().unwrap().favours_window = true;
        };
        begin(&mut env);
        assert!(!one_sided(&mut env, OneSidedOp::Read, 100_000, true), "the peer does it");
        // One that began just now, behind a pause, is another one.
        std::thread::sleep(std::time::Duration::from_millis(1));
        env.was_answered(link, 100_000, took, refused);
        begin(&mut env);
        assert_eq!(!one_sided(&mut env, OneSidedOp::Read, 100_000, true), goes_on, "{call} {refused} {took}");
        env.link_mut(link).unwrap().shares = Default::default();
    }
    // And it is found out, as soon as there are enough without a break between them.
    let streams = |_| !one_sided(&mut env, OneSidedOp::Read, 100_000, true);
    assert!((0..100_000).any(streams));
}

/// What a capture needs: a packet is recorded by its receiver unless its sender does so.
#[test]
fn who_has_sent_a_packet_is_known_when_it_is_there() {
    let (mut env, mut other) = (env(), env());
    let qpn = Qpn::new(other.claim_block().unwrap());
    let link = env.resolve(&gid("::1"), qpn).unwrap();
    assert_eq!(taps::Wire::peer_device(&mut env, link), None);
    // It can send from now on; we have not looked at the socket since.
    other.handle_events(monotonic());
    assert_eq!(taps::Wire::peer_device(&mut env, link), Some(other.instance));
}

/// Two links to one process: what it has sent before its death may have come over either.
#[test]
fn a_link_that_dies_names_another_to_the_same_process() {
    let (mut env, mut other) = (env(), env());
    let [ours, its] = [&mut env, &mut other].map(|p| Qpn::new(p.claim_block().unwrap()));
    let own = env.resolve(&gid("::1"), its).unwrap();
    other.resolve(&gid("::1"), ours).unwrap();
    env.handle_events(monotonic());
    let theirs = env.links()[2];
    for (dies, heir) in [(own, Some(theirs)), (theirs, None)] {
        assert!(!env.has_ending_links());
        env.link_mut(dies).unwrap().drain();
        assert!(env.has_ending_links(), "what is still there is to be taken");
        env.bury(dies);
        assert!(env.has_ending_links());
        let mut dead = Vec::new();
        env.take_dead_links(&mut dead);
        assert_eq!(dead, [(dies, heir)]);
        assert!(!env.has_ending_links());
    }
}

/// Where our number stands for users without one, a peer with that number has to prove that it may trace us.
#[test]
fn who_has_the_number_of_nobody_has_to_prove_itself() {
    let (mut env, mut other) = (env(), env());
    let (own, there) = (Qpn::new(env.claim_block().unwrap()), Qpn::new(other.claim_block().unwrap()));
    (env.vague, other.vague) = (Some(env.uid), Some(other.uid));
    let packet = Packet::new(PacketOp::Send, there, own, Psn::new(0));
    assert_eq!(env.resolve(&gid("::1"), there), None, "it has proved nothing");
    let held = env.links()[1];
    assert_eq!(env.send(held, &packet, Payload::default()), Err(SendError::Down));
    for _ in 0..3 {
        other.handle_events(monotonic());
        env.handle_events(monotonic());
    }
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert!(env.is_up(held) && !env.has_ending_links());
    env.send(held, &packet, Payload::default()).unwrap();
    assert!(other.peek(other.links()[1]).is_some());

    // A stranger that has the number, too, may be let in, but its packets are not.
    let (stranger, ..) = names::seek(&rendezvous::block_name((own.get() >> 12) as u16), false).unwrap();
    let (window, memfd) = Memfd::create(Half::WINDOW).unwrap();
    let its = Greeting { nonce_addr: 8, ..greeting() };
    socket::send(&stranger, &Message::Hello(its), &[memfd.as_fd()]).unwrap();
    let mut its = Link::new(Arc::new(window), Side::Maker, env.link_mut(held).unwrap().remote.take().unwrap()).unwrap();
    assert!(its.producer.push_short(&[0; 5], false, 0));
    env.handle_events(monotonic());
    let link = *env.links().last().unwrap();
    assert_ne!(link, held);
    assert!(env.peek(link).is_none() && !env.any_ready() && env.announce_sleep());
    env.suppress_doorbells();
    socket::send(&stranger, &Message::Proof([0; rendezvous::NONCE]), &[]).unwrap();
    env.handle_events(monotonic());
    assert!(env.peek(link).is_none() && env.link(link).unwrap().state == State::Held);
    drop(stranger);
    env.handle_events(monotonic());
    assert!(env.link(link).unwrap().state == State::Dead);
}

#[test]
fn maps_that_cover_everything() {
    let covers = super::covers_all;
    assert!(covers("         0          0 4294967295\n"));
    assert!(covers("0 0 1000\n1000 5000 4294966295\n"));
    assert!(!covers("") && !covers("0 1000 1\n") && !covers("65534 1000 1\n") && !covers("0 0 4294967294"));
}

/// One process gets a few links, and leaves descriptors to the program.
#[test]
fn no_process_takes_all_descriptors() {
    let (mut env, mut other, link, _) = linked();
    let own = Qpn::new(env.claim_block().unwrap());
    let mut who = env.link(link).unwrap().remote.as_ref().unwrap().who;
    assert!(!env.has_enough(who));
    // Others' links stand for those of another process.
    who.pid = 1;
    let mut visitors = Vec::new();
    for n in 0..MAX_LINKS_EACH {
        assert!(!env.has_enough(who), "{n}");
        let mut visitor = self::env();
        visitor.resolve(&gid("::1"), own).unwrap();
        env.handle_events(monotonic());
        let last = *env.links().last().unwrap();
        env.link_mut(last).unwrap().remote.as_mut().unwrap().who.pid = 1;
        visitors.push(visitor);
    }
    assert!(env.has_enough(who) && !env.has_enough(Who { pid: 2, ..who }));
    let last = *env.links().last().unwrap();
    env.bury(last);
    assert!(!env.has_enough(who), "what has ended does not count");
    // The number of a descriptor says how many there are.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let file = std::fs::File::open("/dev/null").unwrap();
    if let Ok(high) = rustix::io::fcntl_dupfd_cloexec(&file, i32::try_from(limit - 2).unwrap_or(i32::MAX - 1)) {
        assert!(WindowEnv::is_crowded(&high) && !WindowEnv::is_crowded(&file.into()));
    }
    other.handle_events(monotonic());
}
