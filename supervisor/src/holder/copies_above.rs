//! The copies of the directories above the trees of a view (`--above copy`). They are listed before
//! the trees are opened, because many file systems send attributes with the names, so that the path
//! of the tree needs no further request. They are attached before the views.

use std::os::fd::OwnedFd;
use std::path::Path;

use quell_overlay::{CopiedDirectories, attach_below};
use quell_vfs::Result;

use crate::display::shown;
use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::mount_table::mount_table;
use crate::protocol::plan::{Target, TreesPlan};

/// The maximum number of entries of the copied directories of one file system. Each entry beside a
/// tree takes a mount, and most of them a request.
const ENTRIES_MAX: usize = 256;

/// The directories that will be copied.
#[derive(Default)]
pub struct CopiesAbove {
    /// One for each file system.
    directories: Vec<CopiedDirectories>,
}

/// The copies, while views are attached to them.
#[derive(Default)]
pub struct AttachedCopies {
    copies: Vec<(CopiedDirectories, OwnedFd)>,
}

impl CopiesAbove {
    /// Lists the directories above the tree at `path`, if the plan says so. If that is not
    /// possible, a message is printed, and the directories are used as they are; with --strict this
    /// is a failure.
    pub fn list(
        &mut self,
        context: &HolderContext,
        plan: &TreesPlan,
        path: &Path,
    ) -> std::result::Result<(), Failure> {
        if !plan.copies_above || !matches!(context.plan.target, Target::Namespace) {
            return Ok(());
        }
        let Some(mount_point) = mount_point_above(path) else {
            let reason = "they are on the root file system, which cannot be covered";
            return not_copied(context, path, reason);
        };
        let known = self.directories.iter().position(|known| known.mount_point() == mount_point);
        let position = known.unwrap_or_else(|| {
            self.directories.push(CopiedDirectories::below(&mount_point, ENTRIES_MAX));
            self.directories.len() - 1
        });
        let directories = &mut self.directories[position];
        match context.waiting.watch(path, || directories.list_above(path)) {
            Ok(()) => Ok(()),
            Err(e) => {
                if known.is_none() {
                    self.directories.pop();
                }
                not_copied(context, path, &e.to_string())
            }
        }
    }

    /// Attaches the copies, in the namespace of the view. `trees` are the paths that will be
    /// covered.
    pub fn attach(
        mut self,
        context: &HolderContext,
        trees: &[&Path],
        keeps_owners: bool,
    ) -> std::result::Result<AttachedCopies, Failure> {
        // A file system that is mounted inside another one is covered after it.
        self.directories.sort_by_key(|directories| directories.mount_point().components().count());
        let mut copies = Vec::new();
        for directories in self.directories {
            let mount_point = directories.mount_point();
            match context.waiting.watch(mount_point, || directories.prepare(trees, keeps_owners)) {
                Ok(prepared) => {
                    let attached = prepared.attach()?;
                    copies.push((directories, attached));
                }
                Err(e) => not_copied(context, mount_point, &e.to_string())?,
            }
        }
        Ok(AttachedCopies { copies })
    }
}

impl AttachedCopies {
    /// Attaches the mount of a view to the copy of the directory above `path`. Returns `false` if
    /// that directory was not copied.
    pub fn attach_view(&self, mount: &OwnedFd, path: &Path) -> Result<bool> {
        let copied = |(directories, _): &&(CopiedDirectories, OwnedFd)| {
            path.parent().is_some_and(|parent| directories.contains(parent))
        };
        let Some((directories, copies)) = self.copies.iter().find(copied) else { return Ok(false) };
        let below = path.strip_prefix(directories.mount_point()).unwrap_or(path);
        attach_below(mount, copies, below).map(|()| true)
    }

    /// Returns the paths of the copied directories.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.copies.iter().flat_map(|(directories, _)| directories.paths())
    }
}

/// Returns the mount point of the file system above `path`, unless it is the root directory.
fn mount_point_above(path: &Path) -> Option<std::path::PathBuf> {
    let above = mount_table().ok()?.into_iter().map(|mount| mount.point);
    let above = above.filter(|point| path.starts_with(point) && path != point);
    above.max_by_key(|point| point.components().count()).filter(|point| point.parent().is_some())
}

fn not_copied(context: &HolderContext, path: &Path, reason: &str) -> std::result::Result<(), Failure> {
    let message = format!("the directories above {} are not copied: {reason}", shown(path));
    if context.plan.strict {
        return Err(Failure::cannot(message));
    }
    context.print(&message);
    Ok(())
}
