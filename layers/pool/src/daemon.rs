//! The daemon of this node, as its clients use it.

use std::sync::Arc;
use std::time::Instant;

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Result, Space};
use quell_wire::Failure;
use quell_wire::pool::{Consistency, DirectAccess, Node, Operation, Partitions, Reply};

/// A call without a reply.
#[derive(Debug)]
pub enum Unanswered {
    /// The connection is lost: its daemon has ended or was replaced.
    Lost {
        /// `Unavailable`.
        error: Error,
        /// Whether the daemon has taken the operation and may have performed it.
        was_taken: bool,
    },
    /// Another error, such as `TimedOut` when the deadline has passed; then it is not known whether
    /// the operation was done.
    Failed(Error),
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Unanswered {
        Unanswered::Failed(error)
    }
}

/// A connection to the daemon of this node. Any number of threads may use it.
pub trait Daemon: Send + Sync {
    /// Sends an operation and passes its result to `receive`, once.
    fn call(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        receive: &mut dyn FnMut(Result<Reply<'_>, Failure>),
    ) -> Result<(), Unanswered>;

    /// Returns a number that changes after a directory of the pool was renamed or removed, or its
    /// permissions or owners were changed. Sends no request.
    fn dirs_version(&self) -> u64;

    /// Returns the time at which other clients see the sizes of files that this one writes. Sends
    /// no request.
    fn consistency(&self) -> Consistency;

    /// Returns the data of the daemon's member, which clients on its machine use without requests,
    /// or `None` if this client cannot access it.
    fn local_data(&self) -> Option<&LocalData>;

    /// Counts an access to the local data and the number of its bytes. Sends no request.
    fn count_direct(&self, access: DirectAccess, bytes: u64);
}

/// The chunks of one member.
pub struct LocalData {
    /// The directory with one local file for the chunks of each file (docs/formats/pool.md).
    pub dir: Arc<dyn WritableDir>,
    /// The partitions whose chunks the member has.
    pub partitions: Partitions,
}

impl std::fmt::Debug for LocalData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalData").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}

/// Sends an operation to a daemon and returns the result of `read` for its reply; `None` stands for
/// a reply of another kind. `verb` and `subject` describe the operation in errors.
///
/// # Errors
///
/// The errors of the operation and of [`Daemon::call`], `TimedOut` without a request if the
/// deadline has passed, and `Damaged` for a reply of another kind.
pub fn ask<T>(
    daemon: &dyn Daemon,
    deadline: Option<Instant>,
    operation: &Operation<'_>,
    described: (&'static str, &[u8]),
    read: impl FnMut(Reply<'_>) -> Option<T>,
) -> Result<T> {
    match try_ask(daemon, deadline, operation, described, read) {
        Ok(result) => result,
        Err(Unanswered::Lost { error, .. } | Unanswered::Failed(error)) => Err(error),
    }
}

/// Does the same as [`ask`], and distinguishes a call without a reply from the error of an
/// operation.
pub fn try_ask<T>(
    daemon: &dyn Daemon,
    deadline: Option<Instant>,
    operation: &Operation<'_>,
    (verb, subject): (&'static str, &[u8]),
    mut read: impl FnMut(Reply<'_>) -> Option<T>,
) -> Result<Result<T>, Unanswered> {
    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        return Err(Error::new(ErrorKind::TimedOut, verb, subject).into());
    }
    let mut result = None;
    daemon.call(deadline, operation, &mut |reply| {
        result = Some(match reply {
            Ok(reply) => read(reply).ok_or_else(|| unexpected(verb, subject)),
            Err(failure) => Err(failure.into_error(verb, subject)),
        });
    })?;
    Ok(result.unwrap_or_else(|| Err(unexpected(verb, subject))))
}

/// Reads a reply with the attributes of a node.
pub fn node(reply: Reply<'_>) -> Option<Node> {
    match reply {
        Reply::Node(node) | Reply::Held(node) | Reply::Found(Some(node)) => Some(node),
        _ => None,
    }
}

/// Reads a reply without a result.
pub fn done(reply: Reply<'_>) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

/// Reads a reply with the space of a pool or of a member.
pub fn space(reply: Reply<'_>) -> Option<Space> {
    match reply {
        Reply::Space { total_bytes, free_bytes, available_bytes, .. } => {
            Some(Space { total_bytes, free_bytes, available_bytes, ..Space::default() })
        }
        _ => None,
    }
}

fn unexpected(verb: &'static str, subject: &[u8]) -> Error {
    let source = Some("an unexpected reply of the daemon".into());
    Error { source, ..Error::new(ErrorKind::Damaged, verb, subject) }
}
