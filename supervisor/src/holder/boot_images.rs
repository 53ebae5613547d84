//! Adds boot images to trees.

use std::path::{Path, PathBuf};

use quell_boot::{BootImage, ImageKind, MemoryEstimate};
use quell_mount_spec::{OpenBoot, Ownership, TrustedUse};

use crate::display::{counted, shown};
use crate::failure::Failure;
use crate::holder::checked_tree::CheckedTree;
use crate::holder::handshake::HolderContext;
use crate::inputs::InputFile;
use crate::protocol::plan::{BootPlan, Target};
use crate::protocol::transfer::OpenFiles;
use crate::resources::{MemoryBudget, check_available};
use crate::trust::check_input_trust;

/// A boot image of a plan.
pub struct OpenImage {
    path: PathBuf,
    /// The image, of which only the tables were read, and its file.
    opened: Result<(OpenBoot, InputFile), Failure>,
}

/// Opens the boot images of a plan that are not open yet, and reads their tables. This needs no
/// tree, so it can be done while the trees are opened: on a shared file system, each request takes
/// at least the latency of the network.
///
/// `files`: files that are open.
pub fn open_boot_images(context: &HolderContext, boot: &BootPlan, mut files: OpenFiles) -> Vec<OpenImage> {
    let open = |path: &PathBuf| {
        let opened = open_boot_image(context, path, files.remove(path));
        OpenImage { path: path.clone(), opened }
    };
    boot.images().iter().map(open).collect()
}

fn open_boot_image(
    context: &HolderContext,
    path: &Path,
    opened: Option<InputFile>,
) -> Result<(OpenBoot, InputFile), Failure> {
    let file = match opened {
        Some(file) => file,
        None => InputFile::open(path)?,
    };
    let opened = file.file.try_clone().map_err(|e| Failure::cannot(format!("{}: {e}", shown(path))))?;
    let begin = || OpenBoot::begin(Some(opened), path, |bytes| check_available(path, bytes));
    let open = context.waiting.watch_read(&file.file, path, begin)?;
    Ok((open, file))
}

/// Assigns each boot image to the tree with its index. Without `--strict`, an image that cannot be
/// used is reported and left out, and the tree is served without it.
pub fn add_boot_images(
    context: &HolderContext,
    boot: &BootPlan,
    images: Vec<OpenImage>,
    trees: &mut Vec<CheckedTree>,
) -> Result<(), Failure> {
    if images.is_empty() {
        return Ok(());
    }
    let mut budget = MemoryBudget::new(boot.budget_mib());
    for OpenImage { path, opened } in images {
        let added = opened.and_then(|opened| add_boot_image(context, &path, opened, &mut budget, trees));
        if let Err(failure) = added {
            if context.plan.strict || failure.is_final() {
                return Err(failure);
            }
            context.print(&format!("{failure}; the boot image is not used"));
        }
    }
    Ok(())
}

/// Returns the position of the tree that an image belongs to: the one whose index has the
/// generation of the image, or else the one in which most of its files are unchanged.
fn tree_of(boot: &BootImage, trees: &[CheckedTree]) -> Option<usize> {
    let is_of = |tree: &CheckedTree| boot.kind() == ImageKind::Tree(tree.covered.image.generation().0);
    trees.iter().position(is_of).or_else(|| {
        let valid = |tree: &CheckedTree| tree.covered.validity(boot).valid_files;
        let (position, files) = trees.iter().map(valid).enumerate().rev().max_by_key(|(_, files)| *files)?;
        (files > 0).then_some(position)
    })
}

/// Reserves memory for an image. Returns whether its blocks are kept in memory: otherwise they do
/// not fit, and are read from the file of the image when they are needed.
fn reserve(
    context: &HolderContext,
    path: &Path,
    boot: &BootImage,
    budget: &mut MemoryBudget,
) -> Result<bool, Failure> {
    // Programs open the files of an image themselves, so all of them must be in memory, and unread
    // blocks are not used.
    let is_for_processes = matches!(context.plan.target, Target::Processes);
    // While the image is decoded, at most this part of its file is in memory too.
    let refusal = match budget.reserve(path, boot.serving_bytes(), boot.read_part_bytes()) {
        Ok(()) => {
            // These frames do not decide whether the other blocks are kept in memory.
            let unread_bytes = MemoryEstimate::of_image(boot).unread_bytes;
            if !is_for_processes && unread_bytes > 0 {
                budget.reserve_ranges(path, unread_bytes)?;
            }
            return Ok(true);
        }
        Err(refusal) => refusal,
    };
    if is_for_processes {
        return Err(refusal);
    }
    budget.reserve_ranges(path, MemoryEstimate::of_image(boot).ranges_bytes)?;
    if context.plan.verbose {
        context.print(&format!("{refusal}; its blocks are read from it when they are needed"));
    }
    Ok(false)
}

fn add_boot_image(
    context: &HolderContext,
    path: &Path,
    (open, file): (OpenBoot, InputFile),
    budget: &mut MemoryBudget,
    trees: &mut Vec<CheckedTree>,
) -> Result<(), Failure> {
    let boot = &open.image;
    if boot.kind() == ImageKind::Disk {
        let message = format!("{} is a boot image of a disk image: use it with --image", shown(path));
        return Err(Failure::wrong_input(message));
    }
    let Some(position) = tree_of(boot, trees) else {
        return Err(Failure::wrong_input(format!(
            "{} belongs to another index, or to an older state of this one in which every file was different: \
             record it again",
            shown(path)
        )));
    };
    let covered = &trees[position].covered;
    let owner = Ownership::from(&covered.source().stat_self()?);
    let tree = Some((&*covered.source_path, &owner));
    check_input_trust(&context.plan.trusted(), &file, TrustedUse::BootImage, tree)?;
    if covered.recorded.is_some() {
        return Err(Failure::wrong_input(format!(
            "{} is the second boot image of {}: merge the two with `quell boot merge`",
            shown(path),
            shown(&covered.source_path)
        )));
    }
    let in_memory = reserve(context, path, boot, budget)?;
    let (messages, name) = (context.messages.clone(), shown(path).to_string());
    let (boot, image_file) = open.in_ranges(move |error| {
        messages.print(&format!(
            "{name}: {error}; blocks that cannot be read from the boot image are read from the tree"
        ));
    });
    let mut tree = trees.swap_remove(position);
    tree.covered = match in_memory {
        true => tree.covered.with_boot_image_and_unread(boot, image_file),
        false => tree.covered.with_boot_image_in_ranges(boot, image_file),
    };
    tree.boot_file = Some(file);
    let stale = tree.covered.recorded.as_ref().map_or(0, |recorded| recorded.stale().len());
    if stale > 0 {
        context.print(&format!(
            "{} of {} changed after the recording and are served from the tree; to serve them from memory, run \
             `quell record --update --changed`",
            counted(stale as u64, "file", "files"),
            shown(path)
        ));
    }
    trees.push(tree);
    Ok(())
}
