//! Tests that a running mount uses stores that are added.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quell_posix::WritableDir;
use quell_testkit::MemoryStore;
use quell_vfs::{Change, Context, Cursor, FileSystem, NewEntry, NodeId, OpenMode, Rename, Writable};

use super::*;
use crate::fs::LogFs;
use crate::not_found::none_if_not_found;
use crate::session::Choices;
use crate::stores::roles::Role;
use crate::stores::set::Stores;
use crate::test_stores::{again, host, make, pattern};
use crate::tools::progress::ToolProgress;
use crate::tools::rebalance::{RebalanceResult, rebalance};

const FILES: u64 = 30;
const KEEP: Role = Role::Keep;

fn memory(count: usize) -> Vec<MemoryStore> {
    (0..count).map(|_| MemoryStore::new()).collect()
}

fn seed() -> u64 {
    static SEED: AtomicU64 = AtomicU64::new(1000);
    SEED.fetch_add(1, Ordering::Relaxed)
}

fn root(stores: &[MemoryStore], store: usize) -> Root {
    Root { dir: stores[store].root(), path: format!("/s{store}").into_bytes() }
}

/// Opens every store by its path in maps, or fails while `is_away` is set.
fn opener(stores: &[MemoryStore], is_away: &Arc<AtomicBool>) -> Opener {
    let (stores, is_away) = (stores.to_vec(), Arc::clone(is_away));
    Box::new(move |path| {
        let store = std::str::from_utf8(path).unwrap().strip_prefix("/s").unwrap();
        match is_away.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::NotFound, "open", path)),
            false => Ok(stores[store.parse::<usize>().unwrap()].root() as Arc<dyn WritableDir>),
        }
    })
}

fn opened(stores: &[MemoryStore], known: &[usize]) -> Stores {
    let roots = known.iter().map(|store| root(stores, *store)).collect();
    let opened = Stores::open_named(roots, host(seed(), 1), 4).unwrap();
    opened.with_opener(opener(stores, &Arc::default()))
}

fn mount_of(stores: Stores) -> LogFs {
    LogFs::new(
        stores,
        Choices {
            buffer_bytes: 40_000,
            index_threads: 1,
            flatten_bytes: 0,
            flattens_later: false,
            begins_as_object: false,
        },
    )
}

fn mount(stores: &[MemoryStore], known: &[usize]) -> LogFs {
    mount_of(opened(stores, known))
}

fn changed(stores: &[MemoryStore], roles: &[(usize, Role)]) -> Stores {
    let roots = roles.iter().map(|(store, role)| (root(stores, *store), *role)).collect();
    Stores::change(roots, host(seed(), 1), 4, &mut || false).unwrap()
}

#[track_caller]
fn rebalanced(stores: &[MemoryStore], roles: &[(usize, Role)]) -> RebalanceResult {
    let result = rebalance(&Arc::new(changed(stores, roles)), 1, &ToolProgress::default()).unwrap();
    assert!(result.is_complete, "{result:?}");
    result
}

fn name(file: u64) -> String {
    format!("rank-{file}")
}

const NEW: NewEntry = NewEntry { permissions: 0o750, uid: 1000, gid: 100 };

/// Creates files of five processes each, half of them in a directory.
fn fill(fs: &LogFs) -> NodeId {
    let dir = fs.make_dir(&Context::OWN, fs.root(), b"deep", NEW).unwrap().into_attributes().node;
    fs.make_symlink(&Context::OWN, dir, b"up", b"../rank-1", NEW).unwrap();
    for file in 0..FILES {
        let name = name(file);
        let first = make(fs, &name, 1);
        let others: Vec<_> = (2..6).map(|process| again(fs, &name, process)).collect();
        for (part, handle) in std::iter::once(&first).chain(&others).enumerate() {
            handle.write_at(&pattern(5000, file)[part * 1000..][..1000], part as u64 * 1000).unwrap();
        }
        drop((first, others));
        if file % 2 == 1 {
            fs.rename(&Context::OWN, fs.root(), name.as_bytes(), dir, name.as_bytes(), Rename::Replace)
                .unwrap();
        }
    }
    dir
}

