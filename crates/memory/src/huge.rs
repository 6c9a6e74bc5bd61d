//! Registered memory in huge pages.
//!
//! The system calls that copy from process to process look up every page on both sides, and a copy from one page of
//! 4 KiB to another gains little by what the processor fetches ahead. Between huge pages, memory that is in no cache
//! is copied far faster (docs/lab/large-messages.md).

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use verbs::Errno;

use crate::files;

/// Bytes for each system call: between two of them the thread can be killed.
const STRETCH: u64 = 256 << 20;

/// Moves memory into huge pages, as far as it has whole ones in it. All of it must be present and writable: then
/// nothing becomes present that was not. What cannot be moved stays as it is: the kernel refuses where it has no huge
/// page free, where the program does not want any (`MADV_NOHUGEPAGE`, `PR_SET_THP_DISABLE`), and where a page is in
/// use at the moment. Nothing is done where the host has none (`never`), or before Linux 6.1.
///
/// # Errors
/// The kernel's, for information: which part has been moved is not known then.
pub fn collapse(addr: u64, len: u64) -> Result<(), Errno> {
    let Some(size) = size() else { return Ok(()) };
    let Some((start, end)) = whole(addr, len, size) else { return Ok(()) };
    let (mut at, mut result) = (start, Ok(()));
    while at < end {
        let bytes = (end - at).min(STRETCH.next_multiple_of(size));
        // SAFETY: contents, rights and addresses stay as they are, whatever the range.
        let failed = unsafe {
            libc::madvise(ptr::with_exposed_provenance_mut(at as usize), bytes as usize, libc::MADV_COLLAPSE) != 0
        };
        if failed {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
            result = Err(Errno(errno));
            if errno == libc::ENOMEM || errno == libc::EINVAL {
                break; // it will not be better with the next
            }
        }
        at += bytes;
    }
    result
}

/// The whole huge pages within a range: where the first one begins, and where the last one ends.
fn whole(addr: u64, len: u64, size: u64) -> Option<(u64, u64)> {
    let start = addr.checked_next_multiple_of(size)?;
    let end = addr.checked_add(len)? / size * size;
    (start < end).then_some((start, end))
}

/// Bytes of a huge page; `None` where the host does not want any, or does not say.
fn size() -> Option<u64> {
    const UNKNOWN: u64 = 0;
    const NONE: u64 = 1;
    // Two threads may both find out. A lock would be held for ever in a child that is forked meanwhile.
    static SIZE: AtomicU64 = AtomicU64::new(UNKNOWN);
    let mut size = SIZE.load(Ordering::Relaxed);
    if size == UNKNOWN {
        let read = |name: &str| files::contents(&format!("/sys/kernel/mm/transparent_hugepage/{name}"));
        size = parse(&read("enabled"), &read("hpage_pmd_size")).unwrap_or(NONE);
        SIZE.store(size, Ordering::Relaxed);
    }
    (size > NONE).then_some(size)
}

fn parse(enabled: &[u8], size: &[u8]) -> Option<u64> {
    let enabled = core::str::from_utf8(enabled).ok()?;
    let wanted = enabled.split_ascii_whitespace().any(|word| matches!(word, "[always]" | "[madvise]"));
    let size: u64 = core::str::from_utf8(size).ok()?.trim().parse().ok()?;
    (wanted && size.is_power_of_two() && size >= rustix::param::page_size() as u64).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_ones() {
        const M: u64 = 1 << 20;
        assert_eq!(whole(2 * M, 2 * M, 2 * M), Some((2 * M, 4 * M)));
        assert_eq!(whole(2 * M + 1, 4 * M, 2 * M), Some((4 * M, 6 * M)));
        assert_eq!(whole(M, 9 * M - 1, 2 * M), Some((2 * M, 8 * M)));
        for (addr, len) in
            [(2 * M, 2 * M - 1), (2 * M + 1, 2 * M), (M, 2 * M), (0, 0), (u64::MAX - M, 2 * M), (M, u64::MAX)]
        {
            assert_eq!(whole(addr, len, 2 * M), None, "{addr:#x} {len:#x}");
        }
    }

    #[test]
    fn what_the_host_says() {
        assert_eq!(parse(b"always [madvise] never\n", b"2097152\n"), Some(2 << 20));
        assert_eq!(parse(b"[always] madvise never\n", b"33554432\n"), Some(32 << 20));
        for (enabled, size) in
            [("always madvise [never]\n", "2097152\n"), ("[always]\n", "12\n"), ("[always]\n", ""), ("", "2097152\n")]
        {
            assert_eq!(parse(enabled.as_bytes(), size.as_bytes()), None, "{enabled:?} {size:?}");
        }
    }

    /// Bytes in huge pages, of the mapping with this address (proc_pid_smaps(5)).
    fn huge_bytes(addr: u64) -> u64 {
        let smaps = String::from_utf8(files::contents("/proc/self/smaps")).unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            let first = line.split(' ').next().unwrap();
            if let Some((start, end)) = first.split_once('-') {
                let hex = |text| u64::from_str_radix(text, 16).unwrap();
                inside = (hex(start)..hex(end)).contains(&addr);
            } else if inside && first == "AnonHugePages:" {
                return line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10;
            }
        }
        panic!("no such mapping")
    }

    #[test]
    #[cfg_attr(miri, ignore = "megabytes")]
    fn contents_stay_and_huge_pages_are_used() {
        let Some(size) = size().filter(|size| *size <= 4 << 20) else { return };
        let len = 3 * size as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let addr = base.expose_provenance() as u64;
        for at in (0..len).step_by(512) {
            // SAFETY: inside the mapping, which is ours alone.
            unsafe { base.cast::<u8>().add(at).write((at >> 9) as u8 | 1) };
        }
        let result = collapse(addr + 512, len as u64 - 1024);
        let moved = huge_bytes(addr);
        for at in (0..len).step_by(512) {
            // SAFETY: as above.
            assert_eq!(unsafe { base.cast::<u8>().add(at).read() }, (at >> 9) as u8 | 1, "{at:#x}");
        }
        match result {
            // Whole ones within: at least one, wherever the mapping lies.
            Ok(()) => assert!(moved >= size, "{moved}"),
            // ENOMEM, EBUSY: no huge page is free; EAGAIN: a page is used; EINVAL: before Linux 6.1.
            Err(Errno(errno)) => {
                assert!([libc::ENOMEM, libc::EBUSY, libc::EAGAIN, libc::EINVAL].contains(&errno), "{errno}");
            }
        }
        // SAFETY: the mapping from above, to which there is no reference.
        unsafe { libc::munmap(base, len) };
    }
}
