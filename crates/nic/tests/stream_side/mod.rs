//! A context, and connected queue pairs. The file that includes this says which faults the process has (`FAULTS`).

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use iwarp::mpa::{Agreed, Ready, Role};
use memory::fds::{FdSet, TrackedFd};
use nic::{Context, CqOpts, Nic};
use verbs::*;

/// How long a test waits for what has to come.
pub const LONG: Duration = Duration::from_secs(40);

pub const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// The adapter, with the faults of the test.
pub fn nic() -> &'static Nic {
    static NIC: OnceLock<&'static Nic> = OnceLock::new();
    NIC.get_or_init(|| {
        // SAFETY: all that reads variables here does so by the standard library, which has a lock for that.
        unsafe {
            std::env::set_var("SOFTRNIC_DEVICE", "iwarp");
            if let Some(faults) = super::FAULTS {
                std::env::set_var("SOFTRNIC_FAULT", faults);
            }
        }
        Nic::get().unwrap()
    })
}

/// A context with what connections need.
pub struct Side {
    pub context: &'static Context,
    pub pd: PdId,
    pub cq: CqId,
    pub listener: TcpListener,
    fds: Arc<FdSet>,
}

impl Side {
    pub fn new() -> Side {
        let context: &'static Context = Box::leak(Box::new(nic().open(report::Device::Iwarp).unwrap()));
        let pd = nic().lock().alloc_pd(context.id).unwrap();
        let (cq, _) = nic().lock().create_cq(context.id, 1024, 1, CqOpts::default()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Side { context, pd, cq, listener, fds: FdSet::new() }
    }

    /// Two queue pairs, connected.
    pub fn pair(&self, crc: bool) -> [QpId; 2] {
        let active = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        let passive = self.listener.accept().unwrap().0;
        [self.one(active, Role::Initiator, crc), self.one(passive, Role::Responder, crc)]
    }

    /// A queue pair on one end of a connection.
    pub fn one(&self, socket: TcpStream, role: Role, crc: bool) -> QpId {
        let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let init = QpInit {
            pd: Some(self.pd),
            qp_type: QpType::Rc,
            send_cq: Some(self.cq),
            recv_cq: Some(self.cq),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: true,
        };
        let (qp, created) = nic().create_qp(self.context.id, &init, 2).unwrap();
        let is_active = role == Role::Initiator;
        let agreed = Agreed {
            role,
            crc,
            markers_in: false,
            markers_out: false,
            ird: 1,
            ord: 1,
            ready: is_active.then_some(Ready::Write),
            awaits_ready: !is_active,
            unmet: None,
        };
        socket.set_nodelay(true).unwrap();
        let ends = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        let (tap, socket) = (nic().tap_stream(ends, is_active), TrackedFd::new(socket.into(), &self.fds));
        nic().attach_stream(created.qpn.get(), socket, &agreed, &[], tap).unwrap();
        qp
    }

    pub fn recv(&self, qp: QpId, wr_id: u64, sge: Sge) {
        nic().post_recv(qp, &RecvWr { wr_id, sges: &[sge] }).unwrap();
    }

    pub fn send(&self, qp: QpId, wr_id: u64, sge: Sge) {
        let wr = SendWr {
            wr_id,
            opcode: Opcode::Send,
            flags: SendFlags::empty(),
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &SendBody::Plain,
            data: SendData::Sges(&[sge]),
        };
        nic().post_send(qp, &wr).unwrap();
    }

    /// The next completions, in the order of their numbers.
    pub fn completions(&self, count: usize) -> Vec<(u64, WcStatus)> {
        let (mut all, begun) = (Vec::new(), Instant::now());
        while all.len() < count {
            nic().poll_cq(self.cq, 16, |_, wc| all.push((wc.wr_id, wc.status)));
            assert!(begun.elapsed() < LONG, "only {all:?}");
        }
        all.sort_by_key(|(wr_id, _)| *wr_id);
        all
    }
}
