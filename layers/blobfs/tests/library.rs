//! Tests of mounts and of programs that use the library on the same blobs.

use std::time::Duration;

use quell_blob::{Operation, Store};
use quell_blobfs::{BlobFs, Owner};
use quell_vfs::{
    Context, Cursor, ErrorKind, FileSystem, Kind, NewEntry, NodeId, OpenMode, Rename, errno, resolve,
};

const CONTEXT: Context<'static> = Context::OWN;
const NEW: NewEntry = NewEntry { permissions: 0o755, uid: 7, gid: 8 };

struct Fixture {
    store: Store,
    fs: BlobFs,
    _directory: tempfile::TempDir,
}

impl Fixture {
    /// Returns a store with empty blobs, and a mount of the blobs below `p/`.
    fn with(names: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("dir:{}", directory.path().join("store").display())).unwrap();
        let create = |name: &[u8]| Operation::Create { name: name.to_vec(), may_exist: false };
        let operations = names.into_iter().map(|name| create(name.as_ref())).collect();
        store.commit(operations).unwrap();
        let fs = BlobFs::new(store.clone(), b"p", Owner { uid: 1, gid: 2 }, 3).unwrap();
        Fixture { store, fs, _directory: directory }
    }

    fn list(&self, path: &str, from: Cursor, count: usize) -> Vec<(String, Kind, Cursor)> {
        let dir = resolve(&self.fs, &CONTEXT, path.as_bytes()).unwrap();
        let mut found = Vec::new();
        let visit = &mut |entry: quell_vfs::DirEntry<'_>| {
            found.push((String::from_utf8_lossy(entry.name).into_owned(), entry.kind, entry.next));
            found.len() < count
        };
        self.fs.list(&CONTEXT, dir.node(), from, visit).unwrap();
        found
    }

    fn names(&self, path: &str) -> Vec<String> {
        self.list(path, Cursor::START, usize::MAX).into_iter().map(|(name, ..)| name).collect()
    }

    fn rename(&self, from: &str, to: &str, mode: Rename) -> quell_vfs::Result<()> {
        let (root, verbs) = (self.fs.root(), self.fs.writable().unwrap());
        verbs.rename(&CONTEXT, root, from.as_bytes(), root, to.as_bytes(), mode)
    }

    fn node(&self, path: &str) -> NodeId {
        resolve(&self.fs, &CONTEXT, path.as_bytes()).unwrap().into_attributes().node
    }
}

#[test]
fn blobs_are_files_in_implied_directories_and_other_names_are_hidden() {
    let hidden = ["p/x//y", "p/./z", "p//removed/1/2", "p/..", "p/a/below a file", "p/nul\0"];
    let shown = ["p/a", "p/a-b", "p/d/e/f", "p/d/g", "p/x/h", "other", "p0"];
    let fixture = Fixture::with(hidden.iter().chain(&shown));
    assert_eq!(fixture.names(""), ["a", "a-b", "d", "x"]);
    assert_eq!(
        (fixture.names("d"), fixture.names("d/e"), fixture.names("x")),
        (vec!["e".into(), "g".into()], vec!["f".into()], vec!["h".into()])
    );
    assert_eq!(fixture.fs.hidden_blobs(), 6, "5 in the root, and 1 below x");
    let file = fixture.fs.attributes_of_path(&CONTEXT, b"a").unwrap().unwrap();
    assert_eq!((file.kind, file.permissions, file.uid, file.gid), (Kind::File, 0o600, 1, 2));
    let dir = fixture.fs.attributes_of_path(&CONTEXT, b"d/e").unwrap().unwrap();
    assert_eq!((dir.kind, dir.permissions, dir.uid, dir.gid), (Kind::Dir, 0o700, 1, 2));
    // A directory does not exist any more after its last blob is deleted, unless the mount has
    // changed the directory.
    fixture.store.delete("p/d/e/f").unwrap();
    assert_eq!(fixture.names("d"), ["g"]);
    let d = fixture.node("d");
    fixture.fs.writable().unwrap().remove(&CONTEXT, d, b"g").unwrap();
    assert_eq!(
        (fixture.names(""), fixture.names("d").len()),
        (vec!["a".into(), "a-b".into(), "d".into(), "x".into()], 0)
    );
    // A directory with a blob that is not shown is not empty.
    let (x, root) = (fixture.node("x"), fixture.fs.root());
    fixture.fs.writable().unwrap().remove(&CONTEXT, x, b"h").unwrap();
    let removed = fixture.fs.writable().unwrap().remove_dir(&CONTEXT, root, b"x");
    assert_eq!(removed.unwrap_err().kind, ErrorKind::NotEmpty);
}

