//! The first halves of calls that other calls interrupted in the trace, one for each process. Their
//! total size is limited.

use std::collections::HashMap;

use crate::trace::descriptors::OpenFile;
use crate::trace::processes::Pid;

/// Limit on the bytes of the stored calls; further calls count as never ended.
const BYTES_MAX: usize = 32 << 20;

/// The first half of an interrupted call.
#[derive(Debug)]
pub struct UnfinishedCall {
    pub name: Vec<u8>,
    pub text: Vec<u8>,
    pub time_us: u64,
    /// Whether the creation of a child has begun in the process table.
    pub began_fork: bool,
    /// The descriptor that is being closed, and its file.
    pub closing: Option<(i32, OpenFile)>,
}

impl UnfinishedCall {
    fn bytes(&self) -> usize {
        size_of::<UnfinishedCall>() + self.name.len() + self.text.len()
    }
}

#[derive(Debug, Default)]
pub struct UnfinishedCalls {
    calls: HashMap<Pid, UnfinishedCall>,
    bytes: usize,
}

impl UnfinishedCalls {
    pub fn insert(&mut self, pid: Pid, call: UnfinishedCall) {
        self.bytes += call.bytes();
        self.calls.insert(pid, call);
    }

    /// Returns whether the stored calls exceed the limit.
    pub fn is_full(&self) -> bool {
        self.bytes > BYTES_MAX
    }

    pub fn contains(&self, pid: Pid) -> bool {
        self.calls.contains_key(&pid)
    }

    /// Returns whether the unfinished call of this process has this name.
    pub fn has_name(&self, pid: Pid, name: &[u8]) -> bool {
        self.calls.get(&pid).is_some_and(|call| call.name == name)
    }

    pub fn remove(&mut self, pid: Pid) -> Option<UnfinishedCall> {
        let call = self.calls.remove(&pid)?;
        self.bytes -= call.bytes();
        Some(call)
    }

    /// Changes the id of a process.
    pub fn rename(&mut self, from: Pid, to: Pid) {
        if let Some(call) = self.calls.remove(&from) {
            self.calls.insert(to, call);
        }
    }

    /// Returns the processes with an unfinished call, by id.
    pub fn pids(&self) -> Vec<Pid> {
        let mut pids: Vec<Pid> = self.calls.keys().copied().collect();
        pids.sort();
        pids
    }
}
