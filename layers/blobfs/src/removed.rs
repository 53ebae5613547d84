//! The blobs of files without names, of this mount and of dead mounts.
//!
//! A mount with such files has a *mark*, a blob that it changes every five minutes. If the mark was
//! not changed for an hour, the mount is dead, and the next mount removes its blobs. Both times
//! come from the clock of the store, so the clocks of the mounts do not matter.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use quell_blob::Operation;
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};

use crate::failure::failed;
use crate::shared::Shared;

/// The time between two changes of the mark.
const MARK_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The age of the mark at which a mount is dead.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(60 * 60);
/// The number of blobs that are listed at a time.
const PAGE_BLOBS: usize = 512;

/// The thread that removes the blobs of dead mounts when it begins, and then changes the mark.
#[derive(Default)]
pub(crate) struct Upkeep {
    is_ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Upkeep {
    pub(crate) fn start(&self, shared: Arc<Shared>) -> Result<()> {
        let is_ended = self.is_ended.clone();
        let keep = move || {
            // A mount without the right to list or to write removes nothing. After an error, the
            // next mount removes the blobs.
            let after = if shared.store.is_remote() { DEAD_AFTER } else { Duration::ZERO };
            let _ = shared.remove_abandoned(after);
            let mut ended = lock(&is_ended.0);
            while !*ended {
                ended =
                    is_ended.1.wait_timeout(ended, MARK_INTERVAL).map_or_else(|e| e.into_inner().0, |r| r.0);
                if !*ended && *lock(&shared.is_marked) {
                    drop(ended);
                    // Errors are ignored, because the mark becomes too old only after many
                    // failures.
                    let _ = shared.change_mark();
                    ended = lock(&is_ended.0);
                }
            }
        };
        let thread = std::thread::Builder::new().name("blob upkeep".into()).spawn(keep);
        let thread = thread.map_err(|e| Error::from_io(e, "start a thread", b"blob upkeep"))?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Ends the thread, and waits for it.
    pub(crate) fn end(&self) {
        *lock(&self.is_ended.0) = true;
        self.is_ended.1.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Returns a new name for a file that loses its name, or for a copy: in the group of servers of
    /// the blob `near`, to which it can be renamed. Creates the mark first.
    pub(crate) fn removed_name(&self, near: &[u8]) -> Result<Vec<u8>> {
        let mut is_marked = lock(&self.is_marked);
        if !*is_marked {
            self.change_mark()?;
            *is_marked = true;
        }
        drop(is_marked);
        let group = self.store.group_of(near);
        loop {
            let number = self.removed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let name = self.names.of_removed(number);
            if self.store.group_of(&name) == group {
                return Ok(name);
            }
        }
    }

    /// Changes the mark of this mount, and returns the time of the store, in nanoseconds since
    /// 1970.
    fn change_mark(&self) -> Result<u64> {
        let name = self.names.of_mount();
        let failed = |cause| failed(cause, "write", &name);
        let create = Operation::Create { name: name.clone(), may_exist: true };
        let resize = Operation::Resize { name: name.clone(), size_bytes: 0 };
        self.store.commit(vec![create, resize]).map_err(failed)?;
        let stat = self.store.stat(&name).map_err(failed)?;
        stat.map(|stat| stat.modified_ns).ok_or_else(|| Error::new(ErrorKind::Stale, "write", &name))
    }

    /// Removes the mark, after the last file without a name was deleted.
    pub(crate) fn remove_mark(&self) -> Result<()> {
        if !std::mem::replace(&mut *lock(&self.is_marked), false) {
            return Ok(());
        }
        self.delete_removed(&self.names.of_mount())
    }

    /// Deletes a blob. It is not an error if the blob does not exist.
    pub(crate) fn delete_removed(&self, blob: &[u8]) -> Result<()> {
        match self.store.delete(blob) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(failed(cause, "delete", blob)),
            _ => Ok(()),
        }
    }

    /// Removes the blobs of files without names of other mounts, if the last change of the mount's
    /// mark and blobs is older than `after`. Returns the number of blobs.
    pub(crate) fn remove_abandoned(&self, after: Duration) -> Result<u64> {
        let prefix = self.names.all_removed();
        let mut mounts: BTreeMap<u64, (u64, Vec<Vec<u8>>)> = BTreeMap::new();
        let mut last = Vec::new();
        loop {
            let found = self.at_one_state(|state| {
                state.list(&prefix, &last, PAGE_BLOBS).map_err(|cause| failed(cause, "list", &prefix))
            })?;
            for (blob, stat) in &found {
                if let Some(mount) = self.names.other_mount(blob) {
                    let (changed_ns, blobs) = mounts.entry(mount).or_default();
                    *changed_ns = stat.modified_ns.max(*changed_ns);
                    blobs.push(blob.clone());
                }
            }
            match found.last() {
                Some((name, _)) if found.len() == PAGE_BLOBS => last.clone_from(name),
                _ => break,
            }
        }
        if mounts.is_empty() {
            return Ok(0);
        }
        // The change of the mark returns the present time of the store.
        let now_ns = {
            // The lock is held so that the mark is not deleted if a file loses its name meanwhile.
            let is_marked = lock(&self.is_marked);
            let now_ns = self.change_mark()?;
            if !*is_marked {
                self.delete_removed(&self.names.of_mount())?;
            }
            now_ns
        };
        let mut removed = 0;
        for (changed_ns, blobs) in mounts.into_values() {
            if Duration::from_nanos(now_ns.saturating_sub(changed_ns)) >= after {
                for blob in blobs {
                    self.delete_removed(&blob)?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}
