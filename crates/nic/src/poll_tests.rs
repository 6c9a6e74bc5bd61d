//! The fast path of a poll, over the loopback link.

use ::verbs::{
    Access, AhAttr, LKey, MrId, Opcode, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType, RecvWr, SendBody,
    SendData, SendFlags, SendWr, Sge, WcOpcode, WcStatus, state,
};

use report::Settings;
use wire::{PacketOp, Payload};

use super::*;
use crate::channel::is_readable;
use crate::now;
use crate::verbs_calls::last_words;
use ::verbs::{Completion, Psn, Qpn};

/// Bytes of a region: a window of it is shown to peers, which copy so many themselves.
const LENGTH: u64 = 1 << 16;

/// Two connected queue pairs, of one adapter or of two. Each sees no more of the other than another process would.
struct Pair {
    nics: Vec<Nic>,
    ends: [End; 2],
}

/// One queue pair of the two. All its completions come to one queue; an adapter has one queue only.
#[derive(Clone, Copy)]
struct End {
    nic: usize,
    cq: CqId,
    qp: QpId,
    mr: MrId,
    sges: [Sge; 1],
}

impl Pair {
    fn new(nics: usize) -> Pair {
        let nics: Vec<Nic> = (0..nics).map(|_| Nic::new(Settings::of_process()).unwrap()).collect();
        let made = nics.iter().map(|nic| {
            let ctx = nic.core.lock().open_ctx().unwrap();
            let pd = nic.lock().alloc_pd(ctx).unwrap();
            let memory = Box::leak(vec![7u64; LENGTH as usize / 8].into_boxed_slice());
            let addr = memory.as_ptr() as u64;
            let (mr, key, _) = nic.reg_mr(pd, addr, LENGTH, addr, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
            let (cq, _) = nic.lock().create_cq(ctx, 256, 1, engine::CqOpts::default()).unwrap();
            (ctx, pd, (cq, mr), [Sge { addr, length: 8, lkey: LKey(key.0) }])
        });
        let made: Vec<_> = made.collect();
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let qps = [0, 1].map(|end| {
            let nic = end % nics.len();
            let (ctx, pd, (cq, mr), sges) = made[nic];
            let (pd, cqs, qp_type) = (Some(pd), Some(cq), QpType::Rc);
            let init =
                QpInit { pd, qp_type, send_cq: cqs, recv_cq: cqs, srq: None, xrcd: None, cap, sq_sig_all: false };
            let (qp, created) = nics[nic].create_qp(ctx, &init, 0).unwrap();
            (End { nic, cq, qp, mr, sges }, created.qpn)
        });
        for (end, peer) in [(qps[0].0, qps[1].1), (qps[1].0, qps[0].1)] {
            let nic = &nics[end.nic];
            let mut attr = QpAttr {
                path_mtu: 3,
                dest_qp_num: peer.get(),
                ah: AhAttr {
                    dgid: nic.gids(report::Device::Roce)[0].gid,
                    is_global: true,
                    port_num: 1,
                    ..Default::default()
                },
                port_num: 1,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                ..Default::default()
            };
            for pair in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts].windows(2) {
                attr.state = pair[1];
                let (mask, _) = state::transition(QpType::Rc, pair[0], pair[1]).unwrap();
                nic.modify_qp(end.qp, &attr, mask | QpAttrMask::STATE).unwrap();
            }
        }
        let pair = Pair { nics, ends: qps.map(|(end, _)| end) };
        // The first packets are checked more closely, and make the path known.
        for from in [0, 1] {
            pair.receive(1 - from, 0);
            pair.send(from, 0, true);
            let mut found = 0;
            for _ in 0..1000 {
                for nic in &pair.nics {
                    let mut core = nic.lock();
                    let now = core.read_time();
                    core.engine.env_mut().handle_events(now);
                    core.progress(now);
                }
                found += pair.poll(0, 16).len();
                found += if pair.nics.len() > 1 { pair.poll(1, 16).len() } else { 0 };
            }
            assert_eq!(found, 2);
        }
        pair
    }

    fn nic(&self, end: usize) -> &Nic {
        &self.nics[self.ends[end].nic]
    }

    fn send(&self, from: usize, wr_id: u64, signaled: bool) {
        self.send_by(&mut self.nic(from).lock(), from, wr_id, signaled);
    }

    fn send_by(&self, core: &mut Core, from: usize, wr_id: u64, signaled: bool) {
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let wr = SendWr {
            wr_id,
            opcode: Opcode::Send,
            flags,
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &SendBody::Plain,
            data: SendData::Sges(&self.ends[from].sges),
        };
        let now = core.time();
        core.post_send(self.ends[from].qp, &wr, now).unwrap();
    }

