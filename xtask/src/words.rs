//! Words, widths and lengths of the sources: what rustfmt and clippy do not look at.
//!
//! `OLD_IDENTIFIERS` and `OLD_WORDS` are the one place for names that were replaced by the field's own
//! (docs/glossary.md has those that stay). Only words that cannot be meant otherwise are listed.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    /// Identifiers, whole, that the code had once: no file may have them as a word.
    const OLD_IDENTIFIERS: &[&str] = &[
        "Belt",
        "BoardMemory",
        "Contest",
        "Course",
        "Duo",
        "ForeignSheet",
        "Gift",
        "OwnSheet",
        "Paper",
        "ReachOp",
        "ShownId",
        "StraightError",
        "Stride",
        "Tally",
        "WindowPlatform",
        "await_haunting",
        "exorcise",
        "is_haunted",
        "is_winded",
        "lend_qp",
        "must_kick_now",
        "owes_kick",
        "platform_mut",
        "poll_alone",
        "straight_above",
        "take_row_back",
        "wind_up",
    ];

    /// Parts of words, in any file and in either case of letters.
    const OLD_WORDS: &[&str] = &[
        "straight cop",
        "haunted",
        "exorcis",
        "foresight",
        "short ways",
        "softrnic_straight",
        "softrnic_adopt",
        "--no-straight",
        "--adopt",
    ];

    /// The pronouns of persons; a process, a program or a peer is a thing.
    const PERSONS: &[&str] = &["he", "him", "his", "himself", "she", "her"];

    /// The pronouns without an antecedent: a comment names the program, process or thread.
    const UNNAMED: &[&str] = &["whoever", "somebody", "someone", "nobody", "anybody", "everybody"];

    /// Folders whose comments have none of [`UNNAMED`]. A folder joins when its comments are rewritten.
    const CLEAN: &[&str] = &[
        "crates/abi/",
        "crates/ask/",
        "crates/cli/",
        "crates/cm/",
        "crates/conformance/",
        "crates/dropin/",
        "crates/engine/",
        "crates/exs/",
        "crates/hooks/",
        "crates/iwarp/",
        "crates/limits/",
        "crates/memory/",
        "crates/netlink/",
        "crates/nic/",
        "crates/rdma/",
        "crates/report/",
        "crates/sys/",
        "crates/taps/",
        "crates/trial/",
        "crates/verbs/",
        "crates/view/",
        "crates/window/",
        "crates/wire/",
        "fuzz/",
        "xtask/",
    ];

    /// Columns: `max_width` of rustfmt.toml, which rustfmt keeps for code only.
    const WIDTH: usize = 120;

    /// Lines of a file, tables and tests included.
    const LINES: usize = 600;

    /// The files under version control with one of these endings, but for this one and the list of what was renamed.
    fn files(endings: &[&str]) -> Vec<(PathBuf, String)> {
        let out = Command::new("git").args(["ls-files", "-z"]).current_dir(crate::root()).output().unwrap();
        assert!(out.status.success(), "git ls-files: {}", String::from_utf8_lossy(&out.stderr));
        let listed = String::from_utf8(out.stdout).unwrap();
        let wanted = |path: &&str| {
            let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending);
            let lists_old_names = ["xtask/src/words.rs", "CHANGELOG.md"].contains(path);
            endings.contains(&ending) && !lists_old_names && !path.ends_with("/bindings.rs")
        };
        let paths = listed.split('\0').filter(wanted);
        // A file that was deleted and not yet committed is still listed.
        paths.filter_map(|path| fs::read_to_string(crate::root().join(path)).ok().map(|t| (path.into(), t))).collect()
    }

    fn words(line: &str) -> impl Iterator<Item = &str> {
        line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
    }

    /// Fail with what `is_bad` finds in the lines of all files.
    fn check(endings: &[&str], is_bad: impl Fn(&str) -> Option<String>) {
        check_below(&[""], endings, is_bad);
    }

    /// Fail with what `is_bad` finds in the lines of the files below these folders.
    fn check_below(folders: &[&str], endings: &[&str], is_bad: impl Fn(&str) -> Option<String>) {
        let mut bad = Vec::new();
        let is_below = |path: &PathBuf| folders.iter().any(|folder| path.to_string_lossy().starts_with(folder));
        for (path, text) in files(endings).into_iter().filter(|(path, _)| is_below(path)) {
            for (number, line) in text.lines().enumerate() {
                bad.extend(is_bad(line).map(|what| format!("{}:{}: {what}", path.display(), number + 1)));
            }
        }
        assert!(bad.is_empty(), "{}", bad.join("\n"));
    }

    #[test]
    fn old_names_do_not_come_back() {
        let old = |line: &str| words(line).find(|word| OLD_IDENTIFIERS.contains(word)).map(str::to_owned);
        check(&["rs", "md", "py", "c", "h", "toml", "sh"], old);
    }

    #[test]
    fn old_words_do_not_come_back() {
        let old = |line: &str| {
            let line = line.to_lowercase();
            OLD_WORDS.iter().find(|word| line.contains(**word)).map(|word| (*word).to_owned())
        };
        check(&["rs", "md", "py", "c", "h", "toml", "sh"], old);
    }

    /// The first of these words in a line's comment, outside of code.
    fn in_comment(line: &str, wanted: &[&str]) -> Option<String> {
        let (_, comment) = line.split_once("//")?;
        let prose = comment.split('`').step_by(2);
        prose.flat_map(words).find(|word| wanted.contains(&word.to_lowercase().as_str())).map(str::to_owned)
    }

    #[test]
    fn comments_are_about_things() {
        check(&["rs", "c", "h"], |line| in_comment(line, PERSONS));
        check_below(CLEAN, &["rs"], |line| in_comment(line, UNNAMED));
    }

    /// A doc comment describes an item by itself, not by comparison with the one above.
    #[test]
    fn doc_comments_have_a_subject() {
        let without = |line: &str| {
            let text = line.trim_start().strip_prefix("/// ").or_else(|| line.trim_start().strip_prefix("//! "))?;
            ["The same ", "The same,", "They,"]
                .iter()
                .find(|start| text.starts_with(**start))
                .map(|start| (*start).to_owned())
        };
        check(&["rs"], without);
    }

    /// Tables that rustfmt is told to skip may have rows of any width: a row in two lines is harder to read.
    #[test]
    fn lines_keep_to_the_width() {
        let mut wide = Vec::new();
        for (path, text) in files(&["rs"]) {
            let mut table_ends: Option<String> = None;
            let mut skip = false;
            for (number, line) in text.lines().enumerate() {
                let indent = &line[..line.len() - line.trim_start().len()];
                match &table_ends {
                    Some(end) if line.starts_with(end.as_str()) => table_ends = None,
                    Some(_) => continue,
                    None if skip && (line.ends_with('[') || line.ends_with('{')) => {
                        let bracket = if line.ends_with('[') { "]" } else { "}" };
                        table_ends = Some(format!("{indent}{bracket}"));
                    }
                    None => {}
                }
                skip = line.contains("#[rustfmt::skip]") || skip && table_ends.is_none() && line.starts_with("//");
                if line.chars().count() > WIDTH {
                    wide.push(format!("{}:{}: {} columns", path.display(), number + 1, line.chars().count()));
                }
            }
        }
        assert!(wide.is_empty(), "{}", wide.join("\n"));
    }

    /// A file that is longer cannot be read at one sitting.
    #[test]
    fn files_can_be_read_at_one_sitting() {
        let long = files(&["rs", "c", "h", "py"]);
        let long = long.iter().map(|(path, text)| (path, text.lines().count())).filter(|(_, lines)| *lines > LINES);
        let long: Vec<String> = long.map(|(path, lines)| format!("{}: {lines} lines", path.display())).collect();
        assert!(long.is_empty(), "{}", long.join("\n"));
    }
}
