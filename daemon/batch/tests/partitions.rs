//! Directories that are divided between the server of a store and partition servers.

mod served;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use quell_batch::{BatchFs, BatchStore, OpenBatch, ServedPartitions, SummaryState, fsck};
use quell_batch_server::{PartitionServer, ServerOptions};
use quell_batch_service::{NameSpace, NewNode, Place, ROOT};
use quell_testkit::conformance::writing::{self, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::{Context, ErrorKind, FileSystem, OpenMode, Writable};

use served::{LONG, NEW, NOW, Served, partition_server, with_mounts};

fn make_dir(names: &dyn NameSpace, name: &[u8]) -> u64 {
    names.create(ROOT, name, NewNode::Dir, NEW, NOW).unwrap().inode.number
}

fn make_file(names: &dyn NameSpace, dir: u64, name: &str) {
    names.create(dir, name.as_bytes(), NewNode::File, NEW, NOW).unwrap();
}

fn names_of(names: &dyn NameSpace, dir: u64) -> Vec<String> {
    let mut found = Vec::new();
    names
        .list(dir, b"", &mut |name, _, _| {
            found.push(String::from_utf8(name.to_vec()).unwrap());
            true
        })
        .unwrap();
    found
}

fn make_in(fs: &BatchFs, name: &[u8]) {
    let (created, file) = fs.create(&Context::OWN, fs.root(), name, NEW, OpenMode::READ_WRITE).unwrap();
    file.close().unwrap();
    created.into_attributes();
}

fn counter(server: &PartitionServer, name: &str) -> u64 {
    let counters = server.partitions().counters().unwrap();
    counters.into_iter().find(|(found, _)| found == name).unwrap().1
}

fn names_of_divided_directories(is_tcp: bool) {
    let served = Served::start_dividing(is_tcp, 100);
    let servers = [1, 2, 3].map(|_| partition_server(&served.path(), is_tcp));
    let access = served.access();
    let dir = make_dir(&*access.name_space(), b"large");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let served = &served;
            scope.spawn(move || {
                let access = served.access();
                let names = access.name_space();
                for number in 0..300 {
                    let name = format!("{thread}-{number}");
                    make_file(&*names, dir, &name);
                    if number % 4 == 0 {
                        names.remove(dir, name.as_bytes(), NOW).unwrap();
                    }
                    let found = names.lookup(dir, name.as_bytes()).unwrap();
                    assert_eq!(found.is_some(), number % 4 != 0, "{name}");
                }
                names.sync().unwrap();
            });
        }
    });
    let names = access.name_space();
    // On a busy machine, a thread may have made the server take the partitions back.
    let mut further = 0;
    while servers.iter().any(|server| counter(server, "assignments") == 0) {
        make_file(&*names, dir, &format!("further-{further}"));
        further += 1;
        assert!(further < 5000, "the directory is not divided among all servers");
    }
    for server in &servers {
        assert!(counter(server, "requests") > 20, "{:?}", server.partitions().counters());
    }
    let listed = names_of(&*names, dir);
    assert_eq!(listed.len(), 4 * 225 + further);
    // The list needs all names, so the server has taken the partitions back.
    servers.iter().for_each(|server| assert_eq!(counter(server, "assignments"), 0));
    let counters = served.server().store().store().primary().partition_counters();
    assert!(counters.divided >= 2 && counters.failed == 0, "{counters:?}");
    servers.iter().for_each(|server| server.stop(LONG).unwrap());
    assert_eq!(names_of(&*names, dir), listed);
}

#[test]
fn names_of_divided_directories_are_found_over_unix_sockets() {
    names_of_divided_directories(false);
}

#[test]
fn names_of_divided_directories_are_found_over_tcp() {
    names_of_divided_directories(true);
}