    fn receive(&self, at: usize, wr_id: u64) {
        let End { qp, sges, .. } = &self.ends[at];
        self.nic(at).post_recv(*qp, &RecvWr { wr_id, sges }).unwrap();
    }

    /// A poll by a program that polls all the time and checks everything later.
    fn poll(&self, end: usize, most: usize) -> Vec<Completion> {
        {
            let mut core = self.nic(end).core.lock();
            core.mode = Mode::Polled;
            if core.full_check_at != 0 {
                core.full_check_at = core.polls + 100;
            }
            core.clock_uses = core.clock_uses.max(10);
        }
        let mut found = Vec::new();
        let n = self.nic(end).poll_cq(self.ends[end].cq, most, |i, completion| {
            assert_eq!(i, found.len());
            found.push(*completion);
        });
        assert_eq!(n, found.len());
        found
    }

    /// Send messages both ways: from then on both ends look first at the link where the other's packets come.
    fn acquaint(&self) {
        for (from, to) in [(0, 1), (1, 0), (0, 1), (1, 0)] {
            self.receive(to, 100);
            self.send(from, 100, true);
            assert_eq!((self.poll(to, 16).len(), self.poll(from, 16).len()), (1, 1));
        }
    }

    /// The numbers of the receives and of the sends that so many polls find.
    fn polled(&self, polls: usize, most: usize) -> (Vec<u64>, Vec<u64>) {
        let all: Vec<_> = (0..polls).flat_map(|_| self.poll(0, most)).collect();
        let of = |opcode| all.iter().filter(|wc| wc.opcode == opcode).map(|wc| wc.wr_id).collect();
        (of(WcOpcode::Recv), of(WcOpcode::Send))
    }
}

#[test]
fn a_poll_takes_what_there_is() {
    let pair = Pair::new(1);
    for id in 0..20 {
        pair.receive(1, id);
        pair.send(0, id, true);
    }
    assert_eq!(pair.poll(0, 1).len(), 1);
    assert!(pair.nic(0).core.lock().engine.cq_is_empty(pair.ends[0].cq));
    assert_eq!(pair.poll(0, 0).len(), 0);
    assert!(!pair.nic(0).core.lock().engine.cq_is_empty(pair.ends[0].cq), "what has come is taken in all the same");
    let (received, sent) = pair.polled(30, 16);
    assert_eq!((received, sent), ((1..20).collect(), (0..20).collect()));
    assert!(pair.poll(0, 16).is_empty());
}

/// verbs.h: "If the return value is non-negative and strictly less than num_entries, then the CQ was emptied."
#[test]
fn who_gets_less_than_he_asked_for_has_emptied_the_queue() {
    let pair = Pair::new(1);
    for id in 0..3 {
        pair.receive(1, id);
        pair.send(0, id, true);
    }
    // The messages are behind one acknowledgement, which ends all three requests.
    assert_eq!(pair.poll(0, 16).len(), 3);
    let ended = (0..10).map(|_| pair.poll(0, 16)).find(|found| !found.is_empty()).unwrap();
    assert_eq!(ended.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2]);
    // An armed queue gets its completions all the same.
    pair.nic(0).core.lock().arm_cq(pair.ends[0].cq, true).unwrap();
    pair.receive(1, 7);
    pair.send(0, 7, false);
    assert_eq!(pair.poll(0, 16).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [7]);
}

/// A completion that a poll brings itself is an event, too, for a program that has asked for one.
#[test]
fn a_poll_hands_nothing_past_an_event() {
    let pair = Pair::new(2);
    pair.acquaint();
    for most in [1, 16] {
        pair.nic(1).core.lock().arm_cq(pair.ends[1].cq, false).unwrap();
        pair.receive(1, 7);
        pair.send(0, 7, false);
        assert_eq!(pair.poll(1, most).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [7]);
        assert!(!pair.nic(1).core.lock().cq_is_armed(pair.ends[1].cq));
    }
}

/// One acknowledgement ends two requests, and a message comes behind it.
#[test]
fn what_was_put_in_is_not_overtaken_by_several() {
    let pair = Pair::new(2);
    pair.acquaint();
    pair.receive(0, 9);
    for id in 0..2 {
        pair.receive(1, id);
        pair.send(0, id, true);
    }
    assert_eq!(pair.poll(1, 16).len(), 2);
    pair.send(1, 5, false);
    let found: Vec<_> = (0..3).flat_map(|_| pair.poll(0, 16)).map(|wc| (wc.opcode, wc.wr_id)).collect();
    assert_eq!(found, [(WcOpcode::Send, 0), (WcOpcode::Send, 1), (WcOpcode::Recv, 9)]);
}

