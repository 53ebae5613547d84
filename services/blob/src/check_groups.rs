//! The check of a store with several groups of servers: each blob must be in the group to which its
//! name belongs, and each joint transaction must be committed in all of its groups or in none.

use std::collections::{BTreeMap, BTreeSet};

use quell_kv::KeyValue;
use quell_vfs::Result;
use quell_wire::blob::{JointId, Outcome, Version, group_of};

use crate::check::{Problem, ProblemKind};
use crate::joint::{OutcomeRecord, PreparedRecord, UnconfirmedRecord};
use crate::keys;
use crate::tables::{Latest, visit_prefix};

/// The joint transactions that a group knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JointRecords {
    /// The joint transactions that are prepared.
    prepared: BTreeSet<JointId>,
    /// The joint transactions that have ended, with their outcomes.
    outcomes: BTreeMap<JointId, Outcome>,
    /// The decisions to commit that the group has made, with the other participants.
    decisions: BTreeMap<JointId, Vec<u32>>,
    /// Whether outcomes were removed, so that some may be missing.
    has_forgotten: bool,
}

/// Returns the joint transactions of a group, and reports blobs whose names belong to another
/// group. Entries that do not have their format are skipped, because [`check`](crate::check())
/// reports them.
///
/// # Errors
/// The errors of the key-value store.
pub fn read_joint_records(
    tables: &dyn KeyValue,
    (group, groups): (u32, u32),
    report: &mut dyn FnMut(Problem),
) -> Result<JointRecords> {
    let latest = Latest(tables);
    visit_prefix(&latest, &keys::name(b""), &mut |key, _| {
        let name = keys::name_of(key)?;
        let owner = group_of(name, groups);
        if owner != group {
            let detail = format!("the blob is stored in group {group}, but its name selects group {owner}");
            let (kind, name) = (ProblemKind::WrongGroup, Some(name.to_vec()));
            report(Problem { kind, name, detail, is_repairable: false });
        }
        Ok(())
    })?;
    let mut records = JointRecords::default();
    visit_prefix(&latest, &keys::all_joint_prepared(), &mut |key, value| {
        if let (Ok(id), Ok(_)) = (keys::joint_of(key), keys::decode::<PreparedRecord>(value)) {
            records.prepared.insert(id);
        }
        Ok(())
    })?;
    visit_prefix(&latest, &keys::joint_outcomes(), &mut |key, value| {
        if let (Ok(id), Ok(record)) = (keys::joint_of(key), keys::decode::<OutcomeRecord>(value)) {
            records.outcomes.insert(id, record.outcome);
        }
        Ok(())
    })?;
    visit_prefix(&latest, &keys::all_joint_unconfirmed(), &mut |key, value| {
        if let (Ok(id), Ok(record)) = (keys::joint_of(key), keys::decode::<UnconfirmedRecord>(value)) {
            records.decisions.insert(id, record.participants);
        }
        Ok(())
    })?;
    let forgotten = tables.get(keys::FORGOTTEN_RESULTS)?;
    records.has_forgotten =
        forgotten.is_some_and(|version| keys::decode::<Version>(&version).is_ok_and(|version| version.0 > 0));
    Ok(records)
}

/// Reports the joint transactions that are committed in some of their groups only. `groups` are the
/// records of all groups, which were read while no server ran.
pub fn compare_joint_records(groups: &[JointRecords], report: &mut dyn FnMut(Problem)) {
    let mut committed: BTreeMap<JointId, u32> = BTreeMap::new();
    for (number, group) in (0..).zip(groups) {
        let outcomes = group.outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Committed);
        let all = outcomes.map(|(id, _)| id).chain(group.decisions.keys());
        all.for_each(|id| _ = committed.entry(*id).or_insert(number));
    }
    let mut half = |id: &JointId, detail: String| {
        let detail = format!("transaction {} of client {:032x} {detail}", id.number, id.client);
        report(Problem { kind: ProblemKind::HalfCommitted, name: None, detail, is_repairable: false });
    };
    for (number, group) in groups.iter().enumerate() {
        for (id, _) in group.outcomes.iter().filter(|(_, outcome)| **outcome == Outcome::Aborted) {
            if let Some(other) = committed.get(id) {
                half(id, format!("is committed in group {other}, but aborted in group {number}"));
            }
        }
        for (id, participants) in &group.decisions {
            for other in participants {
                let knows = groups.get(*other as usize).is_some_and(|group| {
                    group.has_forgotten || group.prepared.contains(id) || group.outcomes.contains_key(id)
                });
                if !knows {
                    half(
                        id,
                        format!("is committed in group {number}, but group {other} has no record of it"),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: JointId = JointId { client: 7, number: 1 };

    fn decided(participants: &[u32]) -> JointRecords {
        let decisions = BTreeMap::from([(ID, participants.to_vec())]);
        JointRecords { decisions, ..JointRecords::default() }
    }

    fn ended(outcome: Outcome) -> JointRecords {
        JointRecords { outcomes: BTreeMap::from([(ID, outcome)]), ..JointRecords::default() }
    }

    #[test]
    fn a_transaction_is_committed_in_all_groups_or_in_none() {
        let prepared = JointRecords { prepared: BTreeSet::from([ID]), ..JointRecords::default() };
        let forgotten = JointRecords { has_forgotten: true, ..JointRecords::default() };
        let none = JointRecords::default();
        for (groups, problems) in [
            (vec![none.clone(), none.clone()], 0),
            (vec![prepared.clone(), prepared.clone()], 0),
            (vec![decided(&[1]), prepared.clone()], 0),
            (vec![decided(&[1]), ended(Outcome::Committed)], 0),
            (vec![ended(Outcome::Committed), ended(Outcome::Committed)], 0),
            // The outcome of a group that has no decision to keep can be removed first.
            (vec![ended(Outcome::Committed), none.clone()], 0),
            (vec![ended(Outcome::Aborted), prepared.clone()], 0),
            (vec![decided(&[1]), forgotten], 0),
            (vec![decided(&[1]), none.clone()], 1),
            (vec![decided(&[1, 2]), none, ended(Outcome::Committed)], 1),
            (vec![decided(&[1]), ended(Outcome::Aborted)], 1),
            (vec![ended(Outcome::Aborted), ended(Outcome::Committed)], 1),
        ] {
            let mut found = Vec::new();
            compare_joint_records(&groups, &mut |problem| found.push(problem));
            assert_eq!(found.len(), problems, "{groups:?}: {found:?}");
        }
    }
}
