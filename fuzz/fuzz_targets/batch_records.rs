//! Decodes bytes as each kind of record of a store for batches, and as an entry: they are refused,
//! or encoded as they were.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| quell_batch_service::fuzzing::check_records(bytes));
