//! Facts about the adapter for reports. Nothing here changes the adapter, except how facts are written down.

use std::collections::HashMap;

use iwarp::rdmap::{End, Reason};
use report::facts::{
    self, AckWait, Adapter, CountWait, Head, Link, Pd, Peer, Port, Qp as QpFacts, RnrWait, Rq, Softiw0, Sq, Srq, Waits,
};
use report::streams;
use verbs::{CqId, MrId, Opcode, QpId, QpState, QpType, SendFlags};
use wire::{Env, Nanos};

use crate::Engine;
use crate::modify::timeout_nanos;
use crate::qp::Qp;
use crate::region::{Backing, Mr};
use crate::wq::cq::{Completions, Cq};
use crate::wq::inflight::Inflight;

impl<P: Env> Engine<P> {
    /// All facts that the engine knows. Paths are only named: the platform's owner describes them.
    pub fn facts(&mut self, now: Nanos) -> Adapter {
        let unlisted: Vec<_> = self.qps.iter().filter(|(_, qp)| qp.unlisted > 0).map(|(id, _)| id).collect();
        for id in unlisted {
            if let Some(qp) = self.checkout_qp(id) {
                self.qps.put_back(id, qp);
            }
        }
        let mut qps = self.gone;
        for (_, qp) in self.qps.iter() {
            qps += &qp.counts.counters;
        }
        let bytes = |backing, length| if backing == Backing::Null || length == u64::MAX { 0 } else { length };
        let mr = |(id, mr): (MrId, &Mr)| facts::Mr {
            handle: id.index,
            bytes: bytes(mr.backing, mr.info.length),
            pd: mr.info.pd.index,
        };
        let mr_list: Vec<facts::Mr> = self.mem.mrs.iter().map(mr).collect();
        Adapter {
            contexts: self.ctxs.iter().count() as u32,
            pds: self.pds.iter().count() as u32,
            mrs: mr_list.len() as u32,
            mr_bytes: mr_list.iter().map(|mr| mr.bytes).fold(0, u64::saturating_add),
            pd_list: self.pds.iter().map(|(id, pd)| Pd { handle: id.index, users: pd.users }).collect(),
            mr_list,
            mws: self.mem.mws.iter().count() as u32,
            ahs: self.ahs.iter().count() as u32,
            xrcds: self.xrcds.iter().count() as u32,
            qps: self.qps.iter().map(|(_, qp)| self.qp_facts(qp, now)).collect(),
            cqs: self.cqs_facts(now),
            srqs: self
                .srqs
                .iter()
                .map(|(id, srq)| Srq {
                    handle: id.index,
                    number: srq.number,
                    depth: srq.queue.depth,
                    posted: srq.queue.wqes.len() as u32,
                    total: srq.queue.total,
                    limit: srq.limit,
                    users: srq.users,
                })
                .collect(),
            links: self.named_links(),
            softiw0: self.softiw0(),
            strangers: self.strangers,
            port: Port { qps, ..Port::default() },
            ..Adapter::default()
        }
    }

    /// The objects of contexts of iWARP.
    fn softiw0(&self) -> Softiw0 {
        if !self.has_iwarp {
            return Softiw0::default();
        }
        let qps = self.qps.iter().filter(|(_, qp)| qp.is_iwarp).map(|(_, qp)| qp.qpn.get()).collect();
        Softiw0 {
            contexts: self.ctxs.iter().filter(|(_, ctx)| ctx.is_iwarp).count() as u32,
            pds: self.pds.iter().filter(|(_, pd)| self.is_iwarp(pd.ctx)).map(|(id, _)| id.index).collect(),
            mrs: self.mem.mrs.iter().filter(|(_, mr)| self.is_iwarp(mr.ctx)).map(|(id, _)| id.index).collect(),
            qps,
            cqs: self.done.cqs.iter().filter(|(_, cq)| self.is_iwarp(cq.ctx)).map(|(id, _)| id.index).collect(),
            srqs: self.srqs.iter().filter(|(_, srq)| self.is_iwarp(srq.ctx)).map(|(id, _)| id.index).collect(),
        }
    }

    /// The links that queue pairs use.
    fn named_links(&self) -> Vec<Link> {
        let mut ids: Vec<u32> = self.qps.iter().filter_map(|(_, qp)| qp.link).map(|link| link.0).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(|id| Link { id, ..Link::default() }).collect()
    }

