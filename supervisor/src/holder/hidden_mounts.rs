//! Mounts below a covered tree that were created after the view: programs in the view see the
//! indexed directory instead. The kernel adds such a mount to the original, which the view covers.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::display::shown;
use crate::failure::Failure;
use crate::holder::messages::Messages;
use crate::mount_table::{MOUNT_TABLE, MountTableEntry, mount_table};
use crate::socket::server::Holder;

/// Number of mounts for which a message is printed.
const MESSAGES_MAX: usize = 8;

/// A covered tree.
#[derive(Debug)]
pub struct Covering {
    /// The directory that was indexed.
    pub source: PathBuf,
    /// The directory at which the view is mounted.
    pub path: PathBuf,
}

/// The mounts below covered trees that programs in the view do not see.
#[derive(Debug)]
pub struct HiddenMounts {
    trees: Vec<Covering>,
    /// The mount table. poll(2) reports an event if the table has changed since the previous call.
    table: File,
    /// The mounts that existed when the view was created, and those that were reported.
    known: HashSet<u64>,
    messages: usize,
}

impl HiddenMounts {
    /// Notes the mounts that exist. `holder` is woken when the mount table changes.
    pub fn watch(trees: Vec<Covering>, holder: &mut Holder) -> Result<HiddenMounts, Failure> {
        let open = || File::open(MOUNT_TABLE).map_err(|e| Failure::cannot(format!("{MOUNT_TABLE}: {e}")));
        let (table, waker) = (open()?, open()?);
        holder.wake_on(waker.into(), PollFlags::PRI);
        let entries = mount_table().map_err(|e| Failure::cannot(format!("{MOUNT_TABLE}: {e}")))?;
        let known = entries.iter().map(|mount| mount.id).collect();
        Ok(HiddenMounts { trees, table, known, messages: 0 })
    }

    /// Prints a message for each new mount below a tree, if the mount table has changed.
    pub fn report_new(&mut self, messages: &Messages) {
        let mut watched = [PollFd::new(&self.table, PollFlags::PRI)];
        let has_changed = poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
        if !has_changed || self.messages == MESSAGES_MAX {
            return;
        }
        let Ok(table) = mount_table() else { return };
        // The id of a removed mount may be used again.
        let present = table.iter().map(|mount| mount.id).collect();
        let known = std::mem::replace(&mut self.known, present);
        for mount in table.iter().filter(|mount| !known.contains(&mount.id)) {
            let tree = self.trees.iter().find(|tree| is_hidden(mount, tree, &table));
            let Some(tree) = tree else { continue };
            if self.messages == MESSAGES_MAX {
                return;
            }
            self.messages += 1;
            messages.print(&format!(
                "{}: a file system ({}) was mounted here after {} was covered, and programs in the view do not see it; \
                 start the program again after indexing the tree with `quell index --cross-mounts`, or without the view",
                shown(&mount.point),
                shown(&mount.kind),
                shown(&tree.source)
            ));
        }
    }
}

/// Returns whether a mount is below a tree, and not in its view.
fn is_hidden(mount: &MountTableEntry, tree: &Covering, table: &[MountTableEntry]) -> bool {
    let is_below = |directory: &Path| mount.point != directory && mount.point.starts_with(directory);
    if is_below(&tree.source) && tree.source != tree.path && !is_below(&tree.path) {
        return true;
    }
    if !is_below(&tree.path) {
        return false;
    }
    let find = |id: u64| table.iter().find(|other| other.id == id);
    // A mount in the view has the mount of the view above it.
    let above = std::iter::successors(find(mount.parent), |above| {
        find(above.parent).filter(|next| next.id != above.id)
    });
    // The table of a process has no cycle; the limit holds for any text.
    !above.take(table.len()).any(|above| above.point == tree.path && above.is_quell())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount_table::parse_mount_table;

    #[test]
    fn a_mount_on_the_original_is_hidden_and_a_mount_in_the_view_is_not() {
        let table = parse_mount_table(
            b"20 1 0:1 / / rw - ext4 /dev/a rw\n\
              30 20 0:2 / /shared rw - fuse.mfs mfs rw\n\
              40 30 0:3 / /shared/env rw - overlay quell:/i.quell rw\n\
              50 30 0:4 / /shared/env/data rw - tmpfs none rw\n\
              60 40 0:5 / /shared/env/tmp rw - tmpfs none rw\n\
              70 60 0:6 / /shared/env/tmp/x rw - tmpfs none rw\n\
              80 30 0:7 / /shared/envelope rw - tmpfs none rw\n",
        );
        let hidden = |source: &str, path: &str| -> Vec<u64> {
            let tree = Covering { source: source.into(), path: path.into() };
            table.iter().filter(|mount| is_hidden(mount, &tree, &table)).map(|mount| mount.id).collect()
        };
        assert_eq!(hidden("/shared/env", "/shared/env"), [50]);
        assert_eq!(hidden("/shared", "/view"), [40, 50, 60, 70, 80], "the view is elsewhere");
    }
}
