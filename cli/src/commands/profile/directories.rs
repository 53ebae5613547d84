//! Properties of directories on this machine, from which `quell profile` computes the costs of
//! trees.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_posix::{Dir, PosixDir};
use quell_profile::Directories;
use quell_vfs::Kind;

/// Operations to list a directory: it is opened and read.
const OPERATIONS_TO_LIST: u64 = 2;
/// The number of entries after which a listing takes one more operation.
const ENTRIES_PER_OPERATION: u64 = 1000;
/// Permission of other users to write.
const OTHERS_WRITE: u32 = 0o002;

/// The maximum number of operations of all listings together.
const ALL_OPERATIONS_MAX: u64 = 20_000;

/// Lists directories of this machine, unless the traces are from another one.
pub struct DirectoriesOfThisMachine<'a> {
    are_listed: bool,
    /// The number of operations that may still be used.
    operations_left: u64,
    interrupted: &'a AtomicBool,
}

/// A directory to list. It is opened below its parent, so that no name above it is looked up again
/// and no link is followed.
struct Unread {
    parent: Arc<dyn Dir>,
    path: Vec<u8>,
}

impl<'a> DirectoriesOfThisMachine<'a> {
    /// `interrupted` ends the listing.
    pub fn new(are_listed: bool, interrupted: &'a AtomicBool) -> DirectoriesOfThisMachine<'a> {
        DirectoriesOfThisMachine { are_listed, operations_left: ALL_OPERATIONS_MAX, interrupted }
    }

    fn list(
        &self,
        directory: &[u8],
        except: &[Vec<u8>],
        operations_max: u64,
        operations: &mut u64,
    ) -> Option<()> {
        let mut entries = 0;
        let root = PosixDir::open(Path::new(OsStr::from_bytes(directory))).ok()?;
        let mut next: Option<(Arc<dyn Dir>, Vec<u8>)> = Some((Arc::new(root), directory.to_vec()));
        let mut unread: Vec<Unread> = Vec::new();
        while let Some((dir, path)) = next {
            let listed = *operations + OPERATIONS_TO_LIST;
            let mut is_over = false;
            // The kind is part of the listing on most file systems.
            dir.visit(&mut |name, kind| {
                entries += 1;
                let kind = kind.or_else(|| dir.stat(name).ok()?.kind());
                let below = [&path, &b"/"[..], name].concat();
                if kind == Some(Kind::Dir) && !except.contains(&below) {
                    unread.push(Unread { parent: dir.clone(), path: below });
                }
                *operations = listed + entries / ENTRIES_PER_OPERATION;
                is_over = *operations + unread.len() as u64 * OPERATIONS_TO_LIST > operations_max
                    || self.interrupted.load(Ordering::Relaxed);
                !is_over
            })
            .ok()?;
            *operations = listed;
            if is_over {
                return None;
            }
            next = match unread.pop() {
                None => None,
                Some(Unread { parent, path }) => {
                    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                    Some((parent.open_dir(name).ok()?, path))
                }
            };
        }
        *operations += entries / ENTRIES_PER_OPERATION;
        Some(())
    }
}

impl Directories for DirectoriesOfThisMachine<'_> {
    fn listing(&mut self, directory: &[u8], except: &[Vec<u8>], operations_max: u64) -> Option<u64> {
        if !self.are_listed {
            return None;
        }
        let mut operations = 0;
        let listed = self.list(directory, except, operations_max.min(self.operations_left), &mut operations);
        self.operations_left = self.operations_left.saturating_sub(operations);
        listed.map(|()| operations)
    }

    fn is_own(&mut self, directory: &[u8]) -> bool {
        let found = fs::symlink_metadata(Path::new(OsStr::from_bytes(directory)));
        self.are_listed
            && found.is_ok_and(|found| {
                found.uid() == rustix::process::geteuid().as_raw() || found.mode() & OTHERS_WRITE != 0
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_counted_limited_and_interrupted() {
        let temp = tempfile::tempdir().unwrap();
        let (root, interrupted) = (temp.path().canonicalize().unwrap(), AtomicBool::new(false));
        for name in ["a/b", "a/c", "d"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(root.join("a/file"), "").unwrap();
        std::os::unix::fs::symlink("..", root.join("d/link")).unwrap();
        let name = root.as_os_str().as_bytes();
        let except = vec![root.join("a/c").into_os_string().into_encoded_bytes()];
        let mut directories = DirectoriesOfThisMachine::new(true, &interrupted);
        assert_eq!(directories.listing(name, &[], 100), Some(10), "five directories");
        assert_eq!(directories.listing(name, &except, 100), Some(8));
        assert_eq!(directories.listing(name, &[], 9), None);
        directories.operations_left = 9;
        assert_eq!(directories.listing(name, &[], 100), None, "the limit of all listings");
        let mut directories = DirectoriesOfThisMachine::new(true, &interrupted);
        interrupted.store(true, Ordering::Relaxed);
        assert_eq!(directories.listing(name, &[], 100), None);
    }
}
