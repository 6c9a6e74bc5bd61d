//! Build the version map and the trampolines from `exports.txt`.
//!
//! An ELF version can be given to a symbol only where it is defined, and rustc has no attribute for it. So each export
//! is a jump in assembly, under a name of its own that `.symver ..., remove` replaces by the versioned one. A node that
//! the map lacks, or a mapped name without code, is a link error.
//!
//! rustc passes a map of its own to the linker, without node names, with every `#[no_mangle]` function of this crate
//! and of those below it. LLD, which rustc uses by default on x86-64, merges both; names listed explicitly win over
//! `local: *`. So plain `#[no_mangle]` functions (the interposers of libc's functions) stay in the base version, where
//! they answer references to any version of their name (`open@GLIBC_2.2.5`), beside the versioned `ibv_*`. References
//! to the C library's cancellation points are redirected to `src/syscalls.rs` (`--wrap`), by trampolines that are
//! hidden.
//!
//! GNU ld refuses to combine the two maps: elsewhere, link with `-Clink-arg=-fuse-ld=lld`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

/// Functions of the C library for which this library has its own (`src/syscalls.rs`).
const WRAPPED: [&str; 13] = [
    "close",
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "pwrite64",
    "connect",
    "fcntl",
    "fsync",
    "fdatasync",
    "poll",
    "clock_nanosleep",
];

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let jump = match arch.as_str() {
        "x86_64" => "jmp",
        "aarch64" => "b",
        other => panic!("no trampolines for {other}"),
    };
    println!("cargo::rerun-if-changed=exports.txt");
    println!("cargo::rerun-if-changed=owners.txt");

    let table = fs::read_to_string(manifest.join("exports.txt")).expect("exports.txt");
    let nodes = parse(&table);
    let owners = fs::read_to_string(manifest.join("owners.txt")).expect("owners.txt");
    let routes = routes(&nodes, &owners);
    fs::write(out.join("routes.rs"), route_table(&routes)).expect("write routes.rs");
    fs::write(out.join("exports.rs"), trampolines(&nodes, &routes, &arch, jump) + &wrappers(jump))
        .expect("write exports.rs");
    let map = out.join("libsoftrnic.map");
    fs::write(&map, version_map(&nodes)).expect("write the map");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    for name in WRAPPED {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    // The library has a SONAME of its own, so that the drop-in libraries get the one that is loaded already.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsoftrnic.so");
}

/// The node in which every function is exported once more under its name, as an old version that no program binds to by
/// accident. The drop-in libraries forward to this version; by the public one they would find themselves.
const FORWARD: &str = "SOFTRNIC_";

struct Node<'a> {
    name: &'a str,
    exports: Vec<(&'a str, &'a str, &'a str)>,
}

fn parse(table: &str) -> Vec<Node<'_>> {
    let mut nodes: Vec<Node> = Vec::new();
    for line in table.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            nodes.push(Node { name, exports: Vec::new() });
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, at @ ("@" | "@@"), path] = words[..] else { panic!("exports.txt: {line:?}") };
        nodes.last_mut().expect("exports.txt: no node yet").exports.push((name, at, path));
    }
    nodes
}

/// A function that may be a real adapter's to answer: name, node, owner, how it fails, and whether it always does.
struct Route<'a> {
    name: &'a str,
    node: &'a str,
    owner: &'a str,
    fails: &'a str,
    never: bool,
}

/// The routes in `owners.txt`: of the default version of every function of libibverbs, and of those of librdmacm that
/// it names.
fn routes<'a>(nodes: &[Node<'a>], owners: &'a str) -> Vec<Route<'a>> {
    let mut known = BTreeMap::new();
    for line in owners.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(known.insert(words[0], words).is_none(), "owners.txt: {line:?} twice");
    }
    let mut routes = Vec::new();
    for node in nodes {
        for (name, at, _) in &node.exports {
            if *at != "@@" {
                continue;
            }
            let words = match known.remove(name) {
                Some(words) => words,
                None if node.name.starts_with("RDMACM") => continue,
                None => panic!("owners.txt does not say whose objects {name} takes"),
            };
            let (owner, fails, never) = match words[1..] {
                ["-"] => continue,
                [owner, fails] => (owner, fails, false),
                [owner, fails, "never"] => (owner, fails, true),
                _ => panic!("owners.txt: {words:?}"),
            };
            let owner = match owner {
                "device" => "Device",
                "context" => "Context",
                "object" => "Object",
                "event" => "Event",
                "nobody" => "Nobody",
                other => panic!("owners.txt: {other}"),
            };
            let fails = match fails {
                "number" => "Number",
                "pointer" => "Pointer",
                "minus_one" => "MinusOne",
                other => panic!("owners.txt: {other}"),
            };
            routes.push(Route { name, node: node.name, owner, fails, never });
        }
    }
    assert!(known.is_empty(), "owners.txt has functions that exports.txt has not: {:?}", known.keys());
    routes
}

