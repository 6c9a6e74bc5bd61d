//! The cases.

use conformance::setting;

use crate::attempt::Attempt;
use crate::lack::{Calls, Lack};
use crate::{Case, all};

const KIB: u64 = 1024;

/// The step between the cases of a sweep that are run.
fn step() -> usize {
    setting("SOFTRNIC_SWEEP_STEP").unwrap_or(1).max(1) as usize
}

/// The cases of a lack: from the beginning, or when a connection is there already, and by the side that begins the new
/// one.
fn cases(lack: Lack, errnos: &'static [i32]) -> impl Iterator<Item = (Case, &'static [i32])> {
    [(false, false), (true, false), (true, true)]
        .into_iter()
        .map(move |(connected, passive)| (Case { lack, connected, passive }, errnos))
}

/// Every number of descriptors, from the three that every process has to the number at which a connection can be made.
#[test]
fn descriptors() {
    const FIRST: u64 = 3;
    const LAST: u64 = 40;
    let lacks = (FIRST..=LAST).step_by(step()).map(Lack::Descriptors);
    let reports = all(lacks.flat_map(|lack| cases(lack, &[libc::EMFILE])));
    let enough = |report: &&crate::Report| matches!(report.lacking, Attempt::Done);
    let done = reports.iter().filter(enough).count();
    println!("counted: {} limits on descriptors, a connection in {done}", reports.len());
    assert!(done > 0 && done < reports.len(), "the sweep must reach from too few to enough");
}

#[test]
fn memory() {
    // The allocator and the library's windows take what they need in pieces of these sizes.
    let sizes = (0..1536).step_by(96 * step()).chain([3000, 5000, 10_000, 80_000, 300_000]);
    let reports = all(sizes.flat_map(|kib| cases(Lack::Memory(kib * KIB), &[libc::ENOMEM, libc::EAGAIN])));
    println!("{} cases", reports.len());
}

#[test]
fn file_sizes() {
    for kib in [0, 4, 64, 640, 700, 1000, 3000] {
        all(cases(Lack::FileSize(kib * KIB), &[libc::EFBIG]));
    }
}

#[test]
fn system_calls() {
    let table: [(Calls, &'static [i32]); 10] = [
        (Calls::Memfd, &[libc::EPERM]),
        (Calls::Eventfd, &[libc::EPERM]),
        (Calls::Epoll, &[libc::EPERM]),
        (Calls::Timerfd, &[libc::EPERM]),
        (Calls::Threads, &[libc::EAGAIN]),
        (Calls::Sockets, &[libc::EACCES]),
        (Calls::Pidfd, &[]),
        (Calls::ProcessVm, &[]),
        (Calls::Madvise, &[libc::EINVAL]),
        (Calls::Mappings, &[libc::ENOMEM, libc::EAGAIN]),
    ];
    all(table.into_iter().flat_map(|(calls, errnos)| cases(Lack::Calls(calls), errnos)));
}