/// An acknowledgement brings a completion, but not on the fast path: it is in the queue when a message follows.
#[test]
fn what_was_put_in_is_not_overtaken_by_one() {
    let pair = Pair::new(2);
    pair.acquaint();
    pair.receive(0, 9);
    pair.receive(1, 0);
    pair.send(0, 0, false);
    let write = SendWr {
        wr_id: 1,
        opcode: Opcode::RdmaWrite,
        flags: SendFlags::SIGNALED,
        imm_or_rkey: 0,
        remote_srqn: 0,
        body: &SendBody::Rdma { remote_addr: 0, rkey: ::verbs::RKey(0) },
        data: SendData::Sges(&[]),
    };
    pair.nic(0).post_send(pair.ends[0].qp, &write).unwrap();
    pair.nic(1).core.lock().take_in(); // both are acknowledged at once
    pair.send(1, 5, false);
    // At the first poll: both packets have come.
    let found: Vec<_> = (0..2).flat_map(|_| pair.poll(0, 1)).map(|wc| (wc.opcode, wc.wr_id)).collect();
    assert_eq!(found, [(WcOpcode::RdmaWrite, 1), (WcOpcode::Recv, 9)]);
}

/// An acknowledgement without completion does not end a poll: the answer behind it comes with it, also where the clock
/// is to be read in between.
#[test]
fn the_answer_behind_acknowledgements() {
    let pair = Pair::new(2);
    pair.acquaint();
    for (acks, uses) in [(1, 10), (3, 10), (1, 1), (3, 1)] {
        pair.receive(0, 9);
        for id in 0..acks {
            pair.receive(1, id);
            pair.send(0, id, false);
            assert_eq!(pair.poll(1, 1).len(), 1);
        }
        pair.send(1, 5, true);
        assert!(pair.poll(1, 1).is_empty());
        {
            let mut core = pair.nic(0).core.lock();
            (core.mode, core.clock_uses) = (Mode::Polled, uses);
            core.full_check_at = core.polls + 100;
        }
        let mut found = Vec::new();
        let n = pair.nic(0).poll_cq(pair.ends[0].cq, 1, |_, wc| found.push((wc.opcode, wc.wr_id)));
        assert_eq!((n, found), (1, vec![(WcOpcode::Recv, 9)]), "{acks} acknowledgements, {uses} uses of the clock");
        assert_eq!(pair.nic(0).core.lock().empty_polls, 0);
        assert_eq!(pair.poll(1, 1).len(), 1, "and is acknowledged");
    }
}

/// A message is checked against the state at its arrival: memory that was deregistered after the poll before (IBTA vol.
/// 1, 10.6.3.1) is not written.
#[test]
fn memory_is_given_back_between_polls() {
    let pair = Pair::new(2);
    pair.acquaint();
    let End { sges: [sge], mr, .. } = pair.ends[0];
    for id in 0..2 {
        pair.receive(0, id);
    }
    for (id, status) in [(0, WcStatus::Success), (1, WcStatus::LocProtErr)] {
        assert!(pair.poll(0, 1).is_empty());
        if id > 0 {
            memory::local::store(sge.addr, false, &[5; 8]).unwrap();
            pair.nic(0).dereg_mr(mr).unwrap();
        }
        pair.send(1, id, true);
        let found: Vec<_> = pair.poll(0, 1).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(found, [(id, status)]);
        assert_eq!(pair.poll(1, 1).len(), 1, "and is answered");
    }
    let mut memory = [0; 8];
    memory::local::load(sge.addr, false, &mut memory).unwrap();
    assert_eq!(memory, [5; 8]);
}

