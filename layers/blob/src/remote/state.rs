//! The states that a client reads: a snapshot on the server, or the latest state, and a draft.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use quell_blob_service::BlobStat;
use quell_vfs::{Error, Result};
use quell_wire::blob::{
    DATA_BYTES_MAX, Draft, MESSAGE_BYTES_MAX, NAMES_MAX, Operation, OperationResult, ReadState, Refusal,
    Reply, Request, SnapshotId, Version,
};
use quell_wire::{decode, encode};

use super::connection::{Connection, REPLY_OVERHEAD_BYTES, SHORT_REPLY_BYTES};
use crate::backend::TransactionState;

/// The largest number of reads of parts of one range that are in flight at a time.
const PARTS_IN_FLIGHT: usize = 4;

/// A snapshot on the server, or the latest state, and a draft.
pub(super) struct RemoteState {
    connection: Arc<Connection>,
    snapshot: Option<SnapshotId>,
    version: Version,
    operations: Vec<Operation>,
    /// Whether one of the operations is a rename.
    has_rename: bool,
}

impl RemoteState {
    /// Begins a snapshot.
    pub(super) fn begin(connection: &Arc<Connection>) -> Result<RemoteState> {
        let reply = connection.call(&Request::Begin, SHORT_REPLY_BYTES)?;
        Ok(RemoteState::begun(connection, reply)?.1)
    }

    /// Returns the snapshot that a request has begun, with its number.
    pub(super) fn begun(connection: &Arc<Connection>, reply: Reply) -> Result<(SnapshotId, RemoteState)> {
        match reply {
            Reply::Begun { snapshot, version } => {
                connection.know(version);
                Ok((snapshot, RemoteState::new(connection, Some(snapshot), version)))
            }
            other => Err(connection.unexpected(other)),
        }
    }

    /// Returns the latest state, for reads that may see different states.
    pub(super) fn latest(connection: &Arc<Connection>) -> RemoteState {
        RemoteState::new(connection, None, Version(connection.known.load(Ordering::Relaxed)))
    }

    fn new(connection: &Arc<Connection>, snapshot: Option<SnapshotId>, version: Version) -> RemoteState {
        let connection = connection.clone();
        RemoteState { connection, snapshot, version, operations: Vec::new(), has_rename: false }
    }

    /// Passes the state of a read, with the operations that concern it, to `request`, and returns
    /// the reply.
    fn read_with(
        &self,
        concerns: impl Fn(&Operation) -> bool,
        reply_bytes_max: usize,
        request: impl Fn(ReadState) -> Request,
    ) -> Result<Reply> {
        let connection = &self.connection;
        let operations: Vec<Operation> =
            self.operations.iter().filter(|operation| self.is_sent(operation, &concerns)).cloned().collect();
        let draft = Draft::Inline(operations);
        let encoded = encode(&draft);
        let reply_bytes_max = reply_bytes_max.min(MESSAGE_BYTES_MAX) as u32;
        let call =
            |draft| connection.call(&request(ReadState { snapshot: self.snapshot, draft }), reply_bytes_max);
        if encoded.len() <= DATA_BYTES_MAX {
            return call(draft);
        }
        let upload = connection.upload(&encoded, Instant::now() + connection.limit)?;
        let reply = call(Draft::Uploaded(upload));
        connection.forget(&Request::Discard(upload));
        reply
    }

    /// Returns whether a read sends an operation. After a rename, operations on other names can
    /// concern the blob as well.
    fn is_sent(&self, operation: &Operation, concerns: impl Fn(&Operation) -> bool) -> bool {
        concerns(operation) || self.has_rename
    }

    /// Reads parts of a range without operations, several at a time.
    fn read_parts(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let connection = &self.connection;
        let deadline = Instant::now() + connection.limit;
        let mut begun = VecDeque::new();
        let (mut next, mut done) = (0, 0);
        while done < into.len() {
            while next < into.len() && begun.len() < PARTS_IN_FLIGHT {
                let length = (into.len() - next).min(DATA_BYTES_MAX);
                let Some(at) = offset.checked_add(next as u64) else { break };
                let request = encode(&self.part(name, at, length));
                let reply_bytes_max = (length + REPLY_OVERHEAD_BYTES) as u32;
                let receiver = connection.begin(request.clone(), reply_bytes_max, deadline);
                begun.push_back((receiver, request, reply_bytes_max, length));
                next += length;
            }
            let Some((receiver, request, reply_bytes_max, length)) = begun.pop_front() else { break };
            let reply = connection.finish_encoded(receiver, &request, reply_bytes_max, deadline)?;
            // The data is copied only once, into the caller's buffer.
            let data = match Reply::decode_data(&reply) {
                Some(data) if data.len() <= length => data,
                _ => return Err(self.read_error(name, decode(&reply)?)),
            };
            into[done..done + data.len()].copy_from_slice(data);
            done += data.len();
            if data.len() < length {
                break;
            }
        }
        Ok(done)
    }

