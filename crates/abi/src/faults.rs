//! Calls that fail deliberately (`SOFTRNIC_FAULT`, `errno:call=...`), and those that a broken device cannot serve.
//!
//! The trampolines of exported functions ask here whether the call is to fail; while there is no specification they
//! look at one byte only ([`crate::hardware`]). Functions of the tables in `ibv_context` and its siblings get a
//! trampoline of this kind only when there is a specification, and those of the data path only when a rule names them.
//! Otherwise faults cost them nothing.

use core::cell::Cell;
use core::ffi::CStr;
use core::ptr::{null, null_mut};
use std::sync::Once;
use std::sync::atomic::Ordering;

use libc::{c_int, c_void};
use nic::Fails;
use nic::faults::{self, Setup};
use sys::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, verbs_context};
use verbs::Errno;

use crate::entry::set_errno;
use crate::hardware::{PRESENT, ROUTE_COUNT, enter};
use crate::{cq, cq_ex, dm, mr, mw, pd, poll, post, qp, query, srq, xrcd};

/// The fault rules of the process. A specification with an error stops the device from being made.
pub fn setup() -> Option<&'static Setup> {
    static LOOKED: Once = Once::new();
    let setup = faults::setup().ok().flatten();
    LOOKED.call_once(|| PRESENT.store(setup.is_some(), Ordering::Release));
    setup
}

/// True if a rule may make this function fail.
pub fn watches(name: &str) -> bool {
    setup().is_some_and(|setup| setup.watches(name))
}

thread_local! {
    /// The errno of the call that is about to fail.
    static FAILURE: Cell<c_int> = const { Cell::new(0) };
}

extern "C" fn number_fails() -> c_int {
    set_errno(Errno(FAILURE.get()));
    FAILURE.get()
}

extern "C" fn pointer_fails() -> *mut c_void {
    set_errno(Errno(FAILURE.get()));
    null_mut()
}

extern "C" fn minus_one_fails() -> c_int {
    set_errno(Errno(FAILURE.get()));
    -1
}

extern "C" fn negative_fails() -> c_int {
    set_errno(Errno(FAILURE.get()));
    -FAILURE.get()
}

/// The target of an exported function's trampoline if the call is to fail; null if it is not.
pub fn verdict(name: &CStr) -> *const c_void {
    let Some(setup) = setup() else { return null() };
    // A private spelling of a name is not the program's.
    let name = name.to_str().unwrap_or_default().trim_start_matches('_');
    faults::calls().iter().find(|(known, _)| *known == name).map_or(null(), |call| judge(setup, *call))
}

/// The target for a member of a table, by its number among the calls; null if the call is not to fail.
pub fn verdict_on_member(number: usize) -> *const c_void {
    let (Some(setup), Some(call)) = (setup(), faults::calls().get(number)) else { return null() };
    judge(setup, *call)
}

fn judge(setup: &Setup, (name, fails): (&str, Fails)) -> *const c_void {
    let Some(errno) = setup.call(name) else { return null() };
    FAILURE.set(errno.0);
    match fails {
        Fails::Number => number_fails as *const c_void,
        Fails::Pointer => pointer_fails as *const c_void,
        Fails::MinusOne => minus_one_fails as *const c_void,
        Fails::Negative => negative_fails as *const c_void,
    }
}

/// The number by which a trampoline asks about a call.
const fn number(name: &str) -> usize {
    let calls = faults::CALLS;
    let mut i = 0;
    while i < calls.len() {
        if same(calls[i].0.as_bytes(), name.as_bytes()) {
            return ROUTE_COUNT + i;
        }
        i += 1;
    }
    panic!("no such call")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Define a function that asks whether the call is to fail before it jumps to the true one, whatever its arguments are.
macro_rules! guarded {
    ($name:literal, $function:path) => {{
        #[unsafe(naked)]
        unsafe extern "C" fn guard() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "mov eax, {n}",
                "call {enter}",
                "test r11, r11",
                "jne 2f",
                "jmp {f}",
                "2: jmp r11",
                n = const number($name),
                enter = sym enter,
                f = sym $function,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x30, xzr, [sp, #-16]!",
                "mov w16, #{n}",
                "bl {enter}",
                "ldp x30, xzr, [sp], #16",
                "cbnz x16, 2f",
                "b {f}",
                "2: br x16",
                n = const number($name),
                enter = sym enter,
                f = sym $function,
            );
        }
        // SAFETY: the guard jumps to a function of the member's type, or to one that returns what that type returns;
        // the arguments' registers stay as they are.
        Some(unsafe { core::mem::transmute::<unsafe extern "C" fn(), _>(guard) })
    }};
}

