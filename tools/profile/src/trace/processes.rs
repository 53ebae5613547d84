//! The processes of a trace with their working directories and descriptors, followed through fork,
//! exec, dup and chdir, so that the file of a descriptor is known even if the tracer did not print
//! it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

use crate::paths::PathId;
use crate::trace::descriptors::{DescriptorTable, OpenFile, Target};

/// A process with its trace: process ids of different traces are unrelated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid {
    pub space: u32,
    pub number: u32,
}

/// The number of a program that was executed; 0 is the program whose start is not in the trace.
pub type ProgramId = u32;

/// The directories at which paths begin.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The working directory, if it is known.
    pub working: Option<PathId>,
    /// `/`, unless it was changed (chroot).
    pub root: PathId,
}

#[derive(Debug, Clone)]
struct Process {
    files: Rc<RefCell<DescriptorTable>>,
    origin: Rc<Cell<Origin>>,
    program: ProgramId,
    /// The threads of a process share this number.
    group: u32,
}

/// The state that a child shares with its parent: descriptors, working and root directory, thread
/// group.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shares {
    pub files: bool,
    pub origin: bool,
    pub group: bool,
}

/// A call that creates a process whose id is not known yet.
#[derive(Debug)]
struct Fork {
    number: u64,
    shares: Shares,
    /// The process that is assumed to be the child, because it was not seen before.
    seen: Option<Pid>,
}

#[derive(Debug)]
pub struct ProcessTable {
    running: HashMap<Pid, Process>,
    /// The ids of running processes by trace.
    ids_by_space: HashMap<u32, BTreeSet<u32>>,
    /// Processes in the order of their start; may include processes that have ended.
    order: VecDeque<Pid>,
    forks: HashMap<Pid, Fork>,
    /// For each trace the parents of forks whose child was not seen, in the order of their calls.
    awaited: HashMap<u32, BTreeMap<u64, Pid>>,
    last_fork: u64,
    /// Whether a parent was determined since the last call of `has_settled`.
    settled: bool,
    /// Number of different processes so far; threads are not counted.
    pub groups: u32,
    /// The working directory of processes whose parent is not in the trace.
    first_working: Option<PathId>,
}

/// Limit on processes that are followed at once: in a trace without ends of processes, the oldest
/// are dropped.
const RUNNING_MAX: usize = 1 << 17;

impl ProcessTable {
    pub fn new(first_working: Option<PathId>) -> ProcessTable {
        ProcessTable {
            running: HashMap::new(),
            ids_by_space: HashMap::new(),
            order: VecDeque::new(),
            forks: HashMap::new(),
            awaited: HashMap::new(),
            last_fork: 0,
            settled: false,
            groups: 0,
            first_working,
        }
    }

    /// Returns a process whose start is not in the trace.
    fn process_without_parent(&mut self) -> Process {
        self.groups += 1;
        Process {
            files: Rc::default(),
            origin: Rc::new(Cell::new(Origin { working: self.first_working, root: PathId::ROOT })),
            program: 0,
            group: self.groups,
        }
    }

    /// Returns a child of `parent`, as fork creates it.
    fn child(&mut self, parent: Pid, shares: Shares) -> Process {
        let own = self.process(parent).clone();
        let group = if shares.group {
            own.group
        } else {
            self.groups += 1;
            self.groups
        };
        Process {
            files: if shares.files { own.files } else { Rc::new(RefCell::new(own.files.borrow().clone())) },
            origin: if shares.origin { own.origin } else { Rc::new(Cell::new(own.origin.get())) },
            program: own.program,
            group,
        }
    }

    fn insert(&mut self, pid: Pid, process: Process) {
        if self.running.insert(pid, process).is_some() {
            return;
        }
        self.ids_by_space.entry(pid.space).or_default().insert(pid.number);
        self.order.push_back(pid);
        while self.running.len() > RUNNING_MAX {
            match self.order.pop_front() {
                // An earlier process with this id, which has ended.
                Some(oldest) if oldest == pid => {}
                Some(oldest) => self.exit(oldest),
                None => break,
            }
        }
        if self.order.len() > 2 * RUNNING_MAX {
            self.order.retain(|pid| self.running.contains_key(pid));
        }
    }

    fn process(&mut self, pid: Pid) -> &mut Process {
        if !self.running.contains_key(&pid) {
            // The process runs before its parent's call returned. Its parent is taken to be the
            // latest one in the same trace that waits for a child.
            let parent = self.awaited.get(&pid.space).and_then(|a| a.values().next_back().copied());
            let process = match parent {
                Some(parent) => {
                    self.remove_awaited(parent);
                    let shares = self.forks.get_mut(&parent).map_or(Shares::default(), |fork| {
                        fork.seen = Some(pid);
                        fork.shares
                    });
                    self.child(parent, shares)
                }
                None => self.process_without_parent(),
            };
            self.insert(pid, process);
        }
        self.running.get_mut(&pid).expect("inserted above")
    }

