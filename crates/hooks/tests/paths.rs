//! The hooks linked into this program answer its own calls, as they do from a preloaded library.

use hooks as _;
use std::ffi::CStr;
use std::fs;
use std::path::Path;

const DEVICE: &str = "/sys/class/infiniband/softrnic0";

#[test]
fn files_can_be_read() {
    assert_eq!(fs::read_to_string(format!("{DEVICE}/ports/1/pkeys/0")).unwrap(), "0xffff\n");
    assert_eq!(fs::read_to_string("//sys/./class/infiniband_verbs/uverbs0/ibdev").unwrap(), "softrnic0\n");
    assert!(fs::metadata(DEVICE).unwrap().is_dir());
    assert!(fs::symlink_metadata(format!("{DEVICE}/device/net")).unwrap().is_dir());
    assert!(fs::OpenOptions::new().read(true).write(true).open("/dev/infiniband/uverbs0").is_ok());
    assert!(!Path::new("/sys/class/infiniband/nonesuch").exists());
}

#[test]
fn directories_can_be_listed() {
    let names: Vec<_> =
        fs::read_dir("/sys/class/infiniband").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["softrnic0"]);
    let gids = fs::read_dir(format!("{DEVICE}/ports/1/gids")).unwrap().count();
    assert_eq!(gids, view::hostaddr::table_len(view::hostaddr::gids().len()));
}

#[test]
fn resolved_paths_are_those_the_program_knows() {
    let found = fs::canonicalize("/sys/class/infiniband_verbs/uverbs0/device").unwrap();
    assert_eq!(found, Path::new("/sys/class/infiniband/softrnic0/device"));
    let link = fs::read_dir(format!("{DEVICE}/device/net")).unwrap().next().unwrap().unwrap().path();
    assert!(fs::read_link(link).unwrap().starts_with("/sys/class/net"));
}

#[test]
fn patterns_expand_to_paths_that_the_program_knows() {
    let pattern = c"/sys/class/infiniband/*/node_g?id";
    // SAFETY: a zeroed glob_t is what glob expects; what it stores is read before globfree.
    let found = unsafe {
        let mut out: libc::glob_t = std::mem::zeroed();
        assert_eq!(libc::glob(pattern.as_ptr(), 0, None, &mut out), 0);
        assert_eq!(out.gl_pathc, 1);
        let found = CStr::from_ptr(*out.gl_pathv).to_owned();
        libc::globfree(&mut out);
        found
    };
    assert_eq!(found.as_c_str(), c"/sys/class/infiniband/softrnic0/node_guid");
}

#[test]
fn everything_else_is_as_before() {
    assert!(fs::read_to_string("/proc/self/stat").is_ok());
    assert!(fs::read_dir("/sys/class").is_ok());
    assert_eq!(fs::canonicalize("/proc/self/").unwrap(), Path::new("/proc").join(std::process::id().to_string()));
    let error = fs::read("/sys/class/infinibandx").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}
