//! The settings of the connections of one member: names, the pool's key, and bounds.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use quell_vfs::{Error, ErrorKind, Result};

use super::frame::PAYLOAD_BYTES_MAX;

/// The number of a member of the pool, unique in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {}", self.0)
    }
}

/// The number of a server, instead of the number of a member. Clients have smaller numbers.
pub(super) const SERVER: MemberId = MemberId(u64::MAX);

/// The number of a pool: 16 random bytes, drawn at its creation. It is not secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolId(pub [u8; 16]);

/// The secret of a pool: 32 random bytes, drawn at its creation. Its `Debug` prints no bytes.
#[derive(Clone)]
pub struct PoolKey(pub [u8; 32]);

impl PoolKey {
    /// Returns the key that is derived from this one and a description; this key itself if the
    /// description is empty. Without this key, the key for another description cannot be computed.
    pub fn derived(&self, description: &[u8]) -> PoolKey {
        if description.is_empty() {
            return self.clone();
        }
        let key = blake3::derive_key("quell peer 1 derived keys", &self.0);
        PoolKey(*blake3::keyed_hash(&key, description).as_bytes())
    }
}

impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey")
    }
}

/// A key of a server with a name. A client with this name as its description proves the key itself,
/// also over a Unix socket.
#[derive(Debug, Clone)]
pub struct NamedKey {
    /// The name, which is not empty.
    pub name: &'static [u8],
    /// The key.
    pub key: PoolKey,
}

/// The service to which the requests of a connection belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The members of a pool.
    Pool,
    /// A server of a store of blobs, and its clients.
    Blob,
    /// A server of a store for batches, and its clients.
    Batch,
    /// The nodes of a job, one of which reads files for all.
    Job,
}

/// The protection of frames. All members of a pool use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Every frame has an authentication tag; its bytes can be read on the network.
    Integrity,
    /// Frames are encrypted and authenticated.
    Encryption,
    /// Frames are neither authenticated nor encrypted. For Unix sockets, whose bytes no other
    /// process can read or change; with the feature `unprotected` also for the benchmark, which
    /// measures the cost of the other two.
    None,
}

/// The compression of the payloads of requests and replies. All members of a pool use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Payloads are sent as they are.
    #[default]
    None,
    /// The block format of LZ4: the fastest.
    Lz4,
    /// The frame format of Zstandard, with its level 1: smaller, and slower.
    Zstd,
}

/// The settings of a member. `Settings::new` has the defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The service.
    pub role: Role,
    /// The pool to which all members belong.
    pub pool: PoolId,
    /// The pool's secret, or the key of a client.
    pub key: PoolKey,
    /// The description from which the key of a client is derived: see [`PoolKey::derived`]. Empty
    /// for members of a pool, and for clients with the key of the server itself.
    pub description: Vec<u8>,
    /// The keys of a server that have names.
    pub named_keys: Vec<NamedKey>,
    /// The user whose server is accepted at a Unix socket, besides this user and root.
    pub server_user: Option<u32>,
    /// The number of this member.
    pub member: MemberId,
    /// The address to listen on; port 0 lets the kernel choose one.
    pub listen: SocketAddr,
    /// The protection of frames.
    pub protection: Protection,
    /// The compression of payloads.
    pub compression: Compression,
    /// Threads that serve all connections, at least 1.
    pub threads: usize,
    /// Requests that this member holds for each other member at a time, 1 to 65,536.
    pub requests_held_max: u32,
    /// Bytes of requests, and of the replies that they allow, that this member holds for each other
    /// member at a time: at least [`BYTES_HELD_MIN`].
    pub bytes_held_max: u64,
    /// Calls to each other member that may wait for a connection or for credit. More are refused.
    pub calls_queued_max: usize,
    /// Bytes of requests that may wait in the same way.
    pub bytes_queued_max: usize,
    /// Time limit for the handshake of a connection.
    pub handshake_limit: Duration,
    /// Connections that have not proved the pool's key; a new one ends the oldest.
    pub unproved_connections_max: usize,
    /// Time without a frame after which a ping is sent.
    pub ping_interval: Duration,
    /// Intervals without a frame after which a connection is closed, at least 2.
    pub silent_intervals_max: u32,
    /// Time without a connection after which calls to a member fail at once.
    pub unreachable_after: Duration,
    /// The longest pause between two attempts to connect.
    pub backoff_max: Duration,
}

/// The smallest `bytes_held_max`: one request and one reply of the largest size fit in.
pub const BYTES_HELD_MIN: u64 = 4 << 20;

/// The largest description of a derived key, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 4096;

impl Settings {
    /// Returns settings with the default bounds: 1,024 requests and 32 MiB for each other member,
    /// 8,192 calls and 64 MiB waiting, one thread, and the times of docs/formats/peer-protocol.md.
    pub fn new(pool: PoolId, key: PoolKey, member: MemberId, listen: SocketAddr) -> Settings {
        Settings {
            role: Role::Pool,
            pool,
            key,
            description: Vec::new(),
            named_keys: Vec::new(),
            server_user: None,
            member,
            listen,
            protection: Protection::Integrity,
            compression: Compression::None,
            threads: 1,
            requests_held_max: 1024,
            bytes_held_max: 32 << 20,
            calls_queued_max: 8192,
            bytes_queued_max: 64 << 20,
            handshake_limit: Duration::from_secs(5),
            unproved_connections_max: 64,
            ping_interval: Duration::from_secs(1),
            silent_intervals_max: 10,
            unreachable_after: Duration::from_secs(5),
            backoff_max: Duration::from_secs(1),
        }
    }

    /// Returns the key that the owner of a description proves.
    pub(super) fn key_of(&self, description: &[u8]) -> PoolKey {
        match named_key(&self.named_keys, description) {
            Some(named) => named.key.clone(),
            None => self.key.derived(description),
        }
    }

    /// Refuses values outside of the documented bounds.
    pub(super) fn check(&self) -> Result<()> {
        let has_protection = self.protection != Protection::None || cfg!(feature = "unprotected");
        let is_wrong = [
            (!has_protection, "TCP needs protection"),
            (self.threads == 0, "threads is 0"),
            (
                !(1..=REQUESTS_HELD_MAX).contains(&self.requests_held_max),
                "requests_held_max is not 1 to 65,536",
            ),
            (self.bytes_held_max < BYTES_HELD_MIN, "bytes_held_max is less than 4 MiB"),
            (self.calls_queued_max == 0, "calls_queued_max is 0"),
            (self.bytes_queued_max < PAYLOAD_BYTES_MAX, "bytes_queued_max is less than one request"),
            (self.unproved_connections_max == 0, "unproved_connections_max is 0"),
            (self.silent_intervals_max < 2, "silent_intervals_max is less than 2"),
            (
                self.description.len() > DESCRIPTION_BYTES_MAX,
                "the description of the key has more than 4,096 bytes",
            ),
            (self.ping_interval.is_zero(), "ping_interval is 0"),
        ];
        match is_wrong.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, text)) => Err(Error {
                source: Some((*text).into()),
                ..Error::new(ErrorKind::InvalidInput, "start peer connections", "")
            }),
            None => Ok(()),
        }
    }
}

/// Returns the key with this name.
pub(super) fn named_key<'a>(keys: &'a [NamedKey], name: &[u8]) -> Option<&'a NamedKey> {
    keys.iter().find(|named| !name.is_empty() && named.name == name)
}

/// The largest number of requests that a member can hold for another one.
pub(super) const REQUESTS_HELD_MAX: u32 = 65_536;
