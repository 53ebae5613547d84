//! Carries requests and replies: from a client process to the daemon of its node (`local`), and
//! between daemons (`peer`, a cargo feature). The bytes of a request have no meaning here.

// The memory of the local channel, which two processes write, requires unsafe code in `local`.
#![warn(missing_docs)]

pub mod local;
#[cfg(feature = "peer")]
pub mod peer;
