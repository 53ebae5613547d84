//! Tests files that belong to other users than the user of the process.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use quell_posix::{PosixDir, WritableDir};
use quell_testkit::MemoryStore;
use quell_vfs::errno::{EACCES, EIO, EPERM};
use quell_vfs::{Change, Context, FileSystem, Kind, NewEntry, OpenMode, Rename, Time, Writable};

use crate::container::dir_permissions;
use crate::fs::file_system::LogFs;
use crate::session::Choices;
use crate::stores::{Stores, remove_tree};
use crate::test_stores::{again, container, content, host, make, mount};

#[test]
fn a_sync_needs_no_write_permission_for_the_files_of_a_container() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let fs = mount(stores, 1, 1);
    let file = make(&fs, "f", 1);
    file.write_at(b"written by its owner", 0).unwrap();
    file.publish().unwrap();
    // The store behaves as for a process of another user.
    store.fail(|operation| {
        let is_theirs = operation.path.ends_with(b"/container") || operation.path.ends_with(b"/access");
        (operation.verb == "open for writing" && is_theirs).then_some(EACCES)
    });
    container(stores, "f").sync(false).unwrap();
    fs.sync_dir(&Context::OWN, fs.root()).unwrap();
    for seed in 0..40 {
        let after = [store.crash(seed)];
        let found = content(&after, "f");
        assert!(!format!("{found:?}").contains("record"), "{seed}: {found:?}");
    }
    drop(file);
    assert!(again(&fs, "f", 1).sync().is_ok());
}

#[test]
fn superseded_names_in_meta_are_removed() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let fs = mount(stores, 1, 1);
    let file = make(&fs, "f", 1);
    file.write_at(&[1; 1000], 0).unwrap();
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    for i in 1..100 {
        let modified = Some(Time { seconds: i, nanoseconds: 0 });
        fs.change(&Context::OWN, node, &Change { modified, ..Change::default() }).unwrap();
        let size_bytes = Some(1000 - i as u64);
        fs.change(&Context::OWN, node, &Change { size_bytes, ..Change::default() }).unwrap();
    }
    let names = container(stores, "f").meta().unwrap().names().unwrap().len();
    assert!(names < 40, "{names}");
    drop(file);
    assert_eq!(content(stores, "f").unwrap(), [1; 901]);
}

#[test]
fn an_object_whose_owner_cannot_be_set_is_removed() {
    let stores = [MemoryStore::new(), MemoryStore::new()];
    for refusing in 0..2 {
        let fs = mount(&stores, 1, 1);
        // The store behaves as for a mount of an unprivileged user.
        stores[refusing].fail(|operation| (operation.verb == "change").then_some(EPERM));
        let new = NewEntry { permissions: 0o755, uid: 1001, gid: 100 };
        assert_eq!(fs.make_dir(&Context::OWN, fs.root(), b"dir", new).unwrap_err().errno(), EPERM);
        if refusing == 0 {
            assert_eq!(
                fs.make_symlink(&Context::OWN, fs.root(), b"link", b"to", new).unwrap_err().errno(),
                EPERM
            );
        }
        for name in 0..8 {
            let _ = fs.create(
                &Context::OWN,
                fs.root(),
                format!("{refusing}-{name}").as_bytes(),
                new,
                OpenMode::WRITE,
            );
        }
        stores[refusing].fail_nothing();
        let root = stores[refusing].root();
        assert_eq!(root.names().unwrap(), [b".quell"]);
        assert_eq!(root.open_dir(b".quell").unwrap().open_dir(b"new").unwrap().names().unwrap(), [b""; 0]);
        for name in [&b"dir"[..], b"link"] {
            assert!(fs.lookup(&Context::OWN, fs.root(), name).unwrap().is_none());
            assert!(stores.iter().all(|store| store.root().stat(name).is_err()));
        }
        (0..8).for_each(|name| {
            drop(fs.remove(&Context::OWN, fs.root(), format!("{refusing}-{name}").as_bytes()))
        });
    }
}

