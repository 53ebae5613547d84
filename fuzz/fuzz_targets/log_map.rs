//! Decodes a placement map: it is refused, or each name has a store in use, and the map is encoded
//! as it was. If the first byte is odd, the checksum is corrected first, so that the later checks
//! are reached.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    quell_log::fuzzing::check_map(bytes, choice % 2 == 1);
});
