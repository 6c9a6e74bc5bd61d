//! `rdma_getaddrinfo(3)` and its siblings. Every structure handed out is the C library's memory, as librdmacm's is.

use core::mem::size_of;
use core::ptr::null_mut;

use ::cm::{Event, EventKind};
use libc::{
    AI_NUMERICHOST, AI_PASSIVE, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM, SOCK_STREAM, addrinfo, c_char, c_int, c_void,
    sockaddr, socklen_t,
};
use sys::cma::{
    RAI_DNS, RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_addrinfo,
    rdma_cm_id,
};
use verbs::{Errno, Result};

use super::event::complete;
use super::id::Id;
use crate::entry::{minus_one, output, set_errno, shielded, silent};

/// Zeroed memory of the C library's.
fn allocate(bytes: usize) -> Result<*mut c_void> {
    // SAFETY: calloc reads nothing.
    let made = unsafe { libc::calloc(1, bytes.max(1)) };
    if made.is_null() { Err(Errno::ENOMEM) } else { Ok(made) }
}

fn copy(from: *const sockaddr, len: socklen_t) -> Result<(*mut sockaddr, socklen_t)> {
    if from.is_null() || len == 0 {
        return Ok((null_mut(), 0));
    }
    let made = allocate(len as usize)?;
    // SAFETY: `from` is as long as its owner says; `made` is new.
    unsafe { core::ptr::copy_nonoverlapping(from.cast::<u8>(), made.cast::<u8>(), len as usize) };
    Ok((made.cast(), len))
}

fn text(from: *const c_char) -> *mut c_char {
    // SAFETY: NULL or a C string.
    if from.is_null() { null_mut() } else { unsafe { libc::strdup(from) } }
}

/// The hints for the C library.
fn hints_for(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: integers and pointers; zeros are valid.
    let mut ai: addrinfo = unsafe { core::mem::zeroed() };
    let flags = hints.ai_flags as u32;
    if flags & RAI_PASSIVE != 0 {
        ai.ai_flags |= AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        ai.ai_flags |= AI_NUMERICHOST;
    }
    ai.ai_family = hints.ai_family;
    ai.ai_socktype = match hints.ai_qp_type as u32 {
        sys::IBV_QPT_RC | sys::IBV_QPT_UC | sys::IBV_QPT_XRC_SEND | sys::IBV_QPT_XRC_RECV => SOCK_STREAM,
        sys::IBV_QPT_UD => SOCK_DGRAM,
        _ => 0,
    };
    ai.ai_protocol = match (hints.ai_port_space as u32, ai.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, SOCK_STREAM) => IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, SOCK_DGRAM) => IPPROTO_UDP,
        _ => 0,
    };
    ai
}

fn fill(rai: &mut rdma_addrinfo, hints: Option<&rdma_addrinfo>, ai: &addrinfo) -> Result<()> {
    let asked = |of: fn(&rdma_addrinfo) -> c_int| hints.map(of).filter(|&v| v != 0);
    rai.ai_qp_type = asked(|h| h.ai_qp_type).unwrap_or(match ai.ai_socktype {
        SOCK_STREAM => sys::IBV_QPT_RC as c_int,
        SOCK_DGRAM => sys::IBV_QPT_UD as c_int,
        _ => 0,
    });
    rai.ai_port_space = asked(|h| h.ai_port_space).unwrap_or(match ai.ai_protocol {
        IPPROTO_TCP => RDMA_PS_TCP as c_int,
        IPPROTO_UDP => RDMA_PS_UDP as c_int,
        _ => 0,
    });
    rai.ai_family = ai.ai_family;
    if ai.ai_flags & AI_PASSIVE != 0 {
        rai.ai_flags = RAI_PASSIVE as c_int;
        rai.ai_src_canonname = text(ai.ai_canonname);
        (rai.ai_src_addr, rai.ai_src_len) = copy(ai.ai_addr, ai.ai_addrlen)?;
    } else {
        rai.ai_dst_canonname = text(ai.ai_canonname);
        (rai.ai_dst_addr, rai.ai_dst_len) = copy(ai.ai_addr, ai.ai_addrlen)?;
    }
    Ok(())
}

