//! The execution of the requests of clients on a store that this process has open.
//! docs/formats/batch-protocol.md describes the messages.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_batch_service::{
    BatchCaller, BatchRecord, Bytes, NewBatch, NewPart, PROTOCOL, PartitionCounters, Quota, QuotaSubject,
    Reply, Request, SnapshotSummary,
};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result, printable};
use quell_wire::{Failure, decode, decode_first, encode};
use serde::Serialize;

use crate::name_requests::{BEYOND_LIMITS, LONG_REPLY, other_version, perform, refuse};
use crate::shared::now;
use crate::store::BatchStore;

/// No more items of a list are added to a reply when they have this many bytes.
const LISTED_BYTES: usize = 128 << 10;
/// The kinds of requests, in the order of their numbers, as counters name them.
const KINDS: [&str; 40] = [
    "hello",
    "lookup",
    "find",
    "parent",
    "list",
    "create",
    "link",
    "remove",
    "remove_dir",
    "rename",
    "change",
    "sync",
    "begin",
    "commit",
    "abort",
    "batches",
    "conflicts",
    "counters",
    "snapshots",
    "submit",
    "begin_for_parts",
    "join",
    "next_verification",
    "verdict",
    "auxiliary_servers",
    "prepare",
    "publish",
    "roll_back",
    "quotas",
    "quota",
    "set_limit",
    "resolve",
    "record",
    "entries",
    "take_back",
    "await_division",
    "assign",
    "give_back",
    "forget",
    "touched",
];
/// The numbers of the requests that take the lock of a batch, which a commit has for minutes.
const LOCK_BATCH: [u32; 7] = [13, 14, 19, 25, 26, 27, 31];

/// The user whose request is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requester {
    /// The owner of the store, or root. The kernel of the client has checked the permissions.
    Owner,
    /// Another user, whose client is not trusted.
    User(BatchCaller),
}

/// A store whose requests this process executes.
#[derive(Debug)]
pub struct ServedStore {
    store: BatchStore,
    requests: [AtomicU64; KINDS.len()],
    failures: AtomicU64,
    /// The number of batches that clients have submitted, and the number of those that are
    /// certainly committed or refused.
    submitted: AtomicU64,
    committed: AtomicU64,
    /// Held while submitted batches are committed.
    committing: Mutex<()>,
}

impl ServedStore {
    /// Serves a store. Requests merge no tables of the image: a thread of the server must call
    /// [`merge_tables`](Self::merge_tables) when [`needs_merge`](Self::needs_merge) returns true.
    pub fn new(store: BatchStore) -> ServedStore {
        store.primary().merge_separately();
        ServedStore {
            store,
            requests: [const { AtomicU64::new(0) }; KINDS.len()],
            failures: AtomicU64::new(0),
            // The opening of the store has committed the batches that were submitted before.
            submitted: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            committing: Mutex::new(()),
        }
    }

    /// Returns the store.
    pub fn store(&self) -> &BatchStore {
        &self.store
    }

    /// Returns whether an encoded request commits, submits, prepares, publishes, rolls back or
    /// aborts a batch, or resolves its conflicts. Such a request can last for minutes, because it
    /// takes the lock of the batch.
    pub fn locks_batch(request: &[u8]) -> bool {
        decode_first::<u32>(request).is_ok_and(|(kind, _)| LOCK_BATCH.contains(&kind))
    }

    /// Returns the encoded reply that refuses a request for which
    /// [`locks_batch`](Self::locks_batch) returns true, with `Busy`.
    pub fn refuse_busy(&self, reason: &str) -> Vec<u8> {
        let error = Error::new(ErrorKind::Busy, "commit or change a batch", "");
        self.refuse(&Error { source: Some(reason.to_owned().into()), ..error })
    }

    /// Returns the encoded reply that refuses a request.
    pub fn refuse(&self, error: &Error) -> Vec<u8> {
        self.failures.fetch_add(1, Ordering::Relaxed);
        encode(&Reply::Failed(Failure::new(error)))
    }

