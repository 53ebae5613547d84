//! The connection of a client to a daemon of its node. In a pool with copies it is replaced when
//! the daemon ends: the names and data are on other daemons.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};

use quell_threads::{lock, read_lock, wait, wait_timeout_while, write_lock};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{Consistency, HOLDS_MAX, Operation, Reply, XattrMode};

use crate::daemon::{Daemon, Unanswered, ask, done, try_ask};
use crate::dir_cache::DirCache;
use crate::nodes::Nodes;

/// The time limit of an attempt that is made after [`Daemons::wait_limit`] has passed.
const LATE_ATTEMPT_LIMIT: Duration = Duration::from_secs(5);
/// The first pause between attempts, which doubles up to `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// The bits of the version of the directories that one connection can change.
const VERSION_BITS: u32 = 40;

/// Finds the daemons of a pool with copies that a client can use.
pub trait Daemons: Send + Sync {
    /// Connects to one of the daemons that serve now, with the time at which sizes are visible.
    /// Makes one attempt, and does not wait for a daemon to be started.
    ///
    /// # Errors
    ///
    /// `Unavailable`, `TimedOut` and `Busy` if a later attempt may succeed. After other errors,
    /// such as `NotFound` if the pool has ended, the client makes no further attempt for the
    /// operations that wait.
    fn connect(&self) -> Result<Arc<dyn Daemon>>;

    /// Returns the time for which operations wait for a daemon after a connection was lost.
    fn wait_limit(&self) -> Duration;
}

/// The connection to one daemon.
pub struct Link {
    pub daemon: Arc<dyn Daemon>,
    /// Larger than the generations of earlier connections of the client.
    pub generation: u64,
    is_lost: AtomicBool,
}

/// The connections of a client to the daemons of its node, one after the other.
pub struct Connections {
    daemons: Box<dyn Daemons>,
    nodes: Arc<Mutex<Nodes>>,
    dirs: Arc<Mutex<DirCache>>,
    current: RwLock<Arc<Link>>,
    state: Mutex<State>,
    changed: Condvar,
    last_generation: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Whether a thread is connecting.
    is_connecting: bool,
    /// The time at which the current connection was lost.
    lost: Option<Instant>,
    /// The number of attempts that have found no daemon within the limit.
    failures: u64,
}

/// Returns whether an operation can be sent again if its result is not known. It may have been
/// performed before: operations with an absolute result are not changed by that, if no other client
/// changes the same data at the same time.
fn is_repeatable(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Create { .. }
        | Operation::Remove { .. }
        | Operation::Rename { .. }
        | Operation::Reserve { .. }
        | Operation::RemoveXattr { .. }
        | Operation::Release { .. }
        | Operation::RecordMarks { .. }
        | Operation::StopMember { .. } => false,
        Operation::SetXattr { mode, .. } => *mode == XattrMode::Any,
        // A truncation could remove data that another client has written after it.
        Operation::Change { settings, .. } => settings.size_bytes.is_none(),
        Operation::Lookup { .. }
        | Operation::Attributes { .. }
        | Operation::Name { .. }
        | Operation::ReadLink { .. }
        | Operation::Xattr { .. }
        | Operation::XattrNames { .. }
        | Operation::List { .. }
        | Operation::ListReachable { .. }
        | Operation::Read { .. }
        | Operation::Write { .. }
        | Operation::ReadInline { .. }
        | Operation::WriteInline { .. }
        | Operation::NoteData { .. }
        | Operation::OwnPartitions
        | Operation::Placement
        | Operation::Consistency
        | Operation::Grow { .. }
        | Operation::Sync { .. }
        | Operation::Space
        | Operation::MemberSpace { .. }
        | Operation::Counters { .. }
        | Operation::Marks
        | Operation::Hold { .. } => true,
    }
}

fn is_temporary(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::Busy)
}

