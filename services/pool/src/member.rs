//! One member of a pool: receives the operations of the clients of its node and the requests of
//! other members, and passes each to the member and the function that must perform it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use futures_util::future::{join_all, join4};
use lru::LruCache;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{
    FileId, INLINE_BYTES_MAX, MemberId, Operation, PeerMessage, PeerRequest, Reply, Route, Stamp,
    TransactionId, XATTRS_BYTES_MAX,
};
use quell_wire::{Failure, decode, encode};

use crate::counters::Counters;
use crate::environment::Environment;
use crate::holds::{ClientHolds, ClientId, MemberHolds};
use crate::inode::EntryRecord;
use crate::lock_table::LockTable;
use crate::map::{NameHash, PoolMap};
use crate::marks::{Marks, is_change};
use crate::prepared::PreparedTransactions;
use crate::replies::into_owned;
use crate::results::{Results, is_performed_once};
use crate::sessions::{Admission, Origin, Outgoing, Sessions, Waiting};

/// The number of files that are kept in memory because their data is recorded.
const FILES_WITH_DATA_MAX: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The largest part of a listing that one member returns, in bytes: much more than entries with the
/// longest names need.
const LIST_BYTES_MAX: u32 = 256 << 10;

/// One member of a pool. All methods are called on one thread.
pub struct Member {
    pub(crate) id: MemberId,
    pub(crate) map: PoolMap,
    pub(crate) environment: Environment,
    pub(crate) locks: LockTable,
    pub(crate) member_holds: RefCell<MemberHolds>,
    pub(crate) client_holds: RefCell<ClientHolds>,
    /// The requests of other members.
    pub(crate) sessions: RefCell<Sessions>,
    /// The results of the requests of other members, in a pool with copies.
    pub(crate) results: RefCell<Results>,
    /// The requests to other members.
    pub(crate) outgoing: RefCell<BTreeMap<MemberId, Outgoing>>,
    /// The number of this start of the member, which is larger than the numbers of earlier starts.
    pub(crate) session: u64,
    last_request: Cell<u64>,
    pub(crate) started: Duration,
    /// Whether the member was started before on its storage.
    pub(crate) was_started: bool,
    /// Wakes operations that wait for locks, so that they check their time limits.
    pub(crate) lock_waiters: RefCell<Vec<Waker>>,
    is_maintaining: Cell<bool>,
    pub(crate) prepared: RefCell<PreparedTransactions>,
    /// Transactions of this member that have not ended.
    pub(crate) undecided: RefCell<HashSet<TransactionId>>,
    /// Committed transactions that this member coordinates, with the members that have not received
    /// the decision.
    pub(crate) unsent_decisions: RefCell<BTreeMap<TransactionId, BTreeSet<MemberId>>>,
    /// Nodes whose chunks are to be truncated, or that have no name any more.
    pub(crate) unfinished: RefCell<BTreeSet<FileId>>,
    /// Files with new chunks on this member, which are not reported to the members of the
    /// attributes yet.
    pub(crate) unreported_chunks: RefCell<BTreeSet<FileId>>,
    /// Removed directories, in which no entry may be created.
    pub(crate) removed_dirs: RefCell<HashSet<FileId>>,
    /// The groups that directories pass on to their entries.
    pub(crate) dir_groups: RefCell<HashMap<FileId, u32>>,
    /// Times of changes of directories that were not sent to the members of the directories yet.
    pub(crate) touched_dirs: RefCell<BTreeMap<FileId, Stamp>>,
    /// Files whose data is known to be recorded: in their attributes on this member, or, for files
    /// of another member, by their local file or a report.
    pub(crate) files_with_data: RefCell<LruCache<FileId, ()>>,
    /// Truncated files of this member, whose chunks on this member are not truncated yet.
    pub(crate) untruncated: RefCell<BTreeSet<FileId>>,
    pub(crate) marks: Marks,
    pub(crate) counters: Counters,
    is_stopping: Cell<bool>,
    pub(crate) next_number: Cell<u64>,
    pub(crate) reserved_numbers: Cell<u64>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Member {
    /// Starts a member on its storage, and creates the root directory if the storage is empty and
    /// the root belongs to this member. The root directory gets permissions 0700 and the given
    /// owner and group.
    ///
    /// # Errors
    ///
    /// `Damaged` for a record that cannot be read; errors of the storage.
    pub fn start(
        id: MemberId,
        map: PoolMap,
        environment: Environment,
        owner: (u32, u32),
    ) -> Result<Rc<Member>> {
        let mut member = Member {
            id,
            map,
            started: environment.clock.monotonic(),
            environment,
            locks: LockTable::default(),
            member_holds: RefCell::default(),
            client_holds: RefCell::default(),
            sessions: RefCell::default(),
            results: RefCell::default(),
            outgoing: RefCell::default(),
            session: 0,
            last_request: Cell::new(0),
            was_started: false,
            lock_waiters: RefCell::default(),
            is_maintaining: Cell::new(false),
            prepared: RefCell::default(),
            undecided: RefCell::default(),
            unsent_decisions: RefCell::default(),
            unfinished: RefCell::default(),
            unreported_chunks: RefCell::default(),
            removed_dirs: RefCell::default(),
            dir_groups: RefCell::default(),
            touched_dirs: RefCell::default(),
            files_with_data: RefCell::new(LruCache::new(FILES_WITH_DATA_MAX)),
            untruncated: RefCell::default(),
            marks: Marks::default(),
            counters: Counters::default(),
            is_stopping: Cell::new(false),
            next_number: Cell::new(0),
            reserved_numbers: Cell::new(0),
        };
        member.load_directories()?;
        member.was_started = member.load_numbers()?;
        member.session = member.next_number()?;
        member.load_decisions()?;
        member.load_prepared()?;
        member.load_marks()?;
        member.load_unfinished()?;
        member.load_truncations()?;
        member.load_chunks()?;
        member.load_results()?;
        if member.map.home(FileId::ROOT)? == id {
            member.create_root(owner)?;
        }
        Ok(Rc::new(member))
    }

    /// Performs an operation of a client of this node and returns the encoded result:
    /// `Result<Reply, Failure>`.
    ///
    /// The operation must be polled to its end, even if the client has ended meanwhile.
    pub async fn perform(self: Rc<Member>, client: ClientId, operation: Vec<u8>) -> Vec<u8> {
        self.client_holds.borrow_mut().begin(client);
        let result = match decode(&operation) {
            Ok(operation) => {
                let counted = self.begin_operation(&operation);
                let result = self.perform_decoded(client, operation).await;
                self.end_request(&counted, &result);
                result
            }
            Err(error) => Err(error),
        };
        let released = self.client_holds.borrow_mut().end(client);
        self.return_references(released).await;
        encode(&result.map_err(Failure::from))
    }

    async fn perform_decoded(
        self: &Rc<Member>,
        client: ClientId,
        operation: Operation<'_>,
    ) -> Result<Reply<'static>> {
        match operation {
            Operation::Release { references } => {
                let released = {
                    let mut holds = self.client_holds.borrow_mut();
                    let release =
                        |(id, count)| holds.release(client, id, count).into_iter().map(move |n| (id, n));
                    references.into_iter().flat_map(release).collect()
                };
                self.return_references(released).await;
                Ok(Reply::Done)
            }
            Operation::List { dir, after } => self.list(dir, after, false).await,
            Operation::ListReachable { dir, after } => self.list(dir, after, true).await,
            Operation::Space => self.space().await,
            Operation::OwnPartitions => Ok(Reply::Partitions(self.map.partitions_of(self.id))),
            Operation::Placement => Ok(Reply::Placement(self.map.owners().to_vec())),
            Operation::Consistency => Ok(Reply::Consistency(self.map.consistency())),
            Operation::Marks => self.all_marks().await,
            Operation::RecordMarks { marks } => self.record_marks(marks).await,
            Operation::Hold { ids } => self.hold_all(client, ids).await,
            Operation::Lookup { dir, name, holds } => {
                let owner = self.map.owner_of_name(NameHash::new(dir, name));
                self.lookup_node(client, owner, operation, holds).await
            }
            Operation::Create { .. } => {
                let owner = self.member_for(&operation)?;
                self.call_for_reference(client, owner, PeerRequest::Perform(operation)).await
            }
            operation => self.call(self.member_for(&operation)?, PeerRequest::Perform(operation)).await,
        }
    }

