//! The finished library exports what `exports.txt` says, and nothing of libibverbs and librdmacm is missing.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// `name@@VERSION` and `name@VERSION` of the table, and the second name of each that the drop-in libraries forward to.
fn table() -> BTreeSet<String> {
    let text = include_str!("../exports.txt");
    let mut node = "";
    let mut all = BTreeSet::new();
    for line in text.lines().map(|l| l.split('#').next().unwrap_or_default().trim()).filter(|l| !l.is_empty()) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            node = name;
            continue;
        }
        let mut words = line.split_whitespace();
        let (name, at) = (words.next().expect("a name"), words.next().expect("@ or @@"));
        assert!(all.insert(format!("{name}{at}{node}")), "{name}@{node} twice");
        all.insert(format!("{name}@SOFTRNIC_{node}"));
    }
    all
}

/// Defined dynamic symbols, versions themselves left out.
fn exported(library: &Path) -> BTreeSet<String> {
    support::tool("nm", &[Path::new("-D"), Path::new("--defined-only"), Path::new("--with-symbol-versions"), library])
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (name, kind) = (words.next()?, words.next()?);
            (kind != "A").then(|| name.to_owned())
        })
        .collect()
}

#[test]
fn versioned_symbols_are_those_of_the_table() {
    let found: BTreeSet<String> = exported(&support::library()).into_iter().filter(|s| s.contains('@')).collect();
    assert_eq!(found, table());
}

#[test]
fn unversioned_symbols_are_the_interposers() {
    let found = exported(&support::library());
    let plain: Vec<&String> = found.iter().filter(|s| !s.contains('@')).collect();
    assert!(plain.iter().any(|s| *s == "open") && plain.iter().any(|s| *s == "stat"), "{plain:?}");
    // No symbol is Rust's own, and no verb is without a version.
    let strange = |s: &str| ["ibv_", "_R", "_ZN", "__softrnic", "rust"].iter().any(|p| s.starts_with(p));
    assert_eq!(plain.iter().filter(|s| strange(s)).collect::<Vec<_>>(), Vec::<&&String>::new());
}

#[test]
fn the_soname_is_its_own() {
    let dynamic = support::tool("readelf", &[Path::new("-d"), &support::library()]);
    assert!(dynamic.lines().any(|l| l.contains("SONAME") && l.contains("[libsoftrnic.so]")), "{dynamic}");
    assert!(!dynamic.contains("libibverbs"), "{dynamic}");
}

#[test]
fn nothing_of_the_installed_libraries_is_missing() {
    if support::compiler("nothing_of_the_installed_libraries_is_missing").is_none() {
        return;
    }
    let ours = table();
    let mut missing = Vec::new();
    for library in ["libibverbs.so", "librdmacm.so"] {
        let ask = format!("-print-file-name={library}");
        let out = std::process::Command::new("cc").arg(ask).output().expect("run cc");
        let theirs = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
        let public = exported(&theirs).into_iter().filter(|s| s.contains('@') && !s.contains("IBVERBS_PRIVATE"));
        missing.extend(public.filter(|s| !ours.contains(s)));
    }
    assert_eq!(missing, Vec::<String>::new());
}

/// Threads are cancelled at no call that the library makes (pthreads(7) has the list), except where they wait for an
/// event: there the call is `read` (`src/wait.rs`). The library makes the calls that are not in this list with
/// cancellation turned off.
#[test]
fn no_cancellation_point_is_called() {
    const POINTS: &[&str] = &[
        "accept",
        "accept4",
        "clock_nanosleep",
        "close",
        "connect",
        "creat",
        "epoll_wait",
        "epoll_pwait",
        "fdatasync",
        "fsync",
        "msync",
        "nanosleep",
        "poll",
        "ppoll",
        "pread",
        "pread64",
        "preadv",
        "preadv64",
        "pselect",
        "pwrite",
        "pwrite64",
        "pwritev",
        "pwritev64",
        "readv",
        "recv",
        "recvfrom",
        "recvmsg",
        "select",
        "send",
        "sendmsg",
        "sendto",
        "sleep",
        "splice",
        "tee",
        "usleep",
        "vmsplice",
        "wait",
        "waitid",
        "waitpid",
        "write",
        "writev",
    ];
    let imported = support::tool("nm", &[Path::new("-D"), Path::new("--undefined-only"), &support::library()]);
    let imported = imported.lines().filter_map(|line| line.split_whitespace().last()?.split('@').next());
    assert_eq!(imported.filter(|name| POINTS.contains(name)).collect::<Vec<_>>(), Vec::<&str>::new());
}

/// Names that the library's code refers to through the dynamic linker: imported ones, and its own that another library
/// may replace, such as the interposers of the crate `hooks`.
fn references(library: &Path) -> BTreeSet<String> {
    let name = |word: &str| word.split('@').next().unwrap_or_default().to_owned();
    let imported = support::tool("nm", &[Path::new("-D"), Path::new("--undefined-only"), library]);
    let mut all: BTreeSet<String> =
        imported.lines().filter_map(|line| line.split_whitespace().last().map(name)).collect();
    // Offset, info, kind, value, name.
    let relocations = support::tool("readelf", &[Path::new("-rW"), library]);
    all.extend(relocations.lines().filter_map(|line| line.split_whitespace().nth(4).map(name)));
    all
}

/// The library's own sockets and descriptors are no business of another library that stands in front of the C library's
/// functions for sockets, and takes the program's. So it makes these calls as plain system calls: by rustix, by
/// `syscall`, or, where Rust's standard library makes them, by `src/syscalls.rs`.
#[test]
fn no_function_for_sockets_is_called() {
    const CALLS: &[&str] = &[
        "__recv_chk",
        "__recvfrom_chk",
        "__read_chk",
        "__poll_chk",
        "__ppoll_chk",
        "accept",
        "accept4",
        "bind",
        "close",
        "close_range",
        "closefrom",
        "connect",
        "dup",
        "dup2",
        "dup3",
        "epoll_create",
        "epoll_create1",
        "epoll_ctl",
        "epoll_pwait",
        "epoll_pwait2",
        "epoll_wait",
        "fcntl",
        "fcntl64",
        "fdopen",
        "getpeername",
        "getsockname",
        "getsockopt",
        "ioctl",
        "listen",
        "poll",
        "ppoll",
        "pselect",
        "read",
        "readv",
        "recv",
        "recvfrom",
        "recvmmsg",
        "recvmsg",
        "select",
        "send",
        "sendfile",
        "sendfile64",
        "sendmmsg",
        "sendmsg",
        "sendto",
        "setsockopt",
        "shutdown",
        "sockatmark",
        "socket",
        "socketpair",
        "splice",
        "tee",
        "vmsplice",
        "write",
        "writev",
    ];
    // Each with its reason.
    const ALLOWED: &[&str] = &[
        // Of channels that the program waits at: the C library's is a cancellation point (`src/wait.rs`).
        "read",
    ];
    let references = references(&support::library());
    // The test sees what it is to see: an interposer's own name is a relocation, an imported one a symbol.
    assert!(references.contains("open") && references.contains("malloc"), "{references:?}");
    let called: Vec<&str> = CALLS.iter().copied().filter(|name| references.contains(*name)).collect();
    assert_eq!(called, ALLOWED);
}
