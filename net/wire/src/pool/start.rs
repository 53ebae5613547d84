//! The messages between a daemon and the program that starts it, which pass through the standard
//! input and the standard output of the daemon, so that a remote shell can carry them. Each message
//! is one line of JSON.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::entry::MemberId;
use super::replica::DaemonId;

/// The largest length of such a line, in bytes.
pub const LINE_BYTES_MAX: u64 = 1 << 20;

/// The settings of a daemon. First message of the starting program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DaemonSettings {
    /// The name of the pool.
    pub name: String,
    /// The number of the pool, which is random.
    pub pool: u128,
    /// The key by which the daemons prove to each other that they belong to the pool.
    pub key: [u8; 32],
    /// The number of the daemon.
    pub daemon: DaemonId,
    /// The members that the daemon runs at first.
    pub members: Vec<MemberId>,
    /// The number in the name of the directory with the data: the daemon's own number, or the
    /// number of an earlier daemon of the node, whose data it takes over.
    pub storage: DaemonId,
    /// The name of its node in messages.
    pub host: String,
    /// The absolute path of an existing directory on its node, below which it keeps its data.
    /// `None` stands for `$TMPDIR` or `/tmp`.
    pub directory: Option<PathBuf>,
    /// The largest number of bytes that it keeps, if it keeps them in memory instead of in a
    /// directory.
    pub memory_bytes: Option<u64>,
    /// The absolute path of the runtime directory, in which pools are registered. `None` stands for
    /// the default directory of the user.
    pub runtime: Option<PathBuf>,
    /// The address on which the daemon listens for others.
    pub listen: Listen,
    /// Whether the data that daemons send to each other is encrypted.
    pub encrypts: bool,
    /// The compression of the data that daemons send to each other.
    pub compression: Compression,
    /// The filter of its events, if `QUELL_LOG` was set for the program that starts it. `None`
    /// stands for `QUELL_LOG` of the node.
    pub log_filter: Option<String>,
}

/// The address on which a daemon listens for others. The system chooses the port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listen {
    /// 127.0.0.1: all daemons are on one node.
    Loopback,
    /// The first of `addresses` that the node has. Without one, the first address of the node to
    /// which the node itself resolves `name`, or else the address of its only network interface
    /// besides the loopback interface.
    Host {
        /// The name by which the starting program reaches the node.
        name: String,
        /// The addresses of the name on the node of the starting program.
        addresses: Vec<IpAddr>,
    },
    /// The address of this network interface.
    Interface(String),
    /// The address of the node in this network.
    Network {
        /// An address of the network.
        address: IpAddr,
        /// The number of leading bits that the addresses of the network have in common.
        prefix_bits: u8,
    },
}

/// The compression of the data that daemons send to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// LZ4: the fastest.
    Lz4,
    /// Zstandard: smaller, and slower.
    Zstd,
}

/// A daemon of a pool, as all nodes know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolDaemon {
    /// Its number.
    pub id: DaemonId,
    /// The name of its node in messages.
    pub host: String,
    /// Identifies its node: daemons with the same value have the same runtime directory.
    pub node: String,
    /// Its process id on its node.
    pub pid: u32,
    /// The directory with its data, on its node. It does not exist if the data is in memory.
    pub directory: PathBuf,
    /// The largest number of bytes that it keeps in memory, if its data is there.
    pub memory_bytes: Option<u64>,
    /// The directory on its node with the sockets for clients, one for each member.
    pub sockets: PathBuf,
    /// The address at which other daemons reach it, `ADDRESS:PORT`.
    pub address: String,
}

impl PoolDaemon {
    /// Returns the socket for the clients of a member that the daemon runs, at most 107 bytes.
    pub fn socket(&self, member: MemberId) -> PathBuf {
        self.sockets.join(member.0.to_string())
    }
}

/// A member of a pool: a part of its names and data, which one daemon serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolMember {
    /// Its number.
    pub id: MemberId,
    /// The daemon that runs it.
    pub daemon: DaemonId,
    /// The daemons with backups of it.
    pub backups: Vec<DaemonId>,
    /// Whether the clients of the daemon's node connect to it. Each daemon that runs members has
    /// one such member.
    pub serves_clients: bool,
}

