//! The drop-in libraries `libibverbs.so.1` and `librdmacm.so.1`, for programs that are run with `LD_LIBRARY_PATH` or
//! built against a directory. The libraries hold no device. Each public function is a jump to the same function of
//! `libsoftrnic.so`, which they need (`DT_NEEDED`) and look for beside themselves (`DT_RUNPATH` of `$ORIGIN`). The
//! loader loads that library once in a process, however many ask for it, so there is one engine.
//!
//! They are written when softrnic is installed, not when it is built, because of the vendors' libraries
//! (`libmlx5.so.1`, `libefa.so.1`, ...). Programs link against those, and those need functions of libibverbs that are
//! private to rdma-core, in a version node whose name changes with rdma-core's releases (`IBVERBS_PRIVATE_34`, ...
//! `_65`). A library in the place of libibverbs must have just these, or the loader refuses the program. So they are
//! read from the libibverbs that is installed. By them vendors' code announces itself and controls its adapters. Here
//! the announcement is accepted without an effect, and the rest is never called, for no adapter is ever found.
//!
//! | file | content |
//! |---|---|
//! | `read.rs` | the exports of a library |
//! | `plan.rs` | the exports of a drop-in library, and the target of each |
//! | `code.rs` | the instructions of a jump |
//! | `image.rs` | the ELF file |
#![forbid(unsafe_code)]

mod code;
mod image;
mod plan;
mod read;

/// The name of libsoftrnic.so, under which the drop-in libraries need it.
pub const ENGINE: &str = "libsoftrnic.so";

/// One of the libraries that programs look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Library {
    /// The name to which programs are linked: the library's file name and `DT_SONAME`.
    pub soname: &'static str,
    /// The name that linkers, and programs that load it themselves, look for.
    pub development: &'static str,
    /// The beginning of the names of its version nodes.
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
/// A sentence that says which file is not of the expected kind, and why.
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
