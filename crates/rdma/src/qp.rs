//! Queue pairs and address handles.

use std::mem::zeroed;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use sys::*;
use verbs::{Access, AhAttr, Gid, QpAttr, QpAttrMask, QpCap, QpState, QpType};

use crate::device::extended;
use crate::error::{Error, Result, number, pointer};
use crate::{Context, Cq, Pd, Srq, Xrcd};

/// The attributes with which a queue pair is created.
#[derive(Clone, Copy)]
pub struct QpOptions<'a> {
    /// Transport service.
    pub qp_type: QpType,
    /// The queue for completions of sends; an XRC target has none.
    pub send_cq: Option<&'a Arc<Cq>>,
    /// The queue for completions of receives; XRC has none.
    pub recv_cq: Option<&'a Arc<Cq>>,
    /// Shared receive queue.
    pub srq: Option<&'a Arc<Srq>>,
    /// Domain of an XRC target.
    pub xrcd: Option<&'a Arc<Xrcd>>,
    /// The least sizes.
    pub cap: QpCap,
    /// True if every send request gives a completion.
    pub sq_sig_all: bool,
}

/// A queue pair.
pub struct Qp {
    context: Arc<Context>,
    raw: NonNull<ibv_qp>,
    /// The extended structure, for requests that are built by functions, if the queue pair was made for them.
    pub(crate) extended: Option<NonNull<ibv_qp_ex>>,
    pub(crate) post_send_fn: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> i32,
    pub(crate) post_recv_fn: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
    cap: QpCap,
    // The objects that it uses; never read, only kept alive.
    _pd: Option<Arc<Pd>>,
    _cqs: [Option<Arc<Cq>>; 2],
    _srq: Option<Arc<Srq>>,
    _xrcd: Option<Arc<Xrcd>>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for Qp {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for Qp {}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: a live queue pair, destroyed once.
        unsafe { (self.context.library().api.destroy_qp)(self.raw.as_ptr()) };
    }
}

/// The parameters of a connection, on which both ends agree; see [`Qp::connect`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The peer's queue pair.
    pub qpn: u32,
    /// The peer's address.
    pub gid: Gid,
    /// The peer's LID; 0 on Ethernet.
    pub lid: u16,
    /// First sequence number that the peer sends.
    pub rq_psn: u32,
    /// First sequence number that this side sends.
    pub sq_psn: u32,
    /// Index of this side's address.
    pub sgid_index: u8,
    /// This side's port.
    pub port: u8,
    /// `enum ibv_mtu`.
    pub mtu: u8,
    /// The access of the peer.
    pub access: Access,
    /// READs and atomics outstanding in either direction.
    pub rd_atomic: u8,
    /// Retransmission timer, 4.096 us * 2^n.
    pub timeout: u8,
    /// Retries after RNR NAKs; 7 means for ever.
    pub rnr_retry: u8,
}

fn raw_cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

fn our_cap(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

fn raw_ah(ah: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: ah.dgid.0 },
            flow_label: ah.flow_label,
            sgid_index: ah.sgid_index,
            hop_limit: ah.hop_limit,
            traffic_class: ah.traffic_class,
        },
        dlid: ah.dlid,
        sl: ah.sl,
        src_path_bits: ah.src_path_bits,
        static_rate: ah.static_rate,
        is_global: ah.is_global.into(),
        port_num: ah.port_num,
    }
}

fn our_ah(ah: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        // SAFETY: both members of the union are plain data of one size.
        dgid: Gid(unsafe { ah.grh.dgid.raw }),
        flow_label: ah.grh.flow_label,
        sgid_index: ah.grh.sgid_index,
        hop_limit: ah.grh.hop_limit,
        traffic_class: ah.grh.traffic_class,
        dlid: ah.dlid,
        sl: ah.sl,
        src_path_bits: ah.src_path_bits,
        static_rate: ah.static_rate,
        is_global: ah.is_global != 0,
        port_num: ah.port_num,
    }
}