#[test]
fn names_of_partition_servers_that_have_ended_are_kept() {
    let mut served = Served::start_dividing(false, 50);
    let server = partition_server(&served.path(), false);
    let access = served.access();
    let names = access.name_space();
    let dir = make_dir(&*names, b"large");
    (0..200).for_each(|number| make_file(&*names, dir, &format!("before-{number}")));
    assert_eq!(counter(&server, "assignments"), 1);
    server.stop(LONG).unwrap();
    drop(server);
    // The client sends a part of the requests to the server that has ended.
    for number in 0..200 {
        assert!(names.lookup(dir, format!("before-{number}").as_bytes()).unwrap().is_some());
        make_file(&*names, dir, &format!("after-{number}"));
    }
    assert_eq!(names_of(&*names, dir).len(), 400);

    // Another process has the same files, and both end at the same time.
    let server = partition_server(&served.path(), false);
    assert_eq!(server.partitions().number(), 1);
    (0..200).for_each(|number| make_file(&*names, dir, &format!("again-{number}")));
    assert_eq!(counter(&server, "assignments"), 1);
    server.stop(LONG).unwrap();
    drop(server);
    served.restart(false);
    assert_eq!(names_of(&*names, dir).len(), 600);
    drop(names);
    drop(access);
    let store = served.stop();
    let store = BatchStore::open(&store.path().join("store"), LONG).unwrap();
    assert_eq!(names_of(&*store.primary().name_space(), dir).len(), 600);
}

#[test]
fn a_batch_begins_and_ends_with_all_names_of_divided_directories() {
    let served = Served::start_dividing(false, 20);
    let server = partition_server(&served.path(), false);
    let access = served.access();
    let names = access.name_space();
    let dir = make_dir(&*names, b"large");
    let make =
        |from: usize| (from..from + 100).for_each(|number| make_file(&*names, dir, &number.to_string()));
    make(0);
    assert_eq!(counter(&server, "assignments"), 1);
    let batch = OpenBatch::begin(served.access(), b"large", "job", false).unwrap();
    let fs = batch.file_system();
    let has = |name: &str| fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().is_some();
    assert!((0..100).all(|number| has(&number.to_string())));
    // The directory is divided again while the batch is open, and the batch does not see the names.
    make(100);
    assert_eq!(counter(&server, "assignments"), 1);
    assert!(!has("150"));
    make_in(&fs, b"150");
    make_in(&fs, b"of-batch");
    let committed = batch.commit(LONG).unwrap();
    assert_eq!(committed.state, SummaryState::Committed { entries: 2, conflicts: 1 });
    assert_eq!(counter(&server, "assignments"), 0);
    // One of them was kept under another name.
    assert_eq!(names_of(&*names, dir).len(), 202);
    make(200);
    // A batch that is verified later is part of the directory before the next operation.
    let batch = OpenBatch::begin(served.access(), b"large", "later", false).unwrap();
    make(300);
    assert_eq!(counter(&server, "assignments"), 1);
    let fs = batch.file_system();
    make_in(&fs, b"submitted");
    batch.commit_later(LONG).unwrap();
    assert!(names.lookup(dir, b"submitted").unwrap().is_some());
    assert_eq!(names_of(&*names, dir).len(), 403);
    server.stop(LONG).unwrap();
}

#[test]
fn a_directory_with_partitions_has_the_attributes_that_its_owner_sets() {
    let served = Served::start_dividing(false, 20);
    let server = partition_server(&served.path(), false);
    let access = served.access();
    let names = access.name_space();
    let dir = make_dir(&*names, b"large");
    (0..100).for_each(|number| make_file(&*names, dir, &number.to_string()));
    assert_eq!(counter(&server, "assignments"), 1);
    let change = quell_batch_service::InodeChange { permissions: Some(0o2700), ..Default::default() };
    names.change((dir, &Place::Dir(dir)), &change, NOW).unwrap();
    assert_eq!(counter(&server, "assignments"), 0);
    (100..300).for_each(|number| make_file(&*names, dir, &number.to_string()));
    assert_eq!(counter(&server, "assignments"), 1);
    // New files inherit the group of a directory with the set-group-ID bit from either server.
    let gid = names.find(dir, &Place::Dir(dir)).unwrap().inode.gid;
    let new = quell_vfs::NewEntry { gid: gid + 1, ..NEW };
    for number in 0..20 {
        let found = names.create(dir, format!("g-{number}").as_bytes(), NewNode::File, new, NOW).unwrap();
        assert_eq!(found.inode.gid, gid);
    }
    // The directory is removed with all its names.
    for name in names_of(&*names, dir) {
        names.remove(dir, name.as_bytes(), NOW).unwrap();
    }
    names.remove_dir(ROOT, b"large", NOW).unwrap();
    assert_eq!(names.create(dir, b"late", NewNode::File, NEW, NOW).unwrap_err().kind, ErrorKind::NotFound);
    server.stop(LONG).unwrap();
}

