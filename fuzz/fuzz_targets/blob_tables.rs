//! Tables of a store of blobs. Lists and reads of its blobs succeed or return an error. A repair
//! leaves no problem that it could have repaired, and no blob is lost.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use quell_blob_service::{MemoryExtents, OpenStore, Options, check};
use quell_fuzz::NoClock;
use quell_kv::{Batch, KeyValue, MemoryStore};
use quell_wire::decode;

fuzz_target!(|data: &[u8]| {
    let Ok(entries) = decode::<Vec<(Vec<u8>, Vec<u8>)>>(data) else { return };
    let (tables, extents) = (Arc::new(MemoryStore::new()), Arc::new(MemoryExtents::default()));
    let mut batch = Batch::new();
    for (key, value) in &entries {
        batch.put(key, value);
    }
    if tables.commit(batch).is_err() {
        return; // a key or a value is too long
    }
    let mut problems = 0;
    let before = check(&*tables, &*extents, true, &mut |_| problems += 1).unwrap();
    let mut repairable = Vec::new();
    let after = check(&*tables, &*extents, false, &mut |problem| {
        if problem.is_repairable {
            repairable.push(problem);
        }
    });
    // Contents that a repair marks are removed by the store, so they are no problem any more.
    assert!(repairable.is_empty(), "{problems} problems before, now {repairable:?}");
    assert_eq!(after.unwrap().blobs, before.blobs);
    let Ok(store) = OpenStore::open(tables, extents, Arc::new(NoClock), Options::default()) else { return };
    let snapshot = store.snapshot();
    let mut names = Vec::new();
    let _ = snapshot.list(b"", b"", &mut |name, stat| {
        names.push((name.to_vec(), stat));
        names.len() < 100
    });
    for (name, stat) in names {
        let mut into = [0; 1000];
        let _ = snapshot.read(&name, 0, &mut into);
        let _ = snapshot.read(&name, stat.size_bytes.saturating_sub(500), &mut into);
        let _ = snapshot.next_data(&name, 1);
    }
    let _ = store.collect();
});
