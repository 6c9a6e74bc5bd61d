//! The program `softrnic`.

use std::path::PathBuf;
use std::process::Command;

use crate::library;

/// The program `softrnic` that was built with the library.
///
/// # Panics
/// If it is not there.
pub fn program() -> PathBuf {
    let library = PathBuf::from(library().path());
    let beside = library.parent().expect("a directory");
    let places = [beside.join("softrnic"), beside.join("../softrnic"), beside.join("../bin/softrnic")];
    places.iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("no program softrnic at {places:?}")).clone()
}

/// The program's output, and its exit status.
///
/// # Panics
/// If it is not there, or does not end by itself.
pub fn softrnic(args: &[&str]) -> (i32, String) {
    let out = Command::new(program()).args(args).output().expect("softrnic");
    let text = [out.stdout, out.stderr].concat();
    (out.status.code().expect("it ends by itself"), String::from_utf8_lossy(&text).into_owned())
}