fn dir_of(fs: &LogFs, file: u64) -> NodeId {
    if file.is_multiple_of(2) {
        fs.root()
    } else {
        fs.lookup(&Context::OWN, fs.root(), b"deep").unwrap().unwrap().into_attributes().node
    }
}

fn content(fs: &LogFs, dir: NodeId, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(found) = fs.lookup(&Context::OWN, dir, name.as_bytes())? else { return Ok(None) };
    let mut bytes = vec![0; found.size_bytes as usize];
    let length = fs.open(&Context::OWN, found.node)?.read_at(&mut bytes, 0)?;
    bytes.truncate(length);
    Ok(Some(bytes))
}

#[track_caller]
fn check_all_files(fs: &LogFs) {
    for file in 0..FILES {
        let found = content(fs, dir_of(fs, file), &name(file)).unwrap();
        assert!(found.as_deref() == Some(&pattern(5000, file)[..]), "{file}: {:?}", found.map(|f| f.len()));
    }
}

fn listed(fs: &LogFs, dir: NodeId) -> Result<BTreeSet<Vec<u8>>> {
    let mut names = BTreeSet::new();
    fs.list(&Context::OWN, dir, Cursor::START, &mut |entry| {
        assert!(names.insert(entry.name.to_vec()));
        true
    })?;
    Ok(names)
}

/// Returns the number of containers with each name, in the root and in `deep` of all stores.
fn containers(stores: &[MemoryStore]) -> BTreeMap<Vec<u8>, usize> {
    let mut found = BTreeMap::new();
    for store in stores {
        let dirs = [Some(store.root()), none_if_not_found(store.root().open_writable_dir(b"deep")).unwrap()];
        for name in dirs.iter().flatten().flat_map(|dir| dir.names().unwrap()) {
            if name.ends_with(b".container") {
                *found.entry(name).or_default() += 1;
            }
        }
    }
    found
}

#[test]
fn a_running_mount_can_use_files_that_were_moved_to_an_added_store() {
    for before in [1, 2] {
        let stores = memory(before + 1);
        let known: Vec<_> = (0..before).collect();
        let all: Vec<_> = (0..=before).collect();
        let fs = mount(&stores, &known);
        let deep = fill(&fs);
        check_all_files(&fs);
        let mut roles: Vec<_> = known.iter().map(|store| (*store, KEEP)).collect();
        roles.push((before, Role::Add));
        let result = rebalanced(&stores, &roles);
        assert!(result.moved > 0 && result.moved_log_dirs > 0, "{result:?}");
        assert_eq!(listed(&fs, deep).unwrap().len() as u64, FILES / 2 + 1);
        assert_eq!(listed(&fs, fs.root()).unwrap().len() as u64, FILES / 2 + 1);
        check_all_files(&fs);
        check_all_files(&mount(&stores, &all));
        for file in 0..FILES {
            let (dir, name, how) = (dir_of(&fs, file), name(file), OpenMode::READ_WRITE);
            let made = fs.create(&Context::OWN, dir, name.as_bytes(), NEW, how);
            assert!(made.is_err_and(|error| error.kind == ErrorKind::Exists));
            let other = format!("new-{file}");
            drop(fs.create(&Context::OWN, dir, other.as_bytes(), NEW, how).unwrap());
            let fresh = mount(&stores, &all);
            assert!(fresh.lookup(&Context::OWN, dir_of(&fresh, file), other.as_bytes()).unwrap().is_some());
            fs.rename(&Context::OWN, dir, other.as_bytes(), dir, name.as_bytes(), Rename::Replace).unwrap();
            assert_eq!(content(&fs, dir, &name).unwrap().unwrap(), b"");
            fs.remove(&Context::OWN, dir, name.as_bytes()).unwrap();
            assert!(fs.lookup(&Context::OWN, dir, name.as_bytes()).unwrap().is_none());
        }
        fs.remove(&Context::OWN, deep, b"up").unwrap();
        fs.remove_dir(&Context::OWN, fs.root(), b"deep").unwrap();
        assert_eq!(listed(&fs, fs.root()).unwrap().len(), 0);
        drop(fs);
        for store in &stores {
            assert_eq!(store.root().names().unwrap(), [b".quell"]);
            let own = store.root().open_writable_dir(b".quell").unwrap();
            for area in [&b"new"[..], b"trash", b"parts"] {
                assert_eq!(own.open_writable_dir(area).unwrap().names().unwrap().len(), 0);
            }
        }
    }
}

