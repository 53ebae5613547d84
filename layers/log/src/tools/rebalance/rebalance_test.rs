//! Tests that stores are added and drained while the files keep their content.

use quell_testkit::MemoryStore;
use quell_vfs::{
    Context, ErrorKind, FileSystem, LockMode, LockOwner, LockScope, NewEntry, OpenMode, Writable,
    WritableFile,
};

use super::*;
use crate::fs::LogFs;
use crate::stores::{Role, Root};
use crate::test_stores::{GONE, again, content, host, join, make, mount, pattern};

const FILES: u64 = 24;

fn name(file: u64) -> String {
    format!("rank-{file}")
}

/// Creates files with logs of five processes each, a directory with one of the files, and a link.
fn filled(stores: &[MemoryStore]) {
    let fs = mount(stores, 11, 1);
    let new = NewEntry { permissions: 0o750, uid: 1000, gid: 100 };
    let dir = fs.make_dir(&Context::OWN, fs.root(), b"deep", new).unwrap().into_attributes().node;
    fs.make_symlink(&Context::OWN, fs.root(), b"link", b"rank-0", new).unwrap();
    fs.make_symlink(&Context::OWN, dir, b"up", b"../rank-1", new).unwrap();
    for file in 0..FILES {
        let name = name(file);
        let first = make(&fs, &name, 1);
        let others: Vec<_> = (2..6).map(|process| again(&fs, &name, process)).collect();
        let bytes = pattern(5000, file);
        for (part, handle) in std::iter::once(&first).chain(&others).enumerate() {
            handle.write_at(&bytes[part * 1000..][..1000], part as u64 * 1000).unwrap();
        }
    }
    fs.rename(&Context::OWN, fs.root(), b"rank-3", dir, b"rank-3", quell_vfs::Rename::Replace).unwrap();
}

#[track_caller]
fn assert_complete(stores: &[MemoryStore], what: &str) {
    for file in 0..FILES {
        let path = if file == 3 { "deep/rank-3".to_owned() } else { name(file) };
        let found = read(stores, &path);
        assert!(
            found.as_deref() == Some(&pattern(5000, file)[..]),
            "{what}: {path}: {:?}",
            found.map(|f| f.len())
        );
    }
    let fs = mount(stores, 78, 1);
    for (dir, link, target) in [("", "link", "rank-0"), ("deep", "up", "../rank-1")] {
        let dir = if dir.is_empty() {
            fs.root()
        } else {
            fs.lookup(&Context::OWN, fs.root(), dir.as_bytes()).unwrap().unwrap().into_attributes().node
        };
        let link = fs.lookup(&Context::OWN, dir, link.as_bytes()).unwrap().unwrap();
        assert_eq!(fs.read_link(&Context::OWN, link.node()).unwrap(), target.as_bytes(), "{what}");
    }
}

fn read(stores: &[MemoryStore], path: &str) -> Option<Vec<u8>> {
    let fs = mount(stores, 77, 1);
    let size = fs.attributes_of_path(&Context::OWN, path.as_bytes()).unwrap()?.size_bytes;
    let mut bytes = vec![0; size as usize];
    let n = fs.open_path(&Context::OWN, path.as_bytes()).unwrap().read_at(&mut bytes, 0).unwrap();
    bytes.truncate(n);
    Some(bytes)
}

/// Checks that every container and log directory is where a mount would place it.
#[track_caller]
fn assert_placed(stores: &[MemoryStore]) {
    let opened = Arc::new(crate::test_stores::opened(stores, 55));
    let result = rebalance(&opened, 1, &ToolProgress::default()).unwrap();
    assert_eq!((result.moved, result.moved_log_dirs, result.files), (0, 0, FILES), "{result:?}");
    assert!(result.is_complete && result.busy.is_empty() && result.failed.is_empty(), "{result:?}");
    for store in stores {
        let own = store.root().open_writable_dir(b".quell").unwrap();
        for area in [&b"new"[..], b"trash"] {
            assert_eq!(own.open_writable_dir(area).unwrap().names().unwrap().len(), 0);
        }
    }
}

