//! The connection of this process to a daemon of its node.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use quell_pool::{Daemon, LocalData, Unanswered, ask, done};
use quell_posix::PosixDir;
use quell_transport::local::{self, IsReplaced, LocalChannel};
use quell_vfs::{Error, NodeId, Result};
use quell_wire::Failure;
use quell_wire::pool::{Consistency, DirectAccess, FileId, Mark, MemberId, Operation, Reply};

/// A connection of this process to a daemon, through shared memory.
pub struct PoolConnection {
    channel: LocalChannel,
    data: Option<LocalData>,
    consistency: Consistency,
}

impl std::fmt::Debug for PoolConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PoolConnection").finish()
    }
}

impl PoolConnection {
    /// Connects to the daemon whose socket is at `socket`.
    ///
    /// # Errors
    ///
    /// `NotFound` and `Unavailable` if no daemon serves there, `PermissionDenied` if the daemon
    /// belongs to another user.
    pub fn open(socket: &Path) -> Result<PoolConnection> {
        PoolConnection::open_checked(socket, None)
    }

    /// Does the same as `open`. The connection is lost when `is_replaced` returns true, which is
    /// called while a thread waits for the daemon.
    pub(crate) fn open_checked(socket: &Path, is_replaced: Option<IsReplaced>) -> Result<PoolConnection> {
        let channel = LocalChannel::connect_checked(socket, quell_posix::moved, is_replaced)?;
        Ok(PoolConnection { channel, data: None, consistency: Consistency::Synchronous })
    }

    /// Prepares the connection for reads and writes of files: opens the data of the daemon's
    /// member, which needs no requests then, and reads when the sizes of files are to be sent.
    ///
    /// # Errors
    ///
    /// The errors of a lost connection, and `Damaged` for an invalid reply.
    pub fn with_data(mut self) -> Result<PoolConnection> {
        let described = ("open", &b"a pool"[..]);
        self.consistency = ask(&self, None, &Operation::Consistency, described, |reply| match reply {
            Reply::Consistency(consistency) => Some(consistency),
            _ => None,
        })?;
        let Some(dir) = self.channel.descriptors().next().map(|dir| dir.try_clone_to_owned()) else {
            return Ok(self);
        };
        let dir = dir.map_err(|e| Error::from_io(e, "open", "the data of a pool"))?;
        let described = ("open", &b"the data of a pool"[..]);
        let partitions = ask(&self, None, &Operation::OwnPartitions, described, |reply| match reply {
            Reply::Partitions(own) => Some(own),
            _ => None,
        })?;
        self.data = Some(LocalData { dir: Arc::new(PosixDir::of_descriptor(dir)), partitions });
        Ok(self)
    }
}

/// The changes of all members of a pool at one time.
#[derive(Debug)]
pub struct PoolMarks(Vec<Mark>);

impl PoolMarks {
    /// Returns whether the pool has changes that were not part of a complete copy of it.
    pub fn has_unsaved_changes(&self) -> bool {
        self.0.iter().any(|mark| mark.saved != mark.changes)
    }
}

impl PoolConnection {
    /// Returns the marks of all members.
    ///
    /// # Errors
    ///
    /// `Unavailable` and `TimedOut` if a member does not answer.
    pub fn marks(&self) -> Result<PoolMarks> {
        ask(self, None, &Operation::Marks, ("read the marks", b""), |reply| match reply {
            Reply::Marks(marks) => Some(PoolMarks(marks)),
            _ => None,
        })
    }

    /// Records that all changes before `marks` were copied out of the pool.
    ///
    /// # Errors
    ///
    /// As [`marks`](Self::marks).
    pub fn record_marks(&self, marks: &PoolMarks) -> Result<()> {
        let marks = marks.0.iter().map(|mark| (mark.member, mark.changes)).collect();
        ask(self, None, &Operation::RecordMarks { marks }, ("record the marks", b""), done)
    }
}

/// The members that have the attributes and the chunks of files.
#[derive(Debug)]
pub struct PoolPlacement {
    /// The member of each partition.
    members: Vec<MemberId>,
    chunk_bytes: u32,
}

/// A range of a file, in bytes, whose chunks one member has.
#[derive(Debug, PartialEq, Eq)]
pub struct PlacedRange {
    /// The range.
    pub bytes: Range<u64>,
    /// The number of the member.
    pub member: u16,
}

impl PoolPlacement {
    /// Returns the member with the attributes of a node, or `None` for a node of another pool.
    pub fn of_attributes(&self, node: NodeId) -> Option<u16> {
        let partition = FileId::from(node).partition();
        self.members.get(usize::from(partition)).map(|member| member.0)
    }