#[test]
fn unlink_succeeds_even_if_the_container_cannot_be_deleted() {
    let store = MemoryStore::new();
    let fs = mount(std::slice::from_ref(&store), 1, 1);
    drop(make(&fs, "f", 1));
    store.fail(|operation| {
        operation.path.ends_with(b"/access").then_some(EIO).filter(|_| operation.verb == "remove")
    });
    let fs = mount(std::slice::from_ref(&store), 2, 1);
    fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
    assert!(fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().is_none());
    drop(make(&fs, "f", 1));
}

/// Creates a file whose eight writers have logs in both of two stores. Returns the stores and the
/// index of the container's store.
fn in_two_stores() -> ([MemoryStore; 2], usize) {
    (1..)
        .find_map(|seed| {
            let stores = [MemoryStore::new(), MemoryStore::new()];
            let fs = mount(&stores, seed, 1);
            for process in 1..=8 {
                let file = if process == 1 { make(&fs, "victim", 1) } else { again(&fs, "victim", process) };
                file.write_at(b"precious", u64::from(process - 1) * 8).unwrap();
                file.sync().unwrap();
            }
            let home = usize::from(stores[0].root().stat(b"victim.container").is_err());
            (!parts(&stores[1 - home]).is_empty()).then_some((stores, home))
        })
        .unwrap()
}

fn parts(store: &MemoryStore) -> Vec<Vec<u8>> {
    store.root().open_dir(b".quell").unwrap().open_dir(b"parts").unwrap().names().unwrap()
}

fn own(dir: &dyn WritableDir, name: &[u8], uid: u32) {
    dir.change(name, &Change { uid: Some(uid), ..Change::default() }).unwrap();
}

fn mode(permissions: u32) -> Change {
    Change { permissions: Some(permissions), ..Change::default() }
}

#[test]
fn a_forged_container_number_gives_no_access_to_the_other_container() {
    let (stores, home) = in_two_stores();
    let expected = b"precious".repeat(8);
    let root = stores[home].root();
    let mut record = [0; 64];
    let victim = root.open_dir(b"victim.container").unwrap();
    victim.open_file(b"container").unwrap().read_at(&mut record, 0).unwrap();
    root.make_dir(b"forged.container", 0o755).unwrap();
    let forged = root.open_writable_dir(b"forged.container").unwrap();
    forged.create_file(b"container", 0o644).unwrap().write_at(&record, 0).unwrap();
    forged.create_file(b"access", 0o666).unwrap();
    forged.make_dir(b"meta", 0o755).unwrap();
    for name in [&b"container"[..], b"access", b"meta", b""] {
        own(&*forged, name, 1666);
    }
    let there = container(&stores, "forged");
    for number in 0..4 {
        let found = there.log_directories().unwrap().find(number);
        assert!(found.is_err() || found.is_ok_and(|found| found.is_none()), "{number}");
    }
    assert!(there.log_directories().unwrap().in_parts().unwrap().is_empty());
    let fs = mount(&stores, 2, 1);
    fs.remove(&Context::OWN, fs.root(), b"forged").unwrap();
    assert_eq!(content(&stores, "victim").unwrap(), expected);
    let fs = mount(&stores, 3, 1);
    fs.remove(&Context::OWN, fs.root(), b"victim").unwrap();
    drop(fs);
    assert!(stores.iter().all(|store| parts(store).is_empty()));
}

#[test]
fn log_directories_that_another_writer_created_belong_to_the_file() {
    let (stores, home) = in_two_stores();
    let expected = b"precious".repeat(8);
    let away = stores[1 - home].root().open_writable_dir(b".quell").unwrap();
    own(&*away.open_writable_dir(b"parts").unwrap(), &parts(&stores[1 - home])[0], 1001);
    assert!(content(&stores, "victim").is_err());
    let container = container(&stores, "victim");
    for name in container.dir().unwrap().names().unwrap() {
        let stat = container.dir().unwrap().stat(&name).unwrap();
        if name.starts_with(b"logs-") && stat.kind() == Some(Kind::File) {
            own(&**container.dir().unwrap(), &name, 1001);
        }
    }
    assert_eq!(content(&stores, "victim").unwrap(), expected);
}

