//! Pointers: files in a container that stand for log directories in other stores, and contain the
//! store's number.

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Rename, Result, errno};

use crate::format::{is_number_name, number_name};
use crate::stores::{FILE_PERMISSIONS, StoreNumber, Stores};

/// The largest size of a pointer that is read, in bytes. A longer pointer is torn.
const POINTER_BYTES_MAX: usize = 64;

/// Returns the store that the pointer `name` in `dir` names, or `None` if the pointer is torn.
pub(crate) fn read_pointer(
    stores: &Stores,
    dir: &dyn WritableDir,
    name: &[u8],
) -> Result<Option<StoreNumber>> {
    let mut bytes = [0; POINTER_BYTES_MAX];
    let length = dir.open_file(name)?.read_at(&mut bytes, 0)?;
    let named = &bytes[..length];
    if !is_number_name(named) {
        return Ok(None);
    }
    let seen = stores.list();
    let find = || stores.list().stores.iter().position(|store| number_name(store.number) == named);
    let store = match find() {
        // The store may have been added later.
        None if stores.has_changed(&seen)? => find(),
        found => found,
    };
    let store = store.ok_or_else(|| Error {
        source: Some("it names a store that this mount does not have".into()),
        ..Error::new(ErrorKind::Damaged, "read", name)
    })?;
    Ok(Some(store))
}

/// Creates a pointer `name` to `store` in `dir`, a directory of store `home`. It is complete and
/// synced before it gets its name. Concurrent callers that replace the name write the same content.
pub(crate) fn write_pointer(
    stores: &Stores,
    home: StoreNumber,
    dir: &dyn WritableDir,
    name: &[u8],
    store: StoreNumber,
    mode: Rename,
) -> Result<()> {
    let temporaries = stores.temporary_dir(home)?;
    let temporary = number_name(stores.random_number());
    let file = temporaries.create_file(&temporary, FILE_PERMISSIONS)?;
    file.write_at(&number_name(stores.number(store)), 0)?;
    file.sync()?;
    let named = temporaries.rename(&temporary, dir, name, mode);
    if named.is_err() {
        let _ = temporaries.remove(&temporary);
    }
    match named {
        // Another user has created the pointer, and this user may not replace it.
        Err(error) if error.errno() == errno::EPERM => match read_pointer(stores, dir, name)? {
            Some(there) if there == store => Ok(()),
            _ => Err(error),
        },
        named => named,
    }
}
