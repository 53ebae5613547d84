//! Tests the writable directory in memory: its results, its faults, and its state after power
//! failures.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_posix::{Dir, PosixDir, WritableDir, WritableFile};
use quell_testkit::{CountingDir, CrashRules, MemoryStore, Operation, Random};
use quell_vfs::errno::*;
use quell_vfs::{Change, Rename, Result, Time};

fn read(dir: &dyn Dir, name: &str) -> Option<Vec<u8>> {
    let file = dir.open_file(name.as_bytes()).ok()?;
    let mut bytes = vec![0; file.stat().unwrap().size_bytes as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    Some(bytes)
}

#[track_caller]
fn refused<T>(answer: Result<T>, errno: i32) {
    match answer {
        Ok(_) => panic!("this must be refused"),
        Err(e) => assert_eq!(e.errno(), errno, "{e}"),
    }
}

fn make(dir: &dyn WritableDir, name: &str, bytes: &[u8]) {
    dir.create_file(name.as_bytes(), 0o644).unwrap().write_at(bytes, 0).unwrap();
}

fn names(dir: &dyn Dir) -> BTreeSet<String> {
    dir.names().unwrap().into_iter().map(|name| String::from_utf8(name).unwrap()).collect()
}

/// Returns the results of `look` after each of 200 power failures.
fn outcomes<T: Ord>(store: &MemoryStore, look: impl Fn(&dyn WritableDir) -> T) -> BTreeSet<T> {
    (0..200).map(|seed| look(&*store.crash(seed).root())).collect()
}

#[test]
fn an_open_file_works_after_its_name_is_removed() {
    let store = MemoryStore::new();
    let root = store.root();
    let file = root.create_file(b"file", 0o640).unwrap();
    file.write_pieces_at(&[b"one ", b"two"], 4096).unwrap();
    root.remove(b"file").unwrap();
    file.write_at(b"!", 4103).unwrap();
    let mut bytes = [9; 12];
    assert_eq!(file.read_at(&mut bytes, 4095).unwrap(), 9);
    assert_eq!(&bytes[..9], b"\0one two!");
    assert_eq!((file.stat().unwrap().nlink, file.stat().unwrap().size_bytes), (0, 4104));

    root.make_dir(b"dir", 0o755).unwrap();
    let dir = root.open_writable_dir(b"dir").unwrap();
    root.rename(b"dir", &*root, b"moved", Rename::Keep).unwrap();
    make(&*dir, "in it", b"x");
    assert_eq!(read(&*root.enter(b"moved").unwrap(), "in it"), Some(b"x".to_vec()));
    refused(root.enter(b"dir"), ENOENT);
    refused(root.remove_dir(b"moved"), ENOTEMPTY);
    dir.remove(b"in it").unwrap();
    root.remove_dir(b"moved").unwrap();
    refused(dir.create_file(b"in it", 0o644), ENOENT);
    assert!(dir.names().unwrap().is_empty());
    drop((file, dir));
    assert_eq!(store.open_handles(), 1);
}

#[test]
fn renames_replace_keep_and_exchange() {
    let root = MemoryStore::new().root();
    let other = MemoryStore::new().root();
    make(&*root, "a", b"a");
    make(&*root, "b", b"b");
    for dir in ["empty", "full", "top"] {
        root.make_dir(dir.as_bytes(), 0o755).unwrap();
    }
    make(&*root.open_writable_dir(b"full").unwrap(), "x", b"x");
    refused(root.rename(b"a", &*root, b"b", Rename::Keep), EEXIST);
    refused(root.rename(b"none", &*root, b"b", Rename::Replace), ENOENT);
    refused(root.rename(b"a", &*root, b"none", Rename::Exchange), ENOENT);
    refused(root.rename(b"a", &*root, b"empty", Rename::Replace), EISDIR);
    refused(root.rename(b"empty", &*root, b"a", Rename::Replace), ENOTDIR);
    refused(root.rename(b"top", &*root, b"full", Rename::Replace), ENOTEMPTY);
    refused(root.rename(b"a", &*other, b"a", Rename::Replace), EINVAL);
    let full = root.open_writable_dir(b"full").unwrap();
    refused(root.rename(b"full", &*full, b"in itself", Rename::Replace), EINVAL);
    refused(full.rename(b"x", &*root, b"full", Rename::Replace), ENOTEMPTY);
    root.rename(b"a", &*full, b"x", Rename::Exchange).unwrap();
    assert_eq!((read(&*root, "a"), read(&*full, "x")), (Some(b"x".to_vec()), Some(b"a".to_vec())));
    root.rename(b"a", &*root, b"b", Rename::Replace).unwrap();
    root.rename(b"full", &*root, b"empty", Rename::Replace).unwrap();
    assert_eq!(names(&*root), ["b", "empty", "top"].map(String::from).into());
    assert_eq!(names(&*full), ["x"].map(String::from).into());
    root.rename(b"top", &*full, b"top", Rename::Replace).unwrap();
    refused(root.rename(b"empty", &*full.open_writable_dir(b"top").unwrap(), b"a", Rename::Keep), EINVAL);
}

#[test]
fn a_full_store_writes_what_fits_and_removal_frees_space() {
    let store = MemoryStore::new();
    let root = store.root();
    let file = root.create_file(b"file", 0o644).unwrap();
    store.set_free_bytes(Some(2 * 4096));
    refused(file.write_at(&[7; 10_000], 0), ENOSPC);
    assert_eq!(file.stat().unwrap().size_bytes, 8192);
    refused(root.create_file(b"more", 0o644), ENOSPC);
    assert_eq!(root.space().unwrap().free_bytes, 0);
    file.write_at(&[8; 8192], 0).unwrap();
    file.set_size(1 << 40).unwrap();
    file.set_size(100).unwrap();
    assert_eq!(root.space().unwrap().free_bytes, 4096);
    root.remove(b"file").unwrap();
    assert_eq!(root.space().unwrap().free_bytes, 4096);
    drop(file);
    assert_eq!(root.space().unwrap().free_bytes, 2 * 4096 + 512);
}

#[test]
fn each_failure_switch_causes_its_error() {
    let store = MemoryStore::new();
    let root = store.root();
    make(&*root, "file", b"bytes");
    let file = root.open_writable_file(b"file").unwrap();
    store.set_read_only(true);
    refused(file.write_at(b"x", 0), EROFS);
    refused(root.make_dir(b"dir", 0o755), EROFS);
    refused(root.open_writable_file(b"file"), EROFS);
    assert_eq!(read(&*root, "file"), Some(b"bytes".to_vec()));
    store.set_read_only(false);
    store.set_gone(Some(ESTALE));
    refused(file.read_at(&mut [0], 0), ESTALE);
    refused(root.names(), ESTALE);
    store.set_gone(None);
    store.fail_nth(2, EIO);
    file.write_at(b"B", 0).unwrap();
    refused(file.sync(), EIO);
    file.sync().unwrap();
    store.fail(|o: &Operation| (o.path == b"file").then_some(EACCES));
    refused(root.stat(b"file"), EACCES);
    root.stat_self().unwrap();
    store.fail_one_in(7, 2, &["make directory"], EIO);
    let failed = (0..100).filter(|i| root.make_dir(format!("{i}").as_bytes(), 0o700).is_err()).count();
    assert!((20..80).contains(&failed), "{failed}");
    store.fail_nothing();
    root.make_dir(b"dir", 0o755).unwrap();
}

#[test]
fn the_store_in_memory_uses_the_tests_clock() {
    let store = MemoryStore::new();
    let root = store.root();
    let time = |seconds| Time { seconds, nanoseconds: 5 };
    store.set_clock(time(2000), 0);
    let file = root.create_file(b"file", 0o644).unwrap();
    store.set_clock(time(1000), 0);
    file.write_at(b"x", 0).unwrap();
    assert_eq!(root.stat(b"file").unwrap().modified, time(1000));
    let past = Change { modified: Some(time(-7)), permissions: Some(0o4600), ..Change::default() };
    root.change(b"file", &past).unwrap();
    let stat = file.stat().unwrap();
    assert_eq!((stat.modified, stat.changed, stat.mode), (time(-7), time(1000), 0o104600));
    refused(root.change(b"file", &Change { size_bytes: Some(1), ..Change::default() }), EINVAL);
}

#[test]
fn writes_survive_killed_processes() {
    let store = MemoryStore::new();
    let root = store.root();
    make(&*root, "file", b"bytes");
    let removed = root.create_file(b"removed", 0o644).unwrap();
    root.remove(b"removed").unwrap();
    let after = store.kill();
    assert_eq!(after.open_handles(), 0);
    assert_eq!(read(&*after.root(), "file"), Some(b"bytes".to_vec()));
    assert_eq!(names(&*after.root()).len(), 1);
    // A later power failure may still restore the removed name.
    assert_eq!(outcomes(&after, |root| names(root).len()), [0, 1, 2].into());
    removed.write_at(b"goes on", 0).unwrap();
}

#[test]
fn synced_data_survives_every_power_loss() {
    let store = MemoryStore::new();
    let root = store.root();
    let file = root.create_file(b"file", 0o644).unwrap();
    file.write_at(&[1; 10_000], 0).unwrap();
    file.sync().unwrap();
    let found = outcomes(&store, |root| read(root, "file"));
    assert_eq!(found, [None, Some(vec![1; 10_000])].into(), "the name was not synced");
    root.sync().unwrap();
    assert_eq!(outcomes(&store, |root| read(root, "file")), [Some(vec![1; 10_000])].into());

    let store = MemoryStore::new();
    store.set_crash_rules(CrashRules { file_sync_keeps_name: true });
    store.root().make_dir(b"dir", 0o755).unwrap();
    let dir = store.root().open_writable_dir(b"dir").unwrap();
    dir.create_file(b"file", 0o644).unwrap().sync().unwrap();
    store.root().sync().unwrap();
    assert_eq!(outcomes(&store, |root| names(&*root.open_dir(b"dir").unwrap()).len()), [1].into());
}

#[test]
fn unsynced_writes_are_kept_lost_or_torn() {
    let store = MemoryStore::new();
    let root = store.root();
    let file = root.create_file(b"file", 0o644).unwrap();
    file.write_at(&[1; 10_000], 0).unwrap();
    file.sync().unwrap();
    root.sync().unwrap();
    file.write_at(&[2; 10_000], 5000).unwrap();
    file.write_at(&[3; 10], 20_000).unwrap();
    let found = outcomes(&store, |root| read(root, "file").unwrap());
    let has = |what: &str, is: &dyn Fn(&[u8]) -> bool| assert!(found.iter().any(|f| is(f)), "never {what}");
    let last_arrived = |f: &[u8]| f.len() == 20_010 && f[20_009] == 3;
    has("all", &|f| last_arrived(f) && f[5000..15_000] == [2; 10_000]);
    has("nothing", &|f| f == [1; 10_000]);
    has("the later write alone", &|f| last_arrived(f) && f[..10_000] == [1; 10_000]);
    has("zeros", &|f| f.len() == 15_000 && f[10_000..] == [0; 5000]);
    has("a torn end", &|f| f.len() > 10_000 && f.len() < 15_000 && f[5000..].iter().all(|b| *b == 2));
    has("a torn beginning", &|f| f.len() == 15_000 && f[5000] == 1 && f[14_999] == 2);
    assert!(found.len() > 40);
    for f in found {
        assert!(f[..5000] == [1; 5000] && f.len() >= 10_000);
    }
}

#[test]
fn renames_are_atomic_and_empty_directories_survive_a_crash() {
    let store = MemoryStore::new();
    let root = store.root();
    make(&*root, "old", b"x");
    root.make_dir(b"dir", 0o755).unwrap();
    let dir = root.open_writable_dir(b"dir").unwrap();
    root.sync().unwrap();
    root.rename(b"old", &*dir, b"new", Rename::Replace).unwrap();
    let seen = |root: &dyn WritableDir| {
        let dir = root.open_dir(b"dir").map_or_else(|_| BTreeSet::new(), |dir| names(&*dir));
        (names(root).contains("old"), dir.contains("new"))
    };
    assert_eq!(outcomes(&store, seen), [(true, false), (false, true)].into());
    dir.rename(b"new", &*root, b"back", Rename::Replace).unwrap();
    root.remove_dir(b"dir").unwrap();
    let where_it_is = |root: &dyn WritableDir| {
        let (old, new) = seen(root);
        assert_eq!(usize::from(old) + usize::from(new) + usize::from(names(root).contains("back")), 1);
        names(root)
    };
    assert!(outcomes(&store, where_it_is).len() > 2);
    root.sync().unwrap();
    assert_eq!(outcomes(&store, names_of), [["back"].map(String::from).into()].into());
}

fn names_of(root: &dyn WritableDir) -> BTreeSet<String> {
    names(root)
}

#[test]
fn a_sync_that_failed_may_lose_bytes_although_the_next_one_succeeds() {
    let mut lost = 0;
    for round in 0..20 {
        let store = MemoryStore::new();
        let root = store.root();
        let file = root.create_file(b"file", 0o644).unwrap();
        root.sync().unwrap();
        for _ in 0..round {
            file.write_at(b"lost?", 0).unwrap();
            store.fail_nth(1, EIO);
            refused(file.sync(), EIO);
        }
        file.sync().unwrap();
        lost += u32::from(round > 0 && read(&*store.crash(0).root(), "file") == Some(Vec::new()));
        assert_eq!(read(&*root, "file").map(|f| f.len()), Some(if round > 0 { 5 } else { 0 }));
    }
    assert!(lost > 0);
}

/// After any operations and a power failure the store is a tree, and synced data is present.
#[test]
fn a_power_loss_leaves_a_consistent_tree() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let store = MemoryStore::new();
        let root = store.root();
        let mut dirs: Vec<Arc<dyn WritableDir>> = vec![root.clone()];
        for step in 0..120 {
            let name = |random: &mut Random| format!("n{}", random.below(6)).into_bytes();
            let (from, to) = (random.pick(&dirs).clone(), random.pick(&dirs).clone());
            let (a, b) = (name(&mut random), name(&mut random));
            match random.below(9) {
                0 => drop(from.make_dir(&a, 0o755)),
                1 => dirs.extend(from.open_writable_dir(&a)),
                2 => drop(from.create_file(&a, 0o644).and_then(|f| f.write_at(&[step; 5000], 77))),
                3 => drop(from.remove(&a)),
                4 => drop(from.remove_dir(&a)),
                5 => drop(from.sync()),
                6 => drop(from.rename(&a, &*to, &b, Rename::Exchange)),
                _ => drop(from.rename(&a, &*to, &b, Rename::Replace)),
            }
        }
        for crash in 0..8 {
            let after = store.crash(crash);
            walk(&*after.root());
            let again = after.crash(crash + 1);
            assert_eq!(names(&*again.root()), names(&*after.root()), "what is left is safe");
        }
        for dir in &dirs {
            dir.sync().unwrap();
        }
        let kept = names(&*root);
        assert!((0..8).all(|crash| names(&*store.crash(crash).root()) == kept));
    }
}

