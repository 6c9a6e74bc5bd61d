//! Support for the tests: a C compiler that finds libibverbs's header, the library under test, and running programs.
#![allow(dead_code)] // each test program uses some of it

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder for the files that the tests make.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// `libsoftrnic.so` of the same profile as the test. `cargo build` puts it into `target/PROFILE`; `cargo test` does not
/// build a library that no test links.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let profile = test.parent().and_then(Path::parent).expect("it lies in target/PROFILE/deps");
    let path = profile.join("libsoftrnic.so");
    let how = if profile.ends_with("release") { "cargo build --release" } else { "cargo build" };
    assert!(path.exists(), "{} is not there: run `{how}` first", path.display());
    path
}

/// A C compiler with libibverbs-dev.
pub struct Compiler;

/// The compiler; `None`, with a message, where libibverbs-dev or a compiler is missing. libtest does not hide what is
/// written to the descriptor itself.
pub fn compiler(test: &str) -> Option<Compiler> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        let source = folder().join("probe.c");
        std::fs::write(&source, "#include <infiniband/verbs.h>\nint main(void) { return ibv_fork_init(); }\n")
            .expect("write the probe");
        let out = Command::new("cc").arg(&source).arg("-o").arg(folder().join("probe")).arg("-libverbs").output();
        out.is_ok_and(|o| o.status.success())
    });
    if !found {
        let _ = writeln!(std::io::stderr(), "SKIPPED {test}: needs a C compiler and libibverbs-dev");
    }
    found.then_some(Compiler)
}

impl Compiler {
    /// Compile one file; a warning is a failure.
    pub fn compile(&self, source: &Path, program: &Path, flags: &[String]) {
        let out = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"])
            .arg(source)
            .arg("-o")
            .arg(program)
            .args(flags) // behind the source: libraries may be among them
            .args(["-libverbs", "-ldl"])
            .output()
            .expect("run cc");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

/// The standard output of a tool.
pub fn tool(name: &str, args: &[&Path]) -> String {
    let out = Command::new(name).args(args).output().unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(out.status.success(), "{name}: {}", said(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// All output of a program.
pub fn said(out: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}