#[test]
fn a_listing_skips_the_blobs_of_subdirectories_and_continues_at_every_entry() {
    let files = (0..700).map(|number| format!("p/file {number:04}"));
    let below = (0..3000).map(|number| format!("p/file 0100.d/{number}"));
    let fixture = Fixture::with(files.chain(below).chain(["p/file 0100/hidden".to_owned()]));
    let all = fixture.list("", Cursor::START, usize::MAX);
    let names: Vec<&str> = all.iter().map(|(name, ..)| &name[..]).collect();
    assert_eq!(
        (names.len(), names[100], names[101], names[102]),
        (701, "file 0100", "file 0100.d", "file 0101")
    );
    assert_eq!(fixture.list("file 0100.d", Cursor::START, usize::MAX).len(), 3000);
    for (position, (_, _, next)) in all.iter().enumerate() {
        let following = fixture.list("", *next, 1);
        assert_eq!(following.first().map(|(name, ..)| name), all.get(position + 1).map(|(name, ..)| name));
    }
}

#[test]
fn a_directory_with_too_many_blobs_is_not_renamed() {
    let fixture = Fixture::with((0..8184).map(|number| format!("p/d/{number}")));
    fixture.rename("d", "e", Rename::Replace).unwrap();
    assert_eq!((fixture.names("").len(), fixture.names("e").len()), (1, 8184));
    fixture.store.create("p/e/one more").unwrap();
    let refused = fixture.rename("e", "f", Rename::Replace).unwrap_err();
    assert_eq!(refused.errno(), errno::EXDEV);
    assert!(refused.to_string().contains("too many or too long"), "{refused}");
    assert_eq!(fixture.names("e").len(), 8185);
    // An exchange of two directories, each of which could be renamed.
    let names = (0..5500).flat_map(|number| ["one", "two"].map(|dir| format!("p/{dir}/{number}")));
    let create = |name: String| Operation::Create { name: name.into_bytes(), may_exist: false };
    fixture.store.commit(names.map(create).collect()).unwrap();
    let refused = fixture.rename("one", "two", Rename::Exchange).unwrap_err();
    assert_eq!(refused.errno(), errno::EXDEV);
}

#[test]
fn an_error_of_a_commit_reaches_each_open_file_until_the_data_is_in_the_store() {
    let fixture = Fixture::with([""; 0]);
    let verbs = fixture.fs.writable().unwrap();
    let create = verbs.create(&CONTEXT, fixture.fs.root(), b"f", NEW, OpenMode::READ_WRITE);
    let (entry, first) = create.unwrap();
    let open = || verbs.open_as(&CONTEXT, entry.node(), OpenMode::READ_WRITE).unwrap();
    let (second, third) = (open(), open());
    first.write_at(b"one", 0).unwrap();
    fixture.store.delete("p/f").unwrap();
    for file in [&first, &second, &first] {
        assert_eq!(file.sync().unwrap_err().kind, ErrorKind::Stale);
    }
    assert_eq!(second.close().unwrap_err().kind, ErrorKind::Stale);
    // A program that uses the library has created the blob again.
    fixture.store.create("p/f").unwrap();
    third.write_at(b"two", 3).unwrap();
    third.sync().unwrap();
    first.sync().unwrap();
    let mut data = [0; 9];
    assert_eq!(fixture.store.read("p/f", 0, &mut data).unwrap(), 6);
    assert_eq!(&data[..6], b"onetwo");
    // Data that could not be written is discarded with the last open file.
    first.write_at(b"lost", 0).unwrap();
    fixture.store.delete("p/f").unwrap();
    assert!(third.close().is_err() && first.close().is_err());
    fixture.store.create("p/f").unwrap();
    assert_eq!(fixture.fs.attributes(&CONTEXT, entry.node()).unwrap().size_bytes, 0);
}