fn walk(dir: &dyn Dir) {
    for name in dir.names().unwrap() {
        dir.stat(&name).unwrap();
        if let Ok(below) = dir.open_dir(&name) {
            walk(&*below);
        }
    }
}

#[test]
fn operations_that_write_are_counted() {
    let counting = CountingDir::new(MemoryStore::new().root());
    let file = counting.create_file(b"file", 0o644).unwrap();
    file.write_pieces_at(&[b"a", b"b"], 0).unwrap();
    file.sync().unwrap();
    counting.make_dir(b"dir", 0o755).unwrap();
    let dir = counting.open_writable_dir(b"dir").unwrap();
    counting.rename(b"file", &*dir, b"moved", Rename::Keep).unwrap();
    dir.sync().unwrap();
    let operations: Vec<(&str, String)> =
        counting.operations().into_iter().map(|o| (o.verb, String::from_utf8(o.path).unwrap())).collect();
    let operations: Vec<(&str, &str)> = operations.iter().map(|(verb, path)| (*verb, &**path)).collect();
    assert_eq!(
        operations,
        [
            ("create", "file"),
            ("write", "file"),
            ("sync", "file"),
            ("make directory", "dir"),
            ("open directory", "dir"),
            ("rename", "file"),
            ("sync directory", "dir"),
        ]
    );
}

