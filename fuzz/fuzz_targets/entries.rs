//! Any bytes in the entries of managed queues, while they are executed: what a peer with the keys of the entries may
//! write. Nothing outside of the registered memory may change, and the adapter goes on.
//!
//! The input is a list of 16-byte steps. A queue pair with managed queues is connected to itself over the real wire.
//! The entries are in a region, so that entries patch entries, too.
#![no_main]

use std::sync::atomic::{AtomicU64, Ordering};

use engine::{CqOpts, Engine, Managed, QueueRules, Side, array_bytes};
use libfuzzer_sys::fuzz_target;
use verbs::{
    Access, AhAttr, Count, CqId, Gid, LKey, Opcode, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType, RKey,
    RecvWr, SendBody, SendData, SendFlags, SendWr, Sge,
};
use window::{Config, WindowEnv};
use wire::{EntryArray, LinkId};

const ARENA: usize = 1 << 14;
/// The registered middle of the arena.
const START: usize = 1 << 12;
const LEN: usize = 1 << 13;
const CANARY: u8 = 0xc5;
const DEPTH: u32 = 8;

fn array() -> EntryArray {
    EntryArray::own((0..array_bytes(DEPTH, 2) / 8).map(|_| AtomicU64::new(0)).collect())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

struct Play {
    engine: Engine<WindowEnv>,
    cq: CqId,
    qp: QpId,
    key: u32,
    base: u64,
    arrays: [EntryArray; 2],
    now: u64,
}

impl Play {
    fn new(arena: &mut [u8], rules: &[u8]) -> Option<Play> {
        let mut engine = Engine::new(WindowEnv::new(Config::default()).ok()?);
        let gid = Gid::from_ip("127.0.0.1".parse().ok()?);
        let first = engine.env_mut().claim_block().ok()?;
        engine.set_gids(vec![gid]);
        engine.add_qpns(first);
        engine.set_diagnostics(true);
        let ctx = engine.open_ctx().ok()?;
        let pd = engine.alloc_pd(ctx).ok()?;
        let opts = CqOpts { ignore_overrun: true, cross_channel: true, ..CqOpts::default() };
        let (cq, _) = engine.create_cq(ctx, 4, 7, opts).ok()?;
        let base = arena[START..].as_mut_ptr().expose_provenance() as u64;
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let (_, key, _) = engine.reg_mr(pd, base, LEN as u64, base, all).ok()?;
        let cap =
            QpCap { max_send_wr: DEPTH, max_recv_wr: DEPTH, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 0 };
        let init = QpInit {
            pd: Some(pd),
            qp_type: QpType::Rc,
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
        };
        let arrays = [array(), array()];
        let patchable = if rules[0] & 1 == 0 { [u64::MAX; 2] } else { [number(&rules[1..9]), number(&rules[9..16])] };
        let opcodes = if rules[0] & 2 == 0 { u64::MAX } else { number(&rules[2..10]) };
        let rules = QueueRules { opcodes, patchable, cyclic: rules[0] & 4 == 0 };
        let managed = Managed {
            send: Some((arrays[0].clone(), rules)),
            recv: Some((arrays[1].clone(), QueueRules { opcodes: 0, ..rules })),
        };
        let (qp, created) = engine.create_managed_qp(ctx, &init, 1, &managed).ok()?;
        for array in &arrays {
            engine.reg_mr(pd, array.addr(), array.words().len() as u64 * 8, array.addr(), all).ok()?;
        }
        let mut attr = QpAttr {
            path_mtu: 3,
            dest_qp_num: created.qpn.get(),
            access: all,
            ah: AhAttr { dgid: gid, is_global: true, port_num: 1, ..AhAttr::default() },
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            port_num: 1,
            timeout: 10,
            retry_cnt: 3,
            rnr_retry: 3,
            ..QpAttr::default()
        };
        for (from, to) in [(QpState::Reset, QpState::Init), (QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)]
        {
            attr.state = to;
            let (required, _) = verbs::state::transition(QpType::Rc, from, to).expect("a row of the table");
            engine.modify_qp(qp, &attr, required | QpAttrMask::STATE, 1).expect("the way up");
        }
        Some(Play { engine, cq, qp, key: key.0, base, arrays, now: 1 })
    }

    /// A place in the region, or in the entries.
    fn place(&self, step: &[u8]) -> Sge {
        let at = number(&step[..2]);
        Sge { addr: self.base + at % LEN as u64, length: u32::from(step[2]) * 2, lkey: LKey(self.key) }
    }

    fn post(&mut self, step: &[u8]) {
        const OPS: [Opcode; 9] = [
            Opcode::Send,
            Opcode::SendWithImm,
            Opcode::RdmaWrite,
            Opcode::RdmaRead,
            Opcode::CmpAndSwp,
            Opcode::Nop,
            Opcode::Wait,
            Opcode::SendEn,
            Opcode::RecvEn,
        ];
        let opcode = OPS[step[1] as usize % OPS.len()];
        let (remote_addr, rkey) = (self.base + number(&step[4..6]) % LEN as u64 & !7, RKey(self.key));
        let (count, step_by) = (Count::Absolute(number(&step[6..8])), u32::from(step[8]));
        let body = match opcode {
            Opcode::Send | Opcode::SendWithImm | Opcode::Nop => SendBody::Plain,
            Opcode::CmpAndSwp => SendBody::Atomic { remote_addr, rkey, compare_add: 0, swap: number(&step[6..12]) },
            Opcode::Wait => SendBody::Wait { cq: self.cq, count, step: step_by },
            Opcode::SendEn | Opcode::RecvEn => SendBody::Enable { qp: self.qp, count, step: step_by },
            _ => SendBody::Rdma { remote_addr, rkey },
        };
        let mut sge = self.place(&step[9..12]);
        if opcode == Opcode::CmpAndSwp {
            sge.length = 8;
        }
        let sges = [sge];
        let wr = SendWr {
            wr_id: 1,
            opcode,
            flags: if step[12] & 1 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() },
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &body,
            data: SendData::Sges(if opcode.is_task() { &[] } else { &sges }),
        };
        let _ = self.engine.post_send(self.qp, &wr, self.now);
    }

    fn patch(&self, step: &[u8]) {
        let words = self.arrays[step[1] as usize % 2].words();
        let word = &words[number(&step[2..4]) as usize % words.len()];
        let old = word.load(Ordering::Relaxed);
        let shift = u32::from(step[4]) % 64;
        let new = match step[5] % 5 {
            0 => number(&step[6..14]),
            1 => old ^ 1 << shift,
            2 => old & !0xff | 0x80 | u64::from(step[6] % 5),
            3 => words[number(&step[6..8]) as usize % words.len()].load(Ordering::Relaxed),
            _ => self.arrays[step[6] as usize % 2].addr() + number(&step[7..9]) % 1024,
        };
        word.store(new, Ordering::Relaxed);
    }

    fn progress(&mut self) {
        self.engine.next_hold();
        self.engine.run(self.now);
        for _ in 0..64 {
            let Some((packet, rx)) = self.engine.env_mut().peek(LinkId::LOOPBACK) else { break };
            self.engine.receive(LinkId::LOOPBACK, &packet, rx, self.now);
            self.engine.env_mut().release(LinkId::LOOPBACK);
        }
        self.engine.run(self.now);
        self.engine.poll(self.cq, 64, |_, _| {});
        self.engine.take_notices(&mut Vec::new());
    }
}

