//! Programs that were built with a sanitizer whose runtime is a shared library, under `softrnic run`: alone, as the
//! child of a shell, with options of their user's, and without the variables that `run` sets. They are built by gcc;
//! clang's runtimes are static by default, which is easier.

use std::fs;
use std::time::Duration;

use crate::report::Suite;
use crate::run::Program;
use crate::{Options, logs, root, target_dir};

use super::record;
use super::sandbox::{Sandbox, copy};

const KINDS: &[&str] = &["address", "undefined", "thread", "leak"];

/// The limit of a program, which takes a fraction of a second.
const LIMIT: Duration = Duration::from_secs(15);

pub fn sanitized(suite: &mut Suite, options: &Options) {
    let sandbox = match Sandbox::new("sanitized", &[]) {
        Ok(sandbox) => sandbox,
        Err(e) => return suite.fail("preparation", e),
    };
    for kind in KINDS.iter().filter(|kind| options.wants(kind)) {
        let program = match build(&sandbox, kind) {
            Ok(program) => program,
            Err(e) => {
                suite.fail(*kind, e);
                continue;
            }
        };
        let said = |out: &str| (out.contains("ok"), "it does not say ok".to_owned());
        let none: [&str; 0] = [];
        record(suite, kind, sandbox.program(&format!("{kind}-alone"), &program, &none).run(LIMIT), said);
        let child = sandbox.program(&format!("{kind}-child"), "sh", &["-c", &format!("{program}; exit $?")]);
        let user = child.env("ASAN_OPTIONS", "exitcode=99").env("TSAN_OPTIONS", "exitcode=99");
        record(suite, &format!("{kind}, a shell's child, with options"), user.run(LIMIT), said);
        // The library answers what the runtime asks for: without the variables that `run` sets.
        let script = format!("unset ASAN_OPTIONS TSAN_OPTIONS; {program}");
        let without = sandbox.program(&format!("{kind}-without"), "sh", &["-c", &script]);
        record(suite, &format!("{kind}, without the variables of run"), without.run(LIMIT), said);
    }
}

fn build(sandbox: &Sandbox, kind: &str) -> Result<String, String> {
    let folder = target_dir().join("interop/sanitized");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let binary = folder.join(kind);
    let done = Program::new("gcc", logs().join("sanitized").join(format!("{kind}.gcc")))
        .args(["-g", "-O1", &format!("-fsanitize={kind}"), "-o"])
        .args([&binary, &root().join("interop/sanitized/loopback.c")])
        .args(["-libverbs", "-lpthread"])
        .run(LIMIT)
        .map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(format!("does not compile: {}", done.verdict()));
    }
    let there = sandbox.dir().join(kind);
    copy(&binary, &there)?;
    Ok(there.display().to_string())
}