#[test]
fn permissions_are_removed_first_and_granted_last_at_the_outer_directories() {
    let (stores, home) = in_two_stores();
    let fs = mount(&stores, 4, 1);
    let node = fs.lookup(&Context::OWN, fs.root(), b"victim").unwrap().unwrap().into_attributes().node;
    let gates = || {
        let gate = stores[home].root().stat(b"victim.container").unwrap();
        let away = stores[1 - home].root().open_dir(b".quell").unwrap().open_dir(b"parts").unwrap();
        let part = away.stat(&parts(&stores[1 - home])[0]).unwrap();
        [gate.mode & 0o7777, part.mode & 0o7777]
    };
    for (from, to) in [(0o666, 0o600), (0o600, 0o666), (0o640, 0o604)] {
        fs.change(&Context::OWN, node, &mode(from)).unwrap();
        for store in &stores {
            store.fail(|op| (op.verb == "change" && op.path.ends_with(b"/meta")).then_some(EIO));
        }
        assert!(fs.change(&Context::OWN, node, &mode(to)).is_err());
        let allowed = dir_permissions(from) & dir_permissions(to) & 0o777;
        assert!(gates().iter().all(|gate| gate & 0o777 == allowed), "{from:o} {:?}", gates());
        stores.iter().for_each(MemoryStore::fail_nothing);
        fs.change(&Context::OWN, node, &mode(to)).unwrap();
        assert_eq!(gates(), [dir_permissions(to); 2]);
    }
    // A log directory that another user created is skipped.
    for store in &stores {
        let is_logs = |path: &[u8]| path.windows(6).any(|part| part == b"/logs-");
        store.fail(move |op| (op.verb == "change" && is_logs(&op.path)).then_some(EPERM));
    }
    fs.change(&Context::OWN, node, &mode(0o640)).unwrap();
    assert_eq!(gates(), [0o2750; 2]);
}

#[test]
fn log_directories_that_root_creates_belong_to_the_owner_of_the_file() {
    let stores = [MemoryStore::new(), MemoryStore::new()];
    let mut host = host(5, 1);
    (host.uid, host.gid) = (0, 0);
    let roots = stores.iter().map(|store| store.root() as Arc<dyn WritableDir>).collect();
    let fs = LogFs::new(Stores::open(roots, host, 4).unwrap(), Choices::default());
    for process in 1..=8 {
        let file = if process == 1 { make(&fs, "f", 1) } else { again(&fs, "f", process) };
        file.write_at(b"theirs", 0).unwrap();
        file.sync().unwrap();
    }
    let container = container(&stores, "f");
    let owner = |dir: &dyn WritableDir, name: &[u8]| dir.stat(name).map(|stat| (stat.uid, stat.gid)).unwrap();
    let mut count = 0;
    for number in 0..4 {
        if let Some((dir, name)) = container.log_directories().unwrap().find(number).unwrap() {
            assert_eq!(owner(&*dir, &name), (1000, 100));
            count += 1;
        }
    }
    assert!(count > 1);
    let parts = container.log_directories().unwrap().in_parts().unwrap();
    assert!(!parts.is_empty());
    assert!(parts.iter().all(|(parts, name)| owner(&**parts, name) == (1000, 100)));
}

#[test]
fn the_number_of_open_log_directories_is_bounded() {
    let store = MemoryStore::new();
    let stores = Stores::open(vec![store.root()], host(6, 1), 300).unwrap();
    let fs = LogFs::new(stores, Choices::default());
    let before = store.open_handles();
    drop(make(&fs, "f", 0));
    for process in 1..400 {
        again(&fs, "f", process).write_at(b"x", process.into()).unwrap();
    }
    let mut bytes = [0; 400];
    assert_eq!(again(&fs, "f", 1).read_at(&mut bytes, 0).unwrap(), 400);
    assert_eq!(bytes[1..], [b'x'; 399]);
    fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
    drop(make(&fs, "g", 0));
    let open = store.open_handles() - before;
    // The data logs that were read last (256) and log directories (128) stay open, and a few files
    // of the container itself.
    assert!(open < 256 + 128 + 20, "{open}");
    fs.remove(&Context::OWN, fs.root(), b"g").unwrap();
}

