//! The interface of connections that the service thread of a server serves while it waits.

use std::time::Duration;

/// Connections that a thread serves while it waits for its clients. Without it, another thread
/// receives each message and wakes the service thread, which takes longer than most requests.
pub trait Reactor {
    /// Serves the connections until the server has an event, whose descriptor the reactor has, or
    /// until `timeout` (`None`: no limit). Returns false at once if the connections are closed.
    fn wait(&self, timeout: Option<Duration>) -> bool;

    /// Receives the messages that have arrived, without waiting.
    fn turn(&self);
}
