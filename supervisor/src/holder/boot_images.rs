//! Adds boot images to trees.

use std::path::Path;

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

/// Assigns each boot image to the tree with its index. Without `--strict`, an image that cannot be
/// used is reported and left out, and the tree is served without it.
pub fn add_boot_images(
    context: &HolderContext,
    boot: &BootPlan,
    trees: &mut Vec<CheckedTree>,
    files: &mut OpenFiles,
) -> Result<(), Failure> {
    if boot.images().is_empty() {
        return Ok(());
    }
    let mut budget = MemoryBudget::new(boot.budget_mib());
    for path in boot.images() {
        if let Err(failure) = add_boot_image(context, path, files.remove(path), &mut budget, trees) {
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
    // While the image is decoded, its file is in memory too.
    let refusal = match budget.reserve(path, boot.serving_bytes(), boot.file_bytes()) {
        Ok(()) => return Ok(true),
        Err(refusal) => refusal,
    };
    // Programs open the files of an image themselves, so all of them must be in memory.
    if matches!(context.plan.target, Target::Processes) {
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
    opened: Option<InputFile>,
    budget: &mut MemoryBudget,
    trees: &mut Vec<CheckedTree>,
) -> Result<(), Failure> {
    let file = match opened {
        Some(file) => file,
        None => InputFile::open(path)?,
    };
    let opened = file.file.try_clone().map_err(|e| Failure::cannot(format!("{}: {e}", shown(path))))?;
    let begin = || OpenBoot::begin(Some(opened), path, |bytes| check_available(path, bytes));
    let open = context.waiting.watch_read(&file.file, path, begin)?;
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
    if covered.hot.is_some() {
        return Err(Failure::wrong_input(format!(
            "{} is the second boot image of {}: merge the two with `quell boot merge`",
            shown(path),
            shown(&covered.source_path)
        )));
    }
    let in_memory = reserve(context, path, boot, budget)?;
    let mut tree = trees.swap_remove(position);
    tree.covered = match in_memory {
        true => {
            let boot = context.waiting.watch_read(&file.file, path, || open.read_frames())?;
            tree.covered.with_boot_image(boot)
        }
        false => {
            let (messages, name) = (context.messages.clone(), shown(path).to_string());
            let (boot, file) = open.in_ranges(move |error| {
                messages.print(&format!(
                    "{name}: {error}; blocks that cannot be read from the boot image are read from the tree"
                ));
            });
            tree.covered.with_boot_image_in_ranges(boot, file)
        }
    };
    let stale = tree.covered.hot.as_ref().map_or(0, |hot| hot.stale().len());
    if stale > 0 {
        context.print(&format!(
            "{} of {} changed after the recording and are served from the tree; to serve them from memory, run \
             `quell record --update`",
            counted(stale as u64, "file", "files"),
            shown(path)
        ));
    }
    trees.push(tree);
    Ok(())
}
