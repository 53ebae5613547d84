//! Messages of a pool: refused, or equal after they were encoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_wire::pool::{Change, Operation, PeerMessage, ReplicaMessage, Reply};
use quell_wire::{Failure, decode, decode_first, encode};

fuzz_target!(|data: &[u8]| {
    if let Ok(operation) = decode::<Operation<'_>>(data) {
        assert_eq!(decode::<Operation<'_>>(&encode(&operation)).unwrap(), operation);
    }
    if let Ok((_, changes)) = decode_first::<ReplicaMessage>(data)
        && let Ok((change, _)) = decode_first::<Change<'_>>(changes)
    {
        assert_eq!(decode::<Change<'_>>(&encode(&change)).unwrap(), change);
    }
    if let Ok(request) = decode::<PeerMessage<'_>>(data) {
        assert_eq!(decode::<PeerMessage<'_>>(&encode(&request)).unwrap(), request);
    }
    if let Ok(result) = decode::<Result<Reply<'_>, Failure>>(data) {
        assert_eq!(decode::<Result<Reply<'_>, Failure>>(&encode(&result)).unwrap(), result);
        let _ = result.map_err(|failure| failure.into_error("read", b"").to_string());
    }
});
