//! Tests of stores that adopt a tree: its files are read and never changed, and changes by others
//! are noticed.

mod mounts;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use quell_batch::{Adoption, AdoptionProgress, BatchFs, BatchStore, OpenBatch, StoreAccess, fsck};
use quell_vfs::{
    Change, Context, Error, ErrorKind, FileSystem, NodeId, OpenMode, Rename, Result, Writable, WritableFile,
};

use mounts::on_disk::WAIT;
use mounts::{NEW, bytes};

struct Adopted {
    temp: tempfile::TempDir,
}

impl Adopted {
    /// Creates a tree, changes it with `make`, and adopts it. Nothing is left out.
    fn new(make: impl FnOnce(&Path)) -> Adopted {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("tree")).unwrap();
        make(&temp.path().join("tree"));
        let adopted = Adopted { temp };
        assert!(adopt(&adopted.store(), &adopted.tree()).unwrap().is_empty());
        adopted
    }

    fn tree(&self) -> PathBuf {
        self.temp.path().join("tree")
    }

    fn store(&self) -> PathBuf {
        self.temp.path().join("store")
    }

    fn with_mount<T>(&self, with: impl FnOnce(&BatchFs) -> T) -> T {
        let store = BatchStore::open(&self.store(), WAIT).unwrap();
        let fs = store.file_system(b"").unwrap();
        let result = with(&fs);
        fs.end().unwrap();
        result
    }

    fn problems(&self, repairs: bool) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        fsck(&self.store(), WAIT, repairs, &mut |problem| {
            let path = problem.path.clone().unwrap_or_default();
            found.push((problem.kind, String::from_utf8(path).unwrap()));
        })
        .unwrap();
        found
    }
}

/// Adopts a tree, and returns the paths of the entries that were left out.
fn adopt(store: &Path, tree: &Path) -> Result<Vec<String>> {
    let progress = AdoptionProgress::default();
    let left_out = Mutex::new(Vec::new());
    let report = |path: &[u8], _: &Error| {
        left_out.lock().unwrap().push(String::from_utf8(path.to_vec()).unwrap());
    };
    BatchStore::adopt(store, tree, &Adoption { threads: 3, progress: &progress, report: &report })?;
    let mut left_out = left_out.into_inner().unwrap();
    left_out.sort();
    assert_eq!(progress.left_out(), left_out.len() as u64);
    Ok(left_out)
}

/// Returns the node at a path.
fn node(fs: &BatchFs, path: &str) -> NodeId {
    path.split('/').filter(|name| !name.is_empty()).fold(fs.root(), |dir, name| {
        let found = fs.lookup(&Context::OWN, dir, name.as_bytes()).unwrap();
        found.unwrap_or_else(|| panic!("{path} does not exist")).into_attributes().node
    })
}

fn open(fs: &BatchFs, path: &str) -> Result<Box<dyn WritableFile>> {
    fs.writable().unwrap().open_as(&Context::OWN, node(fs, path), OpenMode::READ_WRITE)
}

fn read(fs: &BatchFs, path: &str) -> Vec<u8> {
    let file = open(fs, path).unwrap();
    let found = bytes(&*file);
    file.close().unwrap();
    found
}

/// The inode number, the mode, the size, the times and the bytes of a file.
type State = (u64, u32, u64, i64, i64, i64, i64, Vec<u8>);

/// Returns the state of all files of a tree: inode numbers, attributes, times, and the bytes.
fn state(top: &Path) -> BTreeMap<PathBuf, State> {
    let mut found = BTreeMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = match stat.file_type() {
            kind if kind.is_dir() => {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            }
            kind if kind.is_file() => fs::read(&path).unwrap_or_default(),
            _ => Vec::new(),
        };
        let of = (
            stat.ino(),
            stat.mode(),
            stat.size(),
            stat.mtime(),
            stat.mtime_nsec(),
            stat.ctime(),
            stat.ctime_nsec(),
            content,
        );
        found.insert(path, of);
    }
    found
}

