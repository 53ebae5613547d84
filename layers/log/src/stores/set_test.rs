//! Tests the sets of stores that may be opened together, and the maps that they keep.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quell_testkit::MemoryStore;
use quell_vfs::Change;

use super::*;
use crate::format::number_name;
use crate::test_stores::host;

/// Returns a host with its own random numbers.
fn any_host() -> Host {
    static SEED: AtomicU64 = AtomicU64::new(1);
    host(SEED.fetch_add(1, Ordering::Relaxed), 1)
}

fn memory(count: usize) -> Vec<MemoryStore> {
    (0..count).map(|_| MemoryStore::new()).collect()
}

fn named(stores: &[MemoryStore], order: &[usize]) -> Vec<Root> {
    let root = |place: &usize| Root { dir: stores[*place].root(), path: format!("/s{place}").into_bytes() };
    order.iter().map(root).collect()
}

fn open(stores: &[MemoryStore], order: &[usize]) -> Result<Stores> {
    Stores::open_named(named(stores, order), any_host(), 4)
}

fn change(stores: &[MemoryStore], roles: &[(usize, Role)]) -> Result<Stores> {
    let roots = roles.iter().map(|(place, role)| (named(stores, &[*place]).remove(0), *role)).collect();
    Stores::change(roots, any_host(), 4, &mut || false)
}

fn numbers(stores: &Stores) -> Vec<u128> {
    stores.list().stores.iter().map(|store| store.number).collect()
}