fn with_roles(stores: &[MemoryStore], roles: &[Role], seed: u64) -> Result<RebalanceResult> {
    let root = |store: &MemoryStore| Root { dir: store.root(), path: Vec::new() };
    let roots = stores.iter().map(root).zip(roles.iter().copied()).collect();
    let opened = Stores::change(roots, host(seed, 1), 4, &mut || false)?;
    rebalance(&Arc::new(opened), 1, &ToolProgress::default())
}

fn memory(count: usize) -> Vec<MemoryStore> {
    (0..count).map(|_| MemoryStore::new()).collect()
}

fn files_of(store: &MemoryStore) -> usize {
    store.root().names().unwrap().iter().filter(|name| name.ends_with(b".container")).count()
}

#[test]
fn an_added_store_gets_its_share_of_the_files() {
    for before in [1, 2] {
        let stores = memory(before + 1);
        filled(&stores[..before]);
        let mut roles = vec![Role::Keep; before];
        roles.push(Role::Add);
        let result = with_roles(&stores, &roles, 21).unwrap();
        assert!(result.moved > 0 && result.moved < FILES && result.moved_log_dirs > 0, "{result:?}");
        assert!(result.is_complete);
        assert_complete(&stores, "added");
        assert_placed(&stores);
        assert!(files_of(&stores[before]) > 0);
    }
}

#[test]
fn a_drained_store_is_empty_and_leaves_the_map() {
    for drained in 0..3 {
        let stores = memory(3);
        filled(&stores);
        let running = mount(&stores, 31, 1);
        let mut roles = [Role::Keep; 3];
        roles[drained] = Role::Drain;
        let result = with_roles(&stores, &roles, 32).unwrap();
        assert!(result.is_complete && result.moved > 0, "{result:?}");
        assert_eq!(files_of(&stores[drained]), 0);
        let left: Vec<_> =
            (0..3).filter(|store| *store != drained).map(|store| stores[store].clone()).collect();
        assert_complete(&left, "drained");
        assert_placed(&left);
        // A mount that does not know of the change continues, and its new files are found by
        // others.
        for file in 0..8 {
            let name = format!("later-{file}");
            make(&running, &name, 1).write_at(b"later", 0).unwrap();
            assert_eq!(content(&left, &name).unwrap(), b"later");
        }
    }
}

