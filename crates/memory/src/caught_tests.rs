use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Once;

use wire::Span;

use super::*;
use crate::local;

const PAGE: usize = 4096;

extern "C" fn handle(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: what this handler has got.
    if !unsafe { fault(context) } {
        // SAFETY: the default action, for a fault of the test.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn catch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: a whole action, whose handler does only what one may do.
            unsafe {
                let mut action: libc::sigaction = zeroed();
                (action.sa_sigaction, action.sa_flags) = (handler as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
                assert_eq!(libc::sigaction(signal, &raw const action, ptr::null_mut()), 0);
            }
        }
        begin();
    });
}

/// Two pages of a mapping, of which the second one is not there.
struct Cut(usize);

#[derive(Clone, Copy, Debug)]
enum Way {
    NoMapping,
    NoRights,
    BeyondTheFile,
}

const WAYS: [Way; 3] = [Way::NoMapping, Way::NoRights, Way::BeyondTheFile];

impl Cut {
    fn new(way: Way) -> Cut {
        // SAFETY: new mappings at places of the kernel's choice, of which a part is changed at once.
        unsafe {
            let file = File::from_raw_fd(libc::memfd_create(c"cut".as_ptr(), libc::MFD_CLOEXEC));
            file.set_len(PAGE as u64).unwrap();
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // Pages around it keep other mappings away.
            let around =
                libc::mmap(ptr::null_mut(), 8 * PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert_ne!(around, libc::MAP_FAILED);
            let start = around.byte_add(2 * PAGE);
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            assert_eq!(libc::mmap(start, 2 * PAGE, rights, flags, file.as_raw_fd(), 0), start);
            match way {
                Way::NoMapping => assert_eq!(libc::munmap(start.byte_add(PAGE), PAGE), 0),
                Way::NoRights => assert_eq!(libc::mprotect(start.byte_add(PAGE), PAGE, libc::PROT_NONE), 0),
                Way::BeyondTheFile => {}
            }
            Cut(start.expose_provenance())
        }
    }

    fn end(&self) -> usize {
        self.0 + PAGE
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, with what is around it.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.0 - 2 * PAGE), 8 * PAGE) };
    }
}

const LENGTHS: [usize; 12] = [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 100, PAGE];

#[test]
fn all_bytes_are_copied_and_no_others() {
    catch();
    let from: Vec<u8> = (0..2 * MOST).map(|i| (i * 7) as u8).collect();
    for len in (0..70).chain([100, 1000, PAGE - 1, PAGE, MOST]) {
        for at in 0..9 {
            assert!(serves(len));
            let mut to = vec![0xee; at + len + 20];
            local::load((from.as_ptr() as usize + at) as u64, true, &mut to[at..at + len]).unwrap();
            assert_eq!(to[at..at + len], from[at..at + len]);
            assert!(to[..at].iter().chain(&to[at + len..]).all(|byte| *byte == 0xee), "{len} at {at}");
            local::store(to.as_mut_ptr() as u64 + 1, true, &from[..len]).unwrap();
            assert_eq!(to[1..=len], from[..len]);
        }
    }
    assert!(!serves(MOST + 1));
}

#[test]
fn what_is_gone_is_an_error() {
    catch();
    for way in WAYS {
        let cut = Cut::new(way);
        for len in LENGTHS {
            let mut bytes = vec![1; len];
            // From the first byte on, and with the last one.
            for at in [cut.end(), cut.end() + 1 - len] {
                assert!(local::load(at as u64, true, &mut bytes).is_err(), "{way:?} {len}");
                assert!(local::store(at as u64, true, &bytes).is_err(), "{way:?} {len}");
            }
            let last = (cut.end() - len) as u64;
            local::store(last, true, &bytes).unwrap();
            local::load(last, true, &mut bytes).unwrap();
        }
        // The kernel copies as many.
        let large = &mut [0; 5 * PAGE];
        assert!(local::load(cut.0 as u64, true, large).is_err(), "{way:?}");
    }
}

/// No process has such an address, and the processor has another fault for it.
#[test]
fn an_address_that_none_can_be_is_an_error() {
    catch();
    for at in [1 << 47, 1 << 63, u64::MAX - 8] {
        assert!(local::load(at, true, &mut [0; 8]).is_err());
        assert!(local::store(at, true, &[0; 100]).is_err());
    }
}

#[test]
fn the_side_that_is_gone_is_known() {
    catch();
    let mut here = [0u8; 64];
    let ours = [Span { addr: here.as_mut_ptr() as u64, len: 64, guarded: false }];
    for way in WAYS {
        let cut = Cut::new(way);
        let theirs = [Span { addr: cut.end() as u64 - 32, len: 64, guarded: true }];
        assert_eq!(local::copy(&theirs, &ours), Err(true), "{way:?}");
        assert_eq!(local::copy(&ours, &theirs), Err(false), "{way:?}");
    }
}

#[test]
fn a_thread_that_blocks_the_signals_asks_the_kernel() {
    catch();
    let body = || {
        crate::deferred_close::deaf();
        assert!(!serves(8));
        let cut = Cut::new(Way::NoMapping);
        assert!(local::load(cut.end() as u64, true, &mut [0; 8]).is_err());
        local::store(cut.0 as u64, true, &[3; 8]).unwrap();
    };
    std::thread::spawn(body).join().unwrap();
    assert!(serves(8));
}