#[test]
fn a_removal_stops_below_the_depth_of_a_container() {
    let store = MemoryStore::new();
    let root = store.root();
    let mut at = Arc::clone(&root);
    for _ in 0..6 {
        at.create_file(b"access", 0o644).unwrap();
        at.make_dir(b"meta", 0o755).unwrap();
        at = at.open_writable_dir(b"meta").unwrap();
    }
    assert!(remove_tree(&*root, b"meta").is_err());
    assert_eq!(root.open_dir(b"meta").unwrap().names().unwrap(), [b"meta"]);
}

/// Checks the operations of a second user with write permission to the first user's file. Needs
/// root to change users.
#[test]
fn a_second_user_can_write_truncate_and_sync_but_not_take_ownership() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: not root");
    }
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    // Every mount has its own random numbers.
    let mounts = std::sync::atomic::AtomicU64::new(1000);
    // Changing the user drops the capabilities; both affect this thread only.
    let as_user = |uid: u32, work: &(dyn Fn(&LogFs) + Sync)| {
        std::thread::scope(|scope| {
            let user = scope.spawn(|| {
                let (id, group) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(100));
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(group, group, group).unwrap();
                rustix::thread::set_thread_res_uid(id, id, id).unwrap();
                let seed = mounts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let mut host = host(seed, uid);
                (host.uid, host.gid) = (uid, 100);
                let root: Arc<dyn WritableDir> = Arc::new(PosixDir::open(temp.path()).unwrap());
                let choices = Choices { flatten_bytes: 1 << 20, ..Choices::default() };
                work(&LogFs::new(Stores::open(vec![root], host, 4).unwrap(), choices));
            });
            user.join().unwrap();
        });
    };
    let new = |uid| NewEntry { permissions: 0o666, uid, gid: 100 };
    as_user(1000, &|fs| {
        let context = Context::for_process(1);
        let (_, file) = fs.create(&context, fs.root(), b"f", new(1000), OpenMode::READ_WRITE).unwrap();
        file.write_at(b"first, and more of it", 0).unwrap();
    });
    for (uid, text) in [(1001, b"second"), (1000, b"fourth"), (1001, b"sixth.")] {
        as_user(uid, &|fs| {
            let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
            for size in [20, 10] {
                fs.change(&Context::OWN, node, &Change { size_bytes: Some(size), ..Change::default() })
                    .unwrap();
            }
            let modified = Some(Time { seconds: 5, nanoseconds: 0 });
            fs.change(&Context::OWN, node, &Change { modified, ..Change::default() }).unwrap();
            let file = again(fs, "f", 1);
            file.write_at(text, 2).unwrap();
            file.sync().unwrap();
            drop(file);
            let file = again(fs, "f", 2);
            let mut bytes = [0; 30];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 10);
            assert_eq!(&bytes[2..8], text);
            file.sync().unwrap();
        });
    }
    as_user(1001, &|fs| {
        let dir = PosixDir::open(temp.path()).unwrap().open_writable_dir(b"f.container").unwrap();
        assert_eq!(dir.remove(b"access").unwrap_err().errno(), EPERM);
        assert_eq!(dir.rename(b"access", &*dir, b"mine", Rename::Keep).unwrap_err().errno(), EPERM);
        let mode = OpenMode { truncate: true, ..OpenMode::READ_WRITE };
        let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
        drop(fs.open_as(&Context::for_process(1), node, mode).unwrap());
        assert_eq!(fs.attributes(&Context::OWN, node).unwrap().size_bytes, 0);
        let file = again(fs, "f", 3);
        file.append(b"anew").unwrap();
        file.sync().unwrap();
    });
    as_user(1000, &|fs| {
        let mut bytes = [0; 30];
        assert_eq!(again(fs, "f", 1).read_at(&mut bytes, 0).unwrap(), 4);
        fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
        assert!(fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().is_none());
    });
}