#[test]
fn the_data_of_removed_files_is_deleted_at_their_last_use_or_the_end_of_the_mount() {
    let fixture = Fixture::with(["p/a", "p/b"]);
    let blobs = || fixture.store.snapshot().unwrap().list("p//", "", 9).unwrap().len();
    let (root, verbs) = (fixture.fs.root(), fixture.fs.writable().unwrap());
    let (a, b) = (fixture.node("a"), fixture.node("b"));
    let file = verbs.open_as(&CONTEXT, a, OpenMode::READ_WRITE).unwrap();
    file.write_at(b"kept", 0).unwrap();
    for name in [b"a", b"b"] {
        verbs.remove(&CONTEXT, root, name).unwrap();
    }
    assert_eq!(blobs(), 3, "both, and the mark of the mount");
    fixture.fs.forget(a, 1);
    let mut data = [0; 4];
    assert_eq!((file.read_at(&mut data, 0).unwrap(), &data), (4, b"kept"));
    file.close().unwrap();
    assert_eq!(blobs(), 2);
    fixture.fs.end().unwrap();
    assert_eq!(blobs(), 0);
    assert_eq!(fixture.fs.attributes(&CONTEXT, b).unwrap_err().kind, ErrorKind::Stale);
}

#[test]
fn files_without_names_of_dead_mounts_are_removed_and_those_of_others_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("dir:{}", directory.path().join("store").display())).unwrap();
    let mount = |number| BlobFs::new(store.clone(), b"p", Owner { uid: 1, gid: 2 }, number).unwrap();
    let removed = || store.snapshot().unwrap().list("p//removed/", "", 10).unwrap().len();
    let one = mount(1);
    let writable = one.writable().unwrap();
    let (node, file) = writable.create(&CONTEXT, one.root(), b"file", NEW, OpenMode::WRITE).unwrap();
    file.write_at(b"data", 0).unwrap();
    file.sync().unwrap();
    writable.remove(&CONTEXT, one.root(), b"file").unwrap();
    assert_eq!(removed(), 2, "the data, and the mark of the mount");
    let two = mount(2);
    assert_eq!(two.remove_abandoned(Duration::from_secs(3600)).unwrap(), 0);
    let mut data = [0; 4];
    assert_eq!((file.read_at(&mut data, 0).unwrap(), &data), (4, b"data"));
    // A mount never removes its own blobs.
    assert_eq!(one.remove_abandoned(Duration::ZERO).unwrap(), 0);
    assert_eq!(two.remove_abandoned(Duration::ZERO).unwrap(), 2);
    assert_eq!(file.read_at(&mut data, 0).unwrap_err().kind, ErrorKind::Stale);
    assert_eq!(removed(), 0);
    // The mount was suspended, and continues: its last close finds nothing to delete.
    drop(node);
    file.close().unwrap();
    one.end().unwrap();
    // A mount that ends leaves no blobs of files without names.
    let three = mount(3);
    let writable = three.writable().unwrap();
    let (node, file) = writable.create(&CONTEXT, three.root(), b"file", NEW, OpenMode::WRITE).unwrap();
    writable.remove(&CONTEXT, three.root(), b"file").unwrap();
    assert_eq!(removed(), 2);
    drop((node, file));
    three.end().unwrap();
    assert_eq!(removed(), 0);
}