#[test]
fn names_attributes_and_bytes_are_those_of_the_tree() {
    let adopted = Adopted::new(|tree| {
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        for number in 0..700 {
            fs::write(tree.join(format!("a/b/{number}")), format!("file {number}")).unwrap();
        }
        fs::write(tree.join("a/large"), vec![7; 300_000]).unwrap();
        fs::write(tree.join("empty"), "").unwrap();
        symlink("a/large", tree.join("link")).unwrap();
        fs::set_permissions(tree.join("a/large"), PermissionsExt::from_mode(0o4640)).unwrap();
        fs::set_permissions(tree.join("a/b"), PermissionsExt::from_mode(0o2750)).unwrap();
        for name in ["a/b/c/hard", "hard"] {
            fs::hard_link(tree.join("a/large"), tree.join(name)).unwrap();
        }
        // A name that is not in the tree is not counted.
        fs::hard_link(tree.join("a/b/5"), tree.parent().unwrap().join("outside")).unwrap();
    });
    let before = state(&adopted.tree());
    adopted.with_mount(|fs| {
        for (path, (_, mode, size, mtime, mtime_nsec, ctime, ctime_nsec, content)) in &before {
            let path = path.strip_prefix(adopted.tree()).unwrap().to_str().unwrap();
            let found = fs.attributes(&Context::OWN, node(fs, path)).unwrap();
            assert_eq!(found.permissions, mode & 0o7777, "{path}");
            assert_eq!((found.uid, found.gid), (before_owner(&adopted.tree().join(path))), "{path}");
            let times = (found.modified.seconds, i64::from(found.modified.nanoseconds));
            assert_eq!(times, (*mtime, *mtime_nsec), "{path}");
            let times = (found.changed.seconds, i64::from(found.changed.nanoseconds));
            assert_eq!(times, (*ctime, *ctime_nsec), "{path}");
            if mode & 0o170_000 == 0o100_000 {
                assert_eq!((found.size_bytes, read(fs, path)), (*size, content.clone()), "{path}");
            }
        }
        let numbers = ["a/large", "hard", "a/b/c/hard"].map(|path| {
            let found = fs.attributes(&Context::OWN, node(fs, path)).unwrap();
            assert_eq!(found.nlink, 3);
            found.node
        });
        assert_eq!(numbers, [numbers[0]; 3]);
        assert_eq!(fs.attributes(&Context::OWN, node(fs, "a/b/5")).unwrap().nlink, 1);
        assert_eq!(fs.read_link(&Context::OWN, node(fs, "link")).unwrap(), b"a/large");
    });
    assert_eq!(adopted.problems(false), []);
    // New inodes have other numbers than the adopted ones.
    adopted.with_mount(|fs| {
        for number in 0..3 {
            let name = format!("new{number}");
            let new = fs.make_dir(&Context::OWN, fs.root(), name.as_bytes(), NEW).unwrap();
            drop(new);
        }
    });
    assert_eq!(adopted.problems(false), []);
}

fn before_owner(path: &Path) -> (u32, u32) {
    let stat = fs::symlink_metadata(path).unwrap();
    (stat.uid(), stat.gid())
}