/// While root gives a file away, its container belongs to root. The former owner may have moved a
/// directory of a third user into it.
#[test]
fn root_gives_no_directory_of_a_third_user_away_with_the_container_of_an_object() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let objects = Choices { begins_as_object: true, ..Choices::default() };
    let opened = |pid, uid| {
        let host = crate::stores::Host { uid, ..host(pid, pid as u32) };
        Stores::open(vec![store.root() as Arc<dyn WritableDir>], host, 4).unwrap()
    };
    let fs = LogFs::new(opened(1, 1000), objects);
    drop(make(&fs, "f", 1));
    let file = again(&fs, "f", 2);
    file.write_at(b"of another writer", 0).unwrap();
    file.close().unwrap();
    drop((file, fs));
    let dir = Arc::clone(container(stores, "f").dir().unwrap());
    let give = |name: &[u8], uid| dir.change(name, &Change { uid: Some(uid), ..Change::default() }).unwrap();
    let owner = |name: &[u8]| dir.stat(name).unwrap().uid;
    give(b"meta", 77);
    let root = LogFs::new(opened(2, 0), objects);
    let node = root.lookup(&Context::OWN, root.root(), b"f").unwrap().unwrap().into_attributes().node;
    let chown = || root.change(&Context::OWN, node, &Change { uid: Some(55), ..Change::default() });
    assert_eq!(chown().unwrap_err().errno(), EPERM);
    assert_eq!(owner(b"meta"), 77);
    // After an interruption, `meta` may belong to the new owner already.
    give(b"meta", 55);
    chown().unwrap();
    assert_eq!([owner(b"meta"), owner(b"access"), dir.stat_self().unwrap().uid], [55; 3]);
}

/// Other users may add log directories to a file of root, and may move directories of a third user
/// into its container.
#[test]
fn root_changes_only_directories_of_the_owner_of_a_file_of_root() {
    for begins_as_object in [false, true] {
        let store = MemoryStore::new();
        let stores = std::slice::from_ref(&store);
        let choices = Choices { begins_as_object, ..Choices::default() };
        let opened = |pid, uid| {
            let host = crate::stores::Host { uid, ..host(pid, pid as u32) };
            Stores::open(vec![store.root() as Arc<dyn WritableDir>], host, 4).unwrap()
        };
        let fs = LogFs::new(opened(1, 1000), choices);
        drop(make(&fs, "f", 1));
        for process in 2..9 {
            again(&fs, "f", process).write_at(b"of another", 0).unwrap();
        }
        drop(fs);
        // The memory store gives all files to user 1000.
        let dir = Arc::clone(container(stores, "f").dir().unwrap());
        let names = dir.names().unwrap();
        names.iter().for_each(|name| own(&*dir, name, 0));
        own(&*dir, b"", 0);
        own(&*store.root(), b"f.container", 0);
        let root = LogFs::new(opened(2, 0), choices);
        let node = root.lookup(&Context::OWN, root.root(), b"f").unwrap().unwrap().into_attributes().node;
        let mut logs = names.iter().filter(|name| name.starts_with(b"logs-"));
        let (theirs, roots) = (logs.next().unwrap(), logs.next().expect("another log directory"));
        own(&*dir, theirs, 77);
        let before = dir.stat(theirs).unwrap();
        let change = |change: Change| root.change(&Context::OWN, node, &change).map(drop);
        let group = Change { gid: Some(9), ..Change::default() };
        change(mode(0o600)).unwrap();
        change(group).unwrap();
        assert_eq!((dir.stat(roots).unwrap().mode & 0o7777, dir.stat(roots).unwrap().gid), (0o700, 9));
        let same = |stat: quell_posix::Stat| (stat.uid, stat.gid, stat.mode) == (77, before.gid, before.mode);
        assert!(same(dir.stat(theirs).unwrap()), "object {begins_as_object}");
        // `meta` of a third user: nothing is changed.
        own(&*dir, b"meta", 77);
        let access = dir.stat(b"access").unwrap();
        for refused in [mode(0o666), Change { gid: Some(8), ..group }, Change { uid: Some(55), ..group }] {
            assert_eq!(change(refused).unwrap_err().errno(), EPERM, "{refused:?}");
            let now = dir.stat(b"access").unwrap();
            assert_eq!((now.uid, now.gid, now.mode), (access.uid, access.gid, access.mode));
            assert_eq!(dir.stat(b"meta").unwrap().uid, 77);
        }
        own(&*dir, b"meta", 0);
        change(Change { uid: Some(55), ..group }).unwrap();
        assert!(same(dir.stat(theirs).unwrap()), "object {begins_as_object}");
        assert_eq!([roots, &b"meta".to_vec()].map(|name| dir.stat(name).unwrap().uid), [55; 2]);
    }
}

