//! The files of a daemon on its node: the entry in the registry of pools, and the directory with
//! its data. They are removed when the daemon ends without being killed.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use quell_runtime::{Pool, Registration, Registry, Socket};
use quell_wire::pool::{MemberId, MemberSettings, PoolMember, PoolSettings};

use crate::failure::Failure;

/// The files of a daemon.
pub struct NodeFiles {
    registry: Registry,
    registration: Registration,
    name: String,
    member: MemberId,
    /// The directory with the data of all of the pool's daemons on this node.
    base: PathBuf,
}

impl NodeFiles {
    /// Registers the daemon, and creates the directory above its data, unless that is in memory.
    ///
    /// # Errors
    ///
    /// Wrong input if another pool has the name; then nothing is changed.
    pub fn create(settings: &MemberSettings, boot: u64) -> Result<NodeFiles, Failure> {
        let registry = Registry::within(settings.runtime.clone())?;
        let parent = settings.directory.clone().unwrap_or_else(std::env::temp_dir);
        let parent = fs::canonicalize(&parent)
            .map_err(|e| Failure::wrong_input(format!("{}: {e}", parent.display())))?;
        let registration = registry.join(&settings.name, settings.pool, boot)?;
        // The number distinguishes the directory from that of an earlier pool of the same name.
        let base = parent.join(format!("quell-pool-{}-{:016x}", settings.name, settings.pool as u64));
        let files =
            NodeFiles { registry, registration, name: settings.name.clone(), member: settings.member, base };
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

    /// Returns the path of the socket of a member.
    pub fn socket_of(&self, member: MemberId) -> PathBuf {
        self.registration.socket(member)
    }

    /// Returns the directory above the data, to which other users must have no access.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Returns the directory with the data.
    pub fn data(&self) -> PathBuf {
        self.base.join(self.member.0.to_string())
    }

    /// Returns the directory with the backups of members that other daemons run.
    pub fn backups(&self) -> PathBuf {
        self.data().join("backups")
    }

    /// Returns the path of the file with the messages.
    pub fn log(&self) -> PathBuf {
        self.registration.log(self.member)
    }

    /// Returns the identifier of the node.
    pub fn node(&self) -> &str {
        &self.registration.node
    }

    /// Makes the pool known to the programs of this node.
    pub fn register(&self, pool: &PoolSettings) -> Result<(), Failure> {
        let members: Vec<PoolMember> = pool.members.clone();
        let (name, node) = (self.name.clone(), self.registration.node.clone());
        let ended = pool.ended.clone();
        let PoolSettings { chunk_bytes, replicas, is_complete, .. } = *pool;
        let pool = Pool { name, chunk_bytes, replicas, node, members, ended, is_complete };
        Ok(self.registry.save(&pool, self.member)?)
    }

    /// Removes the data of daemons of this node that have ended.
    pub fn remove_ended(&self, ended: &[PoolMember]) {
        for member in ended.iter().filter(|member| member.node == self.registration.node) {
            if member.directory.parent() != Some(&self.base) || member.directory == self.data() {
                continue;
            }
            match fs::remove_dir_all(&member.directory) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(error = %e, path = %member.directory.display(), "data was not removed");
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
        removed.and(self.registry.leave(&self.registration, self.member, sockets).map_err(Failure::from))
    }
}
