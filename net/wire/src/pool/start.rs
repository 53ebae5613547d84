//! The messages between a daemon and the program that starts it, which pass through the standard
//! input and the standard output of the daemon, so that a remote shell can carry them. Each message
//! is one line of JSON.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::entry::MemberId;

/// The largest length of such a line, in bytes.
pub const LINE_BYTES_MAX: u64 = 1 << 20;

/// The settings of one member. First message of the starting program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberSettings {
    /// The number of the pool, which is random.
    pub pool: u128,
    /// The key by which the members prove to each other that they belong to the pool.
    pub key: [u8; 32],
    /// The number of the member.
    pub member: MemberId,
    /// The directory of the member on its node: absolute.
    pub directory: PathBuf,
    /// The socket for the clients of its node, in a directory to which only this user has access:
    /// absolute, at most 107 bytes.
    pub socket: PathBuf,
    /// The address on which the member listens for others, `ADDRESS:PORT`. With port 0 the system
    /// chooses one.
    pub listen: String,
    /// Whether the data that members send to each other is encrypted.
    pub encrypts: bool,
}

/// Answer to [`MemberSettings`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listening {
    /// The daemon listens on this address, `ADDRESS:PORT`.
    At(String),
    /// The daemon has ended because of this error.
    Failed(String),
}

/// The settings of the pool. Second message of the starting program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSettings {
    /// The members and their addresses, `ADDRESS:PORT`.
    pub members: Vec<(MemberId, String)>,
    /// The number of partitions: a power of two, at most 32,768.
    pub partitions: u16,
    /// The size of chunks, in bytes.
    pub chunk_bytes: u32,
    /// The owner of the root directory.
    pub uid: u32,
    /// The group of the root directory.
    pub gid: u32,
}

/// Answer to [`PoolSettings`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ready {
    /// The daemon serves clients at this socket.
    At(PathBuf),
    /// The daemon has ended because of this error.
    Failed(String),
}
