use super::*;

/// Pages of our own with nothing mapped behind the first `mapped`.
struct Pages {
    base: u64,
    len: usize,
}

const PAGE: u64 = 4096;

impl Pages {
    fn new(pages: usize, mapped: usize) -> Self {
        let len = pages * PAGE as usize;
        // SAFETY: new anonymous mappings at places of the kernel's choice, parts of which are unmapped again at once.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            // PROT_NONE rather than munmap: nothing else can come to lie there while the test runs.
            let rest = len - mapped * PAGE as usize;
            assert_eq!(libc::mprotect(base.byte_add(mapped * PAGE as usize), rest, libc::PROT_NONE), 0);
            Pages { base: base.expose_provenance() as u64, len }
        }
    }

    fn read_only(&self, page: u64) {
        // SAFETY: within our own mapping.
        let done = unsafe {
            let at = ptr::with_exposed_provenance_mut((self.base + page * PAGE) as usize);
            libc::mprotect(at, PAGE as usize, libc::PROT_READ)
        };
        assert_eq!(done, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is our own mapping, and no code uses it any more.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.base as usize), self.len) };
    }
}

fn span(addr: u64, len: u32, guarded: bool) -> Span {
    Span { addr, len, guarded }
}

#[test]
fn load_and_store() {
    let pages = Pages::new(2, 2);
    for guarded in [false, true] {
        for len in [0usize, 1, 7, 8, 100, 5000] {
            let data: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            store(pages.base + 3, guarded, &data).unwrap();
            let mut back = vec![0; len];
            load(pages.base + 3, guarded, &mut back).unwrap();
            assert_eq!(back, data);
        }
    }
}

#[test]
fn guarded_memory_that_is_not_there_is_a_fault() {
    let pages = Pages::new(3, 1);
    let mut out = [0; 8];
    for addr in [0, 8, pages.base + PAGE, pages.base + PAGE - 4, u64::MAX - 3, 1 << 63] {
        assert_eq!(load(addr, true, &mut out), Err(Fault), "{addr:#x}");
        assert_eq!(store(addr, true, &out), Err(Fault), "{addr:#x}");
        assert_eq!(atomic(addr & !7, true, AtomicOp::FetchAdd(1)).is_err(), addr != pages.base + PAGE - 4);
    }
    pages.read_only(0);
    assert_eq!(load(pages.base, true, &mut out), Ok(()));
    assert_eq!(store(pages.base, true, &out), Err(Fault));
    assert_eq!(atomic(pages.base, true, AtomicOp::Write(1)), Err(Fault));
}

#[test]
fn atomics() {
    let word = AtomicU64::new(5);
    let addr = word.as_ptr().expose_provenance() as u64;
    for guarded in [false, true] {
        word.store(5, Ordering::Relaxed);
        assert_eq!(atomic(addr, guarded, AtomicOp::FetchAdd(u64::MAX)), Ok(5));
        assert_eq!(atomic(addr, guarded, AtomicOp::CompareSwap(5, 9)), Ok(4));
        assert_eq!(atomic(addr, guarded, AtomicOp::CompareSwap(4, 9)), Ok(4));
        assert_eq!(atomic(addr, guarded, AtomicOp::Write(11)), Ok(9));
        assert_eq!(word.load(Ordering::Relaxed), 11);
    }
    assert_eq!(atomic(addr + 4, false, AtomicOp::Write(0)), Err(Fault));
}

#[test]
fn populate_tells_what_is_there() {
    let pages = Pages::new(4, 3);
    pages.read_only(2);
    type Check = fn(u64, u64, bool) -> Result<(), Errno>;
    for check in [populate as Check, probe as Check] {
        let is = |from: u64, len: u64, write| check(pages.base + from, len, write);
        assert_eq!(is(0, 3 * PAGE, false), Ok(()));
        assert_eq!(is(0, 2 * PAGE, true), Ok(()));
        assert_eq!(is(1, 2 * PAGE - 1, true), Ok(()));
        assert_eq!(is(2 * PAGE - 1, 2, true), Err(Errno::EFAULT));
        assert_eq!(is(2 * PAGE - 1, 2, false), Ok(()));
        assert_eq!(is(3 * PAGE - 1, 2, false), Err(Errno::EFAULT));
        assert_eq!(is(3 * PAGE, 1, false), Err(Errno::EFAULT));
        assert_eq!(check(0, 1, false), Err(Errno::EFAULT));
        assert_eq!(check(u64::MAX, 1, false), Err(Errno::EFAULT));
        assert_eq!(check(u64::MAX - 10, 100, true), Err(Errno::EFAULT));
    }
    assert_eq!(populate(8, 0, true), Ok(()), "nothing is asked for");
}

#[test]
fn copies_between_span_lists() {
    let pages = Pages::new(4, 3);
    let data: Vec<u8> = (0..100).collect();
    store(pages.base, false, &data).unwrap();
    for guarded in [false, true] {
        let from = [span(pages.base, 30, false), span(0, 0, false), span(pages.base + 30, 70, guarded)];
        let to = [span(pages.base + PAGE, 1, guarded), span(pages.base + PAGE + 1, 99, false)];
        copy(&from, &to).unwrap();
        let mut back = [0; 100];
        load(pages.base + PAGE, false, &mut back).unwrap();
        assert_eq!(back[..], data[..]);
        store(pages.base + PAGE, false, &[0; 100]).unwrap();
    }
    let (here, nowhere) = ([span(pages.base, 50, false)], [span(pages.base + 3 * PAGE - 10, 50, true)]);
    assert_eq!(copy(&nowhere, &here), Err(true));
    assert_eq!(copy(&here, &nowhere), Err(false));
    // Overlap is as with memmove.
    store(pages.base, false, &data).unwrap();
    copy(&[span(pages.base, 90, false)], &[span(pages.base + 10, 90, false)]).unwrap();
    let mut back = [0; 90];
    load(pages.base + 10, false, &mut back).unwrap();
    assert_eq!(back[..], data[..90]);
}