/// Look up an address. `Err(Ok(n))` is an EAI_ number of getaddrinfo(3), `Err(Err(errno))` an errno.
fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> core::result::Result<*mut rdma_addrinfo, core::result::Result<c_int, Errno>> {
    if let Some(hints) = hints
        && hints.ai_flags as u32 & RAI_SA != 0
    {
        // Service records of an InfiniBand subnet administrator: there is none.
        let wrong = !node.is_null() || hints.ai_flags as u32 & RAI_DNS != 0;
        return Err(Err(if wrong { Errno::EOPNOTSUPP } else { Errno::ENOENT }));
    }
    let made = allocate(size_of::<rdma_addrinfo>()).map_err(Err)?.cast::<rdma_addrinfo>();
    // SAFETY: new, zeroed, of this size; zeros are valid.
    let rai = unsafe { &mut *made };
    let mut work = || {
        if node.is_null() && service.is_null() {
            if let Some(h) = hints {
                (rai.ai_flags, rai.ai_family) = (h.ai_flags, h.ai_family);
                (rai.ai_qp_type, rai.ai_port_space) = (h.ai_qp_type, h.ai_port_space);
                (rai.ai_dst_addr, rai.ai_dst_len) = copy(h.ai_dst_addr, h.ai_dst_len).map_err(Err)?;
            }
        } else {
            let asked = hints.map(hints_for);
            let mut ai = null_mut();
            let hints_at = asked.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
            // SAFETY: C strings or NULL (man page); our own structures.
            match unsafe { libc::getaddrinfo(node, service, hints_at, &raw mut ai) } {
                0 => {}
                libc::EAI_SYSTEM => return Err(Err(super::last_errno())),
                number => return Err(Ok(number)),
            }
            // SAFETY: a list of at least one, which is freed once.
            let filled = unsafe {
                let filled = fill(rai, hints, &*ai);
                libc::freeaddrinfo(ai);
                filled
            };
            filled.map_err(Err)?;
        }
        if let Some(h) = hints
            && rai.ai_src_len == 0
        {
            (rai.ai_src_addr, rai.ai_src_len) = copy(h.ai_src_addr, h.ai_src_len).map_err(Err)?;
        }
        Ok(())
    };
    work().map(|()| made).inspect_err(|_| free(made))
}

fn free(mut at: *mut rdma_addrinfo) {
    while !at.is_null() {
        // SAFETY: the C library's memory, or NULL, in every member; each is freed once.
        unsafe {
            let rai = at.read();
            for part in [
                rai.ai_connect,
                rai.ai_route,
                rai.ai_src_canonname.cast(),
                rai.ai_dst_canonname.cast(),
                rai.ai_src_addr.cast(),
                rai.ai_dst_addr.cast(),
                at.cast(),
            ] {
                libc::free(part);
            }
            at = rai.ai_next;
        }
    }
}

/// `rdma_getaddrinfo(3)`: -1 and errno, or an EAI_ number of getaddrinfo(3).
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    let result = shielded(|| {
        if node.is_null() && service.is_null() && hints.is_null() {
            return Err(Errno::EINVAL);
        }
        super::manager()?;
        // SAFETY: the caller's variable and structure, or NULL.
        let (out, hints) = unsafe { (output(res)?, hints.as_ref()) };
        match look_up(node, service, hints) {
            Ok(made) => {
                *out = made;
                Ok(0)
            }
            Err(Ok(number)) => Ok(number),
            Err(Err(errno)) => Err(errno),
        }
    });
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// `rdma_freeaddrinfo(3)`.
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    silent(|| free(res));
}

/// Free a result that was resolved and not queried.
pub fn forget(id: &Id) {
    let resolved = std::mem::take(&mut id.inner.lock().resolved);
    free(resolved as *mut rdma_addrinfo);
}

/// `rdma_resolve_addrinfo(3)`: EBUSY until the last result was queried.
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; the caller's structure or NULL (man page).
        let (id, hints) = unsafe { (Id::of(id)?, hints.as_ref()) };
        if std::mem::replace(&mut id.inner.lock().resolving, true) {
            return Err(Errno::EBUSY);
        }
        let nothing = node.is_null() && service.is_null() && hints.is_none();
        let result = if nothing { Err(Err(Errno::EINVAL)) } else { look_up(node, service, hints) };
        match result {
            Ok(made) => {
                id.inner.lock().resolved = made as usize;
                id.cm.write_event(id.key, Event::new(EventKind::AddrinfoResolved))?;
                complete(id)?;
                Ok(0)
            }
            Err(e) => {
                id.inner.lock().resolving = false;
                // The EAI_ numbers are negative in the C library.
                Err(e.map_or_else(|errno| errno, |number| Errno(number.abs())))
            }
        }
    })
}

/// `rdma_query_addrinfo(3)`: ENOENT if nothing was resolved.
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; the caller's variable or NULL (man page).
        let (id, out) = unsafe { (Id::of(id)?, output(info)?) };
        let mut inner = id.inner.lock();
        if !inner.resolving || inner.resolved == 0 {
            return Err(Errno::ENOENT);
        }
        *out = std::mem::take(&mut inner.resolved) as *mut rdma_addrinfo;
        inner.resolving = false;
        Ok(0)
    })
}