    pub fn is_running(&self, pid: Pid) -> bool {
        self.running.contains_key(&pid)
    }

    /// Returns the number of forks whose child was not seen.
    pub fn awaited(&self, space: u32) -> usize {
        self.awaited.get(&space).map_or(0, BTreeMap::len)
    }

    /// Returns the running process of a trace with the smallest id.
    pub fn first_running(&self, space: u32) -> Option<Pid> {
        let number = *self.ids_by_space.get(&space)?.first()?;
        Some(Pid { space, number })
    }

    pub fn group(&mut self, pid: Pid) -> u32 {
        self.process(pid).group
    }

    pub fn program(&mut self, pid: Pid) -> ProgramId {
        self.process(pid).program
    }

    pub fn origin(&mut self, pid: Pid) -> Origin {
        self.process(pid).origin.get()
    }

    pub fn set_working(&mut self, pid: Pid, working: Option<PathId>) {
        let origin = &self.process(pid).origin;
        origin.set(Origin { working, ..origin.get() });
    }

    pub fn set_root(&mut self, pid: Pid, root: PathId) {
        let origin = &self.process(pid).origin;
        origin.set(Origin { root, ..origin.get() });
    }

    pub fn descriptor(&mut self, pid: Pid, descriptor: i32) -> Option<OpenFile> {
        self.process(pid).files.borrow().get(descriptor).copied()
    }

    pub fn target(&mut self, pid: Pid, descriptor: i32) -> Target {
        self.process(pid).files.borrow().get(descriptor).map_or(Target::Unknown, |open| open.target)
    }

    pub fn set(&mut self, pid: Pid, descriptor: i32, open: OpenFile) {
        self.process(pid).files.borrow_mut().set(descriptor, open);
    }

    pub fn open(&mut self, pid: Pid, descriptor: i32, target: Target, close_on_exec: bool) {
        self.set(pid, descriptor, OpenFile { target, close_on_exec });
    }

    pub fn duplicate(&mut self, pid: Pid, from: i32, to: i32, close_on_exec: bool) {
        // dup2 of a descriptor to itself changes nothing.
        if from == to {
            return;
        }
        match self.descriptor(pid, from) {
            Some(open) => self.set(pid, to, OpenFile { close_on_exec, ..open }),
            None => self.open(pid, to, Target::Unknown, close_on_exec),
        }
    }

    pub fn set_close_on_exec(&mut self, pid: Pid, descriptor: i32, close_on_exec: bool) {
        if let Some(open) = self.descriptor(pid, descriptor) {
            self.set(pid, descriptor, OpenFile { close_on_exec, ..open });
        }
    }

    pub fn close(&mut self, pid: Pid, descriptor: i32) {
        self.process(pid).files.borrow_mut().close(descriptor);
    }

    pub fn close_range(&mut self, pid: Pid, first: i64, last: i64, on_exec: bool) {
        let mut files = self.process(pid).files.borrow_mut();
        match on_exec {
            true => files.mark_range(first, last),
            false => files.close_range(first, last),
        }
    }

    /// Begins the creation of a child, which may run before its id is known.
    pub fn begin_fork(&mut self, parent: Pid, shares: Shares) {
        self.process(parent);
        self.forget_fork(parent);
        self.last_fork += 1;
        self.forks.insert(parent, Fork { number: self.last_fork, shares, seen: None });
        self.awaited.entry(parent.space).or_default().insert(self.last_fork, parent);
    }

    fn remove_awaited(&mut self, parent: Pid) {
        let (Some(fork), Some(awaited)) = (self.forks.get(&parent), self.awaited.get_mut(&parent.space))
        else {
            return;
        };
        self.settled |= awaited.remove(&fork.number).is_some();
        if awaited.is_empty() {
            self.awaited.remove(&parent.space);
        }
    }

    fn forget_fork(&mut self, parent: Pid) -> Option<Fork> {
        self.remove_awaited(parent);
        self.forks.remove(&parent)
    }

    /// Completes the creation of a child, whose id is now known; `None` if it failed.
    pub fn end_fork(&mut self, parent: Pid, child: Option<u32>, shares: Shares) {
        let fork = self.forget_fork(parent);
        let Some(number) = child else { return };
        let pid = Pid { space: parent.space, number };
        // The child may have been seen already, and may have ended.
        if fork.is_none_or(|fork| fork.seen != Some(pid)) {
            let process = self.child(parent, shares);
            self.insert(pid, process);
            self.settled = true;
        }
    }

    /// Drops all processes after the end of the trace, and keeps their number.
    pub fn clear(&mut self) {
        *self = ProcessTable { groups: self.groups, ..ProcessTable::new(None) };
    }

    /// Returns whether a parent was determined since the last call.
    pub fn has_settled(&mut self) -> bool {
        std::mem::take(&mut self.settled)
    }

