//! Asynchronous events.

use libc::c_int;
use nic::{EventTarget, Nic};
use sys::{ibv_async_event, ibv_context};
use verbs::{Errno, EventKind};

use crate::context::Context;
use crate::cq::Cq;
use crate::entry::{argument, minus_one, object, output, silent};
use crate::qp::Qp;
use crate::srq::Srq;
use crate::wait::{AGAIN, Word, rung, waits};

waits! {
    /// `ibv_get_async_event(3)`.
    ibv_get_async_event(*mut ibv_context, *mut ibv_async_event): begin_wait, end_wait;
}

unsafe extern "C" fn begin_wait(
    word: &mut Word<nic::Context>,
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    minus_one(|| {
        if let Some(fd) = word.again() {
            return Ok(fd);
        }
        // SAFETY: live or NULL (man page).
        let context = unsafe { Context::of(context) }?;
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        context.nic()?;
        Ok(word.enter(&context.shared.context))
    })
}

unsafe extern "C" fn end_wait(
    got: isize,
    word: &mut Word<nic::Context>,
    _context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let read = rung(got);
    minus_one(|| {
        let taken = word.leave(read, |context| Ok(Nic::get()?.take_async_event(context)))?;
        let Some((kind, target)) = taken else { return Ok(AGAIN) };
        // SAFETY: the caller's structure.
        let event = unsafe { output(event) }?;
        event.event_type = kind as u32;
        match target {
            EventTarget::Qp(_, user) => event.element.qp = user as usize as *mut _,
            EventTarget::Cq(_, user) => event.element.cq = user as usize as *mut _,
            EventTarget::Srq(_, user) => event.element.srq = user as usize as *mut _,
            EventTarget::Port(port) => event.element.port_num = port.into(),
            EventTarget::Device => event.element.port_num = 0,
        }
        Ok(0)
    })
}

/// `ibv_ack_async_event(3)`.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    const CQ_ERR: u32 = EventKind::CqErr as u32;
    const SRQ: [u32; 2] = [EventKind::SrqErr as u32, EventKind::SrqLimitReached as u32];
    const QP: [u32; 8] = [
        EventKind::QpFatal as u32,
        EventKind::QpReqErr as u32,
        EventKind::QpAccessErr as u32,
        EventKind::CommEst as u32,
        EventKind::SqDrained as u32,
        EventKind::PathMig as u32,
        EventKind::PathMigErr as u32,
        EventKind::QpLastWqeReached as u32,
    ];
    silent(|| {
        // SAFETY: the caller's structure or NULL.
        let Ok(event) = (unsafe { argument(event) }) else { return };
        let kind = event.event_type;
        // SAFETY: filled by ibv_get_async_event; the type says which member; the object lives at least until now, since
        // its destruction waits for this call.
        unsafe {
            if kind == CQ_ERR {
                if let Ok(cq) = object::<Cq, _>(event.element.cq) {
                    cq.nic.ack_async_event(EventTarget::Cq(cq.id(), event.element.cq as u64));
                }
            } else if SRQ.contains(&kind) {
                if let Ok(srq) = object::<Srq, _>(event.element.srq) {
                    srq.nic.ack_async_event(EventTarget::Srq(srq.id(), event.element.srq as u64));
                }
            } else if QP.contains(&kind)
                && let Ok(qp) = object::<Qp, _>(event.element.qp)
            {
                qp.nic.ack_async_event(EventTarget::Qp(qp.id(), event.element.qp as u64));
            }
        }
    });
}
