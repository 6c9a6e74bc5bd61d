//! The cores that the two processes run on.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Two cores that this process may use: different physical ones if there are.
pub fn two_cores() -> Option<(usize, usize)> {
    let allowed = sched_getaffinity(None).ok()?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let (&first, others) = cores.split_first()?;
    let second = others.iter().find(|cpu| physical(**cpu) != physical(first)).or(others.first())?;
    Some((first, *second))
}

/// The package and the core of a processor, as far as the system shows them.
fn physical(cpu: usize) -> [Option<String>; 2] {
    ["physical_package_id", "core_id"]
        .map(|name| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}")).ok())
}

/// Pin this thread to a core, and the threads that it starts later. It is no error if the system refuses.
pub fn pin(core: usize) {
    let _ = try_pin(core);
}

/// As [`pin`].
///
/// # Errors
/// EINVAL: there is no such core, or it is not permitted.
pub fn try_pin(core: usize) -> rustix::io::Result<()> {
    sched_setaffinity(None, &only(core)?)
}

/// Pin all threads of this process to a core. It is no error if the system refuses.
pub fn pin_all(core: usize) {
    let (Ok(set), Ok(threads)) = (only(core), std::fs::read_dir("/proc/self/task")) else { return };
    for thread in threads.flatten() {
        let number = thread.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        if number.is_some() {
            let _ = sched_setaffinity(number, &set);
        }
    }
}

/// The set of one core. EINVAL: there is no such core.
fn only(core: usize) -> rustix::io::Result<CpuSet> {
    if core >= CpuSet::MAX_CPU {
        return Err(rustix::io::Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(set)
}
