//! The machine, as far as figures depend on it, without its name.

use serde::{Deserialize, Serialize};

/// Facts of the machine that a reader needs to compare figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name, as it reports it.
    pub processor: String,
    /// The number of processors that this process may use.
    pub cores: usize,
    /// The size of memory, in GiB.
    pub memory_gib: f64,
    /// System, release and architecture.
    pub system: String,
    /// True if the processor reports that it is emulated by a hypervisor.
    pub virtual_machine: bool,
}

impl Machine {
    /// The machine that this runs on.
    pub fn this() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<f64>().ok())
            .unwrap_or(0.0);
        Machine {
            processor: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_gib: (kib / 1024.0 / 1024.0 * 10.0).round() / 10.0,
            system: format!("{} {} {}", text(uname.sysname()), text(uname.release()), text(uname.machine())),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
        }
    }
}

/// A field of `/proc/cpuinfo`, of the first processor.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { processor, cores, memory_gib, system, virtual_machine } = self;
        let cores = match cores {
            1 => "1 core".to_owned(),
            cores => format!("{cores} cores"),
        };
        let kind = if *virtual_machine { ", a virtual machine" } else { "" };
        write!(f, "{processor}, {cores}, {memory_gib} GiB, {system}{kind}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_cpuinfo() {
        let text =
            "processor\t: 0\nmodel name\t: A: B 3 GHz\nflags\t\t: fpu hypervisor\n\nprocessor\t: 1\nmodel name\t: C\n";
        assert_eq!(field(text, "model name"), Some("A: B 3 GHz"));
        assert_eq!(field(text, "cache"), None);
    }
}
