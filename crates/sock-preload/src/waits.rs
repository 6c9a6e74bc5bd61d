//! Waits in epoll sets that have moved connections in them: epoll_wait(2) and its like.
//!
//! What the program gets is worked out here, by the kernel's rules: level-triggered entries are reported while they are
//! ready, edge-triggered ones once for everything new, ONESHOT disarms. [`crate::epoll`] says what is in a set.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, epoll_event, sigset_t};

use crate::cancel::{entry_point, point_at};
use crate::epoll::{BELL, LIFE, MARK, MARK_MASK, mark, watched_by};
use crate::gone;
use crate::kernel;
use crate::link::{self, Link};
use crate::next;
use crate::poll;
use crate::sets::{self, Set};
use crate::spin;
use crate::table;
use crate::work::{self, Use, connection};

/// What the program is to be told of a connection.
fn report(connection: &Use) -> Option<epoll_event> {
    let watch = &connection.slot.watch;
    if watch.disarmed.load(Ordering::Relaxed) != 0 {
        connection.serve();
        return None;
    }
    let events = watch.events.load(Ordering::Relaxed);
    let asked = events as i16;
    let take = |word: &AtomicU32| word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0;
    let (news, is_fresh) = (take(&watch.news), take(&watch.fresh));
    poll::want(connection, asked);
    // Read first: what comes behind this is an edge for the next look, whether this one finds it or not.
    let came = connection.end().incoming.written();
    let by_ring = poll::by_ring(connection, asked);
    // Events of epoll and of poll have the same numbers.
    // The kernel tells of a change once; what it said lasts only where bytes go by TCP.
    let by_kernel = match news || !poll::is_ring_only(connection, asked) {
        true => poll::told(connection, asked, connection.ask(poll::by_kernel(connection, asked))),
        false => 0,
    };
    let mut found = (by_ring | by_kernel) as u32;
    if events & EPOLLET as u32 != 0 {
        let seen = watch.seen.swap(came, Ordering::Relaxed);
        let writable = found & EPOLLOUT as u32 != 0;
        let told = watch.told_writable.swap(u32::from(writable), Ordering::Relaxed) != 0;
        if !(news || is_fresh || came != seen || writable && !told) {
            found = 0;
        }
    }
    if found == 0 {
        return None;
    }
    // News may come while one thread is here, and lead another one here.
    if events & EPOLLONESHOT as u32 != 0 && watch.disarmed.swap(1, Ordering::SeqCst) != 0 {
        return None;
    }
    Some(epoll_event { events: found, u64: watch.data.load(Ordering::Relaxed) })
}

/// Looks at a connection whose bit is set. The bit stays while a level-triggered connection has something to report.
fn look(entry: &Set, number: usize) -> Option<epoll_event> {
    let slot = table::slot(number);
    let here = || slot.watch.set.load(Ordering::SeqCst) == entry.fd() + 1;
    let there = here().then(|| connection(slot.watch.fd.load(Ordering::Relaxed))).flatten();
    let Some(connection) = there.filter(|connection| connection.number == number && here()) else {
        entry.unmark(number);
        return None;
    };
    if slot.watch.events.load(Ordering::Relaxed) & (EPOLLET | EPOLLONESHOT) as u32 != 0 {
        // Only one thread is told.
        return if entry.unmark(number) { report(&connection) } else { None };
    }
    if let Some(event) = report(&connection) {
        return Some(event);
    }
    entry.unmark(number);
    // Something may have come just before.
    let event = report(&connection);
    if event.is_some() {
        entry.mark(number);
    }
    event
}

/// Writes what the connections have to report; how much it was.
fn reap(entry: &Set, events: &mut [epoll_event]) -> usize {
    if entry.scans.load(Ordering::Relaxed) != 0 {
        watched_by(entry.fd()).for_each(|slot| entry.mark(slot.index()));
    }
    entry.take_news();
    let mut found = 0;
    if !events.is_empty() {
        entry.for_each_marked(|number| {
            if let (Some(event), Some(place)) = (look(entry, number), events.get_mut(found)) {
                *place = event;
                found += 1;
            }
            found < events.len()
        });
    }
    found
}

/// Takes our own entries out of what the kernel has reported, and notes what they tell. Second: a bell was rung.
fn without_ours(events: &mut [epoll_event]) -> (usize, bool) {
    let (mut kept, mut rung) = (0, false);
    for n in 0..events.len() {
        let event = events[n];
        let data = event.u64;
        if data & MARK_MASK != MARK {
            events[kept] = event;
            kept += 1;
        } else if data & LIFE != 0 {
            gone::end_all(link::link((data & 0xFFFF) as usize));
        } else if data & BELL != 0 {
            // A bell needs not be emptied: each ring of it is an edge. What it is about is told by the link.
            rung = true;
        } else {
            let slot = table::slot((data & 0xFFFF) as usize);
            slot.watch.news.store(1, Ordering::Relaxed);
            mark(slot);
        }
    }
    (kept, rung)
}

