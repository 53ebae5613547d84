//! The channel between a client process and the daemon of its node, through shared memory.
//! docs/formats/local-channel.md draws the bytes and has the rules for the writer of each of them.

mod client;
mod handshake;
mod layout;
mod memory;
mod polling;
mod reactor;
mod server;
mod waker;

pub use client::{IsReplaced, LocalChannel, Unanswered};
pub use layout::{COUNTERS_OF_CLIENT, PAYLOAD_BYTES_MAX, SLOTS};
pub use reactor::Reactor;
pub use server::{ClientId, LocalServer, ServerOptions, Ticket};
pub use waker::Waker;
