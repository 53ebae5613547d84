//! Counts the requests that operations of a mount send to its store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use quell_posix::WritableDir;
use quell_testkit::{CountingDir, MemoryStore, Writeback};
use quell_threads::lock;
use quell_vfs::{
    Context, Cursor, ErrorKind, FileSystem, Kind, NewEntry, OpenMode, Rename, Writable, WritableFile, errno,
};

use crate::fs::file_system::LogFs;
use crate::session::Choices;
use crate::stores::Stores;
use crate::test_stores::{again, host, make};

const NEW: NewEntry = NewEntry { permissions: 0o750, uid: 1000, gid: 100 };

/// Returns a mount of one store, and the counter of its requests.
fn counted() -> (LogFs, CountingDir<dyn WritableDir>) {
    let store: Arc<dyn WritableDir> = MemoryStore::new().root();
    let counting = CountingDir::new(store);
    (mount(&counting), counting)
}

/// Returns a new mount of the store.
fn mount(counting: &CountingDir<dyn WritableDir>) -> LogFs {
    mount_with(counting, Choices::default())
}

fn mount_with(counting: &CountingDir<dyn WritableDir>, choices: Choices) -> LogFs {
    let root: Arc<dyn WritableDir> = Arc::new(counting.clone());
    LogFs::new(Stores::open(vec![root], host(2, 1), 4).unwrap(), choices)
}

/// Returns the requests that `act` causes, each with its path.
fn requests(counting: &CountingDir<dyn WritableDir>, act: impl FnOnce()) -> Vec<String> {
    let before = counting.operations().len();
    act();
    let path = |path: &[u8]| if path.is_empty() { "/".into() } else { path.escape_ascii().to_string() };
    let requests = &counting.operations()[before..];
    requests.iter().map(|request| format!("{} {}", request.verb, path(&request.path))).collect()
}

#[test]
fn a_listing_sends_no_request_for_each_entry() {
    let (fs, counting) = counted();
    let dir = fs.make_dir(&Context::OWN, fs.root(), b"dir", NEW).unwrap().into_attributes().node;
    let list = |count: usize| {
        requests(&counting, || {
            let mut names = 0;
            fs.list(&Context::OWN, dir, Cursor::START, &mut |_| {
                names += 1;
                true
            })
            .unwrap();
            assert_eq!(names, count);
        })
    };
    list(0); // opens the directory
    let empty = list(0);
    for i in 0..50 {
        fs.make_dir(&Context::OWN, dir, format!("dir{i}").as_bytes(), NEW).unwrap();
        fs.make_symlink(&Context::OWN, dir, format!("link{i}").as_bytes(), b"target", NEW).unwrap();
    }
    assert_eq!(list(100), empty);
    assert_eq!(empty, ["list dir", "stat .quell/map-1"]);
}

#[test]
fn a_lookup_of_a_missing_name_sends_one_request_for_each_stored_name_and_one_for_the_map() {
    let (fs, counting) = counted();
    drop(make(&fs, "f", 1));
    let look_up = || assert!(fs.lookup(&Context::OWN, fs.root(), b"missing").unwrap().is_none());
    let expected = ["stat missing.container", "stat missing", "stat .quell/map-1"];
    assert_eq!(requests(&counting, look_up), expected);
}

#[test]
fn a_lookup_of_a_file_searches_for_its_name_once() {
    let (fs, counting) = counted();
    make(&fs, "f", 1).write_at(b"data", 0).unwrap();
    let fs = mount(&counting);
    let look_up = || assert_eq!(fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().size_bytes, 4);
    let first = [
        "stat f.container",
        "open directory f.container",
        "open f.container/container",
        "stat f.container", // another mount may have replaced the container
        "stat f.container/access",
        "open directory f.container/meta",
        "list f.container/meta",
    ];
    assert_eq!(requests(&counting, look_up), first);
    // The file stays open while its node is referenced.
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap();
    let next = ["stat f.container", "stat f.container/access", "list f.container/meta"];
    assert_eq!(requests(&counting, look_up), next);
    drop(node);
}

