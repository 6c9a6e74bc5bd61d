//! The C programs of `tests/c`, written against libibverbs-dev's header and run with the library preloaded. Their first
//! lines may hold notes: `// flags: ...` for the compiler, `// args: ...` for the program (`@lib@` is the library), and
//! `// run: alone` for programs that load the library themselves. Exit status 77 is a skip.

mod support;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A limit that no program reaches, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

fn note(text: &str, key: &str) -> Vec<String> {
    text.lines()
        .take(20)
        .filter_map(|line| line.trim().strip_prefix("//")?.trim().strip_prefix(key)?.strip_prefix(':'))
        .flat_map(str::split_whitespace)
        .map(|word| word.replace("@lib@", &support::library().to_string_lossy()))
        .collect()
}

fn run(name: &str) {
    let Some(compiler) = support::compiler(name) else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let text = std::fs::read_to_string(&source).expect("the source");
    let program = support::folder().join(name);
    compiler.compile(&source, &program, &note(&text, "flags"));

    let mut command = Command::new(&program);
    command.args(note(&text, "args"));
    if note(&text, "run") != ["alone"] {
        command.env("LD_PRELOAD", support::library());
    }
    let log = support::folder().join(name).with_extension("log");
    let out = std::fs::File::create(&log).expect("a log");
    command.stdout(out.try_clone().expect("the log twice")).stderr(out);
    let mut child = command.spawn().expect("run it");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for it") {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    match status.and_then(|s| s.code()) {
        Some(0) => {}
        Some(77) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {}", said.lines().last().unwrap_or_default());
        }
        _ => panic!("{name}: {status:?}\n{said}"),
    }
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn none_is_forgotten() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
            let mut there: Vec<String> = std::fs::read_dir(folder)
                .expect("the folder")
                .flatten()
                .map(|e| e.path())
                .filter(|p| p.extension().is_some_and(|e| e == "c"))
                .filter_map(|p| Some(p.file_stem()?.to_string_lossy().into_owned()))
                .collect();
            there.sort();
            let mut known = vec![$(stringify!($name)),*];
            known.sort_unstable();
            assert_eq!(there, known);
        }
    };
}

programs!(
    across badargs cancel child cqx devices disconnect dlvsym files handles ignored infiniband link outlived patcher
    programs queues share shared tables vanish wr
);
