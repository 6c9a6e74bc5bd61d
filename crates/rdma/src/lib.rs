//! Verbs in safe Rust, over the C verbs ABI.
//!
//! No code here knows softrnic. [`Library::load`] opens a verbs library (softrnic's, or the system's `libibverbs.so.1`
//! for a real adapter), [`Library::this_process`] takes the one that the process has already, and everything else goes
//! through the functions and tables of that library. So programs that use this crate run on both.
//!
//! Objects keep alive the objects that they need: a [`Qp`] its [`Cq`]s and [`Pd`], those their [`Context`], that the
//! [`Library`]. They are shared by `Arc` and destroyed with the last one, in the order that verbs demand. All may be
//! used from several threads, as `ibv_post_send(3)` and its siblings promise.
//!
//! The adapter and peers write registered memory at any time, so it is never lent out as a slice: [`Mr`] owns its
//! buffer and copies in and out.

mod api;
mod build;
mod cm;
mod completion;
mod device;
mod dm;
mod error;
mod memory;
mod post;
mod prepared;
mod qp;
mod srq;

pub use api::Library;
pub use cm::{CmEvent, CmId, CmParam, EventChannel};
pub use completion::{CompChannel, Cq, PendingEvent, Status, Wc};
pub use device::{AsyncEvent, AsyncSource, Context, Device, GidEntry, Pd, Xrcd};
pub use dm::{Dm, DmMr};
pub use error::{Error, Result};
pub use memory::{Mr, Mw, MwKind, Sge};
pub use post::{Bind, Data, RecvWr, SendOp, SendWr};
pub use prepared::{RecvList, RecvRequest, SendList, SendRequest};
pub use qp::{Ah, Connect, Qp, QpOptions};
pub use srq::Srq;

/// The C structures, for programs that need attributes without a name here.
pub use sys;
pub use verbs::{Access, AhAttr, Errno, Gid, QpAttr, QpAttrMask, QpCap, QpState, QpType, SendFlags, WcFlags};