    /// Executes an encoded request, and returns the encoded reply.
    pub fn execute(&self, requester: &Requester, request: &[u8], reply_bytes_max: usize) -> Vec<u8> {
        let failed = |error: Error| self.refuse(&error);
        let request: Request = match decode(request) {
            Ok(request) => request,
            Err(error) => return failed(error),
        };
        self.requests[kind_of(&request)].fetch_add(1, Ordering::Relaxed);
        if !request.is_within_limits() {
            return failed(refuse(BEYOND_LIMITS));
        }
        match self.perform(requester, request) {
            Ok(reply) => {
                let encoded = encode(&reply);
                match encoded.len() <= reply_bytes_max {
                    true => encoded,
                    false => failed(refuse(LONG_REPLY)),
                }
            }
            Err(error) => failed(error),
        }
    }

    /// Returns the numbers of requests of each kind, and of failed requests.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let numbers = self.requests.iter().map(|number| number.load(Ordering::Relaxed));
        let mut counters: Vec<_> = KINDS.into_iter().zip(numbers).collect();
        counters.push(("failed", self.failures.load(Ordering::Relaxed)));
        let PartitionCounters { divided, taken_back, failed } = self.store.primary().partition_counters();
        counters.extend([("divided", divided), ("taken_back", taken_back), ("failed_divisions", failed)]);
        counters
    }

    /// Returns whether clients have submitted batches that are not committed or refused yet.
    pub fn has_submitted(&self) -> bool {
        self.committed.load(Ordering::Acquire) < self.submitted.load(Ordering::Acquire)
    }

    /// Returns whether tables of the image can be merged.
    pub fn needs_merge(&self) -> bool {
        self.store.primary().needs_merge()
    }

    /// Merges tables of the image, while requests are executed. After an error the image is as
    /// before, and the next table that is added makes another merge necessary.
    pub fn merge_tables(&self) {
        if let Err(error) = self.store.primary().merge_tables() {
            tracing::warn!(%error, "tables of the store were not merged");
        }
    }

    /// Commits the batches that were submitted. Requests that use the image wait meanwhile.
    ///
    /// # Errors
    /// The errors of files. The batches stay submitted, and the call can be repeated.
    pub fn commit_submitted(&self) -> Result<()> {
        let submitted = self.submitted.load(Ordering::Acquire);
        if self.committed.load(Ordering::Acquire) >= submitted {
            return Ok(());
        }
        let _one = lock(&self.committing);
        // Another thread may have committed the batches meanwhile.
        if self.committed.load(Ordering::Acquire) < submitted {
            self.store.commit_submitted()?;
            self.committed.fetch_max(submitted, Ordering::AcqRel);
        }
        Ok(())
    }

    fn perform(&self, requester: &Requester, mut request: Request) -> Result<Reply> {
        self.check_rights(requester, &request)?;
        let stated = match &request {
            Request::Change { now, .. } => Some((*now).into()),
            _ => None,
        };
        if requester.caller().is_some() {
            // The client is not trusted, and the clock of its node may differ from this one.
            request.set_time(now().into());
        }
        if uses_image(&request) {
            self.commit_submitted()?;
        }
        if let (Requester::Owner, Some((dir, name))) = (requester, request.partition_name())
            && let Some(map) = self.store.primary().servers_of(dir, name)?
        {
            return Ok(Reply::Partitions(map));
        }
        let names = match requester.caller() {
            None => self.store.primary().name_space(),
            Some(caller) => self.store.primary().name_space_of(caller, stated),
        };
        Ok(match request {
            Request::Hello { protocol: PROTOCOL } => {
                Reply::Welcome { store: self.store.primary().store_number() }
            }
            Request::Hello { protocol } => return Err(other_version(protocol)),
            Request::Begin { name, caller, subtree, is_atomic } => Reply::Begun(match requester {
                Requester::Owner => self.store.begin(NewBatch { name, caller, subtree, is_atomic })?,
                Requester::User(known) => {
                    let caller = known.clone();
                    self.store.begin_of_user(NewBatch { name, caller, subtree, is_atomic })?
                }
            }),
            Request::BeginForParts { name, caller, subtree, is_atomic } => {
                let new = NewBatch { name, caller, subtree, is_atomic };
                Reply::Begun(self.store.primary().begin_for_parts(new)?)
            }
            Request::Join { batch, name, caller } => {
                Reply::Begun(self.store.join(NewPart { batch, name, caller })?)
            }
            Request::Commit { batch } => Reply::Batch(self.store.commit_locked(batch)?.summary()),
            Request::Abort { batch } => Reply::Batch(self.store.abort_locked(batch)?.summary()),
            Request::Prepare { batch, marker } => {
                Reply::Batch(self.store.prepare_locked(batch, &marker)?.summary())
            }
            Request::Publish { batch, marker } => {
                Reply::Batch(self.store.publish_locked(batch, &marker)?.summary())
            }
            Request::RollBack { batch, marker } => {
                Reply::Batch(self.store.roll_back_locked(batch, &marker)?.summary())
            }
            Request::Submit { batch } => {
                let record = self.store.submit_locked(batch)?;
                self.submitted.fetch_add(1, Ordering::AcqRel);
                Reply::Batch(record.summary())
            }
            Request::Batches { after } => {
                let records = self.store.primary().batches()?;
                let later =
                    records.iter().filter(|record| record.number > after && requester.may_end(record));
                let (batches, is_last) = page(later.map(|record| record.summary()));
                Reply::Batches { batches, is_last }
            }
            Request::Conflicts { batch, from } => {
                let mut page = Page::new();
                self.store.primary().conflicts_from(batch, from, &mut |conflict| Ok(page.add(conflict)))?;
                Reply::Conflicts { conflicts: page.items, is_last: page.is_last }
            }
            Request::Record { batch } => Reply::Begun(self.store.primary().watchable_batch(batch)?),
            Request::Entries { batch, dir, of } => {
                Reply::Entries(self.store.primary().entries_of_snapshot(batch, dir, &of)?)
            }
            Request::Resolve { batch, paths, resolution } => {
                let paths: Option<Vec<_>> =
                    paths.map(|paths| paths.into_iter().map(|Bytes(path)| path).collect());
                let (names, paths) = ((&*names, requester.caller()), paths.as_deref());
                let resolved = self.store.resolve(names, batch, paths, &resolution);
                Reply::Resolved(resolved.map_err(with_subject)?)
            }
            Request::Snapshots { after } => {
                let snapshots = self.store.primary().snapshots()?.into_iter();
                let is_wanted =
                    |snapshot: &SnapshotSummary| snapshot.batch > after && requester.is(snapshot.uid);
                let (snapshots, is_last) = page(snapshots.filter(is_wanted));
                Reply::Snapshots { snapshots, is_last }
            }
            Request::Quotas { from } => {
                let quotas = self.store.primary().quotas()?.into_iter();
                let is_permitted = |subject| match subject {
                    QuotaSubject::Store | QuotaSubject::EachUser => true,
                    QuotaSubject::User(uid) => requester.is(uid),
                };
                let is_wanted =
                    |quota: &Quota| quota.subject.position() >= from && is_permitted(quota.subject);
                let (quotas, is_last) = page(quotas.filter(is_wanted));
                Reply::Quotas { quotas, is_last }
            }
            Request::SetLimit { subject, change } => {
                self.store.primary().set_limit(subject, change)?;
                Reply::Done
            }
            Request::AuxiliaryServers => Reply::AuxiliaryServers(self.store.auxiliaries().summaries()),
            Request::NextVerification { .. } | Request::Verdict { .. } => return Err(refuse_verifier()),
            Request::TakeBack { dir } => {
                self.store.primary().take_back(dir)?;
                Reply::Done
            }
            Request::AwaitDivision { dir } => {
                self.store.primary().await_division(dir)?;
                Reply::Done
            }
            Request::Counters => {
                let counters = self.counters().into_iter();
                Reply::Counters(counters.map(|(name, value)| (name.to_owned(), value)).collect())
            }
            request => return perform(&*names, request),
        })
    }
}