    pub(crate) fn cqs_facts(&self, now: Nanos) -> Vec<report::facts::Cq> {
        let mut handed: HashMap<CqId, u64> = HashMap::new();
        for (_, qp) in self.qps.iter() {
            for (cq, n) in qp.handed_to() {
                *handed.entry(cq).or_default() += n;
            }
        }
        let told = |(id, cq)| Completions::facts(id, cq, handed.get(&id).copied().unwrap_or_default(), now);
        self.done.cqs.iter().map(told).collect()
    }

    /// The facts about a queue pair's TCP connection, without its addresses; and the end that an error has brought.
    pub fn stream_facts(&self, id: QpId) -> Option<(streams::Stream, Option<streams::Ended>)> {
        let qp = self.qps.get(id)?;
        let state = qp.stream.as_ref()?;
        let (stream, agreed) = (&state.stream, state.stream.agreed());
        let [(fpdus_out, bytes_out), (fpdus_in, bytes_in)] = stream.progress();
        let found = streams::Stream {
            qpn: qp.qpn.get(),
            closing: state.closing,
            crc: agreed.crc,
            markers_in: agreed.markers_in,
            markers_out: agreed.markers_out,
            mulpdu: stream.mulpdu(),
            bytes_out,
            bytes_in,
            fpdus_out,
            fpdus_in,
            unsent: state.output.len() as u64,
            ..streams::Stream::default()
        };
        let named = |reason: Reason| streams::Terminate {
            layer: reason.layer as u8,
            etype: reason.kind,
            code: reason.code,
            name: reason.name().to_owned(),
        };
        let mut ended = streams::Ended { qpn: qp.qpn.get(), ..streams::Ended::default() };
        let Some(end) = stream.end() else { return Some((found, None)) };
        match end {
            End::Fault(fault) => ended.sent = Some(named(fault.reason())),
            End::Terminated(said) => {
                ended.received = said.reason.map(named);
                ended.why = if said.reason.is_none() { "a Terminate message came" } else { "" }.to_owned();
            }
            End::Torn => ended.why = "the TCP connection ended inside of a message".to_owned(),
            End::Timeout => ended.why = "no message said \"ready to receive\" in time".to_owned(),
            End::Closed => return Some((found, None)),
        }
        Some((found, Some(ended)))
    }

    fn qp_facts(&self, qp: &Qp, now: Nanos) -> QpFacts {
        let connected = qp.init.qp_type != QpType::Ud && !matches!(qp.state, QpState::Reset | QpState::Init);
        let rq = qp.init.qp_type.receives() && qp.init.srq.is_none();
        let reliable = qp.init.qp_type.is_reliable();
        QpFacts {
            number: qp.qpn.get(),
            qp_type: qp.init.qp_type,
            state: qp.state,
            pd: qp.init.pd.map(|pd| pd.index),
            send_cq: qp.init.send_cq.filter(|_| qp.init.qp_type.sends()).map(|cq| cq.index),
            recv_cq: qp.init.recv_cq.filter(|_| qp.init.qp_type.receives()).map(|cq| cq.index),
            srq: qp.init.srq.map(|srq| srq.index),
            peer: (connected && !qp.is_iwarp).then(|| Peer {
                gid: qp.attr.ah.dgid.ip().to_string(),
                qpn: qp.attr.dest_qp_num,
                link: qp.link.map(|link| link.0),
                owned: None,
                answered: qp.same_host.proven,
            }),
            sq: qp.init.qp_type.sends().then(|| sq_facts(qp, now)),
            // An XRC target's receives are elsewhere, but its place in the sequence is here.
            rq: (rq || (reliable && qp.init.qp_type != QpType::XrcIni)).then(|| Rq {
                depth: qp.rq.depth,
                posted: qp.rq.waiting() as u32,
                held: qp.rq.held,
                total: qp.rq.total,
                expected_psn: qp.rc.epsn.get(),
            }),
            waits: self.waits_facts(qp, now),
            counters: qp.counts.counters,
        }
    }

