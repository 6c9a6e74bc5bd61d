//! The lack of a resource, and how it comes about.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde::{Deserialize, Serialize};

/// The resource that a process lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lack {
    /// Descriptors from this number on (`RLIMIT_NOFILE`).
    Descriptors(u64),
    /// Address space beyond what it has and so many bytes (`RLIMIT_AS`).
    Memory(u64),
    /// Files, memfds included, of more than so many bytes (`RLIMIT_FSIZE`); SIGXFSZ ends a program that tries.
    FileSize(u64),
    /// A group of system calls, which then fail as in the kernel or a sandbox.
    Calls(Calls),
}

/// System calls that sandboxes forbid together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Calls {
    Memfd,
    Eventfd,
    Epoll,
    Timerfd,
    Threads,
    Sockets,
    Pidfd,
    ProcessVm,
    Madvise,
    Mappings,
}

impl Calls {
    /// The calls, and their errno.
    fn list(self) -> (&'static [i64], i32) {
        match self {
            Calls::Memfd => (&[libc::SYS_memfd_create], libc::EPERM),
            Calls::Eventfd => (&[libc::SYS_eventfd2, libc::SYS_eventfd], libc::EPERM),
            Calls::Epoll => (&[libc::SYS_epoll_create1, libc::SYS_epoll_create, libc::SYS_epoll_ctl], libc::EPERM),
            Calls::Timerfd => (&[libc::SYS_timerfd_create, libc::SYS_timerfd_settime], libc::EPERM),
            // As for a user with too many processes (RLIMIT_NPROC).
            Calls::Threads => (&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN),
            Calls::Sockets => (&[libc::SYS_socket], libc::EACCES),
            Calls::Pidfd => (&[libc::SYS_pidfd_open], libc::EPERM),
            Calls::ProcessVm => (&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev], libc::EPERM),
            Calls::Madvise => (&[libc::SYS_madvise], libc::EINVAL),
            // The memory that is mapped already may be enough for small things.
            Calls::Mappings => (&[libc::SYS_mmap], libc::ENOMEM),
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::Descriptors(below) => write!(f, "descriptors below {below}"),
            Lack::Memory(more) => write!(f, "{} KiB more of memory", more / 1024),
            Lack::FileSize(most) => write!(f, "files of at most {} KiB", most / 1024),
            Lack::Calls(calls) => write!(f, "without {calls:?}"),
        }
    }
}

/// A guard that restores the limit that was changed.
pub struct Lifted(Option<(Resource, Rlimit)>);

impl Lack {
    /// Impose the lack on this process from here on.
    ///
    /// # Panics
    /// If that cannot be brought about.
    pub fn impose(self) -> Lifted {
        let limit = |resource, most: u64| {
            let before = getrlimit(resource);
            setrlimit(resource, Rlimit { current: Some(most), ..before }).expect("setrlimit");
            Lifted(Some((resource, before)))
        };
        match self {
            Lack::Descriptors(below) => limit(Resource::Nofile, below),
            Lack::Memory(more) => limit(Resource::As, address_space() + more),
            Lack::FileSize(most) => limit(Resource::Fsize, most),
            Lack::Calls(calls) => {
                let (list, errno) = calls.list();
                let rules = list.iter().map(|call| (*call, Vec::new())).collect::<BTreeMap<_, _>>();
                let arch = std::env::consts::ARCH.try_into().expect("a known processor");
                let answer = SeccompAction::Errno(errno as u32);
                let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).expect("a filter");
                let program: BpfProgram = filter.try_into().expect("a filter");
                seccompiler::apply_filter_all_threads(&program).expect("seccomp(2)");
                Lifted(None)
            }
        }
    }
}

impl Lifted {
    /// Lift the lack. False if it cannot be lifted.
    ///
    /// # Panics
    /// If the limit cannot be lifted.
    pub fn lift(self) -> bool {
        self.0.map(|(resource, before)| setrlimit(resource, before).expect("setrlimit")).is_some()
    }
}

fn address_space() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("/proc/self/statm");
    let pages: u64 = statm.split(' ').next().and_then(|n| n.parse().ok()).expect("a number of pages");
    pages * rustix::param::page_size() as u64
}