impl ServedStore {
    /// Checks the rights of a user, except for the permissions of entries, which the name space
    /// checks. Only its user may end a batch.
    fn check_rights(&self, requester: &Requester, request: &Request) -> Result<()> {
        let Some(caller) = requester.caller() else { return Ok(()) };
        let refuse = |reason: &str| {
            let source = Some(reason.to_owned().into());
            Err(Error { source, ..Error::new(ErrorKind::PermissionDenied, "execute a request", "") })
        };
        match request {
            Request::Hello { .. }
            | Request::Lookup { .. }
            | Request::Find { .. }
            | Request::Parent { .. }
            | Request::List { .. }
            | Request::Create { .. }
            | Request::Link { .. }
            | Request::Remove { .. }
            | Request::RemoveDir { .. }
            | Request::Rename(_)
            | Request::Change { .. }
            | Request::Sync
            | Request::Batches { .. }
            | Request::Snapshots { .. }
            | Request::Quotas { .. }
            | Request::Quota => Ok(()),
            Request::SetLimit { .. } => refuse("only the owner of the store can set limits"),
            Request::Begin { caller: stated, .. } if stated.uid == caller.uid => Ok(()),
            Request::Begin { .. } => refuse("the client states another user than its own"),
            Request::Commit { batch }
            | Request::Abort { batch }
            | Request::Submit { batch }
            | Request::Conflicts { batch, .. }
            | Request::Resolve { batch, .. }
            | Request::Record { batch }
            | Request::Entries { batch, .. }
            | Request::Prepare { batch, .. }
            | Request::Publish { batch, .. }
            | Request::RollBack { batch, .. } => {
                match requester.may_end(&self.store.primary().batch(*batch)?) {
                    true => Ok(()),
                    false => refuse("the batch is one of another user"),
                }
            }
            Request::BeginForParts { .. } | Request::Join { .. } => {
                refuse("only the owner of the store can begin and join a batch with parts")
            }
            Request::Counters => refuse("only the owner of the store can read the counters"),
            Request::TakeBack { .. }
            | Request::AwaitDivision { .. }
            | Request::Assign(_)
            | Request::GiveBack { .. }
            | Request::Forget { .. }
            | Request::Touched { .. } => refuse("only the owner of the store uses partitions"),
            Request::AuxiliaryServers => refuse("only the owner of the store can list auxiliary servers"),
            Request::NextVerification { .. } | Request::Verdict { .. } => Err(refuse_verifier()),
        }
    }
}

