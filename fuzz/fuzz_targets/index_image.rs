//! Decodes raw bytes as an index: it is refused, or every request to it is answered.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_index::Image;

#[path = "../../layers/index/tests/every_method/mod.rs"]
mod every_method;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = Image::parse(bytes.to_vec()) {
        every_method::call_every_method(image);
    }
});
