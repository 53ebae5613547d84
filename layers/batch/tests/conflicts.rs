//! The resolution of conflicts.

mod mounts;

use quell_batch::{BatchFs, Resolution, Resolved, StoreAccess};
use quell_vfs::{Context, ErrorKind, FileSystem, NodeId, OpenMode, Writable};

use mounts::on_disk::{LARGE, Store, WAIT, put};
use mounts::{NEW, bytes, open};

fn make_dir(fs: &BatchFs, above: NodeId, name: &str) -> NodeId {
    fs.make_dir(&Context::OWN, above, name.as_bytes(), NEW).unwrap().into_attributes().node
}

fn put_in(fs: &BatchFs, dir: NodeId, name: &str, content: &[u8]) {
    let (_, file) = fs.create(&Context::OWN, dir, name.as_bytes(), NEW, OpenMode::READ_WRITE).unwrap();
    file.write_at(content, 0).unwrap();
    file.close().unwrap();
}

/// Overwrites a file of the root directory.
fn overwrite(fs: &BatchFs, name: &str, content: &[u8]) {
    let file = open(fs, name);
    file.write_at(content, 0).unwrap();
    file.close().unwrap();
}

/// Commits a batch with a conflict of each kind that keeps an entry.
fn conflicting() -> Store {
    let store = Store::new();
    store.with_mount(|fs| {
        put(fs, "small", b"before");
        put(fs, "large", &[0; LARGE]);
        put(fs, "removed", b"before");
        make_dir(fs, fs.root(), "gone");
    });
    let batch = store.begin();
    let fs = batch.file_system();
    put(&fs, "file", b"mine");
    let dir = make_dir(&fs, fs.root(), "dir");
    put_in(&fs, dir, "inside", b"mine");
    overwrite(&fs, "small", b"mine  ");
    overwrite(&fs, "large", &[1; LARGE]);
    overwrite(&fs, "removed", b"mine  ");
    let gone = fs.lookup(&Context::OWN, fs.root(), b"gone").unwrap().unwrap().into_attributes().node;
    put_in(&fs, gone, "orphan", b"mine");
    store.with_mount(|fs| {
        put(fs, "file", b"theirs");
        let dir = make_dir(fs, fs.root(), "dir");
        let below = make_dir(fs, dir, "below");
        put_in(fs, below, "other", b"theirs");
        overwrite(fs, "small", b"theirs");
        overwrite(fs, "large", &[2; LARGE]);
        fs.remove(&Context::OWN, fs.root(), b"removed").unwrap();
        fs.remove_dir(&Context::OWN, fs.root(), b"gone").unwrap();
    });
    drop(fs);
    batch.commit(WAIT).unwrap();
    store
}

fn access(store: &Store) -> StoreAccess {
    StoreAccess::open(&store.path(), WAIT).unwrap()
}

fn listed(store: &Store) -> Vec<String> {
    let store = access(store);
    let mut lines = Vec::new();
    for conflict in store.conflicts(1).unwrap() {
        let path = store.path_of_name(conflict.dir, &conflict.name);
        let kept = conflict.kept_as.expect("each of them is kept");
        assert!(kept.name.starts_with(&conflict.name), "{kept:?}");
        lines.push(String::from_utf8(path).unwrap());
    }
    lines.sort();
    lines
}

fn resolve(store: &Store, paths: &[&str], how: Resolution) -> quell_vfs::Result<Resolved> {
    let paths: Vec<Vec<u8>> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
    access(store).resolve(1, Some(&paths), &how)
}

/// Returns all paths of a store with the first bytes of the files.
fn tree(store: &Store) -> Vec<String> {
    let mut lines = Vec::new();
    store.with_mount(|fs| {
        let mut left = vec![(fs.root(), String::new())];
        while let Some((dir, path)) = left.pop() {
            let mut names = Vec::new();
            fs.list(&Context::OWN, dir, quell_vfs::Cursor::START, &mut |entry| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                true
            })
            .unwrap();
            for name in names {
                let found =
                    fs.lookup(&Context::OWN, dir, name.as_bytes()).unwrap().unwrap().into_attributes();
                let path = format!("{path}/{name}");
                if found.kind == quell_vfs::Kind::Dir {
                    left.push((found.node, path));
                    continue;
                }
                let mut content = vec![0; 6];
                let file = fs.open(&Context::OWN, found.node).unwrap();
                let length = file.read_at(&mut content, 0).unwrap();
                lines.push(format!("{path} {}", content[..length].escape_ascii()));
            }
        }
    });
    lines.sort();
    lines
}

const ALL: [&str; 6] = ["/dir", "/file", "/large", "/removed", "/small", "orphan"];

fn orphan(store: &Store) -> String {
    listed(store).into_iter().find(|path| path.ends_with("/orphan")).expect("the conflict")
}

#[test]
fn contents_and_entries_in_conflict_are_kept() {
    let store = conflicting();
    let found = listed(&store);
    assert_eq!(found.len(), ALL.len(), "{found:?}");
    let lines = tree(&store);
    let mine = lines.iter().filter(|line| line.contains("quell-conflict") && !line.contains("/large."));
    assert!(mine.clone().all(|line| line.contains(" mine")), "{lines:?}");
    assert_eq!(mine.count(), 5, "{lines:?}");
    assert!(lines.contains(&"/small theirs".to_owned()), "{lines:?}");
    let large = lines.iter().filter(|line| line.starts_with("/large")).collect::<Vec<_>>();
    assert_eq!(large.len(), 2, "{large:?}");
    assert!(large[0].ends_with("\\x02") && large[1].ends_with("\\x01"), "{large:?}");
    assert_eq!(store.problems(false), []);
    // The data file of the kept content is not garbage.
    let unused = store.collect(true);
    assert_eq!(tree(&store), lines, "{unused:?}");
}