fn raw_attr(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.cur_state as u32,
        path_mtu: attr.path_mtu.into(),
        path_mig_state: attr.path_mig_state.into(),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.access.bits(),
        cap: raw_cap(&attr.cap),
        ah_attr: raw_ah(&attr.ah),
        alt_ah_attr: raw_ah(&attr.alt_ah),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

fn our_attr(attr: &ibv_qp_attr) -> QpAttr {
    QpAttr {
        state: QpState::from_raw(attr.qp_state).unwrap_or(QpState::Err),
        cur_state: QpState::from_raw(attr.cur_qp_state).unwrap_or(QpState::Err),
        path_mtu: attr.path_mtu as u8,
        path_mig_state: attr.path_mig_state as u8,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        access: Access::from_bits_retain(attr.qp_access_flags),
        cap: our_cap(&attr.cap),
        ah: our_ah(&attr.ah_attr),
        alt_ah: our_ah(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

impl Pd {
    /// `ibv_create_qp(3)`, or for XRC `ibv_create_qp_ex(3)`.
    pub fn create_qp(self: &Arc<Self>, options: &QpOptions<'_>) -> Result<Arc<Qp>> {
        self.create(options, None)
    }

    /// `ibv_create_qp_ex(3)` for [`Qp::build`]; `operations` are those that will be built (`enum
    /// ibv_qp_create_send_ops_flags`). EOPNOTSUPP: the service or the adapter has not all of them.
    pub fn create_qp_ex(self: &Arc<Self>, options: &QpOptions<'_>, operations: u32) -> Result<Arc<Qp>> {
        self.create(options, Some(operations))
    }

    fn create(self: &Arc<Self>, options: &QpOptions<'_>, operations: Option<u32>) -> Result<Arc<Qp>> {
        let cq = |cq: Option<&Arc<Cq>>| cq.map_or(null_mut(), |cq| cq.as_ptr());
        let srq = options.srq.map_or(null_mut(), |srq| srq.as_ptr());
        let context = &self.context;
        let xrc = matches!(options.qp_type, QpType::XrcIni | QpType::XrcTgt);
        let (raw, cap, call) = if xrc || operations.is_some() {
            let call = "ibv_create_qp_ex";
            let create = extended!(context.raw(), create_qp_ex).ok_or(Error::new(call, libc::EOPNOTSUPP))?;
            // SAFETY: plain data, for which zeroes are valid; then a live context and attributes that name live
            // objects.
            unsafe {
                let mut init: ibv_qp_init_attr_ex = zeroed();
                init.send_cq = cq(options.send_cq);
                init.recv_cq = cq(options.recv_cq);
                init.srq = srq;
                init.cap = raw_cap(&options.cap);
                init.qp_type = options.qp_type as u32;
                init.sq_sig_all = options.sq_sig_all.into();
                if let Some(xrcd) = options.xrcd {
                    init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
                    init.xrcd = xrcd.raw.as_ptr();
                } else {
                    init.comp_mask = IBV_QP_INIT_ATTR_PD;
                    init.pd = self.raw.as_ptr();
                }
                if let Some(operations) = operations {
                    init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
                    init.send_ops_flags = operations.into();
                }
                (create(context.raw(), &mut init), init.cap, call)
            }
        } else {
            return self.create_plain(options, "ibv_create_qp", |pd, init| {
                // SAFETY: a live domain and attributes that name live objects.
                unsafe { (context.library().api.create_qp)(pd, init) }
            });
        };
        Ok(self.wrap(pointer(call, raw)?, &cap, options, operations))
    }

    /// A queue pair that `create` makes from the plain attributes.
    pub(crate) fn create_plain(
        self: &Arc<Self>,
        options: &QpOptions<'_>,
        call: &'static str,
        create: impl FnOnce(*mut ibv_pd, &mut ibv_qp_init_attr) -> *mut ibv_qp,
    ) -> Result<Arc<Qp>> {
        let cq = |cq: Option<&Arc<Cq>>| cq.map_or(null_mut(), |cq| cq.as_ptr());
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq(options.send_cq),
            recv_cq: cq(options.recv_cq),
            srq: options.srq.map_or(null_mut(), |srq| srq.as_ptr()),
            cap: raw_cap(&options.cap),
            qp_type: options.qp_type as u32,
            sq_sig_all: options.sq_sig_all.into(),
        };
        let raw = pointer(call, create(self.raw.as_ptr(), &mut init))?;
        Ok(self.wrap(raw, &init.cap, options, None))
    }

    fn wrap(
        self: &Arc<Self>,
        raw: NonNull<ibv_qp>,
        cap: &ibv_qp_cap,
        options: &QpOptions<'_>,
        operations: Option<u32>,
    ) -> Arc<Qp> {
        let context = &self.context;
        let extended = match (operations, context.library().api.qp_to_qp_ex) {
            // SAFETY: a live queue pair.
            (Some(_), Some(extended)) => NonNull::new(unsafe { extended(raw.as_ptr()) }),
            _ => None,
        };
        // SAFETY: the tables of a live context; every provider has these functions.
        let ops = unsafe { &(*context.raw()).ops };
        Arc::new(Qp {
            context: context.clone(),
            raw,
            extended,
            post_send_fn: ops.post_send.expect("post_send"),
            post_recv_fn: ops.post_recv.expect("post_recv"),
            cap: our_cap(cap),
            _pd: options.xrcd.is_none().then(|| self.clone()),
            _cqs: [options.send_cq.cloned(), options.recv_cq.cloned()],
            _srq: options.srq.cloned(),
            _xrcd: options.xrcd.cloned(),
        })
    }

    /// `ibv_create_ah(3)`.
    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<Arc<Ah>> {
        let mut attr = raw_ah(attr);
        // SAFETY: a live domain and valid attributes.
        let raw = unsafe { (self.context.library().api.create_ah)(self.raw.as_ptr(), &mut attr) };
        Ok(Arc::new(Ah(Arc::new(Handle { pd: self.clone(), raw: pointer("ibv_create_ah", raw)? }))))
    }
}

impl Qp {
    pub(crate) fn as_ptr(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: a live queue pair; its number does not change.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// The state that the structure shows (`ibv_qp.state`): what the last modify or query left there.
    pub fn shown_state(&self) -> Option<QpState> {
        // SAFETY: a live queue pair; volatile, for a modify in another thread may change it.
        QpState::from_raw(unsafe { (&raw const (*self.raw.as_ptr()).state).read_volatile() })
    }

    /// The sizes that it really has.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// `ibv_modify_qp(3)`.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.modify_raw(&mut raw_attr(attr), mask.bits() as i32)
    }

    pub(crate) fn modify_raw(&self, attr: &mut ibv_qp_attr, mask: i32) -> Result<()> {
        let modify = self.context.library().api.modify_qp;
        // SAFETY: a live queue pair and valid attributes.
        number("ibv_modify_qp", unsafe { modify(self.raw.as_ptr(), attr, mask) })
    }

    /// `ibv_query_qp(3)`.
    pub fn query(&self, mask: QpAttrMask) -> Result<QpAttr> {
        let query = self.context.library().api.query_qp;
        // SAFETY: a live queue pair and places for the results, for which zeroes are valid.
        unsafe {
            let (mut attr, mut init) = (zeroed(), zeroed());
            number("ibv_query_qp", query(self.raw.as_ptr(), &mut attr, mask.bits() as i32, &mut init))?;
            Ok(our_attr(&attr))
        }
    }

    /// Set the state alone: to RESET or ERR, or from SQD or SQE back to RTS.
    pub fn set_state(&self, state: QpState) -> Result<()> {
        self.modify(&QpAttr { state, ..QpAttr::default() }, QpAttrMask::STATE)
    }

    /// Move from RESET to INIT. `qkey` is for datagrams, `access` for the others.
    pub fn init(&self, qp_type: QpType, port: u8, access: Access, qkey: u32) -> Result<()> {
        let attr = QpAttr { state: QpState::Init, port_num: port, access, qkey, ..QpAttr::default() };
        let last = if qp_type == QpType::Ud { QpAttrMask::QKEY } else { QpAttrMask::ACCESS_FLAGS };
        self.modify(&attr, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | last)
    }

    /// Move a datagram queue pair from INIT to RTS.
    pub fn activate_ud(&self, sq_psn: u32) -> Result<()> {
        self.set_state(QpState::Rtr)?;
        let attr = QpAttr { state: QpState::Rts, sq_psn, ..QpAttr::default() };
        self.modify(&attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN)
    }

    /// Move a connected queue pair from INIT to RTS, with the attributes that its type needs (IBTA vol. 1, table 96).
    pub fn connect(&self, qp_type: QpType, with: &Connect) -> Result<()> {
        use QpAttrMask as M;
        let attr = QpAttr {
            path_mtu: with.mtu,
            dest_qp_num: with.qpn,
            rq_psn: with.rq_psn,
            sq_psn: with.sq_psn,
            ah: AhAttr {
                dgid: with.gid,
                sgid_index: with.sgid_index,
                hop_limit: 64,
                dlid: with.lid,
                is_global: with.gid != Gid::ZERO,
                port_num: with.port,
                ..AhAttr::default()
            },
            max_dest_rd_atomic: with.rd_atomic,
            max_rd_atomic: with.rd_atomic,
            min_rnr_timer: 1,
            timeout: with.timeout,
            retry_cnt: 7,
            rnr_retry: with.rnr_retry,
            ..QpAttr::default()
        };
        let mut mask = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        if matches!(qp_type, QpType::Rc | QpType::XrcTgt) {
            mask |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        }
        self.modify(&QpAttr { state: QpState::Rtr, ..attr }, mask)?;
        let mut mask = M::STATE | M::SQ_PSN;
        if qp_type.is_reliable() {
            mask |= M::TIMEOUT;
        }
        if matches!(qp_type, QpType::Rc | QpType::XrcIni) {
            mask |= M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        }
        self.modify(&QpAttr { state: QpState::Rts, ..attr }, mask)
    }

    /// `ibv_attach_mcast(3)`.
    pub fn attach_mcast(&self, gid: &Gid) -> Result<()> {
        let raw = ibv_gid { raw: gid.0 };
        // SAFETY: a live queue pair and an identifier.
        let ret = unsafe { (self.context.library().api.attach_mcast)(self.raw.as_ptr(), &raw, 0) };
        number("ibv_attach_mcast", ret)
    }

    /// `ibv_detach_mcast(3)`.
    pub fn detach_mcast(&self, gid: &Gid) -> Result<()> {
        let raw = ibv_gid { raw: gid.0 };
        // SAFETY: a live queue pair and an identifier.
        let ret = unsafe { (self.context.library().api.detach_mcast)(self.raw.as_ptr(), &raw, 0) };
        number("ibv_detach_mcast", ret)
    }
}

/// An address handle. It must outlive the requests that use it, or they may be answered with an error.
pub struct Ah(Arc<Handle>);

/// The handle that an [`Ah`] and the prepared lists that name it share.
pub(crate) struct Handle {
    pd: Arc<Pd>,
    raw: NonNull<ibv_ah>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for Handle {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: a live handle, destroyed once.
        unsafe { (self.pd.context.library().api.destroy_ah)(self.raw.as_ptr()) };
    }
}

impl Ah {
    pub(crate) fn as_ptr(&self) -> *mut ibv_ah {
        self.0.raw.as_ptr()
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.0
    }
}

impl std::fmt::Debug for Ah {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ah")
    }
}
