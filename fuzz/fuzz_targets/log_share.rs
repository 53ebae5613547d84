//! A share of an index, as processes exchange them: refused, or all of its extents lie in frames of its logs, and it is written
//! down again as it was. The first byte says whether head and checksums are put right, which gets to the checks behind them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    quell_log::questions::share(bytes, choice % 2 == 1);
});