/// Repeats `connect` until it succeeds, fails for good, or the time has passed.
fn connect_until<T>(until: Instant, mut connect: impl FnMut() -> Result<T>) -> Result<T> {
    let mut pause = PAUSE_MIN;
    loop {
        match connect() {
            Err(error) if is_temporary(&error) && Instant::now() + pause < until => std::thread::sleep(pause),
            result => return result,
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl Connections {
    /// Connects to a daemon. Waits for a daemon as long as an operation does.
    pub fn open(
        daemons: Box<dyn Daemons>,
        nodes: Arc<Mutex<Nodes>>,
        dirs: Arc<Mutex<DirCache>>,
    ) -> Result<Connections> {
        let daemon = connect_until(Instant::now() + daemons.wait_limit(), || daemons.connect())?;
        let link = Link { daemon, generation: 0, is_lost: AtomicBool::new(false) };
        Ok(Connections {
            daemons,
            nodes,
            dirs,
            current: RwLock::new(Arc::new(link)),
            state: Mutex::default(),
            changed: Condvar::new(),
            last_generation: AtomicU64::new(0),
        })
    }

    fn current(&self) -> Arc<Link> {
        Arc::clone(&read_lock(&self.current))
    }

    /// Returns the time at which other clients see the sizes of files.
    pub fn consistency(&self) -> Consistency {
        read_lock(&self.current).daemon.consistency()
    }

    /// Returns the version of the directories. It differs from the versions of earlier connections.
    pub fn dirs_version(&self) -> u64 {
        let current = read_lock(&self.current);
        (current.generation << VERSION_BITS).wrapping_add(current.daemon.dirs_version())
    }

    /// Performs an operation, and returns also the generation of the connection that has returned
    /// the result.
    pub fn ask<T>(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        described: (&'static str, &[u8]),
        mut read: impl FnMut(Reply<'_>) -> Option<T>,
    ) -> Result<(T, u64)> {
        loop {
            let link = self.usable(deadline, described)?;
            match try_ask(&*link.daemon, deadline, operation, described, &mut read) {
                Ok(result) => return Ok((result?, link.generation)),
                Err(Unanswered::Failed(error)) => return Err(error),
                Err(Unanswered::Lost { error, was_taken }) => {
                    self.lose(&link);
                    if was_taken && !is_repeatable(operation) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Returns references that the connection of a generation has. Has no effect if it is lost,
    /// because the references have ended with it.
    pub fn release(&self, generation: u64, release: &Operation<'_>) -> Result<()> {
        let described = ("release", &b""[..]);
        let mut link = self.current();
        if link.generation < generation {
            // Another thread is about to use the new connection.
            let Ok(usable) = self.usable(None, described) else { return Ok(()) };
            link = usable;
        }
        if link.generation != generation || link.is_lost.load(Ordering::Acquire) {
            return Ok(());
        }
        match try_ask(&*link.daemon, None, release, described, done) {
            Ok(result) => result,
            Err(Unanswered::Failed(error)) => Err(error),
            Err(Unanswered::Lost { .. }) => {
                self.lose(&link);
                Ok(())
            }
        }
    }

    /// Notes that a connection is lost. The next operation connects to another daemon.
    fn lose(&self, link: &Link) {
        if !link.is_lost.swap(true, Ordering::AcqRel) {
            lock(&self.state).lost.get_or_insert_with(Instant::now);
        }
    }

    /// Returns a connection that is not known to be lost. After the end of a daemon, one thread
    /// connects to another one, and the others wait.
    ///
    /// # Errors
    ///
    /// `Unavailable` if no daemon was found within [`Daemons::wait_limit`] after the connection
    /// was lost; later calls make one attempt. `TimedOut` after the deadline.
    fn usable(&self, deadline: Option<Instant>, described: (&'static str, &[u8])) -> Result<Arc<Link>> {
        let link = self.current();
        if !link.is_lost.load(Ordering::Acquire) {
            return Ok(link);
        }
        let failed = |kind| Error::new(kind, described.0, described.1);
        let mut state = lock(&self.state);
        let failures = state.failures;
        loop {
            let link = self.current();
            if !link.is_lost.load(Ordering::Acquire) {
                return Ok(link);
            }
            if state.failures != failures {
                return Err(failed(ErrorKind::Unavailable));
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(failed(ErrorKind::TimedOut));
            }
            if state.is_connecting {
                state = match deadline {
                    None => wait(&self.changed, state),
                    Some(deadline) => {
                        let left = deadline.saturating_duration_since(Instant::now());
                        wait_timeout_while(&self.changed, state, left, |state| state.is_connecting)
                    }
                };
                continue;
            }
            state.is_connecting = true;
            let limit = *state.lost.get_or_insert_with(Instant::now) + self.daemons.wait_limit();
            drop(state);
            let connecting = Connecting(self);
            let connected = self.replace(deadline.map_or(limit, |deadline| deadline.min(limit)));
            drop(connecting);
            state = lock(&self.state);
            if let Err(error) = connected
                && (!is_temporary(&error) || Instant::now() + PAUSE_MAX >= limit)
            {
                state.failures += 1;
                return Err(Error { source: Some(error.into()), ..failed(ErrorKind::Unavailable) });
            }
        }
    }

    /// Connects to another daemon, makes references to all nodes in use, and uses the connection
    /// from then on.
    fn replace(&self, until: Instant) -> Result<()> {
        let link = connect_until(until, || {
            let daemon = self.daemons.connect()?;
            let generation = self.last_generation.fetch_add(1, Ordering::Relaxed) + 1;
            self.hold_nodes(&*daemon, generation, until.max(Instant::now() + LATE_ATTEMPT_LIMIT))?;
            Ok(Arc::new(Link { daemon, generation, is_lost: AtomicBool::new(false) }))
        })?;
        let lost = std::mem::replace(&mut *write_lock(&self.current), link);
        lock(&self.state).lost = None;
        // The last thread that waits for the daemon drops it, and releases its memory.
        drop(lost);
        Ok(())
    }

    /// Makes a reference to each node in use for a new connection.
    fn hold_nodes(&self, daemon: &dyn Daemon, generation: u64, until: Instant) -> Result<()> {
        let dropped = lock(&self.dirs).clear();
        let ids = {
            let mut nodes = lock(&self.nodes);
            for id in dropped {
                // The references of the node have ended with the connection.
                nodes.release(id, 1);
            }
            nodes.begin(generation)
        };
        for ids in ids.chunks(HOLDS_MAX) {
            let hold = Operation::Hold { ids: ids.to_vec() };
            let missing = ask(daemon, Some(until), &hold, ("hold", b""), |reply| match reply {
                Reply::Missing(missing) => Some(missing),
                _ => None,
            })?;
            let references = lock(&self.nodes).held_again(ids, &missing, generation);
            if !references.is_empty() {
                let release = Operation::Release { references };
                ask(daemon, Some(until), &release, ("release", b""), done)?;
            }
        }
        Ok(())
    }
}

/// Marks that a thread is connecting. When the value is dropped, also after a panic, another thread
/// can connect.
struct Connecting<'a>(&'a Connections);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).is_connecting = false;
        self.0.changed.notify_all();
    }
}
