//! The decision which paths lead into the view.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

/// `PATH_MAX` of Linux: the kernel takes no longer path.
const PATH_MAX: usize = 4096;

/// Run `call` with the path for the next definition: the same pointer, or one into the view.
///
/// # Safety
/// `path` is null or a NUL-terminated string.
#[inline]
pub(crate) unsafe fn with_path<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: as demanded of the caller.
    if !unsafe { may_match(path) } {
        return call(path);
    }
    // SAFETY: as demanded of the caller.
    unsafe { with_likely_path(path, call) }
}

/// The rest of [`with_path`]; a function of its own, so that only these calls need the stack for a path.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[cold]
#[inline(never)]
unsafe fn with_likely_path<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    let mut buf = [0u8; PATH_MAX];
    // SAFETY: as demanded of the caller.
    match unsafe { into_view(path, &mut buf) } {
        true => call(buf.as_ptr().cast()),
        false => call(path),
    }
}

/// [`with_path`] for calls relative to a directory. An absolute path does not depend on the directory. A relative one
/// needs no redirection, for a descriptor opened below the view is a real directory.
///
/// # Safety
/// `path` is null or a NUL-terminated string.
#[inline]
pub(crate) unsafe fn with_path_at<R>(
    dir: c_int,
    path: *const c_char,
    call: impl FnOnce(c_int, *const c_char) -> R,
) -> R {
    // SAFETY: as demanded of the caller.
    unsafe { with_path(path, |path| call(dir, path)) }
}

/// True if the view has the path.
///
/// # Safety
/// `path` is null or a NUL-terminated string.
pub(crate) unsafe fn leads_into_view(path: *const c_char) -> bool {
    // SAFETY: as demanded of the caller; `classify` sees no null.
    unsafe { may_match(path) && classify(path).is_some() }
}

/// True if a path may start with `/sys` or `/dev`: the one comparison that every path of the program pays for. No byte
/// behind the first difference is read.
///
/// # Safety
/// `path` is null or a NUL-terminated string.
#[inline]
unsafe fn may_match(path: *const c_char) -> bool {
    let path = path.cast::<u8>();
    // SAFETY: the second byte is read only if the first is not the terminator.
    !path.is_null() && unsafe { *path == b'/' && matches!(*path.add(1), b's' | b'd' | b'/' | b'.') }
}

/// A position in a path.
struct Cursor(*const u8);

impl Cursor {
    /// Skip slashes and `.` components.
    ///
    /// # Safety
    /// The cursor is inside a NUL-terminated string.
    unsafe fn skip(&mut self) {
        // SAFETY: reading stops at the terminator; a byte is looked at only after the one before it was no NUL.
        unsafe {
            loop {
                match *self.0 {
                    b'/' => self.0 = self.0.add(1),
                    b'.' if matches!(*self.0.add(1), b'/' | 0) => self.0 = self.0.add(1),
                    _ => return,
                }
            }
        }
    }

    /// Step over `word` if it is the whole next component.
    ///
    /// # Safety
    /// The cursor is inside a NUL-terminated string.
    unsafe fn component(&mut self, word: &[u8]) -> bool {
        // SAFETY: a byte is read only if all before it matched, and no word contains NUL.
        unsafe {
            for (i, byte) in word.iter().enumerate() {
                if *self.0.add(i) != *byte {
                    return false;
                }
            }
            let end = self.0.add(word.len());
            if !matches!(*end, b'/' | 0) {
                return false;
            }
            self.0 = end;
            true
        }
    }
}

/// The view's directory for a path, and where the rest of the path starts.
///
/// # Safety
/// `path` is a NUL-terminated string.
unsafe fn classify(path: *const c_char) -> Option<(&'static [u8], *const u8)> {
    let mut at = Cursor(path.cast());
    // SAFETY: the cursor only moves inside the string, as its functions guarantee.
    unsafe {
        at.skip();
        if at.component(b"sys") {
            at.skip();
            if !at.component(b"class") {
                return None;
            }
            at.skip();
            const CLASSES: [(&[u8], &[u8]); 3] = [
                (b"infiniband", b"/class/infiniband"),
                (b"infiniband_verbs", b"/class/infiniband_verbs"),
                (b"infiniband_mad", b"/class/infiniband_mad"),
            ];
            return CLASSES.iter().find_map(|(name, dir)| at.component(name).then_some((*dir, at.0)));
        }
        if at.component(b"dev") {
            at.skip();
            return at.component(b"infiniband").then_some((b"/dev/infiniband", at.0));
        }
    }
    None
}

/// Write the path inside the view into `buf`; false if the path does not lead there, or there is no view.
///
/// # Safety
/// `path` is a NUL-terminated string.
unsafe fn into_view(path: *const c_char, buf: &mut [u8; PATH_MAX]) -> bool {
    // SAFETY: as demanded of the caller.
    let Some((dir, rest)) = (unsafe { classify(path) }) else { return false };
    // SAFETY: `rest` points into the same string.
    let rest = unsafe { std::ffi::CStr::from_ptr(rest.cast()) }.to_bytes();
    // The first call makes the view, and the others wait for that.
    let _uncancelled = sys::cancel::Uncancelled::new();
    let Some(root) = view::place::current() else { return false };
    let mut len = 0;
    for part in [root.as_os_str().as_bytes(), dir, rest, b"\0"] {
        let Some(place) = buf.get_mut(len..len + part.len()) else { return false };
        place.copy_from_slice(part);
        len += part.len();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{CStr, CString};

    fn classified(path: &str) -> Option<(String, String)> {
        let path = CString::new(path).unwrap();
        // SAFETY: both strings end with NUL and live long enough.
        unsafe {
            if !may_match(path.as_ptr()) {
                return None;
            }
            let (dir, rest) = classify(path.as_ptr())?;
            Some((String::from_utf8_lossy(dir).into(), CStr::from_ptr(rest.cast()).to_str().unwrap().into()))
        }
    }

    #[test]
    fn paths_of_the_view() {
        for (path, dir, rest) in [
            ("/sys/class/infiniband", "/class/infiniband", ""),
            ("/sys/class/infiniband/", "/class/infiniband", "/"),
            ("/sys/class/infiniband/x/ports", "/class/infiniband", "/x/ports"),
            ("//sys/./class///infiniband//x", "/class/infiniband", "//x"),
            ("/./sys/class/infiniband_verbs/uverbs0", "/class/infiniband_verbs", "/uverbs0"),
            ("/sys/class/infiniband_mad/abi_version", "/class/infiniband_mad", "/abi_version"),
            ("/dev/infiniband/uverbs0", "/dev/infiniband", "/uverbs0"),
            ("/dev//infiniband", "/dev/infiniband", ""),
        ] {
            assert_eq!(classified(path), Some((dir.into(), rest.into())), "{path}");
        }
    }

    #[test]
    fn all_others_stay() {
        for path in [
            "",
            "/",
            ".",
            "/s",
            "/sys",
            "/sys/",
            "/sys/class",
            "/sys/class/infiniban",
            "/sys/class/infinibandx",
            "/sys/class/infiniband_",
            "/sys/class/infiniband_verbs2",
            "/sys/class/net",
            "sys/class/infiniband",
            "/dev",
            "/dev/null",
            "/dev/infiniband2",
            "/system/class/infiniband",
            "/sys./class/infiniband",
            "/..",
            "/.",
            "/./",
            "/.hidden",
            "/etc/passwd",
            "./sys/class/infiniband",
        ] {
            assert_eq!(classified(path), None, "{path}");
        }
    }
}