/// Random operations have the same results on a store and on a real directory.
#[test]
fn the_store_in_memory_behaves_like_a_real_directory() {
    for seed in 0..40 {
        let temp = tempfile::tempdir().unwrap();
        let store = MemoryStore::new();
        let real: Arc<dyn WritableDir> = Arc::new(PosixDir::open(temp.path()).unwrap());
        Pairs { random: Random::new(seed), dirs: vec![(store.root(), real)], files: Vec::new() }.run(seed);
    }
}

type Pair<T> = (T, T);

struct Pairs {
    random: Random,
    dirs: Vec<Pair<Arc<dyn WritableDir>>>,
    files: Vec<Pair<Box<dyn WritableFile>>>,
}

/// Returns both results if both succeeded; otherwise checks that the errors are equal.
#[track_caller]
fn both<T>(memory: Result<T>, real: Result<T>, step: &str) -> Option<Pair<T>> {
    match (memory, real) {
        (Ok(memory), Ok(real)) => Some((memory, real)),
        (Err(memory), Err(real)) => {
            assert_eq!(memory.errno(), real.errno(), "{step}: {memory} and {real}");
            None
        }
        (memory, real) => panic!("{step}: {:?} and {:?}", memory.err(), real.err()),
    }
}

impl Pairs {
    fn run(mut self, seed: u64) {
        for step in 0..200 {
            let dir = self.random.pick(&self.dirs).clone();
            let to = self.random.pick(&self.dirs).clone();
            let name = |random: &mut Random| format!("{}", random.below(5)).into_bytes();
            let (a, b) = (name(&mut self.random), name(&mut self.random));
            let permissions = *self.random.pick(&[0o755, 0o700, 0o2775]);
            let how = *self.random.pick(&[Rename::Replace, Rename::Replace, Rename::Keep, Rename::Exchange]);
            let what = self.random.below(13);
            let said = format!("seed {seed}, step {step}, operation {what}");
            let said = said.as_str();
            match what {
                0 | 1 => {
                    let _ = both(dir.0.make_dir(&a, permissions), dir.1.make_dir(&a, permissions), said);
                }
                2 => self.dirs.extend(both(dir.0.open_writable_dir(&a), dir.1.open_writable_dir(&a), said)),
                3 | 4 => {
                    let made =
                        both(dir.0.create_file(&a, permissions), dir.1.create_file(&a, permissions), said);
                    self.files.extend(made);
                }
                5 => {
                    self.files.extend(both(dir.0.open_writable_file(&a), dir.1.open_writable_file(&a), said))
                }
                6 => {
                    let _ = both(dir.0.remove(&a), dir.1.remove(&a), said);
                }
                7 => {
                    let _ = both(dir.0.remove_dir(&a), dir.1.remove_dir(&a), said);
                }
                8 => {
                    let _ = both(dir.0.make_symlink(&a, b"none"), dir.1.make_symlink(&a, b"none"), said);
                }
                9 | 10 => {
                    let memory = dir.0.rename(&a, &*to.0, &b, how).map_err(|e| e.errno());
                    let real = dir.1.rename(&a, &*to.1, &b, how).map_err(|e| e.errno());
                    // Some kernels return EOPNOTSUPP if a directory would be moved below itself.
                    assert!(
                        memory == real || (memory, real) == (Err(EINVAL), Err(EOPNOTSUPP)),
                        "{said} {how:?}: {memory:?} {real:?}"
                    );
                }
                11 => {
                    let change = Change { permissions: Some(0o640), ..Change::default() };
                    let _ = both(dir.0.change(&a, &change), dir.1.change(&a, &change), said);
                }
                _ => self.write(said),
            }
        }
        compare(&*self.dirs[0].0, &*self.dirs[0].1, "");
    }

