//! Tests that an export has the content of the stores, that an import has the content of its
//! source, and that no incomplete file gets its final name.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_testkit::MemoryStore;
use quell_vfs::{Change, Context, Error, ErrorKind, FileSystem, Kind, Result, Time, Writable};

use super::snapshot::Snapshot;
use super::state::{RangeCopies, split_ranges};
use super::*;
use crate::format::{FileOffset, data_name, index_name};
use crate::fs::{ResolvedPath, StoredDir, find};
use crate::test_stores::{GONE, container, content, make, mount, opened, pattern};
use crate::tools::progress::ToolProgress;

const OPTIONS: TransferOptions = TransferOptions { threads: 3, resume: false, verify: true, owners: true };

fn plain(store: &MemoryStore, name: &[u8]) -> Vec<u8> {
    let file = store.root().open_file(name).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size_bytes as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Creates a plain directory with entries of all kinds.
fn plain_tree() -> MemoryStore {
    let store = MemoryStore::new();
    let root = store.root();
    root.create_file(b"a", 0o640).unwrap().write_at(&pattern(100_000, 1), 0).unwrap();
    root.create_file(b"empty", 0o600).unwrap();
    root.create_file(b"x.container", 0o600).unwrap().write_at(b"x", 0).unwrap();
    let sparse = root.create_file(b"sparse", 0o444).unwrap();
    sparse.write_at(b"far", 1_000_000).unwrap();
    sparse.set_size(3_000_000).unwrap();
    root.make_symlink(b"link", b"../a").unwrap();
    root.make_dir(b"d", 0o750).unwrap();
    let dir = root.open_writable_dir(b"d").unwrap();
    dir.create_file(b"b", 0o644).unwrap().write_at(b"b", 0).unwrap();
    let time = Some(Time { seconds: 1_000_000, nanoseconds: 7 });
    for (dir, name) in [(&dir, &b"b"[..]), (&dir, b""), (&root, b"a"), (&root, b"link")] {
        dir.change(name, &Change { modified: time, ..Change::default() }).unwrap();
    }
    store
}

/// Collects names, kinds, permissions, times and bytes.
fn look(dir: &dyn WritableDir, path: &str, found: &mut Vec<String>) {
    let mut names = dir.names().unwrap();
    names.sort();
    for name in names {
        let stat = dir.stat(&name).unwrap();
        let shown = format!("{path}/{}", String::from_utf8_lossy(&name));
        found.push(format!("{shown} {:o} {:?}", stat.mode, stat.modified));
        match stat.kind().unwrap() {
            Kind::Dir => look(&*dir.open_writable_dir(&name).unwrap(), &shown, found),
            Kind::Symlink => found.push(format!("-> {:?}", dir.read_link(&name).unwrap())),
            _ => {
                let mut bytes = vec![0; stat.size_bytes as usize];
                dir.open_file(&name).unwrap().read_at(&mut bytes, 0).unwrap();
                found.push(format!("{} {:x}", bytes.len(), xxhash_rust::xxh3::xxh3_64(&bytes)));
            }
        }
    }
}

fn export_all(stores: &[MemoryStore], to: &MemoryStore, options: TransferOptions) -> TransferResult {
    let opened = Arc::new(opened(stores, 31));
    export(ExportSource::Dir(StoredDir::root(&opened)), to.root(), options, &ToolProgress::default()).unwrap()
}

fn import_from(
    from: &MemoryStore,
    source: ImportSource,
    stores: &[MemoryStore],
    options: TransferOptions,
) -> Result<TransferResult> {
    let (fs, stores) = (mount(stores, 3, 1), opened(stores, 4));
    import(from.root(), source, &fs, &stores, b"", options, &ToolProgress::default())
}

#[test]
fn an_imported_tree_is_exported_unchanged() {
    for stores in [vec![MemoryStore::new()], vec![MemoryStore::new(), MemoryStore::new()]] {
        let (source, out) = (plain_tree(), MemoryStore::new());
        // Attributes of a symbolic link are set only in a directory of root, where no other user
        // can replace the link.
        out.root().change(b"", &Change { uid: Some(0), ..Change::default() }).unwrap();
        let result = import_from(&source, ImportSource::All, &stores, OPTIONS).unwrap();
        assert_eq!(
            (result.files, result.dirs, result.links, result.failed.len()),
            (5, 1, 1, 0),
            "{result:?}"
        );
        let result = export_all(&stores, &out, OPTIONS);
        assert_eq!(
            (result.files, result.dirs, result.links, result.failed.len()),
            (5, 1, 1, 0),
            "{result:?}"
        );
        let (mut before, mut after) = (Vec::new(), Vec::new());
        look(&*source.root(), "", &mut before);
        look(&*out.root(), "", &mut after);
        assert_eq!(before, after);
        // On a second run every entry already exists.
        let again = TransferOptions { resume: true, ..OPTIONS };
        let result = export_all(&stores, &out, again);
        assert_eq!((result.files, result.skipped, result.failed.len()), (0, 6, 0), "{result:?}");
        let result = import_from(&source, ImportSource::All, &stores, again).unwrap();
        assert_eq!((result.files, result.skipped, result.failed.len()), (0, 6, 0), "{result:?}");
        // Without `resume` no existing entry is replaced.
        let result = export_all(&stores, &out, OPTIONS);
        assert_eq!((result.files, result.failed.len()), (0, 6));
    }
}

#[test]
fn holes_are_preserved() {
    let stores = [MemoryStore::new()];
    let source = plain_tree();
    import_from(&source, ImportSource::All, &stores, OPTIONS).unwrap();
    let snapshot = Snapshot::take(container(&stores, "sparse"), 1, &Arc::default()).unwrap();
    assert_eq!(snapshot.size_bytes(), 3_000_000);
    let ranges = snapshot.data_ranges(FileOffset::ZERO..FileOffset::MAX).unwrap();
    let written: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    assert!(written <= 2 * (64 << 10), "{written}");
}

#[test]
fn a_damaged_file_is_reported_and_not_exported() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, 1);
    for name in ["good", "bad"] {
        let file = make(&fs, name, 1);
        file.write_at(&pattern(50_000, 8), 0).unwrap();
        file.sync().unwrap();
    }
    drop(fs);
    let container = container(&stores, "bad");
    let writer = container.summary().unwrap().closed[0].writer;
    let dir = container.logs_of(writer, false).unwrap();
    let name = data_name(writer);
    dir.open_writable_file(&name).unwrap().write_at(b"!", 20_000).unwrap();
    let out = MemoryStore::new();
    let result = export_all(&stores, &out, OPTIONS);
    assert_eq!((result.files, result.failed.len()), (1, 1), "{result:?}");
    assert_eq!(out.root().names().unwrap(), [b"good".to_vec()]);
    // A log that is shorter than its synced size has lost unknown data: no file is created from it.
    dir.open_writable_file(&name).unwrap().set_size(64).unwrap();
    let index = index_name(writer);
    dir.remove(&index).unwrap();
    let result = export_all(&stores, &MemoryStore::new(), OPTIONS);
    assert_eq!((result.files, result.failed.len()), (1, 1), "{result:?}");
}

