//! Packets that no peer would send, between those of real traffic: anything that a ring can hold, decoded and executed.
//!
//! The input is a list of 40-byte steps. An adapter is connected to itself over the real wire, and forged packets go
//! into the same ring. Packets by reference are left out: over this link they name memory of the process itself, and
//! only the process writes into the ring. The engine's own tests forge those.
#![no_main]

use engine::{CqOpts, Engine, QPN_BLOCK};
use libfuzzer_sys::fuzz_target;
use verbs::{
    Access, AhAttr, CqId, Gid, LKey, Opcode, Psn, QpAttr, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType,
    Qpn, RKey, RecvWr, SendBody, SendData, SendFlags, SendWr, Sge,
};
use wire::prelude::*;
use wire::{LinkId, Packet, PacketOp, Payload, packet_flags};
use window::{Config, WindowEnv};

const ARENA: usize = 1 << 16;
/// The registered middle of the arena.
const START: usize = 1 << 14;
const LEN: usize = 1 << 15;
const CANARY: u8 = 0xc5;

struct Side {
    engine: Engine<WindowEnv>,
    cq: CqId,
    key: u32,
    /// The queue pairs RC, UC, UD, each connected to itself.
    qps: Vec<(QpId, Qpn)>,
    base: u64,
    now: u64,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

impl Side {
    fn new(arena: &mut [u8]) -> Option<Side> {
        let mut engine = Engine::new(WindowEnv::new(Config::default()).ok()?);
        let gid = Gid::from_ip("127.0.0.1".parse().ok()?);
        let first = engine.env_mut().claim_block().ok()?;
        assert_eq!(first % QPN_BLOCK, 0);
        engine.set_gids(vec![gid]);
        engine.add_qpns(first);
        let ctx = engine.open_ctx().ok()?;
        let pd = engine.alloc_pd(ctx).ok()?;
        let (cq, _) = engine.create_cq(ctx, 256, 7, CqOpts::default()).ok()?;
        let base = arena[START..].as_mut_ptr().expose_provenance() as u64;
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let (_, key, _) = engine.reg_mr(pd, base, LEN as u64, base, all | Access::FLUSH_GLOBAL).ok()?;
        let mut side = Side { engine, cq, key: key.0, qps: Vec::new(), base, now: 1 };
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
            let init = QpInit {
                pd: Some(pd),
                qp_type,
                send_cq: Some(cq),
                recv_cq: Some(cq),
                srq: None,
                xrcd: None,
                cap,
                sq_sig_all: true,
            };
            let (id, created) = side.engine.create_qp(ctx, &init, 1).ok()?;
            side.qps.push((id, created.qpn));
            side.connect(side.qps.len() - 1, qp_type, gid, all);
        }
        Some(side)
    }

    fn connect(&mut self, which: usize, qp_type: QpType, gid: Gid, access: Access) {
        let (id, qpn) = self.qps[which];
        let mut attr = QpAttr {
            path_mtu: 3,
            qkey: 0x11,
            dest_qp_num: qpn.get(),
            access,
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
            let (required, _) = verbs::state::transition(qp_type, from, to).expect("a row of the table");
            self.engine.modify_qp(id, &attr, required | QpAttrMask::STATE, self.now).expect("the way up");
        }
    }

    fn sge(&self, step: &[u8]) -> Sge {
        Sge {
            addr: self.base + number(&step[..2]) % LEN as u64,
            length: number(&step[2..4]) as u32,
            lkey: LKey(self.key),
        }
    }

    fn forge(&mut self, step: &[u8]) {
        let Some(op) = PacketOp::from_raw(step[1] % 11) else { return };
        let (_, own) = self.qps[step[2] as usize % 3];
        let mut p = Packet::new(op, own, own, Psn::new(number(&step[4..6]) as u32));
        p.flags = step[3] & !packet_flags::BY_REF;
        (p.syndrome, p.imm) = (step[6], number(&step[8..12]) as u32);
        p.len = number(&step[12..14]) as u32;
        p.dma_len = if step[7] & 1 == 0 { p.len } else { number(&step[14..18]) as u32 };
        p.rkey = if step[7] & 2 == 0 { self.key } else { number(&step[18..22]) as u32 };
        let near = self.base.wrapping_add(number(&step[22..24])).wrapping_sub(64);
        p.remote_addr = if step[7] & 4 == 0 { near } else { number(&step[22..30]) };
        (p.swap, p.compare) = (number(&step[30..34]), number(&step[34..38]));
        let payload = vec![step[38]; if step[7] & 8 == 0 { p.len as usize % 16385 } else { step[39] as usize }];
        let _ = self.engine.env_mut().send(LinkId::LOOPBACK, &p, Payload { prefix: &payload, spans: &[] });
    }

    fn post(&mut self, step: &[u8]) {
        const OPS: [Opcode; 8] = [
            Opcode::Send,
            Opcode::SendWithImm,
            Opcode::RdmaWrite,
            Opcode::RdmaWriteWithImm,
            Opcode::RdmaRead,
            Opcode::CmpAndSwp,
            Opcode::FetchAndAdd,
            Opcode::Flush,
        ];
        let opcode = OPS[step[1] as usize % OPS.len()];
        let remote_addr = self.base + number(&step[4..6]) % LEN as u64 & !7;
        let rkey = RKey(self.key);
        let body = match opcode {
            Opcode::Send | Opcode::SendWithImm => SendBody::Plain,
            Opcode::CmpAndSwp | Opcode::FetchAndAdd => {
                SendBody::Atomic { remote_addr, rkey, compare_add: number(&step[6..8]), swap: 1 }
            }
            Opcode::Flush => SendBody::Flush { remote_addr, rkey, length: 8, placement: 1, level: 0 },
            _ => SendBody::Rdma { remote_addr, rkey },
        };
        let mut sge = self.sge(&step[8..12]);
        if matches!(opcode, Opcode::CmpAndSwp | Opcode::FetchAndAdd) {
            sge.length = 8;
        }
        let sges = [sge];
        let data = SendData::Sges(if opcode == Opcode::Flush { &[] } else { &sges });
        let wr = SendWr {
            wr_id: 1,
            opcode,
            flags: SendFlags::SIGNALED,
            imm_or_rkey: number(&step[12..16]) as u32,
            remote_srqn: 0,
            body: &body,
            data,
        };
        let (id, _) = self.qps[step[2] as usize % 2];
        let _ = self.engine.post_send(id, &wr, self.now);
    }

    fn progress(&mut self) {
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
    let mut arena = vec![CANARY; ARENA];
    let Some(mut side) = Side::new(&mut arena) else { return };
    for step in input.chunks_exact(40) {
        match step[0] % 6 {
            0..=1 => side.forge(step),
            2 => side.post(step),
            3 => {
                let (id, _) = side.qps[step[2] as usize % 3];
                let sges = [side.sge(&step[8..12])];
                let _ = side.engine.post_recv(id, &RecvWr { wr_id: 2, sges: &sges }, side.now);
            }
            4 => side.progress(),
            _ => {
                side.now += number(&step[1..5]);
                side.engine.expire(side.now);
                side.progress();
            }
        }
    }
    side.progress();
    drop(side);
    let outside = arena[..START].iter().chain(&arena[START + LEN..]);
    assert!(outside.into_iter().all(|byte| *byte == CANARY), "bytes outside of the region were written");
});
