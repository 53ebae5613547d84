//! Histories of transactions, and their order in real time.

/// An operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HistoryOperation {
    /// A number was appended to a list: the list, then the number, which no other append has.
    Append(u64, u64),
    /// A list was read: the list, then all its numbers, including those that the transaction itself
    /// had appended.
    Read(u64, Vec<u64>),
    /// A register was written: the register, then the number, which no other write has.
    Write(u64, u64),
    /// A register was read: the register, then its number, or `None` if it was never written.
    ReadRegister(u64, Option<u64>),
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The commit succeeded.
    Committed,
    /// The commit was refused.
    Refused,
    /// The result is not known, for example because the process ended.
    Unknown,
}

/// A transaction of a history.
#[derive(Debug, Clone)]
pub struct HistoryTransaction {
    /// The time at which it began, in any unit that all transactions share.
    pub begun: u64,
    /// The time at which its result was known, in the same unit. It is not used if the result is
    /// unknown.
    pub ended: u64,
    /// The result of its commit.
    pub outcome: Outcome,
    /// Its operations, in their order.
    pub operations: Vec<HistoryOperation>,
}

/// Returns the order in real time of some transactions, as pairs of positions in `indices`. A
/// transaction that ended before another one began is paired with it, unless a third transaction
/// lies between them in time: their order then follows from the other pairs.
pub(super) fn precedences(history: &[HistoryTransaction], indices: &[usize]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let of = |position: &usize| &history[indices[*position]];
    let positions = 0..indices.len();
    let mut ended: Vec<usize> =
        positions.clone().filter(|position| of(position).outcome == Outcome::Committed).collect();
    ended.sort_unstable_by_key(|position| (of(position).ended, of(position).begun));
    let mut latest_begun = 0;
    let latest: Vec<u64> = (ended.iter())
        .map(|position| {
            latest_begun = latest_begun.max(of(position).begun);
            latest_begun
        })
        .collect();
    for second in positions.filter(|position| of(position).outcome != Outcome::Refused) {
        let begun = of(&second).begun;
        let before = ended.partition_point(|position| of(position).ended < begun);
        let Some(latest) = before.checked_sub(1).map(|last| latest[last]) else { continue };
        let direct = ended[..before].iter().rev().take_while(|position| of(position).ended >= latest);
        pairs.extend(direct.map(|first| (*first, second)));
    }
    pairs
}
