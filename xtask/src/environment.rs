//! The environment is read in one file of the library, once: `crates/report/src/settings.rs`.

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::{fs, io};

    /// The one file that may.
    const READER: &str = "crates/report/src/settings.rs";

    /// What reads variables, also by way of others: std's `temp_dir` asks for `TMPDIR`.
    const WAYS: &[&str] = &["env::var", "var_os(", "vars_os(", "getenv", "environ ", "environ;", "temp_dir()"];

    /// The finished library.
    const LIBRARY: &str = "softrnic-abi";

    /// Files of Rust below a folder.
    fn sources(folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                found.extend(sources(&path)?);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// True for code that runs in tests only.
    fn is_test(path: &str) -> bool {
        path.contains("/tests/") || path.ends_with("tests.rs")
    }

    #[test]
    fn only_the_settings_read_the_environment() {
        let root = crate::root();
        let (mut readers, mut seen) = (Vec::new(), 0);
        for package in fs::read_dir(root.join("crates")).unwrap() {
            let package = package.unwrap().path();
            let name = format!("softrnic-{}", package.file_name().unwrap().to_string_lossy());
            if !crate::arrows::reaches(LIBRARY, &name) {
                continue;
            }
            for path in sources(&package.join("src")).unwrap() {
                let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                let text = fs::read_to_string(&path).unwrap();
                seen += 1;
                // Line by line, for words of comments are no calls.
                let code = || text.lines().filter(|line| !line.trim_start().starts_with("//"));
                if !is_test(&name) && code().any(|line| WAYS.iter().any(|way| line.contains(way))) {
                    readers.push(name);
                }
            }
        }
        assert!(seen > 100, "{seen} files");
        assert_eq!(readers, [READER]);
    }
}
