//! Executes a block of the operation log of a batch: it is refused, or the entries that it makes
//! are the same after they were stated as operations again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| quell_batch_service::fuzzing::check_operations(bytes));
