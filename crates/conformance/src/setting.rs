//! Settings of tests, from the environment.

use std::time::SystemTime;

/// A number in a variable of the environment.
pub fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// The seed in the variable, or a new one. It is printed, so that a failure can be repeated.
pub fn seed(name: &str) -> u64 {
    let seed = setting(name).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        now.as_nanos() as u64 | 1
    });
    println!("{name}={seed}");
    seed
}
