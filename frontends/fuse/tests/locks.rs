//! Tests that locks of programs reach the served file system, and where they are kept. If this
//! machine allows no mounts, the tests print `SKIPPED:` and the reason.

mod mounted;

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use mounted::mounted;
use quell_fuse::{LockKeeper, Options};
use quell_testkit::WritableModel;
use quell_vfs::{Change, Context, NodeId, Writable};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The time limit that detects a hang.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a model whose root belongs to this process's user.
fn model() -> WritableModel {
    let model = WritableModel::new();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mine = Change { uid: Some(uid), gid: Some(gid), ..Change::default() };
    model.change(&Context::OWN, NodeId(0), &mine).unwrap();
    model
}

fn open(dir: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).open(dir.join("file")).unwrap()
}

const TRY_EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

#[test]
fn locks_in_the_file_system_hold_between_its_mounts() {
    let model = model();
    let options = Options::default();
    let Some((_one, here)) = mounted(Arc::new(model.clone()), &options) else { return };
    let Some((_other, there)) = mounted(Arc::new(model.clone()), &options) else { return };
    let (first, twin, second) = (open(here.path()), open(here.path()), open(there.path()));
    flock(&first, TRY_EXCLUSIVE).unwrap();
    for file in [&twin, &second] {
        assert_eq!(flock(file, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK));
    }
    flock(&first, FlockOperation::NonBlockingLockShared).unwrap();
    flock(&second, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(flock(&first, TRY_EXCLUSIVE), Err(Errno::WOULDBLOCK));
    flock(&second, FlockOperation::Unlock).unwrap();
    flock(&first, TRY_EXCLUSIVE).unwrap();
    // The lock ends with its last descriptor, and a program that tries afterwards gets it.
    drop(first);
    flock(&twin, TRY_EXCLUSIVE).unwrap();
}

#[test]
fn a_request_that_waits_occupies_no_worker() {
    // A single worker: if it waited, no other request would be answered.
    let options = Options { threads: 1, ..Options::default() };
    let Some((session, dir)) = mounted(Arc::new(model()), &options) else { return };
    let held = open(dir.path());
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let (done, is_done) = mpsc::channel();
    let waiting: Vec<_> = (0..5)
        .map(|number| {
            let (file, done) = (open(dir.path()), done.clone());
            thread::spawn(move || {
                flock(&file, FlockOperation::LockExclusive).unwrap();
                done.send(number).unwrap();
            })
        })
        .collect();
    while session.counters().snapshot().lock_waits < 5 {
        fs::write(dir.path().join("other"), b"served meanwhile").unwrap();
    }
    assert!(is_done.try_recv().is_err(), "the lock is held");
    flock(&held, FlockOperation::Unlock).unwrap();
    // Each thread closes its file, and so passes the lock on.
    let mut got: Vec<i32> = (0..5).map(|_| is_done.recv_timeout(HANG_TIMEOUT).unwrap()).collect();
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2, 3, 4]);
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn locks_are_kept_where_the_option_says() {
    for (locks, between_mounts, on_one_mount) in [
        (LockKeeper::Kernel, Ok(()), Err(Errno::WOULDBLOCK)),
        (LockKeeper::Nowhere, Err(Errno::NOLCK), Err(Errno::NOLCK)),
    ] {
        let (model, options) = (model(), Options { locks, ..Options::default() });
        let Some((_one, here)) = mounted(Arc::new(model.clone()), &options) else { return };
        let Some((_other, there)) = mounted(Arc::new(model.clone()), &options) else { return };
        let (first, twin, second) = (open(here.path()), open(here.path()), open(there.path()));
        let taken = flock(&first, TRY_EXCLUSIVE);
        assert_eq!(taken.is_ok(), locks == LockKeeper::Kernel, "{locks:?}");
        assert_eq!(flock(&twin, TRY_EXCLUSIVE), on_one_mount, "{locks:?}");
        assert_eq!(flock(&second, TRY_EXCLUSIVE), between_mounts, "{locks:?}");
    }
}
