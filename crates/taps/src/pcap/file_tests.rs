use std::fs;
use std::path::PathBuf;

use super::*;

/// A file that is removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("softrnic-pcap-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        Temporary(path)
    }

    fn join(&self, device: u64) -> Capture {
        Capture::join(&self.0, "program[7]", "softrnic0", device, 65535).unwrap()
    }

    /// The types of the blocks; checks that both lengths of each agree, and that nothing is left over.
    fn blocks(&self) -> Vec<u32> {
        let bytes = fs::read(&self.0).unwrap();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < bytes.len() {
            let len = word(at + 4) as usize;
            assert_eq!(word(at + len - 4) as usize, len);
            kinds.push(word(at));
            at += len;
        }
        assert_eq!(at, bytes.len());
        let section = u64::from_ne_bytes(bytes[16..24].try_into().unwrap());
        assert_eq!(section + u64::from(word(4)), bytes.len() as u64);
        kinds
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const PACKET: u32 = 6;

fn packet() -> Vec<u8> {
    let mut out = Vec::new();
    let captured =
        pcapng::Captured { interface: 0, time: 1, bytes: &[1, 2, 3], length: 3, outbound: true, comment: Some("é!") };
    pcapng::packet(&mut out, &captured);
    out
}

#[test]
fn processes_share_a_section() {
    let file = Temporary::new("share");
    let mut a = file.join(11);
    a.add(&packet(), 1).unwrap();
    let mut b = file.join(22);
    assert_eq!((a.interface, b.interface), (0, 1));
    b.add(&packet(), 1).unwrap();
    a.add(&packet(), 1).unwrap();
    let c = file.join(33);
    assert_eq!(c.interface, 2);
    use pcapng::{INTERFACE, SECTION};
    assert_eq!(file.blocks(), [SECTION, INTERFACE, PACKET, INTERFACE, PACKET, PACKET, INTERFACE]);
    assert!(a.has(22) && a.has(33) && a.has(11) && !a.has(44));
}

#[test]
fn interfaces_are_found_behind_much_else() {
    let file = Temporary::new("far");
    let mut a = file.join(11);
    let mut batch = Vec::new();
    for _ in 0..5000 {
        batch.extend(packet());
    }
    a.add(&batch, 5000).unwrap();
    assert!(batch.len() > 2 * LOOK);
    assert_eq!(file.join(22).interface, 1);
    assert_eq!(file.join(33).interface, 2);
    assert!(a.has(22) && a.has(33));
}

#[test]
fn what_a_dead_process_did_not_finish_is_cut_off() {
    let file = Temporary::new("torn");
    let mut a = file.join(11);
    a.add(&packet(), 1).unwrap();
    let whole = file.blocks();
    let end = fs::metadata(&file.0).unwrap().len();
    a.file.write_all_at(&packet()[..9], end).unwrap();
    a.add(&packet(), 1).unwrap();
    assert_eq!(file.blocks(), [whole, vec![PACKET]].concat());
}

#[test]
fn no_more_than_may_be_written_is() {
    let file = Temporary::new("limit");
    let mut a = file.join(11);
    let whole = file.blocks();
    a.limit = fs::metadata(&file.0).unwrap().len() + 20;
    assert_eq!(a.add(&packet(), 1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    assert_eq!(file.blocks(), whole);
}

#[test]
fn a_lock_that_is_not_given_back_is_not_waited_for_again() {
    let file = Temporary::new("lock");
    let mut a = file.join(11);
    let holder = File::open(&file.0).unwrap();
    holder.lock().unwrap();
    a.add(&packet(), 2).unwrap();
    let before = Instant::now();
    a.add(&packet(), 3).unwrap();
    assert!(before.elapsed() < PATIENCE);
    holder.unlock().unwrap();
    assert_eq!(a.take_missed(), 5);
    a.add(&packet(), 1).unwrap();
    assert_eq!(file.blocks().len(), 3);
}

#[test]
fn other_files_are_left_alone() {
    let file = Temporary::new("other");
    fs::write(&file.0, "this is a letter and not any capture").unwrap();
    let error = Capture::join(&file.0, "", "", 1, 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(fs::read(&file.0).unwrap().len(), 36);
    // The descriptor's number may also become another file's in the middle of writing.
    let file = Temporary::new("other2");
    let mut a = file.join(11);
    fs::write(&file.0, "another letter").unwrap();
    assert!(a.add(&packet(), 1).is_err());
    assert_eq!(fs::read(&file.0).unwrap(), b"another letter");
}

#[test]
fn softrnic_run_replaces_what_nobody_uses() {
    let file = Temporary::new("prepare");
    fs::write(&file.0, "from before").unwrap();
    assert_eq!(prepare(&file.0).unwrap(), Prepared::Empty);
    assert_eq!(file.blocks(), [pcapng::SECTION]);
    assert_eq!(file.join(11).interface, 0);
    assert_eq!(prepare(&file.0).unwrap(), Prepared::Empty);
    assert_eq!(prepare(Path::new("/dev/null")).unwrap(), Prepared::Stream);
    assert_eq!(prepare(Path::new("/no/such/folder")).unwrap_err().kind(), io::ErrorKind::NotFound);
}
