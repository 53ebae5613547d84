//! Decodes a batch of an index log: it is refused, or encoded as it was. If the first byte is odd,
//! the checksum is corrected first, so that the later checks are reached.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    quell_log::fuzzing::check_batch(bytes, choice % 2 == 1);
});
