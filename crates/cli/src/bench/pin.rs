//! Which cores the two processes run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two cores that this process may use: different physical ones if there are.
pub fn two_cores() -> Option<(usize, usize)> {
    let allowed = sched_getaffinity(None).ok()?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let (&first, others) = cores.split_first()?;
    let second = others.iter().find(|cpu| physical(**cpu) != physical(first)).or(others.first())?;
    Some((first, *second))
}

/// Package and core, as far as the system tells.
fn physical(cpu: usize) -> [Option<String>; 2] {
    ["physical_package_id", "core_id"]
        .map(|name| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}")).ok())
}

/// Stays on a core from now on, as the threads do that start later. It is no error if the system refuses.
pub fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}
