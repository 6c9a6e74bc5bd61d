//! `softrnic run`: the environment that it gives to the program, and its refusals. The C library's `libm.so.6` stands
//! in for the library, for any library can be preloaded; the real one is tested where it is built.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

const STAND_IN: &str = "libm.so.6";

fn softrnic(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softrnic"));
    command.args(args).env_remove("LD_PRELOAD");
    for (setting, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"SOFTRNIC_")) {
        command.env_remove(setting);
    }
    command
}

fn run(args: &[&str]) -> Output {
    softrnic(&[&["run", "--lib", STAND_IN], args].concat()).output().unwrap()
}

/// Check the exit status, and that the message has all of `words`.
fn refused(output: Output, status: i32, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert!(message.starts_with("softrnic: "), "{message}");
    for word in words {
        assert!(message.contains(word), "no {word} in {message}");
    }
}

/// A file that is removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, content: &[u8], mode: u32) -> Self {
        let path = std::env::temp_dir().join(format!("softrnic-run-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        Temporary(path)
    }

    /// A copy of a program. Another process makes it: if this one had the file open for writing while another test
    /// forks, the copy could not be run.
    fn copy_of(name: &str, program: &str, mode: u32) -> Self {
        let path = std::env::temp_dir().join(format!("softrnic-run-{}-{name}", std::process::id()));
        assert!(Command::new("cp").arg(program).arg(&path).status().unwrap().success());
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        Temporary(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn the_exit_status_is_the_programs() {
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["true"]).status.code(), Some(0));
}

#[test]
fn the_program_gets_its_arguments_its_name_and_the_library() {
    let output =
        run(&["sh", "-c", "echo $0 $1 --; echo $LD_PRELOAD; ls $SOFTRNIC_VIEW/class/infiniband", "a", "--lib"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().collect::<Vec<_>>(), ["a --lib --", STAND_IN, "softrnic0"]);
}

/// The file systems are those of a container in which none can be written.
#[test]
fn temporary_directories_can_be_read_only() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can have file systems of its own");
    }
    let own = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("own-{}", std::process::id()));
    fs::create_dir(&own).unwrap();
    let script = r#"
        for dir in /tmp /dev/shm /var/tmp; do mount --bind $dir $dir && mount -o remount,ro,bind $dir || exit 9; done
        for dir in /tmp /dev/shm /var/tmp; do # what earlier programs made there
            [ ! -d $dir/softrnic-0 ] || mount -t tmpfs -o ro,mode=700 none $dir/softrnic-0 || exit 9
        done
        [ -z "$OWN" ] || mount -t tmpfs -o mode=700 own "$OWN" || exit 9
        exec "$0" run --lib libm.so.6 -- sh -c 'echo "view $SOFTRNIC_VIEW"'
    "#;
    let run = |own: &str, variable: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_softrnic")]).env_remove("LD_PRELOAD");
        for name in ["TMPDIR", "XDG_RUNTIME_DIR", "SOFTRNIC_VIEW"] {
            command.env_remove(name);
        }
        let output = command.env("OWN", own).env(variable, own).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let path = own.to_str().unwrap();
    for variable in ["XDG_RUNTIME_DIR", "TMPDIR"] {
        let (status, said, errors) = run(path, variable);
        assert_eq!((status, errors.as_str()), (Some(0), ""), "{variable}");
        assert!(said.starts_with(&format!("view {path}/softrnic-0")), "{variable}: {said}");
    }
    let (status, said, errors) = run("", "TMPDIR");
    assert_eq!((status, said.as_str()), (Some(0), "view \n"), "{errors}");
    assert!(errors.contains("warning") && errors.contains("TMPDIR"), "{errors}");
    fs::remove_dir(&own).unwrap();
}

#[test]
fn options_become_settings() {
    let script = "echo $SOFTRNIC_SINGLE_COPY $SOFTRNIC_LOG $SOFTRNIC_WITH_HARDWARE $SOFTRNIC_PERMIT_PTRACE";
    let options = ["--no-single-copy", "--log", "error", "--with-hardware", "--permit-ptrace"];
    let output = run(&[&options[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 error 1 1\n");
}

#[test]
fn faults_are_checked_before_the_program_runs() {
    let out = run(&["--fault", "drop:n=3", "--", "sh", "-c", "echo $SOFTRNIC_FAULT"]);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.starts_with("drop:n=3;seed="), "{said}");
    let out = run(&["--fault", "drop:n=3;dorp:n=1", "--", "sh", "-c", "echo ran"]);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(2), &b""[..]), "{message}");
    assert!(message.contains("character 10: unknown fault 'dorp'; there are drop, delay,"), "{message}");
}

