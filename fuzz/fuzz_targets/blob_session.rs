//! Requests of a client of a store of blobs. Each one gets a reply of at most the size that the
//! client accepts, the session keeps nothing after its end, and the store has no damage.
#![no_main]

use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use quell_blob_service::{ClientId, MemoryExtents, OpenStore, Options, SessionLimits, Sessions, check};
use quell_fuzz::NoClock;
use quell_kv::MemoryStore;
use quell_wire::blob::{Reply, Request, Transaction};
use quell_wire::{decode, encode};

const REPLY_BYTES_MAX: usize = 64 << 10;
const CLIENT: ClientId = ClientId(1);

fuzz_target!(|data: &[u8]| {
    if let Ok(transaction) = decode::<Transaction>(data) {
        assert_eq!(decode::<Transaction>(&encode(&transaction)).unwrap(), transaction);
    }
    if let Ok(reply) = decode::<Reply>(data) {
        assert_eq!(decode::<Reply>(&encode(&reply)).unwrap(), reply);
    }
    let Ok(requests) = decode::<Vec<Request>>(data) else { return };
    let (tables, extents) = (Arc::new(MemoryStore::new()), Arc::new(MemoryExtents::default()));
    let store =
        OpenStore::open(tables.clone(), extents.clone(), Arc::new(NoClock), Options::default()).unwrap();
    let sessions = Arc::new(Sessions::new(store.clone(), SessionLimits::default()));
    for request in requests.iter().take(100) {
        let reply = Arc::new(Mutex::new(None));
        let replied = reply.clone();
        let replied = Box::new(move |bytes| *replied.lock().unwrap() = Some(bytes));
        sessions.execute(CLIENT, &encode(request), REPLY_BYTES_MAX, replied);
        while store.commit_pending() {}
        let bytes = reply.lock().unwrap().take().expect("a reply");
        assert!(bytes.len() <= REPLY_BYTES_MAX, "{} bytes", bytes.len());
        decode::<Reply>(&bytes).expect("the reply has its format");
    }
    sessions.end(CLIENT);
    assert_eq!((sessions.snapshots(), sessions.kept_bytes()), (0, 0));
    drop((sessions, store));
    check(&*tables, &*extents, false, &mut |problem| panic!("{problem:?}")).unwrap();
});
