//! The kernel's permission for processes of one user to copy out of and into each other's memory (process_vm_readv(2)).
//! With the Yama security module, it depends on `/proc/sys/kernel/yama/ptrace_scope`
//! (Documentation/admin-guide/LSM/Yama.rst in the kernel's sources).

use rustix::process::{PTracer, geteuid, set_ptracer};

/// The file with the setting.
pub const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// An obstacle, for which the text also names a remedy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// Scope 1: a process reaches its own children only, and processes that permit it.
    OnlyChildren,
    /// Scope 2: only root, or a process with CAP_SYS_PTRACE.
    OnlyRoot,
    /// Scope 3: no process, until the machine is started again.
    Nobody,
}

impl Obstacle {
    /// The obstacle of a scope for a user; `None` if there is none.
    fn of(scope: &str, root: bool) -> Option<Self> {
        match (scope.trim(), root) {
            ("1", false) => Some(Obstacle::OnlyChildren),
            ("2", false) => Some(Obstacle::OnlyRoot),
            ("3", _) => Some(Obstacle::Nobody),
            _ => None,
        }
    }

    /// The obstacle for this process's user. Other things may forbid copies as well (a seccomp filter, other
    /// namespaces).
    pub fn here() -> Option<Self> {
        Self::of(&std::fs::read_to_string(SCOPE).ok()?, geteuid().is_root())
    }

    /// True if [`permit`] removes the obstacle.
    pub fn is_lifted_by_permission(self) -> bool {
        self == Obstacle::OnlyChildren
    }
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (scope, who, remedy) = match self {
            Obstacle::OnlyChildren => (
                1,
                "a process may only reach its own children",
                "softrnic run --permit-ptrace changes that for a program, `sysctl kernel.yama.ptrace_scope=0` as root \
                 for all",
            ),
            Obstacle::OnlyRoot => (2, "only root may", "`sysctl kernel.yama.ptrace_scope=0` as root changes that"),
            Obstacle::Nobody => (3, "no process may", "it stays so until the machine is started again"),
        };
        write!(f, "{SCOPE} is {scope}, so {who} ({remedy})")
    }
}

/// Permit every process of this user to reach this one (prctl(2), PR_SET_PTRACER). Without Yama there is nothing to
/// permit.
pub fn permit() {
    let _ = set_ptracer(PTracer::Any);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes() {
        for (scope, root, obstacle) in [
            ("0\n", false, None),
            ("1\n", false, Some(Obstacle::OnlyChildren)),
            ("1\n", true, None),
            ("2\n", false, Some(Obstacle::OnlyRoot)),
            ("2\n", true, None),
            ("3\n", false, Some(Obstacle::Nobody)),
            ("3\n", true, Some(Obstacle::Nobody)),
            ("", false, None),
        ] {
            assert_eq!(Obstacle::of(scope, root), obstacle, "{scope:?} {root}");
        }
        assert!(Obstacle::OnlyChildren.to_string().contains("ptrace_scope is 1"));
        assert!(Obstacle::OnlyChildren.is_lifted_by_permission() && !Obstacle::OnlyRoot.is_lifted_by_permission());
    }
}
