//! A check finds damage of each kind, and repairs lose no data.

use std::sync::Arc;

use quell_blob_service::{
    Clock, ExtentId, Extents, MemoryExtents, OpenStore, Options, Problem, ProblemKind, check,
};
use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore};
use quell_wire::blob::{Operation, Transaction};

struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        0
    }
}

struct TestStore {
    tables: Arc<MemoryStore>,
    extents: Arc<MemoryExtents>,
}

/// Returns a store with one blob in pages, and another one with two references to an extent.
fn test_store() -> TestStore {
    let test_store =
        TestStore { tables: Arc::new(MemoryStore::new()), extents: Arc::new(MemoryExtents::default()) };
    let name = |name: &[u8]| name.to_vec();
    let operations = vec![
        Operation::Create { name: name(b"small"), may_exist: false },
        Operation::Write { name: name(b"small"), offset: 0, data: vec![1; 2000] },
        Operation::Create { name: name(b"large"), may_exist: false },
        Operation::Write { name: name(b"large"), offset: 0, data: vec![2; 200_000] },
        Operation::Write { name: name(b"large"), offset: 50_000, data: vec![3; 40_000] },
    ];
    let transaction = Transaction { operations, ..Transaction::default() };
    test_store.open().commit(transaction).expect("committed");
    test_store
}

impl TestStore {
    fn open(&self) -> OpenStore {
        let options = Options::default();
        OpenStore::open(self.tables.clone(), self.extents.clone(), Arc::new(NoClock), options)
            .expect("opened")
    }

    fn problems(&self, repair: bool) -> Vec<Problem> {
        let mut problems = Vec::new();
        check(&*self.tables, &*self.extents, repair, &mut |problem| problems.push(problem)).expect("checked");
        problems
    }

    fn kinds(&self, repair: bool) -> Vec<&'static str> {
        self.problems(repair).iter().map(|problem| problem.kind.identifier()).collect()
    }

    /// Returns the keys that begin with `tag`, with their values.
    fn entries(&self, tag: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        let visit = &mut |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            true
        };
        self.tables.scan(&KeyRange::prefix(&[tag]), visit).expect("scanned");
        found
    }

    fn change(&self, key: &[u8], value: Option<&[u8]>) {
        let mut batch = Batch::new();
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
        self.tables.commit(batch).expect("committed");
    }

    fn assert_intact(&self) {
        assert_eq!(self.kinds(false), [""; 0]);
        let snapshot = self.open().snapshot();
        let mut large = vec![0; 200_000];
        snapshot.read(b"large", 0, &mut large).expect("read");
        assert!(
            large.iter().enumerate().all(|(i, b)| *b == if (50_000..90_000).contains(&i) { 3 } else { 2 })
        );
        let mut small = vec![0; 2000];
        snapshot.read(b"small", 0, &mut small).expect("read");
        assert_eq!(small, [1; 2000]);
    }
}

#[test]
fn an_intact_store_has_no_problems() {
    test_store().assert_intact();
}

#[test]
fn orphan_extents_are_removed() {
    let test_store = test_store();
    test_store.extents.write(ExtentId(7), &[1; 100]).expect("written");
    assert_eq!(test_store.kinds(false), ["orphan-extent"]);
    assert_eq!(test_store.kinds(true), ["orphan-extent"]);
    test_store.assert_intact();
}

#[test]
fn extents_of_a_later_opening_are_left_alone() {
    let test_store = test_store();
    // The upper 20 bits of the number of an extent are the epoch of the store.
    let later = ExtentId(1000 << 44);
    test_store.extents.write(later, &[1; 100]).expect("written");
    assert_eq!(test_store.kinds(true), [""; 0]);
    test_store.extents.read(later, 0, &mut [0; 100]).expect("it exists");
}

#[test]
fn pages_without_a_blob_and_after_its_end_are_removed() {
    let test_store = test_store();
    let page = test_store.entries(b'P').pop().expect("a page").0;
    let mut other = page.clone();
    other[1..9].copy_from_slice(&99_u64.to_be_bytes());
    test_store.change(&other, Some(&[1]));
    let mut later = page;
    later[9..17].copy_from_slice(&77_u64.to_be_bytes());
    test_store.change(&later, Some(&[1]));
    let mut kinds = test_store.kinds(true);
    kinds.sort();
    assert_eq!(kinds, ["after-end", "orphan-content"]);
    test_store.open().collect().expect("collected");
    test_store.assert_intact();
    assert!(test_store.entries(b'P').iter().all(|(key, _)| key[1..9] != 99_u64.to_be_bytes()));
}

