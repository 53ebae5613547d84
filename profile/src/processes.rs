//! Who runs, from which directory, with which descriptors: followed through fork, exec, dup and chdir, so that a
//! descriptor means a path also where the tracer did not say which.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::paths::PathId;

/// A process as the trace numbers it: pids of two traces have nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid {
    pub space: u32,
    pub number: u32,
}

/// What a descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    File(PathId),
    /// A pipe, a socket, memory.
    NoFile,
    Unknown,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    target: Target,
    close_on_exec: bool,
}

/// A program that was started, by number; 0 is the one that nobody saw start.
pub type ProgramId = u32;

#[derive(Debug, Clone)]
struct Process {
    files: Rc<RefCell<HashMap<i32, Open>>>,
    working: Rc<RefCell<Option<PathId>>>,
    program: ProgramId,
    /// Threads of a process share this number.
    group: u32,
}

/// What a child shares with its parent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shares {
    pub files: bool,
    pub working: bool,
    pub group: bool,
}

/// Processes that were begun and whose number is not known yet.
#[derive(Debug)]
struct Pending {
    parent: Pid,
    shares: Shares,
}

#[derive(Debug, Default)]
pub struct Processes {
    running: HashMap<Pid, Process>,
    pending: Vec<Pending>,
    /// Different processes so far; threads are not counted.
    pub groups: u32,
    /// Where processes begin whose parent is not in the trace.
    first_working: Option<PathId>,
}

/// No process has more descriptors open at once here; a hostile trace could open without end.
const DESCRIPTORS_MAX: usize = 1 << 20;

impl Processes {
    pub fn new(first_working: Option<PathId>) -> Processes {
        Processes { first_working, ..Processes::default() }
    }

    fn root(&mut self) -> Process {
        self.groups += 1;
        Process {
            files: Rc::default(),
            working: Rc::new(RefCell::new(self.first_working)),
            program: 0,
            group: self.groups,
        }
    }

    /// A child of `parent`, as fork makes it.
    fn child(&mut self, parent: Pid, shares: Shares) -> Process {
        let of = self.process(parent).clone();
        let copy = |files: &Rc<RefCell<HashMap<i32, Open>>>| Rc::new(RefCell::new(files.borrow().clone()));
        let group = if shares.group {
            of.group
        } else {
            self.groups += 1;
            self.groups
        };
        Process {
            files: if shares.files { of.files.clone() } else { copy(&of.files) },
            working: match shares.working {
                true => of.working.clone(),
                false => Rc::new(RefCell::new(*of.working.borrow())),
            },
            program: of.program,
            group,
        }
    }

    fn process(&mut self, pid: Pid) -> &mut Process {
        if !self.running.contains_key(&pid) {
            // It runs before its parent's call returned: the latest one of the same trace that is waiting for a child.
            let begun = self.pending.iter().rposition(|p| p.parent.space == pid.space && p.parent != pid);
            let process = match begun {
                Some(at) => {
                    let Pending { parent, shares } = self.pending.remove(at);
                    self.child(parent, shares)
                }
                None => self.root(),
            };
            self.running.insert(pid, process);
        }
        self.running.get_mut(&pid).expect("just put there")
    }

    pub fn group(&mut self, pid: Pid) -> u32 {
        self.process(pid).group
    }

    pub fn program(&mut self, pid: Pid) -> ProgramId {
        self.process(pid).program
    }

    pub fn working(&mut self, pid: Pid) -> Option<PathId> {
        *self.process(pid).working.borrow()
    }

    pub fn set_working(&mut self, pid: Pid, path: Option<PathId>) {
        *self.process(pid).working.borrow_mut() = path;
    }

    pub fn target(&mut self, pid: Pid, descriptor: i32) -> Target {
        self.process(pid).files.borrow().get(&descriptor).map_or(Target::Unknown, |open| open.target)
    }

