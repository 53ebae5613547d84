//! Files of a tree that the node's holder process has in memory: the index, and the whole files of
//! a boot image. A program that opens such a file gets a descriptor of the file in memory, and the
//! tree's file system receives no request. fstat(2) on the descriptor finds the original's
//! attributes by the inode number of the file in memory, so that no table of descriptors is
//! needed: the descriptors may be duplicated, inherited and sent to other processes.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_mount_spec::SharedFiles;
use quell_vfs::NodeId;

/// The device of all files in memory; 0 if no tree has such files.
static DEVICE: AtomicU64 = AtomicU64::new(0);

/// The nodes of one tree by the inodes of their files in memory.
#[derive(Default)]
pub struct NodesByInode(OnceLock<Vec<(u64, NodeId)>>);

impl NodesByInode {
    /// Records the files of a tree.
    pub fn set(&self, files: &SharedFiles) {
        if !files.is_empty() {
            self.0.get_or_init(|| files.nodes_by_inode());
        }
    }

    /// Returns the node whose file in memory has this inode.
    pub fn node(&self, inode: u64) -> Option<NodeId> {
        let nodes = self.0.get()?;
        let at = nodes.binary_search_by_key(&inode, |(inode, _)| *inode).ok()?;
        Some(nodes[at].1)
    }
}

/// Records the device of the files in memory. The trees need not be open.
pub fn expect(device: u64) {
    DEVICE.store(device, Ordering::Relaxed);
}

/// Returns whether there can be files in memory.
pub fn is_used() -> bool {
    DEVICE.load(Ordering::Relaxed) != 0
}

/// Returns whether a file with this device number may be in memory.
pub fn is_device(device: u64) -> bool {
    let known = DEVICE.load(Ordering::Relaxed);
    known != 0 && known == device
}

/// Maps a sealed file for the life of the process.
pub fn map(file: &File) -> Option<&'static [u8]> {
    let length = usize::try_from(file.metadata().ok()?.len()).ok().filter(|length| *length > 0)?;
    // SAFETY: the caller has checked the seals of the file, so neither its bytes nor its length can
    // change. The mapping is never removed.
    unsafe {
        let address =
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if address == libc::MAP_FAILED {
            return None;
        }
        Some(std::slice::from_raw_parts(address.cast(), length))
    }
}
