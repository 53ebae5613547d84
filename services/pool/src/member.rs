//! One member of a pool: receives the operations of the clients of its node and the requests of
//! other members, and passes each to the member and the function that it concerns.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::rc::Rc;

use lru::LruCache;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, MemberId, Operation, PeerRequest, Reply, Stamp, TransactionId};
use quell_wire::{Failure, decode, encode};

use crate::environment::Environment;
use crate::holds::{ClientHolds, ClientId, MemberHolds};
use crate::lock_table::{Held, LockTable};
use crate::map::{NameHash, PoolMap};
use crate::marks::{Marks, is_change};
use crate::prepared::Prepared;
use crate::replies::into_owned;

/// The number of chunks whose records are known to exist.
const KNOWN_CHUNKS_MAX: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

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
    client_holds: RefCell<ClientHolds>,
    pub(crate) prepared: RefCell<HashMap<TransactionId, Prepared>>,
    /// Transactions of this member that have not ended.
    pub(crate) undecided: RefCell<HashSet<TransactionId>>,
    /// Directories in which no entry may be created at the moment.
    pub(crate) closed_dirs: RefCell<HashSet<FileId>>,
    /// Removed directories, in which no entry may be created ever after.
    pub(crate) removed_dirs: RefCell<HashSet<FileId>>,
    /// The groups that directories pass on to their entries.
    pub(crate) dir_groups: RefCell<HashMap<FileId, u32>>,
    /// Times of changes of directories that their members do not know yet.
    pub(crate) touched_dirs: RefCell<HashMap<FileId, Stamp>>,
    /// The lock of renames that another member holds, if this is the member of the root.
    pub(crate) renames: RefCell<HashMap<MemberId, Held>>,
    /// Chunks whose records exist.
    pub(crate) known_chunks: RefCell<LruCache<(FileId, u64), ()>>,
    pub(crate) marks: Marks,
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
    /// this member has it: with permissions 0700, and with this owner and group.
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
        let member = Member {
            id,
            map,
            environment,
            locks: LockTable::default(),
            member_holds: RefCell::default(),
            client_holds: RefCell::default(),
            prepared: RefCell::default(),
            undecided: RefCell::default(),
            closed_dirs: RefCell::default(),
            removed_dirs: RefCell::default(),
            dir_groups: RefCell::default(),
            touched_dirs: RefCell::default(),
            renames: RefCell::default(),
            known_chunks: RefCell::new(LruCache::new(KNOWN_CHUNKS_MAX)),
            marks: Marks::default(),
            is_stopping: Cell::new(false),
            next_number: Cell::new(0),
            reserved_numbers: Cell::new(0),
        };
        member.load_directories()?;
        member.load_numbers()?;
        member.load_prepared()?;
        member.load_marks()?;
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
        let result = self.perform_decoded(client, &operation).await;
        encode(&result.map_err(Failure::from))
    }

    async fn perform_decoded(
        self: &Rc<Member>,
        client: ClientId,
        operation: &[u8],
    ) -> Result<Reply<'static>> {
        let operation: Operation<'_> = decode(operation)?;
        let reply = match operation {
            Operation::Release { references } => {
                let released = {
                    let mut holds = self.client_holds.borrow_mut();
                    let release = |(id, count)| (id, holds.release(client, id, u64::from(count)));
                    references.into_iter().map(release).collect()
                };
                self.return_references(released).await?;
                Reply::Done
            }
            Operation::List { dir, after } => self.list(dir, after).await?,
            Operation::Space => self.space().await?,
            Operation::Marks => self.all_marks().await?,
            Operation::RecordMarks { marks } => self.record_marks(marks).await?,
            Operation::Stop => {
                self.is_stopping.set(true);
                Reply::Done
            }
            operation => match self.member_for(&operation)? {
                owner if owner == self.id => self.execute(self.id, operation).await?,
                owner => self.call(owner, &PeerRequest::Perform(operation)).await?,
            },
        };
        if let Reply::Held(node) = &reply {
            self.client_holds.borrow_mut().add(client, node.id);
        }
        Ok(reply)
    }

    /// Returns whether a client has asked this member to end.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    /// Returns the references of a client that has ended.
    ///
    /// # Errors
    ///
    /// `Unavailable` if a member could not be told.
    pub async fn end_client(self: Rc<Member>, client: ClientId) -> Result<()> {
        let released = self.client_holds.borrow_mut().release_all(client);
        self.return_references(released.into_iter().collect()).await
    }

    /// Performs a request of another member and returns the encoded result: `Result<Reply,
    /// Failure>`. It must be polled to its end.
    pub async fn serve(self: Rc<Member>, from: MemberId, request: Vec<u8>) -> Vec<u8> {
        let result = match decode(&request) {
            Ok(request) => self.serve_decoded(from, request).await,
            Err(error) => Err(error),
        };
        encode(&result.map_err(Failure::from))
    }

    async fn serve_decoded(
        self: &Rc<Member>,
        from: MemberId,
        request: PeerRequest<'_>,
    ) -> Result<Reply<'static>> {
        match request {
            PeerRequest::Perform(operation) => self.execute(from, operation).await,
            PeerRequest::Hold { id, holder } => self.hold(id, holder),
            PeerRequest::Return { references } => self.take_back(from, references).await,
            PeerRequest::LoseName { id } => self.lose_name(id).await,
            PeerRequest::SetName { id, dir, name } => self.set_name(id, dir, name),
            PeerRequest::ListPart { dir, after, count_max } => self.list_part(dir, after, count_max),
            PeerRequest::CloseDir { dir } => self.close_dir(dir),
            PeerRequest::OpenDir { dir, is_removed } => self.open_dir(dir, is_removed),
            PeerRequest::PrepareName { transaction, dir, name, id, kind, mode } => {
                self.prepare_name(transaction, dir, name, id, kind, mode)
            }
            PeerRequest::EndTransaction { transaction, is_committed } => {
                self.end_transaction(transaction, is_committed)
            }
            PeerRequest::Outcome { transaction } => self.outcome(transaction),
            PeerRequest::SetDirGroup { dir, gid } => self.set_dir_group(dir, gid),
            PeerRequest::Touch { dir, time } => self.touch(dir, time),
            PeerRequest::LockRenames => self.lock_renames(from).await,
            PeerRequest::UnlockRenames => {
                self.renames.borrow_mut().remove(&from);
                Ok(Reply::Done)
            }
            PeerRequest::TruncateChunks { id, size_bytes } => self.truncate_chunks(id, size_bytes),
            PeerRequest::RemoveChunks { id } => self.remove_chunks(id),
            PeerRequest::SyncChunks { id } => self.sync_chunks(id),
            PeerRequest::Space => self.own_space(),
            PeerRequest::ForgetDirs => self.forget_dirs(),
            PeerRequest::Mark => Ok(self.own_mark()),
            PeerRequest::RecordMark { changes } => self.record_mark(changes),
        }
    }

    /// Performs an operation that concerns this member, for a client of the node of `origin`.
    async fn execute(
        self: &Rc<Member>,
        origin: MemberId,
        operation: Operation<'_>,
    ) -> Result<Reply<'static>> {
        let is_change = is_change(&operation);
        let result = self.execute_uncounted(origin, operation).await;
        if is_change {
            // Also after an error, because a part of the change may have been made.
            self.count_change();
        }
        result
    }

    async fn execute_uncounted(
        self: &Rc<Member>,
        origin: MemberId,
        operation: Operation<'_>,
    ) -> Result<Reply<'static>> {
        match operation {
            Operation::Lookup { dir, name, holds } => self.lookup(origin, dir, name, holds).await,
            Operation::Attributes { id } => self.hold(id, None),
            Operation::Name { id } => self.name(id),
            Operation::Create { dir, name, kind, permissions, uid, gid } => {
                self.create(origin, dir, name, kind, (permissions, uid, gid)).await
            }
            Operation::Remove { dir, name, matching } => self.remove(dir, name, matching).await,
            Operation::Rename { from_dir, from, to_dir, to, mode } => {
                self.rename((from_dir, from), (to_dir, to), mode).await
            }
            Operation::Change { id, settings } => self.change(id, settings).await,
            Operation::ReadLink { id } => self.read_link(id),
            Operation::Read { id, chunk, offset, bytes } => self.read(id, chunk, offset, bytes),
            Operation::Write { id, chunk, offset, data, size_bytes_min } => {
                self.write(id, chunk, offset, data, size_bytes_min).await
            }
            Operation::Grow { id, size_bytes_min } => self.grow(id, size_bytes_min).await,
            Operation::Reserve { id, bytes } => self.reserve(id, bytes).await,
            Operation::Sync { id } => self.sync(id).await,
            // The daemon of the client's node performs these.
            Operation::List { .. }
            | Operation::Release { .. }
            | Operation::Space
            | Operation::Stop
            | Operation::Marks
            | Operation::RecordMarks { .. } => {
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
            | Operation::Grow { id, .. }
            | Operation::Reserve { id, .. }
            | Operation::Sync { id } => self.map.home(*id),
            Operation::List { .. }
            | Operation::Release { .. }
            | Operation::Space
            | Operation::Stop
            | Operation::Marks
            | Operation::RecordMarks { .. } => Ok(self.id),
        }
    }

    /// Sends a request to a member, which may be this one, and returns its reply.
    pub(crate) async fn call(
        self: &Rc<Member>,
        to: MemberId,
        request: &PeerRequest<'_>,
    ) -> Result<Reply<'static>> {
        let reply_bytes_max = reply_bytes_max(request);
        let request = encode(request);
        let reply = if to == self.id {
            // The future is boxed because requests to this member can be nested.
            Box::pin(Rc::clone(self).serve(self.id, request)).await
        } else {
            self.environment.peers.call(to, request, reply_bytes_max).await?
        };
        let result: Result<Reply<'_>, Failure> = decode(&reply)?;
        match result {
            Ok(reply) => Ok(into_owned(reply)),
            Err(failure) => Err(failure.into_error("ask member", to.0.to_string().as_bytes())),
        }
    }

    /// Sends a request to all members, this one included, and returns their replies.
    pub(crate) async fn call_all(
        self: &Rc<Member>,
        request: &PeerRequest<'_>,
    ) -> Vec<Result<Reply<'static>>> {
        let calls = self.map.members().iter().map(|member| self.call(*member, request));
        futures_util::future::join_all(calls).await
    }

    /// Sends a request to all members. Errors: that of the first member that failed.
    pub(crate) async fn tell_all(self: &Rc<Member>, request: &PeerRequest<'_>) -> Result<()> {
        self.call_all(request).await.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// Returns references of clients of this node to the members of the nodes.
    async fn return_references(self: &Rc<Member>, references: Vec<(FileId, u64)>) -> Result<()> {
        let mut by_member: HashMap<MemberId, Vec<(FileId, u64)>> = HashMap::new();
        for (id, count) in references.into_iter().filter(|(_, count)| *count > 0) {
            by_member.entry(self.map.home(id)?).or_default().push((id, count));
        }
        let mut result = Ok(());
        for (member, references) in by_member {
            result = result.and(self.call(member, &PeerRequest::Return { references }).await.map(drop));
        }
        result
    }
}

/// Returns the largest length of the reply to a request, in bytes.
fn reply_bytes_max(request: &PeerRequest<'_>) -> u32 {
    /// Space for a name, the target of a link, or the text of an error.
    const SMALL: u32 = 8 << 10;
    match request {
        PeerRequest::Perform(Operation::Read { bytes, .. }) => bytes.saturating_add(SMALL),
        PeerRequest::ListPart { .. } => LIST_BYTES_MAX,
        _ => SMALL,
    }
}
