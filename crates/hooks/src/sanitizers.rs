//! Weak functions that the runtimes of compilers' sanitizers call while they start, and which a preloaded library may
//! define. With these, programs with AddressSanitizer, ThreadSanitizer and LeakSanitizer run beside this library, and
//! so do the programs that they start. Options that their user has set in ASAN_OPTIONS and its siblings take
//! precedence.
//!
//! A program with its runtime linked in statically (clang's default) has functions of its own: for it `softrnic run`
//! sets variables.

use std::ffi::c_char;

/// The options of AddressSanitizer. It refuses to start where its runtime is not the first library, for another malloc
/// might come before its own. This library has none.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    view::ASAN_OPTION.as_ptr()
}

/// The reports that ThreadSanitizer is to suppress.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    view::TSAN_SUPPRESSIONS.as_ptr()
}

/// The leaks that LeakSanitizer is to suppress. The device lives as long as its program: memory that it holds at the
/// end is no leak.
#[unsafe(no_mangle)]
pub extern "C" fn __lsan_default_suppressions() -> *const c_char {
    c"leak:libsoftrnic.so\n".as_ptr()
}
