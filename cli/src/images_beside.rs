//! The boot images beside an index that was updated, and how much of each is still valid.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_boot::{ImageKind, Validity};
use quell_index::{Generation, Image, OnChange, Rules};
use quell_mount_spec::{Covered, OpenBoot};
use quell_supervisor::check_available;

use crate::failure::Failure;
use crate::inputs::{shown, text_of};
use crate::output::{counted, outln};

/// Number of boot images that are read.
const IMAGES_MAX: usize = 64;

/// A boot image of a tree, with the part that is valid with the tree's index.
pub struct ImageBeside {
    path: PathBuf,
    validity: Validity,
}

/// Returns the boot images among the files `*.boot` in the directory of an index, sorted by name,
/// that were recorded with the older generation of the index or have valid files. Files of every
/// owner are read, because only numbers are printed. Files that cannot be read, or are no boot
/// images, are left out.
pub fn images_beside(
    index: &Path,
    image: Arc<Image>,
    tree: &Path,
    older: Generation,
) -> Result<Vec<ImageBeside>, Failure> {
    let paths = candidates(index);
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let covered = quell_mount_spec::cover(image, tree, OnChange::Refuse, Rules::default())?;
    Ok(paths.into_iter().filter_map(|path| read(path, &covered, older)).collect())
}

fn candidates(index: &Path) -> Vec<PathBuf> {
    let directory = index.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<_> = names.filter(|name| name.as_bytes().ends_with(b".boot")).collect();
    names.sort_unstable();
    names.truncate(IMAGES_MAX);
    names.into_iter().map(|name| directory.join(name)).collect()
}

fn read(path: PathBuf, covered: &Covered, older: Generation) -> Option<ImageBeside> {
    let boot = OpenBoot::begin(None, &path, |bytes| check_available(&path, bytes)).ok()?.image;
    let validity = covered.validity(&boot);
    let belongs = boot.kind() == ImageKind::Tree(older.0) || validity.valid_files > 0;
    belongs.then_some(ImageBeside { path, validity })
}

impl ImageBeside {
    /// Returns the facts for `--json`.
    pub fn json(&self) -> serde_json::Value {
        let Validity { files, valid_files, blocks, valid_blocks } = self.validity;
        serde_json::json!({
            "file": text_of(&self.path), "files": files, "valid_files": valid_files,
            "blocks": blocks, "valid_blocks": valid_blocks,
        })
    }

    /// Prints the result as one line.
    pub fn print(&self) {
        let Validity { files, valid_files, blocks, valid_blocks } = self.validity;
        let path = shown(&self.path);
        if valid_files == files {
            outln!("{path}: all {} still valid", counted(blocks, "block", "blocks"));
            return;
        }
        let percent = valid_blocks * 100 / blocks.max(1);
        outln!(
            "{path}: {valid_blocks} of {} still valid ({percent} %), {} of {} changed; `quell record --update` records them",
            counted(blocks, "block", "blocks"),
            files - valid_files,
            counted(files.into(), "file", "files"),
        );
    }
}