#[test]
fn the_first_request_after_a_move_finds_the_moved_files() {
    type Request = fn(&LogFs, NodeId);
    let requests: [Request; 7] = [
        |fs, deep| {
            (1..FILES)
                .step_by(2)
                .for_each(|file| fs.remove(&Context::OWN, deep, name(file).as_bytes()).unwrap())
        },
        |fs, deep| assert_eq!(listed(fs, deep).unwrap().len() as u64, FILES / 2 + 1),
        |fs, deep| {
            for file in (1..FILES).step_by(2) {
                let made = fs.create(&Context::OWN, deep, name(file).as_bytes(), NEW, OpenMode::READ_WRITE);
                assert!(made.is_err_and(|error| error.kind == ErrorKind::Exists));
            }
        },
        |fs, deep| {
            for file in (1..FILES).step_by(2) {
                let name = name(file);
                fs.rename(&Context::OWN, deep, name.as_bytes(), fs.root(), name.as_bytes(), Rename::Replace)
                    .unwrap();
            }
        },
        |fs, _| {
            fs.rename(&Context::OWN, fs.root(), b"deep", fs.root(), b"other", Rename::Replace).unwrap();
            let other =
                fs.lookup(&Context::OWN, fs.root(), b"other").unwrap().unwrap().into_attributes().node;
            assert_eq!(listed(fs, other).unwrap().len() as u64, FILES / 2 + 1);
            assert_eq!(content(fs, other, &name(7)).unwrap().unwrap(), pattern(5000, 7));
        },
        |fs, _| {
            let refused = fs.remove_dir(&Context::OWN, fs.root(), b"deep");
            assert!(refused.is_err_and(|error| error.kind == ErrorKind::NotEmpty));
        },
        |fs, deep| {
            let made = fs.make_dir(&Context::OWN, deep, name(1).as_bytes(), NEW);
            assert!(made.is_err_and(|error| error.kind == ErrorKind::Exists));
        },
    ];
    for request in requests {
        let stores = memory(2);
        let fs = mount(&stores, &[0]);
        let deep = fill(&fs);
        rebalanced(&stores, &[(0, KEEP), (1, Role::Add)]);
        request(&fs, deep);
        assert!(containers(&stores).values().all(|count| *count == 1));
    }
}

#[test]
fn nodes_known_before_a_move_lead_to_the_moved_files() {
    let stores = memory(2);
    let fs = mount(&stores, &[0]);
    fill(&fs);
    let node = |file| {
        fs.lookup(&Context::OWN, dir_of(&fs, file), name(file).as_bytes())
            .unwrap()
            .unwrap()
            .into_attributes()
            .node
    };
    let nodes: Vec<_> = (0..FILES).map(node).collect();
    rebalanced(&stores, &[(0, KEEP), (1, Role::Add)]);
    for (file, node) in (0..).zip(nodes) {
        assert_eq!(fs.attributes(&Context::OWN, node).unwrap().size_bytes, 5000);
        let mut bytes = vec![0; 5000];
        let handle = fs.open_as(&Context::OWN, node, OpenMode::READ_WRITE).unwrap();
        handle.write_at(b"more", 5000).unwrap();
        assert_eq!(handle.read_at(&mut bytes, 0).unwrap(), 5000);
        assert_eq!(bytes, pattern(5000, file));
    }
    let fresh = mount(&stores, &[0, 1]);
    for file in 0..FILES {
        let bytes = content(&fresh, dir_of(&fresh, file), &name(file)).unwrap().unwrap();
        assert_eq!(&bytes[5000..], b"more");
    }
}