/// Replaces the random parts of the names in a request.
fn without_numbers(request: &str) -> String {
    let (verb, path) = request.rsplit_once(' ').unwrap();
    let parts = path.split('/').map(|part| match part.split_once(['-', '.']) {
        Some(("open" | "closed" | "logs", _)) => part.split('-').next().unwrap(),
        Some((_, kind @ ("data" | "index"))) => kind,
        _ if part.len() == 32 => "N",
        _ => part,
    });
    format!("{verb} {}", parts.collect::<Vec<_>>().join("/"))
}

#[test]
fn a_small_file_is_created_and_removed_with_these_requests() {
    let (fs, counting) = counted();
    drop(make(&fs, "other", 1));
    let file = std::cell::RefCell::new(None);
    let shown = |act: &dyn Fn()| -> Vec<String> {
        requests(&counting, act).iter().map(|request| without_numbers(request)).collect()
    };
    let create = shown(&|| *file.borrow_mut() = Some(make(&fs, "f", 1)));
    let created = [
        "stat f.container",
        "stat f",
        "stat .quell/map-1",
        "stat /",
        "open directory .quell/new",
        "make directory .quell/new/N",
        "open directory .quell/new/N",
        "create .quell/new/N/container",
        "write .quell/new/N/container",
        "create .quell/new/N/access",
        "make directory .quell/new/N/meta",
        "open directory .quell/new/N/meta",
        "stat .quell/new/N",
        "rename .quell/new/N",
        "stat .quell/new/N/access",
    ];
    assert_eq!(create, created);
    let write = shown(&|| {
        let file = file.borrow_mut().take().unwrap();
        file.write_at(b"data", 0).unwrap();
        file.publish().unwrap();
        drop(file);
    });
    let written = [
        "create .quell/new/N/meta/open",
        "list .quell/new/N", // for the epochs of other nodes
        "stat .quell/new/N/logs",
        "stat .quell/new/N",
        "make directory .quell/new/N/logs",
        "open directory .quell/new/N/logs",
        "create .quell/new/N/logs/data",
        "write .quell/new/N/logs/data",
        "write .quell/new/N/logs/data",
        "create .quell/new/N/logs/index",
        "write .quell/new/N/logs/index",
        "write .quell/new/N/logs/index",
        "write back .quell/new/N/logs/data",
        "stat open file .quell/new/N/logs/data",
        "rename .quell/new/N/meta/open",
        "rename .quell/new/N/meta/open",
    ];
    assert_eq!(write, written);
    let remove = shown(&|| fs.remove(&Context::OWN, fs.root(), b"f").unwrap());
    let removed = [
        "stat f.container",
        "open directory f.container",
        "open f.container/container",
        "stat f.container",
        "open directory .quell/trash",
        "rename f.container",
        "open directory .quell/trash",
        "stat .quell/map-1",
        "open directory .quell/trash/N",
        "stat .quell/trash/N",
        "stat .quell/trash",
        "list .quell/trash/N",
    ];
    assert_eq!(remove[..removed.len()], removed);
    // The content in the order of the listings.
    let mut content = remove[removed.len()..].to_vec();
    content.sort_unstable();
    let expected = [
        "list .quell/trash/N/logs",
        "list .quell/trash/N/meta",
        "open directory .quell/trash/N/logs",
        "open directory .quell/trash/N/meta",
        "remove .quell/trash/N/access",
        "remove .quell/trash/N/container",
        "remove .quell/trash/N/logs/data",
        "remove .quell/trash/N/logs/index",
        "remove .quell/trash/N/meta/closed",
        "remove directory .quell/trash/N",
        "remove directory .quell/trash/N/logs",
        "remove directory .quell/trash/N/meta",
        "stat .quell/trash/N",
        "stat .quell/trash/N",
        "stat .quell/trash/N/logs",
        "stat .quell/trash/N/meta",
    ];
    assert_eq!(content, expected);
}

