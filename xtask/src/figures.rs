//! What pages of figures share: medians, and where something was measured.

use std::fs;

/// One number of all the turns.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Where it was measured: processors and kernel.
pub fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (model, kernel) = (read("/proc/cpuinfo"), read("/proc/sys/kernel/osrelease"));
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split(':').nth(1)).unwrap_or("unknown");
    format!("{cpus} processors ({}), Linux {}", model.trim(), kernel.trim())
}

/// The load of the machine in the last minute.
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&[5.0, 1.0, 4.0]), 4.0);
        assert!(median(&[]).is_nan());
    }
}