#[test]
fn no_file_is_reported_missing_or_created_twice_during_a_move() {
    for _ in 0..4 {
        let stores = memory(3);
        let fs = mount(&stores, &[0]);
        let deep = fill(&fs);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut rounds = 0;
                while !is_over.load(Ordering::Relaxed) || rounds < 2 {
                    for file in 0..FILES {
                        let (dir, name) = (dir_of(&fs, file), name(file));
                        let found =
                            fs.lookup(&Context::OWN, dir, name.as_bytes()).unwrap().expect("it is there");
                        assert_eq!(found.size_bytes, 5000, "{name}");
                        drop(found);
                        let made = fs.create(&Context::OWN, dir, name.as_bytes(), NEW, OpenMode::READ_WRITE);
                        assert!(made.is_err_and(|error| error.kind == ErrorKind::Exists), "{name}");
                    }
                    assert_eq!(listed(&fs, deep).unwrap().len() as u64, FILES / 2 + 1);
                    rounds += 1;
                }
            });
            rebalanced(&stores, &[(0, KEEP), (1, Role::Add)]);
            rebalanced(&stores, &[(0, KEEP), (1, KEEP), (2, Role::Add)]);
            rebalanced(&stores, &[(0, KEEP), (1, Role::Drain), (2, KEEP)]);
            is_over.store(true, Ordering::Relaxed);
            looking.join().unwrap();
        });
        check_all_files(&fs);
        check_all_files(&mount(&stores, &[0, 2]));
    }
}

#[test]
fn a_mount_follows_several_maps_at_once() {
    let stores = memory(4);
    let (fs, second) = (mount(&stores, &[0]), mount(&stores, &[0]));
    fill(&fs);
    rebalanced(&stores, &[(0, KEEP), (1, Role::Add)]);
    rebalanced(&stores, &[(0, KEEP), (1, KEEP), (2, Role::Add)]);
    rebalanced(&stores, &[(0, KEEP), (1, Role::Drain), (2, KEEP)]);
    check_all_files(&fs);
    // At this point no store that the second mount knows is in use.
    rebalanced(&stores, &[(0, KEEP), (2, KEEP), (3, Role::Add)]);
    rebalanced(&stores, &[(0, Role::Drain), (2, KEEP), (3, KEEP)]);
    for fs in [&second, &fs] {
        check_all_files(fs);
        for file in 0..10 {
            drop(
                fs.create(
                    &Context::OWN,
                    fs.root(),
                    format!("later-{file}").as_bytes(),
                    NEW,
                    OpenMode::READ_WRITE,
                )
                .unwrap(),
            );
            fs.remove(&Context::OWN, fs.root(), format!("later-{file}").as_bytes()).unwrap();
        }
    }
    check_all_files(&mount(&stores, &[2, 3]));
    assert!(containers(&stores[..2]).is_empty());
}