#[test]
fn a_file_that_begins_as_an_object_costs_these_requests() {
    let (_, counting) = counted();
    let objects = || mount_with(&counting, Choices { begins_as_object: true, ..Choices::default() });
    let fs = objects();
    drop(make(&fs, "other", 1));
    fs.attributes(&Context::OWN, fs.root()).unwrap(); // opens the directory
    let shown = |act: &dyn Fn()| -> Vec<String> {
        requests(&counting, act).iter().map(|request| without_numbers(request)).collect()
    };
    let written = shown(&|| {
        let file = make(&fs, "f", 1);
        file.write_at(b"data", 0).unwrap();
        file.publish().unwrap();
        file.close().unwrap();
    });
    let expected = [
        "stat f.container",
        "stat f",
        "stat .quell/map-1",
        "stat /",
        "stat .quell/parts", // another mount may have opened the store to other users
        "create .quell/new/N",
        "write .quell/new/N",
        "write back .quell/new/N",
        "stat open file .quell/new/N",
        "rename .quell/new/N",
        "write .quell/new/N",
        "write back .quell/new/N",
        "open directory .quell/parts/N", // another mount may have begun to create the container
    ];
    assert_eq!(written, expected);
    let fs = objects();
    let look_up =
        || shown(&|| assert_eq!(fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().size_bytes, 4));
    // Requests through files that are open for reading are not counted.
    let first = [
        "stat f.container",
        "open f.container",
        "open directory .quell/parts",
        "open directory .quell/parts/N",
    ];
    assert_eq!(look_up(), first);
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap();
    assert_eq!(look_up(), ["stat f.container", "open directory .quell/parts/N"]);
    drop(node);
    let removed = shown(&|| fs.remove(&Context::OWN, fs.root(), b"f").unwrap());
    let expected =
        ["stat f.container", "open f.container", "remove f.container", "open directory .quell/parts/N"];
    assert_eq!(removed, expected);
}

/// The thread that creates the container of an object must find it, also if another thread has just
/// found none.
#[test]
fn a_container_is_found_although_another_thread_has_looked_for_it_just_before() {
    let first: Arc<Mutex<Option<Box<dyn WritableFile>>>> = Arc::default();
    let closed = Arc::clone(&first);
    let store: Arc<dyn WritableDir> = MemoryStore::new().root();
    let root: Arc<dyn WritableDir> = Arc::new(CountingDir::with_hook(store, move |_, operation| {
        let file = if operation.verb == "rename" { lock(&closed).take() } else { None };
        if let Some(file) = file {
            std::thread::spawn(move || file.close()).join().unwrap().unwrap();
        }
    }));
    let stores = Stores::open(vec![root], host(2, 1), 4).unwrap().begin_use(&mut || false).unwrap();
    let fs = LogFs::new(stores, Choices { begins_as_object: true, ..Choices::default() });
    assert!(fs.be_only_user(Instant::now() + Duration::from_secs(100_000)).unwrap());
    let file = make(&fs, "f", 1);
    file.write_at(b"data", 0).unwrap();
    let other = again(&fs, "f", 2);
    // It is closed just before the container gets its name.
    *lock(&first) = Some(file);
    other.write_at(b"more", 1000).unwrap();
    other.close().unwrap();
    assert!(lock(&first).is_none(), "no container was created");
    assert_eq!(fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().size_bytes, 1004);
}

/// Returns a mount that is the only user of its store, and in which a file was created before.
fn only_user(counting: &CountingDir<dyn WritableDir>) -> LogFs {
    let root: Arc<dyn WritableDir> = Arc::new(counting.clone());
    let stores = Stores::open(vec![root], host(2, 1), 4).unwrap().begin_use(&mut || false).unwrap();
    let fs = LogFs::new(stores, Choices { begins_as_object: true, ..Choices::default() });
    drop(make(&fs, "other", 1));
    assert!(fs.be_only_user(Instant::now() + Duration::from_secs(100_000)).unwrap());
    fs
}

