//! The answers to `rdma resource` and `rdma statistic`, put together from the reports of all processes.
//!
//! The kernel numbers objects of all processes together; here each process numbers its own. So numbers of domains,
//! queues, regions and ids are unique only together with the process; queue pairs' are unique. No answer has the keys
//! of regions: the kernel keeps them for CAP_NET_ADMIN.

use std::net::SocketAddr;

use report::Report;
use report::facts::{CmId, CmState, Qp};
use rustix::io::Errno;
use verbs::QpType;

use crate::message::{Writer, number};
use crate::nldev::{Answer, Device, PORT, Request};
use crate::numbers::{attr, cmd};

/// The number of bytes at which a message is full. A program has room for 4096, as libmnl's readers have.
const FULL: usize = 3500;

/// A kind of object: its `RDMA_NLDEV_ATTR_*`, and how it is written.
struct Kind {
    /// The table, its entries, and the attribute that names one object.
    table: u16,
    entry: u16,
    id: u16,
}

/// `nldev_res_get_doit` and `..._dumpit`.
pub(crate) fn summary(request: &Request, device: &Device, reports: &[Report]) -> Vec<u8> {
    let mut answer = request.about(device);
    let count = |of: fn(&Report) -> usize| reports.iter().map(|report| of(report) as u64).sum::<u64>();
    answer.nest(attr::RES_SUMMARY, |answer| {
        for (name, n) in [
            ("pd", count(|r| r.adapter.pds as usize)),
            ("cq", count(|r| r.adapter.cqs.len())),
            ("qp", count(|r| r.adapter.qps.len())),
            ("cm_id", count(|r| r.cm.as_ref().map_or(0, |cm| cm.ids.len()))),
            ("mr", count(|r| r.adapter.mrs as usize)),
            ("ctx", count(|r| r.adapter.contexts as usize)),
            ("srq", count(|r| r.adapter.srqs.len())),
        ] {
            answer.nest(attr::RES_SUMMARY_ENTRY, |answer| {
                answer.text(attr::RES_SUMMARY_ENTRY_NAME, name);
                answer.u64(attr::RES_SUMMARY_ENTRY_CURR, n);
            });
        }
    });
    answer.finish()
}

/// The port's counters, named as those of Linux's own software adapter: those of the processes that have the device
/// open now.
pub(crate) fn counters(request: &Request, device: &Device, reports: &[Report]) -> Vec<u8> {
    let mut answer = request.about(device);
    let sum = |of: fn(&report::facts::Port) -> u64| {
        reports.iter().map(|report| of(&report.adapter.port)).fold(0, u64::saturating_add)
    };
    answer.u32(attr::PORT_INDEX, PORT);
    answer.nest(attr::STAT_HWCOUNTERS, |answer| {
        for (name, value) in [
            ("sent_pkts", sum(|p| p.packets_out)),
            ("rcvd_pkts", sum(|p| p.packets_in)),
            ("duplicate_request", sum(|p| p.qps.duplicates)),
            ("out_of_seq_request", sum(|p| p.qps.seq_naks_out)),
            ("rcvd_rnr_err", sum(|p| p.qps.rnr_naks_in)),
            ("send_rnr_err", sum(|p| p.qps.rnr_naks_out)),
            ("rcvd_seq_err", sum(|p| p.qps.seq_naks_in)),
            ("completer_retry_err", sum(|p| p.qps.timeouts)),
            ("send_err", sum(|p| p.qps.send_errors)),
            ("rdma_sends", sum(|p| p.qps.sent)),
            ("rdma_recvs", sum(|p| p.qps.received)),
        ] {
            answer.nest(attr::STAT_HWCOUNTER_ENTRY, |answer| {
                answer.text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
                answer.u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, value);
            });
        }
    });
    answer.finish()
}