#[test]
fn the_entries_of_the_batch_are_kept() {
    let store = conflicting();
    let resolved = resolve(&store, &["/dir", "/file", "/large", "/removed", "/small"], Resolution::Mine);
    assert_eq!(resolved.unwrap(), Resolved { resolved: 5, not_kept: 0 });
    let lines = tree(&store);
    let expected = ["/dir/inside mine", "/file mine", "/removed mine  ", "/small mine  "];
    assert!(expected.iter().all(|line| lines.contains(&(*line).to_owned())), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("theirs") || line.contains("replaced")), "{lines:?}");
    store.with_mount(|fs| assert_eq!(bytes(&*open(fs, "large")), [1; LARGE]));
    // The directory of the last conflict was removed.
    let orphan = orphan(&store);
    assert_eq!(listed(&store), std::slice::from_ref(&orphan));
    assert!(resolve(&store, &[&orphan], Resolution::Mine).is_err());
    assert_eq!(listed(&store), std::slice::from_ref(&orphan));
    let taken = resolve(&store, &[&orphan], Resolution::Rename(b"/file".to_vec()));
    assert_eq!(taken.unwrap_err().kind, ErrorKind::Exists);
    resolve(&store, &[&orphan], Resolution::Rename(b"/dir/renamed".to_vec())).unwrap();
    assert_eq!(listed(&store), [""; 0]);
    let lines = tree(&store);
    assert!(lines.contains(&"/dir/renamed mine".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("quell-conflict")), "{lines:?}");
    assert_eq!(store.problems(false), []);
}

#[test]
fn the_entries_of_others_are_kept() {
    let store = conflicting();
    assert_eq!(
        resolve(&store, &["/file", "/none"], Resolution::Theirs).unwrap_err().kind,
        ErrorKind::NotFound
    );
    // One conflict is resolved with a removal through a mount.
    store.with_mount(|fs| {
        let name = tree_names(fs).into_iter().find(|name| name.starts_with("small.quell")).unwrap();
        fs.remove(&Context::OWN, fs.root(), name.as_bytes()).unwrap();
    });
    let all = access(&store).resolve(1, None, &Resolution::Theirs).unwrap();
    assert_eq!(all, Resolved { resolved: 6, not_kept: 0 });
    assert_eq!(listed(&store), [""; 0]);
    let lines = tree(&store);
    assert_eq!(
        lines,
        ["/dir/below/other theirs", "/file theirs", "/large \\x02\\x02\\x02\\x02\\x02\\x02", "/small theirs"]
    );
    store.with_mount(|fs| assert!(!tree_names(fs).iter().any(|name| name.starts_with("quell-conflicts"))));
    store.collect(true);
    assert_eq!(store.problems(false), []);
    assert_eq!(tree(&store), lines);
}

fn tree_names(fs: &BatchFs) -> Vec<String> {
    let mut names = Vec::new();
    fs.list(&Context::OWN, fs.root(), quell_vfs::Cursor::START, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    })
    .unwrap();
    names
}

#[test]
fn changes_of_which_nothing_is_kept_are_dismissed() {
    let store = Store::new();
    store.with_mount(|fs| put(fs, "file", b"text"));
    let batch = store.begin();
    let fs = batch.file_system();
    fs.rename(&Context::OWN, fs.root(), b"file", fs.root(), b"mine", quell_vfs::Rename::Replace).unwrap();
    store.with_mount(|fs| {
        fs.rename(&Context::OWN, fs.root(), b"file", fs.root(), b"theirs", quell_vfs::Rename::Replace)
            .unwrap();
    });
    drop(fs);
    batch.commit(WAIT).unwrap();
    let mine = resolve(&store, &["/file"], Resolution::Mine).unwrap();
    assert_eq!(mine, Resolved { resolved: 0, not_kept: 1 });
    let theirs = resolve(&store, &["/file"], Resolution::Theirs).unwrap();
    assert_eq!(theirs, Resolved { resolved: 1, not_kept: 0 });
    assert_eq!(access(&store).resolve(1, None, &Resolution::Theirs).unwrap(), Resolved::default());
    assert_eq!(tree(&store), ["/theirs text"]);
}

#[test]
fn a_directory_with_the_longest_name_replaces_that_of_others() {
    let store = Store::new();
    let name = "n".repeat(255);
    let batch = store.begin();
    let fs = batch.file_system();
    let mine = make_dir(&fs, fs.root(), &name);
    put_in(&fs, mine, "mine", b"mine");
    store.with_mount(|fs| {
        let dir = make_dir(fs, fs.root(), &name);
        put_in(fs, dir, "theirs", b"theirs");
    });
    drop(fs);
    batch.commit(WAIT).unwrap();
    let resolved = access(&store).resolve(1, None, &Resolution::Mine).unwrap();
    assert_eq!(resolved, Resolved { resolved: 1, not_kept: 0 });
}
