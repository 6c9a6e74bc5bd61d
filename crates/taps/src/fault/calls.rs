//! Calls that fail: the functions that can, how each reports it, and the rules that make them.

use std::sync::atomic::{AtomicBool, Ordering};

use verbs::Errno;
use wire::Nanos;

use super::rule::Armed;
use super::spec::{Fault, Spec};

/// How a function fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// It returns the errno.
    Number,
    /// It returns NULL and sets errno.
    Pointer,
    /// It returns -1 and sets errno.
    MinusOne,
    /// It returns the negative errno.
    Negative,
}

use Fails::{MinusOne, Negative, Number, Pointer};

/// Every function that can fail on demand. A test compares the list with the library's exports.
#[rustfmt::skip]
pub const CALLS: &[(&str, Fails)] = &[
    ("ibv_get_device_list", Pointer), ("ibv_open_device", Pointer), ("ibv_close_device", MinusOne),
    ("ibv_query_device", Number), ("ibv_query_device_ex", Number), ("ibv_query_rt_values_ex", Number),
    ("ibv_query_port", Number), ("ibv_query_gid", MinusOne), ("ibv_query_gid_ex", Number),
    ("ibv_query_gid_table", Negative), ("ibv_query_pkey", MinusOne), ("ibv_get_pkey_index", MinusOne),
    ("ibv_get_async_event", MinusOne),
    ("ibv_alloc_pd", Pointer), ("ibv_dealloc_pd", Number), ("ibv_import_pd", Pointer),
    ("ibv_alloc_td", Pointer), ("ibv_dealloc_td", Number), ("ibv_alloc_parent_domain", Pointer),
    ("ibv_reg_mr", Pointer), ("ibv_reg_mr_iova", Pointer), ("ibv_reg_mr_iova2", Pointer), ("ibv_reg_mr_ex", Pointer),
    ("ibv_reg_dmabuf_mr", Pointer), ("ibv_reg_dm_mr", Pointer), ("ibv_alloc_null_mr", Pointer),
    ("ibv_rereg_mr", Number), ("ibv_dereg_mr", Number), ("ibv_advise_mr", Number), ("ibv_import_mr", Pointer),
    ("ibv_alloc_mw", Pointer), ("ibv_bind_mw", Number), ("ibv_dealloc_mw", Number),
    ("ibv_alloc_dm", Pointer), ("ibv_free_dm", Number), ("ibv_import_dm", Pointer),
    ("ibv_create_comp_channel", Pointer), ("ibv_destroy_comp_channel", Number), ("ibv_get_cq_event", MinusOne),
    ("ibv_create_cq", Pointer), ("ibv_create_cq_ex", Pointer), ("ibv_resize_cq", Number), ("ibv_modify_cq", Number),
    ("ibv_req_notify_cq", Number), ("ibv_poll_cq", Negative), ("ibv_destroy_cq", Number),
    ("ibv_create_srq", Pointer), ("ibv_create_srq_ex", Pointer), ("ibv_modify_srq", Number), ("ibv_query_srq", Number),
    ("ibv_post_srq_recv", Number), ("ibv_destroy_srq", Number),
    ("ibv_open_xrcd", Pointer), ("ibv_close_xrcd", Number),
    ("ibv_create_qp", Pointer), ("ibv_create_qp_ex", Pointer), ("ibv_open_qp", Pointer), ("ibv_modify_qp", Number),
    ("ibv_query_qp", Number), ("ibv_post_send", Number), ("ibv_post_recv", Number), ("ibv_wr_complete", Number),
    ("ibv_destroy_qp", Number), ("ibv_query_ece", Number), ("ibv_set_ece", Number),
    ("ibv_create_ah", Pointer), ("ibv_create_ah_from_wc", Pointer), ("ibv_init_ah_from_wc", MinusOne),
    ("ibv_resolve_eth_l2_from_gid", Number), ("ibv_destroy_ah", Number),
    ("ibv_attach_mcast", Number), ("ibv_detach_mcast", Number),
    ("rdma_create_event_channel", Pointer), ("rdma_get_cm_event", MinusOne), ("rdma_ack_cm_event", MinusOne),
    ("rdma_create_id", MinusOne), ("rdma_destroy_id", MinusOne), ("rdma_migrate_id", MinusOne),
    ("rdma_bind_addr", MinusOne), ("rdma_resolve_addr", MinusOne), ("rdma_resolve_route", MinusOne),
    ("rdma_create_qp", MinusOne), ("rdma_create_qp_ex", MinusOne), ("rdma_create_srq", MinusOne),
    ("rdma_create_srq_ex", MinusOne), ("rdma_connect", MinusOne), ("rdma_establish", MinusOne),
    ("rdma_listen", MinusOne), ("rdma_get_request", MinusOne), ("rdma_accept", MinusOne), ("rdma_reject", MinusOne),
    ("rdma_reject_ece", MinusOne), ("rdma_notify", MinusOne), ("rdma_disconnect", MinusOne),
    ("rdma_join_multicast", MinusOne), ("rdma_join_multicast_ex", MinusOne), ("rdma_leave_multicast", MinusOne),
    ("rdma_set_option", MinusOne), ("rdma_init_qp_attr", MinusOne), ("rdma_create_ep", MinusOne),
    ("rdma_getaddrinfo", MinusOne), ("rdma_get_devices", Pointer), ("rdma_set_local_ece", MinusOne),
    ("rdma_get_remote_ece", MinusOne), ("rdma_resolve_addrinfo", MinusOne), ("rdma_query_addrinfo", MinusOne),
    ("rdma_write_cm_event", MinusOne),
];