/// `res_get_common_doit` and `res_get_common_dumpit`.
pub(crate) fn answer(request: &Request, command: u16, device: &Device, reports: &dyn Fn() -> Vec<Report>) -> Answer {
    let kind = |table, entry, id| Kind { table, entry, id };
    let (kind, write): (Kind, Write) = match command {
        cmd::RES_QP_GET => (kind(attr::RES_QP, attr::RES_QP_ENTRY, attr::RES_LQPN), qps),
        cmd::RES_CQ_GET => (kind(attr::RES_CQ, attr::RES_CQ_ENTRY, attr::RES_CQN), cqs),
        cmd::RES_MR_GET => (kind(attr::RES_MR, attr::RES_MR_ENTRY, attr::RES_MRN), mrs),
        cmd::RES_PD_GET => (kind(attr::RES_PD, attr::RES_PD_ENTRY, attr::RES_PDN), pds),
        cmd::RES_CM_ID_GET => (kind(attr::RES_CM_ID, attr::RES_CM_ID_ENTRY, attr::RES_CM_IDN), cm_ids),
        cmd::RES_CTX_GET => (kind(attr::RES_CTX, attr::RES_CTX_ENTRY, attr::RES_CTXN), contexts),
        cmd::RES_SRQ_GET => (kind(attr::RES_SRQ, attr::RES_SRQ_ENTRY, attr::RES_SRQN), srqs),
        _ => return Err(Errno::INVAL),
    };
    // A port that does not exist is an error. The one that exists selects all objects, for there is no other.
    let port = number(request.body, attr::PORT_INDEX);
    if port.is_some_and(|port| port != PORT) {
        return Err(Errno::INVAL);
    }
    let wanted = number(request.body, kind.id);
    if !request.is_dump() && wanted.is_none() {
        return Err(Errno::INVAL);
    }
    let reports = reports();
    let all = reports.iter().flat_map(|report| write(report).into_iter().map(|entry| (report.pid, entry)));
    if !request.is_dump() {
        let mut found = all.filter(|(_, (id, _))| Some(*id) == wanted);
        let (pid, (_, entry)) = found.next().ok_or(Errno::NOENT)?;
        let mut answer = request.about(device);
        entry.write(&mut answer, pid);
        return Ok(vec![answer.finish()]);
    }
    let mut all = all.peekable();
    let mut messages = Vec::new();
    while all.peek().is_some() {
        let mut answer = request.about(device);
        answer.nest(kind.table, |answer| {
            while answer.len() < FULL
                && let Some((pid, (_, entry))) = all.next()
            {
                answer.nest(kind.entry, |answer| entry.write(answer, pid));
            }
        });
        messages.push(answer.finish());
    }
    Ok(messages)
}

/// The function that writes the objects of a process, by number.
type Write = fn(&Report) -> Vec<(u32, Entry)>;

/// An object's attributes.
#[derive(Default)]
struct Entry(Vec<(u16, Value)>);

enum Value {
    U8(u8),
    U32(u32),
    U64(u64),
    Addr(Option<SocketAddr>),
}

impl Entry {
    fn write(&self, answer: &mut Writer, pid: u32) {
        for (kind, value) in &self.0 {
            match value {
                Value::U8(value) => answer.u8(*kind, *value),
                Value::U32(value) => answer.u32(*kind, *value),
                Value::U64(value) => answer.u64(*kind, *value),
                Value::Addr(Some(addr)) => answer.bytes(*kind, &sockaddr(addr)),
                Value::Addr(None) => {}
            }
        }
        answer.u32(attr::RES_PID, pid);
    }
}

use Value::{Addr, U8, U32, U64};

/// `fill_res_qp_entry`.
fn qps(report: &Report) -> Vec<(u32, Entry)> {
    report.adapter.qps.iter().map(|qp| (qp.number, Entry(qp_entry(qp)))).collect()
}

fn qp_entry(qp: &Qp) -> Vec<(u16, Value)> {
    let connected = matches!(qp.qp_type, QpType::Rc | QpType::Uc);
    let mut entry = vec![(attr::PORT_INDEX, U32(PORT)), (attr::RES_LQPN, U32(qp.number))];
    entry.extend(qp.pd.map(|pd| (attr::RES_PDN, U32(pd))));
    if connected {
        entry.push((attr::RES_RQPN, U32(qp.peer.as_ref().map_or(0, |peer| peer.qpn))));
        entry.push((attr::RES_RQ_PSN, U32(qp.rq.as_ref().map_or(0, |rq| rq.expected_psn))));
    }
    entry.push((attr::RES_SQ_PSN, U32(qp.sq.as_ref().map_or(0, |sq| sq.next_psn))));
    if qp.qp_type != QpType::Ud {
        entry.push((attr::RES_PATH_MIG_STATE, U8(0))); // IB_MIG_MIGRATED
    }
    entry.push((attr::RES_TYPE, U8(qp.qp_type as u8)));
    entry.push((attr::RES_STATE, U8(qp.state as u8)));
    entry
}

