//! The copies of the directories above the trees of a view (`--above copy`). They are listed before
//! the trees are opened, because many file systems send attributes with the names, so that the path
//! of the tree needs no further request. They are attached before the views.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use quell_overlay::{CopiedDirectories, NotCopied, attach_below};
use quell_vfs::Result;

use crate::display::shown;
use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::inputs::InputFile;
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
    /// Lists the directories above the tree at `path`, if the plan says so. If a directory cannot
    /// be listed, a message is printed, and only the directories that were listed before it are
    /// copied; with --strict this is a failure. `open_files` may be entries of the directories.
    pub fn list(
        &mut self,
        context: &HolderContext,
        plan: &TreesPlan,
        path: &Path,
        open_files: &[&InputFile],
    ) -> std::result::Result<(), Failure> {
        if !plan.copies_above || !matches!(context.plan.target, Target::Namespace) {
            return Ok(());
        }
        let Some(mount_point) = mount_point_above(path) else {
            return not_copied(
                context,
                format!(
                    "the directories above {} are not copied: they are on the root file system, which cannot be covered",
                    shown(path)
                ),
            );
        };
        let known = self.directories.iter().position(|known| known.mount_point() == mount_point);
        let position = known.unwrap_or_else(|| {
            self.directories.push(CopiedDirectories::below(&mount_point, ENTRIES_MAX));
            self.directories.len() - 1
        });
        let directories = &mut self.directories[position];
        let listed = context.waiting.watch(path, || directories.list_above(path));
        for file in open_files {
            directories.use_open_file(file.file.as_fd());
        }
        if directories.paths().next().is_none() {
            self.directories.remove(position);
        }
        listed.or_else(|first| not_copied(context, not_listed(path, &mount_point, &first)))
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
        for mut directories in self.directories {
            let mount_point = directories.mount_point().to_owned();
            match context.waiting.watch(&mount_point, || directories.prepare(trees, keeps_owners)) {
                Ok(prepared) => {
                    if let [first, others @ ..] = prepared.foreign_links() {
                        let others = match others.len() {
                            0 => String::new(),
                            number => format!(" and {number} others"),
                        };
                        context.print(&format!(
                            "the view leaves out symbolic links of other users: {}{others}",
                            shown(first)
                        ));
                    }
                    let attached = prepared.attach()?;
                    copies.push((directories, attached));
                }
                Err(e) => not_copied(
                    context,
                    format!("the directories above trees in {} are not copied: {e}", shown(&mount_point)),
                )?,
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

/// Returns the message about directories above `tree` that cannot be listed.
fn not_listed(tree: &Path, mount_point: &Path, first: &NotCopied) -> String {
    let tree = shown(tree);
    let reason = match &first.error {
        Some(e) => e.to_string(),
        None if first.path == mount_point => {
            format!("{} has more than {ENTRIES_MAX} entries", shown(mount_point))
        }
        None => format!(
            "together with {}, the directories have more than {ENTRIES_MAX} entries",
            shown(&first.path)
        ),
    };
    match first.path.parent().filter(|_| first.path != mount_point) {
        Some(last) => {
            format!("the directories above {tree} are copied only down to {}: {reason}", shown(last))
        }
        None => format!("the directories above {tree} are not copied: {reason}"),
    }
}

fn not_copied(context: &HolderContext, message: String) -> std::result::Result<(), Failure> {
    if context.plan.strict {
        return Err(Failure::cannot(message));
    }
    context.print(&message);
    Ok(())
}