    pub fn unshare(&mut self, pid: Pid, files: bool, origin: bool) {
        let process = self.process(pid);
        if files {
            let own = process.files.borrow().clone();
            process.files = Rc::new(RefCell::new(own));
        }
        if origin {
            process.origin = Rc::new(Cell::new(process.origin.get()));
        }
    }

    pub fn execute(&mut self, pid: Pid, program: ProgramId) {
        self.unshare(pid, true, true);
        let process = self.process(pid);
        process.program = program;
        process.files.borrow_mut().exec();
    }

    pub fn exit(&mut self, pid: Pid) {
        self.forget_fork(pid);
        if self.running.remove(&pid).is_some()
            && let Some(numbers) = self.ids_by_space.get_mut(&pid.space)
        {
            numbers.remove(&pid.number);
            if numbers.is_empty() {
                self.ids_by_space.remove(&pid.space);
            }
        }
    }

    /// Changes the id of a process from `from` to `to`, whose previous process has ended.
    pub fn rename(&mut self, from: Pid, to: Pid) {
        let process = self.process(from).clone();
        let fork = self.forget_fork(from);
        self.exit(from);
        self.exit(to);
        self.insert(to, process);
        if let Some(fork) = fork {
            if fork.seen.is_none() {
                self.awaited.entry(to.space).or_default().insert(fork.number, to);
            }
            self.forks.insert(to, fork);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Pid = Pid { space: 0, number: 1 };
    const B: Pid = Pid { space: 0, number: 2 };

    fn file(n: usize) -> Target {
        let mut paths = crate::paths::Paths::default();
        (0..n)
            .map(|i| paths.child(PathId::ROOT, &i.to_le_bytes()))
            .last()
            .map_or(Target::Unknown, Target::File)
    }

    #[test]
    fn a_child_copies_descriptors_and_a_thread_shares_them() {
        let mut processes = ProcessTable::new(None);
        processes.open(A, 3, file(1), false);
        processes.end_fork(A, Some(2), Shares::default());
        let thread = Pid { number: 3, ..A };
        processes.end_fork(A, Some(3), Shares { files: true, origin: true, group: true });
        processes.open(A, 4, file(2), false);
        assert_eq!((processes.target(B, 3), processes.target(B, 4)), (file(1), Target::Unknown));
        assert_eq!(processes.target(thread, 4), file(2));
        assert_eq!(processes.group(thread), processes.group(A));
        assert_ne!(processes.group(B), processes.group(A));
        processes.close(thread, 3);
        assert_eq!(processes.target(A, 3), Target::Unknown);
    }

    #[test]
    fn a_child_that_runs_before_its_number_is_known_has_its_parents_files() {
        let mut processes = ProcessTable::new(None);
        processes.open(A, 3, file(1), false);
        processes.begin_fork(A, Shares::default());
        assert_eq!(processes.target(B, 3), file(1));
        processes.close(B, 3);
        processes.end_fork(A, Some(2), Shares::default());
        assert_eq!(processes.target(B, 3), Target::Unknown, "the child is not created again");
        let other_trace = Pid { space: 1, number: 2 };
        processes.begin_fork(A, Shares::default());
        assert_eq!(processes.target(other_trace, 3), Target::Unknown);
    }

    #[test]
    fn a_child_that_ended_before_its_fork_returned_counts_once() {
        let mut processes = ProcessTable::new(None);
        processes.begin_fork(A, Shares::default());
        processes.program(B);
        processes.exit(B);
        processes.end_fork(A, Some(2), Shares::default());
        assert_eq!((processes.groups, processes.is_running(B)), (2, false));
        processes.end_fork(A, Some(2), Shares::default());
        assert_eq!(processes.groups, 3, "the process id was reused");
    }

    #[test]
    fn exec_closes_descriptors_with_the_close_on_exec_flag() {
        let mut processes = ProcessTable::new(None);
        processes.open(A, 3, file(1), true);
        processes.open(A, 4, file(2), false);
        processes.duplicate(A, 3, 5, false);
        processes.duplicate(A, 3, 3, false);
        processes.close_range(A, 4, i64::MAX, true);
        processes.duplicate(A, 4, 0, false);
        processes.execute(A, 7);
        let left: Vec<_> = (0..6).filter(|d| processes.target(A, *d) != Target::Unknown).collect();
        assert_eq!((left, processes.program(A)), (vec![0], 7));
    }

    #[test]
    fn the_oldest_processes_are_dropped_beyond_the_limit() {
        let mut processes = ProcessTable::new(None);
        processes.open(A, 3, file(1), false);
        for number in 2..300_000 {
            let child = Pid { space: 0, number };
            processes.begin_fork(Pid { number: number - 1, ..A }, Shares::default());
            processes.open(child, 4, file(2), false);
        }
        assert_eq!((processes.running.len(), processes.groups), (RUNNING_MAX, 299_999));
        assert!(processes.order.len() <= 2 * RUNNING_MAX && processes.forks.len() <= RUNNING_MAX);
        assert_eq!(processes.target(Pid { number: 299_999, ..A }, 3), file(1));
    }
}
