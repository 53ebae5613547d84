//! Tests of the stores through their public interface.

mod conformance;
mod disk_store;
mod full_disk;
mod killed;
mod model;

use std::path::Path;

use quell_kv::{Batch, DiskOptions, DiskStore, KeyRange, KeyValue};

/// Options with which a few hundred entries fill write buffers.
fn small() -> DiskOptions {
    DiskOptions {
        write_buffer_bytes: 64 << 10,
        cache_bytes: 1 << 20,
        reserve_bytes: 0,
        ..DiskOptions::default()
    }
}

fn open(path: &Path) -> DiskStore {
    DiskStore::open(path, &small()).unwrap()
}

/// Returns a batch of puts (`Some`) and deletes (`None`).
fn batch(operations: &[(&[u8], Option<&[u8]>)]) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in operations {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
    }
    batch
}

fn put(store: &dyn KeyValue, key: &[u8], value: &[u8]) {
    store.commit(batch(&[(key, Some(value))])).unwrap();
}

fn get(store: &dyn KeyValue, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key).unwrap().map(|value| value.to_vec())
}

/// Returns all entries of a range.
fn entries(store: &dyn KeyValue, range: &KeyRange) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut entries = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        entries.push((key.to_vec(), value.to_vec()));
        true
    };
    store.scan(range, &mut visit).unwrap();
    entries
}

fn keys(store: &dyn KeyValue, range: &KeyRange) -> Vec<String> {
    entries(store, range).into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
}