/// How often the kernel is asked while there are always news by rings, in nanoseconds.
const ASK_EVERY: u64 = 20_000;
/// How long a wait may last where a forked process may take the news.
const SHARED_WAIT: u64 = 20_000_000;

unsafe fn wait(set: i32, events: *mut epoll_event, most: i32, until: Option<u64>, mask: *const sigset_t) -> i32 {
    // SAFETY: the caller's promise of epoll_wait(2): room for so many events, which are written before they are read.
    let events = unsafe { core::slice::from_raw_parts_mut(events, most as usize) };
    let ask = |events: &mut [epoll_event], time: i32| {
        let most = events.len() as i32;
        let events_at = events.as_mut_ptr();
        // SAFETY: room for so many events, and the caller's mask.
        let got = unsafe {
            match time {
                // A call that goes on after it must not have been cancelled.
                0 => next::uncancelled(|| next::epoll_pwait()(set, events_at, most, 0, mask)),
                _ => point_at!(epoll_pwait, set, events_at, most, time, mask) as i32,
            }
        };
        let got = usize::try_from(got).map_err(|_| got)?;
        Ok::<(usize, bool), i32>(without_ours(&mut events[..got]))
    };
    let mut announced = false;
    loop {
        let entry = sets::find(set);
        let now = kernel::now();
        let mut found = 0;
        if let Some(entry) = entry {
            let is_due = now.saturating_sub(entry.asked.load(Ordering::Relaxed)) > ASK_EVERY;
            if is_due {
                gone::look_for_orphans(entry, now);
            }
            if entry.kernel_first.load(Ordering::Relaxed) != 0 {
                entry.kernel_first.store(0, Ordering::Relaxed);
                entry.asked.store(now, Ordering::Relaxed);
                // An error is met again where nothing else is to be told.
                found = ask(events, 0).map_or(0, |(some, _)| some);
            }
            found += reap(entry, &mut events[found..]);
            if found > 0 {
                if announced {
                    entry.waiters.fetch_sub(1, Ordering::SeqCst);
                }
                if is_due && found < events.len() {
                    entry.asked.store(now, Ordering::Relaxed);
                    found += ask(&mut events[found..], 0).map_or(0, |(some, _)| some);
                } else if is_due {
                    // The connections have left no room. Next time the kernel comes first.
                    entry.kernel_first.store(1, Ordering::Relaxed);
                }
                wake_others(entry);
                return found as i32;
            }
        }
        let is_over = until.is_some_and(|until| now >= until);
        if let Some(entry) = entry.filter(|_| !is_over && !announced) {
            if !spin::look(|| entry.may_have_some()) {
                entry.waiters.fetch_add(1, Ordering::SeqCst);
                entry.announce();
                announced = true;
            }
            continue;
        }
        let scans = |entry: &Set| entry.scans.load(Ordering::Relaxed) != 0;
        let longest = entry.and_then(|entry| match scans(entry) {
            true => Some(SHARED_WAIT),
            false => gone::may_have_orphans(entry).then_some(work::ORPHAN_WAIT),
        });
        let left = until.map(|until| until.saturating_sub(now));
        let time = match (left, longest) {
            (Some(left), Some(most)) => left.min(most),
            (None, None) => u64::MAX,
            (left, most) => left.or(most).unwrap_or(u64::MAX),
        };
        // Rounded up: a wait that is too short would be followed by empty ones.
        let millis = if time == u64::MAX { -1 } else { time.div_ceil(1_000_000).min(i32::MAX as u64) as i32 };
        let got = ask(events, millis);
        if let Some(entry) = entry {
            if announced {
                entry.waiters.fetch_sub(1, Ordering::SeqCst);
                announced = false;
            }
            let woken = kernel::now();
            entry.asked.store(woken, Ordering::Relaxed);
            if matches!(got, Ok((_, true))) {
                spin::slept(woken - now);
            }
        }
        match got {
            // The kernel may have told something of a connection.
            Ok((0, _)) if is_over => return entry.map_or(0, |entry| reap(entry, events)) as i32,
            Ok((0, _)) => {}
            Ok((some, _)) => {
                let more = entry.map_or(0, |entry| reap(entry, &mut events[some..]));
                return (some + more) as i32;
            }
            Err(error) => return error,
        }
    }
}

/// A thread leaves with some events. If others sleep on, the next news must wake one of them, and so must what is left.
fn wake_others(entry: &Set) {
    if entry.has_sleepers() {
        entry.announce();
        if entry.links().any(|link| link.mine().has_news()) {
            entry.links().for_each(Link::ring_sets);
        }
    }
}

unsafe extern "C" fn epoll_wait_known(set: i32, events: *mut epoll_event, most: i32, time: i32) -> i32 {
    if !sets::has_moved(set) || most <= 0 || events.is_null() {
        // SAFETY: the caller's arguments.
        return unsafe { point_at!(epoll_wait, set, events, most, time) as i32 };
    }
    let until = u64::try_from(time).ok().map(|millis| kernel::now() + millis * 1_000_000);
    // SAFETY: the caller's arguments.
    unsafe { wait(set, events, most, until, core::ptr::null()) }
}

