//! Tests locks when the store refuses them, and when the file on which they are taken is replaced
//! or removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_posix::{PosixDir, WritableDir};
use quell_testkit::{CountingDir, MemoryStore};
use quell_vfs::errno::{EACCES, EBADF, EBUSY, EIO, ENOLCK, ENOSPC};
use quell_vfs::{
    Change, Context, FileLocks, FileSystem, LockMode, LockOwner, LockScope, NewEntry, OpenMode, Rename,
    Writable, WritableFile,
};

use crate::fs::file_system::LogFs;
use crate::session::Choices;
use crate::stores::Stores;
use crate::test_stores::{again, container, host, make, mount};

const A: LockOwner = LockOwner(1);
const B: LockOwner = LockOwner(2);

fn locks(file: &dyn WritableFile) -> &dyn FileLocks {
    file.locks().unwrap()
}

/// Tries to lock all bytes exclusively.
fn lock(file: &dyn WritableFile, owner: LockOwner) -> quell_vfs::Result<bool> {
    locks(file).try_lock(owner, LockScope::ALL_BYTES, LockMode::Exclusive)
}

fn unlock(file: &dyn WritableFile, owner: LockOwner) -> quell_vfs::Result<()> {
    locks(file).unlock(owner, LockScope::ALL_BYTES)
}

#[test]
fn a_store_that_refuses_locks_gives_enolck_and_the_file_stays_usable() {
    let store = MemoryStore::new();
    let fs = mount(std::slice::from_ref(&store), 1, 1);
    let file = make(&fs, "f", 1);
    store.fail(|operation| operation.verb.contains("lock").then_some(ENOLCK));
    assert_eq!(lock(&*file, A).unwrap_err().errno(), ENOLCK);
    let found = locks(&*file).conflicting(A, LockScope::ALL_BYTES, LockMode::Shared);
    assert_eq!(found.unwrap_err().errno(), ENOLCK);
    unlock(&*file, A).unwrap();
    locks(&*file).release(A).unwrap();
    file.write_at(b"written", 0).unwrap();
    file.close().unwrap();
    // Root changes the owner of a file in such a store.
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    fs.change(&Context::OWN, node, &Change { gid: Some(101), ..Change::default() }).unwrap();
}

#[test]
fn an_owner_keeps_no_descriptor_after_its_last_lock() {
    let store = MemoryStore::new();
    let fs = mount(std::slice::from_ref(&store), 1, 1);
    let (file, other) = (make(&fs, "f", 1), again(&fs, "f", 2));
    let before = store.open_handles();
    assert!(lock(&*file, A).unwrap());
    assert_eq!(store.open_handles(), before + 1);
    assert!(!lock(&*other, B).unwrap());
    assert_eq!(store.open_handles(), before + 1, "a failed attempt keeps nothing open");
    locks(&*file).unlock(A, LockScope::Bytes { first: 5, last: 6 }).unwrap();
    assert_eq!(store.open_handles(), before + 1);
    unlock(&*file, A).unwrap();
    assert_eq!(store.open_handles(), before);
    assert!(lock(&*other, B).unwrap());
    fs.end().unwrap();
    assert!(store.open_handles() <= before, "the end of a mount ends the locks");
}

#[test]
fn an_unlock_publishes_first_and_unlocks_even_if_that_fails() {
    let store = MemoryStore::new();
    let (here, there) =
        (mount(std::slice::from_ref(&store), 1, 1), mount(std::slice::from_ref(&store), 2, 1));
    let file = make(&here, "f", 1);
    let other = again(&there, "f", 1);
    assert!(lock(&*file, A).unwrap());
    file.write_at(b"under the lock", 0).unwrap();
    store.fail(|operation| (operation.verb == "write").then_some(ENOSPC));
    assert_eq!(unlock(&*file, A).unwrap_err().errno(), ENOSPC);
    store.fail_nothing();
    assert!(lock(&*other, B).unwrap(), "the lock was removed");
    unlock(&*other, B).unwrap();
    // The data was kept, and the next unlock publishes it.
    assert!(lock(&*file, A).unwrap());
    unlock(&*file, A).unwrap();
    assert!(lock(&*other, B).unwrap());
    let mut bytes = [0; 14];
    assert_eq!(other.read_at(&mut bytes, 0).unwrap(), 14);
    assert_eq!(&bytes, b"under the lock");
}

