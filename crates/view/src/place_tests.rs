use super::*;
use crate::tree::tests::info;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

/// A directory of the test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let dir = draft_name(&std::env::temp_dir()).unwrap();
        std::fs::create_dir(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

#[test]
fn making_twice_finds_the_first() {
    let scratch = Scratch::new();
    let entries = tree::entries(&[info()]);
    let root = make_in(&scratch.0, &entries).unwrap();
    let inode = std::fs::metadata(&root).unwrap().ino();
    assert_eq!(make_in(&scratch.0, &entries).unwrap(), root);
    assert_eq!(std::fs::metadata(&root).unwrap().ino(), inode);
    let names: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().collect();
    assert_eq!(names.len(), 1, "no drafts stay behind");
    assert_eq!(std::fs::read_to_string(root.join("class/infiniband/softrnic0/ports/1/pkeys/0")).unwrap(), "0xffff\n");
}

#[test]
fn a_damaged_tree_is_replaced() {
    let scratch = Scratch::new();
    let entries = tree::entries(&[info()]);
    let root = make_in(&scratch.0, &entries).unwrap();
    std::fs::remove_dir_all(root.join("class/infiniband")).unwrap();
    assert_eq!(make_in(&scratch.0, &entries).unwrap(), root);
    assert!(tree::is_complete(&root, &entries));
}

#[test]
fn many_at_once_agree() {
    let scratch = Scratch::new();
    let entries = tree::entries(&[info()]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(tree::is_complete(&make_in(&scratch.0, &entries).unwrap(), &entries)));
        }
    });
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 1);
}

#[test]
fn a_planted_link_or_an_open_directory_is_not_used() {
    let scratch = Scratch::new();
    let elsewhere = Scratch::new();
    let name = format!("softrnic-{}", geteuid().as_raw());
    symlink(&elsewhere.0, scratch.0.join(&name)).unwrap();
    let open = scratch.0.join(format!("{name}.1"));
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let dir = private_dir(&scratch.0).unwrap();
    assert_eq!(dir, scratch.0.join(format!("{name}.2")));
    assert_eq!(std::fs::metadata(dir).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn where_all_names_are_held_the_name_is_random() {
    let scratch = Scratch::new();
    let name = format!("softrnic-{}", geteuid().as_raw());
    std::fs::write(scratch.0.join(&name), "").unwrap();
    for n in 1..ATTEMPTS {
        std::fs::write(scratch.0.join(format!("{name}.{n}")), "").unwrap();
    }
    let (one, other) = (private_dir(&scratch.0).unwrap(), private_dir(&scratch.0).unwrap());
    assert_ne!(one, other);
    assert_eq!(std::fs::metadata(one).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn public_paths() {
    let root = Path::new("/tmp/v");
    let public = |path: &str| public_path(root, path.as_bytes());
    assert_eq!(public("/tmp/v/class/infiniband/x"), Some("/sys/class/infiniband/x".into()));
    assert_eq!(public("/tmp/v/dev/infiniband"), Some("/dev/infiniband".into()));
    assert_eq!(public("/tmp/v"), None);
    assert_eq!(public("/tmp/vclass/infiniband"), None);
    assert_eq!(public("/sys/class/infiniband"), None);
}
