//! Watches a batch of another process: each view is a state that the batch had, and no view is
//! older than the view before.

use std::path::Path;
use std::time::Duration;

use quell_batch::{BatchFs, BatchStore, OpenBatch, Refreshed, StoreAccess, WatchedBatch};
use quell_vfs::{Context, ErrorKind, FileSystem, Kind, NewEntry, NodeId, OpenMode, Rename, Writable};

const WAIT: Duration = Duration::from_secs(60);
const ROOT: NodeId = NodeId(0);

fn new() -> NewEntry {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    NewEntry { permissions: 0o755, uid, gid }
}

fn make_dir(fs: &BatchFs, dir: NodeId, name: &str) -> NodeId {
    fs.make_dir(&Context::OWN, dir, name.as_bytes(), new()).unwrap().into_attributes().node
}

fn write(fs: &BatchFs, dir: NodeId, name: &str, bytes: &[u8]) {
    let (node, file) = fs.create(&Context::OWN, dir, name.as_bytes(), new(), OpenMode::READ_WRITE).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.close().unwrap();
    drop(node);
}

/// Creates a store whose tree has `top/kept` and `top/gone`, and begins a batch below `top`.
fn begin(path: &Path) -> OpenBatch {
    BatchStore::create(path).unwrap();
    let store = StoreAccess::open(path, WAIT).unwrap();
    let fs = store.file_system(b"").unwrap();
    let top = make_dir(&fs, ROOT, "top");
    write(&fs, top, "kept", b"kept");
    write(&fs, top, "gone", b"gone");
    fs.end().unwrap();
    drop(fs);
    OpenBatch::begin(store, b"top", "job", false).unwrap()
}

/// Returns the changes that a view shows: paths with sizes, `None` for a removed name.
fn changes(watched: &WatchedBatch) -> Vec<(String, Option<u64>)> {
    let mut found = Vec::new();
    watched
        .changed_names(&mut |name| {
            let size = |attributes: quell_vfs::Attributes| match attributes.kind {
                Kind::Dir => 0,
                _ => attributes.size_bytes,
            };
            found.push((String::from_utf8(name.path).unwrap(), name.attributes.map(size)));
            Ok(())
        })
        .unwrap();
    found.sort();
    found
}

fn names(fs: &BatchFs, dir: NodeId) -> Vec<String> {
    let mut names = Vec::new();
    fs.list(&Context::OWN, dir, quell_vfs::Cursor::START, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    })
    .unwrap();
    names
}

