//! A tree in memory: directories seven levels deep, files below them, names as in software trees.
//! It is the same in every run.

#![allow(dead_code)] // each benchmark uses a different part

use quell_index::{Image, Listing, Special, Tree, encode};
use quell_posix::Stat;
use quell_vfs::Time;

/// Number of child directories of each directory, by level: 14,655 in total, 8,000 of them with
/// files.
const FAN_OUT: [u32; 7] = [5, 5, 5, 4, 4, 2, 2];

fn record(directory: bool, number: u64) -> Stat {
    let time = |n: u64| Time { seconds: 1_700_000_000 + (n % 4096) as i64, nanoseconds: 0 };
    Stat {
        mode: if directory { 0o040_755 } else { 0o100_644 },
        uid: 1000,
        gid: 100,
        nlink: if directory { 2 } else { 1 },
        rdev: 0,
        size_bytes: if directory { 4096 } else { number % 100_000 },
        blocks: if directory { 8 } else { (number % 100_000).div_ceil(4096) * 8 },
        modified: time(number),
        changed: time(number),
        device: 1,
        inode: number,
        mount_root: false,
    }
}

/// Returns a tree of `entries` entries, at least 15,000, with the files evenly distributed over the
/// deepest directories.
pub fn tree(entries: u64) -> Tree {
    let leaves: u64 = FAN_OUT.iter().map(|n| u64::from(*n)).product();
    let directories: u64 = FAN_OUT
        .iter()
        .scan(1, |level, n| {
            *level *= u64::from(*n);
            Some(*level)
        })
        .sum();
    let files = entries - 1 - directories;
    let mut listings = vec![Listing::default()];
    let mut level = vec![0u32];
    let mut number = 1;
    for fan_out in FAN_OUT {
        let mut next = Vec::new();
        for listing in level {
            for i in 0..fan_out {
                let below = listings.len() as u32;
                listings.push(Listing::default());
                let own = &mut listings[listing as usize];
                let name = format!("package_{i:02}");
                let child = own.push(name.as_bytes(), record(true, number));
                own.push_special(child, Special::Listing(below));
                next.push(below);
                number += 1;
            }
        }
        level = next;
    }
    for (i, listing) in level.into_iter().enumerate() {
        let more = u64::from((i as u64) < files % leaves);
        for file in 0..files / leaves + more {
            let name = format!("module_{:03}.cpython-313.pyc", file);
            listings[listing as usize].push(name.as_bytes(), record(false, number));
            number += 1;
        }
    }
    for listing in &mut listings {
        listing.seal();
    }
    Tree {
        root_path: b"/synthetic".to_vec(),
        root: record(true, 0),
        root_specials: vec![Special::Listing(0)],
        listings,
        problems: Vec::new(),
        options: Vec::new(),
        xattrs_skipped: false,
    }
}

pub fn image(entries: u64) -> Image {
    Image::parse(encode(&tree(entries)).expect("it is not too large")).expect("what we encode we read")
}

/// Returns this process's resident memory in bytes.
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}
