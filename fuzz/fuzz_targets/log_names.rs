//! Decodes names in a container and in a store, one per line: they are ignored, or encoded as they
//! were.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|lines: &[u8]| quell_log::fuzzing::check_names(lines));