#[test]
fn the_only_user_does_not_search_for_names_that_a_lookup_has_just_not_found() {
    let (_, counting) = counted();
    let fs = only_user(&counting);
    let created = |name: &str| requests(&counting, || drop(make(&fs, name, 1)))[0].clone();
    let look_up =
        |name: &str| assert!(fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().is_none());
    assert_eq!(created("a"), "stat a");
    look_up("b");
    assert_eq!(created("b"), "create b.container");
    // Directories, links and renames may have taken the name since.
    let changes: [&dyn Fn(); 3] = [
        &|| drop(fs.make_dir(&Context::OWN, fs.root(), b"dir", NEW).unwrap()),
        &|| drop(fs.make_symlink(&Context::OWN, fs.root(), b"link", b"target", NEW).unwrap()),
        &|| fs.rename(&Context::OWN, fs.root(), b"dir", fs.root(), b"moved", Rename::Keep).unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let name = format!("c{number}");
        look_up(&name);
        change();
        assert_eq!(created(&name), format!("stat {name}"));
    }
    for name in ["moved", "link", "a"] {
        let (context, mode) = (Context::OWN, OpenMode::READ_WRITE);
        let error = fs.create(&context, fs.root(), name.as_bytes(), NEW, mode).map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Exists, "{name}");
    }
}

#[test]
fn the_only_user_knows_the_names_in_a_directory_that_it_has_created() {
    let (_, counting) = counted();
    let fs = only_user(&counting);
    let dir = fs.make_dir(&Context::OWN, fs.root(), b"dir", NEW).unwrap();
    let look_up =
        |name: &'static [u8]| fs.lookup(&Context::OWN, dir.node, name).unwrap().map(|found| found.kind);
    let create = |name: &'static [u8]| {
        fs.create(&Context::OWN, dir.node, name, NEW, OpenMode::READ_WRITE).map(|(_, file)| drop(file))
    };
    fs.attributes(&Context::OWN, dir.node).unwrap(); // opens the directory
    let found = requests(&counting, || assert_eq!(look_up(b"a"), None));
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(requests(&counting, || create(b"a").unwrap())[0], "create dir/a.container");
    let made = requests(&counting, || drop(fs.make_dir(&Context::OWN, dir.node, b"d", NEW).unwrap()));
    assert!(!made.contains(&"stat dir/d.container".to_owned()), "{made:?}");
    fs.make_symlink(&Context::OWN, dir.node, b"l", b"target", NEW).unwrap();
    for (name, kind) in [(&b"a"[..], Kind::File), (b"d", Kind::Dir), (b"l", Kind::Symlink)] {
        assert_eq!(look_up(name), Some(kind));
        assert_eq!(create(name).unwrap_err().kind, ErrorKind::Exists);
    }
    fs.rename(&Context::OWN, dir.node, b"a", dir.node, b"b", Rename::Keep).unwrap();
    fs.rename(&Context::OWN, fs.root(), b"other", dir.node, b"c", Rename::Keep).unwrap();
    assert_eq!((look_up(b"a"), look_up(b"b"), look_up(b"c")), (None, Some(Kind::File), Some(Kind::File)));
    // Its names remain known after it was renamed, and are not those of a new directory.
    fs.rename(&Context::OWN, fs.root(), b"dir", fs.root(), b"moved", Rename::Keep).unwrap();
    assert_eq!((look_up(b"b"), look_up(b"e")), (Some(Kind::File), None));
    // In a later period, other processes may have created names in it.
    fs.end_only_user_period();
    assert_eq!(requests(&counting, || assert_eq!(look_up(b"e"), None))[0], "stat dir/e.container");
}

#[test]
fn the_only_user_passes_new_files_to_the_file_server_before_it_shares_the_store() {
    let (_, counting) = counted();
    let fs = only_user(&counting);
    let (closed, open) = (make(&fs, "closed", 1), make(&fs, "open", 1));
    closed.close().unwrap();
    open.write_at(b"data", 0).unwrap();
    let share = || {
        fs.end_only_user_period();
        assert!(fs.share_stores());
    };
    assert_eq!(requests(&counting, share), ["write back open.container"]);
    assert!(requests(&counting, share).is_empty());
    assert_eq!(mount(&counting).lookup(&Context::OWN, fs.root(), b"open").unwrap().unwrap().size_bytes, 0);
    open.close().unwrap();
    assert_eq!(mount(&counting).lookup(&Context::OWN, fs.root(), b"open").unwrap().unwrap().size_bytes, 4);
}

