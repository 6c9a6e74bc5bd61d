//! The examples of `crates/rdma`, run on the library under test: within one process, and between two.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use conformance::{library, until};

/// Each example, and what its two sides say.
const EXAMPLES: [(&str, &[&str], &[&str]); 3] = [
    ("send_recv", &["the server received \"ping\""], &["the client received \"pong\""]),
    (
        "one_sided",
        &["the counter is 42", "the memory has \"written by the client"],
        &["the counter was 0", "the counter was 40", "the counter was 41", "the counter was 42"],
    ),
    ("server", &["16 connections were served, up to 16 at a time"], &["160 answers came back"]),
];

/// The program of an example: `cargo test` builds those of all packages that it tests.
fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("the path of this program");
    let path = this.ancestors().nth(2).expect("target/PROFILE").join("examples").join(name);
    assert!(path.is_file(), "there is no {}: run `cargo build --workspace --examples` first", path.display());
    path
}

/// An example with the library preloaded.
fn start(name: &str, words: &[&str]) -> Child {
    let mut command = Command::new(program(name));
    command.args(words).env("LD_PRELOAD", library().path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// What it says, once it has ended well.
fn finish(name: &str, mut child: Child, mut said: String) -> String {
    let status = until(name, || child.try_wait().expect("wait"));
    child.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
    let mut errors = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
    assert!(status.success(), "{name}: {status}\n{said}{errors}");
    said
}

fn says(name: &str, said: &str, lines: &[&str]) {
    for line in lines {
        assert!(said.lines().any(|said| said.starts_with(line)), "{name} does not say {line:?}:\n{said}");
    }
}

#[test]
fn examples_run_within_one_process() {
    for (name, served, called) in EXAMPLES {
        let said = finish(name, start(name, &[]), String::new());
        says(name, &said, served);
        says(name, &said, called);
    }
}

#[test]
fn examples_run_between_two_processes() {
    for (name, served, called) in EXAMPLES {
        let mut server = start(name, &["serve", "127.0.0.1:0"]);
        let mut out = BufReader::new(server.stdout.take().expect("piped"));
        let mut said = String::new();
        out.read_line(&mut said).expect("text");
        let addr =
            said.trim().strip_prefix("listening at ").unwrap_or_else(|| panic!("{name} says {said:?}")).to_owned();
        let client = start(name, &["call", &addr]);
        let answers = finish(name, client, String::new());
        says(name, &answers, called);
        // What the reader has taken ahead is the beginning.
        said += std::str::from_utf8(out.buffer()).expect("text");
        server.stdout = Some(out.into_inner());
        says(name, &finish(name, server, said), served);
    }
}

#[test]
fn a_library_that_is_not_in_the_process_is_found_by_its_name() {
    let folder = std::env::temp_dir().join(format!("softrnic-rdma-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let _removed = Removed(&folder);
    symlink(library().path(), folder.join(rdma::Library::SYSTEM)).expect("a link");
    let mut command = Command::new(program("send_recv"));
    command.env("LD_LIBRARY_PATH", &folder).env_remove("LD_PRELOAD");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let said = finish("send_recv", child, String::new());
    says("send_recv", &said, EXAMPLES[0].1);
}

/// A folder that goes with the test.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0);
    }
}

#[test]
fn a_wrong_command_line_is_told() {
    for (name, ..) in EXAMPLES {
        for words in [&["serve"][..], &["call", "nowhere"], &["sing", "127.0.0.1:0"]] {
            let mut child = start(name, words);
            let status = until(name, || child.try_wait().expect("wait"));
            assert_eq!(status.code(), Some(1), "{name} {words:?}");
        }
    }
}
