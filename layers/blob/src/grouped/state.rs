//! The states of a store with several groups of servers: a snapshot of all groups, or the latest
//! state of each one.

use std::sync::Arc;

use quell_blob_service::BlobStat;
use quell_vfs::{Error, Result};
use quell_wire::blob::{Operation, OperationResult, Refusal, Version, group_of};

use super::servers::Servers;
use super::split::group_of_operation;
use crate::backend::{Backend, TransactionState};

/// A snapshot of each group, which together are one state of the store, and a draft.
pub(super) struct SnapshotStates {
    servers: Arc<Servers>,
    states: Vec<Box<dyn TransactionState>>,
}

/// The latest state of each group, for reads of one blob.
pub(super) struct LatestStates(pub(super) Arc<Servers>);

impl SnapshotStates {
    pub(super) fn new(servers: Arc<Servers>, states: Vec<Box<dyn TransactionState>>) -> SnapshotStates {
        SnapshotStates { servers, states }
    }

    fn read_blob<T>(&self, name: &[u8], read: impl Fn(&dyn TransactionState) -> Result<T>) -> Result<T> {
        let group = group_of(name, self.servers.count());
        self.servers.read(group, || read(&*self.states[group as usize]))
    }
}

impl TransactionState for SnapshotStates {
    /// Returns a number that is larger for later states.
    fn version(&self) -> Version {
        Version(self.states.iter().fold(0, |sum: u64, state| sum.saturating_add(state.version().0)))
    }

    fn versions(&self) -> Vec<Version> {
        self.states.iter().map(|state| state.version()).collect()
    }

    fn apply(&mut self, operation: &Operation) -> std::result::Result<OperationResult, Refusal> {
        let group = group_of_operation(operation, self.servers.count())?;
        self.states[group as usize].apply(operation)
    }

    fn stat(&self, name: &[u8]) -> Result<Option<BlobStat>> {
        self.read_blob(name, |state| state.stat(name))
    }

    fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        let group = group_of(name, self.servers.count());
        self.servers.read(group, || self.states[group as usize].read(name, offset, into))
    }

    fn next_data(&self, name: &[u8], offset: u64) -> Result<Option<u64>> {
        self.read_blob(name, |state| state.next_data(name, offset))
    }

    fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, BlobStat)>> {
        let mut found = Vec::new();
        for (group, state) in (0..).zip(&self.states) {
            found.extend(self.servers.read(group, || state.list(prefix, after, limit))?);
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.truncate(limit);
        Ok(found)
    }
}

impl LatestStates {
    fn read_blob<T>(
        &self,
        name: &[u8],
        mut read: impl FnMut(&dyn TransactionState) -> Result<T>,
    ) -> Result<T> {
        let latest = self.0.remote_of(name)?.latest()?;
        self.0.read(group_of(name, self.0.count()), || read(&*latest))
    }
}

impl TransactionState for LatestStates {
    fn version(&self) -> Version {
        Version(0)
    }

    fn apply(&mut self, _operation: &Operation) -> std::result::Result<OperationResult, Refusal> {
        Err(Error::new(quell_vfs::ErrorKind::Unsupported, "change", "the latest state").into())
    }

    fn stat(&self, name: &[u8]) -> Result<Option<BlobStat>> {
        self.read_blob(name, |state| state.stat(name))
    }

    fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_blob(name, |state| state.read(name, offset, into))
    }

    fn next_data(&self, name: &[u8], offset: u64) -> Result<Option<u64>> {
        self.read_blob(name, |state| state.next_data(name, offset))
    }

    /// Lists one state of the store.
    fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, BlobStat)>> {
        SnapshotStates::new(self.0.clone(), self.0.begin()?).list(prefix, after, limit)
    }
}
