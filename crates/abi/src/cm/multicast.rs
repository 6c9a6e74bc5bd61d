//! Multicast groups of ids. A group is known by its IP address; `cm::group` has its GID. A join is done when its event
//! is handed out: the queue pair is attached.

use std::net::SocketAddr;

use ::cm::{Event, EventKind, Params};
use libc::{c_int, c_void, sockaddr};
use report::Device;
use sys::cma::{
    RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, RDMA_CM_JOIN_MC_ATTR_RESERVED,
    RDMA_MC_JOIN_FLAG_RESERVED, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, RDMA_PS_UDP, rdma_cm_id,
    rdma_cm_join_mc_attr_ex,
};
use sys::{ibv_ah_attr, ibv_gid};
use verbs::{Errno, Gid, Result};

use super::attr;
use super::event::complete;
use super::id::{Group, Id};
use super::sockaddr as address;
use crate::ah;
use crate::entry::{Zeroed, argument, minus_one};

fn mgid(id: &Id, addr: &SocketAddr) -> Gid {
    // SAFETY: a member that no thread writes after creation.
    let udp = unsafe { id.fields() }.ps == RDMA_PS_UDP;
    let link_layer = super::manager().map(|(nic, _)| nic.link_layer(Device::Roce)).unwrap_or_default();
    ::cm::group::gid(link_layer, addr.ip(), udp)
}

/// The address vector of a group.
pub fn ah(id: &Id, number: u64) -> ibv_ah_attr {
    let inner = id.inner.lock();
    let (Some(group), Ok(view)) = (inner.groups.iter().find(|g| g.number == number), id.cm.view(id.key)) else {
        return ibv_ah_attr::zeroed();
    };
    let group = mgid(id, &group.addr);
    let mut ah = attr::global(&view);
    ah.grh.dgid = ibv_gid { raw: group.0 };
    ah.dlid = ::cm::group::lid(view.link_layer, &group);
    ah
}

/// Complete a join whose event is handed out. The result is the program's own pointer; `None` if the group was left in
/// the meantime.
pub fn joined(id: &Id, number: u64, kind: &mut EventKind, status: &mut i32) -> Option<*mut c_void> {
    let mut inner = id.inner.lock();
    let group = inner.groups.iter_mut().find(|g| g.number == number && !g.left)?;
    group.reported += 1;
    let context = group.context as *mut c_void;
    // SAFETY: a member that changes with the queue pair only.
    let qp = unsafe { id.fields() }.qp;
    if *kind == EventKind::MulticastJoin && !qp.is_null() && !group.send_only {
        let gid = ibv_gid { raw: mgid(id, &group.addr).0 };
        // SAFETY: the id's live queue pair, our own variable.
        match unsafe { ah::ibv_attach_mcast(qp, &raw const gid, 0) } {
            0 => group.attached = true,
            errno => (*kind, *status) = (EventKind::MulticastError, -errno),
        }
    }
    Some(context)
}

fn detach(id: &Id, group: &mut Group) {
    // SAFETY: a member that changes with the queue pair only.
    let qp = unsafe { id.fields() }.qp;
    if std::mem::take(&mut group.attached) && !qp.is_null() {
        let gid = ibv_gid { raw: mgid(id, &group.addr).0 };
        // SAFETY: the id's live queue pair, our own variable.
        unsafe { ah::ibv_detach_mcast(qp, &raw const gid, 0) };
    }
}

/// Detach all groups: the queue pair goes away.
pub fn detach_all(id: &Id) {
    for group in &mut id.inner.lock().groups {
        detach(id, group);
    }
}

fn join(id: &Id, addr: *const sockaddr, send_only: bool, context: *mut c_void) -> Result<()> {
    // SAFETY: an address or NULL (man page).
    let addr = unsafe { address::read(addr) }?.ok_or(Errno::EINVAL)?;
    if addr.ip().is_unspecified() {
        return Err(Errno::EINVAL);
    }
    id.cm.may_join(id.key)?;
    let number = {
        let mut inner = id.inner.lock();
        inner.last_group += 1;
        let number = inner.last_group;
        let context = context as usize;
        let group = Group { number, addr, context, send_only, attached: false, left: false, reported: 0, completed: 0 };
        inner.groups.push(group);
        number
    };
    id.cm.write_event(id.key, Event { params: Params::Group(number), ..Event::new(EventKind::MulticastJoin) })?;
    complete(id)
}

/// `rdma_join_multicast(3)`.
pub unsafe extern "C" fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        join(unsafe { Id::of(id) }?, addr, false, context)?;
        Ok(0)
    })
}

/// `rdma_join_multicast_ex(3)`.
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; the caller's structure or NULL (man page).
        let (id, attr) = unsafe { (Id::of(id)?, argument(attr)?) };
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        let needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask & needed != needed || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
            return Err(Errno::EINVAL);
        }
        join(id, attr.addr, attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context)?;
        Ok(0)
    })
}

/// `rdma_leave_multicast(3)`: EADDRNOTAVAIL for a group that was not joined. It waits for the acknowledgement of the
/// group's events.
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; an address or NULL (man page).
        let (id, addr) = unsafe { (Id::of(id)?, address::read(addr)?.ok_or(Errno::EINVAL)?) };
        let number = {
            let mut inner = id.inner.lock();
            // The latest first, as librdmacm finds it.
            let group = inner.groups.iter_mut().rev().find(|g| g.addr == addr && !g.left);
            let group = group.ok_or(Errno::EADDRNOTAVAIL)?;
            group.left = true;
            detach(id, group);
            group.number
        };
        id.cm.drop_events(id.key, |event| event.params == Params::Group(number));
        // In synchronous mode the id itself holds the event of the join.
        super::event::drop_event(id);
        let mut inner = id.inner.lock();
        while inner.groups.iter().any(|g| g.number == number && g.completed < g.reported) {
            id.acked.wait(&mut inner);
        }
        inner.groups.retain(|g| g.number != number);
        Ok(0)
    })
}