fuzz_target!(|input: &[u8]| {
    let mut steps = input.chunks_exact(16);
    let Some(rules) = steps.next() else { return };
    let mut arena = vec![CANARY; ARENA];
    let Some(mut play) = Play::new(&mut arena, rules) else { return };
    for step in steps {
        let side = if step[1] & 1 == 0 { Side::Send } else { Side::Recv };
        match step[0] % 8 {
            0..=1 => play.patch(step),
            2..=3 => play.post(step),
            4 => {
                let sges = [play.place(&step[2..5]), play.place(&step[5..8])];
                let wr = RecvWr { wr_id: 2, sges: &sges[..step[8] as usize % 3] };
                let _ = play.engine.post_recv(play.qp, &wr, play.now);
            }
            5 => _ = play.engine.enable(play.qp, side, Count::Absolute(number(&step[2..2 + step[10] as usize % 8]))),
            6 => play.progress(),
            _ => {
                play.now += number(&step[1..4]);
                play.engine.expire(play.now);
                play.progress();
            }
        }
    }
    play.progress();
    let state = play.engine.queue_state(play.qp, Side::Send).expect("it is there");
    assert!(state.posted <= input.len() as u64 && state.count == DEPTH);
    drop(play);
    let outside = arena[..START].iter().chain(&arena[START + LEN..]);
    assert!(outside.into_iter().all(|byte| *byte == CANARY), "bytes outside of the region were written");
});
