//! The links of the documents: every relative link of a Markdown file leads to a file (and heading) that exists, and
//! every name of a file or of something in a file, like `crates/engine/src/run.rs::receive`, is one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders that hold no documents of the project.
const NOT_OURS: &[&str] = &["target", ".git", "node_modules"];
/// Records of what was: the code that they name may be gone.
const RECORDS: &[&str] = &["CHANGELOG.md", "docs/lab"];
/// First folders of a path that is written from the root of the repository.
const ROOTS: &[&str] = &["crates", "xtask", "interop", "fuzz", "docs", ".ci"];

/// Check every Markdown file below `root`. The result is the number of links and names that were checked.
///
/// # Errors
/// Every link and name that leads nowhere, one per line.
pub fn check(root: &Path) -> Result<usize, String> {
    let mut documents = Vec::new();
    find(root, &mut documents).map_err(|e| format!("{}: {e}", root.display()))?;
    let (mut problems, mut seen) = (Vec::new(), 0);
    for document in &documents {
        let text = fs::read_to_string(document).map_err(|e| format!("{}: {e}", document.display()))?;
        let name = document.strip_prefix(root).unwrap_or(document);
        let is_record = RECORDS.iter().any(|record| name.starts_with(record));
        let found = targets(&text);
        for link in &found.links {
            seen += 1;
            if let Err(why) = follow(root, name, &text, link) {
                problems.push(format!("{}: [{}]({}): {why}", name.display(), link.text, link.target));
            }
        }
        for code in found.codes.iter().filter(|code| !is_record && is_name(code)) {
            seen += 1;
            if let Err(why) = look_up_code(root, code) {
                problems.push(format!("{}: `{code}`: {why}", name.display()));
            }
        }
    }
    if problems.is_empty() { Ok(seen) } else { Err(problems.join("\n")) }
}

fn find(folder: &Path, documents: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (entry, path) = entry.map(|entry| (entry.file_type(), entry.path()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A link to a folder is not followed: it could lead out of the repository, or in a circle.
        if entry?.is_dir() {
            if !NOT_OURS.contains(&name.as_ref()) {
                find(&path, documents)?;
            }
        } else if name.ends_with(".md") {
            documents.push(path);
        }
    }
    Ok(())
}

/// A link of a document.
#[derive(Debug, PartialEq)]
struct Link {
    text: String,
    target: String,
}

/// The targets of a document.
#[derive(Debug, Default)]
struct Targets {
    links: Vec<Link>,
    /// Spans of code.
    codes: Vec<String>,
}

/// The links and the spans of code of a document, outside of fenced blocks.
fn targets(text: &str) -> Targets {
    let mut found = Targets::default();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            scan(line, &mut found);
        }
    }
    found
}

fn scan(line: &str, found: &mut Targets) {
    let mut rest = line;
    while let Some(at) = rest.find(['`', ']']) {
        if rest[at..].starts_with('`') {
            let behind = &rest[at + 1..];
            let Some(end) = behind.find('`') else { return };
            found.codes.push(behind[..end].to_owned());
            rest = &behind[end + 1..];
        } else {
            let (before, behind) = (&rest[..at], &rest[at + 1..]);
            if let Some(target) = behind.strip_prefix('(')
                && let Some(end) = target.find(')')
            {
                // The text may hold a span of code, which has been passed already.
                let whole = &line[..line.len() - rest.len() + before.len()];
                let text = whole.rsplit_once('[').map_or(before, |(_, text)| text);
                found.links.push(Link { text: text.to_owned(), target: target[..end].to_owned() });
                rest = &target[end + 1..];
            } else {
                rest = behind;
            }
        }
    }
}

/// Check that a link of the document `name` leads somewhere.
fn follow(root: &Path, name: &Path, text: &str, link: &Link) -> Result<(), String> {
    if ["http://", "https://", "mailto:"].iter().any(|scheme| link.target.starts_with(scheme)) {
        return Ok(());
    }
    let (file, heading) = link.target.split_once('#').map_or((&*link.target, None), |(file, at)| (file, Some(at)));
    let target = match file {
        "" => name.to_owned(),
        file => flat(&name.parent().unwrap_or(Path::new("")).join(file)).ok_or("it leads out of the repository")?,
    };
    if !file.is_empty() && !root.join(&target).exists() {
        return Err("there is no such file".into());
    }
    if let Some(heading) = heading {
        let other = if file.is_empty() { text.to_owned() } else { read(root, &target)? };
        if !headings(&other).contains(heading) {
            return Err("there is no such heading".into());
        }
    }
    // A text like `run.rs::receive` names the target of the link, and an item in it.
    let named = link.text.trim_matches('`');
    match named.split("::").next() {
        Some(file) if file.ends_with(".rs") && !target.ends_with(file) => {
            Err(format!("it leads to {}", target.display()))
        }
        Some(file) if file.ends_with(".rs") => look_up(root, &target, &named[file.len()..]),
        _ => Ok(()),
    }
}

/// The path without `.` and `..`; `None` if it leads above its beginning.
fn flat(path: &Path) -> Option<PathBuf> {
    let mut flat = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if flat.pop() => {}
            Component::Normal(part) => flat.push(part),
            _ => return None,
        }
    }
    Some(flat)
}

fn read(root: &Path, file: &Path) -> Result<String, String> {
    fs::read_to_string(root.join(file)).map_err(|e| e.to_string())
}

/// The anchors of a document's headings, as GitHub makes them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        if let (false, Some(heading)) = (fenced, line.strip_prefix('#')) {
            let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            found.insert(heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect());
        }
    }
    found
}