    pub fn open(&mut self, pid: Pid, descriptor: i32, target: Target, close_on_exec: bool) {
        let mut files = self.process(pid).files.borrow_mut();
        if files.len() < DESCRIPTORS_MAX {
            files.insert(descriptor, Open { target, close_on_exec });
        }
    }

    pub fn duplicate(&mut self, pid: Pid, from: i32, to: i32, close_on_exec: bool) {
        let target = self.target(pid, from);
        self.open(pid, to, target, close_on_exec);
    }

    pub fn close(&mut self, pid: Pid, descriptor: i32) {
        self.process(pid).files.borrow_mut().remove(&descriptor);
    }

    pub fn close_range(&mut self, pid: Pid, first: i64, last: i64, on_exec: bool) {
        let mut files = self.process(pid).files.borrow_mut();
        let within = |descriptor: &i32| (first..=last).contains(&i64::from(*descriptor));
        if on_exec {
            files.iter_mut().filter(|(d, _)| within(d)).for_each(|(_, open)| open.close_on_exec = true);
        } else {
            files.retain(|d, _| !within(d));
        }
    }

    /// A child is being made; it may run before its number is known.
    pub fn begin_fork(&mut self, parent: Pid, shares: Shares) {
        self.process(parent);
        self.pending.push(Pending { parent, shares });
    }

    /// The child's number is known, or there is none.
    pub fn end_fork(&mut self, parent: Pid, child: Option<u32>, shares: Shares) {
        let begun = self.pending.iter().position(|p| p.parent == parent).map(|at| self.pending.remove(at));
        let Some(number) = child else { return };
        let pid = Pid { space: parent.space, number };
        // If the call had begun and is pending no more, the child has been seen already.
        if begun.is_some() || !self.running.contains_key(&pid) {
            let process = self.child(parent, shares);
            self.running.insert(pid, process);
        }
    }

    pub fn unshare(&mut self, pid: Pid, files: bool, working: bool) {
        let process = self.process(pid);
        if files {
            let own = process.files.borrow().clone();
            process.files = Rc::new(RefCell::new(own));
        }
        if working {
            let own = *process.working.borrow();
            process.working = Rc::new(RefCell::new(own));
        }
    }

    pub fn execute(&mut self, pid: Pid, program: ProgramId) {
        self.unshare(pid, true, true);
        let process = self.process(pid);
        process.program = program;
        process.files.borrow_mut().retain(|_, open| !open.close_on_exec);
    }

    pub fn exit(&mut self, pid: Pid) {
        self.running.remove(&pid);
        self.pending.retain(|p| p.parent != pid);
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
    fn a_child_has_copies_and_a_thread_has_the_same() {
        let mut processes = Processes::default();
        processes.open(A, 3, file(1), false);
        processes.end_fork(A, Some(2), Shares::default());
        let thread = Pid { number: 3, ..A };
        processes.end_fork(A, Some(3), Shares { files: true, working: true, group: true });
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
        let mut processes = Processes::default();
        processes.open(A, 3, file(1), false);
        processes.begin_fork(A, Shares::default());
        assert_eq!(processes.target(B, 3), file(1));
        processes.close(B, 3);
        processes.end_fork(A, Some(2), Shares::default());
        assert_eq!(processes.target(B, 3), Target::Unknown, "it is not made anew");
        let other_trace = Pid { space: 1, number: 2 };
        processes.begin_fork(A, Shares::default());
        assert_eq!(processes.target(other_trace, 3), Target::Unknown);
    }

    #[test]
    fn exec_closes_what_was_to_be_closed() {
        let mut processes = Processes::default();
        processes.open(A, 3, file(1), true);
        processes.open(A, 4, file(2), false);
        processes.duplicate(A, 3, 5, false);
        processes.close_range(A, 4, i64::MAX, true);
        processes.duplicate(A, 4, 0, false);
        processes.execute(A, 7);
        let left: Vec<_> = (0..6).filter(|d| processes.target(A, *d) != Target::Unknown).collect();
        assert_eq!((left, processes.program(A)), (vec![0], 7));
    }
}
