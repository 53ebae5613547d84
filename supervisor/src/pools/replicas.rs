//! The decisions of the keeper of a pool with replicas: which daemon runs each member, and which
//! daemons have backups of it. A pure state machine.
//!
//! Each member has one daemon that runs it, and backups on other daemons, on other nodes if there
//! are enough. A member whose daemon fails runs on a daemon with a complete backup, and gets new
//! backups. A member without a complete backup is lost with its daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use quell_wire::pool::{Configuration, DaemonId, MemberId, PoolMember};

/// A member, and the backups that have everything that it has acknowledged.
#[derive(Debug)]
struct PlacedMember {
    record: PoolMember,
    complete: BTreeSet<DaemonId>,
}

/// The daemons of a pool, and the members and backups that they have.
#[derive(Debug)]
pub struct Replicas {
    /// The number of copies of each member.
    copies: usize,
    /// The daemons that can be used. The values are their first members.
    daemons: BTreeMap<DaemonId, PoolMember>,
    members: Vec<PlacedMember>,
    /// The first members of daemons that have failed.
    ended: Vec<PoolMember>,
    /// Daemons on which the backup of a member has failed.
    failed: BTreeSet<(MemberId, DaemonId)>,
    number: u64,
}

impl Replicas {
    /// Returns the placement of a new pool, in which each daemon runs one member, and there are
    /// `copies` copies of each member.
    pub fn new(members: &[PoolMember], copies: u16) -> Replicas {
        let placed = |record: &PoolMember| PlacedMember { record: record.clone(), complete: BTreeSet::new() };
        let mut replicas = Replicas {
            copies: usize::from(copies),
            daemons: members.iter().map(|member| (member.daemon, member.clone())).collect(),
            members: members.iter().map(placed).collect(),
            ended: Vec::new(),
            failed: BTreeSet::new(),
            number: 0,
        };
        replicas.place();
        replicas
    }

    /// Returns the present configuration.
    pub fn configuration(&self) -> Configuration {
        Configuration {
            number: self.number,
            members: self.members.iter().map(|member| member.record.clone()).collect(),
            daemons: self.daemons.iter().map(|(id, record)| (*id, record.address.clone())).collect(),
            ended: self.ended.clone(),
            is_complete: self.is_complete(),
        }
    }

    /// Returns whether a daemon can be used.
    pub fn is_usable(&self, daemon: DaemonId) -> bool {
        self.daemons.contains_key(&daemon)
    }

    /// Returns whether all members run and have all their backups, or as many as the number of
    /// daemons allows.
    pub fn is_complete(&self) -> bool {
        let backups = self.copies.min(self.daemons.len()).saturating_sub(1);
        self.members
            .iter()
            .all(|member| self.is_usable(member.record.daemon) && member.complete.len() >= backups)
    }

    /// Notes that a daemon has failed, and must not run any member any more.
    pub fn daemon_failed(&mut self, daemon: DaemonId) {
        let Some(record) = self.daemons.remove(&daemon) else { return };
        self.ended.push(record);
        for member in &mut self.members {
            member.complete.remove(&daemon);
            member.record.backups.retain(|backup| *backup != daemon);
        }
        for number in 0..self.members.len() {
            if self.members[number].record.daemon == daemon {
                self.replace(number);
            }
        }
        self.place();
    }

    /// Lets the daemon of a complete backup run a member whose daemon has failed.
    fn replace(&mut self, number: usize) {
        let member = &self.members[number];
        let load =
            |daemon: &DaemonId| self.members.iter().filter(|other| other.record.daemon == *daemon).count();
        let Some(chosen) = member.complete.iter().copied().min_by_key(load) else { return };
        let Some(daemon) = self.daemons.get(&chosen) else { return };
        let id = member.record.id.0.to_string();
        let sockets = daemon.socket.parent().unwrap_or(Path::new("/"));
        let record = PoolMember {
            id: member.record.id,
            daemon: chosen,
            backups: member.record.backups.iter().copied().filter(|backup| *backup != chosen).collect(),
            directory: daemon.directory.join("backups").join(&id),
            socket: sockets.join(&id),
            ..daemon.clone()
        };
        let member = &mut self.members[number];
        member.complete.remove(&chosen);
        member.record = record;
    }

