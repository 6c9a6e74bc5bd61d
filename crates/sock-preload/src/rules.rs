//! The rules of this process, read once.

use std::net::SocketAddr;
use std::sync::OnceLock;

use sock::rules::{Family, Role, Rules};

/// libsdp's variables.
const FILE: &str = "LIBSDP_CONFIG_FILE";
const EVERYTHING: [&str; 2] = ["SIMPLE_LIBSDP", "ALWAYS_USE_SDP"];

static RULES: OnceLock<Option<Rules>> = OnceLock::new();

/// Reads the rules, before the program begins.
pub fn read() {
    RULES.get_or_init(|| {
        if EVERYTHING.iter().any(|name| std::env::var_os(name).is_some()) {
            return None;
        }
        let file = std::env::var_os(FILE).filter(|file| !file.is_empty())?;
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("softrnic: {}: {error}; every connection that can uses shared memory", file.display());
                return None;
            }
        };
        let parsed = Rules::parse(&String::from_utf8_lossy(&text));
        if let Some(error) = &parsed.error {
            eprintln!("softrnic: {}: {error}; only the rules before it are used", file.display());
        }
        Some(parsed.rules)
    });
}

/// Whether there is any rule.
pub fn any() -> bool {
    RULES.get().is_some_and(Option::is_some)
}

/// Whether a connection may leave TCP. `address` is the local one of a server, the remote one of a client.
pub fn may_move(role: Role, address: SocketAddr) -> bool {
    let Some(Some(rules)) = RULES.get() else { return true };
    rules.decide(role, program(), address).family != Family::Tcp
}

unsafe extern "C" {
    /// errno.h of glibc.
    static program_invocation_short_name: *const core::ffi::c_char;
}

/// The program's name, as libsdp compares it.
fn program() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        // SAFETY: glibc sets it before any constructor runs, to a string that stays.
        let name = unsafe { core::ffi::CStr::from_ptr(program_invocation_short_name) };
        name.to_string_lossy().into_owned()
    })
}
