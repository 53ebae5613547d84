//! The check of a store that no process has open.

use quell_blob_service::{CheckedStore, Problem};
use quell_vfs::{Error, ErrorKind};

use crate::directory;
use crate::error::Result;
use crate::location::Location;

/// Checks the store at a location: its tables, its extents and their checksums. Passes each problem
/// to `report`. With `repair`, repairs those that are repairable. The memory grows with the number
/// of blobs and extents.
///
/// # Errors
/// As for [`Store::open_existing`](crate::Store::open_existing).
pub fn check(location: &str, repair: bool, report: &mut dyn FnMut(Problem)) -> Result<CheckedStore> {
    match location.parse()? {
        Location::Directory(path) => Ok(directory::check(&path, repair, report)?),
        Location::Socket(_) | Location::Server { .. } => {
            let source = Some("only a directory can be checked: end the server, and pass dir:PATH".into());
            Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "check", location) }.into())
        }
    }
}