/// Second names of calls: verbs.h makes one of the call that the program wrote, and send requests are posted in two
/// ways.
const ALSO: [(&str, &str); 2] = [("ibv_reg_mr_iova2", "ibv_reg_mr"), ("ibv_wr_complete", "ibv_post_send")];

/// Rules about calls.
#[derive(Debug)]
pub struct CallFaults {
    seed: u64,
    rules: Vec<Armed>,
    broken: AtomicBool,
}

/// The reason why a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A rule that struck, with the number of this call among those that it counts.
    Struck(u64, Errno),
    /// The device, which is broken or gone.
    Broken,
}

impl Failure {
    /// The errno that the call returns or sets.
    pub fn errno(self) -> Errno {
        match self {
            Failure::Struck(_, errno) => errno,
            Failure::Broken => Errno::EIO,
        }
    }
}

impl CallFaults {
    /// The rules about calls.
    pub fn new(spec: &Spec, seed: u64) -> Self {
        let rules = spec.rules.iter().enumerate().filter(|(_, rule)| matches!(rule.fault, Fault::Errno(..)));
        CallFaults {
            seed,
            rules: rules.map(|(i, rule)| Armed::new(rule.clone(), i)).collect(),
            broken: AtomicBool::new(false),
        }
    }

    /// The failure of this call, if it is to fail.
    pub fn call(&self, name: &str, elapsed: Nanos) -> Option<Failure> {
        let mut failure = None;
        for armed in &self.rules {
            let Fault::Errno(_, errno) = armed.rule.fault else { continue };
            // Every rule counts every call that it names, whatever becomes of the call.
            if Self::names(armed, name)
                && let Some(n) = armed.strikes(self.seed, elapsed)
            {
                failure = failure.or(Some(Failure::Struck(n, errno)));
            }
        }
        let broken = self.broken.load(Ordering::Relaxed) && needs_the_device(name);
        failure.or(broken.then_some(Failure::Broken))
    }

    fn names(armed: &Armed, name: &str) -> bool {
        let Fault::Errno(pattern, _) = &armed.rule.fault else { return false };
        pattern.covers(name) || ALSO.iter().any(|(called, other)| *called == name && pattern.covers(other))
    }

    /// True if a rule may make this function fail. Only then does the data path have to ask.
    pub fn watches(&self, name: &str) -> bool {
        self.rules.iter().any(|armed| Self::names(armed, name))
    }

    /// Count anew, in a forked child. Async-signal-safe.
    pub fn begin_anew(&self) {
        self.rules.iter().for_each(Armed::begin_anew);
    }

    /// Log the rules that have not struck.
    pub fn sum_up(&self, tell: impl Fn(&str)) {
        self.rules.iter().filter_map(|armed| armed.idle("calls")).for_each(|line| tell(&line));
    }

    /// Make calls that need the device fail from now on.
    pub fn break_device(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// True once [`CallFaults::break_device`] was called.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

/// True for calls that fail on a device that is gone: all but those that give back, poll and post (requests that are
/// posted are flushed). In Linux every command of a disassociated device fails with EIO
/// (`drivers/infiniband/core/uverbs_main.c`). librdmacm's calls have errnos of their own for it, but those that are
/// verbs underneath.
fn needs_the_device(name: &str) -> bool {
    const STILL: [&str; 14] = [
        "ibv_destroy_",
        "ibv_dealloc_",
        "ibv_dereg_",
        "ibv_free_",
        "ibv_close_",
        "ibv_detach_",
        "ibv_get_",
        "ibv_post_",
        "ibv_poll_",
        "ibv_req_",
        "ibv_wr_",
        "ibv_init_ah",
        "ibv_query_gid",
        "rdma_",
    ];
    let verbs = name.starts_with("rdma_create_qp") || name.starts_with("rdma_create_srq");
    verbs || !STILL.iter().any(|start| name.starts_with(start))
}
