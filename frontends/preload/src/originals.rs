//! Finds the original of a file in memory by the device and inode of the file in memory.

use libc::c_int;
use quell_vfs::NodeId;

use crate::guard::{inside, is_inside};
use crate::next;
use crate::shared_memory::{is_device, is_used};
use crate::view::{self, VirtualDir};

/// Returns the tree and the node of a file in memory. The descriptor may be inherited, so the tree
/// is opened if necessary.
pub fn find(device: u64, inode: u64) -> Option<(&'static VirtualDir, NodeId)> {
    if !is_device(device) {
        return None;
    }
    let trees = view::dirs().iter().filter(|dir| dir.is_tree() && dir.is_served());
    trees.filter(|dir| dir.fs().is_ok()).find_map(|dir| Some((dir, dir.nodes_by_inode.node(inode)?)))
}

/// Returns the tree and the node of a descriptor's file, if it is in memory. The number may be
/// invalid.
pub fn of_descriptor(fd: c_int) -> Option<(&'static VirtualDir, NodeId)> {
    if !is_used() || is_inside() {
        return None;
    }
    let found = inside(|| {
        // SAFETY: the structure consists of integers, for which zero bytes are valid, and the
        // system call accepts any number.
        let (found, result) = unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            let result = next::system_call()(libc::SYS_fstat, fd, &raw mut found);
            (found, result)
        };
        Ok(if result == 0 { find(found.st_dev, found.st_ino) } else { None })
    });
    found.unwrap_or(None)
}
