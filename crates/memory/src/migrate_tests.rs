use super::*;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};

#[path = "migrate_race_tests.rs"]
mod races;

const PAGE: usize = 4096;

/// False, with a line that the test harness does not swallow, where memory cannot be moved.
fn can(test: &str) -> bool {
    if !possible() {
        let _ =
            writeln!(std::io::stderr(), "SKIPPED migrate: {test}: userfaultfd in write-protect mode is not available");
    }
    possible()
}

/// Bytes on either side of an area that no other mapping gets. Memory next to the stack of the calling thread is left
/// where it is, since it may be part of that stack (`runs_on`).
const APART: usize = 512 << 10;

/// Private memory of our own.
struct Area {
    base: u64,
    len: usize,
}

impl Area {
    fn new(pages: usize) -> Self {
        Self::mapped(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    fn mapped(pages: usize, flags: i32) -> Self {
        let len = pages * PAGE;
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let room = unsafe { libc::mmap(ptr::null_mut(), len + 2 * APART, libc::PROT_NONE, reserve, -1, 0) };
        assert_ne!(room, libc::MAP_FAILED);
        let base = room.wrapping_byte_add(APART);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: in the midst of that.
        let mapped = unsafe { libc::mmap(base, len, rights, flags | libc::MAP_FIXED, -1, 0) };
        assert_eq!(mapped, base);
        Area { base: base.expose_provenance() as u64, len }
    }

    fn page(&self, n: usize) -> u64 {
        self.base + (n * PAGE) as u64
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        word(self.base + 8 * n as u64)
    }

    /// Every word is its number times `by`.
    fn fill(&self, by: u64) {
        (0..self.len / 8).for_each(|n| self.word(n).store(n as u64 * by, Ordering::Relaxed));
    }

    fn filled(&self, by: u64) -> bool {
        (0..self.len / 8).all(|n| self.word(n).load(Ordering::Relaxed) == n as u64 * by)
    }

    fn map_over(&self, page: usize, flags: i32, fd: i32) {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED);
        // SAFETY: within our own mapping.
        let at = unsafe { libc::mmap(place(self.page(page)), PAGE, rights, flags, fd, 0) };
        assert_eq!(at, place(self.page(page)));
    }

    fn protect(&self, page: usize, rights: i32) {
        // SAFETY: within our own mapping.
        assert_eq!(unsafe { libc::mprotect(place(self.page(page)), PAGE, rights) }, 0);
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: this is our own mapping, and no code uses it any more.
        unsafe { libc::munmap(place(self.base - APART as u64), self.len + 2 * APART) };
    }
}

fn word<'a>(addr: u64) -> &'a AtomicU64 {
    // SAFETY: the tests ask for words of mappings that they keep.
    unsafe { AtomicU64::from_ptr(place(addr).cast()) }
}

fn file(pages: usize) -> OwnedFd {
    let fd = rustix::fs::memfd_create("migrate-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, (pages * PAGE) as u64).unwrap();
    fd
}

/// Pages for which the file needs memory.
fn used(file: &OwnedFd) -> usize {
    rustix::fs::fstat(file).unwrap().st_blocks as usize / (PAGE / 512)
}

/// Rights, and whether a file is mapped, of each page.
fn pages_of(area: &Area) -> Vec<(ProtFlags, bool, bool)> {
    let mut pages = Vec::new();
    maps::each(Detail::Places, |m| {
        let overlap = m.start.max(area.base)..m.end.min(area.base + area.len as u64);
        pages.extend(overlap.step_by(PAGE).map(|_| (rights(m), m.shared, m.inode != 0)));
        ControlFlow::Continue(())
    })
    .unwrap();
    pages
}

const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const PRIVATE: (ProtFlags, bool, bool) = (RW, false, false);
const SHARED: (ProtFlags, bool, bool) = (RW, true, true);

#[test]
fn there_and_back() {
    if !can("there_and_back") {
        return;
    }
    let (area, file) = (Area::new(8), file(16));
    area.fill(3);
    migrate(file.as_fd(), 2 * PAGE as u64, area.page(1), 6 * PAGE).unwrap();
    assert_eq!(used(&file), 6);
    assert_eq!(pages_of(&area), [&[PRIVATE][..], &[SHARED; 6], &[PRIVATE]].concat());
    assert!(area.filled(3));

    let mut bytes = vec![0; 16 * PAGE];
    rustix::io::pread(&file, &mut bytes, 0).unwrap();
    let words = |n: usize| u64::from_ne_bytes(bytes[8 * n..][..8].try_into().unwrap());
    // The area's page 1 is the file's page 2.
    assert!((1024..4096).all(|n| words(n) == (n as u64 - 512) * 3));
    // This mapping stands for that of another process.
    // SAFETY: a new mapping at a place of the kernel's choice.
    let other = unsafe { rustix::mm::mmap(ptr::null_mut(), 16 * PAGE, RW, MapFlags::SHARED, &file, 0) }.unwrap();
    let at = |n: usize| word(other.expose_provenance() as u64 + 8 * n as u64);
    area.word(1000).store(77, Ordering::Relaxed);
    assert_eq!(at(1512).load(Ordering::Relaxed), 77);
    at(2000).store(78, Ordering::Relaxed);
    assert_eq!(area.word(1488).load(Ordering::Relaxed), 78);
    // SAFETY: made above, and not used any more.
    unsafe { rustix::mm::munmap(other, 16 * PAGE) }.unwrap();

    // A system call that writes there.
    let (rx, tx) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&tx, &[9; 100]).unwrap();
    // SAFETY: within our own mapping.
    assert_eq!(unsafe { libc::read(rx.as_raw_fd(), place(area.page(3)), 100) }, 100);

    migrate_back(file.as_fd(), 2 * PAGE as u64, 6 * PAGE).unwrap();
    assert_eq!(used(&file), 0);
    assert_eq!(pages_of(&area), [PRIVATE; 8]);
    assert_eq!(area.word(3 * 512 + 5).load(Ordering::Relaxed), 0x0909_0909_0909_0909);
    assert_eq!(
        (area.word(1000).swap(3000, Ordering::Relaxed), area.word(1488).swap(4464, Ordering::Relaxed)),
        (77, 78)
    );
    (3 * 512..3 * 512 + 13).for_each(|n| area.word(n).store(n as u64 * 3, Ordering::Relaxed));
    assert!(area.filled(3));
    assert_eq!(used(&file), 0);
    // Nothing is mapped any more.
    migrate_back(file.as_fd(), 0, 16 * PAGE).unwrap();
    assert!(area.filled(3));
}

#[test]
fn what_is_not_plain_is_refused() {
    if !can("what_is_not_plain_is_refused") {
        return;
    }
    let (target, other) = (file(16), file(1));
    let fails = |area: &Area, errno: i32, what: &str| {
        let before = pages_of(area);
        assert_eq!(migrate(target.as_fd(), 0, area.base, area.len), Err(Errno(errno)), "{what}");
        assert_eq!((used(&target), pages_of(area)), (0, before), "{what}");
        assert_eq!((area.word(0).load(Ordering::Relaxed), area.word(513).load(Ordering::Relaxed)), (0, 4617), "{what}");
        area.word(513).store(4617, Ordering::Relaxed);
    };
    type Spoil<'a> = &'a dyn Fn(&Area);
    let advise = |area: &Area, advice| {
        // SAFETY: within our own mapping; none of the advice used here changes contents.
        assert_eq!(unsafe { libc::madvise(place(area.page(2)), PAGE, advice) }, 0);
    };
    let cases: [(&str, i32, Spoil<'_>); 11] = [
        ("a private file", libc::EOPNOTSUPP, &|a| a.map_over(2, libc::MAP_PRIVATE, other.as_raw_fd())),
        ("a shared file", libc::EOPNOTSUPP, &|a| a.map_over(2, libc::MAP_SHARED, other.as_raw_fd())),
        ("shared memory", libc::EOPNOTSUPP, &|a| a.map_over(2, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)),
        ("read-only", libc::EOPNOTSUPP, &|a| a.protect(2, libc::PROT_READ)),
        ("executable", libc::EOPNOTSUPP, &|a| a.protect(2, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)),
        ("inaccessible", libc::EOPNOTSUPP, &|a| a.protect(3, libc::PROT_NONE)),
        ("kept from children", libc::EOPNOTSUPP, &|a| advise(a, libc::MADV_DONTFORK)),
        ("zeroed in children", libc::EOPNOTSUPP, &|a| advise(a, libc::MADV_WIPEONFORK)),
        ("kept out of dumps", libc::EOPNOTSUPP, &|a| advise(a, libc::MADV_DONTDUMP)),
        // SAFETY: within our own mapping, which keeps its contents.
        ("locked", libc::EOPNOTSUPP, &|a| assert_eq!(unsafe { libc::mlock(place(a.page(2)), PAGE) }, 0)),
        ("growing", libc::EOPNOTSUPP, &|a| {
            a.map_over(2, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN, -1);
        }),
    ];
    for (what, errno, spoil) in cases {
        let area = Area::new(4);
        area.fill(9);
        spoil(&area);
        fails(&area, errno, what);
    }
    let shared = Area::mapped(4, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    shared.fill(9);
    fails(&shared, libc::EOPNOTSUPP, "all shared");
    drop(shared);

    // Nothing can be mapped so low (vm.mmap_min_addr).
    let page = PAGE as u64;
    assert_eq!(migrate(target.as_fd(), 0, page, PAGE), Err(Errno::EFAULT));
    let list = std::fs::read_to_string("/proc/self/maps").unwrap();
    let stack = list.lines().find(|line| line.ends_with("[stack]")).expect("the main thread has a stack");
    let (_, end) = stack.split_once(' ').unwrap().0.split_once('-').unwrap();
    let top = u64::from_str_radix(end, 16).unwrap() - page;
    assert_eq!(migrate(target.as_fd(), 0, top, PAGE), Err(Errno::EOPNOTSUPP));
    let own = (&raw const stack).expose_provenance() as u64 & !(page - 1);
    assert_eq!(migrate(target.as_fd(), 0, own, PAGE), Err(Errno::EBUSY));

    let area = Area::new(4);
    area.fill(9);
    for (offset, addr, len) in [
        (0, area.base + 8, PAGE),
        (8, area.base, PAGE),
        (0, area.base, 8),
        (0, area.base, 0),
        (15 * page, area.base, 2 * PAGE),
        (!(page - 1), area.base, PAGE),
        (0, !(page - 1), PAGE),
    ] {
        assert_eq!(migrate(target.as_fd(), offset, addr, len), Err(Errno::EINVAL), "{offset} {addr:x} {len}");
    }
    // This move fails when the memory has already been made unwritable: the file cannot be written to.
    let sealed = file(4);
    rustix::fs::fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
    assert_eq!(migrate(sealed.as_fd(), 0, area.base, area.len), Err(Errno::EPERM));
    area.fill(10);
    assert!(area.filled(10) && pages_of(&area) == [PRIVATE; 4]);
    // This move fails after the memory has been copied: this descriptor can be written to, but not mapped.
    let path = format!("/proc/self/fd/{}", target.as_raw_fd());
    let unmappable = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    assert_eq!(migrate(unmappable.as_fd(), 0, area.base, area.len), Err(Errno::EACCES));
    assert_eq!((used(&target), pages_of(&area)), (0, vec![PRIVATE; 4]));
    area.fill(11);
    area.fill(10);
    // Once is enough.
    migrate(target.as_fd(), 0, area.base, area.len).unwrap();
    assert_eq!(migrate(target.as_fd(), 8 * page, area.base, area.len), Err(Errno::EOPNOTSUPP));
    assert_eq!((used(&target), area.filled(10)), (4, true));
    migrate_back(target.as_fd(), 0, area.len).unwrap();
}

#[test]
fn only_what_is_still_there_is_given_back() {
    if !can("only_what_is_still_there_is_given_back") {
        return;
    }
    let (area, elsewhere, file, other) = (Area::new(9), Area::new(1), file(9), file(9));
    area.fill(5);
    migrate(file.as_fd(), 0, area.base, area.len).unwrap();
    area.map_over(1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    area.word(512).store(1, Ordering::Relaxed);
    area.map_over(2, libc::MAP_SHARED, other.as_raw_fd());
    area.word(1024).store(2, Ordering::Relaxed);
    // SAFETY: both are mappings of our own.
    unsafe {
        let to = place(elsewhere.base);
        let at = libc::mremap(place(area.page(4)), PAGE, PAGE, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to);
        assert_eq!(at, to);
    }
    area.map_over(4, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    area.protect(6, libc::PROT_READ);
    area.protect(8, libc::PROT_NONE);
    migrate_back(file.as_fd(), 0, area.len).unwrap();
    assert_eq!(used(&file), 0);
    let (only_read, nothing) = ((ProtFlags::READ, false, false), (ProtFlags::empty(), false, false));
    let expected = [PRIVATE, PRIVATE, SHARED, PRIVATE, PRIVATE, PRIVATE, only_read, PRIVATE, nothing];
    assert_eq!((pages_of(&area), pages_of(&elsewhere)), (expected.to_vec(), vec![PRIVATE]));
    area.protect(8, libc::PROT_READ);
    for page in 0..9 {
        let (first, last) = (page * 512, page * 512 + 511);
        let expected = match page {
            1 | 2 => (page as u64, 0),
            4 => (0, 0),
            _ => (first as u64 * 5, last as u64 * 5),
        };
        assert_eq!((area.word(first).load(Ordering::Relaxed), area.word(last).load(Ordering::Relaxed)), expected);
    }
    assert!((0..512).all(|n| elsewhere.word(n).load(Ordering::Relaxed) == (2048 + n as u64) * 5));
}

/// Runs `part` in a forked child, and gives its exit status. It may only do what is async-signal-safe.
fn in_child(part: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child makes system calls and looks at memory, no more.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(i32::from(!part()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        status
    }
}

#[test]
fn unmapped_stays_unmapped() {
    if !can("unmapped_stays_unmapped") {
        return;
    }
    let (area, file) = (Area::new(4), file(4));
    area.fill(6);
    migrate(file.as_fd(), 0, area.base, area.len).unwrap();
    // In a child, since no other thread there can map something into the gap.
    let status = in_child(|| {
        let mut resident = 0;
        // SAFETY: the child's own mapping of the area; mincore gives one byte for one page.
        unsafe {
            libc::munmap(place(area.page(1)), PAGE) == 0
                && migrate_back(file.as_fd(), 0, area.len).is_ok()
                && libc::mincore(place(area.page(0)), PAGE, &raw mut resident) == 0
                && libc::mincore(place(area.page(1)), PAGE, &raw mut resident) != 0
                && area.word(0).load(Ordering::Relaxed) == 0
                && area.word(2047).load(Ordering::Relaxed) == 2047 * 6
        }
    });
    assert_eq!(status, 0);
    // It has emptied the file, which it must not do outside of a test.
    assert_eq!(used(&file), 0);
    assert_eq!(area.word(2047).load(Ordering::Relaxed), 0);
}

#[test]
fn a_child_has_its_own() {
    if !can("a_child_has_its_own") {
        return;
    }
    let (area, file) = (Area::new(4), file(8));
    area.fill(6);
    migrate(file.as_fd(), 2 * PAGE as u64, area.base, area.len).unwrap();
    let status = in_child(|| {
        let done = copy_for_child(file.as_fd(), 0, 8 * PAGE);
        let same = area.filled(6);
        area.fill(8);
        done.is_ok() && same && area.filled(8)
    });
    assert_eq!(status, 0);
    assert!(area.filled(6) && pages_of(&area) == [SHARED; 4]);
    migrate_back(file.as_fd(), 0, 8 * PAGE).unwrap();
    assert!(area.filled(6));
}

#[test]
fn memory_of_the_heap() {
    if !can("memory_of_the_heap") {
        return;
    }
    let len = 16 * PAGE;
    let file = file(16);
    // SAFETY: memory is taken from malloc, used within its bounds, and given back.
    unsafe {
        let chunk = libc::memalign(PAGE, len);
        assert!(!chunk.is_null());
        ptr::write_bytes(chunk.cast::<u8>(), 0x5a, len);
        let addr = chunk.expose_provenance() as u64;
        migrate(file.as_fd(), 0, addr, len).unwrap();
        assert!((0..len / 8).all(|n| word(addr + 8 * n as u64).load(Ordering::Relaxed) == 0x5a5a_5a5a_5a5a_5a5a));
        migrate_back(file.as_fd(), 0, len).unwrap();
        assert!((0..len / 8).all(|n| word(addr + 8 * n as u64).load(Ordering::Relaxed) == 0x5a5a_5a5a_5a5a_5a5a));
        let chunk = libc::realloc(chunk, 100 * len);
        assert!((0..len).all(|n| *chunk.cast::<u8>().add(n) == 0x5a));
        libc::free(chunk);
    }
    // SAFETY: glibc's malloc knows that others use brk as well. The memory is kept.
    let taken = unsafe { libc::sbrk(5 * PAGE as isize) };
    assert_ne!(taken.addr(), usize::MAX);
    let addr = (taken.expose_provenance() as u64).next_multiple_of(PAGE as u64);
    word(addr).store(4711, Ordering::Relaxed);
    migrate(file.as_fd(), 0, addr, 4 * PAGE).unwrap();
    assert_eq!((word(addr).load(Ordering::Relaxed), used(&file)), (4711, 4));
    migrate_back(file.as_fd(), 0, 4 * PAGE).unwrap();
    assert_eq!(word(addr).load(Ordering::Relaxed), 4711);
}
