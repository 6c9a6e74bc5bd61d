//! The place of the view: the directory that `softrnic run` made for its children (`SOFTRNIC_VIEW`), or one that the
//! first process to need it makes.
//!
//! The view lies where only the user can write (`XDG_RUNTIME_DIR`), else in a directory for temporary files. Other
//! users, who may be hostile, have access to such directories. So the directory used there must be this user's and
//! closed to others: then no other user can have put a link or a file into it. Where others hold every name that
//! processes of this user agree on, its name is random. A tree is written under a name of its own and renamed when
//! complete, so that no process ever sees half a tree.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use report::Settings;
use rustix::fs::{self, FileType, Mode, RenameFlags};
use rustix::process::{geteuid, getpid};

use crate::tree::{self, Entry, ViewInfo};

/// The directories to try, in this order, after those that the environment names.
const BASES: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];

/// Directories for files that processes of this user share while they run: the user's own first (`XDG_RUNTIME_DIR`),
/// then `TMPDIR`, then the usual ones.
pub fn bases(settings: &Settings) -> Vec<PathBuf> {
    let own = settings.runtime_dir.clone().filter(|dir| fs::lstat(dir).is_ok_and(|stat| is_private(&stat)));
    own.into_iter().chain(settings.temporary_dir.clone()).chain(BASES.map(PathBuf::from)).collect()
}

/// True for a directory that belongs to this user, and to which no other user has access. A link is none.
fn is_private(stat: &fs::Stat) -> bool {
    let closed = stat.st_mode & 0o077 == 0;
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == geteuid().as_raw() && closed
}

/// The number of names to try in each, in case another user holds the first ones.
const ATTEMPTS: u32 = 8;

/// The root of this process's view, made if need be. `None` if no directory can be had: then the program sees the files
/// of the host. The answer stays the same for the life of the process.
pub fn current() -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    ROOT.get_or_init(|| {
        let settings = Settings::of_process();
        given(settings).or_else(|| make(&ViewInfo::probe(settings), settings).ok())
    })
    .as_deref()
}

/// The value of `SOFTRNIC_VIEW`, if it is an absolute path to a directory that this process can enter. (It cannot after
/// a change of user: then the new user gets another view.)
fn given(settings: &Settings) -> Option<PathBuf> {
    let root = settings.view.as_ref()?;
    let enters = root.is_absolute() && fs::access(root.join("class/infiniband"), fs::Access::EXEC_OK).is_ok();
    enters.then(|| root.clone())
}

/// Make the view of these devices, or find the one that is made already.
pub fn make(infos: &[ViewInfo], settings: &Settings) -> io::Result<PathBuf> {
    let entries = tree::entries(infos);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for base in bases(settings) {
        match private_dir(&base).and_then(|dir| make_in(&dir, &entries)) {
            Ok(root) => return Ok(root),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A directory in `base` that belongs to this user alone.
fn private_dir(base: &Path) -> io::Result<PathBuf> {
    let uid = geteuid();
    for attempt in 0..=ATTEMPTS {
        let name = match attempt {
            0 => format!("softrnic-{}", uid.as_raw()),
            ATTEMPTS => format!("softrnic-{}.{:016x}", uid.as_raw(), noise()?),
            n => format!("softrnic-{}.{n}", uid.as_raw()),
        };
        let dir = base.join(name);
        match fs::mkdir(&dir, Mode::RWXU) {
            // A umask can only have taken away rights that this process needs itself.
            Ok(()) => fs::chmod(&dir, Mode::RWXU)?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // lstat: a link that another user has put under this name is not a directory.
        if is_private(&fs::lstat(&dir)?) {
            return Ok(dir);
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "others hold every name for a private directory"))
}

/// Make the tree in a directory that is private to this user.
fn make_in(dir: &Path, entries: &[Entry]) -> io::Result<PathBuf> {
    let root = dir.join(format!("view-{:016x}", tree::content_hash(entries)));
    if tree::is_complete(&root, entries) {
        return Ok(root);
    }
    let draft = draft_name(dir)?;
    fs::mkdir(&draft, Mode::RWXU)?;
    let outcome = fs::chmod(&draft, Mode::RWXU)
        .map_err(io::Error::from)
        .and_then(|()| tree::write(&draft, entries))
        .and_then(|()| put_in_place(&draft, &root, entries));
    if outcome.is_err() {
        remove(&draft);
    }
    outcome.map(|()| root)
}

/// Rename the finished draft. A complete tree that another process put there meanwhile is as good; an incomplete one is
/// replaced.
fn put_in_place(draft: &Path, root: &Path, entries: &[Entry]) -> io::Result<()> {
    if fs::renameat_with(fs::CWD, draft, fs::CWD, root, RenameFlags::NOREPLACE).is_ok() {
        return Ok(());
    }
    if !tree::is_complete(root, entries) {
        // Not every file system knows the flags; the plain rename needs the place empty.
        if fs::renameat_with(fs::CWD, draft, fs::CWD, root, RenameFlags::EXCHANGE).is_err() {
            remove(root);
            fs::rename(draft, root)?;
            return Ok(());
        }
    }
    remove(draft);
    Ok(())
}

/// A name that no other process and no other thread uses.
fn draft_name(dir: &Path) -> io::Result<PathBuf> {
    Ok(dir.join(format!("draft-{}-{:016x}", getpid().as_raw_nonzero(), noise()?)))
}

fn noise() -> io::Result<u64> {
    let mut noise = [0u8; 8];
    rustix::rand::getrandom(&mut noise, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(noise))
}

/// Remove a tree, and ignore errors: the rest is a few kilobytes in a directory of this user.
fn remove(path: &Path) {
    let _ = std::fs::remove_dir_all(path);
}

/// The path that a program knows, for a path inside the view: the inverse of the redirection.
pub fn public_path(root: &Path, path: &[u8]) -> Option<PathBuf> {
    let inside = path.strip_prefix(root.as_os_str().as_bytes())?;
    let public = match inside {
        [b'/', b'c', b'l', b'a', b's', b's', b'/', ..] => [b"/sys", inside].concat(),
        [b'/', b'd', b'e', b'v', b'/', ..] => inside.to_vec(),
        _ => return None,
    };
    Some(PathBuf::from(OsStr::from_bytes(&public)))
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
