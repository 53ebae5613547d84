//! Decodes the certificate of a batch: it is refused, or encoded as it was. If the first byte is
//! odd, the checksum is corrected first.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    quell_batch_service::fuzzing::check_certificate(bytes, choice % 2 == 1);
});