/// A close and the end of a process release locks without an unlock.
#[test]
fn a_lock_that_ends_with_a_close_passes_all_data_to_the_next_owner() {
    let store = MemoryStore::new();
    let root: Arc<dyn WritableDir> = store.root_on_delaying_node();
    let here = LogFs::new(Stores::open(vec![root], host(1, 1), 4).unwrap(), Choices::default());
    let there = mount(std::slice::from_ref(&store), 2, 1);
    let (file, of_child) = (make(&here, "f", 1), again(&here, "f", 2));
    let next = again(&there, "f", 1);
    for is_last_close in [false, true] {
        let expected = if is_last_close { b"written last" } else { b"written now." };
        assert!(lock(&*file, A).unwrap());
        file.write_at(&expected[..6], 0).unwrap();
        of_child.write_at(&expected[6..], 6).unwrap();
        if is_last_close {
            file.close().unwrap();
        } else {
            file.publish().unwrap();
            locks(&*file).release(A).unwrap();
        }
        assert!(lock(&*next, B).unwrap());
        let mut bytes = [0; 12];
        assert_eq!(next.read_at(&mut bytes, 0).unwrap(), 12);
        assert_eq!(&bytes, expected);
        unlock(&*next, B).unwrap();
    }
}

#[test]
fn a_lock_after_which_published_data_cannot_be_read_is_given_back() {
    let store = MemoryStore::new();
    let (here, there) =
        (mount(std::slice::from_ref(&store), 1, 1), mount(std::slice::from_ref(&store), 2, 1));
    let file = make(&here, "f", 1);
    let other = again(&there, "f", 1);
    assert_eq!(other.read_at(&mut [0], 0).unwrap(), 0); // `refresh` reads only for readers
    file.write_at(b"published", 0).unwrap();
    file.publish().unwrap();
    store.fail(|operation| (operation.verb == "list").then_some(EIO));
    assert_eq!(lock(&*other, B).unwrap_err().errno(), EIO);
    store.fail_nothing();
    assert!(lock(&*file, A).unwrap());
}

#[test]
fn a_user_without_write_permission_gets_shared_locks_only() {
    let store = MemoryStore::new();
    let fs = mount(std::slice::from_ref(&store), 1, 1);
    drop(make(&fs, "f", 1));
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    let file = fs.open_as(&Context::OWN, node, OpenMode::READ).unwrap();
    store.fail(|operation| {
        (operation.verb == "open for writing" && operation.path.ends_with(b"/access")).then_some(EACCES)
    });
    for scope in [LockScope::ALL_BYTES, LockScope::WholeFile] {
        assert!(locks(&*file).try_lock(A, scope, LockMode::Shared).unwrap());
        let refused = locks(&*file).try_lock(B, scope, LockMode::Exclusive).unwrap_err();
        assert_eq!(refused.errno(), EBADF);
        assert!(locks(&*file).try_lock(B, scope, LockMode::Shared).unwrap());
        locks(&*file).release(A).unwrap();
        locks(&*file).release(B).unwrap();
    }
}

#[test]
fn locks_of_a_removed_or_replaced_file_are_not_those_of_its_successor() {
    let store = MemoryStore::new();
    let (here, there) =
        (mount(std::slice::from_ref(&store), 1, 1), mount(std::slice::from_ref(&store), 2, 1));
    let file = make(&here, "f", 1);
    assert!(lock(&*file, A).unwrap());
    drop(make(&there, "g", 1));
    there.rename(&Context::OWN, there.root(), b"g", there.root(), b"f", Rename::Replace).unwrap();
    let successor = again(&there, "f", 1);
    assert!(lock(&*successor, B).unwrap());
    assert!(lock(&*file, A).unwrap(), "the owner keeps its lock of the old file");
    unlock(&*file, A).unwrap();
    file.close().unwrap();

    // A new name of the same file changes nothing.
    there.rename(&Context::OWN, there.root(), b"f", there.root(), b"h", Rename::Replace).unwrap();
    let file = again(&here, "h", 1);
    assert!(!lock(&*file, A).unwrap());
    // Unlinked on the mount that has it open: the locks stay.
    there.remove(&Context::OWN, there.root(), b"h").unwrap();
    let node = successor.attributes().unwrap().node;
    assert!(lock(&*successor, B).unwrap(), "{node:?}");
}

