//! Reads a table of a store for batches: it is refused, or its entries are encoded as they were. If
//! the first byte is odd, the checksums are corrected first, so that the later checks are reached.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    quell_batch_service::fuzzing::check_table(bytes, choice % 2 == 1);
});
