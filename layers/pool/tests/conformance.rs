//! Runs the conformance suite and random histories on pools of one and several members in this
//! process.

mod simulated;

use std::sync::Arc;

use quell_pool::PoolFs;
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::{Change, Context, FileSystem, NewEntry, NodeId, OpenMode, Rename, Time, WritableFile};

use simulated::SimulatedPool;

/// Runs `check` on pools of this number of members. Each mount is a client of another member.
fn on_pools(members: u16, chunk_bytes: u32, check: impl Fn(&WritableImplementation<'_>)) {
    let make = |count: usize| {
        let pool = SimulatedPool::start(members, chunk_bytes);
        let mount = |number| -> Arc<dyn FileSystem> {
            Arc::new(PoolFs::new(Arc::new(pool.connect(number as u16 % members)), chunk_bytes))
        };
        Mounts { mounts: (0..count).map(mount).collect(), keep: Some(Box::new(pool)) }
    };
    check(&WritableImplementation {
        name: &format!("pool of {members} members, chunks of {chunk_bytes} bytes"),
        make: &make,
        mounts_max: 2,
        name_bytes_max: 255,
        uid: 1000,
        gid: 1000,
        owners: true,
        rename_kinds: true,
        locks: false,
        xattrs: true,
    });
}

#[test]
fn promises_are_kept_by_a_single_member() {
    on_pools(1, 512 << 10, writing::run);
}

#[test]
fn promises_are_kept_by_three_members() {
    on_pools(3, 4096, writing::run);
}

#[test]
fn random_histories_of_one_mount_match_the_model() {
    on_pools(3, 1000, |implementation| histories::check(implementation, Shape::ONE_MOUNT, 0..25));
    on_pools(3, 1000, |implementation| histories::check(implementation, Shape::DENSE, 0..25));
}

#[test]
fn random_histories_of_two_mounts_match_the_model() {
    on_pools(2, 1000, |implementation| histories::check(implementation, Shape::TWO_MOUNTS, 0..25));
    let dense = Shape { mounts: 2, ..Shape::DENSE };
    on_pools(5, 4096, |implementation| histories::check(implementation, dense, 0..25));
}

#[test]
fn a_client_finds_directories_again_after_another_one_changes_them() {
    let pool = SimulatedPool::start(3, 4096);
    let mount = |member| PoolFs::new(Arc::new(pool.connect(member)), 4096);
    let (reader, changer) = (mount(0), mount(1));
    let context = Context::default();
    let changes = changer.writable().unwrap();
    let new = NewEntry { permissions: 0o755, uid: 1000, gid: 1000 };
    let make_dir = |dir: NodeId, name: &[u8]| changes.make_dir(&context, dir, name, new).unwrap();
    let is_found = |path: &[u8]| reader.attributes_of_path(&context, path).unwrap().is_some();
    let root = changer.root();
    // With so many names, each member has some of them.
    for turn in 0..20 {
        let names = [b'a', b'b', b'c'].map(|letter| format!("{}{turn}", char::from(letter)).into_bytes());
        let [a, b, c] = &names;
        let path = |first: &[u8], second: &[u8]| [first, b"/", second, b"/d"].concat();
        let upper = make_dir(root, a);
        let lower = make_dir(upper.node(), b);
        make_dir(lower.node(), b"d");
        assert!(is_found(&path(a, b)) && is_found(&path(a, b)) && !is_found(&path(c, b)));
        changes.rename(&context, root, a, root, c, Rename::Replace).unwrap();
        assert!(!is_found(&path(a, b)) && is_found(&path(c, b)));
        changes.rename(&context, upper.node(), b, root, a, Rename::Keep).unwrap();
        assert!(!is_found(&path(c, b)) && is_found(&[a, &b"/d"[..]].concat()));
        changes.rename(&context, root, a, root, c, Rename::Exchange).unwrap();
        assert!(!is_found(&[a, &b"/d"[..]].concat()) && is_found(&[c, &b"/d"[..]].concat()));
        changes.remove_dir(&context, lower.node(), b"d").unwrap();
        changes.remove_dir(&context, root, c).unwrap();
        make_dir(make_dir(root, c).node(), b"d");
        assert!(is_found(&[c, &b"/d"[..]].concat()));
        let permissions = || {
            let found = reader.lookup_on_path(&context, reader.root(), a).unwrap().unwrap();
            found.permissions & 0o777
        };
        assert_eq!(permissions(), 0o755);
        let change = Change { permissions: Some(0o711), ..Change::default() };
        changes.change(&context, upper.node(), &change).unwrap();
        assert_eq!(permissions(), 0o711);
    }
}

/// Returns a file of a pool of one member, and the mount that created it.
fn with_file(pool: &SimulatedPool, check: impl Fn(&PoolFs, NodeId, &dyn WritableFile)) {
    // The first client uses the chunks of its member itself, the second one sends requests.
    for name in [b"first", b"other"] {
        let fs = PoolFs::new(Arc::new(pool.connect(0)), 4096);
        let context = Context::default();
        let new = NewEntry { permissions: 0o644, uid: 1000, gid: 1000 };
        let (entry, file) =
            fs.writable().unwrap().create(&context, fs.root(), name, new, OpenMode::READ_WRITE).unwrap();
        check(&fs, entry.node(), &*file);
        file.close().unwrap();
    }
}

#[test]
fn a_write_replaces_a_time_in_the_future() {
    let pool = SimulatedPool::start(1, 4096);
    with_file(&pool, |fs, node, file| {
        file.write_at(b"first", 0).unwrap();
        let future = Time { seconds: 4_000_000_000, nanoseconds: 5 };
        let change = Change { modified: Some(future), ..Change::default() };
        fs.writable().unwrap().change(&Context::default(), node, &change).unwrap();
        assert_eq!(file.attributes().unwrap().modified, future);
        let change = Change { permissions: Some(0o600), ..Change::default() };
        fs.writable().unwrap().change(&Context::default(), node, &change).unwrap();
        assert_eq!(file.attributes().unwrap().modified, future);
        file.write_at(b"other", 0).unwrap();
        assert!(file.attributes().unwrap().modified < future);
    });
}

#[test]
fn the_space_of_a_removed_file_is_free_after_its_last_reference() {
    let pool = SimulatedPool::start(1, 4096);
    let context = Context::default();
    let new = NewEntry { permissions: 0o644, uid: 1000, gid: 1000 };
    let fs = PoolFs::new(Arc::new(pool.connect(0)), 4096);
    let (entry, file) =
        fs.writable().unwrap().create(&context, fs.root(), b"file", new, OpenMode::READ_WRITE).unwrap();
    file.write_at(b"data", 0).unwrap();
    file.close().unwrap();
    drop(file);
    fs.writable().unwrap().remove(&context, fs.root(), b"file").unwrap();
    assert_eq!(pool.local_files(0).len(), 1);
    drop(entry);
    assert_eq!(pool.local_files(0), Vec::<Vec<u8>>::new());
}
