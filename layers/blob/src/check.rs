//! The check of a store that no process has open.

use quell_blob_service::{CheckedStore, Problem};
use quell_vfs::{Error, ErrorKind};

use crate::directory;
use crate::error::Result;
use crate::location::Location;
use crate::serving;

/// Checks the store at a location: its tables, its extents and their checksums. Passes each problem
/// to `report`. If `repair` is set, repairs the problems that are repairable. The memory grows with
/// the number of blobs and extents.
///
/// A store in RADOS must not have a running server. Its check needs write permission, because it
/// prevents servers from starting meanwhile.
///
/// # Errors
/// `Busy` if a server of the store runs; the errors of
/// [`Store::open_existing`](crate::Store::open_existing).
pub fn check(location: &str, repair: bool, report: &mut dyn FnMut(Problem)) -> Result<CheckedStore> {
    match location.parse()? {
        Location::Directory(path) => Ok(directory::check(&path, repair, report)?),
        Location::Rados { pool, .. } => Ok(serving::check(&pool, repair, report)?),
        Location::Socket(_) | Location::Server { .. } => {
            let source =
                Some("end the server, and pass its directory, or rados://POOL for a store in RADOS".into());
            Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "check", location) }.into())
        }
    }
}