/// Any user who can create names in `parts` could take the name of the container of an object, so
/// files begin as objects only as long as the owner of the store is the only one.
#[test]
fn files_begin_as_objects_until_other_users_get_write_permission() {
    let owner = (1000, 100);
    type Operation = fn(&LogFs, quell_vfs::NodeId) -> quell_vfs::Result<()>;
    let operations: [(&str, Operation); 7] = [
        ("chmod 755", |fs, dir| fs.change(&Context::OWN, dir, &mode(0o755)).map(drop)),
        ("chown to the owner", |fs, dir| {
            fs.change(&Context::OWN, dir, &Change { uid: Some(1000), ..Change::default() }).map(drop)
        }),
        ("chmod 775", |fs, dir| fs.change(&Context::OWN, dir, &mode(0o775)).map(drop)),
        ("chmod 757 of the root", |fs, _| fs.change(&Context::OWN, fs.root(), &mode(0o757)).map(drop)),
        ("chown", |fs, dir| {
            fs.change(&Context::OWN, dir, &Change { uid: Some(1001), ..Change::default() }).map(drop)
        }),
        ("mkdir", |fs, dir| {
            let new = NewEntry { permissions: 0o1777, uid: 1000, gid: 100 };
            fs.make_dir(&Context::OWN, dir, b"sub", new).map(drop)
        }),
        ("creat", |fs, dir| {
            let new = NewEntry { permissions: 0o664, uid: 1000, gid: 100 };
            fs.create(&Context::OWN, dir, b"file", new, OpenMode::READ_WRITE).map(drop)
        }),
    ];
    for (number, (name, operation)) in operations.into_iter().enumerate() {
        let store = MemoryStore::new();
        let opened = Stores::open(vec![store.root() as Arc<dyn WritableDir>], host(1, 1), 4).unwrap();
        let fs = LogFs::new(opened, Choices { begins_as_object: true, ..Choices::default() });
        let new = NewEntry { permissions: 0o755, uid: owner.0, gid: owner.1 };
        fs.make_dir(&Context::OWN, fs.root(), b"dir", new).unwrap();
        let dir = fs.lookup(&Context::OWN, fs.root(), b"dir").unwrap().unwrap().into_attributes().node;
        let is_object = |file: &str| {
            drop(make(&fs, file, 1));
            let stored = format!("{file}.container");
            store.root().stat(stored.as_bytes()).unwrap().kind() == Some(Kind::File)
        };
        assert!(is_object("before"), "{name}");
        operation(&fs, dir).unwrap();
        assert_eq!(is_object("after"), number < 2, "{name}");
        let parts = store.root().open_writable_dir(b".quell").unwrap().stat(b"parts").unwrap();
        assert_eq!(parts.mode & 0o7777, if number < 2 { 0o755 } else { 0o1777 }, "{name}");
        let file = again(&fs, "before", 2);
        file.write_at(b"of another process", 0).unwrap();
        file.close().unwrap();
        assert_eq!(content(std::slice::from_ref(&store), "before").unwrap(), b"of another process");
    }
}

#[test]
fn a_mount_creates_no_objects_after_another_one_has_opened_the_store() {
    let store = MemoryStore::new();
    let mount = |pid| {
        let opened = Stores::open(vec![store.root() as Arc<dyn WritableDir>], host(pid, pid as u32), 4);
        LogFs::new(opened.unwrap(), Choices { begins_as_object: true, ..Choices::default() })
    };
    let (a, b) = (mount(1), mount(2));
    let is_object = |name: &str| {
        drop(make(&a, name, 1));
        store.root().stat(format!("{name}.container").as_bytes()).unwrap().kind() == Some(Kind::File)
    };
    assert!(is_object("before"));
    b.change(&Context::OWN, b.root(), &mode(0o777)).unwrap();
    assert!(!is_object("after"));
}