/// Answer to [`DaemonSettings`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listening {
    /// The daemon listens for other daemons.
    At(PoolDaemon),
    /// The daemon has ended because of an error.
    Failed {
        /// The exit code of the daemon.
        code: u8,
        /// The error.
        message: String,
    },
}

/// The time at which other processes see the size and the times of a file that a process writes.
/// Data below the size of a file is visible when a write returns, in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Consistency {
    /// When the write returns.
    #[default]
    Synchronous,
    /// When the process closes or syncs the file. Clients keep the largest end of their writes
    /// until then.
    Commit,
}

/// The settings of the pool. Second message of the starting program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSettings {
    /// The daemons.
    pub daemons: Vec<PoolDaemon>,
    /// The members, in the order of their numbers.
    pub members: Vec<PoolMember>,
    /// The daemons that have ended.
    pub ended: Vec<PoolDaemon>,
    /// Whether each member runs and has all its backups, and they are complete.
    pub is_complete: bool,
    /// The number of partitions: a power of two, at most 32,768.
    pub partitions: u16,
    /// The number of copies of all names and data.
    pub replicas: u16,
    /// The size of chunks, in bytes.
    pub chunk_bytes: u32,
    /// The time at which sizes are visible.
    pub consistency: Consistency,
    /// The owner of the root directory.
    pub uid: u32,
    /// The group of the root directory.
    pub gid: u32,
}

/// Answer to [`PoolSettings`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ready {
    /// The daemon is registered on its node, and serves clients.
    Serving,
    /// The daemon has ended because of an error.
    Failed {
        /// The exit code of the daemon.
        code: u8,
        /// The error.
        message: String,
    },
}

/// All daemons serve. Third message of the starting program. If the input of a daemon ends without
/// this message, the daemon ends and removes its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complete;

/// The longest time for which a daemon may run members of a pool with replicas after its last
/// request for a lease that was granted, in milliseconds.
pub const LEASE_MS: u64 = 3000;

/// A message of the starting program to a daemon that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeeperMessage {
    /// The daemons that run the members, and those with backups.
    Configuration(Configuration),
    /// The daemon may run its members for [`LEASE_MS`] after it has sent the request of this
    /// number.
    Lease(u64),
    /// The daemon ends this member, which has a complete backup on the daemon that is to run it,
    /// and keeps the requests for it until the first configuration that does not contain it in
    /// `releasing`.
    Release(MemberId),
    /// The daemon refuses clients from now on, unless a client is connected.
    RefuseClients,
    /// The daemon does not refuse clients any more.
    AcceptClients,
}

/// The daemons that run the members of a pool, and those with backups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// A number that is larger in each later configuration.
    pub number: u64,
    /// The daemons that can be reached.
    pub daemons: Vec<PoolDaemon>,
    /// The members, in the order of their numbers.
    pub members: Vec<PoolMember>,
    /// The members that are to end on their daemon, as [`KeeperMessage::Release`] requires. The
    /// sender has not received [`DaemonReport::Released`] for them.
    pub releasing: Vec<MemberId>,
    /// The daemons that have ended. Daemons on the same node remove their files, unless a member
    /// still has its only data there.
    pub ended: Vec<PoolDaemon>,
    /// Whether each member runs and has all its backups, and they are complete.
    pub is_complete: bool,
}

/// A message of a daemon that serves to the starting program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonReport {
    /// Asks for a lease with this number.
    Lease(u64),
    /// A backup of a member has everything that was acknowledged.
    Complete {
        /// The member, which the daemon runs.
        member: MemberId,
        /// The daemon with the backup.
        backup: DaemonId,
    },
    /// A backup of a member has failed.
    Failed {
        /// The member, which the daemon runs.
        member: MemberId,
        /// The daemon with the backup.
        backup: DaemonId,
    },
    /// The daemon follows the configuration of this number: it sends requests to the daemons that
    /// run the members by it, or by a later one.
    Configured(u64),
    /// Answer to [`KeeperMessage::Release`]: the daemon does not run the member any more, and its
    /// backup has everything.
    Released(MemberId),
    /// Answer to [`KeeperMessage::RefuseClients`], with the number of connected clients. It is 0 if
    /// the daemon refuses clients now.
    Clients(u64),
    /// A command ends the pool.
    Ending,
    /// The daemon ends, and removes its data.
    Removing,
}
