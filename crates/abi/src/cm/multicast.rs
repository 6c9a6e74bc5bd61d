//! Multicast groups of ids.

use core::ptr::null_mut;

use ::cm::EventKind;
use libc::c_void;
use sys::ibv_ah_attr;

use super::attr;
use super::id::Id;
use crate::entry::Zeroed;

/// The address vector of a group.
pub fn ah(id: &Id, number: u64) -> ibv_ah_attr {
    let inner = id.inner.lock();
    let (Some(group), Ok(view)) = (inner.groups.iter().find(|g| g.number == number), id.cm.view(id.key)) else {
        return ibv_ah_attr::zeroed();
    };
    let mut ah = attr::ah(&view);
    ah.grh.dgid = sys::ibv_gid { raw: verbs::Gid::from_ip(group.addr.ip()).0 };
    ah
}

/// The event of a join is handed out: the queue pair is attached.
pub fn joined(_id: &Id, _number: u64, _kind: &mut EventKind, _status: &mut i32) -> *mut c_void {
    null_mut()
}