    pub(super) fn part(&self, name: &[u8], offset: u64, length: usize) -> Request {
        let state = ReadState { snapshot: self.snapshot, draft: Draft::Inline(Vec::new()) };
        Request::Read { state, name: name.to_vec(), offset, length_bytes: length as u32 }
    }

    /// Returns the error of a read of a blob.
    pub(super) fn read_error(&self, name: &[u8], reply: Reply) -> Error {
        match reply {
            Reply::Failed(failure) => failure.into_error("read", name),
            other => self.connection.unexpected(other),
        }
    }
}

impl TransactionState for RemoteState {
    fn version(&self) -> Version {
        self.version
    }

    /// Adds the operation to the draft. A read sends the operations that concern it to the server.
    /// If one of them cannot be applied, the read fails with the reason.
    fn apply(&mut self, operation: &Operation) -> std::result::Result<OperationResult, Refusal> {
        self.has_rename |= matches!(operation, Operation::Rename { .. });
        self.operations.push(operation.clone());
        Ok(OperationResult::Done)
    }

    fn stat(&self, name: &[u8]) -> Result<Option<BlobStat>> {
        let request = |state| Request::Stat { state, name: name.to_vec() };
        let concerns = |operation: &Operation| operation.name() == name;
        match self.read_with(concerns, SHORT_REPLY_BYTES as usize, request)? {
            Reply::Stat(stat) => Ok(stat),
            other => Err(self.read_error(name, other)),
        }
    }

    fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let concerns = |operation: &Operation| operation.name() == name;
        if !self.operations.iter().any(|operation| self.is_sent(operation, concerns)) {
            // Parts of the latest state could belong to different states.
            if self.snapshot.is_none() && into.len() > DATA_BYTES_MAX {
                return RemoteState::begin(&self.connection)?.read(name, offset, into);
            }
            return self.read_parts(name, offset, into);
        }
        let mut done = 0;
        while done < into.len() {
            let length = (into.len() - done).min(DATA_BYTES_MAX);
            let Some(at) = offset.checked_add(done as u64) else { break };
            let request =
                |state| Request::Read { state, name: name.to_vec(), offset: at, length_bytes: length as u32 };
            match self.read_with(concerns, length + REPLY_OVERHEAD_BYTES, request)? {
                Reply::Data(data) if data.len() <= length => {
                    into[done..done + data.len()].copy_from_slice(&data);
                    done += data.len();
                    if data.len() < length {
                        break;
                    }
                }
                other => return Err(self.read_error(name, other)),
            }
        }
        Ok(done)
    }

    fn next_data(&self, name: &[u8], offset: u64) -> Result<Option<u64>> {
        let request = |state| Request::NextData { state, name: name.to_vec(), offset };
        let concerns = |operation: &Operation| operation.name() == name;
        match self.read_with(concerns, SHORT_REPLY_BYTES as usize, request)? {
            Reply::Position(position) => Ok(position),
            other => Err(self.read_error(name, other)),
        }
    }

    fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, BlobStat)>> {
        let mut found: Vec<(Vec<u8>, BlobStat)> = Vec::new();
        let concerns = |operation: &Operation| operation.name().starts_with(prefix);
        while found.len() < limit {
            let after = found.last().map_or(after, |(name, _)| name).to_vec();
            let count_max = (limit - found.len()).min(NAMES_MAX) as u32;
            let request =
                |state| Request::List { state, prefix: prefix.to_vec(), after: after.clone(), count_max };
            match self.read_with(concerns, MESSAGE_BYTES_MAX, request)? {
                Reply::Names { names, is_complete } => {
                    let is_last = is_complete || names.is_empty();
                    found.extend(names);
                    if is_last {
                        break;
                    }
                }
                other => return Err(self.read_error(prefix, other)),
            }
        }
        found.truncate(limit);
        Ok(found)
    }
}

impl Drop for RemoteState {
    fn drop(&mut self) {
        if let Some(snapshot) = self.snapshot {
            self.connection.forget(&Request::End(snapshot));
        }
    }
}