/// True if a span of code is a file of the repository, or something in one: from the root, or from `crates`.
fn is_name(code: &str) -> bool {
    let path = code.split("::").next().unwrap_or_default();
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let mut folders = path.split('/');
    let (first, second) = (folders.next().unwrap_or_default(), folders.next());
    path.chars().all(known) && (ROOTS.contains(&first) && second.is_some() || second == Some("src"))
}

/// Check that there is such a file or folder, and in it the items of the names behind it, each after a `::`.
fn look_up(root: &Path, file: &Path, names: &str) -> Result<(), String> {
    if !root.join(file).exists() {
        return Err("there is no such file".into());
    }
    if names.is_empty() {
        return Ok(());
    }
    let text = read(root, file)?;
    let mut names = names.split("::").filter(|name| !name.is_empty());
    match names.find(|name| !text.lines().any(|line| defines(line, name))) {
        Some(name) => Err(format!("the file defines no {name}")),
        None => Ok(()),
    }
}

/// [`look_up`] for a span of code that is a name.
fn look_up_code(root: &Path, code: &str) -> Result<(), String> {
    let file = code.split("::").next().unwrap_or_default();
    let in_crates = !ROOTS.contains(&file.split('/').next().unwrap_or_default());
    let path = if in_crates { Path::new("crates").join(file) } else { file.into() };
    look_up(root, &path, &code[file.len()..])
}

/// True if a line of Rust defines this name (a field and a variant too), or begins an implementation for it.
fn defines(line: &str, name: &str) -> bool {
    const WORDS: &[&str] = &["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "macro_rules!"];
    let line = line.split("//").next().unwrap_or_default();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<&str> = line.split(|c: char| !is_part(c) && c != '!').filter(|word| !word.is_empty()).collect();
    let defined = words.windows(2).any(|pair| WORDS.contains(&pair[0]) && pair[1] == name);
    let implemented = words.first() == Some(&"impl") && words.contains(&name);
    let member = line.trim_start().strip_prefix("pub").map_or(line, |rest| rest.trim_start_matches("(crate)"));
    let member = member.trim_start().strip_prefix(name).is_some_and(|rest| {
        let rest = rest.trim_start();
        rest.is_empty() || rest.starts_with([',', '{', '(', '=']) || rest.starts_with(':') && !rest.starts_with("::")
    });
    defined || implemented || member && line.starts_with([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_and_name_leads_somewhere() {
        let seen = check(crate::root()).unwrap_or_else(|e| panic!("{e}"));
        assert!(seen > 100, "only {seen} were looked at");
    }

    /// The walks of CONTRIBUTING.md name functions, each as a link to its file.
    #[test]
    fn the_walks_are_looked_at() {
        let text = fs::read_to_string(crate::root().join("CONTRIBUTING.md")).unwrap();
        let names = targets(&text).links.iter().filter(|link| link.text.contains(".rs::")).count();
        assert!(names > 20, "only {names} names");
    }

    #[test]
    fn links_and_code_are_found() {
        let text = "a [`x`](b.md) and [c d](e.md#f), `g` ![h](i.svg)\n```\n[no](no.md) `no`\n```\n[j] (k), `l";
        let found = targets(text);
        let links: Vec<_> = found.links.iter().map(|link| (&*link.text, &*link.target)).collect();
        assert_eq!(links, [("`x`", "b.md"), ("c d", "e.md#f"), ("h", "i.svg")]);
        assert_eq!(found.codes, ["x", "g"]);
    }

    #[test]
    fn what_leads_nowhere_is_found() {
        let here = |text: &str, target: &str| {
            let link = Link { text: text.into(), target: target.into() };
            follow(crate::root(), Path::new("docs/a.md"), "# One Two\n", &link)
        };
        let good = [("x", "../README.md"), ("x", "#one-two"), ("x", "../README.md#licence"), ("x", "https://a.b/c")];
        for (text, target) in good {
            assert_eq!(here(text, target), Ok(()), "{target}");
        }
        assert_eq!(here("`xtask/src/main.rs::main`", "../xtask/src/main.rs"), Ok(()));
        let bad = [("x", "README.md"), ("x", "#two"), ("x", "../README.md#none"), ("x", "../../README.md")];
        for (text, target) in bad {
            assert!(here(text, target).is_err(), "{target}");
        }
        assert_eq!(here("`main.rs::main`", "../xtask/src/main.rs"), Ok(()));
        for (text, target) in
            [("`xtask/src/main.rs::main`", "run.rs"), ("`run.rs`", "main.rs"), ("`run.rs::none`", "run.rs")]
        {
            assert!(here(text, &format!("../xtask/src/{target}")).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_looked_up() {
        let good = [
            "xtask/src/links.rs",
            "xtask/src/links.rs::check",
            "xtask/src/links.rs::Targets::links",
            "xtask/src",
            "engine/src/run.rs::receive",
        ];
        for name in good {
            assert!(is_name(name) && look_up_code(crate::root(), name) == Ok(()), "{name}");
        }
        for name in [
            "engine/src/none.rs",
            "xtask/src/none.rs",
            "xtask/src/links.rs::no_such_function",
            "xtask/src/links.rs::Targets::none",
        ] {
            assert!(is_name(name) && look_up_code(crate::root(), name).is_err(), "{name}");
        }
        for other in ["engine::platform", "crates", "docs/*.md", "target/release/softrnic"] {
            assert!(!is_name(other), "{other}");
        }
        assert!(defines("    pub(crate) fn go(&self) {", "go") && defines("impl<P> Engine<P> {", "Engine"));
        assert!(defines("    pub len: u32,", "len") && defines("    Full,", "Full"));
        assert!(!defines("    // fn go", "go") && !defines("    go::away();", "go") && !defines("go", "go"));
    }
}