    /// Returns the ranges of a file of this size with data in chunks, in their order.
    pub fn of_data(&self, node: NodeId, size_bytes: u64) -> impl Iterator<Item = PlacedRange> + '_ {
        let (id, chunk_bytes) = (FileId::from(node), u64::from(self.chunk_bytes));
        let member_at = move |offset: u64| {
            let partition = id.partition_of_chunk(offset / chunk_bytes, self.members.len() as u16);
            self.members[usize::from(partition)].0
        };
        let end_of_chunk = move |offset: u64| (offset / chunk_bytes + 1).saturating_mul(chunk_bytes);
        let mut start = 0;
        std::iter::from_fn(move || {
            if start >= size_bytes {
                return None;
            }
            let member = member_at(start);
            let mut end = end_of_chunk(start);
            while end < size_bytes && member_at(end) == member {
                end = end_of_chunk(end);
            }
            let bytes = start..end.min(size_bytes);
            start = end;
            Some(PlacedRange { bytes, member })
        })
    }
}

impl PoolConnection {
    /// Returns whether the data of a file is stored with its attributes, and not in chunks.
    ///
    /// # Errors
    ///
    /// The errors of a lost connection, and `Stale` if the file was removed.
    pub fn is_inline(&self, file: NodeId) -> Result<bool> {
        let attributes = Operation::Attributes { id: FileId::from(file) };
        ask(self, None, &attributes, ("stat", b""), |reply| match reply {
            Reply::Node(node) => Some(node.is_inline),
            _ => None,
        })
    }

    /// Returns the placement of a pool with chunks of `chunk_bytes` bytes.
    ///
    /// # Errors
    ///
    /// The errors of a lost connection, and `Damaged` for an invalid reply.
    pub fn placement(&self, chunk_bytes: u32) -> Result<PoolPlacement> {
        ask(self, None, &Operation::Placement, ("read the placement", b""), |reply| match reply {
            Reply::Placement(members) if !members.is_empty() && chunk_bytes > 0 => {
                Some(PoolPlacement { members, chunk_bytes })
            }
            _ => None,
        })
    }
}

impl Daemon for PoolConnection {
    fn call(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        receive: &mut dyn FnMut(Result<Reply<'_>, Failure>),
    ) -> Result<(), Unanswered> {
        let encode = |into: &mut [u8]| quell_wire::encode_into(operation, into);
        let decoded = self.channel.try_call(deadline, encode, |reply| quell_wire::decode(reply).map(receive));
        match decoded {
            Ok(decoded) => Ok(decoded?),
            Err(local::Unanswered::Lost { error, was_taken }) => Err(Unanswered::Lost { error, was_taken }),
            Err(local::Unanswered::Failed(error)) => Err(Unanswered::Failed(error)),
        }
    }

    fn dirs_version(&self) -> u64 {
        self.channel.version()
    }

    fn consistency(&self) -> Consistency {
        self.consistency
    }

    fn local_data(&self) -> Option<&LocalData> {
        self.data.as_ref()
    }

    fn count_direct(&self, access: DirectAccess, bytes: u64) {
        let (accesses, sum) = access.positions();
        self.channel.count(accesses, 1);
        self.channel.count(sum, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_a_file_cover_it_and_change_members_at_the_borders_of_chunks() {
        let members: Vec<MemberId> = (0..64).map(|partition| MemberId(partition % 3)).collect();
        let placement = PoolPlacement { members, chunk_bytes: 10 };
        let node = NodeId(7 << 48 | 5);
        assert_eq!(placement.of_attributes(node), Some(1));
        assert_eq!(placement.of_attributes(NodeId(64 << 48)), None);
        assert_eq!(placement.of_data(node, 0).next(), None);
        let ranges: Vec<PlacedRange> = placement.of_data(node, 1234).collect();
        assert_eq!(ranges.first().unwrap().bytes.start, 0);
        assert_eq!(ranges.last().unwrap().bytes.end, 1234);
        for pair in ranges.windows(2) {
            assert_eq!(pair[0].bytes.end, pair[1].bytes.start);
            assert!(pair[0].bytes.end.is_multiple_of(10) && pair[0].member != pair[1].member);
        }
        for range in &ranges {
            let partition = FileId::from(node).partition_of_chunk(range.bytes.start / 10, 64);
            assert_eq!(range.member, partition % 3);
        }
    }
}
