//! XRC domains.

use verbs::{CtxId, Errno, Result, XrcdId};
use wire::Env;

use crate::{Engine, Xrcd};

impl<P: Env> Engine<P> {
    /// `ibv_open_xrcd(3)`: with an inode, one domain per file.
    pub fn open_xrcd(
        &mut self,
        ctx: CtxId,
        inode: Option<(u64, u64)>,
        create: bool,
        exclusive: bool,
    ) -> Result<XrcdId> {
        self.ctxs.get(ctx).ok_or(Errno::EINVAL)?;
        self.not_in_iwarp(ctx)?;
        let known =
            inode.and_then(|_| self.xrcds.iter().find(|(_, x)| x.inode == inode && x.ctx == ctx)).map(|(id, _)| id);
        match known {
            Some(_) if create && exclusive => Err(Errno::EINVAL),
            Some(id) => {
                if let Some(x) = self.xrcds.get_mut(id) {
                    x.opens += 1;
                }
                Ok(id)
            }
            None if inode.is_some() && !create => Err(Errno::EAGAIN),
            None => self.xrcds.insert(Xrcd { ctx, inode, opens: 1, users: 0 }).ok_or(Errno::ENOMEM),
        }
    }

    /// `ibv_close_xrcd(3)`: EBUSY while something belongs to it.
    pub fn close_xrcd(&mut self, id: XrcdId) -> Result<()> {
        let xrcd = self.xrcds.get_mut(id).ok_or(Errno::EINVAL)?;
        if xrcd.opens > 1 {
            xrcd.opens -= 1;
            return Ok(());
        }
        if xrcd.users > 0 {
            return Err(Errno::EBUSY);
        }
        self.xrcds.remove(id);
        Ok(())
    }
}