/// Otherwise the data of the second writer would be lost if the node failed.
#[test]
fn a_new_file_is_passed_to_the_file_server_before_its_container_is_created() {
    let (_, counting) = counted();
    let fs = only_user(&counting);
    let first = make(&fs, "f", 1);
    let second = again(&fs, "f", 2);
    let written =
        requests(&counting, || second.write_at(b"data", 100).and_then(|()| second.publish()).unwrap());
    let container = written.iter().position(|request| request.contains(".quell/new")).unwrap();
    assert!(written[..container].contains(&"write back f.container".to_owned()), "{written:?}");
    drop(first);
}

/// Returns the only user of a store, and the store, whose operations a test can make fail.
fn only_user_of_store() -> (LogFs, MemoryStore, CountingDir<dyn WritableDir>) {
    let store = MemoryStore::new();
    let counting = CountingDir::new(store.root() as Arc<dyn WritableDir>);
    (only_user(&counting), store, counting)
}

/// Makes write-backs fail while `act` runs, and drops the data of the file `f` that they
/// have not written. The next sync reports this once.
fn without_write_back(store: &MemoryStore, act: impl FnOnce()) {
    store.fail(|operation| (operation.verb == "write back").then_some(errno::EIO));
    act();
    store.fail_nothing();
    assert_eq!(store.fail_writeback(8, Writeback::Dropped, |path| path.ends_with(b"f.container")), 1);
}

fn size_of(counting: &CountingDir<dyn WritableDir>, name: &[u8]) -> u64 {
    let fs = mount(counting);
    fs.lookup(&Context::OWN, fs.root(), name).unwrap().unwrap().size_bytes
}

#[test]
fn a_new_file_that_could_not_be_passed_to_the_file_server_is_written_again_at_its_close() {
    let (fs, store, counting) = only_user_of_store();
    let file = make(&fs, "f", 1);
    file.write_at(b"data", 0).unwrap();
    without_write_back(&store, || {
        fs.end_only_user_period();
        assert!(fs.share_stores());
    });
    assert_eq!(file.publish().unwrap_err().errno(), errno::EIO);
    file.close().unwrap();
    assert_eq!(size_of(&counting, b"f"), 4);
}

/// close(2) of a new file without data must not succeed before other nodes can open the file.
#[test]
fn a_new_file_without_data_is_passed_to_the_file_server_at_its_first_close() {
    let (fs, store, counting) = only_user_of_store();
    let file = make(&fs, "f", 1);
    store.fail(|operation| (operation.verb == "write back").then_some(errno::EDQUOT));
    assert_eq!(file.publish().unwrap_err().errno(), errno::EDQUOT);
    store.fail_nothing();
    file.publish().unwrap();
    assert!(requests(&counting, || file.publish().unwrap()).is_empty());
    let file = make(&fs, "g", 1);
    assert_eq!(requests(&counting, || file.publish().unwrap()), ["write back g.container"]);
    assert!(requests(&counting, || file.publish().unwrap()).is_empty());
}

#[test]
fn the_data_of_a_second_writer_can_be_read_after_the_new_file_could_not_be_passed_to_the_file_server() {
    let (fs, store, counting) = only_user_of_store();
    let first = make(&fs, "f", 1);
    let second = again(&fs, "f", 2);
    second.write_at(b"data", 100).unwrap();
    without_write_back(&store, || assert_eq!(second.publish().unwrap_err().errno(), errno::EIO));
    second.publish().unwrap();
    assert_eq!(size_of(&counting, b"f"), 104);
    assert_eq!(first.close().unwrap_err().errno(), errno::EIO, "the next sync reports the lost data");
    assert_eq!(size_of(&counting, b"f"), 104);
}

