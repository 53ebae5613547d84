//! The locks with which the processes that use a store detect each other (docs/formats/log.md,
//! Processes that use a store).

use quell_posix::{LockedRange, OpenFile, RangeLocks, WritableDir};
use quell_vfs::{ErrorKind, LockMode, Result};

use crate::format::STORE_RECORD;
use crate::locks::{Rank, RankedMutex};

/// Each process that uses the store has a shared lock on this byte of the store's record. The byte
/// is beyond the content of the record.
const USER_BYTE: u64 = 64;
/// A process has an exclusive lock on this byte while it is or becomes the only user.
const ONLY_USER_BYTE: u64 = 65;

/// The open record of a store.
pub(crate) struct UseLock {
    /// The open record with the shared lock.
    file: Box<dyn OpenFile>,
    /// The open record with the exclusive lock. While the record is open for writing, the file
    /// system cannot become read-only, so it is closed as soon as the store is shared.
    only: RankedMutex<Option<Box<dyn OpenFile>>>,
    may_be_only_user: bool,
}

impl UseLock {
    /// Opens the record of a store whose `.quell` directory is `own`. Only the owner of the store
    /// can become its only user, and only if the file system has locks on which all nodes can rely.
    pub fn open(own: &dyn WritableDir, uid: u32) -> Result<UseLock> {
        let file = own.open_file(STORE_RECORD)?;
        let are_reliable = file.locks().and_then(RangeLocks::are_reliable) == Some(true);
        let stat = file.stat()?;
        // If the record has several links, a lock may belong to a process that uses another store.
        let may_be_only_user = are_reliable && stat.nlink == 1 && stat.uid == uid;
        Ok(UseLock { file, only: RankedMutex::new(Rank::Leaf, None), may_be_only_user })
    }

    /// Registers this process as a user of the store, even if locks may be visible on this node
    /// only: other nodes may use the store through another type of file system, and the server may
    /// check the locks of both types against each other. Returns false if another process has
    /// locked the byte exclusively, which no user of the store does.
    pub fn register(&self) -> Result<bool> {
        self.file.locks().map_or(Ok(true), |locks| locks.try_lock_on_node(range(USER_BYTE, LockMode::Shared)))
    }

    /// Returns whether another process is the only user, which then notices that this one is
    /// registered, and shares the store.
    pub fn has_only_user(&self) -> Result<bool> {
        let Some(locks) = self.file.locks() else { return Ok(false) };
        Ok(locks.conflicting_on_node(range(ONLY_USER_BYTE, LockMode::Shared))?.is_some())
    }

    /// Makes this process the only user of the store whose `.quell` directory is `own`, or confirms
    /// that it still is. Returns false if another process uses it, or if `may_be`, which is called
    /// while other processes wait, returns false. If this process was the only user before, it
    /// remains registered as such until [`share`](Self::share).
    pub fn be_only_user(&self, own: &dyn WritableDir, may_be: &dyn Fn() -> Result<bool>) -> Result<bool> {
        let Some(locks) = self.file.locks().filter(|_| self.may_be_only_user) else { return Ok(false) };
        let opened = self.only.lock().take();
        let was_only_user = opened.is_some();
        let only = match opened {
            Some(only) => only,
            None => match own.open_writable_file(STORE_RECORD) {
                Ok(only) if only.stat()?.identity() == self.file.stat()?.identity() => only,
                Err(error) if !matches!(error.kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnly) => {
                    return Err(error);
                }
                _ => return Ok(false),
            },
        };
        let is_only_user = self.is_only_user(locks, &*only).and_then(|is_alone| Ok(is_alone && may_be()?));
        if was_only_user || matches!(is_only_user, Ok(true)) {
            *self.only.lock() = Some(only);
        }
        is_only_user
    }

    /// Both locks are taken again each time, because a file system may have removed the locks of a
    /// node that did not answer. Each process takes its own lock before it looks for the locks of
    /// others, so of two processes at least one finds the other.
    fn is_only_user(&self, locks: &dyn RangeLocks, only: &dyn OpenFile) -> Result<bool> {
        Ok(locks.try_lock(range(USER_BYTE, LockMode::Shared))?
            && match only.locks() {
                Some(only) => only.try_lock(range(ONLY_USER_BYTE, LockMode::Exclusive))?,
                None => false,
            }
            && locks.conflicting(range(USER_BYTE, LockMode::Exclusive))?.is_none())
    }

    /// Shares the store with other users.
    pub fn share(&self) {
        let only = self.only.lock().take();
        drop(only); // the lock ends when the file is closed
    }
}