#[test]
fn a_failed_or_stopped_export_leaves_no_incomplete_file() {
    let stores = [MemoryStore::new()];
    let fs = mount(&stores, 5, 1);
    make(&fs, "f", 1).write_at(&pattern(50_000, 8), 0).unwrap();
    let out = MemoryStore::new();
    out.fail_one_in(1, 1, &["write"], quell_vfs::errno::EIO);
    let result = export_all(&stores, &out, OPTIONS);
    out.fail_nothing();
    assert_eq!(
        (result.files, result.failed.len(), out.root().names().unwrap().len()),
        (0, 1, 0),
        "{result:?}"
    );
    let progress = ToolProgress::default();
    progress.stop();
    let opened = Arc::new(opened(&stores, 31));
    export(ExportSource::Dir(StoredDir::root(&opened)), out.root(), OPTIONS, &progress).unwrap();
    assert!(out.root().names().unwrap().is_empty());
}

#[test]
fn files_that_are_being_written_are_exported_and_listed() {
    let stores = [MemoryStore::new()];
    let (alive, gone) = (mount(&stores, 5, 1), mount(&stores, 6, GONE));
    let files = [make(&alive, "alive", 1), make(&gone, "gone", 1)];
    for file in &files {
        file.write_at(b"so far", 0).unwrap();
        file.publish().unwrap();
    }
    let out = MemoryStore::new();
    for store in &stores {
        store.set_read_only(true);
    }
    let result = export_all(&stores, &out, OPTIONS);
    assert_eq!((result.files, &result.being_written[..]), (2, &[b"alive".to_vec()][..]), "{result:?}");
    assert_eq!((plain(&out, b"alive"), plain(&out, b"gone")), (b"so far".to_vec(), b"so far".to_vec()));
}

#[test]
fn a_single_file_gets_the_given_name() {
    let stores = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
    let (source, out) = (plain_tree(), MemoryStore::new());
    let entry = ImportSource::Entry(b"a".to_vec(), b"new".to_vec());
    import_from(&source, entry, &stores, OPTIONS).unwrap();
    assert_eq!(content(&stores, "new").unwrap(), pattern(100_000, 1));
    let opened = Arc::new(opened(&stores, 3));
    let ResolvedPath::Entry(dir, entry) = find(&opened, b"/new").unwrap() else { panic!("it is a file") };
    assert_eq!(entry.store, opened.home(b"new"));
    let source = ExportSource::Entry(dir, entry, b"out".to_vec());
    export(source, out.root(), OPTIONS, &ToolProgress::default()).unwrap();
    assert_eq!(plain(&out, b"out"), pattern(100_000, 1));
    let fs = mount(&stores, 8, 1);
    assert!(fs.lookup(&Context::OWN, fs.root(), b"a").unwrap().is_none());
    assert!(fs.space().is_ok());
}

#[test]
fn the_last_range_of_a_file_gets_the_failure_of_any_range() {
    let copies = RangeCopies::new(3);
    let interrupted = || Err(Error::new(ErrorKind::Interrupted, "copy", b""));
    assert!(copies.finish(Ok(())).is_none() && copies.finish(interrupted()).is_none());
    assert!(copies.finish(interrupted()).is_some_and(|copied| copied.is_err()));
}

#[test]
fn a_file_is_divided_into_ranges_without_gaps() {
    let range = |start, end| FileOffset(start)..FileOffset(end);
    for (size_bytes, expected) in [
        (0, vec![range(0, 0)]),
        (10, vec![range(0, 10)]),
        (11, vec![range(0, 10), range(10, 11)]),
        (20, vec![range(0, 10), range(10, 20)]),
    ] {
        assert_eq!(split_ranges(size_bytes, 10), expected);
    }
    assert_eq!(split_ranges(5, u64::MAX), [range(0, 5)]);
}
