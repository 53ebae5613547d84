//! The sample: the comparison of a few entries of a tree with its index, before a run.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_index::{Difference, Image, Sampler};
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of metadata operations of a sample.
const OPERATIONS: u32 = 8;
/// As `OPERATIONS`, if this node has just checked the tree: many launches in a row must not cause a
/// metadata storm.
const OPERATIONS_AGAIN: u32 = 2;
const STAMP_VALID_FOR: Duration = Duration::from_secs(60);
const STAMP_PREFIX: &str = "checked-";

/// Compares a sample. A stamp in the runtime directory, whose age is the time since the tree was
/// last found equal to this generation of its index, makes the next samples smaller.
pub fn sample(
    runtime_directory: &Path,
    image: &Image,
    source: &Path,
    sampler: &mut Sampler,
) -> Vec<Difference> {
    let stamp = stamp_path(runtime_directory, image, source);
    let (mut differences, mut compared) = (Vec::new(), 0);
    let age = std::fs::metadata(&stamp).and_then(|metadata| metadata.modified()).map(|at| at.elapsed());
    // A stamp with a time in the future is ignored.
    let operations = match age {
        Ok(Ok(age)) if age < STAMP_VALID_FOR => {
            sampler.skip_path_to_fullest();
            OPERATIONS_AGAIN
        }
        _ => OPERATIONS,
    };
    // For a tree with fewer entries, the number of steps is the number of entries.
    for _ in 0..operations.min(image.entries()) {
        // An error of the file system is no difference; the program gets the same error.
        if let Ok(difference) = sampler.step() {
            compared += 1;
            differences.extend(difference);
        }
    }
    differences.dedup();
    tracing::debug!(compared, differences = differences.len(), "compared a sample of the tree");
    sweep_stamps(&stamp);
    // If the stamp cannot be written, the next start makes more requests, and nothing else changes.
    let _ = match (differences.is_empty(), operations) {
        (true, OPERATIONS) if compared > 0 => {
            File::options().write(true).create(true).truncate(true).mode(0o600).open(stamp).map(drop)
        }
        (true, _) => Ok(()),
        (false, _) => std::fs::remove_file(stamp),
    };
    differences
}

fn stamp_path(runtime_directory: &Path, image: &Image, source: &Path) -> PathBuf {
    let text = [image.generation().to_string().as_bytes(), source.as_os_str().as_bytes()].concat();
    runtime_directory.join(format!("{STAMP_PREFIX}{:016x}", xxh3_64(&text)))
}

/// Removes all expired stamps, except `except`.
fn sweep_stamps(except: &Path) {
    let entries = except.parent().and_then(|directory| std::fs::read_dir(directory).ok());
    for entry in entries.into_iter().flatten().flatten() {
        let is_stamp = entry.file_name().to_str().is_some_and(|name| name.starts_with(STAMP_PREFIX));
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if is_stamp && entry.path() != except && age().is_none_or(|age| age >= STAMP_VALID_FOR) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
