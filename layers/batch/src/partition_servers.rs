//! The partition servers of a store, as its primary server uses them: over connections, or, if the
//! process of a server has ended, through its files.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_batch_service::{
    Assignment, NewAssignment, PartitionServers, Reply, Request, ReturnedChanges, Timestamp,
};
use quell_threads::lock;
use quell_transport::peer::was_not_executed;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::decode;

use crate::partition_server::ServedPartitions;
use crate::remote::Remote;
use crate::store_dir::{RETRY, StoreDir};

/// The longest wait for a server that cannot be reached and whose process still has its files open.
/// A server that is ending answers requests for up to 10 s.
const REACH_LIMIT: Duration = Duration::from_secs(30);
/// The time after which the primary server asks partition servers, and a client asks the primary
/// server, for the times of a divided directory again.
pub(crate) const TIMES_KEPT: Duration = Duration::from_secs(1);
/// If an attempt to reach a server fails after this time or later, the server is not tried again
/// for [`UNREACHABLE_TIME`].
const SLOW_ATTEMPT: Duration = Duration::from_millis(500);
/// The time for which such a server gets no assignments.
const UNREACHABLE_TIME: Duration = Duration::from_secs(60);

/// The end of a call.
pub(crate) enum CallOutcome {
    Reply(Reply),
    /// The server could not be reached.
    Unreachable {
        error: Error,
        may_be_executed: bool,
    },
}

/// The connections to the partition servers of a store.
pub(crate) struct Connections {
    dir: StoreDir,
    servers: Mutex<HashMap<u32, Arc<Remote>>>,
}

impl Connections {
    pub(crate) fn new(dir: StoreDir) -> Connections {
        Connections { dir, servers: Mutex::default() }
    }

    /// Returns the connection to a server.
    fn get(&self, server: u32) -> Result<Arc<Remote>> {
        if let Some(known) = lock(&self.servers).get(&server) {
            return Ok(known.clone());
        }
        let connected = Arc::new(Remote::connect_to_partitions(self.dir.partition_dir(server)?)?);
        let other = lock(&self.servers).insert(server, connected.clone());
        // Another thread may have connected at the same time. Its connection takes a moment to end,
        // so it ends without the lock.
        drop(other);
        Ok(connected)
    }

    /// Sends a request to a server.
    ///
    /// # Errors
    /// The errors that the server returns.
    pub(crate) fn call(&self, server: u32, request: &Request) -> Result<CallOutcome> {
        let remote = match self.get(server) {
            Err(error) => return Ok(CallOutcome::Unreachable { error, may_be_executed: false }),
            Ok(remote) => remote,
        };
        match remote.send_once(request) {
            // Another server may have the address now, and refuse the key.
            Err(error) => {
                let removed = lock(&self.servers).remove(&server);
                // The connection takes a moment to end, so it ends without the lock.
                drop(removed);
                let may_be_executed = !was_not_executed(&error);
                Ok(CallOutcome::Unreachable { error, may_be_executed })
            }
            Ok(reply) => match decode(&reply)? {
                Reply::Failed(failure) => {
                    Err(failure.into_error("call a partition server of", self.dir.subject()))
                }
                reply => Ok(CallOutcome::Reply(reply)),
            },
        }
    }
}

/// A partition server of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionServerSummary {
    /// The number of the server.
    pub number: u32,
    /// The counters of its process: `assignments`, `requests` and `failed`. `None` if it cannot be
    /// reached.
    pub counters: Option<Vec<(String, u64)>>,
}

/// Returns the partition servers of a store.
pub(crate) fn summaries(dir: StoreDir) -> Result<Vec<PartitionServerSummary>> {
    let servers = dir.partition_servers()?;
    let connections = Connections::new(dir);
    let summary = |number| {
        let counters = match connections.call(number, &Request::Counters) {
            Ok(CallOutcome::Reply(Reply::Counters(counters))) => Some(counters),
            _ => None,
        };
        PartitionServerSummary { number, counters }
    };
    Ok(servers.into_iter().map(summary).collect())
}

/// The partition servers of a store.
pub(crate) struct StorePartitionServers {
    connections: Connections,
    /// The servers that could not be reached after [`SLOW_ATTEMPT`], with the time of the attempt.
    unreachable: Mutex<HashMap<u32, Instant>>,
    /// For each server, a lock that is held while this process has its files open.
    opening: Mutex<HashMap<u32, Arc<Mutex<()>>>>,
}

