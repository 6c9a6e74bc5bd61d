//! Citations of the documents that define iWARP: one form, which tools can read, and sections that exist.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The documents and their sections, by their tables of contents.
    #[rustfmt::skip]
    const SECTIONS: &[(u32, &str)] = &[
        (5040, "1 1.1 1.2 1.3 2 2.1 2.2 2.3 2.4 3 3.1 3.2 4 4.1 4.2 4.3 4.4 4.5 4.6 4.7 4.8 5 5.1 5.2 5.2.1 5.2.2 \
            5.3 5.4 5.5 6 6.1 6.2 6.2.1 7 7.1 7.2 8 8.1 8.1.1 8.1.2 8.2 8.2.1 8.2.2 9 10 10.1 10.2"),
        (5041, "1 1.1 1.2 1.3 2 2.1 2.2 2.3 3 4 4.1 4.2 4.3 4.4 5 5.1 5.1.1 5.1.2 5.2 5.3 5.4 6 6.1 6.2 6.2.1 6.2.2 \
            7 7.1 7.2 8 8.1 8.2 8.3 8.3.1 8.3.2 8.4 8.4.1 8.4.2 9 10 10.1 10.2"),
        (5044, "1 1.1 1.2 2 3 4 4.1 4.2 4.3 4.4 4.5 5 5.1 5.2 6 7 7.1 7.1.1 7.1.2 7.1.3 7.1.4 7.1.4.1 7.1.4.2 7.1.5 \
            7.2 8 9 9.1 9.1.1 9.1.1.1 9.1.1.2 9.1.1.3 9.1.2 9.2 9.3 9.4 10"),
        (6581, "1 1.1 1.2 2 3 4 4.1 4.2 4.3 4.4 4.4.1 4.4.2 4.4.3 5 6 7 8 9 9.1 9.2 9.3 10 11 12 13 14 14.1 14.2"),
        (7306, "1 1.1 2 3 4 4.1 4.2 5 5.1 5.1.1 5.1.2 5.2 5.2.1 5.2.2 5.3 5.4 6 6.1 6.2 6.3 6.4 7 8 8.1 8.2 9 10 \
            10.1 10.2 11 11.1 11.2 12"),
    ];

    /// The sources that fulfil the rules of these documents.
    const SOURCES: &[&str] =
        &["crates/iwarp/src", "crates/wire/src", "crates/engine/src/rdmap", "crates/cm/src", "crates/nic/src"];

    /// The sections whose rules the sources are known to fulfil, each cited where they do.
    const CITED: &[(u32, &str)] = &[
        (5040, "4.1 4.4 4.8 5 5.1 5.2 5.2.1 5.2.2 5.3 5.4 5.5 6.1 7.1 7.2"),
        (5041, "4.1 4.2 4.3 5.1.2 5.2 5.3 5.4 6.2.1 6.2.2 7 7.1 7.2"),
        (5044, "3 4 4.1 4.2 4.3 4.4 4.5 6 7.1 7.1.1 7.1.2 8"),
        (6581, "5 6 8 9 9.1 9.2 10"),
    ];

    /// The page with the rules and the files that fulfil them.
    const PAGE: &str = "docs/iwarp-rules.md";

    /// The sections that have a MUST, a SHALL or a REQUIRED.
    const RULES: &[(u32, &str)] = &[
        (5040, "3.1 4.1 4.2 4.4 4.8 5.1 5.2 5.2.1 5.2.2 5.3 5.4 5.5 6.1 7 7.1 7.2 8.1 8.1.1 8.1.2 8.2.2"),
        (5041, "3 4.1 4.2 4.3 4.4 5.2 5.3 5.4 6.2 6.2.1 6.2.2 7.1 7.2 8.2 8.3 8.3.1 8.3.2 8.4.2"),
        (5044, "1.2 3 4.1 4.2 4.3 4.4 4.5 5.1 5.2 6 7.1 7.1.1 7.1.2 7.1.4.2 8 9.3 9.4 10"),
        (6581, "5 6 7 9 9.1 9.2 9.3 10"),
    ];

    /// The citation behind the word RFC, or what is wrong with it. `None`: a document without a section is named.
    fn citation(text: &str) -> Option<Result<(u32, &str), String>> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = text.split_at(digits);
        let number = number.parse().ok()?;
        let (_, sections) = SECTIONS.iter().find(|(document, _)| *document == number)?;
        let shown = || format!("RFC {}", text.chars().take(24).collect::<String>());
        let Some(section) = rest.strip_prefix(", section ") else {
            let cut = rest.trim().is_empty() || rest.starts_with(',') || rest.starts_with(" section");
            return cut.then(|| Err(format!("{}: `RFC N, section N` in one line", shown())));
        };
        let end = section.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(section.len());
        let section = section[..end].trim_end_matches('.');
        match sections.split(' ').any(|one| one == section) {
            true => Some(Ok((number, section))),
            false => Some(Err(format!("{}: no such section", shown()))),
        }
    }

    fn citations(line: &str) -> impl Iterator<Item = Result<(u32, &str), String>> {
        line.split("RFC ").skip(1).filter_map(citation)
    }

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(sources(&path));
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
        found
    }

    #[test]
    fn rules_of_iwarp_are_cited_in_one_form() {
        let (mut wrong, mut count) = (Vec::new(), 0);
        for path in SOURCES.iter().flat_map(|folder| sources(&crate::root().join(folder))) {
            let text = fs::read_to_string(&path).unwrap();
            for (number, line) in text.lines().enumerate() {
                for citation in citations(line) {
                    match citation {
                        Ok(_) => count += 1,
                        Err(why) => wrong.push(format!("{}:{}: {why}", path.display(), number + 1)),
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(count > 120, "{count} citations");
    }

    #[test]
    fn the_sections_with_rules_are_cited() {
        let mut found = std::collections::BTreeSet::new();
        for path in SOURCES.iter().flat_map(|folder| sources(&crate::root().join(folder))) {
            let text = fs::read_to_string(&path).unwrap();
            found.extend(text.lines().flat_map(citations).flatten().map(|(n, section)| (n, section.to_owned())));
        }
        for (document, sections) in CITED {
            let is_missing = |section: &&str| !found.contains(&(*document, (*section).to_owned()));
            let missing: Vec<&str> = sections.split(' ').filter(is_missing).collect();
            assert!(missing.is_empty(), "RFC {document}: no citation of {missing:?}");
        }
    }

    #[test]
    fn the_page_of_rules_names_files_that_cite_them() {
        let page = fs::read_to_string(crate::root().join(PAGE)).unwrap();
        let (mut rows, mut wrong) = (Vec::new(), Vec::new());
        for line in page.lines().filter(|line| line.starts_with("| RFC ")) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let &[rule, files, why] = cells.as_slice() else {
                wrong.push(format!("not three cells: {line}"));
                continue;
            };
            rows.extend(citations(rule).flatten());
            if files == "-" {
                wrong.extend(why.is_empty().then(|| format!("{rule}: neither a file nor a reason")));
                continue;
            }
            for file in files.split_whitespace().map(|file| file.trim_matches('`')) {
                let text = fs::read_to_string(crate::root().join(file)).unwrap_or_default();
                let wanted = citations(rule).flatten().next();
                if !text.lines().flat_map(citations).flatten().any(|found| Some(found) == wanted) {
                    wrong.push(format!("{file} does not cite {rule}"));
                }
            }
        }
        let wanted = RULES.iter().flat_map(|(document, sections)| sections.split(' ').map(|one| (*document, one)));
        for (document, section) in wanted {
            let count = rows.iter().filter(|row| **row == (document, section)).count();
            if count != 1 {
                wrong.push(format!("RFC {document}, section {section}: {count} rows"));
            }
        }
        assert!(wrong.is_empty(), "{PAGE}: {}", wrong.join("\n"));
    }

    #[test]
    fn what_is_a_citation() {
        let found = |line: &'static str| citations(line).collect::<Vec<_>>();
        assert_eq!(found("(RFC 5044, section 7.1.2; RFC 6581, section 9.)"), [Ok((5044, "7.1.2")), Ok((6581, "9"))]);
        assert_eq!(found("MPA (RFC 5044; RFC 6581 for more); RFC 7323, section 2.3"), []);
        let wrong = [
            "RFC 5044, section 4.6",
            "RFC 5040, 4.1",
            "RFC 5041, sections 5.3 and 5.4",
            "RFC 5044,",
            "RFC 5044",
            "RFC 5044 section 3",
            "RFC 5044, section",
        ];
        assert!(wrong.iter().all(|line| matches!(citations(line).next(), Some(Err(_)))));
    }
}
