//! Tests of the locks of files on this node, with one `FileLocks` for each process.

use std::fs::{self, File};
use std::path::Path;

use quell_vfs::TO_END;

use super::*;

const FILE: u64 = 7;
const ROUNDS: usize = 2_000;

fn locks(dir: &Path) -> FileLocks {
    FileLocks::new(OwnedFd::from(File::open(dir).unwrap()))
}

/// A lock without a conflicting lock succeeds while other owners lock and release the file.
#[test]
fn a_release_does_not_conflict_with_locks_of_other_owners() {
    let dir = tempfile::tempdir().unwrap();
    let process = locks(dir.path());
    std::thread::scope(|scope| {
        for owner in 0..3 {
            let (shared, own) = (&process, locks(dir.path()));
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // Owners of this process and of others take turns.
                    let locks = if round % 2 == 0 { shared } else { &own };
                    let bytes = LockScope::Bytes { first: 0, last: TO_END };
                    for range in [bytes, LockScope::WholeFile] {
                        let found =
                            locks.conflicting(FILE, LockOwner(owner), range, LockMode::Shared).unwrap();
                        assert_eq!(found, None);
                        assert!(locks.try_lock(FILE, LockOwner(owner), range, LockMode::Shared).unwrap());
                    }
                    locks.release(FILE, LockOwner(owner)).unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_file_remains_while_an_owner_has_a_lock() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (locks(dir.path()), locks(dir.path()));
    let try_lock = |locks: &FileLocks, owner, scope| {
        locks.try_lock(FILE, LockOwner(owner), scope, LockMode::Exclusive).unwrap()
    };
    let last_bytes = LockScope::Bytes { first: WHOLE_FILE - 1, last: TO_END };
    for scope in
        [LockScope::WholeFile, LockScope::Bytes { first: 0, last: 0 }, last_bytes, LockScope::Everything]
    {
        assert!(try_lock(&first, 1, scope));
        assert!(!try_lock(&second, 2, scope));
        second.release(FILE, LockOwner(2)).unwrap();
        assert!(!try_lock(&second, 2, scope), "{scope:?}");
        assert!(second.conflicting(FILE, LockOwner(2), scope, LockMode::Shared).unwrap().is_some());
        first.release(FILE, LockOwner(1)).unwrap();
        assert!(try_lock(&second, 2, scope), "{scope:?}");
        second.unlock(FILE, LockOwner(2), LockScope::Everything).unwrap();
        assert!(try_lock(&first, 1, scope), "{scope:?}");
        second.release(FILE, LockOwner(2)).unwrap();
        first.release(FILE, LockOwner(1)).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
