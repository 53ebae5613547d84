//! Adds a boot image to the files of a disk image.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_boot::{Disks, Fit, ImageKind, LoadingContents};
use quell_mount_spec::{ChainFile, OpenBoot, Ownership, TrustedUse};

use crate::display::{shown, shown_bytes};
use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::holder::messages::Messages;
use crate::inputs::InputFile;
use crate::protocol::plan::{BootPlan, Target};
use crate::protocol::transfer::OpenFiles;
use crate::resources::MemoryBudget;
use crate::trust::check_input_trust;

/// Number of frames of a boot image that are read at once: a disk with other load serves a single
/// reader slowly.
const FILL_THREADS: usize = 8;

/// A boot image whose blocks are still to be loaded.
pub struct PendingBlocks {
    boot: OpenBoot,
    contents: Arc<LoadingContents>,
    path: PathBuf,
}

impl PendingBlocks {
    /// Loads the blocks in a separate thread. Machines can start meanwhile: a read of a block that
    /// is not loaded yet waits for this block.
    pub fn load(self, messages: &Messages) {
        let messages = messages.clone();
        std::thread::spawn(move || {
            if let Err(e) = self.boot.load(&self.contents, FILL_THREADS) {
                let path = shown(&self.path);
                messages.print(&format!("{path}: {e}; the remaining blocks are not served from memory"));
            }
        });
    }
}

/// Assigns the recorded blocks of a plan's boot image to the files of the disk image. A recorded
/// file that has changed or is missing is reported; with `--strict` it is an error.
pub fn add_boot_image(
    context: &HolderContext,
    boot: &BootPlan,
    files: &mut OpenFiles,
    disks: Disks,
    chain: &[ChainFile],
) -> Result<(Disks, Option<PendingBlocks>), Failure> {
    let Some(path) = boot.images().first() else { return Ok((disks, None)) };
    let is_strict = context.plan.strict;
    let open = match open_boot_image(context, path, boot.budget_mib(), files.remove(path), chain) {
        Ok(open) => open,
        Err(failure) if is_strict || failure.is_final() => return Err(failure),
        Err(failure) => {
            context.print(&format!("{failure}; the boot image is not used"));
            return Ok((disks, None));
        }
    };
    let mut fitting = 0;
    for fit in disks.fits(&open.image) {
        let Some(misfit) = misfit(&fit, path, chain, &context.plan.target) else {
            fitting += usize::from(matches!(fit, Fit::Same { .. }));
            continue;
        };
        if is_strict {
            return Err(Failure::wrong_input(misfit));
        }
        context.print(&format!("{misfit}; the boot image is not used"));
    }
    if fitting == 0 {
        return Ok((disks, None));
    }
    let contents = LoadingContents::new(&open.image);
    let disks = disks.with_image(&open.image, contents.clone());
    if is_strict {
        // Errors in the image are found before a machine starts.
        open.load(&contents, FILL_THREADS)
            .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))?;
        return Ok((disks, None));
    }
    Ok((disks, Some(PendingBlocks { boot: open, contents, path: path.clone() })))
}

fn open_boot_image(
    context: &HolderContext,
    path: &Path,
    budget_mib: Option<u64>,
    opened: Option<InputFile>,
    chain: &[ChainFile],
) -> Result<OpenBoot, Failure> {
    let file = match opened {
        Some(file) => file,
        None => InputFile::open(path)?,
    };
    let disk = chain.first().map(|disk| (&*disk.path, Ownership::from(&disk.stat)));
    let disk = disk.as_ref().map(|(path, owner)| (*path, owner));
    check_input_trust(&context.plan.trusted(), &file, TrustedUse::BootImage, disk)?;
    let mut budget = MemoryBudget::new(budget_mib);
    let open = OpenBoot::begin(Some(file.file), path, |bytes| budget.check_minimum(path, bytes))?;
    let image = &open.image;
    if image.kind() != ImageKind::Disk {
        let message = format!(
            "{} is a boot image of an indexed tree, not of a disk image: use it with -i",
            shown(path)
        );
        return Err(Failure::wrong_input(message));
    }
    // The frames are read and decoded one by one, so no memory for the compressed file is needed.
    budget.reserve(path, image.memory_bytes(), 0)?;
    Ok(open)
}

/// Returns why a file of a boot image is not served from memory, or `None` if it is.
fn misfit(fit: &Fit, boot: &Path, chain: &[ChainFile], target: &Target) -> Option<String> {
    match fit {
        Fit::Same { .. } => None,
        Fit::Changed { position, recorded_path } => {
            let now = &chain[*position].path;
            Some(match now.as_os_str().as_encoded_bytes() == recorded_path {
                true => {
                    format!("{} has changed since {} was recorded: record it again", shown(now), shown(boot))
                }
                false => format!(
                    "{} was recorded from {}, and {} has another size or modification time: it is another disk image, or a copy \
                     with a new time",
                    shown(boot),
                    shown_bytes(recorded_path),
                    shown(now)
                ),
            })
        }
        // A directory shows only files that are named relative to it; the others were already
        // reported.
        Fit::Absent { .. } if matches!(target, Target::Mountpoint { .. }) && !chain.is_empty() => None,
        Fit::Absent { recorded_path } => Some(format!(
            "{} was recorded from a disk image with the backing file {}: {} has no such backing file",
            shown(boot),
            shown_bytes(recorded_path),
            shown(&chain[0].path)
        )),
    }
}
