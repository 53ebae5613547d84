//! Copies between directories on a disk and in memory, with failures on both sides.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};

use quell_posix::{Dir, PosixDir, WritableDir};
use quell_staging::{
    CopiedFile, DEPTH_MAX, Options, Owners, Part, Progress, Report, Source, TEMPORARY_PREFIX, TreeDir, copy,
};
use quell_testkit::{CountingDir, MemoryStore, Operation, WritableModel};
use quell_vfs::{Change, Error, ErrorKind, FileSystem, Kind, Time, errno};

const OPTIONS: Options = Options {
    threads: 3,
    verifies: true,
    compares_content: false,
    owners: Owners::User(u32::MAX),
    keeps_xattrs: true,
    part: None,
};

/// Records the results of a copy.
#[derive(Default)]
struct Results {
    copied: Mutex<BTreeMap<Vec<u8>, Option<[u8; 32]>>>,
    failed: Mutex<BTreeMap<Vec<u8>, String>>,
}

impl Report for Results {
    fn copied(&self, file: &CopiedFile<'_>) {
        let before = self.copied.lock().unwrap().insert(file.path.to_vec(), file.blake3);
        assert_eq!(before, None, "{:?} is reported once", file.path.escape_ascii().to_string());
    }

    fn failed(&self, path: &[u8], error: &Error) {
        self.failed.lock().unwrap().insert(path.to_vec(), error.to_string());
    }
}

/// The counters and reports of a copy.
struct Outcome {
    progress: Progress,
    copied: BTreeMap<Vec<u8>, Option<[u8; 32]>>,
    failed: BTreeMap<Vec<u8>, String>,
}

fn copy_all(from: Arc<dyn Dir>, to: &Arc<dyn WritableDir>, options: Options) -> Outcome {
    copy_with(from, to, options, Progress::default())
}

fn copy_with(from: Arc<dyn Dir>, to: &Arc<dyn WritableDir>, options: Options, progress: Progress) -> Outcome {
    let results = Results::default();
    copy(&[Source { dir: from, name: None }], to, options, &progress, &results).unwrap();
    let (copied, failed) = (results.copied.into_inner().unwrap(), results.failed.into_inner().unwrap());
    assert_eq!(progress.failed() > 0, !failed.is_empty());
    Outcome { progress, copied, failed }
}

fn on_disk(path: &Path) -> Arc<PosixDir> {
    Arc::new(PosixDir::open(path).unwrap())
}

/// Returns the entries below a directory with their kind, permissions, time, and content or target.
type Listing = BTreeMap<Vec<u8>, (Kind, u32, Time, Vec<u8>)>;

fn listing(dir: &dyn Dir) -> Listing {
    fn add(dir: &dyn Dir, path: &[u8], into: &mut Listing) {
        for name in dir.names().unwrap() {
            let found = dir.stat(&name).unwrap();
            let path = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            let kind = found.kind().unwrap();
            let content = match kind {
                Kind::File => {
                    let file = dir.open_file(&name).unwrap();
                    let mut content = vec![0; found.size_bytes as usize];
                    assert_eq!(file.read_at(&mut content, 0).unwrap(), content.len());
                    content
                }
                Kind::Symlink => dir.read_link(&name).unwrap(),
                _ => Vec::new(),
            };
            into.insert(path.clone(), (kind, found.mode & 0o7777, found.modified, content));
            if kind == Kind::Dir {
                add(&*dir.open_dir(&name).unwrap(), &path, into);
            }
        }
    }
    let mut into = Listing::new();
    add(dir, b"", &mut into);
    into
}

/// Creates a store with a small tree.
fn store_with_tree() -> MemoryStore {
    let store = MemoryStore::new();
    let root = store.root();
    root.make_dir(b"dir", 0o755).unwrap();
    root.make_dir(b"empty", 0o700).unwrap();
    let dir = root.open_writable_dir(b"dir").unwrap();
    for number in 0..5_u8 {
        let name = format!("file {number}\n");
        let file = dir.create_file(name.as_bytes(), 0o640).unwrap();
        file.write_at(&vec![number + 1; 3000 * usize::from(number)], 0).unwrap();
        let modified = Some(Time { seconds: 1000 + i64::from(number), nanoseconds: 5 });
        file.change(&Change { modified, ..Change::default() }).unwrap();
    }
    dir.make_symlink(b"link", b"../nowhere").unwrap();
    store
}