    fn write(&mut self, said: &str) {
        if self.files.is_empty() {
            return;
        }
        let at = self.random.below(self.files.len());
        let file = &self.files[at];
        let (offset, count) = (self.random.below(20_000) as u64, self.random.below(9000));
        let bytes = self.random.bytes(count);
        match self.random.below(4) {
            0 => {
                let _ = both(file.0.set_size(offset), file.1.set_size(offset), said);
            }
            1 => {
                let pieces = [&bytes[..count / 3], &[], &bytes[count / 3..]];
                both(file.0.write_pieces_at(&pieces, offset), file.1.write_pieces_at(&pieces, offset), said);
            }
            _ => {
                let _ = both(file.0.write_at(&bytes, offset), file.1.write_at(&bytes, offset), said);
            }
        }
        let mut found = (vec![1; 9000], vec![1; 9000]);
        let counts = (file.0.read_at(&mut found.0, offset / 2), file.1.read_at(&mut found.1, offset / 2));
        assert_eq!(counts.0.unwrap(), counts.1.unwrap(), "{said}");
        assert_eq!(found.0, found.1, "{said}");
        let stats = (file.0.stat().unwrap(), file.1.stat().unwrap());
        assert_eq!((stats.0.size_bytes, stats.0.nlink), (stats.1.size_bytes, stats.1.nlink), "{said}");
    }
}

fn compare(memory: &dyn Dir, real: &dyn Dir, path: &str) {
    assert_eq!(names(memory), names(real), "{path}");
    for name in names(memory) {
        let path = format!("{path}/{name}");
        let (a, b) = (memory.stat(name.as_bytes()).unwrap(), real.stat(name.as_bytes()).unwrap());
        assert_eq!(a.mode, b.mode, "{path}");
        assert_eq!(read(memory, &name), read(real, &name), "{path}");
        assert_eq!(memory.read_link(name.as_bytes()).ok(), real.read_link(name.as_bytes()).ok(), "{path}");
        if let Ok(below) = memory.open_dir(name.as_bytes()) {
            compare(&*below, &*real.open_dir(name.as_bytes()).unwrap(), &path);
        }
    }
}
