//! The daemon of this node, as its clients use it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use quell_posix::WritableDir;
use quell_vfs::{Context, Error, ErrorKind, Result, Space};
use quell_wire::Failure;
use quell_wire::pool::{Consistency, DirectAccess, FileId, Node, Operation, Partitions, Reply};

/// The first pause before an operation is repeated, which doubles up to `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// An operation that meets others in the way of each attempt fails after this number of them.
const ATTEMPTS_MAX: u32 = 500;

/// A connection to the daemon of this node. Any number of threads may use it.
pub trait Daemon: Send + Sync {
    /// Sends an operation and passes its result to `receive`, once. Errors: `Unavailable` if the
    /// daemon has ended, `TimedOut` when the deadline has passed; then it is not known whether the
    /// operation was done.
    fn call(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        receive: &mut dyn FnMut(Result<Reply<'_>, Failure>),
    ) -> Result<()>;

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

/// Sends an operation to a daemon and returns what `read` makes of its reply; `None` stands for a
/// reply of another kind. `verb` and `subject` describe the operation in errors.
///
/// # Errors
///
/// Those of the operation and of [`Daemon::call`], `TimedOut` without a request if the deadline has
/// passed, and `Damaged` for a reply of another kind.
pub fn ask<T>(
    daemon: &dyn Daemon,
    deadline: Option<Instant>,
    operation: &Operation<'_>,
    (verb, subject): (&'static str, &[u8]),
    mut read: impl FnMut(Reply<'_>) -> Option<T>,
) -> Result<T> {
    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        return Err(Error::new(ErrorKind::TimedOut, verb, subject));
    }
    let mut result = None;
    daemon.call(deadline, operation, &mut |reply| {
        result = Some(match reply {
            Ok(reply) => read(reply).ok_or_else(|| unexpected(verb, subject)),
            Err(failure) => Err(failure.into_error(verb, subject)),
        });
    })?;
    result.unwrap_or_else(|| Err(unexpected(verb, subject)))
}

/// The daemon, with functions that read the replies.
#[derive(Clone)]
pub struct Requests(pub Arc<dyn Daemon>);

impl Requests {
    /// Does the same as [`ask`] for this daemon.
    pub fn ask<T>(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        described: (&'static str, &[u8]),
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T> {
        ask(&*self.0, deadline, operation, described, read)
    }

    /// Does the same as `ask`, and repeats an operation that another one was in the way of.
    pub fn ask_until_free<T>(
        &self,
        context: &Context<'_>,
        operation: &Operation<'_>,
        described: (&'static str, &[u8]),
        mut read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T> {
        let mut pause = PAUSE_MIN;
        for _ in 1..ATTEMPTS_MAX {
            match self.ask(context.deadline, operation, described, &mut read) {
                Err(error) if error.kind == ErrorKind::Busy => thread::sleep(pause),
                result => return result,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.ask(context.deadline, operation, described, read)
    }

    /// Returns the attributes of a node.
    pub fn attributes(&self, deadline: Option<Instant>, id: FileId) -> Result<Node> {
        self.ask(deadline, &Operation::Attributes { id }, ("stat", b""), node)
    }
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
            Some(Space { total_bytes, free_bytes, available_bytes, entries: 0, entries_free: 0 })
        }
        _ => None,
    }
}

fn unexpected(verb: &'static str, subject: &[u8]) -> Error {
    let source = Some("an unexpected reply of the daemon".into());
    Error { source, ..Error::new(ErrorKind::Damaged, verb, subject) }
}