impl StorePartitionServers {
    pub(crate) fn new(dir: StoreDir) -> StorePartitionServers {
        StorePartitionServers {
            connections: Connections::new(dir),
            unreachable: Mutex::default(),
            opening: Mutex::default(),
        }
    }

    /// Executes a request in the process of a server, or on its files if it has ended.
    fn call_or_open(&self, server: u32, request: &Request) -> Result<Reply> {
        let mut end = None;
        loop {
            match self.connections.call(server, request) {
                Ok(CallOutcome::Reply(reply)) => return Ok(reply),
                Ok(CallOutcome::Unreachable { .. }) => {}
                Err(error) => return Err(of_running(server, error)),
            }
            // Another thread may have the files open, and its lock excludes this thread as well.
            let opening = lock(&self.opening).entry(server).or_default().clone();
            let _one = lock(&opening);
            let end = *end.get_or_insert_with(|| Instant::now() + REACH_LIMIT);
            match ServedPartitions::open(&self.connections.dir, server) {
                // The process has just started, is ending, or runs on a node that cannot be
                // reached.
                Err(error) if error.kind == ErrorKind::Busy && Instant::now() < end => {
                    std::thread::sleep(RETRY);
                }
                opened => return opened?.perform(request.clone()),
            }
        }
    }

    /// Executes a request in the process of a server.
    fn call(&self, server: u32, request: &Request) -> Result<Reply> {
        match self.connections.call(server, request)? {
            CallOutcome::Reply(reply) => Ok(reply),
            CallOutcome::Unreachable { error, .. } => Err(error),
        }
    }

    fn unexpected(&self) -> Error {
        let source = Some("the reply of a partition server does not belong to the request".into());
        Error {
            source,
            ..Error::new(ErrorKind::Damaged, "use the partitions of", self.connections.dir.subject())
        }
    }
}

impl PartitionServers for StorePartitionServers {
    fn available(&self) -> Result<Vec<u32>> {
        let mut servers = self.connections.dir.partition_servers()?;
        servers.retain(|server| {
            let is_unreachable = |since: &Instant| since.elapsed() < UNREACHABLE_TIME;
            if lock(&self.unreachable).get(server).is_some_and(is_unreachable) {
                return false;
            }
            let begun = Instant::now();
            let is_reachable = self.call(*server, &Request::Counters).is_ok();
            if !is_reachable && begun.elapsed() >= SLOW_ATTEMPT {
                lock(&self.unreachable).insert(*server, begun);
            }
            is_reachable
        });
        Ok(servers)
    }

    fn assign(&self, new: &NewAssignment) -> Result<()> {
        match self.call(new.assignment.server, &Request::Assign(Box::new(new.clone())))? {
            Reply::Done => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    fn give_back(&self, assignment: &Assignment) -> Result<ReturnedChanges> {
        match self.call_or_open(assignment.server, &Request::GiveBack { number: assignment.number })? {
            Reply::Returned(returned) => Ok(returned),
            _ => Err(self.unexpected()),
        }
    }

    fn forget(&self, assignment: &Assignment) -> Result<()> {
        match self.call_or_open(assignment.server, &Request::Forget { number: assignment.number })? {
            Reply::Done => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    fn touched(&self, server: u32, dir: u64, number: u64) -> Result<Option<Timestamp>> {
        match self.call(server, &Request::Touched { dir, number })? {
            Reply::Touched(touched) => Ok(touched),
            Reply::NotAssigned => {
                Err(Error::new(ErrorKind::Stale, "use the partitions of", self.connections.dir.subject()))
            }
            _ => Err(self.unexpected()),
        }
    }

    fn sync(&self, server: u32) -> Result<()> {
        match self.call(server, &Request::Sync)? {
            Reply::Done => Ok(()),
            _ => Err(self.unexpected()),
        }
    }
}

/// Returns the error of a running server. Missing or damaged files become `Busy`, because a repair
/// would otherwise discard the changes of a server that may execute further operations.
fn of_running(server: u32, error: Error) -> Error {
    match error.kind {
        ErrorKind::Damaged | ErrorKind::NotFound => {
            let reason = format!(
                "partition server {server}: {error}; end it with \"quell batch serve STORE --partitions --stop\" and \
                 repeat the command"
            );
            let busy = Error::new(ErrorKind::Busy, error.operation, &error.subject);
            Error { source: Some(reason.into()), ..busy }
        }
        _ => error,
    }
}
