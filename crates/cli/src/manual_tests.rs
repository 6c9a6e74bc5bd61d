//! Help, man pages and completion describe everything that exists, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The files with one of these endings below a folder.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                found.extend(files(&path, endings));
            }
        } else if path.extension().is_some_and(|ending| endings.iter().any(|e| ending == *e)) {
            found.push(path);
        }
    }
    found
}

/// Every `SOFTRNIC_NAME` in a text. A name that ends in `_` or `*` is the beginning of several.
fn variables_in(text: &str) -> BTreeSet<String> {
    const START: &str = "SOFTRNIC_";
    text.match_indices(START)
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
        .map(|(at, _)| {
            let end = text[at..].find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(text.len() - at);
            text[at..at + end].to_owned()
        })
        .filter(|name| !name.ends_with('_'))
        .collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn declared() -> BTreeSet<String> {
    settings::SETTINGS.iter().map(|setting| setting.name.to_owned()).collect()
}

/// True for code that runs in tests only.
fn is_test(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.contains("/tests/") || text.ends_with("tests.rs") || text.contains("/conformance/")
}

/// Names that begin like a variable's and are none: version nodes of libsoftrnic.so, and names of C headers.
const OTHERS: [&str; 3] = ["SOFTRNIC_IBVERBS", "SOFTRNIC_RDMACM", "SOFTRNIC_DV_"];

#[test]
fn every_variable_of_the_sources_is_declared_and_the_other_way_round() {
    let (mut used, mut tests) = (BTreeSet::new(), BTreeSet::new());
    for path in files(&root().join("crates"), &["rs", "c", "h"]) {
        // The declarations themselves prove nothing.
        if path.ends_with("cli/src/settings.rs") || path.ends_with("cli/src/manual_tests.rs") {
            continue;
        }
        let found = variables_in(&read(&path)).into_iter().filter(|name| !OTHERS.iter().any(|o| name.starts_with(o)));
        if is_test(&path) { tests.extend(found) } else { used.extend(found) }
    }
    for folder in ["xtask", "interop", "fuzz"] {
        for path in files(&root().join(folder), &["rs", "c", "py", "sh"]) {
            tests.extend(variables_in(&read(&path)));
        }
    }
    let declared = declared();
    let undeclared: Vec<_> = used.difference(&declared).collect();
    assert!(undeclared.is_empty(), "not in settings.rs: {undeclared:?}");
    let unused: Vec<_> = declared.difference(&used).collect();
    assert!(unused.is_empty(), "in settings.rs, but nothing reads them: {unused:?}");
    // The tests' own variables are described where the tests are.
    let testing = variables_in(&read(&root().join("docs/testing.md")));
    let undescribed: Vec<_> =
        tests.iter().filter(|name| !declared.contains(*name) && !testing.contains(*name)).collect();
    assert!(undescribed.is_empty(), "neither in settings.rs nor in docs/testing.md: {undescribed:?}");
    let gone: Vec<_> = testing.iter().filter(|name| !declared.contains(*name) && !tests.contains(*name)).collect();
    assert!(gone.is_empty(), "in docs/testing.md, but nothing reads them: {gone:?}");
    for document in ["README.md", "ARCHITECTURE.md", "interop/README.md"] {
        let named = variables_in(&read(&root().join(document)));
        let gone: Vec<_> = named.iter().filter(|name| !declared.contains(*name) && !tests.contains(*name)).collect();
        assert!(gone.is_empty(), "in {document}, but nothing reads them: {gone:?}");
    }
}

/// The text that a terminal or man(1) would show: without roff's escapes.
fn plain(page: &Page) -> String {
    let text = String::from_utf8(page.text.clone()).unwrap();
    ["\\fB", "\\fI", "\\fR"].iter().fold(text.replace("\\-", "-"), |text, escape| text.replace(escape, ""))
}

fn options(text: &str) -> BTreeSet<String> {
    text.split(|c: char| c.is_whitespace() || "[](),=;`'\"".contains(c))
        .filter(|word| {
            word.len() > 2 && word.starts_with("--") && word[2..].starts_with(|c: char| c.is_ascii_lowercase())
        })
        .map(|word| word.trim_end_matches(['.', ':']).to_owned())
        .collect()
}

#[test]
fn pages_and_help_have_every_option_and_no_other() {
    let pages = pages().unwrap();
    let mut command = command_line();
    command.build();
    let mut all = BTreeSet::from(["--help".to_owned(), "--version".to_owned()]);
    for sub in command.get_subcommands().flat_map(|sub| std::iter::once(sub).chain(sub.get_subcommands())) {
        all.extend(sub.get_arguments().filter_map(|arg| arg.get_long()).map(|name| format!("--{name}")));
    }
    let named = |sub: &clap::Command| (sub.get_name().to_owned(), sub.clone());
    let mut subs: Vec<(String, clap::Command)> = commands(&command).map(named).collect();
    for sub in commands(&command) {
        subs.extend(commands(sub).map(|part| (format!("{}-{}", sub.get_name(), part.get_name()), part.clone())));
    }
    assert!(subs.iter().any(|(name, _)| name == "group-serve"));
    for (name, sub) in subs {
        let page =
            pages.iter().find(|page| page.file == format!("softrnic-{name}.1")).unwrap_or_else(|| panic!("{name}"));
        let page = plain(page);
        let help = sub.clone().render_long_help().to_string();
        let shown = sub.get_arguments().filter(|arg| !arg.is_hide_set());
        let theirs: BTreeSet<String> = shown.filter_map(|arg| arg.get_long()).map(|name| format!("--{name}")).collect();
        for text in [&page, &help] {
            assert_eq!(theirs.difference(&options(text)).collect::<Vec<_>>(), Vec::<&String>::new(), "{name}: {text}");
            let strange: Vec<String> = options(text).difference(&all).cloned().collect();
            assert_eq!(strange, Vec::<String>::new(), "{name}: {text}");
        }
        for section in sections(&name) {
            assert!(help.contains(section.title) && page.contains(&section.title.to_uppercase()), "{}", section.title);
        }
    }
    let commands: BTreeSet<&str> = SECTIONS.iter().map(|section| section.command).collect();
    for command_name in commands {
        assert!(command.find_subcommand(command_name).is_some(), "sections for {command_name}, which is no command");
    }
}

#[test]
fn variables_are_on_their_page_in_the_help_and_nowhere_else() {
    let pages = pages().unwrap();
    let page = pages.iter().find(|page| page.file == "softrnic.7").unwrap();
    assert_eq!(variables_in(&plain(page)), declared());
    assert_eq!(variables_in(&command_line().render_long_help().to_string()), declared());
    for page in &pages {
        let named = variables_in(&plain(page));
        assert_eq!(named.difference(&declared()).collect::<Vec<_>>(), Vec::<&String>::new(), "{}", page.file);
    }
}

#[test]
fn lines_of_the_help_fit_a_terminal() {
    for name in ["run", "sock", "doctor", "top", "bench", "install"] {
        let text = help(name);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        // Lines that are shown as they are have a margin.
        assert!(text.lines().filter(|line| line.contains("softrnic ")).all(|line| line.starts_with("  ")), "{text}");
    }
}

#[test]
fn every_fault_and_every_key_is_described() {
    use taps::fault::spec::{FAULTS, Key, Op};
    let text = sections("run").find(|section| section.title == "Faults").expect("there is one").text;
    for about in FAULTS {
        assert!(text.contains(&format!("\n  {:16}", about.name)), "{}", about.name);
    }
    for (name, _) in Key::ALL {
        assert!(text.contains(&format!("{name}=")), "{name}=");
    }
    for (name, _) in Op::ALL {
        assert!(text.contains(&format!(" {name}")), "op={name}");
    }
}

#[test]
fn the_command_names_the_page_of_the_rules() {
    let pages = pages().unwrap();
    let text = |file: &str| plain(pages.iter().find(|page| page.file == file).unwrap_or_else(|| panic!("{file}")));
    assert!(text("softrnic-sock.conf.5").contains("softrnic-sock(1)"));
    let command = text("softrnic-sock.1");
    let (before, beside) = command.split_once("SEE ALSO").unwrap();
    assert!(before.contains("softrnic-sock.conf(5)") && beside.contains("softrnic-sock.conf(5)"), "{command}");
}
