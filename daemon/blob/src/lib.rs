//! The server of a store of blobs: its sockets, the threads that execute requests, and the thread
//! that commits. The crate `quell-blob-service` has the code that executes requests.
//! docs/formats/blob-protocol.md describes the messages, and docs/decisions/0032-blob-server.md
//! states the reasons for the design.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod committer;
mod permit;
mod server;
mod workers;

pub use permit::ReplyPermit;
pub use quell_transport::peer::{PoolKey as StoreKey, Protection};
pub use server::{Server, ServerOptions};
