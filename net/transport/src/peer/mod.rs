//! Authenticated connections between the daemons of a pool (`Transport`). `PeerNetwork` has one TCP
//! connection for each pair of members, with many requests in flight in both directions, each
//! executed at most once.
//! docs/formats/peer-protocol.md draws the bytes.
//!
//! `outgoing` and `incoming` decide, as state machines; `peer_state` joins them with a connection;
//! `connection` and `network` do the I/O.

mod compression;
mod connection;
#[cfg(test)]
mod exchange_test;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handler;
mod handshake;
mod incoming;
mod link;
mod network;
mod not_executed;
mod outgoing;
mod peer_state;
mod seal;
mod settings;
mod transport;

pub use frame::PAYLOAD_BYTES_MAX;
pub use handler::{Handler, Reply, ReplySink, Request};
pub use network::PeerNetwork;
pub use not_executed::{not_executed, was_not_executed};
pub use peer_state::PeerCounters;
pub use settings::{BYTES_HELD_MIN, Compression, MemberId, PoolId, PoolKey, Protection, Settings};
pub use transport::{CollectedSends, Done, Traffic, Transport};
