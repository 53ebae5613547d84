//! Decodes the verdict of an auxiliary server: it is refused, or encoded as it was.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quell_batch_service::fuzzing::check_verdict(bytes);
});
