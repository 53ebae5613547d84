//! Creates files in batches, commits them, and looks them up.
//!
//! `cargo bench -p quell-batch-service --bench creates [-- FILES DIR]` prints the time and the
//! processor time of each step for a number of files (1,000,000), with the tables in a directory
//! (the one for temporary files).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use quell_batch_service::{
    BatchCaller, BatchState, Entries, Image, MEMORY_BYTES, Names, NewBatch, NewNode, Primary, ROOT, TableDir,
};
use quell_kv::{DiskOptions, DiskStore};
use quell_vfs::{NewEntry, Time};
use rustix::time::{ClockId, clock_gettime};

const NEW: NewEntry = NewEntry { permissions: 0o755, uid: 0, gid: 0 };

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let files: u64 = arguments.next().map_or(1_000_000, |text| text.parse().expect("a number of files"));
    let base = arguments.next().map_or(std::env::temp_dir(), PathBuf::from);
    let directory = tempfile::tempdir_in(base).expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let store = Arc::new(DiskStore::open(&at("kv"), &DiskOptions::default()).expect("a store"));
    Image::create(&*store, 1, NEW, now()).expect("an image");
    let primary = Primary::open(store, Arc::new(tables(&at("image")))).expect("a primary server");

    let caller = BatchCaller { uid: 0, gid: 0, groups: Vec::new() };
    let new = NewBatch { name: "bench".into(), caller, subtree: ROOT, is_atomic: false };
    let record = step("begin", 1, || primary.begin(new.clone()).expect("a batch"));
    let own = Arc::new(tables(&at("batch")));
    let mut names = primary.private(&record, own.clone(), MEMORY_BYTES).expect("a private name space");
    let dir = names.create(ROOT, b"dir", NewNode::Dir, NEW, now()).expect("a directory").inode.number;
    step("create", files, || create(&mut names, dir, files));
    let certificate = step("write tables and certificate", files, || {
        names.0.submit(primary.store_number(), &record, &*own, 0).expect("a certificate")
    });
    println!("certificate: {} bytes", certificate.encode().len());
    let committed = step("verify and commit", files, || {
        primary.commit(record.number, &certificate, &*own).expect("a commit")
    });
    assert!(matches!(committed.state, BatchState::Committed { entries, .. } if entries == files + 1));
    let other =
        step("begin with a snapshot of these files", 1, || primary.begin(new.clone()).expect("a batch"));
    primary.abort(other.number).expect("an end of the batch");
    let image = primary.name_space();
    step("look up in random order", files / 10, || {
        for number in 0..files / 10 {
            let name = format!("file.{}", number.wrapping_mul(2_654_435_761) % files);
            image.lookup(dir, name.as_bytes()).expect("a look-up").expect("a file");
        }
    });
    step("create synchronously", files / 100, || {
        for number in 0..files / 100 {
            let name = format!("later.{number}");
            image.create(dir, name.as_bytes(), NewNode::File, NEW, now()).expect("a file");
        }
    });
    // In a directory of the snapshot, each name is compared with the image.
    for (name, others) in [("none", 0), ("some", files / 100)] {
        let existing = image.create(ROOT, name.as_bytes(), NewNode::Dir, NEW, now()).expect("a directory");
        let existing = existing.inode.number;
        let new = NewBatch { subtree: existing, ..new.clone() };
        let record = primary.begin(new).expect("a batch");
        let own = Arc::new(tables(&at(name)));
        let mut names = primary.private(&record, own.clone(), MEMORY_BYTES).expect("a private name space");
        create(&mut names, existing, files);
        for number in 0..others {
            let name = format!("file.{}", number * 100);
            image.create(existing, name.as_bytes(), NewNode::File, NEW, now()).expect("a file");
        }
        let certificate = names.0.submit(primary.store_number(), &record, &*own, 0).expect("a certificate");
        let title = format!("verify and commit in a directory of the snapshot, {others} conflicts");
        let committed =
            step(&title, files, || primary.commit(record.number, &certificate, &*own).expect("a commit"));
        assert!(
            matches!(committed.state, BatchState::Committed { conflicts, .. } if conflicts.count == others)
        );
    }
}

fn create<E: Entries>(names: &mut Names<E>, dir: u64, files: u64) {
    for number in 0..files {
        let name = format!("file.{number}");
        names.create(dir, name.as_bytes(), NewNode::File, NEW, now()).expect("a file");
    }
}

fn step<T>(name: &str, operations: u64, run: impl FnOnce() -> T) -> T {
    let (start, processor) = (Instant::now(), processor_seconds());
    let result = run();
    let (elapsed, processor) = (start.elapsed().as_secs_f64(), processor_seconds() - processor);
    let each = processor * 1e6 / operations.max(1) as f64;
    let rate = operations as f64 / elapsed;
    println!("{name}: {elapsed:.3} s, {rate:.0}/s, {each:.2} us of processor time each");
    result
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn now() -> Time {
    let time = clock_gettime(ClockId::Realtime);
    Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 }
}

fn tables(path: &Path) -> TableDir {
    std::fs::create_dir_all(path).expect("a directory");
    TableDir::new(OwnedFd::from(File::open(path).expect("a directory")))
}
