//! Makes the version map and the trampolines from `exports.txt`.
//!
//! Why trampolines: an ELF version can be given to a symbol only where it is defined, and rustc has no attribute for
//! it. So each export is a jump in assembly, under a name of its own that `.symver ..., remove` replaces by the
//! versioned one. A node that the map lacks, or a mapped name without code, is a link error.
//!
//! rustc passes a map of its own to the linker, without node names, with every `#[no_mangle]` function of this crate
//! and of those below it. LLD, which rustc uses by default on x86-64, merges both; names listed explicitly win over
//! `local: *`. So plain `#[no_mangle]` functions (the interposers of libc's functions) stay in the base version, where
//! they answer references to any version of their name (`open@GLIBC_2.2.5`), beside the versioned `ibv_*`.
//! GNU ld refuses to combine the two maps: elsewhere, link with `-Clink-arg=-fuse-ld=lld`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

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

    let table = fs::read_to_string(manifest.join("exports.txt")).expect("exports.txt");
    let nodes = parse(&table);
    fs::write(out.join("exports.rs"), trampolines(&nodes, jump)).expect("write exports.rs");
    let map = out.join("libsoftrnic.map");
    fs::write(&map, version_map(&nodes)).expect("write the map");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    // Its own name, so that whoever needs it (the drop-in libraries) gets the one that is loaded already.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsoftrnic.so");
}

/// Every function is exported once more under the same name in a second node, as an old version that
/// nobody binds to by accident: this is what the drop-in libraries forward to. By the public version they would find
/// themselves.
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

fn trampolines(nodes: &[Node], jump: &str) -> String {
    let mut code = String::new();
    let all = nodes.iter().flat_map(|n| n.exports.iter().map(move |e| (n, e)));
    for (i, (node, (name, at, path))) in all.enumerate() {
        let t = format!("__softrnic_export_{i}");
        let again = format!(
            "\".globl {t}_again\", \".type {t}_again,@function\", \".set {t}_again, {t}\", \".symver {t}_again, \
             {name}@{FORWARD}{}, remove\", ",
            node.name
        );
        writeln!(
            code,
            "core::arch::global_asm!(\".pushsection .text.{t},\\\"ax\\\",@progbits\", \".globl {t}\", \
             \".type {t},@function\", \"{t}: {jump} {{f}}\", \".size {t}, . - {t}\", \
             {again}\".symver {t}, {name}{at}{node}, remove\", \".popsection\", f = sym crate::{path});",
            node = node.name
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