    /// Looks up an entry and its node, which may be on another member.
    async fn lookup_node(
        self: &Rc<Member>,
        client: ClientId,
        owner: MemberId,
        lookup: Operation<'_>,
        holds: bool,
    ) -> Result<Reply<'static>> {
        let mut missing = None;
        loop {
            let request = PeerRequest::Perform(lookup.clone());
            let id = match self.call_for_reference(client, owner, request).await? {
                Reply::Elsewhere(id) => id,
                reply => return Ok(reply),
            };
            let home = self.map.home(id)?;
            match self.call_for_reference(client, home, PeerRequest::Hold { id, holds }).await {
                Ok(Reply::Node(node)) => return Ok(Reply::Found(Some(node))),
                // The node was removed meanwhile, unless the name still refers to it.
                Err(error) if error.kind == ErrorKind::Stale && missing != Some(id) => missing = Some(id),
                result => return result,
            }
        }
    }

    /// Sends a request that may make a reference for a client.
    pub(crate) async fn call_for_reference(
        self: &Rc<Member>,
        client: ClientId,
        to: MemberId,
        request: PeerRequest<'_>,
    ) -> Result<Reply<'static>> {
        let (result, number) = self.call_numbered(to, request).await;
        match &result {
            Ok(Reply::Held(node)) => {
                self.client_holds.borrow_mut().add(client, node.id, number);
                if to != self.id {
                    self.outgoing.borrow_mut().entry(to).or_default().held += 1;
                }
            }
            Err(error) if to != self.id && is_unknown(error) => {
                self.outgoing.borrow_mut().entry(to).or_default().note_unanswered(number);
            }
            _ => {}
        }
        result
    }

    /// Returns the number of this start of the member, which is larger than the numbers of earlier
    /// starts.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Returns whether a client has asked this member to end.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    /// Returns the references of a client that has ended. References to nodes of members that
    /// cannot be reached are returned later.
    pub async fn end_client(self: Rc<Member>, client: ClientId) {
        let released = self.client_holds.borrow_mut().end_client(client);
        self.return_references(released).await;
    }

    /// Performs a request of another member and returns the encoded result: `Result<Reply,
    /// Failure>`. It must be polled to its end.
    pub async fn serve(self: Rc<Member>, message: &[u8]) -> Vec<u8> {
        let result = match decode(message) {
            Ok((Route::Member { from, .. }, message)) => self.serve_message(from, message).await,
            Ok((Route::Backup, _)) => Err(Error::new(ErrorKind::Damaged, "decode a message", "")),
            Err(error) => Err(error),
        };
        encode(&result.map_err(Failure::from))
    }

    async fn serve_message(
        self: &Rc<Member>,
        from: MemberId,
        message: PeerMessage<'_>,
    ) -> Result<Reply<'static>> {
        let PeerMessage { session, number, first_waiting, abandoned, request } = message;
        let origin = Origin { member: from, session, number };
        let waiting = Waiting { first: first_waiting, abandoned };
        let admission = self.sessions.borrow_mut().admit(origin, &waiting, self.monotonic())?;
        if admission == Admission::First {
            self.keep_references(from);
        }
        self.forget_results(origin, first_waiting);
        let counted = self.begin_peer_request(&request);
        let result = match self.environment.has_copies && is_performed_once(&request) {
            true => self.serve_once(origin, request).await,
            false => self.serve_request(origin, request).await,
        };
        self.end_request(&counted, &result);
        result
    }

    pub(crate) async fn serve_request(
        self: &Rc<Member>,
        origin: Origin,
        request: PeerRequest<'_>,
    ) -> Result<Reply<'static>> {
        match request {
            PeerRequest::Perform(operation) => self.execute(origin, operation).await,
            PeerRequest::Hold { id, holds } => self.hold(id, holds.then_some(origin)),
            PeerRequest::Return { references, unanswered } => {
                self.take_back(origin, references, unanswered).await
            }
            PeerRequest::Above { id } => self.above(id),
            PeerRequest::Declare { references } => self.take_declared(origin, references),
            PeerRequest::Renew => Ok(self.sessions.borrow_mut().renew(origin.member, self.session)),
            PeerRequest::ListPart { dir, after, count_max } => self.list_part(dir, after, count_max),
            PeerRequest::PrepareRemoval { transaction, dir } => self.prepare_removal(transaction, dir),
            PeerRequest::PrepareName { transaction, dir, name, id, kind, mode } => {
                self.prepare_name(transaction, (dir, name), EntryRecord { id, kind }, mode)
            }
            PeerRequest::PrepareNode { transaction, id, name } => self.prepare_node(transaction, id, name),
            PeerRequest::EndTransaction { transaction, is_committed } => {
                self.end_transaction(transaction, is_committed).await
            }
            PeerRequest::Outcome { transaction } => self.outcome(transaction),
            PeerRequest::SetDirGroup { dir, gid } => self.set_dir_group(dir, gid),
            PeerRequest::Touch { dir, time } => self.touch(dir, time),
            PeerRequest::NoteChunks { files } => self.note_chunks(files),
            PeerRequest::TruncateChunks { id, size_bytes } => self.truncate_chunks(id, size_bytes),
            PeerRequest::RemoveChunks { id } => self.remove_chunks(id),
            PeerRequest::SyncChunks { id } => self.sync_chunks(id),
            PeerRequest::Space => self.own_space(),
            PeerRequest::ForgetDirs => self.forget_dirs(),
            PeerRequest::Mark => self.own_mark(),
            PeerRequest::RecordMark { changes } => self.record_mark(changes),
        }
    }

    /// Performs an operation that concerns this member, for a client of the node of `origin`.
    async fn execute(self: &Rc<Member>, origin: Origin, operation: Operation<'_>) -> Result<Reply<'static>> {
        let is_change = is_change(&operation);
        let result = self.execute_uncounted(origin, operation).await;
        if is_change {
            // Failed operations are counted, too, because a part of the change may have been made.
            self.count_change();
        }
        result
    }

    async fn execute_uncounted(
        self: &Rc<Member>,
        origin: Origin,
        operation: Operation<'_>,
    ) -> Result<Reply<'static>> {
        match operation {
            Operation::Lookup { dir, name, holds } => self.lookup(origin, dir, name, holds).await,
            Operation::Attributes { id } => self.hold(id, None),
            Operation::Name { id } => self.name(id),
            Operation::Create { dir, name, kind, permissions, uid, gid } => {
                self.create(origin, dir, name, kind, (permissions, uid, gid)).await
            }
            Operation::Remove { dir, name, matching } => self.remove(origin, dir, name, matching).await,
            Operation::Rename { from_dir, from, to_dir, to, mode } => {
                self.rename(origin, (from_dir, from), (to_dir, to), mode).await
            }
            Operation::Change { id, settings } => self.change(origin, id, settings).await,
            Operation::ReadLink { id } => self.read_link(id),
            Operation::Xattr { id, name } => self.xattr(id, name),
            Operation::XattrNames { id } => self.xattr_names(id),
            Operation::SetXattr { id, name, value, mode } => self.set_xattr(origin, id, (name, value), mode),
            Operation::RemoveXattr { id, name } => self.remove_xattr(origin, id, name),
            Operation::Read { id, chunk, offset, bytes } => self.read(id, chunk, offset, bytes),
            Operation::Write { id, chunk, offset, data } => self.write(id, chunk, offset, data).await,
            Operation::ReadInline { id, offset, bytes } => self.read_inline(id, offset, bytes),
            Operation::WriteInline { id, offset, data } => self.write_inline(origin, id, offset, data).await,
            Operation::NoteData { id } => self.note_data_for_client(id).await,
            Operation::Grow { id, size_bytes_min } => self.grow(id, size_bytes_min).await,
            Operation::Reserve { id, bytes } => self.reserve(origin, id, bytes).await,
            Operation::Sync { id } => self.sync(id).await,
            Operation::MemberSpace { .. } => self.own_space(),
            Operation::Counters { .. } => self.own_counters(),
            Operation::StopMember { .. } => {
                self.is_stopping.set(true);
                Ok(Reply::Done)
            }
            // The daemon of the client's node performs these operations.
            Operation::List { .. }
            | Operation::ListReachable { .. }
            | Operation::Release { .. }
            | Operation::Space
            | Operation::OwnPartitions
            | Operation::Placement
            | Operation::Consistency
            | Operation::Marks
            | Operation::RecordMarks { .. }
            | Operation::Hold { .. } => {
                Err(Error::new(ErrorKind::InvalidInput, "perform for another member", ""))
            }
        }
    }

    /// Returns the member that performs an operation.
    fn member_for(&self, operation: &Operation<'_>) -> Result<MemberId> {
        match operation {
            Operation::Lookup { dir, name, .. }
            | Operation::Create { dir, name, .. }
            | Operation::Remove { dir, name, .. }
            | Operation::Rename { from_dir: dir, from: name, .. } => {
                Ok(self.map.owner_of_name(NameHash::new(*dir, name)))
            }
            Operation::Read { id, chunk, .. } | Operation::Write { id, chunk, .. } => {
                Ok(self.map.owner_of_chunk(*id, *chunk))
            }
            Operation::Attributes { id }
            | Operation::Name { id }
            | Operation::Change { id, .. }
            | Operation::ReadLink { id }
            | Operation::Xattr { id, .. }
            | Operation::XattrNames { id }
            | Operation::SetXattr { id, .. }
            | Operation::RemoveXattr { id, .. }
            | Operation::ReadInline { id, .. }
            | Operation::WriteInline { id, .. }
            | Operation::NoteData { id }
            | Operation::Grow { id, .. }
            | Operation::Reserve { id, .. }
            | Operation::Sync { id } => self.map.home(*id),
            Operation::MemberSpace { member }
            | Operation::Counters { member }
            | Operation::StopMember { member } => match self.map.members().contains(member) {
                true => Ok(*member),
                false => Err(Error::new(ErrorKind::InvalidInput, "ask member", member.0.to_string())),
            },
            Operation::List { .. }
            | Operation::ListReachable { .. }
            | Operation::Release { .. }
            | Operation::Space
            | Operation::OwnPartitions
            | Operation::Placement
            | Operation::Consistency
            | Operation::Marks
            | Operation::RecordMarks { .. }
            | Operation::Hold { .. } => Ok(self.id),
        }
    }

    /// Sends a request to a member, which may be this one, and returns its reply.
    pub(crate) async fn call(
        self: &Rc<Member>,
        to: MemberId,
        request: PeerRequest<'_>,
    ) -> Result<Reply<'static>> {
        self.call_numbered(to, request).await.0
    }

    /// Sends a request like `call`, and also returns its number.
    async fn call_numbered(
        self: &Rc<Member>,
        to: MemberId,
        request: PeerRequest<'_>,
    ) -> (Result<Reply<'static>>, u64) {
        let number = self.last_request.get() + 1;
        self.last_request.set(number);
        if to == self.id {
            let origin = Origin { member: self.id, session: self.session, number };
            // The future is boxed because requests to this member can be nested.
            return (Box::pin(self.serve_request(origin, request)).await, number);
        }
        let reply_bytes_max = reply_bytes_max(&request);
        let is_repeatable = is_repeatable(&request, self.environment.has_copies);
        let waiting = self.outgoing.borrow_mut().entry(to).or_default().begin(number);
        let message = PeerMessage {
            session: self.session,
            number,
            first_waiting: waiting.first,
            abandoned: waiting.abandoned,
            request,
        };
        let message = encode(&(Route::Member { from: self.id, to }, message));
        let reply = self.environment.peers.call(to, message, reply_bytes_max, is_repeatable).await;
        self.outgoing.borrow_mut().entry(to).or_default().end(number, reply.is_ok());
        let result = reply.and_then(|reply| {
            let result: Result<Reply<'_>, Failure> = decode(&reply)?;
            match result {
                Ok(reply) => Ok(into_owned(reply)),
                Err(failure) => Err(failure.into_error("ask member", to.0.to_string().as_bytes())),
            }
        });
        (result, number)
    }

    /// Sends a request to all members, this one included, and returns their replies.
    pub(crate) async fn call_all(
        self: &Rc<Member>,
        request: &PeerRequest<'_>,
    ) -> Vec<Result<Reply<'static>>> {
        self.call_each(self.map.members().iter(), request).await
    }

    /// Sends a request to all members. Errors: the error of the first member that failed.
    pub(crate) async fn send_to_all(self: &Rc<Member>, request: &PeerRequest<'_>) -> Result<()> {
        self.call_all(request).await.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// Sends a request to all other members. Errors: the error of the first member that failed.
    pub(crate) async fn send_to_others(self: &Rc<Member>, request: &PeerRequest<'_>) -> Result<()> {
        let others = self.map.members().iter().filter(|member| **member != self.id);
        self.call_each(others, request).await.into_iter().try_for_each(|reply| reply.map(drop))
    }

    async fn call_each(
        self: &Rc<Member>,
        members: impl Iterator<Item = &MemberId>,
        request: &PeerRequest<'_>,
    ) -> Vec<Result<Reply<'static>>> {
        join_all(members.map(|member| self.call(*member, request.clone()))).await
    }

    /// Returns descriptions of the state in memory that a member without clients and requests must
    /// not have.
    #[cfg(test)]
    pub(crate) fn remains(&self) -> Vec<String> {
        let mut remains = Vec::new();
        let mut check = |is_empty: bool, text: &str| {
            if !is_empty {
                remains.push(format!("member {} has {text}", self.id.0));
            }
        };
        check(self.locks.is_free(), "a lock");
        check(self.prepared.borrow().0.is_empty(), "a prepared transaction");
        check(self.undecided.borrow().is_empty(), "an undecided transaction");
        check(self.unsent_decisions.borrow().is_empty(), "a decision that other members have not received");
        check(self.unfinished.borrow().is_empty(), "an unfinished node");
        check(self.unreported_chunks.borrow().is_empty(), "chunks that were not reported");
        check(self.member_holds.borrow().is_free(), "references of members");
        check(self.client_holds.borrow().is_free(), "references of clients");
        let is_returned = |outgoing: &Outgoing| {
            outgoing.held == 0 && outgoing.returned.is_empty() && outgoing.unanswered.is_empty()
        };
        check(self.outgoing.borrow().values().all(is_returned), "references to return");
        remains
    }

    /// Performs background work: completes transactions, finishes nodes, and renews, returns and
    /// drops references. Must be called about once a second. A call during another call has no
    /// effect.
    ///
    /// # Errors
    /// The first error. The next call repeats everything that has failed.
    pub async fn maintain(self: Rc<Member>) -> Result<()> {
        if self.is_maintaining.replace(true) {
            return Ok(());
        }
        self.expire_references();
        let (ended, sent, maintained, reported) = join4(
            self.end_prepared(),
            self.send_decisions(),
            self.maintain_references(),
            self.report_chunks(),
        )
        .await;
        let finished = self.finish_nodes().await;
        self.is_maintaining.set(false);
        ended.and(sent).and(maintained).and(reported).and(finished)
    }
}