#[test]
fn the_directories_of_a_store_for_a_group_are_not_divided() {
    let gid = tempfile::tempdir().unwrap().path().metadata().unwrap().gid();
    let served =
        Served::start_new(false, ServerOptions::default(), |path| BatchStore::create_for_group(path, gid));
    let refused = ServedPartitions::open_free(&served.path()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported);
}

/// Runs `check` on mounts of new stores, whose directories are divided after each creation.
fn with_divided(mounts_max: usize, check: impl Fn(&WritableImplementation<'_>)) {
    let start = || {
        let served = Served::start_dividing(false, 1);
        let server = partition_server(&served.path(), false);
        (served, Some(server))
    };
    with_mounts("a store with a partition server", start, mounts_max, check);
}

#[test]
fn promises_are_kept_by_mounts_of_divided_directories() {
    with_divided(2, writing::run);
}

#[test]
fn random_histories_of_two_mounts_of_divided_directories_match_the_model() {
    let shape = Shape { mounts: 2, ..Shape::DENSE };
    with_divided(2, |implementation| histories::check(implementation, shape, 0..4));
}

fn copy_store(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-r").args([from, to]).status().unwrap();
    assert!(copied.success());
}

#[test]
fn lost_files_of_a_partition_server_are_reported_and_given_up_by_a_repair() {
    let served = Served::start_dividing(false, 50);
    let path = served.path();
    let server = partition_server(&path, false);
    let access = served.access();
    let names = access.name_space();
    let dir = make_dir(&*names, b"large");
    (0..200).for_each(|number| make_file(&*names, dir, &number.to_string()));
    assert_eq!(counter(&server, "assignments"), 1);
    // The state of the store after both servers were killed.
    let copy = tempfile::tempdir().unwrap();
    let store = copy.path().join("store");
    copy_store(&path, &store);
    server.stop(LONG).unwrap();
    drop((server, names, access));
    served.stop();
    let check = |store: &Path, repairs| {
        let mut found = Vec::new();
        fsck(store, LONG, repairs, &mut |problem| found.push((problem.kind, problem.path.clone()))).unwrap();
        found
    };
    let lost = [("lost-partitions", Some(b"/large".to_vec()))];
    std::fs::rename(store.join("partitions/1/keys"), store.join("lost")).unwrap();
    assert_eq!(check(&store, false), lost);
    // Only the names of this directory cannot be used.
    let opened = BatchStore::open(&store, LONG).unwrap();
    let names = opened.primary().name_space();
    assert!(names.lookup(ROOT, b"other").unwrap().is_none());
    assert_eq!(names.list(dir, b"", &mut |_, _, _| true).unwrap_err().kind, ErrorKind::Damaged);
    drop((names, opened));
    assert_eq!(ServedPartitions::open_free(&store).unwrap().number(), 2);
    // With the files, nothing is lost.
    let repaired = copy.path().join("repaired");
    std::fs::rename(store.join("lost"), store.join("partitions/1/keys")).unwrap();
    copy_store(&store, &repaired);
    let names_in = |store: &Path| {
        let opened = BatchStore::open(store, LONG).unwrap();
        names_of(&*opened.primary().name_space(), dir).len()
    };
    assert_eq!(check(&store, false), []);
    assert_eq!(names_in(&store), 200);
    std::fs::remove_dir_all(repaired.join("partitions/1")).unwrap();
    assert_eq!(check(&repaired, true), lost);
    assert_eq!(check(&repaired, false), []);
    let left = names_in(&repaired);
    assert!((50..200).contains(&left), "{left}");
}