#[test]
fn wrong_numbers_of_references_are_mended() {
    let test_store = test_store();
    let (key, mut value) = test_store.entries(b'E').remove(0);
    // The number of references is the last byte of the value.
    *value.last_mut().expect("a value") += 5;
    test_store.change(&key, Some(&value));
    assert_eq!(test_store.kinds(true), ["wrong-references"]);
    test_store.assert_intact();
}

#[test]
fn an_extent_without_references_is_collected() {
    let test_store = test_store();
    let large = test_store.entries(b'N').remove(0);
    for (key, _) in test_store.entries(b'X') {
        test_store.change(&key, None);
    }
    let mut kinds = test_store.kinds(true);
    kinds.sort();
    assert_eq!(kinds, ["wrong-count", "wrong-references", "wrong-references"]);
    assert_ne!(test_store.entries(b'N').remove(0), large);
    assert_eq!(test_store.kinds(false), [""; 0]);
    test_store.open().collect().expect("collected");
    test_store.extents.list(ExtentId(0), &mut |id| panic!("{id:?} remains")).expect("listed");
}

#[test]
fn lost_data_is_reported_and_not_repaired() {
    for damage in 0..4 {
        let test_store = test_store();
        let (extent, _) = test_store.entries(b'E').remove(0);
        let id = ExtentId(u64::from_be_bytes(*extent.last_chunk().expect("a number")));
        let expected = match damage {
            0 => {
                test_store.extents.remove(id).expect("removed");
                ProblemKind::MissingExtent
            }
            1 => {
                test_store.extents.write(id, &[1; 10]).expect("written");
                ProblemKind::DamagedExtent
            }
            2 => {
                test_store.change(&extent, None);
                ProblemKind::UnknownExtent
            }
            _ => {
                let (name, _) = test_store.entries(b'N').remove(0);
                test_store.change(&name, Some(&[0xFF]));
                ProblemKind::DamagedEntry
            }
        };
        let problems = test_store.problems(true);
        let found = problems.iter().find(|problem| problem.kind == expected);
        let found = found.unwrap_or_else(|| panic!("{expected:?} is not in {problems:?}"));
        assert!(!found.is_repairable);
        if damage < 3 {
            assert_eq!(found.name.as_deref(), Some(&b"large"[..]));
        }
        assert!(test_store.problems(false).iter().any(|problem| problem.kind == expected), "it was repaired");
    }
}

#[test]
fn nothing_is_removed_while_an_entry_is_damaged() {
    for tag in [b'N', b'X'] {
        let test_store = test_store();
        let (key, value) = test_store.entries(tag).pop().expect("an entry");
        test_store.change(&key, Some(&[0xFF]));
        let problems = test_store.problems(true);
        assert!(problems.len() > 1, "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.is_repairable), "{problems:?}");
        // After the entry is restored, as from a backup, all data is present.
        test_store.change(&key, Some(&value));
        test_store.open().collect().expect("collected");
        test_store.assert_intact();
    }
}

#[test]
fn random_damage_of_entries_never_panics() {
    let mut random = quell_testkit::Random::new(5);
    for _ in 0..500 {
        let test_store = test_store();
        for tag in [b'N', b'P', b'X', b'E', b'M'] {
            let mut entries = test_store.entries(tag);
            let (key, mut value) = entries.swap_remove(random.below(entries.len()));
            if random.one_in(2) && !value.is_empty() {
                let position = random.below(value.len());
                value[position] = random.number() as u8;
            } else {
                let length = random.below(20);
                value = random.bytes(length);
            }
            test_store.change(&key, Some(&value));
        }
        let _ = test_store.problems(true);
        let store = OpenStore::open(
            test_store.tables.clone(),
            test_store.extents.clone(),
            Arc::new(NoClock),
            Options::default(),
        );
        if let Ok(store) = store {
            let mut into = vec![0; 1000];
            for name in [&b"large"[..], b"small"] {
                let _ = store.snapshot().read(name, 49_900, &mut into);
                let write = Operation::Write { name: name.to_vec(), offset: 49_000, data: vec![1; 40_000] };
                let _ = store.commit(Transaction { operations: vec![write], ..Transaction::default() });
                let delete = Operation::Delete { name: name.to_vec() };
                let _ = store.commit(Transaction { operations: vec![delete], ..Transaction::default() });
            }
            let _ = store.collect();
        }
    }
}

#[test]
fn the_technique_page_lists_all_kinds() {
    let page = include_str!("../../../docs/techniques/blob.md");
    let listed: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | ").map(|(name, _)| name))
        .filter(|name| !name.contains('/'))
        .collect();
    let kinds: Vec<&str> = ProblemKind::ALL.iter().map(|kind| kind.identifier()).collect();
    assert_eq!(listed, kinds);
}