/// Returns whether a request that failed with this error may have been performed.
pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unavailable | ErrorKind::TimedOut)
}

/// Returns whether a request can be sent again after the loss of its reply: a repetition has no
/// additional effect, or, in a pool with copies, gets the result of the first execution
/// (`repetition.rs`). A reference has the number of its request, which a repetition keeps.
fn is_repeatable(request: &PeerRequest<'_>, has_copies: bool) -> bool {
    match request {
        PeerRequest::Perform(Operation::StopMember { .. }) => false,
        PeerRequest::Perform(operation) => has_copies || !is_change(operation),
        PeerRequest::Hold { .. }
        | PeerRequest::Above { .. }
        | PeerRequest::ListPart { .. }
        | PeerRequest::Outcome { .. }
        | PeerRequest::SyncChunks { .. }
        | PeerRequest::Space => true,
        PeerRequest::Return { .. }
        | PeerRequest::Declare { .. }
        | PeerRequest::Renew
        | PeerRequest::PrepareRemoval { .. }
        | PeerRequest::PrepareName { .. }
        | PeerRequest::PrepareNode { .. }
        | PeerRequest::EndTransaction { .. }
        | PeerRequest::SetDirGroup { .. }
        | PeerRequest::Touch { .. }
        | PeerRequest::NoteChunks { .. }
        | PeerRequest::TruncateChunks { .. }
        | PeerRequest::RemoveChunks { .. }
        | PeerRequest::ForgetDirs
        | PeerRequest::Mark
        | PeerRequest::RecordMark { .. } => has_copies,
    }
}

/// Returns the largest length of the reply to a request, in bytes.
fn reply_bytes_max(request: &PeerRequest<'_>) -> u32 {
    /// Space for a name, the target of a link, or the text of an error.
    const SMALL: u32 = 8 << 10;
    match request {
        PeerRequest::Perform(Operation::Read { bytes, .. }) => bytes.saturating_add(SMALL),
        PeerRequest::Perform(Operation::ReadInline { .. }) => SMALL + INLINE_BYTES_MAX as u32,
        PeerRequest::Perform(Operation::Xattr { .. } | Operation::XattrNames { .. }) => {
            SMALL + XATTRS_BYTES_MAX as u32
        }
        PeerRequest::ListPart { .. } => LIST_BYTES_MAX,
        _ => SMALL,
    }
}
