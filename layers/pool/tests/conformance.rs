//! Runs the conformance suite and random histories on pools of one and several members in this
//! process.

mod simulated;

use std::sync::Arc;

use quell_pool::{Daemon, PoolFs};
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::{Change, Context, FileSystem, NewEntry, NodeId, OpenMode, Rename, Time, WritableFile};

use quell_wire::pool::{Consistency, FileId, Operation};
use simulated::SimulatedPool;

/// Runs `check` on pools of this number of members. Each mount is a client of another member.
fn on_pools(members: u16, chunk_bytes: u32, check: impl Fn(&WritableImplementation<'_>)) {
    on_pools_with(members, chunk_bytes, Consistency::Synchronous, check);
}

fn on_pools_with(
    members: u16,
    chunk_bytes: u32,
    consistency: Consistency,
    check: impl Fn(&WritableImplementation<'_>),
) {
    let make = |count: usize| {
        let pool = SimulatedPool::start_with(members, chunk_bytes, consistency);
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
        path_bytes_max: usize::MAX,
        uid: 1000,
        gid: 1000,
        owners: true,
        rename_kinds: true,
        hard_links: false,
        writes_zeros: false,
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
fn promises_are_kept_if_sizes_are_sent_at_a_close() {
    on_pools_with(3, 4096, Consistency::Commit, writing::run);
}

#[test]
fn random_histories_match_the_model_if_sizes_are_sent_at_a_close() {
    let check = |members, chunk_bytes, shape, seeds: std::ops::Range<u64>| {
        on_pools_with(members, chunk_bytes, Consistency::Commit, |implementation| {
            histories::check(implementation, shape, seeds.clone());
        });
    };
    check(3, 1000, Shape::ONE_MOUNT, 0..25);
    check(2, 1000, Shape::TWO_MOUNTS, 0..25);
    check(5, 4096, Shape { mounts: 2, ..Shape::DENSE }, 0..25);
}

#[test]
fn a_size_is_visible_to_others_after_a_sync_or_a_close_if_it_is_not_sent_at_once() {
    // The writer has no access to chunks, and some of the first chunks are on other members than
    // the attributes.
    let pool = SimulatedPool::start_with(3, 1000, Consistency::Commit);
    let mount = |member| PoolFs::new(Arc::new(pool.connect(member)), 1000);
    let (reader, writer) = (mount(0), mount(1));
    let context = Context::default();
    let new = NewEntry { permissions: 0o644, uid: 1000, gid: 1000 };
    let verbs = writer.writable().unwrap();
    let mut was_late = false;
    for number in 0..20 {
        let name = format!("file {number}").into_bytes();
        let (entry, file) = verbs.create(&context, writer.root(), &name, new, OpenMode::READ_WRITE).unwrap();
        let seen = || reader.attributes_of_path(&context, &name).unwrap().unwrap();
        file.write_at(&[1; 3500], 0).unwrap();
        was_late |= seen().size_bytes < 3500;
        // The writer sees its own size by name, node and descriptor, and reads its data.
        let mut data = [0; 4000];
        assert_eq!(file.read_at(&mut data, 0).unwrap(), 3500);
        if number % 2 == 0 {
            assert_eq!(writer.attributes_of_path(&context, &name).unwrap().unwrap().size_bytes, 3500);
        }
        file.sync().unwrap();
        assert_eq!(seen().size_bytes, 3500);
        file.write_at(&[2; 3500], 3500).unwrap();
        // A time that is set after a write is not replaced by the close.
        let past = Time { seconds: 1_000_000_000, nanoseconds: 5 };
        let change = Change { modified: Some(past), ..Change::default() };
        verbs.change(&context, entry.node(), &change).unwrap();
        file.close().unwrap();
        assert_eq!((seen().size_bytes, seen().modified), (7000, past));
        // Another client removes data whose size was not sent.
        let file = verbs.open_as(&context, entry.node(), OpenMode::READ_WRITE).unwrap();
        file.write_at(&[3; 5000], 7000).unwrap();
        let found = reader.lookup(&context, reader.root(), &name).unwrap().unwrap();
        let size = |size_bytes| Change { size_bytes: Some(size_bytes), ..Change::default() };
        reader.writable().unwrap().change(&context, found.node(), &size(8500)).unwrap();
        file.close().unwrap();
        let bytes = reader.open(&context, found.node()).unwrap();
        let mut data = [9; 12_000];
        assert_eq!(bytes.read_at(&mut data, 0).unwrap(), 12_000);
        assert!(data[8500..].iter().all(|byte| *byte == 0), "the truncation has removed the data");
    }
    assert!(was_late, "the test has files whose size is sent");
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
fn with_file(pool: &SimulatedPool, name: &str, check: impl Fn(&PoolFs, NodeId, &dyn WritableFile)) {
    // The first client uses the chunks of its member itself, the second one sends requests.
    for client in ["first", "other"] {
        let fs = PoolFs::new(Arc::new(pool.connect(0)), 4096);
        let context = Context::default();
        let new = NewEntry { permissions: 0o644, uid: 1000, gid: 1000 };
        let (name, mode) = (format!("{client} {name}").into_bytes(), OpenMode::READ_WRITE);
        let (entry, file) = fs.writable().unwrap().create(&context, fs.root(), &name, new, mode).unwrap();
        check(&fs, entry.node(), &*file);
        file.close().unwrap();
    }
}

#[test]
fn a_write_replaces_a_time_in_the_future() {
    let pool = SimulatedPool::start(1, 4096);
    // Inline data, and data in chunks.
    for position in [0, 5000] {
        with_file(&pool, &position.to_string(), |fs, node, file| {
            file.write_at(b"first", position).unwrap();
            let future = Time { seconds: 4_000_000_000, nanoseconds: 5 };
            let change = Change { modified: Some(future), ..Change::default() };
            fs.writable().unwrap().change(&Context::default(), node, &change).unwrap();
            assert_eq!(file.attributes().unwrap().modified, future);
            let change = Change { permissions: Some(0o600), ..Change::default() };
            fs.writable().unwrap().change(&Context::default(), node, &change).unwrap();
            assert_eq!(file.attributes().unwrap().modified, future);
            file.write_at(b"other", position).unwrap();
            assert!(file.attributes().unwrap().modified < future);
        });
    }
}

#[test]
fn the_time_of_inline_data_is_kept_when_it_moves_to_chunks() {
    let pool = SimulatedPool::start(1, 4096);
    let client = pool.connect(0);
    with_file(&pool, "file", |fs, node, file| {
        file.write_at(b"data", 0).unwrap();
        for seconds in [1_000_000_000, 4_000_000_000] {
            let time = Time { seconds, nanoseconds: 5 };
            let change = Change { modified: Some(time), ..Change::default() };
            fs.writable().unwrap().change(&Context::default(), node, &change).unwrap();
            // A client sends this operation before a write, which may fail.
            let note = Operation::NoteData { id: FileId::from(node) };
            client.call(None, &note, &mut |reply| drop(reply.unwrap())).unwrap();
            assert_eq!(file.attributes().unwrap().modified, time);
        }
    });
}

#[test]
fn inline_data_moves_to_chunks_when_it_does_not_fit_and_all_clients_see_it() {
    let context = Context::default();
    let new = NewEntry { permissions: 0o644, uid: 1000, gid: 1000 };
    for number in 0..20 {
        let pool = SimulatedPool::start(3, 4096);
        let mount = |member| PoolFs::new(Arc::new(pool.connect(member)), 4096);
        let (writer, reader) = (mount(number % 3), mount((number + 1) % 3));
        let verbs = writer.writable().unwrap();
        let (_entry, file) =
            verbs.create(&context, writer.root(), b"file", new, OpenMode::READ_WRITE).unwrap();
        let local_files = || (0..3).map(|member| pool.local_files(member).len()).sum::<usize>();
        file.write_at(b"begin", 0).unwrap();
        file.write_at(b"end", 4093).unwrap();
        assert_eq!(local_files(), 0, "the data is inline");
        let found = reader.lookup(&context, reader.root(), b"file").unwrap().unwrap();
        let other = reader.writable().unwrap();
        let other = other.open_as(&context, found.node(), OpenMode::READ_WRITE).unwrap();
        let contents = || {
            let mut data = vec![9; 10_000];
            let read = other.read_at(&mut data, 0).unwrap();
            data.truncate(read);
            data
        };
        let mut expected = [&b"begin"[..], &[0; 4088], b"end"].concat();
        assert_eq!(contents(), expected);
        match number % 4 {
            0 => file.write_at(b"more", 4096).unwrap(),
            1 => assert_eq!(file.append(b"more").unwrap(), 4096),
            2 => other.write_at(b"more", 4096).unwrap(),
            // Many small writes through one open file.
            _ => (0..8).for_each(|_| file.write_at(b"BEGIN", 0).unwrap()),
        }
        match number % 4 {
            3 => expected[..5].copy_from_slice(b"BEGIN"),
            _ => expected.extend(b"more"),
        }
        assert!(local_files() > 0, "the data is in chunks");
        assert_eq!(contents(), expected);
        assert_eq!(file.attributes().unwrap().size_bytes, expected.len() as u64);
        // The data stays in chunks.
        let change = Change { size_bytes: Some(0), ..Change::default() };
        reader.writable().unwrap().change(&context, found.node(), &change).unwrap();
        file.write_at(b"again", 0).unwrap();
        assert_eq!(contents(), b"again");
        assert!(local_files() > 0);
    }
}

#[test]
fn the_space_of_a_removed_file_is_free_after_its_last_reference() {
    let pool = SimulatedPool::start(1, 4096);
    let context = Context::default();
    let new = NewEntry { permissions: 0o644, uid: 1000, gid: 1000 };
    let fs = PoolFs::new(Arc::new(pool.connect(0)), 4096);
    let (entry, file) =
        fs.writable().unwrap().create(&context, fs.root(), b"file", new, OpenMode::READ_WRITE).unwrap();
    file.write_at(&[1; 5000], 0).unwrap();
    file.close().unwrap();
    drop(file);
    fs.writable().unwrap().remove(&context, fs.root(), b"file").unwrap();
    assert_eq!(pool.local_files(0).len(), 1);
    drop(entry);
    assert_eq!(pool.local_files(0), Vec::<Vec<u8>>::new());
}