/// A packet whose header has only the numbers of the last SEND is no message, whatever a peer writes into its ring: no
/// rule takes such a header, without a beginning and an end, for a SEND.
#[test]
fn a_header_of_numbers_only_is_no_message() {
    for gone in [false, true] {
        let pair = Pair::new(2);
        pair.acquaint();
        let End { sges: [sge], mr, .. } = pair.ends[0];
        for id in 0..3 {
            pair.receive(0, id);
        }
        for id in 0..2 {
            pair.send(1, id, true);
            assert_eq!((pair.poll(0, 1).len(), pair.poll(0, 1).len()), (1, 0));
            assert_eq!(pair.poll(1, 1).len(), 1);
        }
        if gone {
            pair.nic(0).dereg_mr(mr).unwrap();
        }
        let number = |end: usize| pair.nic(end).core.lock().query_qp(pair.ends[end].qp).unwrap().0;
        let (src, psn) = (number(0).dest_qp_num, number(1).sq_psn.wrapping_sub(1) & 0xff_ffff);
        for first in [0, 1, 2] {
            let mut packet = Packet::new(PacketOp::Send, Qpn::new(0), Qpn::new(src), Psn::new(psn));
            (packet.flags, packet.len) = (first, 8);
            let mut core = pair.nic(1).lock();
            let links = core.engine.env().links().to_vec();
            let payload = Payload { prefix: &[9; 8], spans: &[] };
            let sent = links
                .iter()
                .filter(|&&link| link != LinkId::LOOPBACK)
                .filter(|&&link| core.engine.env_mut().send(link, &packet, payload).is_ok());
            assert!(sent.count() > 0);
            drop(core);
            assert!(pair.poll(0, 1).is_empty(), "flags {first}, deregistered {gone}");
            let mut memory = [0; 8];
            memory::local::load(sge.addr, false, &mut memory).unwrap();
            assert_eq!(memory, 7u64.to_ne_bytes());
        }
    }
}

/// A program that sends and then polls without result rings for a peer that fell asleep in between, whether the program
/// has asked for an event or not.
#[test]
fn a_poll_without_result_rings() {
    let pair = Pair::new(2);
    pair.acquaint();
    for armed in [false, true] {
        if armed {
            pair.nic(0).core.lock().arm_cq(pair.ends[0].cq, false).unwrap();
        }
        pair.receive(1, 7);
        pair.send(0, 7, false);
        assert!(pair.nic(0).core.lock().engine.env().owes_ring());
        assert!(pair.poll(0, 1).is_empty());
        assert!(!pair.nic(0).core.lock().engine.env().owes_ring(), "armed: {armed}");
        assert_eq!(pair.poll(1, 1).len(), 1);
        pair.poll(0, 1);
    }
}

/// A thread that is woken finds the lock released, also where it takes the processor of the one that wakes it.
#[test]
fn threads_and_peers_are_woken_behind_the_lock() {
    let pair = Pair::new(2);
    pair.acquaint();
    let (sender, receiver, cq) = (pair.nic(0), pair.nic(1), pair.ends[1].cq);
    let bells = receiver.core.lock().engine.env().epoll_fd().clone();
    let channel = receiver.create_channel().unwrap();
    receiver.bind_cq_channel(cq, &channel);
    for round in 0..10 {
        receiver.arm_cq(cq, false).unwrap();
        let now = receiver.lock().read_time();
        receiver.core.lock().engine.env_mut().handle_events(now);
        pair.receive(1, round);
        assert!(!is_readable(bells.as_fd()) && receiver.core.lock().mode == Mode::Armed);
        {
            let mut core = sender.lock();
            pair.send_by(&mut core, 0, round, true);
            core.flush();
            assert!(!core.engine.env().owes_ring() && !is_readable(bells.as_fd()));
            if round % 2 == 1 {
                // Not behind all that comes first.
                let now = core.read_time();
                core.progress(now);
                assert!(is_readable(bells.as_fd()));
            }
        }
        assert!(is_readable(bells.as_fd()));
        {
            let mut core = receiver.lock();
            let now = core.read_time();
            core.engine.env_mut().handle_events(now);
            core.progress(now);
            assert!(channel.facts(cq).unread == 1 && !is_readable(channel.bell()));
        }
        assert!(is_readable(channel.bell()));
        receiver.get_cq_event(&channel).unwrap();
        assert!(!is_readable(channel.bell()));
        assert_eq!((pair.poll(1, 16).len(), pair.poll(0, 16).len()), (1, 1));
    }
}

/// Packets that came before a queue pair leaves its connection are received, as by an adapter, which waits for no poll.
#[test]
fn what_came_before_the_end_is_received() {
    for end in [None, Some(QpState::Reset), Some(QpState::Err)] {
        let pair = Pair::new(2);
        pair.receive(1, 1);
        pair.send(0, 2, true);
        let (nic, qp) = (pair.nic(1), pair.ends[1].qp);
        match end {
            Some(state) => nic.modify_qp(qp, &QpAttr { state, ..Default::default() }, QpAttrMask::STATE).unwrap(),
            None => {
                let mut core = nic.lock();
                last_words(&mut core, qp);
                core.destroy_qp(qp).unwrap();
            }
        }
        let mut found = Vec::new();
        for _ in 0..1000 {
            found.extend(pair.poll(0, 16));
        }
        let found: Vec<_> = found.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(found, [(2, ::verbs::WcStatus::Success)], "{end:?}");
    }
}

