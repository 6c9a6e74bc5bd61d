//! A newer rdma-core than the distribution's, for its Python tests: fetched as a source package, and built in part.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use crate::run::Program;
use crate::{logs, root, target_dir};

/// Debian's interpreter: python3-pyverbs is built for it and for no other.
pub const PYTHON: &str = "/usr/bin/python3";

/// The file with the package's version and hash.
const PINNED: &str = "interop/rdmacore/requirements.txt";

/// The limit of a fetch of 2 MB. pip gives up by itself after two attempts of 20 s.
const FETCH: Duration = Duration::from_secs(100);

/// The limit of a build, which takes half a minute on two cores; beside other suites it may have to wait for time.
const BUILD: Duration = Duration::from_secs(900);

/// Unpack the package, and build pyverbs without the modules of vendors' adapters, beside the two libraries that it is
/// linked to. It is not used to measure, so the compiler need not optimize, which is most of its time.
const SCRIPT: &str = r#"
set -eu
tar -xzf "$1"/pyverbs-*.tar.gz --strip-components=1
mkdir build
cd build
cmake -GNinja -DCMAKE_BUILD_TYPE=Debug '-DCMAKE_C_FLAGS_DEBUG=-O0 -g0' -DIN_PLACE=1 -DNO_MAN_PAGES=1 -DNO_PYVERBS=0 \
    -DPYTHON_EXECUTABLE=/usr/bin/python3 -DCYTHON_EXECUTABLE=/usr/bin/cython3 ../rdma-core
ninja $(ninja -t targets all | grep -o '^python/pyverbs/[^/]*\.so')
"#;

/// The reason why there is no package, or no build of it.
#[derive(Debug)]
pub enum Missing {
    /// The registry was not reached.
    Offline(String),
    /// The package has an error.
    Broken(String),
}

/// The pinned version.
pub fn version() -> Result<String, Missing> {
    let path = root().join(PINNED);
    let text = fs::read_to_string(&path).map_err(|e| Missing::Broken(format!("{}: {e}", path.display())))?;
    let pinned = text.lines().find_map(|line| line.split_once("==")?.1.split_whitespace().next().map(str::to_owned));
    pinned.ok_or_else(|| Missing::Broken(format!("{PINNED}: no version")))
}

fn folder() -> Result<PathBuf, Missing> {
    Ok(target_dir().join("interop").join(format!("rdma-core-{}", version()?)))
}

/// Fetch the source package, if it is not there yet. pip compares its hash with the pinned one.
pub fn fetch() -> Result<PathBuf, Missing> {
    let package = folder()?.join("package");
    let has = |folder: &Path| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if has(&package) {
        return Ok(package);
    }
    let words =
        "-m pip download --no-deps --no-binary :all: --no-build-isolation --require-hashes --retries 1 --timeout 20";
    let done = Program::new(PYTHON, logs().join("rdmacore-fetch"))
        .args(words.split(' '))
        .args([Path::new("--requirement"), &root().join(PINNED), Path::new("--dest"), &package])
        .env("PYTHONPATH", root().join("interop/rdmacore"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run(FETCH)
        .map_err(|e| Missing::Broken(e.to_string()))?;
    match done.ok() && has(&package) {
        true => Ok(package),
        false if done.stderr.contains("HASHES") => Err(Missing::Broken(done.verdict())),
        false => Err(Missing::Offline(done.verdict())),
    }
}

/// The folder of the built package: `rdma-core/tests`, `build/lib`, `build/python`. A caller that comes while it is
/// built waits.
pub fn built() -> Result<PathBuf, Missing> {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = BUILDING.lock();
    let package = fetch()?;
    let broken = |e: std::io::Error| Missing::Broken(e.to_string());
    let (folder, built) = (folder()?.join("source"), folder()?.join("built"));
    if built.exists() {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(broken)?;
    }
    fs::create_dir_all(&folder).map_err(broken)?;
    let script = Program::new("sh", logs().join("rdmacore-build")).args(["-c", SCRIPT, "sh"]).args([&package]);
    let done = script.dir(&folder).run(BUILD).map_err(broken)?;
    if !done.ok() {
        return Err(Missing::Broken(format!("the build: {}; see {}", done.verdict(), done.log.display())));
    }
    fs::write(built, "").map_err(broken)?;
    Ok(folder)
}
