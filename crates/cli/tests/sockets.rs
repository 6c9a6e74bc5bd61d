//! `softrnic top --sockets` and `softrnic doctor` about a process that tells of its TCP connections: this one, which
//! writes the file that the library under `softrnic sock` would keep.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;

use serde_json::Value;
use sock::status::{self, ENTRIES, FILES, LEN, MAGIC, NAME, State, WORDS};

/// The exit status and the output, which is one JSON value.
fn json(args: &[&str]) -> (Option<i32>, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_softrnic")).args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}{error}"));
    (output.status.code(), value)
}

/// A connection as it must be shown: its end, whether it has moved, and why not.
fn check(shown: &Value, end: &TcpStream, is_moved: bool, why: &str) {
    let address = |address: SocketAddr| Value::from(address.to_string());
    assert_eq!(shown["fd"], end.as_raw_fd(), "{shown}");
    assert_eq!(
        (&shown["local"], &shown["remote"]),
        (&address(end.local_addr().unwrap()), &address(end.peer_addr().unwrap()))
    );
    let way = if is_moved { "memory" } else { "TCP" };
    assert_eq!((&shown["sends"], &shown["receives"], &shown["why"]), (&way.into(), &way.into(), &why.into()));
    let counts = ["sent", "received", "wakes", "sleeps", "stalls"].map(|name| shown[name].as_u64().unwrap());
    assert_eq!(counts, if is_moved { [1000, 2000, 3, 4, 5] } else { [0; 5] }, "{shown}");
}

#[test]
fn top_and_doctor_show_the_connections_of_a_process() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let pid = std::process::id();
    let number = pid.to_string();

    // Without the file nothing is known of it.
    let (code, nothing) = json(&["doctor", "--json", &number]);
    assert_eq!((code, &nothing), (Some(2), &Value::Array(Vec::new())));

    let file = rustix::fs::memfd_create(NAME, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = std::fs::File::from(file);
    file.set_len(LEN as u64).unwrap();
    file.write_all_at(&MAGIC.to_ne_bytes(), 0).unwrap();
    let slot = 7;
    let state = |end: &TcpStream, word: u32| {
        let at = FILES + 4 * usize::try_from(end.as_raw_fd()).unwrap();
        file.write_all_at(&word.to_ne_bytes(), at as u64).unwrap();
    };
    state(&near, State::Moved as u32 | slot << 8);
    state(&far, State::Rule as u32);
    for (at, word) in [0x101_u64, 1000, 2000, 3, 4, 5].into_iter().enumerate() {
        let at = ENTRIES + 8 * (WORDS * slot as usize + at);
        file.write_all_at(&word.to_ne_bytes(), at as u64).unwrap();
    }
    let mut bytes = vec![0; LEN];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(status::parse(&bytes).map(|all| all.len()), Some(2));

    let (code, top) = json(&["top", "--sockets", "--once", "--json", &number]);
    assert_eq!((code, top.as_array().map(Vec::len)), (Some(0), Some(2)), "{top}");
    let (code, doctor) = json(&["doctor", "--json", &number]);
    assert_eq!((code, doctor.as_array().map(Vec::len)), (Some(0), Some(1)), "{doctor}");
    assert_eq!(doctor[0]["pid"], pid);
    assert_eq!(doctor[0]["connections"], top);
    assert!(doctor[0].get("report").is_none(), "it has no device: {doctor}");
    let shown = |end: &TcpStream| top.as_array().unwrap().iter().find(|one| one["fd"] == end.as_raw_fd()).unwrap();
    check(shown(&near), &near, true, "");
    check(shown(&far), &far, false, "a rule says tcp");

    let output = Command::new(env!("CARGO_BIN_EXE_softrnic")).args(["doctor", &number]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("({pid}): 1 of 2 TCP connections in memory\n")), "{text}");
    assert!(text.contains("a rule says tcp") && output.status.success(), "{text}");
}