    /// Notes that a backup has everything that its member has acknowledged. `from` is the daemon
    /// that runs the member. Returns whether all backups are complete now.
    pub fn backup_complete(&mut self, from: DaemonId, member: MemberId, backup: DaemonId) -> bool {
        if let Some(placed) = self.members.iter_mut().find(|placed| placed.record.id == member)
            && placed.record.daemon == from
            && placed.record.backups.contains(&backup)
        {
            placed.complete.insert(backup);
        }
        let is_complete = self.is_complete();
        self.number += u64::from(is_complete);
        is_complete
    }

    /// Notes that a backup has failed. Returns whether the placement has changed.
    pub fn backup_failed(&mut self, from: DaemonId, member: MemberId, backup: DaemonId) -> bool {
        let Some(placed) = self.members.iter_mut().find(|placed| placed.record.id == member) else {
            return false;
        };
        if placed.record.daemon != from || !placed.record.backups.contains(&backup) {
            return false;
        }
        placed.record.backups.retain(|other| *other != backup);
        placed.complete.remove(&backup);
        self.failed.insert((member, backup));
        self.place();
        true
    }

    /// Adds the backups that are missing.
    fn place(&mut self) {
        self.number += 1;
        let mut backups: BTreeMap<DaemonId, usize> = self.daemons.keys().map(|id| (*id, 0)).collect();
        for backup in self.members.iter().flat_map(|member| &member.record.backups) {
            *backups.entry(*backup).or_default() += 1;
        }
        for member in &mut self.members {
            if !self.daemons.contains_key(&member.record.daemon) {
                continue;
            }
            while member.record.backups.len() + 1 < self.copies {
                let nodes: BTreeSet<&str> = (member.record.backups.iter())
                    .filter_map(|backup| self.daemons.get(backup))
                    .map(|daemon| daemon.node.as_str())
                    .chain([member.record.node.as_str()])
                    .collect();
                let is_free = |daemon: &&DaemonId| {
                    **daemon != member.record.daemon
                        && !member.record.backups.contains(daemon)
                        && !self.failed.contains(&(member.record.id, **daemon))
                };
                // Another node is better, then a daemon with fewer backups, then the next one.
                let cost = |daemon: &&DaemonId| {
                    let is_same_node = nodes.contains(self.daemons[*daemon].node.as_str());
                    (is_same_node, backups[*daemon], daemon.0.wrapping_sub(member.record.daemon.0))
                };
                let Some(chosen) = self.daemons.keys().filter(is_free).min_by_key(cost).copied() else {
                    break;
                };
                member.record.backups.push(chosen);
                *backups.entry(chosen).or_default() += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(daemons: u16, daemons_of_node: u16) -> Vec<PoolMember> {
        let member = |number: u16| PoolMember {
            id: MemberId(number),
            daemon: DaemonId(number),
            backups: Vec::new(),
            host: format!("n{number}"),
            node: (number / daemons_of_node).to_string(),
            pid: 100 + u32::from(number),
            directory: format!("/data/{number}").into(),
            memory_bytes: None,
            socket: format!("/run/pool/{number}").into(),
            address: format!("10.0.0.{number}:1"),
        };
        (0..daemons).map(member).collect()
    }

    fn complete_all(replicas: &mut Replicas) {
        for member in &mut replicas.members {
            member.complete = member.record.backups.iter().copied().collect();
        }
    }

    fn check(replicas: &Replicas, copies: usize) {
        let usable = replicas.daemons.len();
        for member in replicas.configuration().members {
            let mut copies_of_member: Vec<_> = member.backups.clone();
            copies_of_member.push(member.daemon);
            assert!(copies_of_member.iter().all(|daemon| replicas.is_usable(*daemon)));
            copies_of_member.sort();
            copies_of_member.dedup();
            assert_eq!(copies_of_member.len(), copies.min(usable), "{member:?}");
        }
    }

    #[test]
    fn backups_are_on_other_nodes_and_evenly_distributed() {
        let replicas = Replicas::new(&members(64, 2), 3);
        check(&replicas, 3);
        let mut counts = BTreeMap::new();
        for member in replicas.configuration().members {
            let node = |daemon: DaemonId| replicas.daemons[&daemon].node.clone();
            let mut nodes: Vec<_> = member.backups.iter().map(|backup| node(*backup)).collect();
            nodes.push(member.node);
            nodes.sort();
            nodes.dedup();
            assert_eq!(nodes.len(), 3);
            member.backups.iter().for_each(|backup| *counts.entry(*backup).or_insert(0) += 1);
        }
        assert!(counts.values().all(|count| (1..=3).contains(count)), "{counts:?}");
        // Daemons on one node are used if there are no others.
        let replicas = Replicas::new(&members(3, 3), 2);
        check(&replicas, 2);
    }

    #[test]
    fn a_member_runs_on_a_complete_backup_after_the_failure_of_its_daemon() {
        let mut replicas = Replicas::new(&members(4, 1), 2);
        let backup = replicas.configuration().members[1].backups[0];
        assert!(!replicas.is_complete());
        complete_all(&mut replicas);
        assert!(replicas.is_complete());
        let before = replicas.configuration();
        replicas.daemon_failed(DaemonId(1));
        let after = replicas.configuration();
        assert!(after.number > before.number);
        let moved = &after.members[1];
        assert_eq!((moved.id, moved.daemon), (MemberId(1), backup));
        assert_eq!(moved.directory, Path::new(&format!("/data/{}/backups/1", backup.0)));
        assert_eq!(moved.socket, Path::new("/run/pool/1"));
        assert_eq!(moved.address, format!("10.0.0.{}:1", backup.0));
        assert_eq!(
            after.ended,
            vec![before.members[1].clone()]
                .into_iter()
                .map(|m| PoolMember { backups: Vec::new(), ..m })
                .collect::<Vec<_>>()
        );
        check(&replicas, 2);
        assert!(!replicas.is_complete(), "the new backups are not complete");
        complete_all(&mut replicas);
        assert!(replicas.is_complete());
        // Reports of the daemon that has failed have no effect.
        replicas.backup_complete(DaemonId(1), MemberId(1), DaemonId(0));
        assert!(!replicas.backup_failed(DaemonId(1), MemberId(1), DaemonId(0)));
    }

    #[test]
    fn a_member_without_a_complete_backup_stays_with_its_failed_daemon() {
        let mut replicas = Replicas::new(&members(3, 1), 2);
        replicas.daemon_failed(DaemonId(2));
        let members = replicas.configuration().members;
        assert_eq!((members[2].daemon, replicas.is_usable(DaemonId(2))), (DaemonId(2), false));
        complete_all(&mut replicas);
        assert!(!replicas.is_complete());
    }

    #[test]
    fn a_failed_backup_is_replaced_on_another_daemon() {
        let mut replicas = Replicas::new(&members(3, 1), 2);
        let first = replicas.configuration().members[0].backups[0];
        assert!(replicas.backup_failed(DaemonId(0), MemberId(0), first));
        let second = replicas.configuration().members[0].backups[0];
        assert_ne!(first, second);
        assert!(replicas.backup_failed(DaemonId(0), MemberId(0), second));
        assert!(replicas.configuration().members[0].backups.is_empty(), "there is no other daemon");
    }

    #[test]
    fn thousands_of_daemons_can_fail_one_after_the_other() {
        let mut replicas = Replicas::new(&members(2000, 1), 3);
        complete_all(&mut replicas);
        let mut step = 0;
        while replicas.daemons.len() > 1500 {
            let before = replicas.configuration();
            let mut failed = BTreeSet::new();
            for _ in 0..50 {
                step += 7919;
                let failing = *replicas.daemons.keys().nth(step % replicas.daemons.len()).unwrap();
                replicas.daemon_failed(failing);
                failed.insert(failing);
                complete_all(&mut replicas);
            }
            check(&replicas, 3);
            // Only members of failed daemons move, and all other backups stay.
            for (before, after) in before.members.iter().zip(replicas.configuration().members) {
                assert!(failed.contains(&before.daemon) || before.daemon == after.daemon);
                let kept = before.backups.iter().filter(|b| !failed.contains(b) && **b != after.daemon);
                assert!(kept.clone().all(|backup| after.backups.contains(backup)));
            }
        }
        assert!(replicas.is_complete());
    }
}
