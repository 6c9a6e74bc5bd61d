//! The short way of a poll, over the loopback link.

use ::verbs::{
    Access, AhAttr, LKey, Opcode, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType, RecvWr, SendBody, SendData,
    SendFlags, SendWr, Sge, WcOpcode, state,
};

use super::*;

/// Two connected queue pairs of one process, whose completions all come to one queue.
struct Pair {
    nic: Nic,
    cq: CqId,
    qps: [QpId; 2],
    sges: [Sge; 1],
}

impl Pair {
    fn new() -> Pair {
        let nic = Nic::new().unwrap();
        let ctx = nic.core.lock().open_ctx().unwrap();
        let pd = nic.lock().alloc_pd(ctx).unwrap();
        let memory = Box::leak(vec![7u64; 64].into_boxed_slice());
        let addr = memory.as_ptr() as u64;
        let (_, key, _) = nic.reg_mr(pd, addr, 512, addr, Access::LOCAL_WRITE).unwrap();
        let (cq, _) = nic.lock().create_cq(ctx, 256, 1, engine::CqOpts::default()).unwrap();
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (pd, cqs, qp_type) = (Some(pd), Some(cq), QpType::Rc);
        let init = QpInit { pd, qp_type, send_cq: cqs, recv_cq: cqs, srq: None, xrcd: None, cap, sq_sig_all: false };
        let made = [(); 2].map(|()| nic.create_qp(ctx, &init, 0).unwrap());
        for (i, (qp, _)) in made.iter().enumerate() {
            let mut attr = QpAttr {
                path_mtu: 3,
                dest_qp_num: made[1 - i].1.qpn.get(),
                ah: AhAttr { dgid: nic.gids()[0].gid, is_global: true, port_num: 1, ..Default::default() },
                port_num: 1,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                ..Default::default()
            };
            for pair in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts].windows(2) {
                attr.state = pair[1];
                let (mask, _) = state::transition(QpType::Rc, pair[0], pair[1]).unwrap();
                nic.modify_qp(*qp, &attr, mask | QpAttrMask::STATE).unwrap();
            }
        }
        let pair = Pair { nic, cq, qps: made.map(|(qp, _)| qp), sges: [Sge { addr, length: 8, lkey: LKey(key.0) }] };
        // The first packets are looked at more closely.
        for from in [0, 1] {
            pair.receive(1 - from, 0);
            pair.send(from, 0, true);
            assert_eq!((0..200).map(|_| pair.poll(16).len()).sum::<usize>(), 2);
        }
        pair
    }

    fn send(&self, from: usize, wr_id: u64, signaled: bool) {
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let wr = SendWr {
            wr_id,
            opcode: Opcode::Send,
            flags,
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &SendBody::Plain,
            data: SendData::Sges(&self.sges),
        };
        self.nic.post_send(self.qps[from], &wr).unwrap();
    }

    fn receive(&self, at: usize, wr_id: u64) {
        self.nic.post_recv(self.qps[at], &RecvWr { wr_id, sges: &self.sges }).unwrap();
    }

    /// A poll by who polls all the time, and looks at everything later.
    fn poll(&self, most: usize) -> Vec<Completion> {
        {
            let mut core = self.nic.core.lock();
            core.mode = Mode::Polled;
            if core.looks_at != 0 {
                core.looks_at = core.polls + 100;
            }
            core.clock_uses = core.clock_uses.max(10);
        }
        let mut found = Vec::new();
        let n = self.nic.poll_cq(self.cq, most, |i, completion| {
            assert_eq!(i, found.len());
            found.push(*completion);
        });
        assert_eq!(n, found.len());
        found
    }

    /// The numbers of what so many polls find: of receives, and of sends.
    fn polled(&self, polls: usize, most: usize) -> (Vec<u64>, Vec<u64>) {
        let all: Vec<_> = (0..polls).flat_map(|_| self.poll(most)).collect();
        let of = |opcode| all.iter().filter(|wc| wc.opcode == opcode).map(|wc| wc.wr_id).collect();
        (of(WcOpcode::Recv), of(WcOpcode::Send))
    }
}

#[test]
fn a_poll_takes_what_there_is() {
    let pair = Pair::new();
    for id in 0..20 {
        pair.receive(1, id);
        pair.send(0, id, true);
    }
    assert_eq!(pair.poll(1).len(), 1);
    assert!(pair.nic.core.lock().engine.cq_is_empty(pair.cq));
    assert_eq!(pair.poll(0).len(), 0);
    assert!(!pair.nic.core.lock().engine.cq_is_empty(pair.cq), "what has come is taken in all the same");
    let (received, sent) = pair.polled(30, 16);
    assert_eq!((received, sent), ((1..20).collect(), (0..20).collect()));
    assert!(pair.poll(16).is_empty());
}

/// verbs.h: "If the return value is non-negative and strictly less than num_entries, then the CQ was emptied."
#[test]
fn who_gets_less_than_he_asked_for_has_emptied_the_queue() {
    let pair = Pair::new();
    for id in 0..3 {
        pair.receive(1, id);
        pair.send(0, id, true);
    }
    // The messages; one acknowledgement ends all three requests.
    assert_eq!(pair.poll(16).len(), 3);
    let ended = (0..10).map(|_| pair.poll(16)).find(|found| !found.is_empty()).unwrap();
    assert_eq!(ended.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2]);
    // An armed queue gets its completions all the same.
    pair.nic.core.lock().arm_cq(pair.cq, true).unwrap();
    pair.receive(1, 7);
    pair.send(0, 7, false);
    assert_eq!(pair.poll(16).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [7]);
}

/// What asks for the time of completions gets the time at which they came.
#[test]
fn exact_time_is_that_of_the_poll() {
    let pair = Pair::new();
    pair.nic.lock().want_exact_time();
    pair.receive(1, 1);
    pair.send(0, 1, false);
    std::thread::sleep(Duration::from_millis(2));
    let before = now();
    let found = pair.poll(1);
    assert!(found[0].timestamp >= before, "{} ns before the poll", before - found[0].timestamp);
}

#[test]
fn a_link_that_always_has_something_has_its_turn_only() {
    let mut turns = Turns::default();
    turns.took(1);
    assert_eq!(turns.first(3), 1);
    turns.next_is_anothers();
    assert_eq!(turns.first(3), 2);
    assert_eq!(turns.first(3), 2);
    turns.next_is_anothers();
    turns.took(2);
    assert_eq!(turns.first(3), 0);
}
