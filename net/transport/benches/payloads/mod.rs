//! The data of the benchmarks of compression.

use std::path::Path;

/// The bytes of each kind of data. Requests and blocks are parts of it.
pub const BYTES: usize = 8 << 20;

/// The kinds of data.
pub const KINDS: [&str; 4] = ["text", "field", "floats", "random"];

/// Returns [`BYTES`] bytes of a kind of data:
///
/// - `text`: the Rust sources of this repository, repeated;
/// - `field`: a smooth field with a little noise, as numbers of 32 bits, as simulations write it;
/// - `floats`: normally distributed numbers of 32 bits, as the weights of a neural network are;
/// - `random`: bytes that cannot be compressed.
pub fn data(kind: &str) -> Vec<u8> {
    let mut random = Random(7);
    let mut bytes = Vec::with_capacity(BYTES + 64);
    match kind {
        "text" => {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            while bytes.len() < BYTES {
                add_sources(&root, &mut bytes);
            }
        }
        "field" => {
            for i in 0..BYTES / 4 {
                let (x, y) = ((i % 1024) as f64 / 1024.0, (i / 1024) as f64 / 1024.0);
                let value = 280.0 + 20.0 * (3.0 * x).sin() * (2.0 * y).cos() + 0.001 * random.unit();
                bytes.extend((value as f32).to_le_bytes());
            }
        }
        "floats" => {
            for _ in 0..BYTES / 4 {
                // The sum of 12 numbers that are distributed evenly has the variance 1.
                let value = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
                bytes.extend((0.02 * value as f32).to_le_bytes());
            }
        }
        _ => (0..BYTES / 8).for_each(|_| bytes.extend(random.next().to_le_bytes())),
    }
    bytes.truncate(BYTES);
    bytes
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Returns a number from 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn add_sources(directory: &Path, bytes: &mut Vec<u8>) {
    let entries = std::fs::read_dir(directory).expect("a directory of the repository");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.is_dir() && !is_hidden && !path.ends_with("target") {
            add_sources(&path, bytes);
        } else if path.extension().is_some_and(|extension| extension == "rs") && bytes.len() < BYTES {
            bytes.extend(std::fs::read(&path).expect("a source"));
        }
    }
}
