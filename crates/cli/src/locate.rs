//! The place of the library.

use std::path::{Path, PathBuf};

/// The library's file name.
pub const LIBRARY: &str = "libsoftrnic.so";

/// The environment variable that names it.
const VARIABLE: &str = "SOFTRNIC_LIB";

/// The places relative to the program's directory: a build's `target/release`, an installation's `lib`.
const PLACES: [&str; 4] = [".", "../lib/softrnic", "../lib", "deps"];

/// The library: the given one, or that of `SOFTRNIC_LIB`, or the one beside the program. A given name without a slash
/// is left to the dynamic linker.
pub fn library(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = given {
        return existing(path.to_owned());
    }
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return existing(path.into()).map_err(|error| format!("{error} ({VARIABLE} names it)"));
    }
    let program = std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    for place in PLACES {
        let path = beside.join(place).join(LIBRARY);
        if path.is_file() {
            return path.canonicalize().map_err(|error| format!("{}: {error}", path.display()));
        }
    }
    let how = match beside.file_name().is_some_and(|name| name == "debug") {
        true => "cargo build",
        false => "cargo build --release",
    };
    Err(format!("{LIBRARY} is not beside {}; `{how}` makes it, or name it with --lib PATH", program.display()))
}

fn existing(path: PathBuf) -> Result<PathBuf, String> {
    if !path.as_os_str().as_encoded_bytes().contains(&b'/') {
        return Ok(path);
    }
    path.canonicalize().map_err(|error| format!("the library {} cannot be used: {error}", path.display()))
}
