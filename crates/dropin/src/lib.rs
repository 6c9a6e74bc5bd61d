//! Writes the drop-in libraries: `libibverbs.so.1` and `librdmacm.so.1` for those who set `LD_LIBRARY_PATH` or build
//! against a directory. They hold no device. Each public function is a jump to the same function of `libsoftrnic.so`,
//! which they need (`DT_NEEDED`) and look for beside themselves (`DT_RUNPATH` of `$ORIGIN`); the loader loads that once
//! in a process, however many ask for it, so there is one engine.
//!
//! They are written when softrnic is installed, not when it is built, because of the vendors' libraries
//! (`libmlx5.so.1`, `libefa.so.1`, ...). Programs link against those, and those need functions of libibverbs that are
//! private to rdma-core, in a version node whose name changes with rdma-core's releases (`IBVERBS_PRIVATE_34`, ...
//! `_65`). Whoever stands in for libibverbs must have just these, or the loader refuses the program. So they are read
//! from the libibverbs that is there. By them vendors' code announces itself and talks to its adapters; here the
//! announcement is taken without an answer, and the rest is never called, for no adapter is ever found.
//!
//! | file | what it does |
//! |---|---|
//! | `read.rs` | what a library exports |
//! | `plan.rs` | what a drop-in library shall export, and where each name leads |
//! | `code.rs` | the instructions of a jump |
//! | `image.rs` | the ELF file |
#![forbid(unsafe_code)]

mod code;
mod image;
mod plan;
mod read;

/// What libsoftrnic.so calls itself; the drop-in libraries need it under this name.
pub const ENGINE: &str = "libsoftrnic.so";

/// One of the libraries that programs look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Library {
    /// What programs are linked to: its file name and `DT_SONAME`.
    pub soname: &'static str,
    /// What linkers, and programs that load it themselves, look for.
    pub development: &'static str,
    /// How the names of its version nodes begin.
    pub nodes: &'static str,
}

/// libibverbs.
pub const VERBS: Library = Library { soname: "libibverbs.so.1", development: "libibverbs.so", nodes: "IBVERBS_" };
/// librdmacm.
pub const RDMACM: Library = Library { soname: "librdmacm.so.1", development: "librdmacm.so", nodes: "RDMACM_" };

/// The bytes of a drop-in library.
///
/// `engine` is the file `libsoftrnic.so`; `host` the library of the same name that rdma-core installed, if there is
/// one. `None` if the engine has no function of this library.
///
/// # Errors
/// A sentence that says which file is not what it should be, and why.
pub fn make(library: Library, engine: &[u8], host: Option<&[u8]>) -> Result<Option<Vec<u8>>, String> {
    let engine = read::read(engine).map_err(|error| format!("{ENGINE} {error}"))?;
    let host = host.map(read::read).transpose();
    let host = host.map_err(|error| format!("the installed {} {error}", library.soname))?;
    let exports = plan::plan(library, &engine, host.as_ref())?;
    if exports.is_empty() {
        return Ok(None);
    }
    image::image(library, engine.machine, &exports).map(Some)
}