impl Requester {
    /// Returns the requester for a client of this user.
    pub fn of_user(uid: u32, gid: u32, groups: &[u32]) -> Requester {
        match uid == 0 || uid == rustix::process::geteuid().as_raw() {
            true => Requester::Owner,
            false => Requester::User(BatchCaller { uid, gid, groups: groups.to_vec() }),
        }
    }

    /// Returns the user, whose permissions are to be checked. `None` for the owner of the store.
    pub fn caller(&self) -> Option<&BatchCaller> {
        match self {
            Requester::Owner => None,
            Requester::User(caller) => Some(caller),
        }
    }

    fn may_end(&self, record: &BatchRecord) -> bool {
        self.is(record.caller.uid)
    }

    fn is(&self, uid: u32) -> bool {
        self.caller().is_none_or(|caller| caller.uid == uid)
    }
}

/// Returns the error of a client that has not proved the commit key.
fn refuse_verifier() -> Error {
    let source = Some("only an auxiliary server, which proves the commit key, verifies batches".into());
    Error { source, ..Error::new(ErrorKind::PermissionDenied, "execute a request", "") }
}

/// Adds the subject of an error to its reason, because a reply has no subject.
fn with_subject(error: Error) -> Error {
    let subject = printable(&error.subject);
    let reason = match &error.source {
        Some(source) => format!("{subject}: {source}"),
        None => subject.to_string(),
    };
    Error { source: Some(reason.into()), ..error }
}

/// Returns the first items that fit into a reply, and whether they are all items.
fn page<T: Serialize>(items: impl Iterator<Item = T>) -> (Vec<T>, bool) {
    let mut page = Page::new();
    for item in items {
        if !page.add(item) {
            break;
        }
    }
    (page.items, page.is_last)
}

/// A part of a list.
struct Page<T> {
    items: Vec<T>,
    /// The encoded length of the items, in bytes.
    bytes: usize,
    /// Whether the list has no further items.
    is_last: bool,
}

impl<T: Serialize> Page<T> {
    fn new() -> Page<T> {
        Page { items: Vec::new(), bytes: 0, is_last: true }
    }

    /// Adds the next item of the list. Returns false if the page is full, and has no place for it.
    fn add(&mut self, item: T) -> bool {
        self.is_last = self.bytes < LISTED_BYTES;
        if self.is_last {
            self.bytes += encode(&item).len();
            self.items.push(item);
        }
        self.is_last
    }
}

