//! Threads that are cancelled in calls on connections: the program `c/cancel.c`, with the library and without it.

mod pairs;

use std::path::Path;
use std::process::Command;

#[test]
fn threads_are_cancelled_where_they_wait_and_nothing_is_lost() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/cancel.c");
    let program = std::env::temp_dir().join(format!("softrnic-cancel-{}", std::process::id()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Werror", "-pthread", "-fexceptions", "-o"]).arg(&program).arg(source);
    assert!(command.status().unwrap().success(), "the compiler");
    for with_library in [false, true] {
        let mut command = Command::new(&program);
        if with_library {
            command.arg("moves").env("LD_PRELOAD", pairs::library());
        }
        let mut child = command.spawn().unwrap();
        let status = pairs::finish(&mut child, "the program");
        assert!(status.success(), "{}: {status}", if with_library { "with the library" } else { "without" });
    }
    std::fs::remove_file(program).unwrap();
}
