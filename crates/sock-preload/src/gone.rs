//! Connections in epoll sets of which the other end's processes are gone, though their sockets do not say so yet.

use std::sync::atomic::Ordering;

use crate::link::Link;
use crate::sets::Set;
use crate::work::{self, Use, connection};
use crate::{epoll, table};

/// The connections of a link that are in a set, and those that the kernel's set still has.
fn watched(link: &'static Link) -> impl Iterator<Item = Use> {
    link.all_slots().filter_map(|number| {
        let watch = &table::slot(number).watch;
        let is_watched = watch.set.load(Ordering::SeqCst) > 0 || watch.kernel.load(Ordering::SeqCst) > 0;
        let there = is_watched.then(|| connection(watch.fd.load(Ordering::Relaxed))).flatten();
        there.filter(|connection| connection.number == number)
    })
}

/// No process has the other end of a link any more: its connections are looked at.
pub fn end_all(link: &'static Link) {
    if link.has_died() {
        for connection in watched(link) {
            connection.held().own.note_end();
            connection.slot.watch.news.store(1, Ordering::Relaxed);
            epoll::mark(connection.slot);
        }
    }
}

/// Connections that wait for room, and of which the other end may be a forked child's, which may have died alone.
fn suspects(entry: &Set) -> impl Iterator<Item = Use> {
    let is_here = |one: &Use| one.slot.watch.set.load(Ordering::SeqCst) == entry.fd() + 1;
    let forked = entry.links().filter(|link| link.mine().has_forked());
    forked.flat_map(watched).filter(move |one| is_here(one) && one.may_be_orphaned())
}

/// Whether a set has such connections.
pub fn may_have_orphans(entry: &Set) -> bool {
    suspects(entry).next().is_some()
}

/// Looks at these connections, now and then.
pub fn look_for_orphans(entry: &Set, now: u64) {
    let looked = &entry.orphans;
    if !entry.has_forked_peers() || now.saturating_sub(looked.load(Ordering::Relaxed)) < work::ORPHAN_WAIT {
        return;
    }
    looked.store(now, Ordering::Relaxed);
    for connection in suspects(entry).filter(Use::look_for_orphan) {
        connection.slot.watch.news.store(1, Ordering::Relaxed);
        epoll::mark(connection.slot);
    }
}
