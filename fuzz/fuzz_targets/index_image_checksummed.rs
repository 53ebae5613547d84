//! Decodes bytes as an index after correcting the start of the header and the checksums, so that
//! the later checks are reached.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_index::{Image, format, reseal};

#[path = "../../layers/index/tests/every_method/mod.rs"]
mod every_method;

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() < format::PREAMBLE_BYTES {
        return;
    }
    let mut bytes = bytes.to_vec();
    bytes[..8].copy_from_slice(&format::MAGIC);
    bytes[8..12].copy_from_slice(&format::VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(format::PREAMBLE_BYTES as u32).to_le_bytes());
    for (i, section) in format::Section::ALL.into_iter().enumerate() {
        let row = format::HEADER_BYTES + i * format::SECTION_ROW_BYTES;
        bytes[row..row + 4].copy_from_slice(&(section as u32).to_le_bytes());
    }
    reseal(&mut bytes);
    if let Ok(image) = Image::parse(bytes) {
        every_method::call_every_method(image);
    }
});
