//! The placement map of several stores: refused, or it says where each name goes, and is written down again as it was. The first
//! byte says whether the checksum is put right, which gets to the checks behind it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    quell_log::questions::map(bytes, choice % 2 == 1);
});
