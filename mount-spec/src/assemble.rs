//! Assembles an index and a directory as a file system.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_boot::{BootImage, HotSet, Recorder, RecorderFs};
use quell_index::{Image, IndexFs, OnChange, Rules};
use quell_posix::{Dir, PosixDir};
use quell_vfs::{FileSystem, Result};

/// One tree that is ready to be mounted.
pub struct Covered {
    /// The index.
    pub image: Arc<Image>,
    /// The tree as the index describes it.
    pub fs: Arc<dyn FileSystem>,
    /// The tree's blocks in a boot image. The view decides whether they are served from memory or
    /// from files.
    pub hot: Option<HotSet>,
    /// The path of the tree's data on this node, without symbolic links.
    pub source_path: PathBuf,
    source: Arc<PosixDir>,
}

impl std::fmt::Debug for Covered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Covered");
        shown.field("image", &self.image).field("hot", &self.hot).field("source_path", &self.source_path);
        shown.finish_non_exhaustive()
    }
}

impl Covered {
    /// Returns the tree with a boot image of the same generation.
    pub fn with_boot_image(self, boot: BootImage) -> Covered {
        let hot = Some(HotSet::new(boot, &*self.fs));
        Covered { hot, ..self }
    }

    /// Returns the tree with a recorder, which records all reads.
    pub fn with_recorder(self) -> (Covered, Arc<Recorder>) {
        let recorder = Recorder::new();
        let fs = Arc::new(RecorderFs::new(self.fs.clone(), recorder.clone()));
        (Covered { fs, ..self }, recorder)
    }

    /// Returns the tree's root, for the checks of its freshness.
    pub fn source(&self) -> Arc<dyn Dir> {
        self.source.clone()
    }
}

/// Opens the tree at `source`. Must be called before the tree is covered.
pub fn cover(image: Arc<Image>, source: &Path, on_change: OnChange, rules: Rules) -> Result<Covered> {
    let dir = Arc::new(PosixDir::start(source)?);
    // The kernel returns the path of the opened directory, even if the path now refers to another
    // directory.
    let opened_path = fs::read_link(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()));
    let source_path = opened_path.unwrap_or_else(|_| source.into());
    let fs = Arc::new(IndexFs::with_rules(image.clone(), dir.clone(), on_change, rules));
    Ok(Covered { image, fs, hot: None, source_path, source: dir })
}

/// Returns whether a user namespace hides the owners of some files from this process.
pub fn owners_are_hidden() -> bool {
    let map = |path| fs::read_to_string(path).unwrap_or_default();
    let whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    !whole(map("/proc/self/uid_map")) || !whole(map("/proc/self/gid_map"))
}

/// Returns whether a file is a regular file that belongs to root and that no other user can write
/// to.
pub fn belongs_to_root(file: &fs::File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|found| found.is_file() && found.uid() == 0 && found.mode() & 0o022 == 0)
}
