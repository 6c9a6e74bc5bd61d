//! Installed files: each is put in place whole or not at all, and no file of other software is replaced.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The files below a prefix.
pub struct Tree<'a> {
    prefix: &'a Path,
    written: usize,
    unchanged: usize,
}

/// The bytes by which this project's libexs.so is known (`crates/exs-abi/src/lib.rs`).
pub const EXS_MARK: &[u8] = b"softrnic: extended sockets";

/// The bytes by which this project's libhyperclient.so is known (`crates/group-abi/src/lib.rs`).
pub const HYPERCLIENT_MARK: &[u8] = b"softrnic: group operations";

/// The bytes by which this project's libsoftrnic-ddp.so is known (`crates/ddp-abi/src/lib.rs`).
pub const DDP_MARK: &[u8] = b"softrnic: direct data placement";

/// Read a file.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

impl<'a> Tree<'a> {
    /// A tree in which no file is made yet.
    pub fn new(prefix: &'a Path) -> Self {
        Tree { prefix, written: 0, unchanged: 0 }
    }

    /// The line for the end.
    pub fn summary(&self) -> String {
        match (self.written, self.unchanged) {
            (0, n) => format!("{}: all {n} files were there already", self.prefix.display()),
            (n, 0) => format!("{}: {n} files", self.prefix.display()),
            (n, m) => format!("{}: {n} files, and {m} that were there already", self.prefix.display()),
        }
    }

    /// Write a text.
    pub fn file(&mut self, path: &str, content: &[u8]) -> Result<(), String> {
        self.put(path, content, 0o644)
    }

    /// Write a program or a library.
    pub fn program(&mut self, path: &str, content: &[u8]) -> Result<(), String> {
        self.put(path, content, 0o755)
    }

    /// Check for a library of other software under this name: it stays, and is an error.
    pub fn check_library(&self, path: &str) -> Result<(), String> {
        // A library of this project names the device's library, which it needs.
        let ours = |bytes: &[u8]| bytes.windows(dropin::ENGINE.len()).any(|window| window == dropin::ENGINE.as_bytes());
        let place = self.prefix.join(path);
        if fs::read(&place).is_ok_and(|bytes| !ours(&bytes)) { Err(foreign(&place)) } else { Ok(()) }
    }

    /// Check for a library under this name that does not have this project's mark, in the same way.
    pub fn check_mark(&self, path: &str, mark: &[u8]) -> Result<(), String> {
        let ours = |bytes: &[u8]| bytes.windows(mark.len()).any(|window| window == mark);
        let place = self.prefix.join(path);
        if fs::read(&place).is_ok_and(|bytes| !ours(&bytes)) { Err(foreign(&place)) } else { Ok(()) }
    }

    /// Check for a file under this name that is no link: it stays, and is an error, too.
    pub fn check_link(&self, path: &str) -> Result<(), String> {
        let place = self.prefix.join(path);
        let there = fs::symlink_metadata(&place);
        if there.is_ok_and(|meta| !meta.is_symlink()) { Err(foreign(&place)) } else { Ok(()) }
    }

    /// Make a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> Result<(), String> {
        let place = self.prefix.join(path);
        if fs::read_link(&place).is_ok_and(|there| there == Path::new(target)) {
            self.unchanged += 1;
            return Ok(());
        }
        let draft = draft(&place);
        let _ = fs::remove_file(&draft);
        symlink(target, &draft).and_then(|()| fs::rename(&draft, &place)).map_err(|error| cannot(&place, &error))?;
        self.written += 1;
        Ok(())
    }

    /// Put a file in place. Processes may be using the old file: it is replaced, never changed.
    fn put(&mut self, path: &str, content: &[u8], mode: u32) -> Result<(), String> {
        let place = self.prefix.join(path);
        let same = fs::read(&place).is_ok_and(|there| there == content)
            && fs::symlink_metadata(&place)
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o777 == mode);
        if same {
            self.unchanged += 1;
            return Ok(());
        }
        let folder = place.parent().unwrap_or(self.prefix);
        fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))?;
        let draft = draft(&place);
        let write = || {
            let _ = fs::remove_file(&draft);
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
            file.write_all(content)?;
            // The mode does not depend on the umask: other users may use the file, too.
            file.set_permissions(PermissionsExt::from_mode(mode))?;
            file.sync_all()?;
            fs::rename(&draft, &place)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&draft);
            cannot(&place, &error)
        })?;
        self.written += 1;
        Ok(())
    }
}

/// A name beside the place, of this process's own.
fn draft(place: &Path) -> PathBuf {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    place.with_file_name(name)
}

fn foreign(place: &Path) -> String {
    format!("{} is there and is not softrnic's. Choose another prefix, or move the file away", place.display())
}

fn cannot(path: &Path, error: &std::io::Error) -> String {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            ". Choose a prefix that you may write to, such as ~/.local/softrnic; no program needs root for it"
        }
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => ". Something on the way is no directory",
        _ => "",
    };
    format!("cannot write {}: {error}{hint}", path.display())
}