unsafe extern "C" fn epoll_pwait_known(
    set: i32,
    events: *mut epoll_event,
    most: i32,
    time: i32,
    mask: *const sigset_t,
) -> i32 {
    if !sets::has_moved(set) || most <= 0 || events.is_null() {
        // SAFETY: the caller's arguments.
        return unsafe { point_at!(epoll_pwait, set, events, most, time, mask) as i32 };
    }
    let until = u64::try_from(time).ok().map(|millis| kernel::now() + millis * 1_000_000);
    // SAFETY: the caller's arguments.
    unsafe { wait(set, events, most, until, mask) }
}

unsafe extern "C" fn epoll_pwait2_known(
    set: i32,
    events: *mut epoll_event,
    most: i32,
    time: *const libc::timespec,
    mask: *const sigset_t,
) -> i32 {
    if !sets::has_moved(set) || most <= 0 || events.is_null() {
        // SAFETY: the caller's arguments.
        return unsafe { point_at!(epoll_pwait2, set, events, most, time, mask) as i32 };
    }
    // SAFETY: the caller's arguments.
    unsafe { wait(set, events, most, poll::until_timespec(time), mask) }
}

/// What the kernel has told a thread of a set that had no moved connections when the thread came, without our entries.
/// 0: there was nothing else, and the thread waits again, as long as it was to wait at first.
unsafe extern "C" fn told_inside(events: *mut epoll_event, got: i32) -> i32 {
    // SAFETY: the kernel has written so many events to the program's array.
    let events = unsafe { core::slice::from_raw_parts_mut(events, got.max(0) as usize) };
    without_ours(events).0 as i32
}

/// As [`points`]. A set without moved connections is the kernel's. Another thread may put the first one into it
/// meanwhile, so that what the kernel tells is looked at.
macro_rules! wait_points {
    ($($name:ident $function:path;)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "mov r11, [rip + {next} + {offset}]", "test r11, r11", "je 4f",
                "2: cmp edi, {limit}", "jb 5f", "jmp r11",
                "4: push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "mov edi, {offset}", "call {resolve}", "mov r11, rax",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi", "jmp 2b",
                "5: mov r10d, edi", "lea rax, [rip + {inside}]", "lock inc word ptr [rax + r10 * 2]",
                "lea rax, [rip + {moved}]", "cmp byte ptr [rax + r10], 0", "jne 6f",
                "push rdi", ".cfi_adjust_cfa_offset 8", "push rsi", ".cfi_adjust_cfa_offset 8",
                "push rdx", ".cfi_adjust_cfa_offset 8", "push rcx", ".cfi_adjust_cfa_offset 8",
                "push r8", ".cfi_adjust_cfa_offset 8",
                "call r11",
                "mov r10d, [rsp + 32]", "lea r11, [rip + {inside}]", "lock dec word ptr [r11 + r10 * 2]",
                "test eax, eax", "jle 3f",
                "lea r11, [rip + {moved}]", "cmp byte ptr [r11 + r10], 0", "je 3f",
                "mov rdi, [rsp + 24]", "mov esi, eax", "call {told}",
                "test eax, eax", "je 7f",
                "3: add rsp, 40", ".cfi_adjust_cfa_offset -40", "ret",
                "7:", ".cfi_adjust_cfa_offset 40",
                "pop r8", ".cfi_adjust_cfa_offset -8", "pop rcx", ".cfi_adjust_cfa_offset -8",
                "pop rdx", ".cfi_adjust_cfa_offset -8", "pop rsi", ".cfi_adjust_cfa_offset -8",
                "pop rdi", ".cfi_adjust_cfa_offset -8", "jmp 9f",
                "6: lea rax, [rip + {inside}]", "lock dec word ptr [rax + r10 * 2]",
                "9:", entry_point!(),
                ".cfi_endproc",
                limit = const table::LIMIT,
                inside = sym sets::INSIDE,
                moved = sym sets::MOVED,
                told = sym told_inside,
                next = sym next::NEXT,
                resolve = sym next::resolve,
                offset = const next::offset::$name,
                function = sym $function,
                testcancel = sym $crate::cancel::pthread_testcancel,
                any = sym $crate::cancel::ANY,
                caught = sym $crate::cancel::caught,
                unwind = sym $crate::cancel::UNWIND,
            )
        }
    )* };
}

wait_points! {
    epoll_wait epoll_wait_known;
    epoll_pwait epoll_pwait_known;
    epoll_pwait2 epoll_pwait2_known;
}

const _: () = assert!(EPOLLIN as i16 == libc::POLLIN && EPOLLOUT as i16 == libc::POLLOUT);
const _: () = assert!(EPOLLRDHUP as i16 == libc::POLLRDHUP && EPOLLHUP as i16 == libc::POLLHUP);
const _: () = assert!(EPOLLERR as i16 == libc::POLLERR && EPOLLPRI as i16 == libc::POLLPRI);
