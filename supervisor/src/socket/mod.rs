//! The socket of a holder. For each plan and job of a user there is one holder on a node, which has
//! created the namespace. Other processes join through its socket. The holder stays until the last
//! process of the namespace has ended. Ranks that share a namespace can read each other's memory
//! (MPI's cross-memory attach); ranks in separate namespaces cannot.
//!
//! The protocol uses a Unix stream socket in a directory that only the user may enter. Numbers have
//! 4 bytes and are little endian.
//!
//! ```text
//! request for a report   "S"
//! answer                 length of the report, report
//!
//! request to join        "J", length of the path, path of the caller's working directory
//! answer                 length of the rest, error number, kind of tree, path of the tree
//!                        (kind: one byte; 0 outside all covered trees, 1 in a tree, 2 in a tree
//!                        indexed with the file systems mounted below it)
//!
//! request to discard     "D": the changes of the mount, when it ends
//! answer                 length of the rest, "D" if the holder will discard them
//! ```
//!
//! Descriptors sent with an answer to "J": the mount namespace; the working directory as seen in
//! the namespace, if the error number is 0; the user namespace, if there is one. Without privilege
//! a process cannot leave a namespace that it has entered, so a caller must learn before it enters
//! whether its working directory exists in the view.
//!
//! A holder without a namespace answers "J" with the length and the text of the description of its
//! trees, as JSON, and with a descriptor that keeps the holder running while a process has it open.
//!
//! The lock file of a holder is locked while a process checks for a holder, while it creates one,
//! and while a holder leaves. No process holds the lock while it waits for an answer of an existing
//! holder, so a holder that does not answer delays all callers by one timeout together, not one
//! after the other.

pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod lock;
pub(crate) mod request;
pub(crate) mod server;
