//! Random operations on both stores, compared with a map. The seed is in the message of a failure.

use std::collections::BTreeMap;
use std::ops::Bound;

use quell_kv::{Batch, DiskStore, KeyRange, KeyValue, MemoryStore};
use quell_testkit::Random;

use crate::{entries, get, small};

const SEEDS: u64 = 4;
const STEPS: usize = 800;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns a key; there are few of them, so that they repeat, and some are prefixes of others.
fn key(random: &mut Random) -> Vec<u8> {
    let length = 1 + random.below(4);
    (0..length).map(|_| *random.pick(&[0, 1, 127, 255])).collect()
}

fn bound<'a>(random: &mut Random, key: &'a [u8]) -> Bound<&'a [u8]> {
    match random.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn commit(random: &mut Random, store: &dyn KeyValue, model: &mut Model) {
    let mut batch = Batch::new();
    let operations_max = if random.one_in(10) { 40 } else { 5 };
    for _ in 0..random.below(operations_max) {
        let key = key(random);
        if random.one_in(3) {
            batch.delete(&key);
            model.remove(&key);
        } else {
            let bytes_max = if random.one_in(20) { 20_000 } else { 200 };
            let value_bytes = random.below(bytes_max);
            let value = random.bytes(value_bytes);
            batch.put(&key, &value);
            model.insert(key, value);
        }
    }
    store.commit(batch).unwrap();
}

fn compare(random: &mut Random, store: &dyn KeyValue, model: &Model, context: &str) {
    let (first, second) = (key(random), key(random));
    assert_eq!(get(store, &first), model.get(&first).cloned(), "{context}: get {first:?}");
    let (start, end) = (bound(random, &first), bound(random, &second));
    let is_in = |key: &[u8]| {
        let after = match start {
            Bound::Included(start) => key >= start,
            Bound::Excluded(start) => key > start,
            Bound::Unbounded => true,
        };
        after
            && match end {
                Bound::Included(end) => key <= end,
                Bound::Excluded(end) => key < end,
                Bound::Unbounded => true,
            }
    };
    let in_model = |is_in: &dyn Fn(&[u8]) -> bool| -> Vec<_> {
        model.iter().filter(|(key, _)| is_in(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let range = KeyRange::between(start, end);
    assert!(entries(store, &range) == in_model(&is_in), "{context}: scan {range:?}");
    let prefix = &first[..random.below(first.len() + 1)];
    let range = KeyRange::prefix(prefix).after(&second);
    let is_in = |key: &[u8]| key.starts_with(prefix) && key > &second[..];
    assert!(entries(store, &range) == in_model(&is_in), "{context}: scan {range:?}");
}

#[test]
fn a_memory_store_equals_the_model() {
    for seed in 0..SEEDS {
        let (mut random, mut model) = (Random::new(seed), Model::new());
        let mut store = MemoryStore::new();
        for step in 0..STEPS {
            commit(&mut random, &store, &mut model);
            compare(&mut random, &store, &model, &format!("seed {seed}, step {step}"));
            let bytes: usize = model.iter().map(|(key, value)| key.len() + value.len()).sum();
            assert_eq!(store.size_bytes().unwrap(), bytes as u64, "seed {seed}, step {step}");
            if random.one_in(200) {
                store = store.clone();
            }
        }
    }
}

#[test]
fn a_disk_store_equals_the_model_and_keeps_all_entries_when_it_is_closed() {
    for seed in 0..SEEDS {
        let (mut random, mut model) = (Random::new(seed), Model::new());
        let directory = tempfile::tempdir().unwrap();
        let mut store = crate::open(directory.path());
        for step in 0..STEPS {
            commit(&mut random, &store, &mut model);
            compare(&mut random, &store, &model, &format!("seed {seed}, step {step}"));
            if random.one_in(150) {
                match random.one_in(2) {
                    true => store.close().unwrap(),
                    false => drop(store),
                }
                store = DiskStore::open(directory.path(), &small()).unwrap();
            }
        }
    }
}