#[test]
fn a_tree_keeps_its_content_links_holes_permissions_and_times() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |name: &str| from.path().join(name);
    fs::create_dir_all(path("a/b/c")).unwrap();
    fs::write(path("a/file"), b"content").unwrap();
    fs::write(path("a/odd \u{202e}\n name"), b"").unwrap();
    symlink("../a", path("a/b/loop")).unwrap();
    let sparse = fs::File::create(path("a/b/sparse")).unwrap();
    sparse.write_all_at(b"x", 5_000_000).unwrap();
    sparse.set_len(30_000_000).unwrap();
    fs::set_permissions(path("a/file"), fs::Permissions::from_mode(0o4711)).unwrap();
    for (name, mode) in [("a/b/c", 0o500), ("a/b", 0o555)] {
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let time =
        fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_millis(1500));
    fs::File::open(path("a/b")).unwrap().set_times(time).unwrap();

    let (source, target) = (on_disk(from.path()), on_disk(to.path()) as Arc<dyn WritableDir>);
    let options = Options { owners: Owners::OfSource, ..OPTIONS };
    let outcome = copy_all(source.clone(), &target, options);
    assert_eq!(outcome.failed, BTreeMap::new());
    assert_eq!(listing(&*target), listing(&*source));
    assert!(fs::metadata(to.path().join("a/b/sparse")).unwrap().blocks() <= 16);
    assert_eq!(
        (outcome.progress.files(), outcome.progress.links(), outcome.progress.directories()),
        (3, 1, 3)
    );
    let content = fs::read(path("a/b/sparse")).unwrap();
    assert_eq!(outcome.copied[&b"a/b/sparse"[..]], Some(*blake3::hash(&content).as_bytes()));

    // Nothing is copied again, also into directories without write permission.
    let again = copy_all(source.clone(), &target, options);
    assert_eq!((again.failed, again.progress.unchanged(), again.progress.bytes()), (BTreeMap::new(), 4, 0));
    assert_eq!(listing(&*target), listing(&*source));
    for name in ["a/b", "a/b/c"] {
        for root in [from.path(), to.path()] {
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

#[test]
fn a_copy_that_belongs_to_another_user_has_no_set_id_bits() {
    let from = tempfile::tempdir().unwrap();
    let program = from.path().join("program");
    fs::write(&program, b"content").unwrap();
    fs::create_dir(from.path().join("dir")).unwrap();
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(&program, 0o6755);
    set_mode(&from.path().join("dir"), 0o2755);
    let uid = fs::metadata(&program).unwrap().uid();
    let cases = [(Owners::User(uid + 1), 0o755), (Owners::User(uid), 0o6755), (Owners::OfSource, 0o6755)];
    for (owners, permissions) in cases {
        let to = tempfile::tempdir().unwrap();
        let target: Arc<dyn WritableDir> = on_disk(to.path());
        let options = Options { owners, ..OPTIONS };
        let mode = |name: &str| fs::metadata(to.path().join(name)).unwrap().permissions().mode() & 0o7777;
        // The second copy finds the first one complete.
        for unchanged in [0, 1] {
            let outcome = copy_all(on_disk(from.path()), &target, options);
            assert_eq!((outcome.failed, outcome.progress.unchanged()), (BTreeMap::new(), unchanged));
            assert_eq!((mode("program"), mode("dir")), (permissions, 0o2755));
        }
        // An earlier copy may have them.
        set_mode(&to.path().join("program"), 0o6755);
        let outcome = copy_all(on_disk(from.path()), &target, options);
        assert_eq!((outcome.failed, mode("program")), (BTreeMap::new(), permissions));
    }
}

#[test]
fn extended_attributes_of_files_and_directories_are_copied_into_a_tree_and_out_of_it() {
    let tree: Arc<dyn FileSystem> = Arc::new(WritableModel::new());
    let in_tree: Arc<dyn WritableDir> = Arc::new(TreeDir::open(&tree, b"", (0, 0)).unwrap());
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("dir")).unwrap();
    fs::write(from.path().join("dir/file"), "data").unwrap();
    let (source, target) = (on_disk(from.path()), on_disk(to.path()));
    let dir = on_disk(&from.path().join("dir"));
    match dir.set_xattr(b"file", b"user.a", Some(b"1")) {
        Err(error) if error.kind == ErrorKind::Unsupported => {
            return println!("SKIPPED: no user attributes on {}", from.path().display());
        }
        done => done.unwrap(),
    }
    source.set_xattr(b"dir", b"user.empty", Some(b"")).unwrap();
    // A later copy also changes the attributes of a file whose content is complete.
    for changes in [&[][..], &[(&b"user.a"[..], None), (b"user.b", Some(&b"2"[..]))]] {
        for (attribute, value) in changes {
            dir.set_xattr(b"file", attribute, *value).unwrap();
        }
        let into = copy_all(Arc::clone(&source) as _, &in_tree, OPTIONS);
        assert!(into.failed.is_empty(), "{:?}", into.failed);
        let out_of = Arc::new(TreeDir::open(&tree, b"", (0, 0)).unwrap());
        let out = copy_all(out_of, &(Arc::clone(&target) as _), OPTIONS);
        assert!(out.failed.is_empty(), "{:?}", out.failed);
        assert_eq!(target.xattrs(b"dir").unwrap(), [(b"user.empty".to_vec(), Vec::new())]);
        let copied = on_disk(&to.path().join("dir"));
        assert_eq!(copied.xattrs(b"file").unwrap(), dir.xattrs(b"file").unwrap());
    }
    // A destination without attributes is a failure, unless they are not to be copied.
    let plain = MemoryStore::new();
    let refused = copy_all(Arc::clone(&source) as _, &plain.root(), OPTIONS);
    assert!(refused.failed[&b"dir/file"[..]].contains("--no-xattrs"), "{:?}", refused.failed);
    let options = Options { keeps_xattrs: false, ..OPTIONS };
    assert!(copy_all(source, &plain.root(), options).failed.is_empty());
}

#[test]
fn a_large_file_is_copied_in_ranges_by_several_threads() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let content: Vec<u8> = (0..20_000_003_u32).map(|at| (at / 7) as u8).collect();
    fs::write(from.path().join("large"), &content).unwrap();
    let target: Arc<dyn WritableDir> = on_disk(to.path());
    for threads in [1, 4] {
        let outcome = copy_all(on_disk(from.path()), &target, Options { threads, ..OPTIONS });
        assert_eq!(outcome.copied[&b"large"[..]], Some(*blake3::hash(&content).as_bytes()));
        assert!(fs::read(to.path().join("large")).unwrap() == content);
        fs::remove_file(to.path().join("large")).unwrap();
    }
}