#[track_caller]
fn refused_with(opened: Result<Stores>, words: &str) {
    let error = opened.unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn stores_that_were_mounted_together_are_the_same_in_any_order() {
    let stores = memory(3);
    let first = open(&stores, &[2, 0, 1]).unwrap();
    assert_eq!(first.paths(), [b"/s2", b"/s0", b"/s1"]);
    for order in [[0, 1, 2], [1, 2, 0]] {
        let again = open(&stores, &order).unwrap();
        assert_eq!((again.paths(), numbers(&again)), (first.paths(), numbers(&first)));
        assert_eq!(again.home(b"a name"), first.home(b"a name"));
    }
}

#[test]
fn stores_that_do_not_belong_together_are_refused_with_instructions() {
    let stores = memory(4);
    open(&stores, &[0, 1]).unwrap();
    refused_with(open(&stores, &[0]), "/s1 belongs to this set");
    refused_with(open(&stores, &[1]), "/s0 belongs to this set");
    refused_with(open(&stores, &[0, 1, 2]), "--add /s2");
    assert_eq!(stores[2].root().names().unwrap(), Vec::<Vec<u8>>::new(), "it is left as it was");
    open(&stores, &[3]).unwrap();
    refused_with(open(&stores, &[0, 1, 3]), "--add /s3");
    stores[3].root().make_dir(b"work", 0o755).unwrap();
    refused_with(open(&stores, &[3, 2]), "--add OTHER");
    assert_eq!(open(&stores, &[3]).unwrap().count(), 1);
}

#[test]
fn a_single_store_can_get_others_which_can_be_drained() {
    let stores = memory(3);
    open(&stores, &[0]).unwrap();
    stores[0].root().make_dir(b"work", 0o755).unwrap();
    let both = change(&stores, &[(0, Role::Keep), (1, Role::Add)]).unwrap();
    assert_eq!((both.paths(), both.draining()), (vec![b"/s0".to_vec(), b"/s1".to_vec()], vec![]));
    let running = open(&stores, &[1, 0]).unwrap();
    refused_with(change(&stores, &[(0, Role::Drain), (1, Role::Drain)]), "no store would be left");
    refused_with(change(&stores, &[(0, Role::Drain)]), "/s1 belongs");
    let drained = change(&stores, &[(0, Role::Drain), (1, Role::Keep)]).unwrap();
    assert_eq!(drained.draining(), [0]);
    // A mount that does not know of the change finds no `new` there, and reads the map again.
    let names = |stores: &Stores| (0..50).map(|i| stores.home(&[i])).collect::<Vec<_>>();
    assert!(names(&running).contains(&0));
    assert!(running.new_dir(0).is_err_and(|error| error.kind == ErrorKind::NotFound));
    assert!(running.refresh().unwrap() && !running.refresh().unwrap());
    assert!(names(&running).iter().all(|store| *store == 1));
    // A draining store may be used again ...
    let again = change(&stores, &[(0, Role::Add), (1, Role::Keep)]).unwrap();
    assert_eq!(again.draining(), [0; 0]);
    again.new_dir(0).unwrap();
    // ... but is no longer a member after it has left.
    change(&stores, &[(0, Role::Drain), (1, Role::Keep)]).unwrap().leave_drained().unwrap();
    assert_eq!(open(&stores, &[1]).unwrap().count(), 1);
    refused_with(open(&stores, &[0, 1]), "/s0 is not part of this set of stores");
    assert!(running.refresh().is_ok());
}

#[test]
fn stores_are_not_changed_before_their_only_user_shares_them() {
    let stores = memory(2);
    let single = open(&stores, &[0]).unwrap().begin_use(&mut || false).unwrap();
    assert!(single.be_only_user(Instant::now()).unwrap());
    let state = || stores.iter().map(|store| tree(&*store.root())).collect::<Vec<_>>();
    let before = state();
    let error = change(&stores, &[(0, Role::Keep), (1, Role::Add)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    assert_eq!(state(), before);

    let roots = named(&stores, &[0, 1]).into_iter().zip([Role::Keep, Role::Add]).collect();
    let mut shared = Some(single);
    let mut share = || shared.take().is_some_and(|single| !single.be_only_user(Instant::now()).unwrap());
    let both = Stores::change(roots, any_host(), 4, &mut share).unwrap();
    assert_eq!((both.count(), both.use_locks.len()), (2, 2));
    let third = open(&stores, &[0, 1]).unwrap().begin_use(&mut || false).unwrap();
    let is_only_user = third.use_locks[0].be_only_user(&*third.list().stores[0].own, &|| Ok(true));
    assert!(!is_only_user.unwrap(), "it is registered");
}

/// Returns the paths below a directory.
fn tree(dir: &dyn WritableDir) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    for name in dir.names().unwrap() {
        if let Ok(below) = dir.open_writable_dir(&name) {
            paths.extend(tree(&*below).into_iter().map(|path| [&name[..], b"/", &path].concat()));
        }
        paths.push(name);
    }
    paths.sort();
    paths
}

#[test]
fn an_incomplete_map_is_completed_at_the_next_open() {
    for nth in 1..200 {
        let stores = memory(3);
        let before = open(&stores, &[2, 0]).unwrap();
        let failing = &stores[(nth % 3) as usize];
        failing.fail_nth(nth / 3 + 1, 5);
        let _ = change(&stores, &[(0, Role::Keep), (1, Role::Add), (2, Role::Keep)]);
        failing.fail_nothing();
        let all = change(&stores, &[(0, Role::Keep), (1, Role::Add), (2, Role::Keep)]).unwrap();
        assert_eq!(all.paths(), [b"/s2", b"/s0", b"/s1"], "{nth}");
        assert_eq!(numbers(&all)[..2], numbers(&before)[..]);
        for order in [[0, 1, 2], [2, 1, 0]] {
            assert_eq!(numbers(&open(&stores, &order).unwrap()), numbers(&all));
        }
        for alone in 0..3 {
            assert!(open(&stores, &[alone]).is_err());
        }
    }
}

#[test]
fn a_damaged_map_is_ignored() {
    let stores = memory(2);
    let before = numbers(&open(&stores, &[1, 0]).unwrap());
    let own = stores[0].root().open_writable_dir(OWN).unwrap();
    own.open_writable_file(b"map-1").unwrap().write_at(b"x", 3).unwrap();
    own.create_file(b"map-ff", 0o644).unwrap().write_at(b"quell", 0).unwrap();
    assert_eq!(numbers(&open(&stores, &[0, 1]).unwrap()), before);
}

#[test]
fn the_first_mount_can_be_killed_at_any_request() {
    for nth in 1..100 {
        let stores = memory(2);
        let failing = &stores[(nth % 2) as usize];
        failing.fail_nth(nth / 2 + 1, 5);
        let _ = open(&stores, &[1, 0]);
        failing.fail_nothing();
        let before = numbers(&open(&stores, &[1, 0]).unwrap());
        assert_eq!(numbers(&open(&stores, &[0, 1]).unwrap()), before);
    }
}

#[test]
fn a_mount_that_does_not_know_the_newest_map_does_not_become_the_only_user() {
    let stores = memory(2);
    let until = Instant::now() + std::time::Duration::from_secs(100_000);
    let mount = open(&stores, &[0]).unwrap().begin_use(&mut || false).unwrap();
    drop(change(&stores, &[(0, Role::Keep), (1, Role::Add)]).unwrap());
    // The mount has no opener for the added store.
    assert!(mount.be_only_user(until).is_err());
    assert_eq!(mount.only_user_period(), None);
    open(&stores, &[0, 1]).unwrap().begin_use(&mut || false).expect("the store is not locked");
}

#[test]
fn the_directory_for_new_objects_stays_open_until_the_store_is_drained() {
    let stores = memory(1);
    let opened = open(&stores, &[0]).unwrap();
    let create = |stores: &Stores, name: &[u8]| stores.kept_new_dir(0)?.create_file(name, 0o600).map(drop);
    create(&opened, b"a").unwrap();
    opened.kept_new_dir(0).unwrap().remove(b"a").unwrap();
    let store = &opened.list().stores[0];
    store.close_for_new().unwrap();
    assert_eq!(create(&opened, b"b").unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(opened.reopened_new_dir(0).err().unwrap().kind, ErrorKind::NotFound);
    store.open_for_new().unwrap();
    create(&opened, b"c").unwrap();
}

#[test]
fn a_repeated_drain_closes_a_store_for_mounts_that_have_the_directory_of_new_files_open() {
    for done in 0.. {
        let stores = memory(1);
        let opened = open(&stores, &[0]).unwrap();
        let create = |number| opened.kept_new_dir(0)?.create_file(&number_name(number), 0o600).map(drop);
        create(1).unwrap();
        let store = &opened.list().stores[0];
        // The first run is killed after this number of operations.
        let count = AtomicUsize::new(0);
        stores[0].fail(move |_| (count.fetch_add(1, Ordering::SeqCst) >= done).then_some(5));
        let is_closed = store.close_for_new().is_ok();
        stores[0].fail_nothing();
        let _ = create(2);
        store.close_for_new().unwrap();
        assert_eq!(create(3).unwrap_err().kind, ErrorKind::NotFound, "killed after {done} operations");
        let mut names = store.own.names().unwrap();
        names.sort();
        assert_eq!(names, [&b"parts"[..], b"store", b"trash"]);
        assert_eq!(store.trash_dir().unwrap().names().unwrap(), [b""; 0]);
        if is_closed {
            break;
        }
    }
}

/// Returns the permissions of `new`, `trash` and `parts`.
fn work_dirs(store: &MemoryStore) -> [u32; 3] {
    let own = store.root().open_writable_dir(OWN).unwrap();
    [NEW_DIR, b"trash", b"parts"].map(|name| own.stat(name).unwrap().mode & 0o7777)
}

#[test]
fn only_the_owner_creates_containers_in_a_store_until_other_users_may_write() {
    for (permissions, expected) in [(0o700, 0o755), (0o755, 0o755), (0o775, 0o1777), (0o1777, 0o1777)] {
        let stores = memory(1);
        let change = Change { permissions: Some(permissions), ..Change::default() };
        stores[0].root().change(b"", &change).unwrap();
        let opened = open(&stores, &[0]).unwrap();
        assert_eq!(work_dirs(&stores[0]), [expected; 3], "{permissions:o}");
        assert_eq!(opened.has_other_writers(), expected == 0o1777, "{permissions:o}");
        // The user 1000 owns the store.
        for owner in [0, 1000] {
            opened.allow_writer(Some(owner)).unwrap();
            assert_eq!(work_dirs(&stores[0]), [expected; 3], "{permissions:o}");
        }
        opened.allow_writer(Some(1001)).unwrap();
        assert!(opened.has_other_writers());
        assert_eq!(work_dirs(&stores[0]), [0o1777; 3], "{permissions:o}");
        assert!(open(&stores, &[0]).unwrap().has_other_writers());
    }
}

#[test]
fn all_stores_of_a_set_have_the_same_writers() {
    let stores = memory(3);
    open(&stores, &[0]).unwrap().allow_writer(None).unwrap();
    open(&stores, &[1]).unwrap();
    change(&stores, &[(0, Role::Keep), (1, Role::Add)]).unwrap();
    assert_eq!([0, 1].map(|place| work_dirs(&stores[place])), [[0o1777; 3]; 2]);
    // A store that was drained gets `new` with the same permissions again.
    change(&stores, &[(0, Role::Keep), (1, Role::Drain)]).unwrap();
    change(&stores, &[(0, Role::Keep), (1, Role::Add)]).unwrap();
    assert_eq!(work_dirs(&stores[1]), [0o1777; 3]);
    let stores = memory(2);
    open(&stores, &[0, 1]).unwrap();
    change(&stores, &[(0, Role::Drain), (1, Role::Keep)]).unwrap();
    change(&stores, &[(0, Role::Add), (1, Role::Keep)]).unwrap();
    assert_eq!([0, 1].map(|place| work_dirs(&stores[place])), [[0o755; 3]; 2]);
}

#[test]
fn a_store_in_a_directory_with_other_names_is_open_to_their_owners() {
    let stores = memory(1);
    stores[0].root().make_dir(b"alice", 0o700).unwrap();
    open(&stores, &[0]).unwrap();
    assert_eq!(work_dirs(&stores[0]), [0o1777; 3]);
}

#[test]
fn stores_that_an_interruption_has_left_partly_closed_are_opened() {
    let stores = memory(2);
    open(&stores, &[0, 1]).unwrap().allow_writer(None).unwrap();
    for (place, name) in [(0, NEW_DIR), (1, NEW_DIR), (1, b"trash"), (1, b"parts")] {
        let change = Change { permissions: Some(0o755), ..Change::default() };
        stores[place].root().open_writable_dir(OWN).unwrap().change(name, &change).unwrap();
    }
    open(&stores, &[0, 1]).unwrap();
    assert_eq!([0, 1].map(|place| work_dirs(&stores[place])), [[0o1777; 3]; 2]);
}

#[test]
fn a_store_is_open_to_other_users_before_a_map_names_it() {
    let stores = memory(2);
    open(&stores, &[0]).unwrap().allow_writer(None).unwrap();
    // The map is renamed to its place in the first store.
    stores[0].fail(|operation| (operation.verb == "rename").then_some(errno::EIO));
    let roles = [(0, Role::Keep), (1, Role::Add)];
    change(&stores, &roles).unwrap_err();
    assert_eq!(work_dirs(&stores[1]), [0o1777; 3]);
    stores[0].fail_nothing();
    change(&stores, &roles).unwrap();
}
