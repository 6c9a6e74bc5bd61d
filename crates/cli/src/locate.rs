//! The place of the library.

use std::path::{Path, PathBuf};

/// The library's file name.
pub const LIBRARY: &str = "libsoftrnic.so";

/// The file name of the library of `softrnic sock`.
pub const SOCK_LIBRARY: &str = "libsoftrnic-sock.so";

/// What cargo calls it.
const SOCK_LIBRARY_AS_BUILT: &str = "libsoftrnic_sock.so";

/// The file name of the library of extended sockets.
pub const EXS_LIBRARY: &str = "libexs.so";

/// What cargo calls it.
const EXS_LIBRARY_AS_BUILT: &str = "libsoftrnic_exs.so";

/// The file name of the library of group operations.
pub const HYPERCLIENT_LIBRARY: &str = "libhyperclient.so";

/// What cargo calls it.
const HYPERCLIENT_LIBRARY_AS_BUILT: &str = "libsoftrnic_hyperclient.so";

/// The file name of the library of direct data placement.
pub const DDP_LIBRARY: &str = "libsoftrnic-ddp.so";

/// What cargo calls it.
const DDP_LIBRARY_AS_BUILT: &str = "libsoftrnic_ddp.so";

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
    beside(&[LIBRARY])
}

/// The library of `softrnic sock`, in the same way; no variable names it.
pub fn sock_library(given: Option<&Path>) -> Result<PathBuf, String> {
    match given {
        Some(path) => existing(path.to_owned()),
        None => beside(&[SOCK_LIBRARY, SOCK_LIBRARY_AS_BUILT]),
    }
}

/// The library of extended sockets, beside the program.
pub fn exs_library() -> Result<PathBuf, String> {
    beside(&[EXS_LIBRARY, EXS_LIBRARY_AS_BUILT])
}

/// The library of group operations, beside the program.
pub fn hyperclient_library() -> Result<PathBuf, String> {
    beside(&[HYPERCLIENT_LIBRARY, HYPERCLIENT_LIBRARY_AS_BUILT])
}

/// The library of direct data placement, beside the program.
pub fn ddp_library() -> Result<PathBuf, String> {
    beside(&[DDP_LIBRARY, DDP_LIBRARY_AS_BUILT])
}

/// A library by its names, beside the program.
fn beside(names: &[&str]) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    for place in PLACES {
        for name in names {
            let path = beside.join(place).join(name);
            if path.is_file() {
                return path.canonicalize().map_err(|error| format!("{}: {error}", path.display()));
            }
        }
    }
    let how = match beside.file_name().is_some_and(|name| name == "debug") {
        true => "cargo build",
        false => "cargo build --release",
    };
    let name = names.first().copied().unwrap_or(LIBRARY);
    Err(format!("{name} is not beside {}; `{how}` makes it, or name it with --lib PATH", program.display()))
}

fn existing(path: PathBuf) -> Result<PathBuf, String> {
    if !path.as_os_str().as_encoded_bytes().contains(&b'/') {
        return Ok(path);
    }
    path.canonicalize().map_err(|error| format!("the library {} cannot be used: {error}", path.display()))
}