fn range(byte: u64, mode: LockMode) -> LockedRange {
    LockedRange { first: byte, last: byte, mode }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quell_posix::PosixDir;
    use quell_testkit::MemoryStore;

    use super::*;

    fn record(temp: &tempfile::TempDir) -> Arc<dyn WritableDir> {
        let dir = PosixDir::open(temp.path()).unwrap();
        drop(dir.create_file(STORE_RECORD, 0o644).unwrap());
        Arc::new(dir)
    }

    fn open(own: &Arc<dyn WritableDir>) -> UseLock {
        let uid = own.stat(STORE_RECORD).unwrap().uid;
        UseLock::open(&**own, uid).unwrap()
    }

    /// Registers a user. Returns true if it may use the store at once.
    fn begins(user: &UseLock) -> bool {
        assert!(user.register().unwrap());
        !user.has_only_user().unwrap()
    }

    /// Makes a user the only one, or confirms it. Returns false if there is another.
    fn is_only(user: &UseLock, own: &Arc<dyn WritableDir>) -> bool {
        user.be_only_user(&**own, &|| Ok(true)).unwrap()
    }

    /// The store may have changed before the process became its only user.
    #[test]
    fn a_failed_check_leaves_the_store_shared_unless_the_process_was_its_only_user() {
        let temp = tempfile::tempdir().unwrap();
        let own = record(&temp);
        let first = open(&own);
        assert!(begins(&first) && !first.be_only_user(&*own, &|| Ok(false)).unwrap());
        let lost = || Err(quell_vfs::Error::new(ErrorKind::NotFound, "read", b"a map"));
        assert!(first.be_only_user(&*own, &lost).is_err());
        let second = open(&own);
        assert!(begins(&second), "the store is shared");
        drop(second);
        assert!(is_only(&first, &own));
        assert!(!first.be_only_user(&*own, &|| Ok(false)).unwrap());
        let third = open(&own);
        assert!(!begins(&third), "the kernel of the first may still keep names");
        first.share();
        assert!(begins(&third));
    }

    #[test]
    fn a_second_user_waits_until_the_only_user_shares_the_store() {
        let temp = tempfile::tempdir().unwrap();
        let own = record(&temp);
        let (first, second) = (open(&own), open(&own));
        assert!(begins(&first));
        assert!(is_only(&first, &own) && is_only(&first, &own));
        assert!(!begins(&second));
        assert!(!is_only(&first, &own), "the second waits");
        assert!(!begins(&second), "the first has not shared the store yet");
        first.share();
        assert!(begins(&second));
        assert!(!is_only(&first, &own) && !is_only(&second, &own));
        assert!(begins(&first) && begins(&second), "neither is left registered");
        drop(second);
        assert!(is_only(&first, &own));
    }

    #[test]
    fn several_processes_wait_at_the_same_time_and_one_that_ends_is_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let own = record(&temp);
        let (first, second, third) = (open(&own), open(&own), open(&own));
        assert!(begins(&first) && is_only(&first, &own));
        assert!(!begins(&second) && !begins(&third));
        drop(second);
        assert!(!is_only(&first, &own));
        drop(third);
        assert!(is_only(&first, &own));
        drop(first);
        assert!(begins(&open(&own)), "nothing is left of a process that has ended");
    }

    #[test]
    fn only_the_owner_of_the_store_becomes_its_only_user() {
        let temp = tempfile::tempdir().unwrap();
        let own = record(&temp);
        let other = UseLock::open(&*own, own.stat(STORE_RECORD).unwrap().uid + 1).unwrap();
        assert!(begins(&other) && !is_only(&other, &own));
        let owner = open(&own);
        assert!(begins(&owner) && !is_only(&owner, &own));
        drop(other);
        assert!(is_only(&owner, &own));
    }

    #[test]
    fn a_process_with_a_record_that_has_another_name_takes_part_but_is_not_the_only_user() {
        let temp = tempfile::tempdir().unwrap();
        let own = record(&temp);
        let first = open(&own);
        std::fs::hard_link(temp.path().join("store"), temp.path().join("other")).unwrap();
        let second = open(&own);
        assert!(begins(&first) && is_only(&first, &own));
        assert!(!begins(&second));
        first.share();
        assert!(begins(&second) && !is_only(&first, &own));
        drop(first);
        assert!(!is_only(&second, &own));
    }

    /// The locks of NFS 3 conflict with those of NFS 4 and of the server, for example.
    #[test]
    fn a_process_whose_locks_are_not_reliable_takes_part_but_is_not_the_only_user() {
        let store = MemoryStore::new();
        let own: Arc<dyn WritableDir> = store.root();
        drop(own.create_file(STORE_RECORD, 0o644).unwrap());
        let first = open(&own);
        store.set_locks_reliable(false);
        let second = open(&own);
        assert!(begins(&first) && is_only(&first, &own));
        assert!(!begins(&second), "it waits");
        assert!(!is_only(&first, &own), "it is noticed");
        first.share();
        assert!(begins(&second) && !is_only(&first, &own));
        drop(first);
        assert!(!is_only(&second, &own), "it is never the only user");
    }
}
