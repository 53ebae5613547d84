//! Properties of directories on this machine, from which `quell profile` computes the costs of
//! trees.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quell_profile::Directories;

/// Operations to list a directory: it is opened and read.
const OPERATIONS_TO_LIST: u64 = 2;
/// Number of entries of which a listing takes one more operation.
const ENTRIES_PER_OPERATION: u64 = 1000;
/// Permission of other users to write.
const OTHERS_WRITE: u32 = 0o002;

/// Lists directories of this machine, unless the traces are from another one.
pub struct DirectoriesOfThisMachine {
    pub are_listed: bool,
}

impl Directories for DirectoriesOfThisMachine {
    fn listing(&mut self, directory: &[u8], except: &[Vec<u8>], operations_max: u64) -> Option<u64> {
        if !self.are_listed {
            return None;
        }
        let (mut operations, mut entries) = (0, 0);
        let mut unread = vec![PathBuf::from(OsStr::from_bytes(directory))];
        while let Some(path) = unread.pop() {
            operations += OPERATIONS_TO_LIST;
            // The type is part of the listing, and links are not followed.
            for entry in fs::read_dir(&path).ok()? {
                let entry = entry.ok()?;
                entries += 1;
                if entry.file_type().ok()?.is_dir() {
                    let below = entry.path();
                    if !except.iter().any(|path| path == below.as_os_str().as_bytes()) {
                        unread.push(below);
                    }
                }
                let known = operations + entries / ENTRIES_PER_OPERATION;
                if known + unread.len() as u64 * OPERATIONS_TO_LIST > operations_max {
                    return None;
                }
            }
        }
        Some(operations + entries / ENTRIES_PER_OPERATION)
    }

    fn is_own(&mut self, directory: &[u8]) -> bool {
        let found = fs::symlink_metadata(Path::new(OsStr::from_bytes(directory)));
        self.are_listed
            && found.is_ok_and(|found| {
                found.uid() == rustix::process::geteuid().as_raw() || found.mode() & OTHERS_WRITE != 0
            })
    }
}
