//! Passes frames without protection to the state of a connection between daemons, which refuses
//! them or keeps its bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| quell_transport::peer::fuzzing::check_frames(bytes));
