//! The partitions of a directory: if several servers execute the operations on the names of a large
//! directory, the hash of a name determines the server (GIGA+; BatchFS, section II-A).
//! docs/decisions/0058-several-primary-servers.md has the design.

use std::collections::HashMap;
use std::ops::Range;

use quell_vfs::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::entry::{Inode, Timestamp};
use crate::key::{Key, split};
use crate::table_ref::TableRef;
use crate::usage::UsageChanges;

/// The largest depth: a directory has at most 256 partitions.
pub const DEPTH_MAX: u8 = 8;

/// The partitions of a directory that one server has. A directory of depth `d` has `2^d`
/// partitions, and the lowest `d` bits of the hash of a name are the number of its partition. The
/// partition `n` belongs to the slot `n` modulo the number of slots. Slot 0 is the primary server
/// with the master image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlotPartitions {
    /// The inode number of the directory.
    pub dir: u64,
    /// The depth, from 1 to [`DEPTH_MAX`].
    pub depth: u8,
    /// The number of slots, from 2 to `2^depth`.
    pub slots: u16,
    /// The slot of the server, less than `slots`.
    pub slot: u16,
}

/// Returns the slot of a name in a directory of this depth with this number of slots.
pub fn slot_of(name: &[u8], depth: u8, slots: u16) -> u16 {
    let mask = (1u64 << depth.min(DEPTH_MAX)) - 1;
    // The remainder is less than `slots`.
    ((xxh3_64(name) & mask) % u64::from(slots.max(1))) as u16
}

impl SlotPartitions {
    /// Returns whether a name of the directory belongs to these partitions.
    pub fn contains(&self, name: &[u8]) -> bool {
        slot_of(name, self.depth, self.slots) == self.slot
    }

    /// Returns whether the fields are within their limits.
    pub fn is_valid(&self) -> bool {
        let depth = (1..=DEPTH_MAX).contains(&self.depth);
        depth && (2..=1 << self.depth.min(DEPTH_MAX)).contains(&self.slots) && self.slot < self.slots
    }
}

/// The assignment of partitions of a directory to a partition server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The number of the assignment, which is also the number of the table with which the server
    /// returns its changes.
    pub number: u64,
    /// The number of the server.
    pub server: u32,
    /// The partitions.
    pub partitions: SlotPartitions,
    /// The tables of the image at the time of the assignment, the newest first.
    pub tables: Vec<TableRef>,
    /// The inode numbers for new entries.
    pub inodes: Range<u64>,
}

impl Assignment {
    /// Returns the numbers of the tables that the assignment needs: those of the image, and the one
    /// with the changes.
    pub(crate) fn table_numbers(&self) -> impl Iterator<Item = u64> {
        self.tables.iter().map(|table| table.number).chain([self.number])
    }
}

/// An assignment, with the present inode of its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewAssignment {
    /// The assignment.
    pub assignment: Assignment,
    /// The inode of the directory, which is not changed as long as the assignment exists, except
    /// for its times.
    pub dir: Inode,
}

impl NewAssignment {
    /// Returns whether the parts agree with one another.
    pub(crate) fn is_valid(&self) -> bool {
        let Assignment { partitions, .. } = &self.assignment;
        partitions.is_valid() && partitions.dir == self.dir.number
    }
}

/// The changes of the partitions of an assignment that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReturnedChanges {
    /// The table with the changed entries. `None` if there are none.
    pub table: Option<TableRef>,
    /// The time of the last change of the names of the directory by this server.
    pub touched: Option<Timestamp>,
    /// The change of the use of users. `None` if it concerns too many users for a message; then the
    /// use is counted again.
    pub(crate) usage: Option<UsageChanges>,
}

/// The numbers of the servers of the partitions of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionMap {
    /// The depth of the directory.
    pub depth: u8,
    /// The server of each slot. `None`: the primary server.
    pub servers: Vec<Option<u32>>,
}

impl PartitionMap {
    /// Returns the server of a name; `None` for the primary server.
    pub fn server_of(&self, name: &[u8]) -> Option<u32> {
        let slots = u16::try_from(self.servers.len()).ok()?;
        self.servers.get(usize::from(slot_of(name, self.depth, slots))).copied().flatten()
    }

    /// Returns one of the partition servers. Clients with different numbers get different ones.
    pub fn any_server(&self, client: u32) -> Option<u32> {
        let count = self.servers.iter().flatten().count();
        let at = (client as usize).checked_rem(count)?;
        self.servers.iter().copied().flatten().nth(at)
    }
}

/// The reason for which a server cannot execute an operation itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The name belongs to a partition of this directory that another server has.
    AtOtherServer {
        /// The inode number of the directory.
        dir: u64,
    },
    /// This server does not execute the operations on the name.
    NotAssigned,
    /// The operation is not about names of one partition alone.
    NeedsPrimary,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Obstacle::AtOtherServer { .. } => "a partition server executes the operations on the name",
            Obstacle::NotAssigned => "this server does not execute the operations on the name",
            Obstacle::NeedsPrimary => "only the primary server can execute the operation",
        })
    }
}

impl std::error::Error for Obstacle {}

impl Obstacle {
    /// Returns the error that states this obstacle.
    pub(crate) fn error(self) -> Error {
        let error = Error::new(ErrorKind::Busy, "use a name of a directory with partitions", "");
        Error { source: Some(Box::new(self)), ..error }
    }