#[test]
fn after_a_failure_every_file_is_readable_and_the_next_run_completes_the_move() {
    for (roles, step) in [
        ([Role::Keep, Role::Keep, Role::Add], 61),
        ([Role::Keep, Role::Drain, Role::Keep], 67),
        ([Role::Drain, Role::Keep, Role::Keep], 71),
    ] {
        let is_adding = roles.contains(&Role::Add);
        for failing in 0..3 {
            for nth in (1..).step_by(step) {
                let stores = memory(3);
                filled(&stores[..if is_adding { 2 } else { 3 }]);
                let before = stores[failing].operations();
                stores[failing].fail_nth(nth, 5);
                let ended = with_roles(&stores, &roles, nth + 100);
                let is_over = stores[failing].operations() - before < nth;
                stores[failing].fail_nothing();
                let killed: Vec<_> = stores.iter().map(MemoryStore::kill).collect();
                let is_complete = ended.is_ok_and(|result| result.is_complete);
                let what = format!("{roles:?}, store {failing}, operation {nth}");
                if !is_complete {
                    match with_roles(&killed, &roles, nth + 200) {
                        // The killed run had done everything except for its report.
                        Err(error) if error.to_string().contains("is already drained") => {}
                        again => assert!(again.unwrap().is_complete, "{what}"),
                    }
                }
                let left: Vec<_> = (killed.iter().zip(roles))
                    .filter(|(_, role)| *role != Role::Drain)
                    .map(|(store, _)| store.clone())
                    .collect();
                assert_complete(&left, &what);
                if is_over {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_power_failure_during_a_move_loses_no_file() {
    for nth in (1..1500).step_by(47) {
        let stores = memory(3);
        filled(&stores);
        let fs: LogFs = mount(&stores, 12, 1);
        for file in 0..FILES {
            if file != 3 {
                again(&fs, &name(file), 9).sync().unwrap();
            }
        }
        drop(fs);
        // With this seed the crash loses nothing, and everything is durable.
        let stores: Vec<_> = stores.iter().map(|store| store.crash(1)).collect();
        stores[(nth % 3) as usize].fail_nth(nth / 2, 5);
        let roles = [Role::Keep, Role::Drain, Role::Keep];
        let _ = with_roles(&stores, &roles, nth);
        for seed in [8, nth] {
            let crashed: Vec<_> = stores.iter().map(|store| store.crash(seed)).collect();
            let is_drained = mount_is_refused(&crashed);
            let what = format!("operation {nth}, seed {seed}");
            if !is_drained {
                let again = with_roles(&crashed, &roles, nth + 7).unwrap();
                assert!(again.is_complete, "{what}: {again:?}");
            }
            assert_complete(&[crashed[0].clone(), crashed[2].clone()], &what);
        }
    }
}

fn mount_is_refused(stores: &[MemoryStore]) -> bool {
    Stores::open(stores.iter().map(|store| store.root() as _).collect(), host(1, 1), 4).is_err()
}

#[test]
fn a_file_that_is_being_written_is_moved_only_after_it_was_closed() {
    let stores = memory(3);
    filled(&stores);
    let fs = mount(&stores, 41, 1);
    let writers: Vec<Box<dyn WritableFile>> = (0..FILES)
        .filter(|file| *file != 3)
        .map(|file| {
            let handle = again(&fs, &name(file), 50);
            handle.write_at(b"!", 5000).unwrap();
            handle.publish().unwrap();
            handle
        })
        .collect();
    let roles = [Role::Keep, Role::Drain, Role::Keep];
    let result = with_roles(&stores, &roles, 42).unwrap();
    assert!(!result.is_complete && !result.busy.is_empty() && result.failed.is_empty(), "{result:?}");
    for writer in &writers {
        writer.write_at(b"?", 5001).unwrap();
        writer.publish().unwrap();
    }
    drop(writers);
    let result = with_roles(&stores, &roles, 43).unwrap();
    assert!(result.is_complete && result.busy.is_empty(), "{result:?}");
    let left = [stores[0].clone(), stores[2].clone()];
    for file in (0..FILES).filter(|file| *file != 3) {
        assert_eq!(read(&left, &name(file)).unwrap()[5000..], *b"!?");
    }
}

#[test]
fn a_dead_writer_does_not_prevent_a_move() {
    let stores = memory(2);
    let fs = mount(&stores[..1], 5, GONE);
    let handle = make(&fs, "file", 1);
    handle.write_at(b"bytes", 0).unwrap();
    handle.publish().unwrap();
    // The file is never closed.
    let result = with_roles(&stores, &[Role::Keep, Role::Add], 3).unwrap();
    assert!(result.is_complete && result.busy.is_empty(), "{result:?}");
    assert_eq!(content(&stores, "file").unwrap(), b"bytes");
    drop(handle);
}

#[test]
fn two_files_of_one_name_are_reported_and_not_moved() {
    let stores = memory(2);
    for (alone, seed) in stores.iter().zip(5..) {
        drop(make(&mount(std::slice::from_ref(alone), seed, 1), "f", 1));
    }
    join(&stores);
    let result = with_roles(&stores, &[Role::Keep; 2], 3).unwrap();
    assert_eq!((result.failed.len(), result.is_complete), (1, false));
    assert_eq!(stores.iter().map(files_of).sum::<usize>(), 2);
}

#[test]
fn a_reader_of_a_moved_file_gets_its_data_or_an_error_and_finds_it_by_name() {
    for has_read in [true, false] {
        let stores = memory(2);
        filled(&stores);
        let fs = mount(&stores, 61, 1);
        let mut bytes = vec![0; 5000];
        let files = || (0..FILES).filter(|file| *file != 3);
        let node = |file| {
            fs.lookup(&Context::OWN, fs.root(), name(file).as_bytes())
                .unwrap()
                .unwrap()
                .into_attributes()
                .node
        };
        let nodes: Vec<_> = files().map(node).collect();
        let open: Vec<_> =
            nodes.iter().map(|node| fs.open_as(&Context::OWN, *node, OpenMode::READ).unwrap()).collect();
        if has_read {
            for handle in &open {
                assert_eq!(handle.read_at(&mut bytes, 0).unwrap(), 5000);
            }
        }
        with_roles(&stores, &[Role::Keep, Role::Drain], 62).unwrap();
        for (handle, file) in open.iter().zip(files()) {
            match handle.read_at(&mut bytes, 0) {
                Ok(length) => assert!(length == 5000 && bytes == pattern(5000, file), "{length}"),
                Err(error) => {
                    assert!(matches!(error.kind, ErrorKind::Stale | ErrorKind::NotFound), "{error:?}");
                }
            }
        }
        // Each file is checked with the node that was known before, and while another one is open.
        for (node, file) in nodes.iter().zip(files()) {
            for node in [
                *node,
                fs.lookup(&Context::OWN, fs.root(), name(file).as_bytes())
                    .unwrap()
                    .unwrap()
                    .into_attributes()
                    .node,
            ] {
                assert_eq!(fs.attributes(&Context::OWN, node).unwrap().size_bytes, 5000);
                let again = fs.open_as(&Context::OWN, node, OpenMode::READ).unwrap();
                let length = again.read_at(&mut bytes, 0).unwrap();
                assert!(length == 5000 && bytes == pattern(5000, file), "{length}");
            }
        }
    }
}

#[test]
fn a_preview_reports_the_moves_and_writes_nothing() {
    let stores = memory(3);
    filled(&stores[..2]);
    let root = |store: usize| Root { dir: stores[store].root(), path: Vec::new() };
    let roles = [Role::Keep, Role::Keep, Role::Add];
    let map = Stores::planned_map((0..3).map(root).zip(roles).collect(), &host(8, 1)).unwrap();
    let opened = Arc::new(crate::test_stores::opened(&stores[..2], 9));
    let result = preview_rebalance(&opened, &map).unwrap();
    assert!(
        result.moved > 0 && result.moved < FILES && result.files == FILES && result.bytes > 0,
        "{result:?}"
    );
    assert_eq!(stores[2].root().names().unwrap().len(), 0);
    assert!(opened.new_dir(0).is_ok());
}

/// Tries to lock all bytes exclusively.
fn lock(file: &dyn WritableFile, owner: u64) -> Result<bool> {
    file.locks()?.try_lock(LockOwner(owner), LockScope::ALL_BYTES, LockMode::Exclusive)
}

#[test]
fn a_locked_file_is_not_moved_to_another_store() {
    let stores = [MemoryStore::new(), MemoryStore::new()];
    let fs = mount(&stores[..1], 1, 1);
    let names: Vec<String> = (0..12).map(|number| format!("f{number}")).collect();
    for name in &names {
        drop(make(&fs, name, 1));
    }
    // Open for reading, because a file with a writer is not moved anyway.
    let open = |name: &str| {
        let node = fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().unwrap();
        fs.open_as(&Context::OWN, node.into_attributes().node, OpenMode::READ).unwrap()
    };
    let files: Vec<_> = names.iter().map(|name| open(name)).collect();
    for file in &files {
        assert!(
            file.locks().unwrap().try_lock(LockOwner(1), LockScope::WholeFile, LockMode::Shared).unwrap()
        );
    }
    let move_all = |seed| with_roles(&stores, &[Role::Keep, Role::Add], seed).unwrap();
    let result = move_all(9);
    assert_eq!((result.moved, result.is_complete), (0, false), "{result:?}");
    assert!(!result.busy.is_empty(), "some files belong into the other store");
    for file in &files {
        file.locks().unwrap().release(LockOwner(1)).unwrap();
    }
    let result = move_all(10);
    assert!(result.moved > 0 && result.is_complete, "{result:?}");
    // Open files of moved containers get no lock that others would not see.
    let after = mount(&stores, 20, 3);
    for (name, old) in names.iter().zip(&files) {
        let new = again(&after, name, 1);
        assert!(lock(&*new, 2).unwrap());
        assert!(!matches!(lock(&**old, 1), Ok(true)), "{name}");
    }
}
