//! Multicast groups.

use verbs::{Errno, Gid, QpId, QpType, Result, limits};
use wire::Env;

use crate::Engine;

impl<P: Env> Engine<P> {
    /// `ibv_attach_mcast(3)`: UD only; EINVAL for a GID that is no group.
    pub fn attach_mcast(&mut self, id: QpId, gid: &Gid) -> Result<()> {
        let qp = self.qps.get(id).ok_or(Errno::EINVAL)?;
        if qp.init.qp_type != QpType::Ud || !gid.is_multicast() {
            return Err(Errno::EINVAL);
        }
        if !self.groups.contains_key(gid) {
            if self.groups.len() >= limits::MAX_MCAST_GRP as usize {
                return Err(Errno::ENOMEM);
            }
            self.env.announce_multicast(gid, true)?;
        }
        let members = self.groups.entry(*gid).or_default();
        if !members.contains(&id) {
            members.push(id);
        }
        Ok(())
    }

    /// `ibv_detach_mcast(3)`: EINVAL when it is not attached.
    pub fn detach_mcast(&mut self, id: QpId, gid: &Gid) -> Result<()> {
        let members = self.groups.get_mut(gid).ok_or(Errno::EINVAL)?;
        let at = members.iter().position(|&m| m == id).ok_or(Errno::EINVAL)?;
        members.swap_remove(at);
        if members.is_empty() {
            self.groups.remove(gid);
            let _ = self.env.announce_multicast(gid, false);
        }
        Ok(())
    }
}
