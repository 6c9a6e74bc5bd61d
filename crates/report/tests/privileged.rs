//! A program with more rights than its caller obeys no variable of its caller's.

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use report::settings::variable;

#[test]
#[ignore = "started by the other test"]
fn child() {
    println!("@@ {:?}", report::Settings::of_process().fault);
}

fn said(program: &std::path::Path) -> String {
    let mut command = Command::new(program);
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env(variable::FAULT, "1");
    let output = command.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_once("@@ ").map(|(_, said)| said.lines().next().unwrap_or_default().to_owned()).unwrap_or(text)
}

#[test]
fn a_setuid_program_sees_no_variable() {
    let own = std::env::current_exe().expect("this program");
    assert_eq!(said(&own), "Some(\"1\")");
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can make another user's setuid program");
    }
    // The copy lies beside this program: temporary directories are often mounted nosuid.
    let copy = own.with_extension(format!("setuid-{}", std::process::id()));
    std::fs::copy(&own, &copy).expect("a copy");
    chown(&copy, Some(65533), None).expect("chown");
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).expect("chmod");
    let said = said(&copy);
    std::fs::remove_file(&copy).expect("remove");
    assert_eq!(said, "None");
}
