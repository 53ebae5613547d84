//! Names in a container and in a store, a line each: they say nothing, or are spelled again as they were.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|lines: &[u8]| quell_log::questions::names(lines));
