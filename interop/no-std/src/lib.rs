//! The crate `iwarp` in a program without std, as firmware is: with a panic handler and an allocator of its own. If a
//! crate below it took std, there would be two panic handlers, and this would not compile.
#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

/// An allocator without memory: nothing here is run.
struct Empty;

// SAFETY: `alloc` may return null, and then nothing is ever freed.
unsafe impl GlobalAlloc for Empty {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static EMPTY: Empty = Empty;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

/// The bytes of a connection's state.
#[unsafe(no_mangle)]
pub extern "C" fn stream_size() -> usize {
    size_of::<iwarp::rdmap::Stream>()
}
