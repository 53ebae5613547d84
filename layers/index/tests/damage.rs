//! Tests that modified bytes with corrected checksums are either refused, or give an image on which
//! every method can be called. A bounded run of the fuzz targets in fuzz/.

mod every_method;

use std::sync::Arc;

use quell_index::{BuildOptions, BuildProgress, Image, Xattrs, build, encode, format, reseal};
use quell_testkit::operations::{Shape, random_tree};
use quell_testkit::{MemoryDir, Random};

fn good_bytes(seed: u64) -> Vec<u8> {
    let shape = Shape { entries: 12 + seed as usize % 30, extremes: seed.is_multiple_of(2), xattrs: true };
    let source = Arc::new(MemoryDir::new(Arc::new(random_tree(seed, shape))));
    let exclude = vec!["*.tmp".to_owned(), "a/b".to_owned()];
    let options = BuildOptions { xattrs: Xattrs::Always, exclude, ..Default::default() };
    let mut tree = build(source, b"/tree", &options, 1, None, &BuildProgress::default()).unwrap();
    tree.problems.push(quell_index::Problem { path: b"some/path".to_vec(), errno: 13 });
    encode(&tree).unwrap()
}

/// Returns a number that is likely to be a corner case.
fn interesting(random: &mut Random, bytes: &[u8]) -> u64 {
    let entries = u64::from_le_bytes(bytes[48..56].try_into().unwrap());
    let length = bytes.len() as u64;
    *random.pick(&[
        0,
        1,
        2,
        7,
        8,
        9,
        12,
        255,
        entries.wrapping_sub(1),
        entries,
        entries.wrapping_add(1),
        length,
        length - 1,
        u64::from(u32::MAX),
        u64::from(u32::MAX) - 1,
        1 << 32,
        1 << 63,
        u64::MAX,
        i64::MAX as u64,
    ])
}

/// Makes one to four changes: a bit, a byte, a number, a row copied over another, a word of the
/// header or table.
fn tamper(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = match random.below(4) {
            0 => 48 + random.below(format::PREAMBLE_BYTES - 48),
            _ => format::PREAMBLE_BYTES + random.below(bytes.len() - format::PREAMBLE_BYTES),
        };
        let number = interesting(random, bytes);
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.number() as u8,
            2 => {
                let at = at & !3;
                bytes[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
            }
            3 => {
                let at = at & !7;
                bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            _ => {
                let from = format::PREAMBLE_BYTES + random.below(bytes.len() - format::PREAMBLE_BYTES - 16);
                let to = (at & !7).min(bytes.len() - 16);
                bytes.copy_within((from & !7)..(from & !7) + 16, to);
            }
        }
    }
    reseal(bytes);
}

#[test]
fn tampered_bytes_are_refused_or_read_without_panic() {
    let (mut refused, mut accepted) = (0, 0);
    for seed in 0..40 {
        let good = good_bytes(seed);
        let mut random = Random::new(seed);
        for round in 0..80 {
            let mut bytes = good.clone();
            tamper(&mut bytes, &mut random);
            match Image::parse(bytes) {
                Err(damage) => {
                    assert!(
                        !damage.what.is_empty() && !damage.section.is_empty(),
                        "seed {seed}, round {round}"
                    );
                    refused += 1;
                }
                Ok(image) => {
                    every_method::call_every_method(image);
                    accepted += 1;
                }
            }
        }
    }
    // Both outcomes must occur often.
    assert!(refused > 500 && accepted > 150, "{refused} refused, {accepted} accepted");
}

#[test]
fn unchanged_bytes_are_accepted_and_resealing_changes_nothing() {
    for seed in 0..20 {
        let good = good_bytes(seed);
        let mut again = good.clone();
        reseal(&mut again);
        assert!(good == again);
        every_method::call_every_method(Image::parse(good).unwrap());
    }
    reseal(&mut [0; 100]);
    reseal(&mut [0xff; 696]);
}

#[test]
fn every_truncation_is_refused() {
    let good = good_bytes(3);
    for length in 0..good.len() {
        let mut cut = good[..length].to_vec();
        assert!(Image::parse(cut.clone()).is_err(), "{length} bytes");
        reseal(&mut cut);
        // With corrected checksums, only an image without its trailing zeros may be accepted.
        if let Ok(image) = Image::parse(cut) {
            assert!(good[length..].iter().all(|b| *b == 0), "{length} bytes");
            every_method::call_every_method(image);
        }
    }
}