    /// Returns the obstacle that an error states.
    pub fn of(error: &Error) -> Option<Obstacle> {
        error.source.as_ref()?.downcast_ref().copied()
    }
}

/// The assignments of an image.
#[derive(Debug, Clone, Default)]
pub(crate) struct Assignments(HashMap<u64, Vec<Assignment>>);

impl Assignments {
    pub(crate) fn new(assignments: Vec<Assignment>) -> Assignments {
        let mut by_dir = Assignments::default();
        assignments.into_iter().for_each(|assignment| by_dir.insert(assignment));
        by_dir
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn insert(&mut self, assignment: Assignment) {
        self.0.entry(assignment.partitions.dir).or_default().push(assignment);
    }

    pub(crate) fn remove(&mut self, removed: &Assignment) {
        if let Some(of_dir) = self.0.get_mut(&removed.partitions.dir) {
            of_dir.retain(|assignment| assignment.number != removed.number);
            if of_dir.is_empty() {
                self.0.remove(&removed.partitions.dir);
            }
        }
    }

    /// Returns the assignments of a directory.
    pub(crate) fn of_dir(&self, dir: u64) -> &[Assignment] {
        self.0.get(&dir).map_or(&[], Vec::as_slice)
    }

    /// Returns all assignments, in the order of their numbers.
    pub(crate) fn all(&self) -> Vec<Assignment> {
        let mut all: Vec<Assignment> = self.0.values().flatten().cloned().collect();
        all.sort_unstable_by_key(|assignment| assignment.number);
        all
    }

    /// Returns the assignment to whose partitions a name belongs.
    pub(crate) fn of_name(&self, dir: u64, name: &[u8]) -> Option<&Assignment> {
        let of_dir = self.of_dir(dir);
        let SlotPartitions { depth, slots, .. } = of_dir.first()?.partitions;
        if name.is_empty() {
            return None;
        }
        // All assignments of a directory have the same depth and number of slots.
        let slot = slot_of(name, depth, slots);
        of_dir.iter().find(|assignment| assignment.partitions.slot == slot)
    }

    /// Returns the assignment to whose partitions a key belongs.
    pub(crate) fn of_key(&self, key: &Key) -> Option<&Assignment> {
        if self.0.is_empty() {
            return None;
        }
        let (dir, name) = split(key.as_bytes())?;
        self.of_name(dir, name)
    }

    /// Returns the servers of a directory that has partitions.
    pub(crate) fn map_of(&self, dir: u64) -> Option<PartitionMap> {
        let of_dir = self.of_dir(dir);
        let SlotPartitions { depth, slots, .. } = of_dir.first()?.partitions;
        let mut servers = vec![None; usize::from(slots)];
        for assignment in of_dir {
            if let Some(server) = servers.get_mut(usize::from(assignment.partitions.slot)) {
                *server = Some(assignment.server);
            }
        }
        Some(PartitionMap { depth, servers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions(depth: u8, slots: u16, slot: u16) -> SlotPartitions {
        SlotPartitions { dir: 7, depth, slots, slot }
    }

    #[test]
    fn each_name_belongs_to_one_slot_and_the_slots_have_similar_numbers_of_names() {
        for (depth, slots) in [(1, 2), (2, 3), (2, 4), (8, 256), (8, 7)] {
            let mut names = vec![0usize; usize::from(slots)];
            for number in 0..10_000 {
                let name = format!("file-{number}");
                let of = (0..slots).filter(|slot| partitions(depth, slots, *slot).contains(name.as_bytes()));
                let found: Vec<u16> = of.collect();
                assert_eq!(found.len(), 1, "{name}");
                names[usize::from(found[0])] += 1;
            }
            let least = 10_000 / (1 << depth) / 2;
            assert!(names.iter().all(|count| *count > least), "{names:?}");
        }
    }

    #[test]
    fn a_partition_beyond_the_limits_is_not_valid() {
        assert!(partitions(1, 2, 1).is_valid() && partitions(8, 256, 255).is_valid());
        for (depth, slots, slot) in [(0, 2, 1), (9, 2, 1), (255, 2, 1), (1, 3, 1), (1, 1, 0), (2, 3, 3)] {
            assert!(!partitions(depth, slots, slot).is_valid(), "{depth} {slots} {slot}");
        }
    }

    #[test]
    fn the_map_of_a_directory_names_the_server_of_each_name() {
        let mut assignments = Assignments::default();
        assert_eq!(assignments.map_of(7), None);
        for (number, slot) in [(1, 1), (2, 2)] {
            let (partitions, server) = (partitions(2, 4, slot), 10 + u32::from(slot));
            assignments.insert(Assignment { number, server, partitions, tables: Vec::new(), inodes: 0..1 });
        }
        let map = assignments.map_of(7).unwrap();
        assert_eq!(map.servers, [None, Some(11), Some(12), None]);
        assert_eq!([0, 1, 2].map(|client| map.any_server(client)), [Some(11), Some(12), Some(11)]);
        for number in 0..100 {
            let name = number.to_string();
            let of_name = assignments.of_name(7, name.as_bytes()).map(|assignment| assignment.server);
            assert_eq!(map.server_of(name.as_bytes()), of_name);
        }
        assert!(assignments.of_name(7, b"").is_none() && assignments.of_dir(8).is_empty());
        for assignment in assignments.all() {
            assignments.remove(&assignment);
        }
        assert!(assignments.is_empty());
    }
}
