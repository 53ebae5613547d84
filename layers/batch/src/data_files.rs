//! The files below the data directory of a store, as the tools list them.

use std::sync::Arc;

use quell_batch_service::DataFile;
use quell_posix::{Dir, PosixDir, WritableDir};
use quell_vfs::Result;

use crate::data_names::{batch_name, dir_name, file_name};

/// A file or directory below the data directory.
pub(crate) enum FoundFile<'a> {
    /// A data file.
    File { file: DataFile, dir: &'a dyn WritableDir, name: &'a [u8] },
    /// Anything else.
    Unknown,
}

/// Passes everything below the data directory to `visit`, with its path there.
pub(crate) fn visit_data(
    data: &Arc<dyn WritableDir>,
    visit: &mut dyn FnMut(&[u8], FoundFile<'_>) -> Result<()>,
) -> Result<()> {
    for batch in data.names()? {
        let Some(number) = number_of(&batch, 10).filter(|number| batch_name(*number).as_bytes() == batch)
        else {
            visit(&batch, FoundFile::Unknown)?;
            continue;
        };
        let batch_dir = data.open_writable_dir(&batch)?;
        for part in batch_dir.names()? {
            let path = [&batch[..], b"/", &part].concat();
            let Some(low) = number_of(&part, 16).filter(|low| dir_name(*low).as_bytes() == part) else {
                visit(&path, FoundFile::Unknown)?;
                continue;
            };
            let dir = batch_dir.open_writable_dir(&part)?;
            for name in dir.names()? {
                let path = [&path[..], b"/", &name].concat();
                let found =
                    match data_file(number, &name).filter(|file| dir_name(file.inode) == dir_name(low)) {
                        Some(file) => FoundFile::File { file, dir: &*dir, name: &name },
                        None => FoundFile::Unknown,
                    };
                visit(&path, found)?;
            }
        }
    }
    Ok(())
}

/// Removes the directories of a batch that are empty.
pub(crate) fn remove_empty_dirs(data: &Arc<dyn WritableDir>, batch: u64) -> Result<()> {
    let name = batch_name(batch);
    let dir = data.open_writable_dir(name.as_bytes())?;
    let mut is_empty = true;
    for part in dir.names()? {
        // A file, or a directory with files, is not removed.
        is_empty &= dir.remove_dir(&part).is_ok();
    }
    match is_empty {
        true => data.remove_dir(name.as_bytes()),
        false => Ok(()),
    }
}

/// Returns the data file that has this name.
fn data_file(batch: u64, name: &[u8]) -> Option<DataFile> {
    let (inode, version) = match name.iter().position(|byte| *byte == b'.') {
        Some(period) => (&name[..period], number_of(&name[period + 1..], 10)?),
        None => (name, 0),
    };
    let file = DataFile { batch, inode: number_of(inode, 16)?, version: u32::try_from(version).ok()? };
    (file_name(file).as_bytes() == name).then_some(file)
}

fn number_of(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Returns the size of a file, in bytes.
pub(crate) fn size_of(dir: &dyn Dir, name: &[u8]) -> Result<u64> {
    Ok(dir.stat(name)?.size_bytes)
}

/// Returns the names in a directory that are numbers in decimal digits, and the other names.
pub(crate) fn numbered(dir: &PosixDir) -> Result<(Vec<u64>, Vec<Vec<u8>>)> {
    let (mut numbers, mut others) = (Vec::new(), Vec::new());
    for name in dir.names()? {
        match number_of(&name, 10).filter(|number| number.to_string().as_bytes() == name) {
            Some(number) => numbers.push(number),
            None => others.push(name),
        }
    }
    numbers.sort_unstable();
    Ok((numbers, others))
}
