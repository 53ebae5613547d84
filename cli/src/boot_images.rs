//! Boot images that a command reads with the contents of all blocks.

use std::fs::File;
use std::path::Path;

use indicatif::HumanBytes;
use quell_boot::{BootImage, Contents};
use quell_supervisor::{check_available, processors};

use crate::failure::Failure;
use crate::inputs::{InputFile, shown};

/// Memory limit for an image whose blocks a command decodes completely.
const MEMORY_BYTES_MAX: u64 = 64 << 30;

/// Loads a boot image with the contents of all its blocks.
pub fn load_whole(path: &Path) -> Result<(BootImage, Contents), Failure> {
    load_whole_from(&InputFile::open(path)?.file, path)
}

/// Does the same as `load_whole`, for a file that is already open.
pub fn load_whole_from(file: &File, path: &Path) -> Result<(BootImage, Contents), Failure> {
    let image = quell_mount_spec::load_boot_from(file, path, |bytes| check_available(path, bytes))?;
    if image.decoded_bytes() > MEMORY_BYTES_MAX {
        return Err(Failure::cannot(format!(
            "{} takes {} of memory, more than the limit of {}",
            shown(path),
            HumanBytes(image.decoded_bytes()),
            HumanBytes(MEMORY_BYTES_MAX)
        )));
    }
    let damaged = |damage| Failure::wrong_input(format!("{}: {damage}", shown(path)));
    let contents = image.decode(processors()).map_err(damaged)?;
    Ok((image, contents))
}
