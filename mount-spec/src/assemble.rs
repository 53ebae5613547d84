//! Assembles an index and a directory as a file system.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_boot::{
    BootFs, BootImage, ImageFile, IndexedTree, RecordedFiles, Recorder, RecorderFs, Subject, Validity,
};
use quell_index::{Image, IndexFs, OnChange, Rules, is_indexed_root};
use quell_posix::{Dir, PosixDir};
use quell_vfs::{Error, ErrorKind, FileState, FileSystem, NodeId, Result};

use crate::trust::Ownership;

/// One tree that is ready to be mounted.
pub struct Covered {
    /// The index.
    pub image: Arc<Image>,
    /// The tree as the index describes it.
    pub fs: Arc<dyn FileSystem>,
    /// The tree's blocks in a boot image. The view decides whether they are served from memory or
    /// from files.
    pub recorded: Option<RecordedFiles>,
    /// The path of the tree's data on this node, without symbolic links.
    pub source_path: PathBuf,
    /// The tree without a boot image and without a recorder.
    indexed: Arc<IndexFs>,
    source: Arc<PosixDir>,
    generation: Arc<IndexGeneration>,
}

/// The index of a tree, for the boot layer.
#[derive(Debug)]
struct IndexGeneration {
    image: Arc<Image>,
    is_original: bool,
}

impl IndexedTree for IndexGeneration {
    fn generation(&self) -> u128 {
        self.image.generation().0
    }

    fn inode(&self, node: NodeId) -> u64 {
        // The lower bits of a node are the number of its entry.
        self.image.inode(node.0 as u32).filter(|_| self.image.has_persistent_inodes()).unwrap_or(0)
    }

    fn is_original(&self) -> bool {
        self.is_original
    }
}

impl std::fmt::Debug for Covered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Covered");
        shown
            .field("image", &self.image)
            .field("recorded", &self.recorded)
            .field("source_path", &self.source_path);
        shown.finish_non_exhaustive()
    }
}

impl Covered {
    /// Returns how much of a boot image is valid with the index of this tree.
    pub fn validity(&self, boot: &BootImage) -> Validity {
        Validity::of(boot, &*self.fs, &*self.generation)
    }

    /// Returns the tree with the valid files of a boot image, without its unread blocks.
    pub fn with_boot_image(self, boot: BootImage) -> Covered {
        let recorded = Some(RecordedFiles::new(boot, &*self.fs, &*self.generation));
        Covered { recorded, ..self }
    }

    /// Returns the tree with the valid files of a boot image, whose unread blocks are read from
    /// `file` when they are needed.
    pub fn with_boot_image_and_unread(self, boot: BootImage, file: Arc<dyn ImageFile>) -> Covered {
        let recorded = Some(RecordedFiles::new(boot, &*self.fs, &*self.generation).with_unread(file));
        Covered { recorded, ..self }
    }

    /// Returns the tree with the valid files of a boot image, whose blocks are read from `file`
    /// when they are needed.
    pub fn with_boot_image_in_ranges(self, boot: BootImage, file: Arc<dyn ImageFile>) -> Covered {
        let recorded = Some(RecordedFiles::new(boot, &*self.fs, &*self.generation).in_ranges(file));
        Covered { recorded, ..self }
    }

    /// Returns the tree as the subject of a recording.
    pub fn subject(&self) -> Subject {
        Subject::Tree(self.generation.clone())
    }

    /// Returns the tree with the blocks of its boot image in the memory of this process, below all
    /// views.
    pub fn with_decoded_boot_image(self, threads: usize) -> Result<Covered> {
        let Some(set) = &self.recorded else { return Ok(self) };
        let fs = Arc::new(BootFs::new(self.fs.clone(), set.decode(threads)?));
        Ok(Covered { fs, recorded: None, ..self })
    }

    /// Returns the tree with a recorder, which records all reads.
    pub fn with_recorder(self) -> (Covered, Arc<Recorder>) {
        let recorder = Recorder::new();
        let fs = Arc::new(RecorderFs::new(self.fs.clone(), recorder.clone()));
        (Covered { fs, ..self }, recorder)
    }

    /// Opens a regular file of the tree, and compares it with the index. Returns the state that was
    /// compared.
    ///
    /// # Errors
    /// `Stale` if the file differs; the errors of open(2).
    pub fn open_compared(&self, node: NodeId) -> Result<(File, FileState)> {
        let (file, state) = self.indexed.open_compared(node)?;
        let no_descriptor = || Error::new(ErrorKind::Unsupported, "open", "a file without a descriptor");
        Ok((File::from(file.into_descriptor().ok_or_else(no_descriptor)?), state))
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
    let is_original = is_indexed_root(&image, &dir.stat_self_cached()?);
    let generation = Arc::new(IndexGeneration { image: image.clone(), is_original });
    let indexed = Arc::new(IndexFs::with_rules(image.clone(), dir.clone(), on_change, rules));
    let fs = indexed.clone();
    Ok(Covered { image, fs, recorded: None, source_path, indexed, source: dir, generation })
}

/// Returns whether a user namespace hides the owners of some files from this process.
pub fn owners_are_hidden() -> bool {
    let map = |path| fs::read_to_string(path).unwrap_or_default();
    let whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    !whole(map("/proc/self/uid_map")) || !whole(map("/proc/self/gid_map"))
}

/// Returns whether this is the ownership of a regular file that belongs to root and that no other
/// user can write to.
pub fn belongs_to_root(file: &Ownership) -> bool {
    file.is_regular() && file.uid == 0 && file.mode & 0o022 == 0
}
