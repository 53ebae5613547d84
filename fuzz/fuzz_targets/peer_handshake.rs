//! Reads the bytes of a handshake between daemons: they are refused, or encoded as they were.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| quell_transport::peer::fuzzing::check_handshake(bytes));
