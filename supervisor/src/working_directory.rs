//! The working directory of a program in a view. A program must start in the directory in which its
//! user started it. A view is therefore not entered if that directory does not exist in it, or if
//! the path refers to another directory there.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, fstat, stat, statx};

use crate::display::shown;
use crate::failure::Failure;
use crate::socket::client::ViewDirectory;

/// The link to the working directory; it needs no lookup of the names above, and no search
/// permission there.
const LINK: &str = "/proc/self/cwd";

/// The directory in which a program was started.
#[derive(Debug)]
pub struct WorkingDirectory {
    /// The path, without symbolic links.
    pub path: PathBuf,
}

impl WorkingDirectory {
    /// Returns the working directory of this process.
    pub fn of_caller() -> Result<WorkingDirectory, Failure> {
        match std::env::current_dir() {
            // The kernel returns a path that is not absolute for a directory that cannot be reached
            // from the root directory.
            Ok(path) if path.is_absolute() => Ok(WorkingDirectory { path }),
            Ok(path) => Err(Failure::cannot(format!(
                "the working directory {} cannot be reached from /, and is not in the view: start in another directory",
                shown(&path)
            ))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Failure::cannot(
                "the working directory has been removed, and is not in the view: start in another directory",
            )),
            Err(e) => Err(Failure::cannot(format!("the working directory has no path: {e}"))),
        }
    }

    /// Returns the same directory in the view, opened.
    pub fn in_view(&self, found: ViewDirectory) -> Result<OwnedFd, Failure> {
        let path = shown(&self.path);
        let ViewDirectory { opened, tree } = found;
        let tree_name = tree.as_ref().map(|tree| shown(&tree.path));
        let directory = opened.map_err(|e| match &tree_name {
            Some(tree) => Failure::cannot(format!(
                "the working directory {path} is not in the view of {tree} ({e}); start in a directory that was indexed, \
                 or bring the index up to date: quell index --update"
            )),
            None => Failure::cannot(format!("the working directory {path} cannot be entered in the view ({e})")),
        })?;
        let is_same = match &tree {
            // The view has its own directories. The directory with the same path is the right one,
            // unless another file system is mounted there, of which the view shows only the mount
            // point.
            Some(tree) => tree.crosses_mounts || is_on_one_mount(&tree.path),
            None => is_same_directory(&directory),
        };
        match (is_same, tree_name) {
            (true, _) => Ok(directory),
            (false, Some(tree)) => Err(Failure::cannot(format!(
                "the working directory {path} lies on a file system that is mounted below {tree}, and is not in the view: start in another directory"
            ))),
            (false, None) => Err(Failure::cannot(format!(
                "the view has another directory at the path of the working directory, {path}: start in another directory"
            ))),
        }
    }
}

/// Returns whether the working directory and `tree` are on the same mount. If the kernel does not
/// return mount ids (before Linux 5.8), the devices are compared.
fn is_on_one_mount(tree: &Path) -> bool {
    let query = |path: &Path| -> Option<Statx> {
        let flags = AtFlags::STATX_DONT_SYNC;
        statx(CWD, path, flags, StatxFlags::MNT_ID | StatxFlags::BASIC_STATS).ok()
    };
    let (Some(here), Some(tree)) = (query(Path::new(LINK)), query(tree)) else { return false };
    let has_mount_id = |found: &Statx| found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    if has_mount_id(&here) && has_mount_id(&tree) {
        return here.stx_mnt_id == tree.stx_mnt_id;
    }
    (here.stx_dev_major, here.stx_dev_minor) == (tree.stx_dev_major, tree.stx_dev_minor)
}

fn is_same_directory(directory: &OwnedFd) -> bool {
    let (Ok(here), Ok(there)) = (stat(LINK), fstat(directory)) else { return false };
    (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
}
