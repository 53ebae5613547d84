//! Paths below the virtual directories that the environment variable `QUELL_VIEW` describes, and
//! their stores.
//!
//! A path is compared with the virtual directories as text: `.`, `..` and repeated slashes are
//! resolved, symbolic links are not, because nothing of a virtual directory need exist on a disk.

use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use quell_mount_spec::{FLATTEN_THRESHOLD_BYTES, IndexMode, NewFiles, View, ViewLog};
use quell_vfs::{Error, ErrorKind, Result};

use crate::log_store::Store;

/// A path below a virtual directory.
#[derive(Debug, Clone)]
pub struct VirtualPath {
    log: ViewLog,
    rest: PathBuf,
}

/// A store that was opened for a virtual directory.
struct OpenStore {
    /// The process that opened it. A child process opens its own.
    process: u32,
    log: ViewLog,
    store: Store,
}

/// The open stores. The lock is held for no I/O.
static STORES: Mutex<Vec<OpenStore>> = Mutex::new(Vec::new());

/// The view of this process, which is read from the environment once.
static VIEW: OnceLock<std::result::Result<Option<View>, String>> = OnceLock::new();

impl VirtualPath {
    /// Returns the path if it lies below a virtual directory, or is one. A relative path is
    /// relative to the current directory. Of nested virtual directories the innermost counts.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the value of the variable is invalid.
    pub fn find(path: &Path) -> Result<Option<VirtualPath>> {
        let name = path.as_os_str().as_encoded_bytes();
        let view = VIEW.get_or_init(|| View::from_environment().map_err(|error| error.to_string()));
        let logs = match view {
            Ok(Some(view)) => &view.logs,
            Ok(None) => return Ok(None),
            Err(reason) => {
                let refused = Error::new(ErrorKind::InvalidInput, "find the virtual directory of", name);
                return Err(Error { source: Some(reason.clone().into()), ..refused });
            }
        };
        if logs.is_empty() {
            return Ok(None);
        }
        let absolute = match path.is_absolute() {
            true => resolved(path),
            false => {
                let here = std::env::current_dir()
                    .map_err(|cause| Error::from_io(cause, "find the current directory for", name))?;
                resolved(&here.join(path))
            }
        };
        let named = logs.iter().flat_map(|log| log.paths().map(move |path| (log, path)));
        let inner = named.filter_map(|(log, path)| Some((log, path, absolute.strip_prefix(path).ok()?)));
        let innermost = inner.max_by_key(|(_, path, _)| path.components().count());
        Ok(innermost.map(|(log, _, rest)| VirtualPath { log: log.clone(), rest: rest.to_path_buf() }))
    }

    /// Returns the path in the store, relative to its root.
    pub fn path(&self) -> &Path {
        &self.rest
    }

    /// Returns the largest size of the index logs of a file that is flattened when its last writer
    /// closes it, in bytes; `None` if no file is.
    pub fn flatten_threshold_bytes(&self) -> Option<u64> {
        let flattens = matches!(self.log.index, Some(IndexMode::Flatten | IndexMode::FlattenLater));
        flattens.then(|| self.log.flatten_threshold_bytes.unwrap_or(FLATTEN_THRESHOLD_BYTES))
    }

    /// Changes the size of the write buffer of the process for each file.
    pub fn set_buffer_bytes(&mut self, bytes: usize) {
        self.log.buffer_bytes = Some(bytes);
    }

    /// Makes closing a file not flatten it, because the caller does.
    pub fn set_never_flattens(&mut self) {
        self.log.index = Some(IndexMode::Parallel);
    }

    /// Opens the store of the virtual directory with these options, once in each process. It stays
    /// open until the process ends.
    pub fn store(&self) -> Result<Store> {
        let process = std::process::id();
        let find = || {
            let stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
            let found = stores.iter().find(|open| open.process == process && open.log == self.log);
            found.map(|open| open.store.clone())
        };
        if let Some(store) = find() {
            return Ok(store);
        }
        // Usually, several processes write a file.
        let opened = Store::of(self.log.open(NewFiles::Container)?)?;
        if let Some(store) = find() {
            return Ok(store); // another thread was faster
        }
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        stores.push(OpenStore { process, log: self.log.clone(), store: opened.clone() });
        Ok(opened)
    }
}

/// Resolves `.`, `..` and repeated slashes of an absolute path.
fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::ParentDir => drop(resolved.pop()),
            Component::Normal(name) => resolved.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_and_slashes_are_resolved() {
        for (path, expected) in [("/a/./b//c/", "/a/b/c"), ("/a/../b", "/b"), ("/../..", "/"), ("/", "/")] {
            assert_eq!(resolved(Path::new(path)), Path::new(expected), "{path}");
        }
    }
}
