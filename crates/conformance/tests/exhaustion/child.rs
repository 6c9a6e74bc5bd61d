//! The process that lacks a resource.

use std::sync::Arc;

use conformance::side::{self, Place, RECV, Side};
use conformance::{Fixture, PORT, Wire};
use rdma::{Access, AhAttr, MwKind, QpCap, QpOptions, QpType, Result};

use crate::attempt::attempt;
use crate::{Ask, Case, Report};

/// The number of attempts: the first may leave behind objects that are made once for ever.
const TRIES: usize = 3;

/// The number of attempts when descriptors became more with each of the first ones. There are at most two links, to the
/// test and to the friend. Each stays, with a bell of either end that comes some time after the link, so up to four
/// attempts can end with more descriptors than they found.
const MOST_TRIES: usize = TRIES + 4;

pub fn run(mut wire: Wire, case: &Case) {
    let _ = conformance::library();
    let old = case.connected.then(|| {
        let fixture = Fixture::open();
        let side = Side::new(&fixture);
        let peer: Place = wire.exchange(&side::place(&fixture, &side.qp));
        side::up(&side.qp, &peer);
        (fixture, side, peer)
    });
    let talk = |wire: &mut Wire| {
        let Some((_, side, peer)) = &old else { return };
        let () = wire.exchange(&Ask::Old);
        side::recv(&side.qp, RECV, &[side.mr.sge(side::LEN, side::LEN)]);
        wire.tell(&());
        side.message(peer.qpn);
        let () = wire.exchange(&());
    };
    talk(&mut wire);
    let lack = case.lack.impose();
    let mut lacking = attempt(&mut wire, case.passive);
    let mut held = vec![descriptors()];
    // The loss of every attempt. One of them may have got as far as a link that stays.
    let lost = |held: &[i64]| held.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or_default().max(0);
    while held.len() < TRIES || held.len() < MOST_TRIES && lost(&held) > 0 {
        lacking = attempt(&mut wire, case.passive);
        held.push(descriptors());
    }
    let lost = lost(&held);
    let refused = old.as_ref().map(|(fixture, ..)| objects(fixture)).unwrap_or_default();
    talk(&mut wire);
    let enough = lack.lift().then(|| attempt(&mut wire, case.passive));
    talk(&mut wire);
    let () = wire.exchange(&Ask::Report(Report { lacking, refused, lost, enough }));
}

fn descriptors() -> i64 {
    // A Footprint opens files, and there may be no descriptor for them.
    (0..1024).filter(|fd| open(*fd)).count() as i64
}

fn open(fd: i32) -> bool {
    // SAFETY: nothing is done to the descriptor, whatever it is; it is only asked for its flags.
    rustix::io::fcntl_getfd(unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) }).is_ok()
}

/// Make one object of each kind beside the connection that is there; the result is the verbs that refused.
fn objects(fixture: &Fixture) -> Vec<(String, i32)> {
    let Fixture { context, pd, gid } = fixture;
    let huge =
        QpCap { max_send_wr: 1 << 15, max_recv_wr: 1 << 15, max_send_sge: 30, max_recv_sge: 1, max_inline_data: 0 };
    let small = QpCap { max_send_wr: 100, max_recv_wr: 100, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let cq = context.create_cq(1000, None, 0);
    let qp = |cap: QpCap| {
        let cq = cq.as_ref().map_err(|error| *error)?;
        let options = QpOptions {
            qp_type: QpType::Rc,
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: true,
        };
        pd.create_qp(&options)
    };
    let ah = AhAttr { dgid: *gid, is_global: true, hop_limit: 1, port_num: PORT, ..AhAttr::default() };
    let mut refused = Vec::new();
    let mut note = |name: &str, result: Result<()>| {
        if let Err(error) = result {
            refused.push((format!("{name} ({})", error.call), error.errno.0));
        }
    };
    // Each object is destroyed at once, so that each verb has the resources that the one before had.
    note("open_device", context.device().open().map(drop));
    note("alloc_pd", context.alloc_pd().map(drop));
    note("create_comp_channel", context.create_comp_channel().map(drop));
    note("create_cq", context.create_cq(100_000, None, 0).map(drop));
    note("create_srq of 32768", pd.create_srq(1 << 15, 1, 0).map(drop));
    note("open_xrcd", context.open_xrcd().map(drop));
    note("reg_mr", pd.reg_mr(1 << 16, Access::LOCAL_WRITE | Access::REMOTE_WRITE).map(drop));
    note("alloc_mw", pd.alloc_mw(MwKind::Type2).map(drop));
    note("create_ah", pd.create_ah(&ah).map(drop));
    note("create_qp", qp(small).map(drop));
    note("create_qp of 32768", qp(huge).map(drop));
    let many: Result<Vec<Arc<rdma::Qp>>> = (0..300).map(|_| qp(small)).collect();
    note("create_qp, 300 times", many.map(drop));
    refused
}
