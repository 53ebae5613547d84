//! Tests handles whose user's credentials cannot be assumed.

use quell_testkit::MemoryStore;
use quell_vfs::NewEntry;

use super::*;
use crate::fs::create::create_file;
use crate::fs::mount::{EntryName, Mount};
use crate::fs::nodes::ROOT;
use crate::session::Choices;
use crate::test_stores::{host, opened_by};

const A: LockOwner = LockOwner(1);
const B: LockOwner = LockOwner(2);

/// The ways in which locks are released.
#[derive(Debug, Clone, Copy)]
enum Release {
    Unlock,
    End,
    Close,
}

#[test]
fn locks_are_released_even_if_the_credentials_of_the_user_cannot_be_assumed() {
    for release in [Release::Unlock, Release::End, Release::Close] {
        let store = MemoryStore::new();
        let mount = Mount::new(opened_by(&[store], host(1, 1)), Choices::default());
        let at = EntryName { dir: ROOT, name: b"f" };
        let new = NewEntry { permissions: 0o640, uid: 1000, gid: 100 };
        let (attributes, mut file) = create_file(&mount, at, new, OpenMode::READ_WRITE, 1).unwrap();
        let shared = mount.files.get(attributes.node).unwrap();
        let other = Handle::open(shared, attributes.node, OpenMode::READ_WRITE, 2, false).unwrap();
        let lock = |file: &Handle, owner| file.try_lock(owner, LockScope::WholeFile, LockMode::Exclusive);
        assert!(lock(&file, A).unwrap());
        assert!(!lock(&other, B).unwrap());
        // No user has this number, so not even root can assume the credentials.
        file.credentials = Some(Arc::new(Caller { uid: u32::MAX, gid: 0, groups: Vec::new() }));
        let released = match release {
            Release::Unlock => file.unlock(A, LockScope::WholeFile),
            Release::End => FileLocks::release(&file, A),
            Release::Close => file.close(),
        };
        assert!(released.is_err(), "{release:?}");
        assert!(lock(&other, B).unwrap(), "{release:?}");
    }
}
