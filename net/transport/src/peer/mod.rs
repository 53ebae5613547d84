//! Authenticated connections between the daemons of a pool (`Transport`). `PeerNetwork` has one TCP
//! connection for each pair of members, with many requests in flight in both directions, each
//! executed at most once. `Server` and `Client` use the same protocol between a server and any
//! number of clients, also over Unix sockets.
//! docs/formats/peer-protocol.md draws the bytes.
//!
//! `outgoing` and `incoming` decide, as state machines; `peer_state` joins them with a connection;
//! `connection`, `network`, `server` and `client` do the I/O.

mod client;
mod compression;
mod connection;
mod driver;
#[cfg(test)]
mod exchange_test;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gate;
mod handler;
mod handshake;
mod incoming;
mod key_file;
mod link;
mod network;
mod not_executed;
mod outgoing;
mod peer_state;
mod peer_user;
mod seal;
mod server;
mod settings;
mod stream;
mod transport;
mod workers;

pub use client::{Client, ClientSettings};
pub use frame::PAYLOAD_BYTES_MAX;
pub use handler::{Handler, Reply, ReplySink, Request};
pub use key_file::{ClientKey, create_key_file, read_key_file};
pub use network::PeerNetwork;
pub use not_executed::{not_executed, was_not_executed};
pub use peer_state::PeerCounters;
pub use peer_user::PeerUser;
pub use server::{ClientHandler, ClientIdentity, Server, ServerSettings};
pub use settings::{
    BYTES_HELD_MIN, Compression, DESCRIPTION_BYTES_MAX, MemberId, NamedKey, PoolId, PoolKey, Protection,
    Role, Settings,
};
pub use stream::{Endpoint, UnixClients};
pub use transport::{CollectedSends, Done, Traffic, Transport};
pub use workers::{Service, Taken, Workers};
