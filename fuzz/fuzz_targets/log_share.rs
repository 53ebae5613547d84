//! Decodes a share of an index: it is refused, or all of its extents lie in frames of its logs, and
//! it is encoded as it was. If the first byte is odd, the header and the checksums are corrected
//! first, so that the later checks are reached.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    quell_log::fuzzing::check_share(bytes, choice % 2 == 1);
});