#[test]
fn no_change_in_the_store_reaches_the_tree() {
    let adopted = Adopted::new(|tree| {
        fs::create_dir(tree.join("dir")).unwrap();
        for name in ["written", "appended", "cut", "emptied", "removed", "renamed", "dir/below", "mode"] {
            fs::write(tree.join(name), vec![1; 100_000]).unwrap();
        }
        fs::hard_link(tree.join("written"), tree.join("linked")).unwrap();
    });
    let before = state(&adopted.tree());
    let change = |fs: &BatchFs| {
        let file = open(fs, "written").unwrap();
        file.write_at(b"new", 50_000).unwrap();
        file.sync().unwrap();
        file.close().unwrap();
        let file = open(fs, "appended").unwrap();
        assert_eq!(file.append(b"end").unwrap(), 100_000);
        file.close().unwrap();
        let root = fs.root();
        for (name, size_bytes) in [("cut", 10), ("emptied", 0)] {
            let size = Change { size_bytes: Some(size_bytes), ..Change::default() };
            Writable::change(fs, &Context::OWN, node(fs, name), &size).unwrap();
        }
        let mode = Change { permissions: Some(0o600), ..Change::default() };
        Writable::change(fs, &Context::OWN, node(fs, "mode"), &mode).unwrap();
        fs.remove(&Context::OWN, root, b"removed").unwrap();
        fs.rename(&Context::OWN, root, b"renamed", root, b"moved", Rename::Keep).unwrap();
        fs.rename(&Context::OWN, root, b"dir", root, b"moved-dir", Rename::Keep).unwrap();
    };
    let check = |fs: &BatchFs| {
        let mut expected = vec![1; 100_000];
        assert_eq!(read(fs, "moved"), expected);
        assert_eq!(read(fs, "moved-dir/below"), expected);
        assert_eq!(read(fs, "mode"), expected);
        assert_eq!(read(fs, "cut"), [1; 10]);
        assert_eq!(read(fs, "emptied"), b"");
        expected[50_000..50_003].copy_from_slice(b"new");
        assert_eq!((read(fs, "written"), read(fs, "linked")), (expected.clone(), expected));
        assert_eq!(read(fs, "appended")[99_998..], *b"\x01\x01end");
        assert!(fs.lookup(&Context::OWN, fs.root(), b"removed").unwrap().is_none());
    };
    // The changes are made in a batch, and then in the synchronous mode in another store of the
    // same tree.
    let batch =
        OpenBatch::begin(StoreAccess::open(&adopted.store(), WAIT).unwrap(), b"", "job", false).unwrap();
    change(&batch.file_system());
    check(&batch.file_system());
    adopted.with_mount(|fs| assert_eq!(read(fs, "renamed"), [1; 100_000]));
    batch.commit(WAIT).unwrap();
    drop(batch);
    adopted.with_mount(check);
    assert_eq!(adopted.problems(false), []);
    assert_eq!(state(&adopted.tree()), before, "the tree");
    fs::remove_dir_all(adopted.store()).unwrap();
    adopt(&adopted.store(), &adopted.tree()).unwrap();
    adopted.with_mount(change);
    adopted.with_mount(check);
    let store = BatchStore::open(&adopted.store(), WAIT).unwrap();
    let mut unused = Vec::new();
    store.collect_garbage(true, &mut |found| unused.push(found.clone())).unwrap();
    assert_eq!(unused, []);
    drop(store);
    assert_eq!(state(&adopted.tree()), before, "the tree");
}

type Damage = (&'static str, fn(&Path));

/// Changes of a tree. Each affects the file `dir/file`.
const CHANGES: &[Damage] = &[
    ("other bytes of the same size", |tree| fs::write(tree.join("dir/file"), "OTHER").unwrap()),
    ("more bytes", |tree| fs::write(tree.join("dir/file"), "other bytes").unwrap()),
    ("another mode", |tree| {
        fs::set_permissions(tree.join("dir/file"), PermissionsExt::from_mode(0o600)).unwrap();
    }),
    ("a removed file", |tree| fs::remove_file(tree.join("dir/file")).unwrap()),
    ("another file", |tree| {
        fs::write(tree.join("new"), "OTHER").unwrap();
        fs::rename(tree.join("new"), tree.join("dir/file")).unwrap();
    }),
    ("a link to the file", |tree| {
        fs::rename(tree.join("dir/file"), tree.join("moved")).unwrap();
        symlink(tree.join("moved"), tree.join("dir/file")).unwrap();
    }),
    ("a directory in its place", |tree| {
        fs::remove_file(tree.join("dir/file")).unwrap();
        fs::create_dir(tree.join("dir/file")).unwrap();
    }),
    ("a socket in its place", |tree| {
        fs::remove_file(tree.join("dir/file")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(tree.join("dir/file")).unwrap());
    }),
    ("a FIFO in its place", |tree| {
        fs::remove_file(tree.join("dir/file")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, tree.join("dir/file"), kind, mode, 0).unwrap();
    }),
    ("a link to the directory", |tree| {
        fs::rename(tree.join("dir"), tree.parent().unwrap().join("elsewhere")).unwrap();
        symlink("../elsewhere", tree.join("dir")).unwrap();
    }),
    ("a removed directory", |tree| fs::remove_dir_all(tree.join("dir")).unwrap()),
];

#[test]
fn a_changed_file_is_not_opened_and_its_attributes_stay() {
    for (name, change) in CHANGES {
        let adopted = Adopted::new(|tree| {
            fs::create_dir(tree.join("dir")).unwrap();
            fs::write(tree.join("dir/file"), "bytes").unwrap();
            fs::write(tree.join("other"), "other").unwrap();
        });
        let mtime = fs::metadata(adopted.tree().join("dir/file")).unwrap().modified().unwrap();
        wait_for_other_time(adopted.temp.path(), mtime);
        change(&adopted.tree());
        adopted.with_mount(|fs| {
            let found = fs.attributes(&Context::OWN, node(fs, "dir/file")).unwrap();
            assert_eq!(found.size_bytes, 5, "{name}");
            let error = open(fs, "dir/file").map(drop).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Stale, "{name}: {error}");
            assert_eq!(read(fs, "other"), b"other", "{name}");
            // These changes do not need the bytes of the file.
            let cut = Change { size_bytes: Some(0), ..Change::default() };
            let file = node(fs, "dir/file");
            Writable::change(fs, &Context::OWN, file, &cut).unwrap();
            assert_eq!(read(fs, "dir/file"), b"", "{name}");
            fs.remove(&Context::OWN, node(fs, "dir"), b"file").unwrap();
        });
    }
}

