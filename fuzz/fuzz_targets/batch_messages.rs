//! Messages of the server of a store for batches, and descriptions of the keys of users: refused,
//! or equal after they were encoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_batch_service::{Reply, Request, UserKey};
use quell_wire::{decode, encode};

fuzz_target!(|data: &[u8]| {
    if let Ok(request) = decode::<Request>(data) {
        let _ = request.is_within_limits();
        assert_eq!(decode::<Request>(&encode(&request)).unwrap(), request);
    }
    if let Ok(reply) = decode::<Reply>(data) {
        assert_eq!(decode::<Reply>(&encode(&reply)).unwrap(), reply);
    }
    if let Some(key) = UserKey::decode(data) {
        assert_eq!(key.encode(), data);
    }
});