/// `fill_res_cq_entry`.
fn cqs(report: &Report) -> Vec<(u32, Entry)> {
    let entry = |cq: &report::facts::Cq| {
        vec![
            (attr::RES_CQE, U32(cq.depth)),
            (attr::RES_USECNT, U64(cq.users.into())),
            (attr::DEV_DIM, U8(0)),
            (attr::RES_CQN, U32(cq.handle)),
        ]
    };
    report.adapter.cqs.iter().map(|cq| (cq.handle, Entry(entry(cq)))).collect()
}

/// `fill_res_mr_entry`.
fn mrs(report: &Report) -> Vec<(u32, Entry)> {
    let entry = |mr: &report::facts::Mr| {
        vec![(attr::RES_MRLEN, U64(mr.bytes)), (attr::RES_MRN, U32(mr.handle)), (attr::RES_PDN, U32(mr.pd))]
    };
    report.adapter.mr_list.iter().map(|mr| (mr.handle, Entry(entry(mr)))).collect()
}

/// `fill_res_pd_entry`.
fn pds(report: &Report) -> Vec<(u32, Entry)> {
    let entry =
        |pd: &report::facts::Pd| vec![(attr::RES_USECNT, U64(pd.users.into())), (attr::RES_PDN, U32(pd.handle))];
    report.adapter.pd_list.iter().map(|pd| (pd.handle, Entry(entry(pd)))).collect()
}

/// `fill_res_ctx_entry`.
fn contexts(report: &Report) -> Vec<(u32, Entry)> {
    (0..report.adapter.contexts).map(|n| (n, Entry(vec![(attr::RES_CTXN, U32(n))]))).collect()
}

/// `fill_res_srq_entry`.
fn srqs(report: &Report) -> Vec<(u32, Entry)> {
    let entry = |srq: &report::facts::Srq| vec![(attr::RES_SRQN, U32(srq.handle)), (attr::RES_TYPE, U8(0))];
    report.adapter.srqs.iter().map(|srq| (srq.handle, Entry(entry(srq)))).collect()
}

/// `fill_res_cm_id_entry`.
fn cm_ids(report: &Report) -> Vec<(u32, Entry)> {
    let ids = report.cm.iter().flat_map(|cm| &cm.ids);
    ids.map(|id| (id.number, Entry(cm_id_entry(id, &report.adapter.qps)))).collect()
}

fn cm_id_entry(id: &CmId, qps: &[Qp]) -> Vec<(u16, Value)> {
    let address = |text: &Option<String>| Addr(text.as_ref().and_then(|text| text.parse().ok()));
    let mut entry = vec![(attr::PORT_INDEX, U32(PORT))];
    if let Some(qp) = qps.iter().find(|qp| qp.number == id.qpn && id.qpn != 0) {
        entry.push((attr::RES_LQPN, U32(qp.number)));
        entry.push((attr::RES_TYPE, U8(qp.qp_type as u8)));
    }
    entry.push((attr::RES_PS, U32(id.port_space.into())));
    entry.push((attr::RES_STATE, U8(cm_state(id))));
    entry.push((attr::RES_SRC_ADDR, address(&id.src)));
    entry.push((attr::RES_DST_ADDR, address(&id.dst)));
    entry.push((attr::RES_CM_IDN, U32(id.number)));
    entry
}

/// `enum rdma_cm_state` of rdma_cm.h in Linux.
fn cm_state(id: &CmId) -> u8 {
    const IDLE: u8 = 0;
    const ADDR_RESOLVED: u8 = 2;
    const ROUTE_RESOLVED: u8 = 4;
    const CONNECT: u8 = 5;
    const DISCONNECT: u8 = 6;
    const ADDR_BOUND: u8 = 7;
    const LISTEN: u8 = 8;
    if matches!(id.handshake, Some(CmState::DreqSent | CmState::DreqRcvd | CmState::TimeWait)) {
        return DISCONNECT;
    }
    match id.phase.as_str() {
        "bound" => ADDR_BOUND,
        "address resolved" => ADDR_RESOLVED,
        "route resolved" => ROUTE_RESOLVED,
        "listen" => LISTEN,
        "connect" => CONNECT,
        _ => IDLE,
    }
}

/// `struct __kernel_sockaddr_storage` with an address in it.
fn sockaddr(addr: &SocketAddr) -> [u8; 128] {
    const AF_INET: u16 = 2;
    const AF_INET6: u16 = 10;
    let mut bytes = [0; 128];
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(addr) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&addr.ip().octets());
        }
        SocketAddr::V6(addr) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[4..8].copy_from_slice(&addr.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&addr.ip().octets());
            bytes[24..28].copy_from_slice(&addr.scope_id().to_ne_bytes());
        }
    }
    bytes
}
