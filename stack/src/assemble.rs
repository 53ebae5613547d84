//! An index and a directory, put together as a file system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_backing::{Dir, PosixDir};
use quell_fs::Result;
use quell_index::{Image, IndexFs, OnChange};

/// One tree, ready to be mounted.
#[derive(Debug)]
pub struct Covered {
    pub image: Arc<Image>,
    pub fs: Arc<IndexFs>,
    /// Where the tree's data is on this node.
    pub source_path: PathBuf,
    source: Arc<PosixDir>,
}

impl Covered {
    /// The tree's root, for looks at its freshness.
    pub fn source(&self) -> Arc<dyn Dir> {
        self.source.clone()
    }
}

/// Opens the tree at `source`, which must happen before it is covered.
pub fn cover(image: Arc<Image>, source: &Path, on_change: OnChange) -> Result<Covered> {
    let dir = Arc::new(PosixDir::start(source)?);
    let fs = Arc::new(IndexFs::new(image.clone(), dir.clone(), on_change));
    Ok(Covered { image, fs, source_path: source.into(), source: dir })
}