#[test]
fn a_lock_file_that_was_removed_is_an_error_and_no_lock() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let fs = mount(stores, 1, 1);
    let (file, other) = (make(&fs, "f", 1), again(&fs, "f", 2));
    assert!(lock(&*file, A).unwrap());
    container(stores, "f").dir().unwrap().remove(b"access").unwrap();
    assert!(lock(&*other, B).is_err(), "a lock on no file would exclude nothing");
    unlock(&*file, A).unwrap();
    assert!(lock(&*file, A).is_err());
}

/// A store in which `access` is replaced just before a lock is taken, as root does it when it
/// changes the owner.
#[test]
fn a_lock_is_taken_on_the_file_that_replaced_access() {
    let store = MemoryStore::new();
    let fs = mount(std::slice::from_ref(&store), 1, 1);
    drop(make(&fs, "f", 1));
    let opens = Arc::new(AtomicUsize::new(0));
    let (seen, below) = (Arc::clone(&opens), store.clone());
    let root: Arc<dyn WritableDir> = store.root();
    // The hook runs before the operation that follows the open: the check of the open file.
    let counting = CountingDir::with_hook(root, move |_, operation| {
        let is_check = operation.verb == "stat open file" && operation.path.ends_with(b"/access");
        if is_check && seen.fetch_add(1, Ordering::Relaxed) == 0 {
            let dir = below.root().open_writable_dir(b"f.container").unwrap();
            dir.create_file(b"other", 0o640).unwrap();
            dir.rename(b"other", &*dir, b"access", Rename::Replace).unwrap();
        }
    });
    let choices = Choices {
        buffer_bytes: 4096,
        index_threads: 1,
        flatten_bytes: 0,
        flattens_later: false,
        begins_as_object: false,
    };
    let there = LogFs::new(Stores::open(vec![Arc::new(counting)], host(5, 1), 4).unwrap(), choices);
    let (first, second) = (again(&there, "f", 1), again(&fs, "f", 1));
    assert!(lock(&*first, A).unwrap());
    assert!(opens.load(Ordering::Relaxed) > 1, "it was opened again");
    assert!(!lock(&*second, B).unwrap(), "both use the new file");
}

/// Root replaces `access` when it changes the owner, so a lock would be lost.
#[test]
fn a_locked_file_cannot_be_given_to_another_owner_by_root() {
    if !quell_posix::has_root_power() {
        println!("SKIPPED: only root gives files to other owners");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let mount = |seed| {
        let root: Arc<dyn WritableDir> = Arc::new(PosixDir::open_shared(temp.path()).unwrap());
        let choices = Choices {
            buffer_bytes: 4096,
            index_threads: 1,
            flatten_bytes: 0,
            flattens_later: false,
            begins_as_object: false,
        };
        let host = crate::stores::Host { uid: 0, gid: 0, ..host(seed, 1) };
        LogFs::new(Stores::open(vec![root], host, 4).unwrap(), choices)
    };
    let (here, there) = (mount(1), mount(2));
    let new = NewEntry { permissions: 0o644, uid: 0, gid: 0 };
    let (node, file) = here.create(&Context::OWN, here.root(), b"f", new, OpenMode::READ_WRITE).unwrap();
    let node = node.into_attributes().node;
    let other = again(&there, "f", 1);
    let give = |uid| here.change(&Context::OWN, node, &Change { uid: Some(uid), ..Change::default() });
    for scope in [LockScope::WholeFile, LockScope::Bytes { first: 1000, last: 1000 }] {
        assert!(locks(&*other).try_lock(B, scope, LockMode::Shared).unwrap());
        assert_eq!(give(1234).unwrap_err().errno(), EBUSY);
        assert_eq!(here.attributes(&Context::OWN, node).unwrap().uid, 0);
        locks(&*other).release(B).unwrap();
    }
    assert_eq!(give(1234).unwrap().uid, 1234);
    assert!(lock(&*file, A).unwrap());
    assert!(!lock(&*other, B).unwrap(), "both use the new file");
}
