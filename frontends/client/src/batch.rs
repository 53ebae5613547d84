//! A batch: changes of a store for batches that are published together.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use quell_batch::{BatchSummary, OpenBatch, StoreAccess};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result, errno};

use crate::client::{Client, umask};
use crate::owned::Owned;

/// How long the begin of a batch waits until other processes have closed the store.
const BEGIN_WAIT: Duration = Duration::from_secs(10);
/// How long the end of a batch waits until other processes have closed the store.
const END_WAIT: Duration = Duration::from_secs(60);

/// The options of a new batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct BatchOptions<'a> {
    /// The directory of the store that the batch changes, with everything below it. It is the root
    /// directory of the paths of the batch.
    pub directory: &'a [u8],
    /// The name that `quell batch status` shows.
    pub name: &'a str,
    /// If set, a commit publishes either all changes or none.
    pub is_atomic: bool,
    /// The store may also belong to one of these users.
    pub trusted_owners: &'a [u32],
}

/// A batch of this process. The operations of its files and names are executed in this process,
/// without requests to a metadata server, and become visible to others with the commit. They are
/// executed as far as the permissions of the entries allow them, as are opens for writing; names,
/// attributes and contents are read without checks, and the owner of a file may always write to it.
///
/// A process that ends, or drops the value, before it has committed or closed the batch leaves an
/// open batch, which `quell batch abort` discards.
#[derive(Debug)]
pub struct Batch {
    client: Client,
    open: Owned<OpenBatch>,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Files and names can be changed.
    Open,
    /// A commit has begun and has not succeeded.
    Committing,
    /// An abort has begun and has not succeeded.
    Aborting,
    /// The batch is committed or aborted.
    Ended,
}

impl Batch {
    /// Begins a batch in a store.
    ///
    /// # Errors
    /// `Busy` if another open batch changes a part of the same tree; `NotFound` or `NotADirectory`
    /// if there is no such directory; the errors of files and of the server of the store.
    pub fn begin(store: &Path, options: BatchOptions<'_>) -> Result<Batch> {
        let BatchOptions { directory, name, is_atomic, trusted_owners } = options;
        let umask = umask()?;
        let store = StoreAccess::open_of(store, trusted_owners, BEGIN_WAIT)?;
        let mut open = OpenBatch::begin(store, directory, name, is_atomic)?;
        if let Err(error) = open.add_checks() {
            // If the abort fails as well, the batch stays in the list of open batches.
            let _ = open.abort(END_WAIT);
            return Err(error);
        }
        let client = Client::with_umask(open.file_system(), umask);
        Ok(Batch { client, open: Owned::new(open), state: Mutex::new(State::Open) })
    }

    /// Returns the number of the batch in its store.
    pub fn number(&self) -> Result<u64> {
        Ok(self.open.get()?.record().number)
    }

    /// Returns the files of the batch.
    ///
    /// # Errors
    /// `EBADF` after a commit that no open file has prevented, and after the begin of an abort.
    pub fn files(&self) -> Result<&Client> {
        // A child process must not wait for a lock that a thread of its parent has held.
        self.open.get()?;
        match self.state() {
            State::Open => Ok(&self.client),
            _ => Err(ended("use")),
        }
    }

    /// Publishes the changes. Nothing can be changed afterwards, also if an error is returned,
    /// except if a file was open. After an error other than `EBADF`, the commit can be repeated. No
    /// other thread may use the files of the batch during the call.
    ///
    /// # Errors
    /// `Busy` if a file of the batch is open, if an atomic batch has conflicts, or if other
    /// processes keep the store open for 60 s; `Quota`; `InvalidInput` if the store refuses the
    /// changes; `EBADF` after the begin of an abort and after a commit; the errors of files and of
    /// the server of the store.
    pub fn commit(&self) -> Result<BatchSummary> {
        let open = self.open.get()?;
        match self.state() {
            State::Open if self.client.is_in_use() => {
                let source = Some("close the files of the batch first".into());
                return Err(Error { source, ..Error::new(ErrorKind::Busy, "commit", "a batch") });
            }
            State::Open | State::Committing => {}
            State::Aborting | State::Ended => return Err(ended("commit")),
        }
        self.set_state(State::Committing);
        let summary = open.commit(END_WAIT).map_err(|error| with_advice(error, open))?;
        self.set_state(State::Ended);
        Ok(summary)
    }

    /// Discards the changes, also those that are made later through open files. After an error, the
    /// batch can only be aborted again.
    ///
    /// # Errors
    /// `EBADF` if the batch has ended; `Busy` if other processes keep the store open for 60 s; the
    /// errors of files and of the server of the store.
    pub fn abort(&self) -> Result<BatchSummary> {
        let open = self.open.get()?;
        if self.state() == State::Ended {
            return Err(ended("abort"));
        }
        self.set_state(State::Aborting);
        let summary = open.abort(END_WAIT)?;
        self.set_state(State::Ended);
        Ok(summary)
    }

    /// Closes the batch, and aborts it unless a commit has written its changes to the store: then
    /// the batch stays open for `quell batch commit` or `quell batch abort`. In a process that did
    /// not begin the batch, does nothing.
    ///
    /// # Errors
    /// As for [`abort`](Self::abort).
    pub fn close(self) -> Result<()> {
        let Ok(open) = self.open.get() else { return Ok(()) };
        match self.state() {
            State::Ended => Ok(()),
            State::Committing if open.has_written_changes().unwrap_or(true) => Ok(()),
            State::Open | State::Committing | State::Aborting => self.abort().map(drop),
        }
    }

    fn state(&self) -> State {
        *lock(&self.state)
    }

    fn set_state(&self, state: State) {
        *lock(&self.state) = state;
    }
}

/// Adds the commands that end the batch to the error of a commit that has written the changes.
fn with_advice(error: Error, open: &OpenBatch) -> Error {
    if !open.has_written_changes().unwrap_or(false) {
        return error;
    }
    let number = open.record().number;
    let advice = format!(
        "{error}; the changes are kept: `quell batch commit STORE {number}` commits them, and `quell batch abort STORE {number}` \
         discards them"
    );
    Error { source: Some(advice.into()), ..Error::new(error.kind, "commit", "the batch") }
}

fn ended(operation: &'static str) -> Error {
    let source = Some("the batch has ended, or its commit or abort has begun".into());
    Error { source, ..Error::new(ErrorKind::Os(errno::EBADF), operation, "a batch") }
}
