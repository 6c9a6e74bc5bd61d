use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::*;

const PAGE: usize = 4096;

/// A file in memory of four pages.
fn memfd(sealed: bool) -> OwnedFd {
    let fd = rustix::fs::memfd_create("files-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 4 * PAGE as u64).unwrap();
    if sealed {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    }
    fd
}

/// Four pages, never unmapped.
fn mapped(fd: Option<&OwnedFd>, flags: MapFlags) -> u64 {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: at an address of the kernel's choice.
    let place = unsafe {
        match fd {
            Some(fd) => rustix::mm::mmap(std::ptr::null_mut(), 4 * PAGE, rights, flags, fd.as_fd(), 0),
            None => rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4 * PAGE, rights, flags),
        }
    };
    place.unwrap().expose_provenance() as u64
}

/// What both ways say.
fn asked(addr: u64, len: usize) -> bool {
    let (listed, queried) = (by_list(addr, addr + len as u64), by_query(addr, addr + len as u64));
    assert!(queried.is_none_or(|queried| queried == listed), "the two differ: {queried:?}, {listed}");
    assert_eq!(may_shrink(addr, len as u64), listed);
    listed
}

#[test]
fn memory_without_a_file_lasts() {
    let heap = vec![0u8; 3 * PAGE];
    let local = [0u8; 64];
    static mut OWN: [u8; 64] = [1; 64];
    assert!(!asked(heap.as_ptr().expose_provenance() as u64, heap.len()));
    assert!(!asked(local.as_ptr().expose_provenance() as u64, local.len()));
    assert!(!asked((&raw mut OWN).expose_provenance() as u64, 64), "the program's own variables");
    assert!(!asked(mapped(None, MapFlags::PRIVATE), 4 * PAGE));
    assert!(!asked(mapped(None, MapFlags::SHARED), 4 * PAGE), "shared without a file");
}

#[test]
fn files_may_shrink_unless_they_are_sealed() {
    let (open, sealed) = (memfd(false), memfd(true));
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        assert!(asked(mapped(Some(&open), flags), 4 * PAGE));
        assert!(!asked(mapped(Some(&sealed), flags), 4 * PAGE));
    }
    let path = std::env::temp_dir().join(format!("softrnic-files-test-{}", std::process::id()));
    let file = OwnedFd::from(std::fs::File::create_new(&path).unwrap());
    rustix::fs::ftruncate(&file, 4 * PAGE as u64).unwrap();
    let (named, private) = (mapped(Some(&file), MapFlags::SHARED), mapped(Some(&file), MapFlags::PRIVATE));
    assert!(asked(named, 8) && asked(private, 8));
    std::fs::remove_file(&path).unwrap();
    assert!(asked(named + 3 * PAGE as u64, PAGE) && asked(private, 8), "a name is not needed to cut it off");
}

#[test]
fn any_part_counts() {
    let open = memfd(false);
    let area = mapped(None, MapFlags::PRIVATE);
    let third = std::ptr::with_exposed_provenance_mut((area as usize) + 2 * PAGE);
    // SAFETY: this replaces a page of a mapping made above, which no code uses.
    unsafe {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap(third, PAGE, rights, MapFlags::SHARED | MapFlags::FIXED, &open, 0).unwrap();
    }
    assert!(asked(area, 4 * PAGE) && asked(area + 2 * PAGE as u64, 1) && asked(area, 2 * PAGE + 1));
    assert!(!asked(area, 2 * PAGE) && !asked(area + 3 * PAGE as u64, PAGE));
}

#[test]
fn files_of_the_kernel_are_read_whole() {
    assert_eq!(contents("/proc/self/cmdline"), std::fs::read("/proc/self/cmdline").unwrap());
    assert!(contents("/proc/self/smaps").len() > 4096, "longer than one read");
    assert!(contents("/nowhere").is_empty());
}

#[test]
fn few_descriptors_are_looked_at() {
    let asked = |found: i32, open: i32| {
        let mut asked = 0;
        let found = any_descriptor(|number| {
            asked += 1;
            (number < open).then_some(number == found)
        });
        (found, asked)
    };
    assert_eq!(asked(7, 10), (true, 8));
    assert_eq!(asked(-1, 10), (false, 10 + 64), "the free numbers behind the last");
    assert_eq!(asked(-1, 20_000), (false, 1024), "as many as are open, for each of as many regions");
}
