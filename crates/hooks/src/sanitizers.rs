//! What the runtimes of compilers' sanitizers ask for while they start: weak functions of theirs, which a preloaded
//! library answers. So programs with AddressSanitizer, ThreadSanitizer and LeakSanitizer run beside this library, and
//! so do the programs that they start. What their user has set in ASAN_OPTIONS and its like counts more.
//!
//! A program with its runtime linked in statically (clang's default) answers for itself: `softrnic run` sets variables.

use std::ffi::c_char;

/// AddressSanitizer refuses to start where its runtime is not the first library, for another malloc might come before
/// its own. There is none here.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    view::ASAN_OPTION.as_ptr()
}

/// What ThreadSanitizer is not to report.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    view::TSAN_SUPPRESSIONS.as_ptr()
}

/// The device lives as long as its program: what it holds at the end is no leak.
#[unsafe(no_mangle)]
pub extern "C" fn __lsan_default_suppressions() -> *const c_char {
    c"leak:libsoftrnic.so\n".as_ptr()
}