#[test]
fn an_equal_size_and_time_hides_a_difference_only_without_checksums() {
    let (from, to) = (store_with_tree(), MemoryStore::new());
    let target = to.root();
    copy_all(from.root(), &target, OPTIONS);
    let name = b"file 3\n";
    let dir = target.open_writable_dir(b"dir").unwrap();
    let (file, modified) = (dir.open_writable_file(name).unwrap(), dir.stat(name).unwrap().modified);
    file.write_at(b"?", 7).unwrap();
    file.change(&Change { modified: Some(modified), ..Change::default() }).unwrap();
    assert_eq!(copy_all(from.root(), &target, OPTIONS).progress.files(), 0);
    assert_ne!(listing(&*target), listing(&*from.root()));
    let outcome = copy_all(from.root(), &target, Options { compares_content: true, ..OPTIONS });
    assert_eq!((outcome.progress.files(), outcome.progress.unchanged()), (1, 5));
    assert!(outcome.copied.values().all(Option::is_some));
    assert_eq!(listing(&*target), listing(&*from.root()));
}

#[test]
fn entries_of_other_kinds_at_the_destination() {
    let (from, to) = (store_with_tree(), MemoryStore::new());
    let target = to.root();
    // A link in the place of a directory is not followed, and a directory is not replaced.
    target.make_dir(b"elsewhere", 0o755).unwrap();
    target.make_symlink(b"empty", b"elsewhere").unwrap();
    target.make_dir(b"dir", 0o755).unwrap();
    let dir = target.open_writable_dir(b"dir").unwrap();
    dir.make_dir(b"file 1\n", 0o755).unwrap();
    dir.make_symlink(b"file 2\n", b"../elsewhere").unwrap();
    drop(dir.create_file(b"link", 0o600).unwrap());
    let outcome = copy_all(from.root(), &target, OPTIONS);
    let failed: Vec<&[u8]> = outcome.failed.keys().map(Vec::as_slice).collect();
    assert_eq!(failed, [&b"dir/file 1\n"[..], b"empty"]);
    let (found, expected) = (listing(&*target), listing(&*from.root()));
    for (path, entry) in &expected {
        let is_failed = outcome.failed.contains_key(path);
        assert_eq!(found.get(path) == Some(entry), !is_failed || path == b"dir", "{}", path.escape_ascii());
    }
}

