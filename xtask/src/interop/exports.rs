//! The functions of a C library beside those that its header declares.

use std::collections::BTreeSet;

use crate::target_dir;

/// The functions with these prefixes that a header declares.
pub fn declared<'a>(header: &'a str, prefixes: &[&str]) -> BTreeSet<&'a str> {
    let words = header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
    let called = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name);
    called.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))).collect()
}

/// Compare the functions that a library of the release build exports with those that its header declares.
pub fn compare(library: &str, header: &str, prefixes: &[&str]) -> Result<(), String> {
    let declared = declared(header, prefixes);
    let library = target_dir().join("release").join(library);
    let out = std::process::Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output();
    let out = out.map_err(|e| format!("nm: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let found: BTreeSet<&str> =
        text.lines().filter_map(|line| line.split_whitespace().last()).filter(|name| !name.is_empty()).collect();
    if found == declared {
        return Ok(());
    }
    let difference: Vec<&&str> = found.symmetric_difference(&declared).collect();
    Err(format!("{}: {difference:?} are in one of them only", library.display()))
}
