//! The blocks that a boot image adds to a view.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use quell_boot::{RecordedBlocks, RecordedFilesLayer};
use quell_fuse::Session;
use quell_index::InodeNumbers;
use quell_mount_spec::Covered;
use quell_vfs::{NodeId, Result};

use crate::resources::processors;
use crate::view::options::ViewOptions;

/// The blocks that a boot image added to a view.
#[derive(Debug)]
pub struct BootBlocks {
    /// The blocks that the view's process serves.
    pub recorded: Arc<RecordedBlocks>,
    /// Number of whole files, which are in the tmpfs.
    pub whole_files: u64,
    /// Number of bytes that were written to the kernel's page cache.
    pub cached_bytes: u64,
}

impl BootBlocks {
    /// Fills the kernel's page cache with the recorded blocks, so that most reads cause no request.
    /// Blocks that are read when they are needed reach the page cache at that time. `numbers`: the
    /// numbers of nodes in the session, unless they are those of the tree.
    pub fn cached(
        recorded: Arc<RecordedBlocks>,
        session: &mut Session,
        mount: &OwnedFd,
        covered: &Covered,
        numbers: Option<&InodeNumbers>,
    ) -> BootBlocks {
        if recorded.is_in_ranges() {
            return BootBlocks { recorded, whole_files: 0, cached_bytes: 0 };
        }
        let number_of = |node| numbers.map_or(node, |numbers| numbers.number_of(node));
        let file = |node| Some((number_of(node), covered.fs.path(node).ok()?));
        let files: Vec<_> = recorded.nodes().filter_map(file).collect();
        let node_of = |number: NodeId| numbers.map_or(Ok(number), |numbers| numbers.inner_node(number));
        let cached_bytes = session.fill_cache(
            mount,
            &files,
            &|number, visit| recorded.pieces_of(node_of(number)?, visit),
            processors(),
        );
        BootBlocks { recorded, whole_files: 0, cached_bytes }
    }
}

/// A data layer with the files whose blocks are in this process's memory.
pub struct RecordedLayer {
    pub boot_blocks: BootBlocks,
    /// `None` if there are no such files.
    pub mount: Option<(OwnedFd, Session)>,
}

impl RecordedLayer {
    /// Mounts the layer with FUSE.
    pub fn new(
        covered: &Covered,
        recorded: Arc<RecordedBlocks>,
        whole_files: u64,
        view_options: &ViewOptions<'_>,
    ) -> Result<RecordedLayer> {
        if recorded.nodes().len() == 0 {
            return Ok(RecordedLayer {
                boot_blocks: BootBlocks { recorded, whole_files, cached_bytes: 0 },
                mount: None,
            });
        }
        let options = quell_fuse::Options {
            // Opens need no request. An error of opening a file is returned by the first read that
            // needs a block from it.
            no_open: true,
            ..view_options.fuse(true)
        };
        let layer = Arc::new(RecordedFilesLayer::new(covered.fs.clone(), recorded.clone()));
        let (mount, mut session) = quell_fuse::mount_detached(layer, &options)?;
        let boot_blocks =
            BootBlocks { whole_files, ..BootBlocks::cached(recorded, &mut session, &mount, covered, None) };
        Ok(RecordedLayer { boot_blocks, mount: Some((mount, session)) })
    }
}
