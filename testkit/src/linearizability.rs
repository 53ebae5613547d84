//! Checks recorded histories of operations, such as those on names, for linearizability with the
//! algorithm of Wing and Gong. As Lowe proposed, each combination of a set of performed operations
//! and a state is examined only once. An operation without a result may have taken effect at any
//! time after its beginning, or never.

mod model;
mod names;

use std::collections::HashSet;

pub use model::Model;
pub use names::{Name, NameOperation, NameResult, Names, ROOT};
// Part of the operations and of the results.
pub use quell_vfs::{ErrorKind, Rename};

/// The largest number of operations of a history.
const OPERATIONS_MAX: usize = 128;

/// A recorded operation. Positions are the numbers of events of the history, in the order of time.
#[derive(Debug)]
struct Recorded<M: Model> {
    operation: M::Operation,
    begin: usize,
    /// The position of the end, and the result; `None` if the result is not known.
    end: Option<(usize, M::Result)>,
    /// Whether the operation had no effect.
    is_refused: bool,
}

/// The operations of all clients.
#[derive(Debug)]
pub struct History<M: Model = Names> {
    operations: Vec<Recorded<M>>,
    events: usize,
}

impl<M: Model> Default for History<M> {
    fn default() -> History<M> {
        History { operations: Vec::new(), events: 0 }
    }
}

/// An operation of a history.
#[derive(Debug, Clone, Copy)]
pub struct Begun(usize);

impl<M: Model> History<M> {
    /// Records the beginning of an operation.
    pub fn begin(&mut self, operation: M::Operation) -> Begun {
        self.events += 1;
        self.operations.push(Recorded { operation, begin: self.events, end: None, is_refused: false });
        Begun(self.operations.len() - 1)
    }

    /// Records the end of an operation.
    pub fn end(&mut self, begun: Begun, result: M::Result) {
        self.events += 1;
        self.operations[begun.0].end = Some((self.events, result));
    }

    /// Records that an operation had no effect for a reason that the specification does not
    /// contain: no space, or a conflict with other operations.
    pub fn refuse(&mut self, begun: Begun) {
        self.operations[begun.0].is_refused = true;
    }

    /// Returns the operations as text, in the order of their beginnings.
    pub fn describe(&self) -> String {
        let line = |recorded: &Recorded<M>| {
            let unknown = if recorded.is_refused { "refused" } else { "?" };
            let end = recorded.end.as_ref();
            let end = end.map_or(unknown.to_owned(), |(end, result)| format!("{end} {result:?}"));
            format!("  {}..{end}: {:?}", recorded.begin, recorded.operation)
        };
        self.operations.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Returns whether there is an order of the operations in which each result is possible, and in
    /// which operations that did not overlap keep their order in time.
    pub fn is_linearizable(&self) -> bool {
        assert!(self.operations.len() <= OPERATIONS_MAX, "the history is too long");
        let mut examined = HashSet::new();
        let mut waiting = vec![(0_u128, M::default())];
        while let Some((done, state)) = waiting.pop() {
            let left = || {
                let all = self.operations.iter().enumerate().filter(|(_, recorded)| !recorded.is_refused);
                all.filter(|(number, _)| done & (1 << number) == 0)
            };
            let first_end =
                left().filter_map(|(_, recorded)| recorded.end.as_ref()).map(|(end, _)| *end).min();
            let Some(first_end) = first_end else { return true };
            // The last ones are examined first: operations that certainly took effect.
            let (known, unknown): (Vec<_>, Vec<_>) = left()
                .filter(|(_, recorded)| recorded.begin < first_end)
                .partition(|(_, recorded)| recorded.end.is_some());
            for (number, recorded) in unknown.into_iter().chain(known) {
                let mut after = state.clone();
                let is_possible = match &recorded.end {
                    Some((_, result)) => after.perform(&recorded.operation, result),
                    None => after.perform_unknown(&recorded.operation, number as u64),
                };
                if is_possible && examined.insert((done | 1 << number, after.clone())) {
                    waiting.push((done | 1 << number, after));
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Name = (ROOT, 0);
    const B: Name = (ROOT, 1);
    const CREATE: NameOperation = NameOperation::Create { name: A, is_dir: false };

    fn perform(history: &mut History<Names>, operation: NameOperation, result: NameResult) {
        let begun = history.begin(operation);
        history.end(begun, result);
    }

    #[test]
    fn a_created_name_is_found_afterwards() {
        let mut history = History::<Names>::default();
        perform(&mut history, CREATE, NameResult::Created(7));
        assert!(history.is_linearizable());
        perform(&mut history, NameOperation::Lookup(A), NameResult::Found(None));
        assert!(!history.is_linearizable());
    }

    #[test]
    fn an_operation_without_a_result_happens_at_any_later_time_or_never() {
        let mut history = History::<Names>::default();
        history.begin(CREATE);
        for found in [None, Some(7), Some(7)] {
            perform(&mut history, NameOperation::Lookup(A), NameResult::Found(found));
            assert!(history.is_linearizable());
        }
        perform(&mut history, NameOperation::Lookup(A), NameResult::Found(Some(8)));
        assert!(!history.is_linearizable());
    }

    #[test]
    fn two_exclusive_creations_do_not_both_succeed() {
        for (second, is_possible) in
            [(NameResult::Created(2), false), (NameResult::Failed(ErrorKind::Exists), true)]
        {
            let mut history = History::<Names>::default();
            let begun = [history.begin(CREATE), history.begin(CREATE)];
            history.end(begun[0], NameResult::Created(1));
            history.end(begun[1], second);
            assert_eq!(history.is_linearizable(), is_possible);
        }
    }

    #[test]
    fn a_rename_is_seen_under_both_names_at_once() {
        let mut history = History::<Names>::default();
        perform(&mut history, CREATE, NameResult::Created(7));
        history.begin(NameOperation::Rename { from: A, to: B, mode: Rename::Replace });
        perform(&mut history, NameOperation::Lookup(B), NameResult::Found(Some(7)));
        assert!(history.is_linearizable());
        perform(&mut history, NameOperation::Lookup(A), NameResult::Found(Some(7)));
        assert!(!history.is_linearizable());
    }

    #[test]
    fn a_directory_is_not_moved_below_itself() {
        let mut history = History::<Names>::default();
        perform(&mut history, NameOperation::Create { name: A, is_dir: true }, NameResult::Created(7));
        perform(&mut history, NameOperation::Create { name: (7, 0), is_dir: true }, NameResult::Created(8));
        let moved = NameOperation::Rename { from: A, to: (8, 0), mode: Rename::Replace };
        perform(&mut history, moved.clone(), NameResult::Failed(ErrorKind::InvalidInput));
        assert!(history.is_linearizable());
        perform(&mut history, moved, NameResult::Done);
        assert!(!history.is_linearizable());
    }
}
