//! The requests of a client.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use quell_vfs::{Context, ErrorKind, Result};
use quell_wire::pool::{Consistency, DirectAccess, FileId, Node, Operation, Reply};

use crate::connection::Connections;
use crate::daemon::{Daemon, LocalData, ask, done, node};
use crate::nodes::Returned;

/// The first pause before an operation is repeated, which doubles up to `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// An operation fails after this number of attempts if another operation blocks each of them.
const ATTEMPTS_MAX: u32 = 500;

/// The requests of a client, with functions that read the replies.
pub enum Requests {
    /// To one daemon.
    One(Arc<dyn Daemon>),
    /// To one of several daemons, which replace each other. They pass no data without requests.
    Several(Connections),
}

impl Requests {
    /// Does the same as [`ask`].
    pub fn ask<T>(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        described: (&'static str, &[u8]),
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<T> {
        Ok(self.ask_for_reference(deadline, operation, described, read)?.0)
    }

    /// Does the same as `ask`, and also returns the generation of the connection, to which a
    /// reference in the reply belongs.
    pub fn ask_for_reference<T>(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        described: (&'static str, &[u8]),
        read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<(T, u64)> {
        match self {
            Requests::One(daemon) => Ok((ask(&**daemon, deadline, operation, described, read)?, 0)),
            Requests::Several(connections) => connections.ask(deadline, operation, described, read),
        }
    }

    /// Does the same as `ask_for_reference`, and repeats an operation while another operation
    /// blocks it.
    pub fn ask_until_free<T>(
        &self,
        context: &Context<'_>,
        operation: &Operation<'_>,
        described: (&'static str, &[u8]),
        mut read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<(T, u64)> {
        let mut pause = PAUSE_MIN;
        for _ in 1..ATTEMPTS_MAX {
            match self.ask_for_reference(context.deadline, operation, described, &mut read) {
                Err(error) if error.kind == ErrorKind::Busy => thread::sleep(pause),
                result => return result,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.ask_for_reference(context.deadline, operation, described, read)
    }

    /// Returns the attributes of a node.
    pub fn attributes(&self, deadline: Option<Instant>, id: FileId) -> Result<Node> {
        self.ask(deadline, &Operation::Attributes { id }, ("stat", b""), node)
    }

    /// Returns references of the connection of a generation.
    pub fn release(&self, generation: u64, references: Vec<Returned>) -> Result<()> {
        let release = Operation::Release { references };
        match self {
            Requests::One(daemon) => ask(&**daemon, None, &release, ("release", b""), done),
            Requests::Several(connections) => connections.release(generation, &release),
        }
    }

    /// Makes a reference to a node. Returns the generation of the connection that has it, or `None`
    /// if the node does not exist.
    pub fn hold(&self, id: FileId) -> Result<Option<u64>> {
        let hold = Operation::Hold { ids: vec![id] };
        let (exists, generation) =
            self.ask_for_reference(None, &hold, ("hold", b""), |reply| match reply {
                Reply::Missing(missing) => Some(missing.is_empty()),
                _ => None,
            })?;
        Ok(exists.then_some(generation))
    }

    /// Returns a number that changes after a directory of the pool was renamed or removed, or its
    /// permissions or owners were changed.
    pub fn dirs_version(&self) -> u64 {
        match self {
            Requests::One(daemon) => daemon.dirs_version(),
            Requests::Several(connections) => connections.dirs_version(),
        }
    }

    /// Returns the data that this client uses without requests.
    pub fn local_data(&self) -> Option<&LocalData> {
        match self {
            Requests::One(daemon) => daemon.local_data(),
            Requests::Several(_) => None,
        }
    }

    /// Counts an access to the local data.
    pub fn count_direct(&self, access: DirectAccess, bytes: u64) {
        if let Requests::One(daemon) = self {
            daemon.count_direct(access, bytes);
        }
    }

    /// Returns the time at which other clients see the sizes of files that this one writes.
    pub fn consistency(&self) -> Consistency {
        match self {
            Requests::One(daemon) => daemon.consistency(),
            Requests::Several(connections) => connections.consistency(),
        }
    }
}
