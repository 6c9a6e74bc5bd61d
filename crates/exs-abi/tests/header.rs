//! The numbers of the library are those of its header. The sizes and places of structures are held by assertions on
//! both sides: here in `src/ctypes.rs`, in C in `tests/c/arguments.c`.

#[path = "../src/ctypes.rs"]
#[allow(dead_code, reason = "the library uses them")]
mod ctypes;

use ctypes::*;

const HEADER: &str = include_str!("../include/sys/exs.h");

/// The number of a `#define`, which may be in parentheses behind a type.
fn number(name: &str) -> Option<i64> {
    let define = format!("#define {name} ");
    let line = HEADER.lines().find(|line| line.starts_with(&define))?;
    let value = line[define.len()..].split_whitespace().next()?;
    let value = value.rsplit(')').find(|part| !part.is_empty())?;
    match value.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
}

macro_rules! compare {
    ($($name:ident)*) => {
        [$((concat!("EXS_", stringify!($name)), $name as i64)),*]
    };
}

#[test]
fn numbers_are_those_of_the_header() {
    let ours = compare! {
        VERSION EVT_POLL EVT_CONNECT EVT_ACCEPT EVT_SEND EVT_RECV EVT_SENDMSG EVT_RECVMSG EVT_SENDFILE EVT_SENDTIMEOUT
        EVT_RECVTIMEOUT EVT_SHUTDOWN EVT_CLOSE EVTVEC_MAX EOF PERSISTENT QATTR_DEPTH QATTR_SIGNAL QATTR_EVENTS
        QATTR_WAIT WAIT_ADAPTIVE WAIT_NOTIFY WAIT_BUSY_POLL F_GETSMALL F_SETSMALL F_GETCREDITS F_SETCREDITS F_GETTIMEOUT
        F_SETTIMEOUT
    };
    for (name, value) in ours {
        assert_eq!(number(name), Some(value), "{name}");
    }
    assert_eq!(number("EXS_QHANDLE_INVALID"), Some(INVALID.into()));
    assert_eq!(number("EXS_MHANDLE_INVALID"), Some(INVALID.into()));
    assert_eq!(number("EXS_MHANDLE_UNREGISTERED"), Some(UNREGISTERED.into()));
    let defined = HEADER.lines().filter(|line| line.starts_with("#define EXS_")).count();
    assert_eq!(defined, ours.len() + 3, "a number of the header is not compared");
}
