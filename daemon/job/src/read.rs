//! Reads the files from the file system.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::job::{BLOCK_BYTES, FileState, TEXT_BYTES_MAX, block_checksum, shortened};

use crate::contents::Contents;
use crate::environment::{Environment, OpenedFile};

/// Opens the files, and reads the blocks that `contents` does not have. A file that cannot be
/// opened is recorded with the reason.
///
/// # Errors
/// The errors of `Contents` and of `Environment::admit`; the error of a read; `Damaged` if a file
/// becomes shorter meanwhile.
pub fn read_files(
    paths: &[impl AsRef<Path>],
    contents: &Contents,
    environment: &dyn Environment,
    read_bytes: &AtomicU64,
) -> Result<()> {
    let opened: Vec<_> = paths.iter().map(|path| environment.open(path.as_ref())).collect();
    let state = |opened: &std::result::Result<OpenedFile, String>| match opened {
        Ok(opened) => FileState::Open(opened.attributes.clone()),
        Err(reason) => FileState::Failed(shortened(reason, TEXT_BYTES_MAX).to_owned()),
    };
    let states: Vec<FileState> = opened.iter().map(state).collect();
    if states.iter().any(|state| !state.is_bounded()) {
        return Err(Error::new(ErrorKind::InvalidInput, "read", "files with too long paths"));
    }
    if contents.files().is_none() {
        environment.admit(&states)?;
    }
    contents.set_files(states)?;
    let missing = contents.missing();
    for (position, opened) in opened.iter().enumerate() {
        let Ok(OpenedFile { file, attributes }) = opened else { continue };
        let path = paths[position].as_ref();
        let failed = |cause: std::io::Error| match cause.kind() {
            std::io::ErrorKind::UnexpectedEof => Error {
                source: Some("it became shorter while it was read".into()),
                ..Error::new(ErrorKind::Damaged, "read", path.as_os_str().as_encoded_bytes())
            },
            _ => Error::from_io(cause, "read", path.as_os_str().as_encoded_bytes()),
        };
        let mut result = Ok(());
        environment.watch_read(path, file, &mut || {
            let blocks = missing.iter().filter(|(file, _)| *file as usize == position);
            result = blocks.into_iter().try_for_each(|(_, block)| {
                if !environment.is_needed() {
                    return Err(Error::new(ErrorKind::Interrupted, "read", "files"));
                }
                let mut bytes = vec![0; attributes.block_bytes(*block)];
                file.read_exact_at(&mut bytes, *block * BLOCK_BYTES as u64).map_err(failed)?;
                read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                contents.add(position as u32, *block, block_checksum(&bytes), &bytes)
            });
        });
        result?;
    }
    Ok(())
}