#[test]
fn the_store_is_not_shared_before_a_creation_has_ended() {
    let fs: Arc<OnceLock<LogFs>> = Arc::default();
    let shared: Arc<Mutex<Vec<bool>>> = Arc::default();
    let (known, results) = (Arc::clone(&fs), Arc::clone(&shared));
    let store: Arc<dyn WritableDir> = MemoryStore::new().root();
    let counting = CountingDir::with_hook(store, move |_, operation| {
        if let (Some(fs), "create") = (known.get(), operation.verb) {
            fs.end_only_user_period();
            lock(&results).push(fs.share_stores());
        }
    });
    let fs = fs.get_or_init(|| only_user(&counting));
    drop(make(fs, "f", 1));
    assert_eq!(std::mem::take(&mut *lock(&shared)), [false]);
    assert!(fs.share_stores());
    // Other processes find a file that is created now with its header.
    drop(make(fs, "g", 1));
    assert_eq!(*lock(&shared), [true]);
}

/// A name with an object that has no header could not be used.
#[test]
fn a_file_whose_header_cannot_be_written_is_not_created() {
    let store = MemoryStore::new();
    let fail = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&fail);
    let inner: Arc<dyn WritableDir> = store.root();
    let counting = CountingDir::with_hook(inner, {
        let store = store.clone();
        move |_, operation| {
            if operation.verb == "stat open file" && fails.swap(false, Ordering::Relaxed) {
                store.set_free_bytes(Some(0));
            }
        }
    });
    let fs = only_user(&counting);
    fail.store(true, Ordering::Relaxed);
    let context = Context::OWN;
    let created = fs.create(&context, fs.root(), b"f", NEW, OpenMode::READ_WRITE).map(drop);
    assert_eq!(created.unwrap_err().kind, ErrorKind::NoSpace);
    assert!(!store.root().names().unwrap().contains(&b"f.container".to_vec()));
    store.set_free_bytes(None);
    make(&fs, "f", 1).close().unwrap();
}

#[test]
fn the_only_user_of_a_store_looks_for_no_changes_of_others() {
    let (_, counting) = counted();
    let fs = only_user(&counting);
    let shown = |act: &dyn Fn()| -> Vec<String> {
        requests(&counting, act).iter().map(|request| without_numbers(request)).collect()
    };
    let write = |offset: u64| {
        let file = if offset == 0 { make(&fs, "f", 1) } else { again(&fs, "f", 1) };
        file.write_at(b"data", offset).unwrap();
        file.close().unwrap();
    };
    let created = [
        "stat f",
        "create f.container",
        "stat open file f.container",
        "write f.container",
        "write f.container",
        "write back f.container",
    ];
    assert_eq!(shown(&|| write(0)), created);
    let look_up = |size: u64| {
        shown(&|| {
            assert_eq!(fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().size_bytes, size);
        })
    };
    assert_eq!(look_up(4), ["stat f.container"], "the file is not opened");
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap();
    assert_eq!(look_up(4), ["stat f.container"]);
    let read = || {
        let file = fs.open_as(&Context::OWN, node.node, OpenMode::READ).unwrap();
        assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 4);
    };
    assert_eq!(shown(&read), ["open f.container"], "its header is known");
    drop(node);
    // This mount itself creates the container.
    write(4);
    assert!(look_up(8).contains(&"stat .quell/parts/N/access".to_owned()));
    let removed = shown(&|| fs.remove(&Context::OWN, fs.root(), b"f").unwrap());
    assert!(removed.contains(&"rename .quell/parts/N".to_owned()), "{removed:?}");
    make(&fs, "g", 1).write_at(b"data", 0).unwrap();
    let _node = fs.lookup(&Context::OWN, fs.root(), b"g").unwrap().unwrap();
    let removed = shown(&|| fs.remove(&Context::OWN, fs.root(), b"g").unwrap());
    assert_eq!(removed, ["open g.container", "remove g.container"]);
}