/// Guard the members of a context's tables, if there is a specification.
#[allow(clippy::missing_transmute_annotations)] // the type is that of the member that is assigned to
pub fn guard(v: &mut verbs_context) {
    let Some(setup) = setup() else { return };
    v.query_port = guarded!("ibv_query_port", query::query_port);
    v.query_device_ex = guarded!("ibv_query_device_ex", query::query_device_ex);
    v.query_rt_values = guarded!("ibv_query_rt_values_ex", query::query_rt_values);
    v.alloc_td = guarded!("ibv_alloc_td", pd::alloc_td);
    v.dealloc_td = guarded!("ibv_dealloc_td", pd::dealloc_td);
    v.alloc_parent_domain = guarded!("ibv_alloc_parent_domain", pd::alloc_parent_domain);
    v.advise_mr = guarded!("ibv_advise_mr", mr::advise_mr);
    v.alloc_null_mr = guarded!("ibv_alloc_null_mr", mr::alloc_null_mr);
    v.reg_dm_mr = guarded!("ibv_reg_dm_mr", dm::reg_dm_mr);
    v.alloc_dm = guarded!("ibv_alloc_dm", dm::alloc_dm);
    v.free_dm = guarded!("ibv_free_dm", dm::free_dm);
    v.modify_cq = guarded!("ibv_modify_cq", cq::modify_cq);
    v.create_cq_ex = guarded!("ibv_create_cq_ex", cq_ex::create_cq_ex);
    v.create_qp_ex = guarded!("ibv_create_qp_ex", qp::create_qp_ex);
    v.open_qp = guarded!("ibv_open_qp", xrcd::open_qp);
    v.create_srq_ex = guarded!("ibv_create_srq_ex", srq::create_srq_ex);
    v.open_xrcd = guarded!("ibv_open_xrcd", xrcd::open_xrcd);
    v.close_xrcd = guarded!("ibv_close_xrcd", xrcd::close_xrcd);
    let ops = &mut v.context.ops;
    ops.alloc_mw = guarded!("ibv_alloc_mw", mw::alloc_mw);
    ops.bind_mw = guarded!("ibv_bind_mw", mw::bind_mw);
    ops.dealloc_mw = guarded!("ibv_dealloc_mw", mw::dealloc_mw);
    // The data path.
    if setup.watches("ibv_poll_cq") {
        ops.poll_cq = guarded!("ibv_poll_cq", poll::poll_cq);
    }
    if setup.watches("ibv_req_notify_cq") {
        ops.req_notify_cq = guarded!("ibv_req_notify_cq", cq::req_notify_cq);
    }
    if setup.watches("ibv_post_send") {
        ops.post_send = Some(post_send);
    }
    if setup.watches("ibv_post_recv") {
        ops.post_recv = Some(post_recv);
    }
    if setup.watches("ibv_post_srq_recv") {
        ops.post_srq_recv = Some(post_srq_recv);
    }
}

/// The errno with which this call is to fail.
pub fn failure(name: &str) -> Option<Errno> {
    setup()?.call(name)
}

/// Define posting functions that can fail: a post that fails names its first request.
macro_rules! posts {
    ($($name:literal: $guard:ident($object:ident, $request:ident);)*) => {$(
        unsafe extern "C" fn $guard(object: *mut $object, wr: *mut $request, bad: *mut *mut $request) -> c_int {
            let Some(errno) = failure($name) else {
                // SAFETY: as this function.
                return unsafe { post::$guard(object, wr, bad) };
            };
            // SAFETY: the caller's variable, or NULL.
            if let Some(bad) = unsafe { bad.as_mut() } {
                *bad = wr;
            }
            errno.0
        }
    )*};
}

posts! {
    "ibv_post_send": post_send(ibv_qp, ibv_send_wr);
    "ibv_post_recv": post_recv(ibv_qp, ibv_recv_wr);
    "ibv_post_srq_recv": post_srq_recv(ibv_srq, ibv_recv_wr);
}

#[cfg(test)]
mod tests {
    /// Every call that is listed as able to fail has a trampoline, or a member of a table that is guarded above.
    #[test]
    fn every_call_is_asked_about() {
        let owners = include_str!("../owners.txt");
        let here = include_str!("faults.rs");
        for (name, fails) in nic::faults::CALLS {
            let routed = owners.lines().map(|line| line.split('#').next().unwrap_or_default()).find(|line| {
                line.split_whitespace().next().is_some_and(|function| function.trim_start_matches('_') == *name)
            });
            let guarded = here.contains(&format!("\"{name}\", ")) || here.contains(&format!("\"{name}\": post"));
            match routed.map(|line| line.split_whitespace().collect::<Vec<_>>()) {
                Some(words) => {
                    let said = match fails {
                        nic::Fails::Number | nic::Fails::Negative => "number",
                        nic::Fails::Pointer => "pointer",
                        nic::Fails::MinusOne => "minus_one",
                    };
                    assert_eq!(words.get(2), Some(&said), "{name}");
                }
                None => assert!(guarded || *name == "ibv_wr_complete", "nothing asks about {name}"),
            }
        }
    }
}
