//! Messages between the nodes of a job: refused, or equal after they were encoded again; and the
//! text of a meeting point.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_job::Advertisement;
use quell_wire::job::{BLOCK_BYTES, FileState, Reply, Request, block_bytes};
use quell_wire::{decode, encode};

fuzz_target!(|data: &[u8]| {
    if let Ok(request) = decode::<Request<'_>>(data) {
        assert_eq!(decode::<Request<'_>>(&encode(&request)).unwrap(), request);
        if let Request::SharedBlock(id) = request {
            for size_bytes in [0, 1, u64::MAX] {
                assert!(block_bytes(size_bytes, id.block) <= BLOCK_BYTES);
            }
        }
    }
    if let Ok(reply) = decode::<Reply<'_>>(data) {
        assert_eq!(decode::<Reply<'_>>(&encode(&reply)).unwrap(), reply);
        if let Reply::Files(files) = reply {
            for file in files.iter().filter(|file| file.is_bounded()) {
                if let FileState::Open(file) = file {
                    let last = file.blocks().saturating_sub(1);
                    assert_eq!(file.block_bytes(last) == 0, file.size_bytes == 0);
                }
            }
        }
    }
    if let Some(found) = Advertisement::decode(data) {
        let again = Advertisement::decode(found.encode().as_bytes()).unwrap();
        assert_eq!((again.addresses, again.key.0), (found.addresses, found.key.0));
    }
});
