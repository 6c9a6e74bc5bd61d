//! An attempt: everything from opening the device to a message in each direction, with a limit for each step.

use std::fmt;

use conformance::side::{LEN, Place, RECV};
use conformance::{Joined, Wire, library};
use rdma::{Data, Error, QpCap, QpOptions, QpType, RecvWr, SendOp, SendWr, Status};
use serde::{Deserialize, Serialize};

use crate::Ask;

/// The result of an attempt.
#[derive(Debug, Serialize, Deserialize)]
pub enum Attempt {
    /// A message has gone in each direction.
    Done,
    /// This function refused, with this errno.
    Refused(String, i32),
    /// The message ended so.
    Failed(String),
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attempt::Done => write!(f, "a connection"),
            Attempt::Refused(call, errno) => write!(f, "{call}: {}", crate::text(*errno)),
            Attempt::Failed(status) => write!(f, "connected, {status}"),
        }
    }
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Attempt {
        Attempt::Refused(error.call.to_owned(), error.errno.0)
    }
}

/// The attributes of a connection: the timeout of 34 ms passes twice.
fn joined() -> Joined {
    Joined { timeout: 13, retries: 1, ..Joined::default() }
}

/// Open the device, connect to the friend, and exchange messages with it.
pub fn attempt(wire: &mut Wire, passive: bool) -> Attempt {
    try_it(wire, passive).err().unwrap_or(Attempt::Done)
}

fn try_it(wire: &mut Wire, passive: bool) -> Result<(), Attempt> {
    let nothing = || Attempt::Failed("there is no device".into());
    let device = library().devices()?.into_iter().next().ok_or_else(nothing)?;
    let context = device.open()?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let cq = context.create_cq(16, Some(&channel), 0)?;
    let mr = pd.reg_mr(2 * LEN, rdma::Access::LOCAL_WRITE)?;
    let gid = context.query_gid(conformance::PORT, 0)?.ok_or_else(nothing)?.gid;
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let options = QpOptions {
        qp_type: QpType::Rc,
        send_cq: Some(&cq),
        recv_cq: Some(&cq),
        srq: None,
        xrcd: None,
        cap,
        sq_sig_all: true,
    };
    let qp = pd.create_qp(&options)?;
    let peer: Place = wire.exchange(&Ask::Meet(Place { qpn: qp.number(), gid: gid.0 }));
    let up = || -> Result<(), Error> {
        joined().init(&qp, QpType::Rc);
        joined().rtr(&qp, QpType::Rc, peer.qpn, rdma::Gid(peer.gid))?;
        joined().rts(&qp, QpType::Rc, peer.qpn, rdma::Gid(peer.gid))?;
        qp.post_recv(&RecvWr { wr_id: RECV, sges: &[mr.sge(LEN, LEN)] })
    };
    if let Err(error) = up() {
        let _: String = wire.exchange(&Ask::Friend(false));
        return Err(error.into());
    }
    mr.write(0, &qp.number().to_ne_bytes());
    let send = || qp.post_send(&SendWr::new(1, SendOp::Send, Data::Sges(&[mr.sge(0, LEN)])));
    let mut statuses = Vec::new();
    let mut collect = |count: usize| {
        for wc in conformance::collect(&cq, count) {
            statuses.push(wc.status());
        }
        statuses
            .iter()
            .find(|status| **status != Status::SUCCESS)
            .map_or(Ok(()), |bad| Err(Attempt::Failed(bad.to_string())))
    };
    if passive {
        // The friend sends; it is answered only if that message arrives.
        let heard: String = wire.exchange(&Ask::Friend(true));
        if heard != Status::SUCCESS.to_string() {
            return Err(Attempt::Failed(heard));
        }
        collect(1)?;
        send()?;
        return collect(1);
    }
    if let Err(error) = send() {
        let _: String = wire.exchange(&Ask::Friend(false));
        return Err(error.into());
    }
    if let Err(failed) = collect(1) {
        let _: String = wire.exchange(&Ask::Friend(false));
        return Err(failed);
    }
    let heard: String = wire.exchange(&Ask::Friend(true));
    if heard != Status::SUCCESS.to_string() {
        return Err(Attempt::Failed(heard)); // the friend's answer
    }
    collect(1)
}
