//! Tests which stores may be opened together, and which maps they keep.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_testkit::MemoryStore;

use super::*;
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
    Stores::change(roots, any_host(), 4)
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
        assert_eq!((again.paths(), &again.view().numbers), (first.paths(), &first.view().numbers));
        assert_eq!(again.home(b"a name"), first.home(b"a name"));
    }
}

#[test]
fn stores_that_do_not_belong_together_are_refused_with_what_to_do() {
    let stores = memory(4);
    open(&stores, &[0, 1]).unwrap();
    refused_with(open(&stores, &[0]), "/s1 belongs to these");
    refused_with(open(&stores, &[1]), "/s0 belongs to these");
    refused_with(open(&stores, &[0, 1, 2]), "--add /s2");
    assert_eq!(stores[2].root().names().unwrap(), Vec::<Vec<u8>>::new(), "it is left as it was");
    open(&stores, &[3]).unwrap();
    refused_with(open(&stores, &[0, 1, 3]), "--add /s3");
    stores[3].root().make_dir(b"work", 0o755).unwrap();
    refused_with(open(&stores, &[3, 2]), "--add OTHER");
    assert_eq!(open(&stores, &[3]).unwrap().count(), 1);
}

#[test]
fn a_store_that_was_alone_gets_others_and_they_may_go_again() {
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
    assert!(running.making_new(0).is_err_and(|error| error.kind == ErrorKind::NotFound));
    assert!(running.refresh().unwrap() && !running.refresh().unwrap());
    assert!(names(&running).iter().all(|store| *store == 1));
    // A draining store may be used again ...
    let again = change(&stores, &[(0, Role::Add), (1, Role::Keep)]).unwrap();
    assert_eq!(again.draining(), [0; 0]);
    again.making_new(0).unwrap();
    // ... but is no longer a member after it has left.
    change(&stores, &[(0, Role::Drain), (1, Role::Keep)]).unwrap().leave_drained().unwrap();
    assert_eq!(open(&stores, &[1]).unwrap().count(), 1);
    refused_with(open(&stores, &[0, 1]), "/s0 is none of these stores");
    assert!(running.refresh().is_ok());
}

#[test]
fn a_map_that_not_every_store_has_yet_counts_and_is_completed() {
    for nth in 1..200 {
        let stores = memory(3);
        let before = open(&stores, &[2, 0]).unwrap();
        let failing = &stores[(nth % 3) as usize];
        failing.fail_nth(nth / 3 + 1, 5);
        let _ = change(&stores, &[(0, Role::Keep), (1, Role::Add), (2, Role::Keep)]);
        failing.fail_nothing();
        let all = change(&stores, &[(0, Role::Keep), (1, Role::Add), (2, Role::Keep)]).unwrap();
        assert_eq!(all.paths(), [b"/s2", b"/s0", b"/s1"], "{nth}");
        assert_eq!(&all.view().numbers[..2], &before.view().numbers[..]);
        for order in [[0, 1, 2], [2, 1, 0]] {
            assert_eq!(open(&stores, &order).unwrap().view().numbers.clone(), all.view().numbers);
        }
        for alone in 0..3 {
            assert!(open(&stores, &[alone]).is_err());
        }
    }
}

#[test]
fn a_damaged_map_is_as_if_it_were_not_there() {
    let stores = memory(2);
    let numbers = open(&stores, &[1, 0]).unwrap().view().numbers.clone();
    let own = stores[0].root().open_writable_dir(OWN).unwrap();
    own.open_writable_file(b"map-1").unwrap().write_at(b"x", 3).unwrap();
    own.create_file(b"map-ff", 0o644).unwrap().write_at(b"quell", 0).unwrap();
    assert_eq!(open(&stores, &[0, 1]).unwrap().view().numbers.clone(), numbers);
}

#[test]
fn the_first_mount_may_be_ended_at_any_moment() {
    for nth in 1..100 {
        let stores = memory(2);
        let failing = &stores[(nth % 2) as usize];
        failing.fail_nth(nth / 2 + 1, 5);
        let _ = open(&stores, &[1, 0]);
        failing.fail_nothing();
        let numbers = open(&stores, &[1, 0]).unwrap().view().numbers.clone();
        assert_eq!(open(&stores, &[0, 1]).unwrap().view().numbers.clone(), numbers);
    }
}