    fn waits_facts(&self, qp: &Qp, now: Nanos) -> Waits {
        let next = qp.sq.peek().flatten().filter(|_| qp.rc.reads_out > 0 && qp.cursor >= qp.inflight.len());
        let read_like = |opcode| {
            matches!(
                opcode,
                Opcode::RdmaRead | Opcode::CmpAndSwp | Opcode::FetchAndAdd | Opcode::AtomicWrite | Opcode::Flush
            )
        };
        let most = u32::from(qp.attr.max_rd_atomic);
        let lacks_link = qp.link.is_none() && (qp.seek_at.is_some() || !qp.inflight.is_empty());
        Waits {
            ack: self.ack_facts(qp, now),
            rnr: qp.counts.rnr_since.map(|(since, before)| RnrWait {
                age_ns: now.saturating_sub(since),
                naks: qp.counts.counters.rnr_naks_in - before,
                retries: qp.attr.rnr_retry.saturating_sub(qp.rc.rnr_retries),
                rnr_retry: qp.attr.rnr_retry,
                left_ns: qp.rc.rnr_until.map(|until| until.saturating_sub(now)),
            }),
            link: lacks_link && qp.init.qp_type != QpType::Ud,
            room: qp.parked,
            reads: next
                .as_ref()
                .filter(|wqe| read_like(wqe.opcode) && qp.rc.reads_out >= most)
                .map(|_| (qp.rc.reads_out, most)),
            fence: next.is_some_and(|wqe| wqe.flags.contains(SendFlags::FENCE)),
            backlog: qp.unreliable.backlog.len() as u32,
            completions: qp.sq.waiting().map(|waiting| CountWait {
                cq: waiting.cq.index,
                count: waiting.count,
                had: self.done.cqs.get(waiting.cq).map_or(0, Cq::count),
            }),
        }
    }

    fn ack_facts(&self, qp: &Qp, now: Nanos) -> Option<AckWait> {
        let reliable = matches!(qp.init.qp_type, QpType::Rc | QpType::XrcIni);
        if !reliable || qp.rc.rnr_until.is_some() || qp.counts.rnr_since.is_some() {
            return None;
        }
        let oldest = unfinished(qp).filter(|e| e.psns > 0 && (e.out || e.sent > 0))?;
        Some(AckWait {
            age_ns: now.saturating_sub(oldest.since),
            timeout_ns: timeout_nanos(qp.attr.timeout),
            left_ns: qp.rc.ack_deadline.map(|at| at.saturating_sub(now)),
            retries: qp.attr.retry_cnt.saturating_sub(qp.rc.retries),
            retry_cnt: qp.attr.retry_cnt,
            untaken: qp.link.is_some_and(|link| !self.env.taken(link, qp.rc.sent_mark)),
        })
    }
}

fn unfinished(qp: &Qp) -> Option<&Inflight> {
    qp.inflight.iter().find(|e| !e.done)
}

fn sq_facts(qp: &Qp, now: Nanos) -> Sq {
    let (held, held_signaled) = qp.sq.held();
    let under_way = unfinished(qp).map(|e| Head {
        wr_id: e.wr_id,
        opcode: Some(e.opcode),
        len: e.len,
        moved: e.sent.max(e.received).max(e.executed),
        signaled: e.flags.contains(SendFlags::SIGNALED),
        age_ns: Some(now.saturating_sub(e.since)),
    });
    let head = under_way.or_else(|| {
        let wqe = qp.sq.peek()?;
        Some(Head {
            wr_id: qp.sq.wr_id(qp.sq.fetched),
            opcode: wqe.as_ref().map(|wqe| wqe.opcode),
            len: wqe.as_ref().map_or(0, |wqe| wqe.len),
            moved: 0,
            signaled: wqe.is_some_and(|wqe| wqe.flags.contains(SendFlags::SIGNALED)),
            age_ns: None,
        })
    });
    Sq {
        depth: qp.sq.depth,
        posted: qp.sq.total(),
        held,
        held_signaled,
        executing: qp.inflight.iter().filter(|e| !e.done).count() as u32,
        waiting: qp.sq.to_come() as u32,
        head,
        next_psn: qp.rc.next_psn.get(),
        unacked_psn: qp.rc.unacked.get(),
        enabled: qp.sq.managed.as_ref().map(|managed| managed.enabled),
        begun: qp.sq.fetched,
        cyclic: qp.sq.is_cyclic(),
    }
}