#[test]
fn other_preloaded_libraries_stay() {
    let output = softrnic(&["run", "--lib", STAND_IN, "--", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", "libdl.so.2:libm.so.6")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "libm.so.6:libdl.so.2\n");
}

#[test]
fn a_signal_that_the_program_does_not_handle_kills_it() {
    use std::os::unix::process::ExitStatusExt;
    // Rust ignores SIGPIPE; a program that is run must not.
    assert_eq!(run(&["sh", "-c", "kill -PIPE $$"]).status.signal(), Some(13));
}

#[test]
fn programs_that_are_not_there() {
    refused(run(&["no-such-program"]), 127, &["no-such-program", "PATH"]);
    refused(run(&["/no/such/program"]), 127, &["/no/such/program"]);
    refused(run(&["/"]), 126, &["directory"]);
    let file = Temporary::new("plain", b"text", 0o644);
    refused(run(&[file.path()]), 126, &["chmod +x"]);
}

#[test]
fn static_programs_are_refused() {
    // A header of an ELF program for this machine, with no program headers.
    let mut elf = fs::read(env!("CARGO_BIN_EXE_softrnic")).unwrap();
    elf.truncate(64);
    elf[56..58].fill(0);
    let file = Temporary::new("static", &elf, 0o755);
    refused(run(&[file.path()]), 125, &["statically linked", "dynamically"]);
    let script = Temporary::new("static-script", format!("#!{}\n", file.path()).as_bytes(), 0o755);
    refused(run(&[script.path()]), 125, &[script.path(), "the interpreter", file.path(), "statically linked"]);
}

#[test]
fn programs_for_other_machines_are_refused() {
    let mut elf = fs::read(env!("CARGO_BIN_EXE_softrnic")).unwrap();
    elf.truncate(64);
    elf[18] = 243;
    let file = Temporary::new("foreign", &elf, 0o755);
    // The library must be a file with a path, for the program reads its machine.
    let own = env!("CARGO_BIN_EXE_softrnic");
    let output = softrnic(&["run", "--lib", own, file.path()]).output().unwrap();
    refused(output, 125, &["RISC-V", "--lib"]);
}

#[test]
fn setuid_programs_are_refused() {
    let file = Temporary::copy_of("setuid", "/bin/true", 0o4755);
    // A setuid file of this user changes nothing, and runs.
    assert_eq!(run(&[file.path()]).status.code(), Some(0));
    // Only root can make one of another user.
    if std::os::unix::fs::chown(&file.0, Some(65534), None).is_ok() {
        fs::set_permissions(&file.0, PermissionsExt::from_mode(0o4755)).unwrap();
        refused(run(&[file.path()]), 125, &["setuid", "LD_PRELOAD"]);
    }
}

#[test]
fn a_missing_library_says_how_to_make_it() {
    let copy = Temporary::copy_of("alone", env!("CARGO_BIN_EXE_softrnic"), 0o755);
    let output = Command::new(&copy.0).args(["run", "true"]).env_remove("SOFTRNIC_LIB").output().unwrap();
    refused(output, 125, &["libsoftrnic.so", "cargo build --release"]);
    let output = softrnic(&["run", "--lib", "/no/such/lib.so", "true"]).output().unwrap();
    refused(output, 125, &["/no/such/lib.so"]);
}

#[test]
fn captures_that_cannot_be_written_are_refused_before_the_start() {
    refused(run(&["--pcap", "/no/such/folder/file", "touch", "/dev/null"]), 125, &["/no/such/folder/file"]);
    refused(run(&["--pcap", "/", "true"]), 125, &["cannot write packets to /"]);
    assert_eq!(run(&["--snaplen", "64", "true"]).status.code(), Some(2), "without a file");
}

#[test]
fn a_capture_has_an_absolute_name_and_is_there_at_the_start() {
    let file = Temporary::new("capture", b"what was there before", 0o644);
    let dir = file.0.parent().unwrap();
    let name = file.0.file_name().unwrap().to_str().unwrap();
    let script = "cd /; echo $SOFTRNIC_PCAP $SOFTRNIC_PCAP_SNAPLEN; od -An -tx4 -N4 $SOFTRNIC_PCAP";
    let args = ["run", "--lib", STAND_IN, "--pcap", name, "--snaplen", "96", "--", "sh", "-c", script];
    let output = softrnic(&args).current_dir(dir).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().collect::<Vec<_>>(), [format!("{} 96", file.path()), " 0a0d0d0a".to_owned()]);
}

#[test]
fn a_capture_may_be_looked_at_while_it_grows() {
    let output = run(&["--pcap", "-", "--", "sh", "-c", "echo said; exit 3"]);
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()),
        (Some(3), "said\n".to_owned())
    );
    assert_eq!(output.stdout[..4], 0x0a0d_0d0au32.to_ne_bytes());
    assert_eq!(output.stdout[16..24], [0xff; 8], "the length of the section");
    // The program must find no child that it does not know.
    let output = run(&["--pcap", "/dev/null", "--", "sh", "-c", "cat /proc/$$/task/$$/children"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).split_whitespace().count(), 1, "cat alone");
}
