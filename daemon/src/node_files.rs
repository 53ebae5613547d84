//! The files of a daemon on its node: the entry in the registry of pools, and the directory with
//! its data. They are removed when the daemon ends without being killed.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use quell_runtime::{Pool, Registration, Registry, Socket};
use quell_wire::pool::{DaemonId, DaemonSettings, PoolDaemon, PoolSettings};

use crate::failure::Failure;

/// The files of a daemon.
pub struct NodeFiles {
    registry: Registry,
    registration: Registration,
    name: String,
    daemon: DaemonId,
    /// The number in the name of the directory with its data.
    storage: DaemonId,
    /// The directory with the data of all of the pool's daemons on this node.
    base: PathBuf,
}

impl NodeFiles {
    /// Registers the daemon, and creates the directory above its data, unless that is in memory.
    ///
    /// # Errors
    ///
    /// `Failure::wrong_input` if another pool has the name; then nothing is changed.
    pub fn create(settings: &DaemonSettings, boot: u64) -> Result<NodeFiles, Failure> {
        let registry = Registry::within(settings.runtime.clone())?;
        let parent = settings.directory.clone().unwrap_or_else(std::env::temp_dir);
        let parent = fs::canonicalize(&parent)
            .map_err(|e| Failure::wrong_input(format!("{}: {e}", parent.display())))?;
        let registration = registry.join(&settings.name, settings.pool, boot)?;
        // The number distinguishes the directory from the directory of an earlier pool of the same
        // name.
        let base = parent.join(format!("quell-pool-{}-{:016x}", settings.name, settings.pool as u64));
        let DaemonSettings { daemon, storage, .. } = *settings;
        let files = NodeFiles { registry, registration, name: settings.name.clone(), daemon, storage, base };
        if settings.memory_bytes.is_some() {
            return Ok(files);
        }
        match DirBuilder::new().mode(0o700).create(&files.base) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                let failure = Failure::cannot(format!("{}: {e}", files.base.display()));
                let removed = files.remove(&[]);
                Err(removed.err().unwrap_or(failure))
            }
            // `Storage` checks that other users have no access to it.
            _ => Ok(files),
        }
    }

    /// Returns the directory with the sockets of the members.
    pub fn sockets(&self) -> &Path {
        &self.registration.directory
    }

    /// Returns the directory above the data, to which other users must have no access.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Returns the directory with the data.
    pub fn data(&self) -> PathBuf {
        self.base.join(self.storage.0.to_string())
    }

    /// Returns the path of the file with the messages.
    pub fn log(&self) -> PathBuf {
        self.registration.log(self.daemon)
    }

    /// Returns the identifier of the node.
    pub fn node(&self) -> &str {
        &self.registration.node
    }

    /// Makes the pool known to the programs of this node.
    pub fn register(&self, pool: &PoolSettings) -> Result<(), Failure> {
        let (name, node) = (self.name.clone(), self.registration.node.clone());
        let PoolSettings { chunk_bytes, replicas, consistency, is_complete, .. } = *pool;
        let (daemons, members) = (pool.daemons.clone(), pool.members.clone());
        let ended = pool.ended.clone();
        let pool =
            Pool { name, chunk_bytes, replicas, consistency, node, daemons, members, ended, is_complete };
        Ok(self.registry.save(&pool, self.daemon)?)
    }

    /// Removes the data of daemons of this node that have ended, unless it is the only data of a
    /// member.
    pub fn remove_ended(&self, pool: &PoolSettings) {
        for daemon in pool.ended.iter().filter(|daemon| daemon.node == self.registration.node) {
            let PoolDaemon { id, directory, .. } = daemon;
            let has_only_data = pool.members.iter().any(|member| member.daemon == *id);
            if directory.parent() != Some(&self.base) || *directory == self.data() || has_only_data {
                continue;
            }
            match fs::remove_dir_all(directory) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(error = %e, path = %directory.display(), "data was not removed");
                }
                _ => {}
            }
        }
    }

    /// Removes the data, the sockets of the members that this daemon runs, and then the entry in
    /// the registry.
    pub fn remove(&self, sockets: &[Socket]) -> Result<(), Failure> {
        let data = self.data();
        let removed = match fs::remove_dir_all(&data) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::cannot(format!("cannot remove {}: {e}", data.display())))
            }
            _ => Ok(()),
        };
        // Other daemons of the pool may have their data in it.
        let _ = fs::remove_dir(&self.base);
        removed.and(self.registry.leave(&self.registration, self.daemon, sockets).map_err(Failure::from))
    }
}
