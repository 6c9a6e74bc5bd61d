//! The environment variables that the library obeys: all of them are read here.

use std::ffi::OsString;
use std::sync::OnceLock;

/// The value of an environment variable. No variable has a value in a program that runs with more rights than its
/// caller (setuid, setgid, file capabilities; getauxval(3), AT_SECURE): the caller chooses the environment of such a
/// program, and would choose the files that it writes.
pub fn setting(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|_| !is_privileged())
}

/// The value of [`setting`] as text; `None` if it is not UTF-8.
pub fn setting_text(name: &str) -> Option<String> {
    setting(name)?.into_string().ok()
}

/// True if `SOFTRNIC_LOG` asks for diagnostics on standard error: it is anything but empty, `0` or `off`. Read once.
pub fn logs() -> bool {
    static LOGS: OnceLock<bool> = OnceLock::new();
    *LOGS.get_or_init(|| setting_text("SOFTRNIC_LOG").is_some_and(|log| !matches!(log.as_str(), "" | "0" | "off")))
}

/// True if `SOFTRNIC_LOG` forbids every line: it is `0` or `off`. Read once.
pub(crate) fn is_silenced() -> bool {
    static SILENCED: OnceLock<bool> = OnceLock::new();
    *SILENCED.get_or_init(|| setting_text("SOFTRNIC_LOG").is_some_and(|log| matches!(log.as_str(), "0" | "off")))
}

#[allow(unsafe_code)]
fn is_privileged() -> bool {
    // Miri has no auxiliary vector.
    // SAFETY: getauxval only looks into the vector that the kernel gave the process, and takes any number.
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
