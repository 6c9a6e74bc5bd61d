//! The C tests: `crates/abi/tests/c/*.c`, programs written against libibverbs-dev's headers and run like any other.
//!
//! Exit status 0 is a pass; 77 a skip, with the reason as the last line. A file may have in its first lines `// flags:
//! ...` (for the compiler), `// args: ...` (for the program; `@lib@` stands for the library's path in both) and `//
//! run: alone` (without `softrnic run`: the test loads the library itself).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::interop::{Place, place};
use crate::report::{Outcome, Suite};
use crate::run::{Finished, Program};
use crate::{Options, logs, root, target_dir};

/// How the programs are compiled.
struct Build {
    name: &'static str,
    flags: &'static [&'static str],
}

const PLAIN: Build = Build { name: "plain", flags: &["-O2"] };

/// The runtimes are linked into the program, because a preloaded library would come before shared ones, which they do
/// not permit.
const SANITIZED: Build = Build {
    name: "sanitized",
    flags: &[
        "-O1",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-static-libasan",
        "-static-libubsan",
    ],
};

const COMMON: &[&str] = &["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"];

const LIMIT: Duration = Duration::from_secs(120);

/// The exit status of a test that skips, as in automake.
const SKIP: i32 = 77;

pub fn plain(suite: &mut Suite, options: &Options) {
    run(suite, options, &PLAIN);
}

pub fn sanitized(suite: &mut Suite, options: &Options) {
    run(suite, options, &SANITIZED);
}

fn run(suite: &mut Suite, options: &Options, build: &Build) {
    let folder = root().join("crates/abi/tests/c");
    let sources = sources(&folder);
    if sources.is_empty() {
        return suite.fail("C tests", format!("no file in {}", folder.display()));
    }
    let place = match place() {
        Ok(place) => place,
        Err(e) => return suite.fail("preparation", e),
    };
    for source in sources {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !options.wants(&name) {
            continue;
        }
        match test(build, &place, &name, &source) {
            Ok((outcome, log)) => suite.push(name, outcome, Some(log)),
            Err(e) => suite.fail(name, e),
        }
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|path| path.extension().is_some_and(|e| e == "c")).collect();
    found.sort();
    found
}

fn test(build: &Build, place: &Place, name: &str, source: &Path) -> Result<(Outcome, PathBuf), String> {
    let folder = target_dir().join("interop/c").join(build.name);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let text = fs::read_to_string(source).map_err(|e| format!("{}: {e}", source.display()))?;
    let binary = folder.join(name);
    let compiled = Program::new("gcc", logs().join("c").join(format!("{name}.{}.gcc", build.name)))
        .args(COMMON)
        .args(build.flags)
        .args([source, Path::new("-o"), &binary])
        .args(note(&text, "flags").map(|word| word.replace("@lib@", &place.library())))
        .args(["-libverbs", "-ldl"])
        .run(LIMIT)
        .map_err(|e| e.to_string())?;
    if !compiled.ok() {
        return Ok((Outcome::Failed(format!("does not compile: {}", first_error(&compiled))), compiled.log));
    }
    let alone = note(&text, "run").any(|word| word == "alone");
    let log = format!("c-{name}.{}", build.name);
    let arguments: Vec<String> = note(&text, "args").map(|word| word.replace("@lib@", &place.library())).collect();
    let done = place
        .bring(&binary)?
        .program(&log, &arguments, alone)
        .env("ASAN_OPTIONS", "abort_on_error=0:detect_leaks=1:exitcode=99")
        .env("UBSAN_OPTIONS", "print_stacktrace=1:exitcode=99")
        .run(LIMIT)
        .map_err(|e| e.to_string())?;
    Ok((outcome(&done), done.log))
}

fn outcome(done: &Finished) -> Outcome {
    match done.status.and_then(|s| s.code()) {
        Some(0) => Outcome::Passed,
        Some(SKIP) => {
            let said = [&done.stdout, &done.stderr].map(|text| text.lines().last().unwrap_or_default());
            let why = said.into_iter().find(|line| !line.is_empty());
            Outcome::Skipped(why.unwrap_or("skipped without a reason").to_owned())
        }
        _ => {
            let sanitizer = done.stderr.lines().find(|line| line.contains("ERROR: ") || line.contains("runtime error"));
            Outcome::Failed(sanitizer.map_or_else(|| done.verdict(), |line| line.trim().to_owned()))
        }
    }
}

fn first_error(done: &Finished) -> String {
    done.stderr.lines().find(|line| line.contains("error")).map_or_else(|| done.verdict(), str::to_owned)
}

/// The words behind `// KEY:` in the first lines of a file.
fn note<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .take(20)
        .filter_map(move |line| line.trim().strip_prefix("//")?.trim().strip_prefix(key)?.strip_prefix(':'))
        .flat_map(str::split_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read() {
        let text = "// What it tests.\n// flags: -lm -O0\n// args: @lib@ 3\nint main(void) {}\n";
        assert_eq!(note(text, "flags").collect::<Vec<_>>(), ["-lm", "-O0"]);
        assert_eq!(note(text, "args").collect::<Vec<_>>(), ["@lib@", "3"]);
        assert_eq!(note(text, "run").count(), 0);
    }
}
