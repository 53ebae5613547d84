//! The state of a check that all of its parts share: options, progress, result.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use quell_posix::WritableDir;
use quell_threads::{into_inner, lock};
use quell_vfs::{Result, Time};

use super::problem::{Finding, Problem, RepairOutcome};
use crate::container::ContainerIdentity;
use crate::format::{Holder, boot_of};
use crate::not_found::none_if_not_found;
use crate::stores::{StoreNumber, Stores};
use crate::tools::progress::ToolProgress;

/// Returns true if a process of this node has an open file below a name in the `.quell` directory
/// of a store.
pub type IsInUse<'a> = dyn Fn(StoreNumber, &[&[u8]]) -> bool + Sync + 'a;

/// The options of a check.
pub struct CheckOptions<'a> {
    /// Number of threads that check.
    pub threads: usize,
    /// Whether to repair the problems that can be repaired.
    pub repair: bool,
    /// Nodes, or boots of nodes, that the user declares dead. Their writers are dead, except
    /// writers that began on this node during its present boot.
    pub dead_nodes: &'a [String],
    /// Writers that the user declares dead.
    pub dead_writers: &'a [u64],
    /// The present time, for the age of leftovers.
    pub now: Time,
    /// The minimum age of leftovers, in seconds.
    pub leftover_age_seconds: i64,
    /// Whether a process of this node uses a file of a store.
    pub is_in_use: &'a IsInUse<'a>,
}

impl fmt::Debug for CheckOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions").field("repair", &self.repair).finish_non_exhaustive()
    }
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct CheckResult {
    /// Number of files that were checked.
    pub files: u64,
    /// Number of bytes of logs that were read.
    pub bytes: u64,
    /// Number of open writers that are not known to be dead.
    pub open_writers: u64,
    /// Number of these writers that are on a node that the user declared dead, but began on this
    /// node during its present boot: the node runs.
    pub kept_writers: u64,
    /// Sorted by path.
    pub findings: Vec<Finding>,
}

/// A check that is running.
pub struct Check<'a> {
    pub stores: &'a Arc<Stores>,
    pub options: &'a CheckOptions<'a>,
    pub progress: &'a ToolProgress,
    /// Number of threads for the logs of one file: all of them if only one file is checked.
    pub threads_per_file: usize,
    result: Mutex<CheckResult>,
    /// Numbers of the containers that were found.
    containers: Mutex<HashSet<u128>>,
    /// Files that began as objects, by their numbers.
    objects: Mutex<HashMap<u128, ContainerIdentity>>,
}

impl<'a> Check<'a> {
    pub fn new(
        stores: &'a Arc<Stores>,
        options: &'a CheckOptions<'a>,
        progress: &'a ToolProgress,
        threads_per_file: usize,
    ) -> Check<'a> {
        let (result, containers, objects) = (Mutex::default(), Mutex::default(), Mutex::default());
        Check { stores, options, progress, threads_per_file, result, containers, objects }
    }

    /// Returns the result, with the findings sorted by path.
    pub fn into_result(self) -> CheckResult {
        let mut result = into_inner(self.result);
        result.bytes = self.progress.bytes();
        result.findings.sort_by(|a, b| a.path.cmp(&b.path));
        result
    }

    /// Records that a file was checked completely. The numbers have the same meaning as in
    /// `CheckResult`.
    pub fn add_file(&self, open_writers: u64, kept_writers: u64) {
        let mut result = lock(&self.result);
        result.files += 1;
        result.open_writers += open_writers;
        result.kept_writers += kept_writers;
        self.progress.add_file();
    }

    fn record(&self, path: &[u8], problem: Problem, outcome: RepairOutcome) {
        let finding = Finding { path: path.to_vec(), problem, outcome };
        lock(&self.result).findings.push(finding);
    }

    /// Records a problem that is not repaired.
    pub fn report(&self, path: &[u8], problem: Problem) {
        self.record(path, problem, RepairOutcome::NotRepaired);
    }

    /// Records a problem, after `repair` if repairs were requested.
    pub fn report_and_repair(&self, path: &[u8], problem: Problem, repair: impl FnOnce() -> Result<()>) {
        let outcome = match self.options.repair.then(repair) {
            None => RepairOutcome::NotRepaired,
            Some(Ok(())) => RepairOutcome::Repaired,
            Some(Err(error)) => RepairOutcome::Failed(error.to_string()),
        };
        self.record(path, problem, outcome);
    }

    /// Records that a container with this number exists. Returns false if such a container was
    /// known already.
    pub fn add_container(&self, number: u128) -> bool {
        lock(&self.containers).insert(number)
    }

    /// Records a file that began as an object. Returns false if another object has the same number.
    pub fn add_object(&self, number: u128, identity: ContainerIdentity) -> bool {
        *lock(&self.objects).entry(number).or_insert(identity) == identity
    }

    pub fn has_container(&self, number: u128) -> bool {
        lock(&self.containers).contains(&number)
    }

    /// Returns true if the process is known to be dead, or on a node that the user declared dead. A
    /// process of this boot of this node is dead only if it is known to be dead: the node runs, and
    /// the process may run in another container.
    pub fn is_dead(&self, holder: &Holder) -> bool {
        (self.stores.host().is_gone)(holder)
            || self.is_on_declared_node(holder) && !self.is_of_this_boot(holder)
    }

    /// Returns true if the user declared the node of an open writer dead, but the writer began
    /// during the present boot of this node and is not known to be dead.
    pub fn is_kept(&self, holder: &Holder) -> bool {
        self.is_on_declared_node(holder) && !self.is_dead(holder)
    }

    fn is_on_declared_node(&self, holder: &Holder) -> bool {
        let name = holder.node.split_once('.').map_or("", |(_, name)| name);
        self.options.dead_nodes.iter().any(|node| *node == holder.node || node == name)
    }

    fn is_of_this_boot(&self, holder: &Holder) -> bool {
        boot_of(&holder.node) == boot_of(&self.stores.host().holder.node)
    }

    /// Returns true if `name` has not changed for so long that no process is using it.
    pub fn is_old(&self, dir: &dyn WritableDir, name: &[u8]) -> Result<bool> {
        let Some(stat) = none_if_not_found(dir.stat(name))? else { return Ok(false) };
        let last = stat.changed.max(stat.modified).seconds;
        Ok(last <= self.options.now.seconds.saturating_sub(self.options.leftover_age_seconds))
    }

    /// Returns the path of a store for messages.
    pub fn store_text(&self, store: StoreNumber) -> String {
        match self.stores.paths().get(store).filter(|path| !path.is_empty()) {
            Some(path) => format!("the store {}", quell_vfs::printable(path)),
            None => format!("store {store}"),
        }
    }
}
