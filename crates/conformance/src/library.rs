//! The place of the library under test.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rdma::Library;

/// The variable that names the library, instead of the one that was built beside the test.
const VARIABLE: &str = "SOFTRNIC_LIB";
const NAME: &str = "libsoftrnic.so";

/// The library under test, loaded once.
///
/// # Panics
/// If there is none: a test of nothing must not pass.
pub fn library() -> Arc<Library> {
    static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::load(&find()).unwrap_or_else(|error| panic!("{error}"))).clone()
}

fn find() -> PathBuf {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return path.into();
    }
    // target/PROFILE/deps/TEST: `cargo build` puts the library into target/PROFILE, and building the ABI's own tests
    // puts it into deps. The newer of the two is of the present source.
    let program = std::env::current_exe().expect("the path of this program");
    let deps = program.parent().unwrap_or(Path::new("/"));
    let places = [deps.join("..").join(NAME), deps.join(NAME)];
    let newest = places.iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).max();
    match newest {
        Some((_, path)) => path.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        None => {
            let release = deps.parent().is_some_and(|profile| profile.ends_with("release"));
            let how = if release { "cargo build --release" } else { "cargo build" };
            panic!("there is no {NAME} beside {}: run `{how}` first, or name it in {VARIABLE}", program.display());
        }
    }
}