/// Waits until a new file has a later time than `time`.
fn wait_for_other_time(dir: &Path, time: std::time::SystemTime) {
    let probe = dir.join("probe");
    while {
        fs::write(&probe, "").unwrap();
        fs::metadata(&probe).unwrap().modified().unwrap() <= time
    } {}
}

#[test]
fn a_change_of_an_open_file_is_noticed_at_the_next_read() {
    let adopted = Adopted::new(|tree| fs::write(tree.join("file"), vec![1; 200_000]).unwrap());
    let original = adopted.tree().join("file");
    let mtime = fs::metadata(&original).unwrap().modified().unwrap();
    wait_for_other_time(adopted.temp.path(), mtime);
    adopted.with_mount(|fs| {
        let file = open(fs, "file").unwrap();
        let mut buffer = [0; 100];
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 100);
        fs::File::options().write(true).open(&original).unwrap().write_at(b"x", 150_000).unwrap();
        assert_eq!(file.read_at(&mut buffer, 0).unwrap_err().kind, ErrorKind::Stale);
        // A copy into the store would have bytes of two states.
        assert_eq!(file.write_at(b"new", 0).unwrap_err().kind, ErrorKind::Stale);
        drop(file);
    });
    assert_eq!(adopted.problems(false), [("changed-adopted", "/file".to_owned())]);
    assert_eq!(adopted.problems(true), [("changed-adopted", "/file".to_owned())]);
    assert_eq!(adopted.problems(false), []);
    adopted.with_mount(|fs| assert_eq!(read(fs, "file"), fs::read(&original).unwrap()));
}

/// Another user may have written the bytes, so they are accepted only with the present owner and
/// permissions of the file, and never with set-id bits.
#[test]
fn a_repair_takes_the_permissions_of_a_changed_file_and_no_set_id_bits() {
    let set_mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let adopted = Adopted::new(|tree| {
        for name in ["replaced", "written", "secret"] {
            fs::write(tree.join(name), "trusted").unwrap();
            set_mode(&tree.join(name), if name == "secret" { 0o644 } else { 0o6755 });
        }
    });
    let tree = adopted.tree();
    for (name, mode) in [("replaced", 0o4750), ("secret", 0o600)] {
        fs::write(tree.join("new"), "other bytes").unwrap();
        set_mode(&tree.join("new"), mode);
        fs::rename(tree.join("new"), tree.join(name)).unwrap();
    }
    // A write by a user without privileges removes the set-id bits, so they are set again.
    fs::write(tree.join("written"), "other bytes").unwrap();
    set_mode(&tree.join("written"), 0o6755);
    assert_eq!(adopted.problems(true).len(), 3);
    assert_eq!(adopted.problems(false), []);
    adopted.with_mount(|fs| {
        for (name, expected) in [("replaced", 0o750), ("written", 0o755), ("secret", 0o600)] {
            assert_eq!(read(fs, name), b"other bytes");
            let found = fs.attributes(&Context::OWN, node(fs, name)).unwrap();
            assert_eq!(found.permissions, expected, "{name}");
            assert_eq!((found.uid, found.gid), before_owner(&tree.join(name)), "{name}");
        }
    });
}

