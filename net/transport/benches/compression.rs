//! Measures the algorithms that connections can use for their payloads, and for comparison writes
//! and reads of the same blocks in a file, as a program accesses the chunks of its node:
//! `cargo bench -p quell-transport --bench compression [FILTER]`.
//!
//! The file is in `QUELL_BENCH_DIR` (default `$TMPDIR`), and its data is in the page cache. Rates
//! are for one thread, in MiB of uncompressed data per second: the best of at least five rounds of
//! 8 MiB, which take at least 0.5 s together. Each block that was compressed is expanded and
//! compared once.

mod payloads;

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use payloads::{BYTES, KINDS, data};

/// Returns the largest rate of a function that processes all data, in MiB/s.
fn rate(mut treat: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = Duration::MAX;
    for round in 0.. {
        if round >= 5 && begin.elapsed() > Duration::from_millis(500) {
            break;
        }
        let start = Instant::now();
        treat();
        best = best.min(start.elapsed());
    }
    (BYTES >> 20) as f64 / best.as_secs_f64()
}

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let directory = std::env::var_os("QUELL_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let file = tempfile::tempfile_in(directory).expect("a directory for a file");
    println!("{:<32} {:>8} {:>12} {:>12}", "", "size", "write MiB/s", "read MiB/s");
    for block_bytes in [1 << 10, 4 << 10, 8 << 10, 64 << 10, 512 << 10] {
        let block = if block_bytes < 1 << 20 { format!("{} KiB", block_bytes >> 10) } else { "1 MiB".into() };
        if "file".contains(&filter) {
            measure_file(&format!("file, {block}"), &file, block_bytes);
        }
        for kind in KINDS {
            let data = data(kind);
            for algorithm in [Algorithm::Lz4, Algorithm::Zstd(-3), Algorithm::Zstd(1), Algorithm::Zstd(3)] {
                let name = format!("{algorithm:?}, {kind}, {block}");
                if name.contains(&filter) {
                    measure(&name, algorithm, &data, block_bytes);
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Algorithm {
    Lz4,
    Zstd(i32),
}

fn measure(name: &str, algorithm: Algorithm, data: &[u8], block_bytes: usize) {
    let mut output = vec![0; lz4_flex::block::get_maximum_output_size(block_bytes) + 1024];
    let mut expanded = vec![0; block_bytes];
    let level = if let Algorithm::Zstd(level) = algorithm { level } else { 1 };
    let mut compressor = zstd::bulk::Compressor::new(level).expect("memory");
    let mut decompressor = zstd::bulk::Decompressor::new().expect("memory");
    let mut compress = |block: &[u8], output: &mut [u8]| match algorithm {
        Algorithm::Lz4 => lz4_flex::block::compress_into(block, output).expect("the output is large enough"),
        Algorithm::Zstd(_) => {
            compressor.compress_to_buffer(block, output).expect("the output is large enough")
        }
    };
    let mut expand = |block: &[u8], expanded: &mut [u8]| match algorithm {
        Algorithm::Lz4 => lz4_flex::block::decompress_into(block, expanded).expect("it was compressed"),
        Algorithm::Zstd(_) => decompressor.decompress_to_buffer(block, expanded).expect("it was compressed"),
    };
    let blocks: Vec<Vec<u8>> = data
        .chunks(block_bytes)
        .map(|block| {
            let bytes = compress(block, &mut output);
            assert_eq!(expand(&output[..bytes], &mut expanded), block.len());
            assert!(expanded == block);
            output[..bytes].to_vec()
        })
        .collect();
    let compressed_bytes: usize = blocks.iter().map(Vec::len).sum();
    let compress = rate(|| {
        for block in data.chunks(block_bytes) {
            black_box(compress(block, &mut output));
        }
    });
    let expand = rate(|| {
        for block in &blocks {
            black_box(expand(block, &mut expanded));
        }
    });
    let size = compressed_bytes as f64 / data.len() as f64;
    println!("{name:<32} {size:>8.2} {compress:>12.0} {expand:>12.0}");
}

/// Measures pwrite(2) and pread(2) of existing blocks.
fn measure_file(name: &str, file: &File, block_bytes: usize) {
    let data = data("random");
    let write = rate(|| {
        for (number, block) in data.chunks(block_bytes).enumerate() {
            file.write_all_at(block, (number * block_bytes) as u64).expect("space");
        }
    });
    let mut block = vec![0; block_bytes];
    let read = rate(|| {
        for number in 0..BYTES / block_bytes {
            file.read_exact_at(&mut block, (number * block_bytes) as u64).expect("it was written");
        }
    });
    println!("{name:<32} {:>8.2} {write:>12.0} {read:>12.0}", 1.0);
}
