//! The settings of a pool that is to be started, and the messages for its daemons that follow from
//! them.

use std::fmt;
use std::path::PathBuf;

use quell_wire::pool::{
    Compression, Consistency, DaemonId, DaemonSettings, Listen, MemberId, PoolDaemon, PoolMember,
    PoolSettings,
};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The settings of a pool that is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPool {
    /// The name.
    pub name: String,
    /// The daemons.
    pub daemons: Vec<NewDaemon>,
    /// The number of members, which is also the largest number of daemons that the pool can have
    /// later. At least the number of daemons.
    pub members: u16,
    /// The absolute path of the directory on each node below which the daemons keep their data.
    /// `None` stands for `$TMPDIR` or `/tmp` of the node.
    pub directory: Option<PathBuf>,
    /// The largest number of bytes that each daemon keeps, if it keeps them in memory.
    pub memory_bytes: Option<u64>,
    /// The absolute path of the runtime directory on each node. `None` stands for the default
    /// directory of the user.
    pub runtime: Option<PathBuf>,
    /// The size of chunks, in bytes.
    pub chunk_bytes: u32,
    /// The number of partitions.
    pub partitions: u16,
    /// The time at which the sizes of files are visible.
    pub consistency: Consistency,
    /// The number of copies of all names and data.
    pub replicas: u16,
    /// Whether the data that daemons send to each other is encrypted.
    pub encrypts: bool,
    /// The compression of the data that daemons send to each other.
    pub compression: Compression,
    /// Whether the pool continues after the end of the session in which it was started.
    pub is_detached: bool,
    /// The time limit of the start, in milliseconds.
    pub timeout_ms: u64,
    /// The filter of the daemons' events. `None` stands for `QUELL_LOG` of each node.
    pub log_filter: Option<String>,
}

/// A daemon that is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewDaemon {
    /// The name of its node in messages.
    pub host: String,
    /// The command line that starts it.
    pub command: Vec<String>,
    /// The address on which it listens.
    pub listen: Listen,
}

/// Identifies a pool, and proves that a daemon belongs to it.
#[derive(Clone, Copy)]
pub struct PoolSecret {
    key: [u8; 32],
    number: [u8; 16],
}

impl fmt::Debug for PoolSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSecret").finish_non_exhaustive()
    }
}

impl PoolSecret {
    /// Returns the number of the pool.
    pub fn number(&self) -> u128 {
        u128::from_le_bytes(self.number)
    }

    /// Returns random numbers.
    pub fn random() -> Result<PoolSecret, Failure> {
        let mut secret = PoolSecret { key: [0; 32], number: [0; 16] };
        for bytes in [&mut secret.key[..], &mut secret.number] {
            // The kernel gives up to 256 bytes at once.
            getrandom(bytes, GetRandomFlags::empty())
                .map_err(|e| Failure::cannot(format!("no random numbers: {e}")))?;
        }
        Ok(secret)
    }
}

impl NewPool {
    /// Returns the first message for a daemon, which begins with these members. If `storage` is
    /// another daemon, the new daemon takes over its data.
    pub fn daemon_settings(
        &self,
        secret: &PoolSecret,
        new: &NewDaemon,
        daemon: DaemonId,
        (members, storage): (Vec<MemberId>, DaemonId),
    ) -> DaemonSettings {
        DaemonSettings {
            name: self.name.clone(),
            pool: secret.number(),
            key: secret.key,
            daemon,
            members,
            storage,
            host: new.host.clone(),
            directory: self.directory.clone(),
            memory_bytes: self.memory_bytes,
            runtime: self.runtime.clone(),
            listen: new.listen.clone(),
            encrypts: self.encrypts,
            compression: self.compression,
            log_filter: self.log_filter.clone(),
        }
    }

    /// Returns the second message for the daemons.
    pub fn pool_settings(
        &self,
        daemons: Vec<PoolDaemon>,
        members: Vec<PoolMember>,
        ended: Vec<PoolDaemon>,
    ) -> PoolSettings {
        PoolSettings {
            daemons,
            members,
            ended,
            is_complete: self.replicas == 1,
            replicas: self.replicas,
            partitions: self.partitions,
            chunk_bytes: self.chunk_bytes,
            consistency: self.consistency,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Returns the members, which are evenly distributed on the daemons.
    pub fn new_members(&self) -> Vec<PoolMember> {
        let daemons = self.daemons.len() as u16;
        let member = |id: u16| PoolMember {
            id: MemberId(id),
            daemon: DaemonId(id % daemons),
            backups: Vec::new(),
            serves_clients: id < daemons,
        };
        (0..self.members).map(member).collect()
    }
}
