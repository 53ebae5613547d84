//! Tests of the access control lists of files in a private store.

use std::fs::File;

use quell_batch_service::{Content, Timestamp};
use quell_posix::{Dir, PosixDir};

use super::*;

const STORE: PrivateStore = PrivateStore { owner: 10, gid: 100 };
const USER_OF_FILE: u32 = 11;
const OTHER_USER: u32 = 12;

fn inode(mode: u32, uid: u32, gid: u32) -> Inode {
    let time = Timestamp(0, 0);
    Inode {
        number: 3,
        mode: 0o100_000 | mode,
        uid,
        gid,
        links: 1,
        size_bytes: 0,
        modified: time,
        changed: time,
        content: Content::Empty,
        xattrs: Vec::new(),
    }
}

fn readers(is_store_group: bool, users: &[u32], groups: &[u32]) -> Readers {
    let set = |ids: &[u32]| ids.iter().copied().collect();
    Readers { is_store_group, users: set(users), groups: set(groups) }
}

#[test]
fn a_list_has_the_form_of_the_kernel() {
    let list = STORE.list(&readers(false, &[0x0102_0304, 9], &[7]), USER_OF_FILE);
    let expected = [
        &[2, 0, 0, 0][..],
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[2, 0, 4, 0, 9, 0, 0, 0],
        &[2, 0, 4, 0, 10, 0, 0, 0],
        &[2, 0, 4, 0, 4, 3, 2, 1],
        &[4, 0, 0, 0, 255, 255, 255, 255],
        &[8, 0, 4, 0, 7, 0, 0, 0],
        &[16, 0, 4, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ];
    assert_eq!(list, expected.concat());
    // The owner of the store needs no list for a file that only this user reads.
    let own = STORE.list(&Readers::default(), STORE.owner);
    let expected = [
        &[2, 0, 0, 0][..],
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[4, 0, 0, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ];
    assert_eq!(own, expected.concat());
}

#[test]
fn readers_follow_the_owner_the_group_and_the_mode_of_the_inode() {
    let own = |mode, gid| STORE.readers(&inode(mode, USER_OF_FILE, gid), USER_OF_FILE);
    assert_eq!(own(0o600, 100), Readers::default());
    assert_eq!(own(0o644, 100), readers(true, &[], &[]));
    assert_eq!(own(0o644, 200), readers(true, &[], &[]));
    assert_eq!(own(0o640, 100), readers(true, &[], &[]));
    assert_eq!(own(0o640, 200), readers(false, &[], &[200]));
    // No list can deny the group alone.
    assert_eq!(own(0o604, 200), Readers::default());
    assert_eq!(own(0o604, 100), Readers::default());
    // Execute and write permissions are no read permissions.
    assert_eq!(own(0o733, 100), Readers::default());
    // The inode belongs to another user than the data file.
    let others = |mode| STORE.readers(&inode(mode, OTHER_USER, 200), USER_OF_FILE);
    assert_eq!(others(0o600), readers(false, &[OTHER_USER], &[]));
    assert_eq!(others(0o440), readers(false, &[OTHER_USER], &[200]));
    assert_eq!(others(0o200), Readers::default());
    let of_owner = STORE.readers(&inode(0o600, STORE.owner, 200), USER_OF_FILE);
    assert_eq!(of_owner, Readers::default());
}

#[test]
fn readers_are_compared_as_sets_of_users() {
    let (none, all) = (Readers::default(), readers(true, &[], &[]));
    let (one, two) = (readers(false, &[1], &[7]), readers(false, &[1, 2], &[7, 8]));
    for (less, more) in [(&none, &one), (&one, &two), (&two, &all), (&none, &all)] {
        assert!(less.is_subset(more) && !more.is_subset(less), "{less:?} {more:?}");
        assert_eq!((&less.intersection(more), &more.intersection(less)), (less, less));
    }
    assert!(all.is_subset(&all) && two.is_subset(&two));
    let other = readers(false, &[2, 3], &[8, 9]);
    assert!(!two.is_subset(&other));
    assert_eq!(two.intersection(&other), readers(false, &[2], &[8]));
}

#[test]
fn the_readers_of_a_list_are_found_again_and_other_lists_are_recognized() {
    for expected in [
        Readers::default(),
        readers(true, &[], &[]),
        readers(false, &[1, 12], &[]),
        readers(false, &[], &[7]),
        readers(false, &[12], &[7, 8]),
    ] {
        for file_owner in [USER_OF_FILE, STORE.owner] {
            let list = STORE.list(&expected, file_owner);
            assert_eq!(STORE.readers_in(Some(&list), 0, file_owner), Some(expected.clone()));
            for at in HEADER_BYTES..list.len() {
                let mut changed = list.clone();
                changed[at] ^= 1;
                let found = STORE.readers_in(Some(&changed), 0, file_owner);
                assert_ne!(found, Some(expected.clone()), "byte {at}");
            }
            assert_eq!(STORE.readers_in(Some(&list[..list.len() - 1]), 0, file_owner), None);
        }
    }
    let of_mode = |mode: u32| STORE.readers_in(None, 0o100_000 | mode, STORE.owner);
    assert_eq!(of_mode(0o600), Some(Readers::default()));
    assert_eq!(of_mode(0o640), Some(readers(true, &[], &[])));
    assert_eq!(of_mode(0o644), None);
    assert_eq!(STORE.readers_in(Some(&[]), 0, STORE.owner), None);
}

#[test]
fn a_file_has_its_list_and_the_mode_of_the_mask() {
    let temp = tempfile::tempdir().unwrap();
    let dir = PosixDir::of_descriptor(File::open(temp.path()).unwrap().into());
    let own = rustix::process::geteuid().as_raw();
    let store = PrivateStore { owner: own + 1, gid: 100 };
    match check_support(&dir, store, b"store") {
        Err(error) if error.kind == ErrorKind::Unsupported => return println!("SKIPPED: {error}"),
        checked => checked.unwrap(),
    }
    assert!(dir.names().unwrap().is_empty());
    let expected = readers(false, &[own + 2], &[7]);
    let list = store.list(&expected, own);
    let file = FileAccess::List(list.clone()).create(&dir, b"file").unwrap();
    assert_eq!(file.acl().unwrap(), Some(list));
    assert_eq!(file.stat().unwrap().mode & 0o777, 0o640);
    assert_eq!(store.readers_of(&*file, own).unwrap(), Some(expected));
    // A file of the owner of the store that no other user reads has no list.
    let store = PrivateStore { owner: own, gid: 100 };
    let list = store.list(&Readers::default(), own);
    let file = FileAccess::List(list).create(&dir, b"own").unwrap();
    assert_eq!((file.acl().unwrap(), file.stat().unwrap().mode & 0o777), (None, 0o600));
    assert_eq!(store.readers_of(&*file, own).unwrap(), Some(Readers::default()));
}
