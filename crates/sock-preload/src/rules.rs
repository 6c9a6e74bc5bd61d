//! The rules of this process, read once.

use std::net::SocketAddr;
use std::sync::OnceLock;

use sock::rules::{Decision, Family, Listening, Log, Role, Rules};

use crate::log;

/// libsdp's variables.
const FILE: &str = "LIBSDP_CONFIG_FILE";
const EVERYTHING: [&str; 2] = ["SIMPLE_LIBSDP", "ALWAYS_USE_SDP"];

static RULES: OnceLock<Option<Rules>> = OnceLock::new();

/// Reads the rules, before the program begins.
pub fn read() {
    RULES.get_or_init(|| {
        // Messages that a signal handler causes must find the name.
        program();
        let is_everything = EVERYTHING.iter().any(|name| std::env::var_os(name).is_some());
        let Some(file) = std::env::var_os(FILE).filter(|file| !file.is_empty() && !is_everything) else {
            log::start(&Log::default());
            // No rule at all means sdp.
            return is_everything.then(Rules::default);
        };
        let name = file.display();
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) => {
                log::start(&Log::default());
                let what = "every connection that can uses shared memory";
                log::say(log::ERROR, format_args!("{name}: {error}; {what}"));
                return None;
            }
        };
        let parsed = Rules::parse(&String::from_utf8_lossy(&text));
        log::start(&parsed.rules.log);
        for warning in &parsed.warnings {
            log::say(log::WARNING, format_args!("{name}: {warning}"));
        }
        if let Some(error) = &parsed.error {
            log::say(log::ERROR, format_args!("{name}: {error}; only the rules before it are used"));
        }
        Some(parsed.rules)
    });
}

/// Whether there is any rule.
pub fn any() -> bool {
    RULES.get().is_some_and(Option::is_some)
}

/// What decides for a connection. `address` is the local one of a server, the remote one of a client.
pub fn decide(role: Role, address: SocketAddr) -> Decision {
    match RULES.get() {
        Some(Some(rules)) => rules.decide(role, program(), address),
        _ => Decision { family: Family::Both, line: None },
    }
}

/// What the connections of a socket that listens there may be.
pub fn of_listener(address: SocketAddr) -> Listening {
    match RULES.get() {
        Some(Some(rules)) => rules.of_listener(program(), address),
        _ => Listening { may_move: true, may_refuse: false },
    }
}

/// Logs what has decided for a connection.
pub fn tell(role: Role, address: SocketAddr, decision: Decision) {
    if !any() {
        return;
    }
    let role = match role {
        Role::Server => "server",
        Role::Client => "client",
    };
    let family = match decision.family {
        Family::Tcp => "tcp",
        Family::Sdp => "sdp",
        Family::Both => "both",
    };
    match decision.line {
        Some(line) => log::say(log::MATCH, format_args!("{role}, {address}: line {line} says {family}")),
        None => log::say(log::NO_MATCH, format_args!("{role}, {address}: no rule matches, which is {family}")),
    }
}

unsafe extern "C" {
    /// errno.h of glibc.
    static program_invocation_short_name: *const core::ffi::c_char;
}

/// The program's name, as libsdp compares it.
pub fn program() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        // SAFETY: glibc sets it before any constructor runs, to a string that stays.
        let name = unsafe { core::ffi::CStr::from_ptr(program_invocation_short_name) };
        name.to_string_lossy().into_owned()
    })
}