#[test]
fn problems_of_the_tree_are_found() {
    let adopted = Adopted::new(|tree| {
        fs::write(tree.join("kept"), "kept").unwrap();
        fs::write(tree.join("gone"), "gone").unwrap();
        fs::write(tree.join("longer"), "long").unwrap();
    });
    fs::remove_file(adopted.tree().join("gone")).unwrap();
    fs::write(adopted.tree().join("longer"), "longer").unwrap();
    let expected = [("missing-adopted", "/gone".to_owned()), ("changed-adopted", "/longer".to_owned())];
    assert_eq!(adopted.problems(false), expected);
    assert_eq!(adopted.problems(true), expected);
    assert_eq!(adopted.problems(false), expected[..1]);
    adopted.with_mount(|fs| {
        assert_eq!(read(fs, "longer"), b"longer");
        assert_eq!(fs.attributes(&Context::OWN, node(fs, "longer")).unwrap().size_bytes, 6);
    });
    // The tree can be moved.
    let moved = adopted.temp.path().join("moved");
    fs::rename(adopted.tree(), &moved).unwrap();
    assert_eq!(adopted.problems(true), [("lost-tree", String::new())]);
    adopted.with_mount(|fs| {
        assert_eq!(open(fs, "kept").map(drop).unwrap_err().kind, ErrorKind::Stale);
        drop(fs.make_dir(&Context::OWN, fs.root(), b"works", NEW).unwrap());
    });
    let inode = fs::metadata(&moved).unwrap().ino();
    // Another directory at the path is not mistaken for the tree.
    fs::create_dir(adopted.tree()).unwrap();
    fs::write(adopted.tree().join("kept"), "other").unwrap();
    assert_eq!(adopted.problems(true), [("lost-tree", String::new())]);
    adopted.with_mount(|fs| {
        assert_eq!(open(fs, "kept").map(drop).unwrap_err().kind, ErrorKind::Stale);
    });
    fs::write(adopted.store().join("adopted"), format!("{inode}\n{}\n", moved.display())).unwrap();
    assert_eq!(adopted.problems(false), expected[..1]);
    adopted.with_mount(|fs| assert_eq!(read(fs, "kept"), b"kept"));
    // A store whose file `adopted` has no valid path, and then a store without this file.
    fs::write(adopted.store().join("adopted"), "7\nnot absolute\n").unwrap();
    let store = BatchStore::open(&adopted.store(), WAIT).unwrap();
    assert_eq!(store.file_system(b"").map(drop).unwrap_err().kind, ErrorKind::Damaged);
    drop(store);
    fs::remove_file(adopted.store().join("adopted")).unwrap();
    assert_eq!(adopted.problems(true), [("lost-tree", String::new())]);
}

#[test]
fn a_failed_adoption_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    fs::create_dir_all(tree.join("dir")).unwrap();
    let store = tree.join("dir/store");
    assert_eq!(adopt(&store, &tree).unwrap_err().kind, ErrorKind::InvalidInput);
    assert!(!store.exists(), "a store in its own tree");
    let alias = temp.path().join("alias");
    symlink(tree.join("dir"), &alias).unwrap();
    assert_eq!(adopt(&alias.join("store"), &tree).unwrap_err().kind, ErrorKind::InvalidInput);
    assert!(!store.exists());
    let store = temp.path().join("store");
    assert_eq!(adopt(&store, &temp.path().join("missing")).unwrap_err().kind, ErrorKind::NotFound);
    assert!(!store.exists());
    let progress = AdoptionProgress::default();
    progress.stop();
    let adoption = Adoption { threads: 2, progress: &progress, report: &|_, _| {} };
    fs::create_dir(&store).unwrap();
    fs::set_permissions(&store, PermissionsExt::from_mode(0o700)).unwrap();
    let stopped = BatchStore::adopt(&store, &tree, &adoption);
    assert_eq!(stopped.unwrap_err().kind, ErrorKind::Interrupted);
    assert_eq!(fs::read_dir(&store).unwrap().count(), 0, "the directory existed before");
    // The store is the tree itself.
    assert_eq!(adopt(&store, &store).unwrap_err().kind, ErrorKind::InvalidInput);
    assert_eq!(fs::read_dir(&store).unwrap().count(), 0, "the directory existed before");
    // A directory with other files is refused, and its files stay.
    fs::write(store.join("notes"), "mine").unwrap();
    assert_eq!(adopt(&store, &tree).unwrap_err().kind, ErrorKind::Exists);
    assert_eq!(fs::read_to_string(store.join("notes")).unwrap(), "mine");
}