/// A program that asks for the time of completions gets the time at which they came.
#[test]
fn exact_time_is_that_of_the_poll() {
    let pair = Pair::new(1);
    pair.nic(0).lock().want_exact_time();
    pair.receive(1, 1);
    pair.send(0, 1, false);
    std::thread::sleep(Duration::from_millis(2));
    let before = now();
    let found = pair.poll(0, 1);
    assert!(found[0].timestamp >= before, "{} ns before the poll", before - found[0].timestamp);
}

#[test]
fn a_link_that_always_has_something_has_its_turn_only() {
    let mut round_robin = RoundRobin::default();
    round_robin.took(1);
    assert_eq!(round_robin.first(3), 1);
    round_robin.next_is_anothers();
    assert_eq!(round_robin.first(3), 2);
    assert_eq!(round_robin.first(3), 2);
    round_robin.next_is_anothers();
    round_robin.took(2);
    assert_eq!(round_robin.first(3), 0);
}

/// A poll for several completions, which mostly gets one, also comes to look first at the link where packets come.
#[test]
fn the_link_that_gave_something_is_looked_at_first() {
    let pair = Pair::new(2);
    for id in 0..200 {
        pair.receive(1, id);
        pair.send(0, id, true);
        assert_eq!(pair.poll(1, 16).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [id]);
        assert_eq!(pair.poll(0, 16).len(), 1);
        let core = pair.nic(1).core.lock();
        let first = core.engine.env().links()[core.round_robin.link];
        assert_ne!(first, LinkId::LOOPBACK, "message {id}");
    }
}

/// Where the windows of this process are.
fn windows() -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let windows = maps.lines().filter(|line| line.contains("/memfd:softrnic-window"));
    let range = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    };
    windows.filter_map(range).collect()
}

/// Write the words by which peers mark their copies (`memory::shared`: 384 bytes into each half of a window).
fn mark_copies(windows: &[(u64, u64)], mark: u64) {
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    for (from, to) in windows {
        for half in [*from, from + (to - from) / 2] {
            // It fails where another test's window has gone meanwhile.
            let _ = std::os::unix::fs::FileExt::write_all_at(&memory, &mark.to_ne_bytes(), half + 384);
        }
    }
}

/// A message that takes a key back comes by the fast path. The poll returns behind the copies of peers by that key.
#[test]
fn a_key_that_a_message_takes_back_is_waited_for() {
    for most in [1, 16] {
        // Other tests of this process have windows, too.
        let others = windows();
        let pair = Pair::new(2);
        let ours: Vec<_> = windows().into_iter().filter(|window| !others.contains(window)).collect();
        assert!(!ours.is_empty());
        pair.acquaint();
        let End { nic, qp, mr, sges, .. } = pair.ends[1];
        let (mw, old) = {
            let mut core = pair.nics[nic].lock();
            let pd = core.engine.mr_info(mr).unwrap().pd;
            core.alloc_mw(pd, engine::MwKind::Type2).unwrap()
        };
        let rkey = ::verbs::RKey(old.0 ^ 1);
        let (addr, access) = (sges[0].addr, Access::REMOTE_WRITE);
        let bind = SendWr {
            wr_id: 3,
            opcode: Opcode::BindMw,
            flags: SendFlags::SIGNALED,
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &SendBody::BindMw { mw, rkey, mr: Some(mr), addr, length: LENGTH, access },
            data: SendData::Sges(&[]),
        };
        pair.nics[nic].post_send(qp, &bind).unwrap();
        assert_eq!(
            pair.poll(1, 16).iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
            [(3, WcStatus::Success)]
        );
        // One receive is left behind the message, so that the program is likely to poll again.
        pair.receive(1, 1);
        pair.receive(1, 2);
        let wr = SendWr {
            wr_id: 5,
            opcode: Opcode::SendWithInv,
            flags: SendFlags::SIGNALED,
            imm_or_rkey: rkey.0,
            remote_srqn: 0,
            body: &SendBody::Plain,
            data: SendData::Sges(&pair.ends[0].sges),
        };
        mark_copies(&ours, u64::from(rkey.0) << 32 | 77);
        pair.nic(0).post_send(pair.ends[0].qp, &wr).unwrap();
        let ended = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            mark_copies(&ours, 78);
        });
        let found = pair.poll(1, most);
        assert_eq!(found.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(), [(1, WcStatus::Success)]);
        assert!(!pair.nics[nic].core.lock().engine.env().is_unquiet(), "the copy is not waited for");
        ended.join().unwrap();
    }
}