/// Checks that a copy with failures has reported all incomplete entries.
fn check_reported(outcome: &Outcome, expected: &Listing, found: &Listing) {
    let is_reported = |path: &[u8]| {
        outcome.failed.keys().any(|failed| path.starts_with(failed) || failed.starts_with(path))
    };
    for (path, entry) in expected {
        let is_complete = found.get(path) == Some(entry);
        assert!(is_complete || is_reported(path), "{} is incomplete and not listed", path.escape_ascii());
        if entry.0 == Kind::File
            && let Some((_, _, _, content)) = found.get(path)
        {
            assert_eq!(content, &entry.3, "{}: a file that has its name is complete", path.escape_ascii());
        }
    }
    for path in found.keys().filter(|path| !expected.contains_key(*path)) {
        assert!(outcome.failed.contains_key(path), "{} remains and is not listed", path.escape_ascii());
    }
    assert!(
        outcome.copied.keys().all(|path| found.get(path).map(|entry| &entry.3) == Some(&expected[path].3))
    );
}

#[test]
fn every_failure_is_listed_and_a_file_with_its_name_is_complete() {
    let expected = listing(&*store_with_tree().root());
    for fails_source in [true, false] {
        let mut nth = 0;
        loop {
            nth += 1;
            let (from, to) = (store_with_tree(), MemoryStore::new());
            let (source, target) = (from.root(), to.root());
            let failing = if fails_source { &from } else { &to };
            failing.fail_nth(nth, errno::EIO);
            let before = failing.operations();
            let outcome = copy_all(source, &target, OPTIONS);
            let has_failed = failing.operations() - before >= nth;
            from.fail_nothing();
            to.fail_nothing();
            check_reported(&outcome, &expected, &listing(&*target));
            assert_eq!(!outcome.failed.is_empty(), has_failed, "operation {nth}: {:?}", outcome.failed);
            // The next copy adds the missing files.
            let again = copy_all(from.root(), &target, OPTIONS);
            assert_eq!(again.failed, BTreeMap::new());
            let mut found = listing(&*target);
            found.retain(|path, _| !path.windows(15).any(|part| part == TEMPORARY_PREFIX));
            assert_eq!(found, expected, "after operation {nth} has failed");
            if !has_failed {
                break;
            }
        }
        assert!(nth > 30, "{nth} operations");
    }
}

#[test]
fn a_full_destination_is_an_error_for_each_file_that_does_not_fit() {
    let (from, to) = (store_with_tree(), MemoryStore::new());
    let target = to.root();
    to.set_free_bytes(Some(10_000));
    let outcome = copy_all(from.root(), &target, OPTIONS);
    assert!(outcome.failed.values().any(|error| error.contains("No space left")), "{:?}", outcome.failed);
    let expected = listing(&*from.root());
    check_reported(&outcome, &expected, &listing(&*target));
    to.set_free_bytes(None);
    assert_eq!(copy_all(from.root(), &target, OPTIONS).failed, BTreeMap::new());
    assert_eq!(listing(&*target), expected);
}

