//! Random histories: operations of several processes on a few files, generated from a seed, are
//! performed on an implementation and on the model. All results must be equal; a difference is
//! reported with the seed and the operations that led to it.
//!
//! Several mounts take turns. At the end of a turn, a mount publishes its open files and closes
//! them or leaves them idle; at the start of a turn, it opens files again before it uses them. This
//! is close-to-open consistency, so each result is determined. With one mount all changes are
//! visible immediately, and files stay open.
//!
//! At the end all files are read again: through the open files and then, after closing them,
//! through every mount.

pub mod crash;
mod executor;
mod operation;
mod shape;
pub mod truncation;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use quell_vfs::FileSystem;

use crate::WritableModel;
use crate::conformance::writing::{Mounts, WritableImplementation};
use executor::{Executor, OperationResult};
use operation::{Operation, Path, generate};
pub use shape::Shape;

/// A difference between the results of an implementation and of the model.
pub struct Difference {
    /// The seed of the history.
    pub seed: u64,
    /// The number of the operation; the number of operations if the difference was found at the
    /// end.
    pub operation: usize,
    report: String,
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report)
    }
}

/// Runs one history per seed and panics with a report if results differ.
pub fn check(
    implementation: &WritableImplementation<'_>,
    shape: Shape,
    seeds: impl IntoIterator<Item = u64>,
) {
    if shape.mounts > implementation.mounts_max {
        return;
    }
    for seed in seeds {
        if let Err(difference) = run(implementation, shape, seed) {
            panic!("{}: {difference}", implementation.name);
        }
    }
}

/// Runs the history of a seed.
pub fn run(implementation: &WritableImplementation<'_>, shape: Shape, seed: u64) -> Result<(), Difference> {
    // One additional mount, if possible, which only reads at the end.
    let Mounts { mounts, keep } = (implementation.make)((shape.mounts + 1).min(implementation.mounts_max));
    let model: Arc<dyn FileSystem> = Arc::new(WritableModel::new());
    let operations = generate(seed, shape, implementation);
    let mut history = History {
        seed,
        operations: &operations,
        model: Executor::new(vec![model; mounts.len()], shape.mounts, implementation),
        tested: Executor::new(mounts, shape.mounts, implementation),
        done: Vec::new(),
    };
    let outcome = history.run();
    drop(history);
    drop(keep);
    outcome
}

struct History<'a> {
    seed: u64,
    operations: &'a [Operation],
    // The mounts are dropped before the resources that keep their store.
    model: Executor,
    tested: Executor,
    /// The operations that were performed.
    done: Vec<Done>,
}

struct Done {
    number: usize,
    /// The file of the operation, as the model's node.
    file: Option<u64>,
    refused: Option<i32>,
}

impl Drop for History<'_> {
    fn drop(&mut self) {
        if let Some(last) = self.done.last().filter(|_| std::thread::panicking()) {
            let (seed, number) = (self.seed, last.number);
            eprintln!("in the history of seed {seed}, after operation {number}: {}", self.operations[number]);
        }
    }
}

impl History<'_> {
    fn run(&mut self) -> Result<(), Difference> {
        for (number, operation) in self.operations.iter().enumerate() {
            if !self.model.is_possible(operation) {
                continue;
            }
            let before = self.model.file_of(operation);
            let expected = self.model.perform(number, operation);
            let found = self.tested.perform(number, operation);
            let file = before.or_else(|| self.model.file_of(operation));
            let refused = if let OperationResult::Error(errno) = expected { Some(errno) } else { None };
            self.done.push(Done { number, file, refused });
            self.same(number, file, operation, &expected, &found)?;
        }
        let end = self.operations.len();
        for slot in 0..self.model.slot_count() {
            let operation = Operation::ReadOpen { slot };
            if self.model.is_possible(&operation) {
                let (expected, found) =
                    (self.model.perform(end, &operation), self.tested.perform(end, &operation));
                self.same(end, self.model.file_of(&operation), &operation, &expected, &found)?;
            }
        }
        let (expected, found) = (self.model.close_all(), self.tested.close_all());
        self.same(end, None, &Operation::CloseAll, &expected, &found)?;
        for mount in 0..self.model.mount_count() {
            self.model.start_last_turn(mount);
            self.tested.start_last_turn(mount);
            for dir in 0..operation::DIRECTORIES.len() {
                let operation = Operation::List { dir };
                let (expected, found) =
                    (self.model.perform(end, &operation), self.tested.perform(end, &operation));
                self.same(end, None, &operation, &expected, &found)?;
                let OperationResult::Names(names) = expected else { continue };
                for name in files_among(&names) {
                    let path = Path { dir, name };
                    for operation in
                        [Operation::ReadAll { path }, Operation::Stat { path }, Operation::Xattrs { path }]
                    {
                        let (expected, found) =
                            (self.model.perform(end, &operation), self.tested.perform(end, &operation));
                        self.same(end, self.model.file_of(&operation), &operation, &expected, &found)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn same(
        &self,
        number: usize,
        file: Option<u64>,
        operation: &Operation,
        expected: &OperationResult,
        found: &OperationResult,
    ) -> Result<(), Difference> {
        if expected.agrees(found) {
            return Ok(());
        }
        let mut report = format!("seed {}: operation {number}: {operation}\n", self.seed);
        report += &expected.difference(found);
        let matters = |done: &&Done| match file {
            // Operations on names may concern the file.
            Some(_) => done.file == file || (done.file.is_none() && done.refused.is_none()),
            None => true,
        };
        let shown: Vec<_> = self.done.iter().filter(matters).collect();
        report += &format!("\noperations until then ({} operations):", shown.len());
        for Done { number, file, refused } in shown {
            let shown_file = file.map_or(String::new(), |node| format!("  [file {node}]"));
            let refused = refused.map_or(String::new(), |errno| format!("  (refused: {errno})"));
            report += &format!("\n{number:6}  {}{shown_file}{refused}", self.operations[*number]);
        }
        Err(Difference { seed: self.seed, operation: number, report })
    }
}

/// Returns the numbers of the names that are files.
fn files_among(names: &BTreeSet<(Vec<u8>, char)>) -> Vec<usize> {
    let files = names.iter().filter(|(_, kind)| *kind == 'f');
    files.filter_map(|(name, _)| operation::name_number(name)).collect()
}