/// Returns whether the reply to a request depends on the changes of submitted batches.
fn uses_image(request: &Request) -> bool {
    match request {
        Request::Lookup { .. }
        | Request::Find { .. }
        | Request::Parent { .. }
        | Request::List { .. }
        | Request::Create { .. }
        | Request::Link { .. }
        | Request::Remove { .. }
        | Request::RemoveDir { .. }
        | Request::Rename(_)
        | Request::Change { .. }
        | Request::Begin { .. }
        | Request::BeginForParts { .. }
        | Request::Commit { .. }
        | Request::Prepare { .. }
        | Request::Quotas { .. }
        | Request::Quota
        | Request::Conflicts { .. }
        | Request::Resolve { .. } => true,
        Request::Hello { .. }
        | Request::Sync
        | Request::SetLimit { .. }
        | Request::Abort { .. }
        | Request::Batches { .. }
        | Request::Counters
        | Request::Snapshots { .. }
        | Request::Submit { .. }
        | Request::NextVerification { .. }
        | Request::Verdict { .. }
        | Request::AuxiliaryServers
        | Request::Publish { .. }
        | Request::RollBack { .. }
        | Request::Record { .. }
        | Request::Entries { .. }
        | Request::TakeBack { .. }
        | Request::AwaitDivision { .. }
        | Request::Assign(_)
        | Request::GiveBack { .. }
        | Request::Forget { .. }
        | Request::Touched { .. }
        | Request::Join { .. } => false,
    }
}

/// Returns the number of the kind of a request.
fn kind_of(request: &Request) -> usize {
    match request {
        Request::Hello { .. } => 0,
        Request::Lookup { .. } => 1,
        Request::Find { .. } => 2,
        Request::Parent { .. } => 3,
        Request::List { .. } => 4,
        Request::Create { .. } => 5,
        Request::Link { .. } => 6,
        Request::Remove { .. } => 7,
        Request::RemoveDir { .. } => 8,
        Request::Rename(_) => 9,
        Request::Change { .. } => 10,
        Request::Sync => 11,
        Request::Begin { .. } => 12,
        Request::Commit { .. } => 13,
        Request::Abort { .. } => 14,
        Request::Batches { .. } => 15,
        Request::Conflicts { .. } => 16,
        Request::Counters => 17,
        Request::Snapshots { .. } => 18,
        Request::Submit { .. } => 19,
        Request::BeginForParts { .. } => 20,
        Request::Join { .. } => 21,
        Request::NextVerification { .. } => 22,
        Request::Verdict { .. } => 23,
        Request::AuxiliaryServers => 24,
        Request::Prepare { .. } => 25,
        Request::Publish { .. } => 26,
        Request::RollBack { .. } => 27,
        Request::Quotas { .. } => 28,
        Request::Quota => 29,
        Request::SetLimit { .. } => 30,
        Request::Resolve { .. } => 31,
        Request::Record { .. } => 32,
        Request::Entries { .. } => 33,
        Request::TakeBack { .. } => 34,
        Request::AwaitDivision { .. } => 35,
        Request::Assign(_) => 36,
        Request::GiveBack { .. } => 37,
        Request::Forget { .. } => 38,
        Request::Touched { .. } => 39,
    }
}

#[cfg(test)]
mod tests {
    use quell_batch_service::Resolution;

    use super::*;

    #[test]
    fn requests_that_lock_a_batch_are_recognized_by_their_numbers() {
        let (batch, marker) = (7, || "marker".to_owned());
        let record = quell_batch_service::Marker { location: "dir:/blobs".into(), blob: marker() };
        for (request, locks) in [
            (Request::Commit { batch }, true),
            (Request::Abort { batch }, true),
            (Request::Prepare { batch, marker: record }, true),
            (Request::Publish { batch, marker: marker() }, true),
            (Request::RollBack { batch, marker: marker() }, true),
            (Request::Submit { batch }, true),
            (Request::Resolve { batch, paths: None, resolution: Resolution::Mine }, true),
            (Request::Sync, false),
        ] {
            let encoded = encode(&request);
            assert_eq!(usize::from(encoded[0]), kind_of(&request), "{request:?}");
            assert_eq!(ServedStore::locks_batch(&encoded), locks, "{request:?}");
        }
        // A longer encoding of the same number, which the decoder of messages accepts.
        assert!(ServedStore::locks_batch(&[0x8D, 0x80, 0x80, 0x80, 0x00, 7]));
        assert!(!ServedStore::locks_batch(b"") && !ServedStore::locks_batch(b"\xff\xff"));
    }
}