/// An ordinary user who can rename directories on the path of a new store of root must not make
/// root remove other files.
#[test]
fn a_failed_adoption_removes_nothing_of_a_directory_that_replaces_the_store() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let victim = temp.path().join("victim");
    fs::create_dir_all(victim.join("dir")).unwrap();
    fs::set_permissions(&victim, PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(victim.join("dir/file"), "precious").unwrap();
    fs::write(victim.join("file"), "precious").unwrap();
    let (sub, moved) = (temp.path().join("sub"), temp.path().join("moved"));
    fs::create_dir(&sub).unwrap();
    let progress = AdoptionProgress::default();
    // The adoption reports the FIFO, so it has begun and is not complete.
    let report = |_: &[u8], _: &Error| {
        fs::rename(&sub, &moved).unwrap();
        fs::create_dir(&sub).unwrap();
        symlink(&victim, sub.join("store")).unwrap();
        progress.stop();
    };
    let adoption = Adoption { threads: 1, progress: &progress, report: &report };
    let error = BatchStore::adopt(&sub.join("store"), &tree, &adoption).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Interrupted);
    for name in ["file", "dir/file"] {
        assert_eq!(fs::read_to_string(victim.join(name)).unwrap(), "precious");
    }
    // The incomplete store itself is removed at its present path.
    assert_eq!(fs::read_dir(&moved).unwrap().count(), 0);
    assert!(fs::symlink_metadata(sub.join("store")).unwrap().is_symlink());
}

#[test]
fn the_reason_of_a_failed_adoption_is_reported_also_if_its_files_cannot_be_removed() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (store, moved) = (temp.path().join("store"), temp.path().join("moved"));
    let progress = AdoptionProgress::default();
    let report = |_: &[u8], _: &Error| {
        // Another directory is at the path, so the new one cannot be removed by its name.
        fs::rename(&store, &moved).unwrap();
        fs::create_dir(&store).unwrap();
        progress.stop();
    };
    let adoption = Adoption { threads: 1, progress: &progress, report: &report };
    let error = BatchStore::adopt(&store, &tree, &adoption).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Interrupted, "{error}");
    assert!(error.to_string().contains("renamed meanwhile"), "{error}");
    assert!(store.is_dir());
    assert_eq!(fs::read_dir(&moved).unwrap().count(), 0);
}

#[test]
fn entries_that_cannot_be_adopted_are_reported() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    fs::create_dir_all(tree.join("dir")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("dir/fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap());
    fs::write(tree.join("file"), "file").unwrap();
    // A directory at a depth of more than 1,000.
    let mut dir = rustix::fs::open(&tree, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..1003 {
        rustix::fs::mkdirat(&dir, "d", rustix::fs::Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, "d", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    }
    let deep = vec!["d"; 1001].join("/");
    let store = temp.path().join("store");
    assert_eq!(adopt(&store, &tree).unwrap(), [deep.as_str(), "dir/fifo", "socket"]);
    let opened = BatchStore::open(&store, WAIT).unwrap();
    let fs = opened.file_system(b"").unwrap();
    assert_eq!(read(&fs, "file"), b"file");
    assert!(fs.lookup(&Context::OWN, node(&fs, "dir"), b"fifo").unwrap().is_none());
}
