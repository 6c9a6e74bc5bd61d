//! Circles between the files of one crate: the files that each names by its `crate::` paths.
//!
//! A method of a type that several files add to (`impl Engine` in most files of the engine) is called without a path,
//! so those calls are no arrows here: `crates/engine/src/lib.rs` says how they run.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    /// Crates whose files form no circle, tests excepted.
    const WITHOUT_CIRCLES: &[&str] = &["engine", "wire", "trial", "iwarp", "verbs"];

    /// The files below a folder, by their module's path (`rc/fast` for `rc/fast.rs`), without tests.
    fn modules(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if entry.path().is_dir() {
                if name != "tests" {
                    modules(&entry.path(), &format!("{prefix}{name}/"), found);
                }
            } else if let Some(name) = name.strip_suffix(".rs")
                && !name.ends_with("tests")
            {
                found.insert(format!("{prefix}{name}"), fs::read_to_string(entry.path()).unwrap());
            }
        }
    }

    /// The modules of this crate that this source names.
    fn named(source: &str, modules: &BTreeMap<String, String>) -> BTreeSet<String> {
        let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let code = source.lines().map(|line| line.split("//").next().unwrap_or_default());
        let code = code.collect::<Vec<_>>().join("\n");
        let paths = code.split("crate::").skip(1);
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let all = paths.flat_map(|path| {
            let (start, rest) = path.split_at(path.find(|c| !is_path(c)).unwrap_or(path.len()));
            let list = rest.strip_prefix('{').and_then(|list| list.split('}').next()).unwrap_or_default();
            // `crate::rc::{responder, fast::Fast}`, or a path without a list.
            let names = list.split(',').map(|name| format!("{start}{}", name.trim()));
            names.map(|name| name.trim_end_matches(':').to_owned()).collect::<Vec<_>>()
        });
        let module = |path: String| {
            let parts: Vec<&str> = path.split("::").collect();
            let longest_first = (1..=parts.len()).rev().map(|n| parts[..n].join("/"));
            longest_first.into_iter().find(|name| modules.contains_key(name))
        };
        all.filter_map(module).collect()
    }

    /// A path of modules from `at` back to the first of `path`, if there is one.
    fn circle(
        path: &mut Vec<String>,
        done: &mut BTreeSet<String>,
        arrows: &BTreeMap<String, BTreeSet<String>>,
    ) -> bool {
        let at = path.last().cloned().unwrap_or_default();
        for next in &arrows[&at] {
            if path.contains(next) {
                path.push(next.clone());
                return true;
            }
            if done.insert(next.clone()) {
                path.push(next.clone());
                if circle(path, done, arrows) {
                    return true;
                }
                path.pop();
            }
        }
        false
    }

    fn find_circle(modules: &BTreeMap<String, String>) -> Option<String> {
        let arrows: BTreeMap<String, BTreeSet<String>> = modules
            .iter()
            .map(|(name, source)| {
                let mut named = named(source, modules);
                named.remove(name);
                (name.clone(), named)
            })
            .collect();
        modules.keys().find_map(|name| {
            let mut path = vec![name.clone()];
            circle(&mut path, &mut BTreeSet::new(), &arrows).then(|| path.join(" -> "))
        })
    }

    #[test]
    fn files_form_no_circles() {
        for name in WITHOUT_CIRCLES {
            let mut found = BTreeMap::new();
            modules(&crate::root().join("crates").join(name).join("src"), "", &mut found);
            assert!(found.len() > 1 || found.contains_key("lib"), "{name} has no files");
            if let Some(circle) = find_circle(&found) {
                panic!("crates/{name}: {circle}");
            }
        }
    }

    #[test]
    fn a_circle_is_found() {
        let source = |text: &str| text.to_owned();
        let mut found = BTreeMap::from([
            (source("lib"), source("mod a;\nmod b;\n")),
            (source("a"), source("use crate::b::c::Thing;\n")),
            (source("b"), source("pub mod c;\n")),
            (source("b/c"), source("// crate::a is only spoken of\n")),
        ]);
        assert_eq!(find_circle(&found), None);
        found.insert(source("b/c"), source("use crate::{a::Other, b::c::Thing};\n"));
        assert_eq!(find_circle(&found).as_deref(), Some("a -> b/c -> a"));
    }
}
