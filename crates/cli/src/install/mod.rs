//! `softrnic install`: a directory that programs can be pointed to.

mod files;
mod host;
mod texts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::out::say;
use crate::{ddp_manual, dv_manual, exs_manual, hyperclient_manual, locate};
use files::Tree;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// The directory; made if it is not there
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    prefix: PathBuf,
    /// The device's library, instead of the libsoftrnic.so beside this program
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,
    /// Where rdma-core's libibverbs.so.1 and librdmacm.so.1 are, if not where the loader looks for them
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    rdma_core: Option<PathBuf>,
}

/// The directories where the loader looks without being told: a libibverbs.so.1 there would be every program's.
const SYSTEM: [&str; 4] = ["/", "/usr", "/usr/local", "/lib"];

/// Install.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let prefix = absolute(&options.prefix)?;
    if SYSTEM.iter().any(|system| Path::new(system) == prefix) {
        return Err(format!(
            "in {0}, the libraries would take the place of rdma-core's for every program of this machine. Choose a \
             directory of their own, such as {0}/softrnic or /opt/softrnic",
            prefix.display().to_string().trim_end_matches('/')
        ));
    }
    let library = locate::library(options.lib.as_deref())?;
    let engine = std::fs::read(&library).map_err(|error| format!("cannot read {}: {error}", library.display()))?;
    let mut tree = Tree::new(&prefix);
    for which in [dropin::VERBS, dropin::RDMACM] {
        tree.check_library(&format!("lib/{}", which.soname))?;
        tree.check_link(&format!("lib/{}", which.development))?;
    }
    tree.check_mark(&format!("lib/{}", locate::EXS_LIBRARY), files::EXS_MARK)?;
    tree.check_mark(&format!("lib/{}", locate::HYPERCLIENT_LIBRARY), files::HYPERCLIENT_MARK)?;
    tree.check_mark(&format!("lib/{}", locate::DDP_LIBRARY), files::DDP_MARK)?;
    let program = std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
    tree.program("bin/softrnic", &files::read(&program)?)?;
    tree.program(&format!("lib/{}", dropin::ENGINE), &engine)?;
    // An own file beside it: a program that is told of one library needs nothing of the other.
    match locate::sock_library(None) {
        Ok(path) => tree.program(&format!("lib/{}", locate::SOCK_LIBRARY), &files::read(&path)?)?,
        Err(error) => say!("without {}: {error}", locate::SOCK_LIBRARY),
    }
    match locate::exs_library() {
        Ok(path) => {
            tree.program(&format!("lib/{}", locate::EXS_LIBRARY), &files::read(&path)?)?;
            tree.file("include/sys/exs.h", exs_manual::HEADER.as_bytes())?;
            tree.file("lib/pkgconfig/exs.pc", texts::exs_pkg_config().as_bytes())?;
        }
        Err(error) => say!("without {}: {error}", locate::EXS_LIBRARY),
    }
    match locate::hyperclient_library() {
        Ok(path) => {
            tree.program(&format!("lib/{}", locate::HYPERCLIENT_LIBRARY), &files::read(&path)?)?;
            tree.file("include/libhyperclient/hyperclient.h", hyperclient_manual::CPP_HEADER.as_bytes())?;
            tree.file("include/libhyperclient/hyperclient_compat.h", hyperclient_manual::HEADER.as_bytes())?;
            tree.file("lib/pkgconfig/hyperclient.pc", texts::hyperclient_pkg_config().as_bytes())?;
        }
        Err(error) => say!("without {}: {error}", locate::HYPERCLIENT_LIBRARY),
    }
    match locate::ddp_library() {
        Ok(path) => {
            tree.program(&format!("lib/{}", locate::DDP_LIBRARY), &files::read(&path)?)?;
            tree.file("include/softrnic/ddp.h", ddp_manual::HEADER.as_bytes())?;
            tree.file("lib/pkgconfig/softrnic-ddp.pc", texts::ddp_pkg_config().as_bytes())?;
        }
        Err(error) => say!("without {}: {error}", locate::DDP_LIBRARY),
    }
    for which in [dropin::VERBS, dropin::RDMACM] {
        let host = host::find(which.soname, options.rdma_core.as_deref())?;
        let bytes = host.as_deref().map(files::read).transpose()?;
        match dropin::make(which, &engine, bytes.as_deref())? {
            None => {
                say!("without {}: {} has none of its functions", which.soname, library.display());
                continue;
            }
            Some(made) => tree.program(&format!("lib/{}", which.soname), &made)?,
        }
        tree.link(&format!("lib/{}", which.development), which.soname)?;
        let version = host.as_deref().and_then(host::version);
        let name = which.development.trim_end_matches(".so");
        tree.file(&format!("lib/pkgconfig/{name}.pc"), texts::pkg_config(name, version.as_deref()).as_bytes())?;
        match host {
            Some(path) => say!("{} has the private names of {}", which.soname, path.display()),
            None => say!("there is no {} here: no vendor's library will be looked for", which.soname),
        }
    }
    tree.file("include/softrnic/dv.h", include_bytes!("../../../abi/include/softrnic/dv.h"))?;
    tree.file("include/softrnic/dv_queues.h", dv_manual::HEADER.as_bytes())?;
    for (path, content) in texts::pages_and_completions()? {
        tree.file(&path, &content)?;
    }
    say!("{}\n", tree.summary());
    say!("  {}/bin/softrnic run -- PROGRAM", prefix.display());
    say!("  LD_LIBRARY_PATH={}/lib PROGRAM", prefix.display());
    say!("  PKG_CONFIG_PATH={}/lib/pkgconfig, to build against it (with rdma-core's header files)", prefix.display());
    Ok(ExitCode::SUCCESS)
}

/// The prefix as an absolute path that `LD_LIBRARY_PATH` can hold; it need not exist.
fn absolute(prefix: &Path) -> Result<PathBuf, String> {
    let path = std::path::absolute(prefix).map_err(|error| format!("--prefix {}: {error}", prefix.display()))?;
    // Two names of one directory are equal.
    let path = path.canonicalize().unwrap_or(path);
    match path.to_str() {
        Some(text) if !text.contains([':', ';', '\n']) => Ok(path),
        _ => Err(format!("LD_LIBRARY_PATH cannot hold {}: choose a prefix without colons", path.display())),
    }
}
