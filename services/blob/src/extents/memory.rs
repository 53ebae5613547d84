//! Extents in memory, for tests and simulations.

use std::collections::BTreeMap;
use std::sync::Mutex;

use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};

use super::{ExtentId, Extents};

/// Extents in memory. A clone is independent: a simulation uses a clone as the storage of the next
/// process after a crash.
#[derive(Debug, Default)]
pub struct MemoryExtents(Mutex<BTreeMap<ExtentId, Vec<u8>>>);

impl Clone for MemoryExtents {
    fn clone(&self) -> MemoryExtents {
        MemoryExtents(Mutex::new(lock(&self.0).clone()))
    }
}

impl Extents for MemoryExtents {
    fn write(&self, id: ExtentId, data: &[u8]) -> Result<()> {
        lock(&self.0).insert(id, data.to_vec());
        Ok(())
    }

    fn read(&self, id: ExtentId, offset: u64, into: &mut [u8]) -> Result<()> {
        let extents = lock(&self.0);
        let data = extents.get(&id).and_then(|data| data.get(offset as usize..)?.get(..into.len()));
        let data = data.ok_or_else(|| Error::new(ErrorKind::Damaged, "read", "extent"))?;
        into.copy_from_slice(data);
        Ok(())
    }

    fn remove(&self, id: ExtentId) -> Result<()> {
        lock(&self.0).remove(&id);
        Ok(())
    }

    fn list(&self, first: ExtentId, visit: &mut dyn FnMut(ExtentId)) -> Result<()> {
        lock(&self.0).range(first..).for_each(|(id, _)| visit(*id));
        Ok(())
    }
}