#[test]
fn a_view_shows_names_and_sizes_and_a_newer_one_replaces_it() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("store");
    let batch = begin(&path);
    let number = batch.record().number;
    let fs = batch.file_system();
    assert!(!batch.publish_view().unwrap(), "no process has requested a view");

    // Another process may have the store open.
    let open = StoreAccess::open(&path, WAIT).unwrap();
    let watched = WatchedBatch::open_of(&path, &[], number).unwrap();
    let seen = watched.file_system_at(b"top").unwrap();
    assert_eq!(
        (watched.refresh().unwrap(), names(&seen, ROOT)),
        (Refreshed::Same, vec!["gone".into(), "kept".into()])
    );

    let dir = make_dir(&fs, ROOT, "dir");
    write(&fs, dir, "one", b"12345");
    fs.remove(&Context::OWN, ROOT, b"gone").unwrap();
    write(&fs, ROOT, "brief", b"");
    fs.remove(&Context::OWN, ROOT, b"brief").unwrap();
    watched.request().unwrap();
    assert!(batch.publish_view().unwrap() && !batch.publish_view().unwrap(), "a request is answered once");
    // Later changes are not in the view.
    write(&fs, dir, "two", b"1");
    assert_eq!(watched.refresh().unwrap(), Refreshed::Newer);
    let first = [("/top/dir", Some(0)), ("/top/dir/one", Some(5)), ("/top/gone", None)];
    let expected =
        |list: &[(&str, Option<u64>)]| list.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect::<Vec<_>>();
    assert_eq!(changes(&watched), expected(&first));
    assert_eq!(names(&seen, ROOT), ["dir", "kept"]);

    // A watched batch cannot be changed.
    assert_eq!(seen.make_dir(&Context::OWN, ROOT, b"new", new()).unwrap_err().kind, ErrorKind::ReadOnly);
    assert_eq!(seen.remove(&Context::OWN, ROOT, b"kept").unwrap_err().kind, ErrorKind::ReadOnly);

    // A view whose number is not greater is ignored, as after a restore of the file.
    let view = path.join(format!("batches/{number}/view"));
    let old = std::fs::read(&view).unwrap();
    fs.rename(&Context::OWN, dir, b"one", ROOT, b"moved", Rename::Replace).unwrap();
    watched.request().unwrap();
    assert!(batch.publish_view().unwrap());
    assert_eq!(watched.refresh().unwrap(), Refreshed::Newer);
    let second =
        [("/top/dir", Some(0)), ("/top/dir/two", Some(1)), ("/top/gone", None), ("/top/moved", Some(5))];
    assert_eq!(changes(&watched), expected(&second));
    std::fs::write(&view, &old).unwrap();
    assert_eq!(watched.refresh().unwrap(), Refreshed::Same);
    assert_eq!(changes(&watched), expected(&second));
    // A damaged view is refused.
    std::fs::write(&view, &old[..old.len() - 1]).unwrap();
    assert_eq!(watched.refresh().unwrap_err().kind, ErrorKind::Damaged);
    assert_eq!(changes(&watched), expected(&second));

    drop(open);
    batch.commit(WAIT).unwrap();
    assert_eq!(watched.refresh().unwrap(), Refreshed::Ended);
    assert_eq!(watched.request().unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(changes(&watched), expected(&second), "the last view is still shown");
    assert_eq!(std::fs::read_dir(path.join("batches")).unwrap().count(), 0, "the commit removes all files");
    assert_eq!(WatchedBatch::open_of(&path, &[], number).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn a_view_from_before_a_request_is_no_answer_to_it() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("store");
    let batch = begin(&path);
    let number = batch.record().number;
    let earlier = WatchedBatch::open_of(&path, &[], number).unwrap();
    let request = earlier.request().unwrap();
    assert!(!earlier.shows_answer(&request));
    assert!(batch.publish_view().unwrap());
    assert_eq!((earlier.refresh().unwrap(), earlier.shows_answer(&request)), (Refreshed::Newer, true));

    write(&batch.file_system(), ROOT, "later", b"");
    let watched = WatchedBatch::open_of(&path, &[], number).unwrap();
    let request = watched.request().unwrap();
    assert_eq!((watched.refresh().unwrap(), watched.shows_answer(&request)), (Refreshed::Newer, false));
    // A later request replaces this one, and one view answers both.
    let other = earlier.request().unwrap();
    assert!(batch.publish_view().unwrap());
    assert_eq!((watched.refresh().unwrap(), watched.shows_answer(&request)), (Refreshed::Newer, true));
    assert_eq!((earlier.refresh().unwrap(), earlier.shows_answer(&other)), (Refreshed::Newer, true));
    assert_eq!(changes(&watched), [("/top/later".to_owned(), Some(0))]);

    // The process of the batch has read a request, and answers it after it was replaced.
    let request = watched.request().unwrap();
    let view = path.join(format!("batches/{number}/view"));
    let before = std::fs::read(&view).unwrap();
    assert!(batch.publish_view().unwrap());
    let answer = std::fs::read(&view).unwrap();
    std::fs::write(&view, before).unwrap();
    let later = watched.request().unwrap();
    std::fs::write(&view, answer).unwrap();
    assert_eq!(watched.refresh().unwrap(), Refreshed::Newer);
    assert!(watched.shows_answer(&request) && !watched.shows_answer(&later));
}

#[test]
fn names_in_removed_directories_are_shown_at_their_paths_in_the_snapshot() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("store");
    BatchStore::create(&path).unwrap();
    let store = StoreAccess::open(&path, WAIT).unwrap();
    let fs = store.file_system(b"").unwrap();
    let sub = make_dir(&fs, ROOT, "sub");
    let below = make_dir(&fs, sub, "below");
    write(&fs, below, "file", b"file");
    let moved = make_dir(&fs, ROOT, "moved");
    let inner = make_dir(&fs, moved, "inner");
    write(&fs, inner, "file", b"file");
    fs.end().unwrap();
    drop(fs);
    let batch = OpenBatch::begin(store, b"", "job", false).unwrap();
    let fs = batch.file_system();
    let node =
        |dir, name: &[u8]| fs.lookup(&Context::OWN, dir, name).unwrap().unwrap().into_attributes().node;
    let remove_tree = |dir: NodeId, name: &[u8], last: &[u8]| {
        let last_dir = node(dir, last);
        fs.remove(&Context::OWN, last_dir, b"file").unwrap();
        fs.remove_dir(&Context::OWN, dir, last).unwrap();
        fs.remove_dir(&Context::OWN, ROOT, name).unwrap();
    };
    remove_tree(node(ROOT, b"sub"), b"sub", b"below");
    // The batch has renamed this directory before it has removed it.
    fs.rename(&Context::OWN, ROOT, b"moved", ROOT, b"renamed", Rename::Replace).unwrap();
    remove_tree(node(ROOT, b"renamed"), b"renamed", b"inner");
    let watched = WatchedBatch::open_of(&path, &[], batch.record().number).unwrap();
    watched.request().unwrap();
    assert!(batch.publish_view().unwrap());
    assert_eq!(watched.refresh().unwrap(), Refreshed::Newer);
    let removed = ["/moved", "/moved/inner", "/moved/inner/file", "/sub", "/sub/below", "/sub/below/file"];
    assert_eq!(changes(&watched), removed.map(|name| (name.to_owned(), None)));
}

#[test]
fn no_view_is_published_after_an_abort() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("store");
    let batch = begin(&path);
    let watched = WatchedBatch::open_of(&path, &[], batch.record().number).unwrap();
    watched.request().unwrap();
    assert!(batch.publish_view().unwrap());
    batch.abort(WAIT).unwrap();
    assert!(!batch.publish_view().is_ok_and(|published| published));
    assert_eq!(watched.refresh().unwrap(), Refreshed::Ended);
    assert_eq!(std::fs::read_dir(path.join("batches")).unwrap().count(), 0);
}
