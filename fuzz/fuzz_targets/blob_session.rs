//! Requests of clients of a store of blobs, of one with all rights and of one with the rights of a
//! key. Each request gets a reply of at most the size that the client accepts, the session keeps
//! nothing after its end, and the store has no damage. The client with the key neither changes nor
//! reads other blobs.
#![no_main]

use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use quell_blob_service::{
    ClientId, MemoryExtents, OpenStore, Options, Permissions, SessionLimits, Sessions, check,
};
use quell_fuzz::NoClock;
use quell_kv::MemoryStore;
use quell_wire::blob::{Access, Grant, KeyDescription, Operation, Reply, Request, Right, Transaction};
use quell_wire::{decode, encode};

const REPLY_BYTES_MAX: usize = 64 << 10;
const CLIENT: ClientId = ClientId(1);
/// A blob for which the key has no right, and its content.
const OTHER: &[u8] = b"other";
const CONTENT: &[u8] = b"of another client";

fuzz_target!(|data: &[u8]| {
    if let Ok(transaction) = decode::<Transaction>(data) {
        assert_eq!(decode::<Transaction>(&encode(&transaction)).unwrap(), transaction);
    }
    if let Ok(reply) = decode::<Reply>(data) {
        assert_eq!(decode::<Reply>(&encode(&reply)).unwrap(), reply);
    }
    if let Ok(key) = KeyDescription::decode(data) {
        assert_eq!(KeyDescription::decode(&encode(&key)).unwrap(), key);
    }
    let Ok(requests) = decode::<Vec<Request>>(data) else { return };
    execute(&requests, Permissions::all());
    let grant = |right, prefix: &[u8]| Grant { right, prefix: prefix.to_vec() };
    let grants = vec![grant(Right::Read, b"a"), grant(Right::Write, b"a"), grant(Right::Write, b"n")];
    let key = KeyDescription { access: Access::Grants(grants), expires_s: None };
    let (store, replies) = execute(&requests, Permissions::of_key(&key.encode().unwrap()).unwrap());
    let contains = |bytes: &[u8]| bytes.windows(CONTENT.len()).any(|part| part == CONTENT);
    assert!(contains(data) || !replies.iter().any(|reply| contains(reply)));
    let snapshot = store.snapshot();
    let mut content = [0; 2 * CONTENT.len()];
    assert_eq!(snapshot.read(OTHER, 0, &mut content).unwrap(), CONTENT.len());
    assert_eq!(&content[..CONTENT.len()], CONTENT);
    let visit: &mut dyn FnMut(&[u8], _) -> bool = &mut |name: &[u8], _| {
        assert!(name == OTHER || name.starts_with(b"a") || name.starts_with(b"n"));
        true
    };
    snapshot.list(b"", b"", visit).unwrap();
});

/// Executes requests of a client, on a store with a blob of another one. Returns the store and the
/// replies.
fn execute(requests: &[Request], permissions: Permissions) -> (OpenStore, Vec<Vec<u8>>) {
    let (tables, extents) = (Arc::new(MemoryStore::new()), Arc::new(MemoryExtents::default()));
    let store =
        OpenStore::open(tables.clone(), extents.clone(), Arc::new(NoClock), Options::default()).unwrap();
    let name = OTHER.to_vec();
    let operations = vec![
        Operation::Create { name: name.clone(), may_exist: false },
        Operation::Write { name, offset: 0, data: CONTENT.to_vec() },
    ];
    store.commit(Transaction { operations, ..Transaction::default() }).unwrap();
    let sessions = Arc::new(Sessions::new(store.clone(), SessionLimits::default()));
    let permissions = Arc::new(permissions);
    let mut replies = Vec::new();
    for request in requests.iter().take(100) {
        let reply = Arc::new(Mutex::new(None));
        let replied = reply.clone();
        let replied = Box::new(move |bytes| *replied.lock().unwrap() = Some(bytes));
        sessions.execute(CLIENT, &permissions, &encode(request), REPLY_BYTES_MAX, replied);
        while store.commit_pending() {}
        let bytes = reply.lock().unwrap().take().expect("a reply");
        assert!(bytes.len() <= REPLY_BYTES_MAX, "{} bytes", bytes.len());
        decode::<Reply>(&bytes).expect("the reply has its format");
        replies.push(bytes);
    }
    sessions.end(CLIENT);
    assert_eq!((sessions.snapshots(), sessions.kept_bytes()), (0, 0));
    drop(sessions);
    check(&*tables, &*extents, false, &mut |problem| panic!("{problem:?}")).unwrap();
    (store, replies)
}