#[test]
fn an_unusable_added_store_is_an_error_and_no_name_is_reported_missing() {
    let stores = memory(2);
    let is_away = Arc::new(AtomicBool::new(true));
    let known = Stores::open_named(vec![root(&stores, 0)], host(seed(), 1), 4).unwrap();
    let fs = mount_of(known.with_opener(opener(&stores, &is_away)));
    let without_opener = mount_of(Stores::open_named(vec![root(&stores, 0)], host(seed(), 1), 4).unwrap());
    let deep = fill(&fs);
    let _ = dir_of(&without_opener, 1);
    rebalanced(&stores, &[(0, KEEP), (1, Role::Add)]);
    #[track_caller]
    fn refused<T>(result: Result<T>) {
        let Err(error) = result else { panic!("the request succeeded") };
        let text = error.to_string();
        assert!(error.errno() == errno::ENXIO && text.contains("/s1") && text.contains("name all"), "{text}");
    }
    for (fs, deep) in [(&fs, deep), (&without_opener, dir_of(&without_opener, 1))] {
        let mut found = 0;
        for file in 0..FILES {
            match content(fs, dir_of(fs, file), &name(file)) {
                Ok(bytes) => {
                    assert_eq!(bytes.unwrap(), pattern(5000, file));
                    found += 1;
                }
                refusal => refused(refusal),
            }
        }
        assert!(found < FILES);
        refused(fs.lookup(&Context::OWN, fs.root(), b"nothing"));
        refused(fs.create(&Context::OWN, fs.root(), b"new", NEW, OpenMode::READ_WRITE));
        refused(fs.make_dir(&Context::OWN, deep, b"new", NEW));
        refused(listed(fs, deep));
        refused(fs.rename(&Context::OWN, fs.root(), b"deep", fs.root(), b"other", Rename::Replace));
    }
    assert!(containers(&stores).values().all(|count| *count == 1));
    is_away.store(false, Ordering::Relaxed);
    check_all_files(&fs);
    assert!(fs.lookup(&Context::OWN, fs.root(), b"nothing").unwrap().is_none());
}

#[test]
fn a_map_is_used_when_every_added_store_has_it() {
    let stores = memory(2);
    let known = opened(&stores, &[0]);
    drop(changed(&stores, &[(0, KEEP), (1, Role::Add)]));
    let own = stores[1].root().open_writable_dir(b".quell").unwrap();
    own.rename(b"map-1", &*own, b"aside", Rename::Replace).unwrap();
    assert!(!known.refresh().unwrap());
    assert_eq!(known.count(), 1);
    own.rename(b"aside", &*own, b"map-1", Rename::Replace).unwrap();
    assert!(known.refresh().unwrap() && !known.refresh().unwrap());
    assert_eq!(known.count(), 2);
}

#[test]
fn an_added_store_is_accepted_only_from_an_owner_of_the_known_stores() {
    let given = |stores: &[MemoryStore], store: usize, name: &[u8], uid| {
        let owner = Change { uid: Some(uid), ..Change::default() };
        stores[store].root().change(name, &owner).unwrap();
    };
    // Each row has the owners of `.quell` in the known store, of `.quell` in the added store, and
    // of the added directory. The mount belongs to user 1000.
    for (first, added, dir, is_taken) in [
        (7, 7, 7, true),
        (1000, 1000, 0, true),
        (0, 0, 0, true),
        (0, 0, 9, true),
        (7, 0, 0, true),
        (7, 7, 0, false),
        (7, 8, 8, false),
        (7, 1000, 1000, false),
        (0, 7, 7, false),
    ] {
        let stores = memory(2);
        let known = opened(&stores, &[0]);
        drop(changed(&stores, &[(0, KEEP), (1, Role::Add)]));
        given(&stores, 0, b".quell", first);
        given(&stores, 1, b".quell", added);
        given(&stores, 1, b"", dir);
        let taken = known.refresh();
        let what = format!("{first} {added} {dir}: {taken:?}");
        match is_taken {
            true => assert!(taken.unwrap(), "{what}"),
            false => assert!(taken.unwrap_err().to_string().contains("another user"), "{what}"),
        }
    }
}

#[test]
fn another_store_at_the_path_of_an_added_store_is_refused() {
    let stores = memory(3);
    let known = opened(&stores, &[0]);
    let others = [stores[0].clone(), stores[2].clone()];
    drop(opened(&stores, &[2]));
    let elsewhere = Stores::open_named(vec![root(&stores, 0)], host(seed(), 1), 4).unwrap();
    let elsewhere = elsewhere.with_opener(opener(&others, &Arc::default()));
    drop(changed(&stores, &[(0, KEEP), (1, Role::Add)]));
    assert!(elsewhere.refresh().unwrap_err().to_string().contains("another store"));
    assert!(known.refresh().unwrap());
}
