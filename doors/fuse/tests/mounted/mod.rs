//! A file system mounted for one test.

use std::path::Path;
use std::sync::Arc;

use quell_fs::{ErrorKind, FileSystem};
use quell_fuse::{Options, Session};

/// Mounts `fs` in a new directory, which goes when what is returned is dropped; `None` and a line about it where nothing can be
/// mounted.
pub fn mounted(fs: Arc<dyn FileSystem>, options: &Options) -> Option<(Session, tempfile::TempDir)> {
    let dir = tempfile::tempdir().unwrap();
    match quell_fuse::at(fs, dir.path(), options) {
        Ok(session) => Some((session, dir)),
        Err(error) => {
            let missing = !Path::new("/dev/fuse").exists()
                || matches!(error.kind, ErrorKind::PermissionDenied | ErrorKind::NotFound);
            assert!(missing, "{error}");
            eprintln!("SKIPPED: this machine lets us mount nothing: {error}");
            None
        }
    }
}