fn route_table(routes: &[Route]) -> String {
    let mut code =
        format!("pub const ROUTE_COUNT: usize = {};\nstatic ROUTES: [Route; ROUTE_COUNT] = [\n", routes.len());
    for Route { name, node, owner, fails, never } in routes {
        writeln!(
            code,
            "    Route {{ name: c\"{name}\", version: c\"{node}\", owner: Owner::{owner}, fails: Fails::{fails}, \
             never: {never}, found: AtomicPtr::new(null_mut()) }},"
        )
        .expect("writing to a string");
    }
    code + "];\n"
}

/// The instructions behind a trampoline's label: a jump. In front of it stand a test of the argument's owner, if there
/// are adapters, and a test whether the call is to fail, if there are faults.
fn body(arch: &str, jump: &str, route: Option<usize>) -> String {
    let lines = match (arch, route) {
        (_, None) => return format!("\"{jump} {{f}}\""),
        ("x86_64", Some(n)) => vec![
            "cmp byte ptr [rip + {present}], 0".to_owned(),
            "jne 2f".into(),
            "jmp {f}".into(),
            format!("2: mov eax, {n}"),
            "call {enter}".into(),
            "test r11, r11".into(),
            "jne 3f".into(),
            "jmp {f}".into(),
            "3: jmp r11".into(),
        ],
        (_, Some(n)) => vec![
            "adrp x16, {present}".to_owned(),
            "ldrb w16, [x16, :lo12:{present}]".into(),
            "cbnz w16, 2f".into(),
            "b {f}".into(),
            "2: stp x30, xzr, [sp, #-16]!".into(),
            format!("mov w16, #{n}"),
            "bl {enter}".into(),
            "ldp x30, xzr, [sp], #16".into(),
            "cbnz x16, 3f".into(),
            "b {f}".into(),
            "3: br x16".into(),
        ],
    };
    lines.iter().map(|line| format!("\"{line}\"")).collect::<Vec<_>>().join(", ")
}

fn trampolines(nodes: &[Node], routes: &[Route], arch: &str, jump: &str) -> String {
    let mut code = String::new();
    let all = nodes.iter().flat_map(|n| n.exports.iter().map(move |e| (n, e)));
    for (i, (node, (name, at, path))) in all.enumerate() {
        let t = format!("__softrnic_export_{i}");
        let again = format!(
            "\".globl {t}_again\", \".type {t}_again,@function\", \".set {t}_again, {t}\", \".symver {t}_again, \
             {name}@{FORWARD}{}, remove\", ",
            node.name
        );
        let route = routes.iter().position(|route| *at == "@@" && route.name == *name && route.node == node.name);
        let body = body(arch, jump, route);
        let symbols = match route {
            Some(_) => "present = sym crate::hardware::PRESENT, enter = sym crate::hardware::enter, ",
            None => "",
        };
        writeln!(
            code,
            "core::arch::global_asm!(\".pushsection .text.{t},\\\"ax\\\",@progbits\", \".globl {t}\", \
             \".type {t},@function\", \"{t}:\", {body}, \".size {t}, . - {t}\", \
             {again}\".symver {t}, {name}{at}{node}, remove\", \".popsection\", {symbols}f = sym crate::{path});",
            node = node.name
        )
        .expect("writing to a string");
    }
    code
}

/// The trampolines to which the linker redirects references to the functions of [`WRAPPED`].
fn wrappers(jump: &str) -> String {
    let mut code = String::new();
    for name in WRAPPED {
        let t = format!("__wrap_{name}");
        writeln!(
            code,
            "core::arch::global_asm!(\".pushsection .text.{t},\\\"ax\\\",@progbits\", \".globl {t}\", \".hidden \
             {t}\", \".type {t},@function\", \"{t}: {jump} {{f}}\", \".size {t}, . - {t}\", \".popsection\", f = sym \
             crate::syscalls::{name});"
        )
        .expect("writing to a string");
    }
    code
}

fn version_map(nodes: &[Node]) -> String {
    let mut map = String::new();
    let mut parent: Option<&str> = None;
    for (i, node) in nodes.iter().enumerate() {
        let private = node.name.contains("PRIVATE");
        writeln!(map, "{} {{\n  global:", node.name).expect("writing to a string");
        for (name, ..) in &node.exports {
            writeln!(map, "    {name};").expect("writing to a string");
        }
        let local = if i == 0 { "  local: *;\n" } else { "" };
        // Nodes of one library inherit from each other, not from those of another.
        let family = |name: &str| name.split('_').next().map(str::to_owned);
        let related = parent.filter(|p| !private && family(p) == family(node.name));
        let inherits = related.map(|p| format!(" {p}")).unwrap_or_default();
        writeln!(map, "{local}}}{inherits};").expect("writing to a string");
        if !private {
            parent = Some(node.name);
        }
    }
    for node in nodes {
        let names: String = node.exports.iter().map(|(name, ..)| format!("    {name};\n")).collect();
        writeln!(map, "{FORWARD}{} {{\n  global:\n{names}}};", node.name).expect("writing to a string");
    }
    map
}
