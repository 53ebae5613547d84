//! An index and a directory, put together as a file system.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_backing::{Dir, PosixDir};
use quell_boot::{BootImage, HotSet, Recorder, RecorderFs};
use quell_fs::{FileSystem, Result};
use quell_index::{Image, IndexFs, OnChange, Rules};

/// One tree, ready to be mounted.
pub struct Covered {
    pub image: Arc<Image>,
    pub fs: Arc<dyn FileSystem>,
    /// What a boot image has of it. A view decides where that is served from.
    pub hot: Option<HotSet>,
    /// Where the tree's data is on this node, without symbolic links.
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
    /// The same, with a boot image of this generation to serve blocks of.
    pub fn heated(self, boot: BootImage) -> Covered {
        let hot = Some(HotSet::new(boot, &*self.fs));
        Covered { hot, ..self }
    }

    /// The same, with all that is read of it recorded.
    pub fn recorded(self) -> (Covered, Arc<Recorder>) {
        let recorder = Recorder::new();
        let fs = Arc::new(RecorderFs::new(self.fs.clone(), recorder.clone()));
        (Covered { fs, ..self }, recorder)
    }

    /// The tree's root, for looks at its freshness.
    pub fn source(&self) -> Arc<dyn Dir> {
        self.source.clone()
    }
}

/// Opens the tree at `source`, which must happen before it is covered.
pub fn cover(image: Arc<Image>, source: &Path, on_change: OnChange, rules: Rules) -> Result<Covered> {
    let dir = Arc::new(PosixDir::start(source)?);
    // The kernel knows where the directory is that was opened, whatever the name leads to by now.
    let place = fs::read_link(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()));
    let source_path = place.unwrap_or_else(|_| source.into());
    let fs = Arc::new(IndexFs::with_rules(image.clone(), dir.clone(), on_change, rules));
    Ok(Covered { image, fs, hot: None, source_path, source: dir })
}

/// Whether a user namespace hides some owners from this process, which sees another one in their place.
pub fn owners_are_hidden() -> bool {
    let map = |path| fs::read_to_string(path).unwrap_or_default();
    let whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    !whole(map("/proc/self/uid_map")) || !whole(map("/proc/self/gid_map"))
}

/// Whether root answers for what a file says: it is root's, and no other user can change it.
pub fn belongs_to_root(file: &fs::File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|found| found.is_file() && found.uid() == 0 && found.mode() & 0o022 == 0)
}
