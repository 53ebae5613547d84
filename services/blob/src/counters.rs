//! The counters of the requests of clients. A request reads the clock twice and takes a lock twice.

use std::sync::Mutex;
use std::time::Duration;

use quell_threads::lock;
use quell_vfs::ErrorKind;
use quell_wire::blob::{Operation, Refusal, Reply, Request, RequestKind, StoreCounters};

/// The counters of a server. The fields for its present state are zero here.
pub(crate) struct Counters {
    started_ns: u64,
    counted: Mutex<StoreCounters>,
}

/// A request that is being executed.
pub(crate) struct CountedRequest {
    kind: RequestKind,
    /// The operations and the bytes of a transaction.
    operations: u64,
    written_bytes: u64,
    begun_ns: u64,
}

impl Counters {
    /// Begins to count. `now_ns` is the time of a monotonic clock, as in the other functions.
    pub(crate) fn new(now_ns: u64) -> Counters {
        Counters { started_ns: now_ns, counted: Mutex::default() }
    }

    /// Counts the begin of a request; `None` if it could not be decoded.
    pub(crate) fn begin(&self, request: Option<&Request>, now_ns: u64) -> CountedRequest {
        let (operations, extents) = match request {
            Some(Request::Commit(transaction)) => (&transaction.operations[..], &[][..]),
            Some(Request::CommitWritten { transaction, extents }) => {
                (&transaction.operations[..], &extents[..])
            }
            _ => (&[][..], &[][..]),
        };
        let extent_bytes = extents.iter().map(|extent| extent.length_bytes);
        lock(&self.counted).in_flight += 1;
        CountedRequest {
            kind: request.map_or(RequestKind::Other, Request::kind),
            operations: operations.len() as u64,
            written_bytes: operations.iter().map(data_bytes).chain(extent_bytes).fold(0, u64::saturating_add),
            begun_ns: now_ns,
        }
    }

    /// Counts the end of a request that was begun.
    pub(crate) fn end(&self, request: &CountedRequest, reply: &Reply, now_ns: u64) {
        let CountedRequest { kind, operations, written_bytes, begun_ns } = *request;
        let time = Duration::from_nanos(now_ns.saturating_sub(begun_ns));
        let mut counted = lock(&self.counted);
        counted.in_flight -= 1;
        counted.requests[kind as usize] += 1;
        match kind {
            RequestKind::Read | RequestKind::Stat | RequestKind::List => counted.reads.add(time),
            RequestKind::Commit => counted.commits.add(time),
            RequestKind::Snapshot | RequestKind::Transfer | RequestKind::Other => {}
        }
        match reply {
            Reply::Committed(_) => {
                counted.operations += operations;
                counted.written_bytes += written_bytes;
            }
            Reply::Data(data) if kind == RequestKind::Read => counted.read_bytes += data.len() as u64,
            Reply::Refused(_) | Reply::Failed(_) | Reply::Unknown => counted.failed[kind as usize] += 1,
            _ => {}
        }
        match reply {
            Reply::Refused(Refusal::Conflict(_) | Refusal::SnapshotTooOld) => counted.conflicts += 1,
            Reply::Failed(failure) | Reply::Refused(Refusal::Failed { failure, .. })
                if failure.kind() == ErrorKind::PermissionDenied =>
            {
                counted.denied += 1;
            }
            _ => {}
        }
    }

    /// Returns the counters.
    pub(crate) fn read(&self, now_ns: u64) -> StoreCounters {
        let uptime_ms = now_ns.saturating_sub(self.started_ns) / 1_000_000;
        StoreCounters { uptime_ms, ..lock(&self.counted).clone() }
    }
}

/// Returns the number of bytes that an operation writes, other than a transform.
fn data_bytes(operation: &Operation) -> u64 {
    match operation {
        Operation::Write { data, .. } | Operation::Append { data, .. } => data.len() as u64,
        _ => 0,
    }
}
