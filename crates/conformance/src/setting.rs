//! What tests are told by the environment.

use std::time::SystemTime;

/// A number in a variable of the environment.
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// A seed from the variable, or one that nobody has had; printed, so that what failed can be repeated.
pub fn seed(name: &str) -> u64 {
    let seed = setting(name).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        now.as_nanos() as u64 | 1
    });
    println!("{name}={seed}");
    seed
}