#[test]
fn a_source_that_changes_while_it_is_copied_is_listed() {
    for content in [vec![8; 3 << 20], vec![7; 100]] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = from.path().join("file");
        fs::write(&path, vec![7; 3 << 20]).unwrap();
        // The copy is created after the source was opened.
        let hook = move |_: usize, operation: &Operation| {
            if operation.verb == "create" {
                fs::write(&path, &content).unwrap();
            }
        };
        let inner: Arc<dyn WritableDir> = on_disk(to.path());
        let target: Arc<dyn WritableDir> = Arc::new(CountingDir::with_hook(inner, hook));
        let outcome = copy_all(on_disk(from.path()), &target, OPTIONS);
        assert!(outcome.failed[&b"file"[..]].contains("it changed"), "{:?}", outcome.failed);
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_copy_that_was_stopped_leaves_complete_files_and_is_continued() {
    struct Stopping<'a>(&'a Progress, Mutex<Vec<Vec<u8>>>);
    impl Report for Stopping<'_> {
        fn copied(&self, file: &CopiedFile<'_>) {
            self.1.lock().unwrap().push(file.path.to_vec());
            self.0.stop();
        }

        fn failed(&self, path: &[u8], error: &Error) {
            panic!("{}: {error}", path.escape_ascii());
        }
    }
    let (from, to) = (store_with_tree(), MemoryStore::new());
    let (progress, target) = (Progress::default(), to.root());
    let stopping = Stopping(&progress, Mutex::default());
    let options = Options { threads: 1, ..OPTIONS };
    copy(&[Source { dir: from.root(), name: None }], &target, options, &progress, &stopping).unwrap();
    let expected = listing(&*from.root());
    let files = |listing: Listing| listing.into_iter().filter(|(_, entry)| entry.0 == Kind::File).collect();
    let found: Listing = files(listing(&*target));
    let done = stopping.1.into_inner().unwrap();
    assert_eq!(done.len(), 1);
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        done.iter().collect::<Vec<_>>(),
        "no incomplete file is left"
    );
    let again = copy_all(from.root(), &target, OPTIONS);
    assert_eq!(again.progress.files(), 4);
    assert_eq!(listing(&*target), expected);
}

#[test]
fn the_parts_of_a_tree_have_each_file_once() {
    let (from, to) = (store_with_tree(), MemoryStore::new());
    let target = to.root();
    let mut files = 0;
    for index in 0..3 {
        let part = Part::new(index, 3);
        let outcome = copy_all(from.root(), &target, Options { part, ..OPTIONS });
        assert_eq!((outcome.failed, outcome.progress.unchanged()), (BTreeMap::new(), 0));
        files += outcome.progress.files();
    }
    assert_eq!(files, 5);
    let content = |store: &MemoryStore| -> Vec<_> {
        listing(&*store.root()).into_iter().map(|(path, entry)| (path, entry.0, entry.3)).collect()
    };
    assert_eq!(content(&to), content(&from));
    assert_eq!((Part::new(3, 3), Part::new(0, 0)), (None, None));
}

#[test]
fn remains_of_killed_copies_are_not_copied_and_depth_is_bounded() {
    let (from, to) = (MemoryStore::new(), MemoryStore::new());
    drop(from.root().create_file(&[TEMPORARY_PREFIX, b"x"].concat(), 0o600).unwrap());
    let mut dir = from.root();
    for _ in 0..=DEPTH_MAX {
        dir.make_dir(b"d", 0o755).unwrap();
        dir = dir.open_writable_dir(b"d").unwrap();
    }
    let target = to.root();
    let outcome = copy_all(from.root(), &target, OPTIONS);
    assert_eq!(outcome.progress.directories() as usize, DEPTH_MAX);
    let failed: Vec<usize> = outcome.failed.keys().map(Vec::len).collect();
    assert_eq!(failed, [2 * (DEPTH_MAX + 1) - 1], "the path of the directory that is too deep");
    assert_eq!(target.names().unwrap(), [b"d"]);
}
