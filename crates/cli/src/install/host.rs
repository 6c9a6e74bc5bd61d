//! The libraries that rdma-core installed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::elf::{self, Program};

/// The loader's own directories, by the distributions' habits; `TRIPLET` is Debian's name of the architecture.
const DIRECTORIES: [&str; 6] = ["/lib/TRIPLET", "/usr/lib/TRIPLET", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// The directory where administrators add more (ld.so.conf(5)).
const CONFIGURATION: &str = "/etc/ld.so.conf.d";

/// The library of this name; `None` if there is none.
///
/// # Errors
/// The library is not in the given directory.
pub fn find(soname: &str, given: Option<&Path>) -> Result<Option<PathBuf>, String> {
    if let Some(folder) = given {
        let path = folder.join(soname);
        let place = path.canonicalize();
        return place.map(Some).map_err(|error| format!("{}: {error} (--rdma-core)", path.display()));
    }
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let own = DIRECTORIES.iter().map(|folder| PathBuf::from(folder.replace("TRIPLET", &triplet)));
    Ok(configured().into_iter().chain(own).map(|folder| folder.join(soname)).find_map(|path| usable(&path)))
}

/// The file behind the name, if it is a library for this machine and no drop-in library.
fn usable(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let Ok(Program::Elf(found)) = elf::inspect(&path) else { return None };
    let Ok(Program::Elf(own)) = elf::inspect(&std::env::current_exe().ok()?) else { return None };
    (found.target == own.target && !found.needed.iter().any(|name| name == dropin::ENGINE)).then_some(path)
}

/// The directories that ld.so.conf.d names, in the order of the files.
fn configured() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(CONFIGURATION).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    let texts = files.iter().filter_map(|path| fs::read_to_string(path).ok());
    texts
        .flat_map(|text| text.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect::<Vec<_>>())
        .collect()
}

/// The version in the file's name: `libibverbs.so.1.14.44.0`.
pub fn version(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let version = name.split_once(".so.")?.1;
    (version.contains('.') && version.bytes().all(|b| b.is_ascii_digit() || b == b'.')).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_file_names() {
        assert_eq!(version(Path::new("/lib/libibverbs.so.1.14.44.0")).as_deref(), Some("1.14.44.0"));
        for none in ["/lib/libibverbs.so.1", "/lib/libibverbs.so", "/lib/x.so.1.y", "/"] {
            assert_eq!(version(Path::new(none)), None, "{none}");
        }
    }
}
