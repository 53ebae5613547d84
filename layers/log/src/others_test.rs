//! Files that belong to other users than who works with them.

use quell_fs::errno::{EACCES, EIO, EPERM};
use quell_fs::{Change, FileSystem, New, Open, Time, Writable};
use quell_testkit::MemoryStore;

use crate::test_stores::{again, container, content, make, mount};

#[test]
fn who_may_not_write_to_what_a_file_is_made_of_syncs_it_all_the_same() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let fs = mount(stores, 1, 1);
    let file = make(&fs, "f", 1);
    file.write_at(b"written by its owner", 0).unwrap();
    file.publish().unwrap();
    // Another user's process.
    store.fail(|operation| {
        let is_theirs = operation.path.ends_with(b"/container") || operation.path.ends_with(b"/access");
        (operation.verb == "open for writing" && is_theirs).then_some(EACCES)
    });
    container(stores, "f").sync().unwrap();
    fs.sync_dir(fs.root()).unwrap();
    for seed in 0..40 {
        let after = [store.crash(seed)];
        let found = content(&after, "f");
        assert!(!format!("{found:?}").contains("record"), "{seed}: {found:?}");
    }
    drop(file);
    assert!(again(&fs, "f", 1).sync().is_ok());
}

#[test]
fn names_in_meta_do_not_pile_up() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let fs = mount(stores, 1, 1);
    let file = make(&fs, "f", 1);
    file.write_at(&[1; 1000], 0).unwrap();
    let node = fs.lookup(fs.root(), b"f").unwrap().unwrap().node;
    for i in 1..100 {
        let modified = Some(Time { seconds: i, nanoseconds: 0 });
        fs.change(node, &Change { modified, ..Change::default() }).unwrap();
        let size_bytes = Some(1000 - i as u64);
        fs.change(node, &Change { size_bytes, ..Change::default() }).unwrap();
    }
    let names = container(stores, "f").meta().unwrap().names().unwrap().len();
    assert!(names < 40, "{names}");
    drop(file);
    assert_eq!(content(stores, "f").unwrap(), [1; 901]);
}

#[test]
fn what_cannot_be_given_to_who_makes_it_is_not_left_behind() {
    let stores = [MemoryStore::new(), MemoryStore::new()];
    for refusing in 0..2 {
        let fs = mount(&stores, 1, 1);
        // A mount by a user who is not root.
        stores[refusing].fail(|operation| (operation.verb == "change").then_some(EPERM));
        let new = New { permissions: 0o755, uid: 1001, gid: 100 };
        assert_eq!(fs.make_dir(fs.root(), b"dir", new).unwrap_err().errno(), EPERM);
        if refusing == 0 {
            assert_eq!(fs.make_symlink(fs.root(), b"link", b"to", new).unwrap_err().errno(), EPERM);
        }
        for name in 0..8 {
            let _ = fs.create(fs.root(), format!("{refusing}-{name}").as_bytes(), new, Open::WRITE);
        }
        stores[refusing].fail_nothing();
        let root = stores[refusing].root();
        assert_eq!(root.names().unwrap(), [b".quell"]);
        assert_eq!(root.open_dir(b".quell").unwrap().open_dir(b"new").unwrap().names().unwrap(), [b""; 0]);
        for name in [&b"dir"[..], b"link"] {
            assert!(fs.lookup(fs.root(), name).unwrap().is_none());
            assert!(stores.iter().all(|store| store.root().stat(name).is_err()));
        }
        (0..8).for_each(|name| drop(fs.remove(fs.root(), format!("{refusing}-{name}").as_bytes())));
    }
}

#[test]
fn a_file_is_removed_though_its_rest_cannot_be_deleted() {
    let store = MemoryStore::new();
    let fs = mount(std::slice::from_ref(&store), 1, 1);
    drop(make(&fs, "f", 1));
    store.fail(|operation| {
        operation.path.ends_with(b"/access").then_some(EIO).filter(|_| operation.verb == "remove")
    });
    let fs = mount(std::slice::from_ref(&store), 2, 1);
    fs.remove(fs.root(), b"f").unwrap();
    assert!(fs.lookup(fs.root(), b"f").unwrap().is_none());
    drop(make(&fs, "f", 1));
}
