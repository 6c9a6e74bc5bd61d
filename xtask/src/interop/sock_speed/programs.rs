//! Figures of other programs.

use super::{Bench, Way};

/// What they are called in the page.
pub const NAMES: &[&str] = &[];

/// Runs one of them once.
///
/// # Errors
/// The program that does not run.
pub fn run(_bench: &mut Bench, _way: Way, _number: usize) -> Result<f64, String> {
    Err("none yet".to_owned())
}
