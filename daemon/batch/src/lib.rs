//! The servers of a store for batches: their sockets, and the threads that execute requests. The
//! crate `quell-batch` has the code that executes requests. docs/formats/batch-protocol.md
//! describes the messages, and docs/decisions/0041-batch-server.md states the reasons for the
//! design.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod clients;
mod commit_threads;
mod fair_queue;
mod listener;
mod local;
mod partition_server;
mod server;
mod user_clients;

pub use listener::Listener;
pub use local::{LocalNames, directory_of_locks};
pub use partition_server::PartitionServer;
pub use quell_transport::peer::Protection;
pub use server::{Server, ServerOptions};
pub use user_clients::{FindGroups, UserGroups};
