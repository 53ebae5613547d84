//! The operations of a client, and their results.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::counters::MemberCounters;
use super::entry::{FileId, MemberId, Node, NodeKind, Stamp};
use super::partitions::Partitions;
use super::start::Consistency;

/// The kind of a new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewKind<'a> {
    /// An empty regular file.
    File,
    /// An empty directory.
    Dir,
    /// A symbolic link with this target, unchanged.
    Symlink(#[serde(borrow, with = "serde_bytes")] &'a [u8]),
}

/// The entry that a removal removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Matching {
    /// A file or symbolic link.
    NotDir,
    /// An empty directory.
    Dir,
}

/// The effect of a rename if an entry of the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// The existing entry is replaced: a file or link by a file or link, an empty directory by a
    /// directory.
    Replace,
    /// The rename fails.
    Keep,
    /// The two entries exchange their names. The existing entry is required.
    Exchange,
}

/// The effect of setting an extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// The value is set.
    Any,
    /// Fails if the attribute is set already.
    Create,
    /// Fails if the attribute is not set.
    Replace,
}

/// New attributes. A field that is `None` is left unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Settings {
    /// The lower twelve bits of `st_mode`.
    pub permissions: Option<u16>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size of a regular file, in bytes.
    pub size_bytes: Option<u64>,
    /// The modification time.
    pub modified: Option<Stamp>,
    /// Whether to remove the set-id bits that a write by an ordinary user removes.
    pub drops_set_id: bool,
}

/// The largest number of nodes in an `Operation::Hold`.
pub const HOLDS_MAX: usize = 512;

/// One operation on a pool.
///
/// `holds`: the result is one reference of the client to the node. As long as a client has
/// references to a node, its data stays, even if it loses its name. `Release` returns references.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation<'a> {
    /// Returns the attributes of the entry `name` of `dir`: `Reply::Held` if there is one and
    /// `holds` is true, otherwise `Reply::Found`.
    Lookup {
        /// The directory.
        dir: FileId,
        /// The name in it.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
        /// Whether a reference is made.
        holds: bool,
    },
    /// Returns the attributes of a node: `Reply::Node`.
    Attributes {
        /// The node.
        id: FileId,
    },
    /// Returns the name of a node and the directory that has it: `Reply::Name`.
    Name {
        /// The node.
        id: FileId,
    },
    /// Creates an entry with a reference: `Reply::Held`.
    Create {
        /// The directory.
        dir: FileId,
        /// The name in it.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
        /// Its kind.
        #[serde(borrow)]
        kind: NewKind<'a>,
        /// The lower twelve bits of `st_mode`.
        permissions: u16,
        /// The owner.
        uid: u32,
        /// The group.
        gid: u32,
    },
    /// Removes an entry: `Reply::Done`.
    Remove {
        /// The directory.
        dir: FileId,
        /// The name in it.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
        /// The kind of entry that is removed.
        matching: Matching,
    },
    /// Renames an entry: `Reply::Done`.
    Rename {
        /// The directory of the old name.
        from_dir: FileId,
        /// The old name.
        #[serde(borrow, with = "serde_bytes")]
        from: &'a [u8],
        /// The directory of the new name.
        to_dir: FileId,
        /// The new name.
        #[serde(borrow, with = "serde_bytes")]
        to: &'a [u8],
        /// The effect if an entry of the new name exists.
        mode: RenameMode,
    },
    /// Changes attributes: `Reply::Node`.
    Change {
        /// The node.
        id: FileId,
        /// The new attributes.
        settings: Settings,
    },
    /// Returns the target of a symbolic link: `Reply::Bytes`.
    ReadLink {
        /// The link.
        id: FileId,
    },
    /// Returns the value of an extended attribute: `Reply::Value`.
    Xattr {
        /// The node.
        id: FileId,
        /// The name.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Returns the names of all extended attributes, each with a NUL after it: `Reply::Bytes`.
    XattrNames {
        /// The node.
        id: FileId,
    },
    /// Sets an extended attribute: `Reply::Done`.
    SetXattr {
        /// The node.
        id: FileId,
        /// The name.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
        /// The value.
        #[serde(borrow, with = "serde_bytes")]
        value: &'a [u8],
        /// The effect if the attribute is set already, or is not.
        mode: XattrMode,
    },
    /// Removes an extended attribute: `Reply::Done`.
    RemoveXattr {
        /// The node.
        id: FileId,
        /// The name.
        #[serde(borrow, with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Returns entries of a directory in the order of their cursors: `Reply::Entries`.
    List {
        /// The directory.
        dir: FileId,
        /// The cursor of the last entry that the client has, or 0.
        after: u64,
    },
    /// Reads from one chunk of a file: `Reply::Bytes`, shorter than asked for if the rest of the
    /// chunk was never written.
    Read {
        /// The file.
        id: FileId,
        /// The number of the chunk.
        chunk: u64,
        /// The first byte in the chunk.
        offset: u32,
        /// The number of bytes.
        bytes: u32,
    },
    /// Writes to one chunk of a file: `Reply::Written`.
    Write {
        /// The file.
        id: FileId,
        /// The number of the chunk.
        chunk: u64,
        /// The first byte in the chunk.
        offset: u32,
        /// The data.
        #[serde(borrow, with = "serde_bytes")]
        data: &'a [u8],
    },
    /// Reads from a file with inline data: `Reply::Inline`, or `Reply::InChunks` if the file has
    /// chunks.
    ReadInline {
        /// The file.
        id: FileId,
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u32,
    },
    /// Writes to a file with inline data, if the data is inline afterwards, too: `Reply::Written`.
    /// Otherwise writes nothing, does the same as `NoteData`, and the reply is `Reply::InChunks`.
    WriteInline {
        /// The file.
        id: FileId,
        /// The first byte.
        offset: u64,
        /// The data, at most [`INLINE_BYTES_MAX`](super::INLINE_BYTES_MAX).
        #[serde(borrow, with = "serde_bytes")]
        data: &'a [u8],
    },
    /// Moves inline data of a file to its chunks, and records that the file may have chunks:
    /// `Reply::Done`. A client sends it before its first write to the chunks of an open file.
    NoteData {
        /// The file.
        id: FileId,
    },
    /// Returns the partitions of the daemon's member: `Reply::Partitions`.
    OwnPartitions,
    /// Returns the member of each partition: `Reply::Placement`.
    Placement,
    /// Returns the time at which sizes are visible: `Reply::Consistency`.
    Consistency,
    /// Records that a file was written and has at least this size: `Reply::Done`.
    Grow {
        /// The file.
        id: FileId,
        /// The size in bytes.
        size_bytes_min: u64,
    },
    /// Extends a file by a number of bytes at its end and returns the old size: `Reply::Offset`.
    Reserve {
        /// The file.
        id: FileId,
        /// The number of bytes.
        bytes: u64,
    },
    /// Makes the data and attributes of a file survive a power failure: `Reply::Done`.
    Sync {
        /// The file.
        id: FileId,
    },
    /// Returns references: `Reply::Done`.
    Release {
        /// The nodes, each with the number of references.
        references: Vec<(FileId, u32)>,
    },
    /// Returns the space of the pool: `Reply::Space`.
    Space,
    /// Returns the space of one member: `Reply::Space`.
    MemberSpace {
        /// The member.
        member: MemberId,
    },
    /// Returns the counters of one member: `Reply::Counters`.
    Counters {
        /// The member.
        member: MemberId,
    },
    /// Ends one member, which removes its files: `Reply::Done` after they are removed.
    StopMember {
        /// The member.
        member: MemberId,
    },
    /// Returns the marks of all members: `Reply::Marks`.
    Marks,
    /// Records that a copy of the whole pool contains the changes up to these marks: `Reply::Done`.
    RecordMarks {
        /// Members, each with its `changes` before the copy began.
        marks: Vec<(MemberId, u64)>,
    },
    /// Makes a reference to each of at most [`HOLDS_MAX`] nodes, and returns those that do not
    /// exist: `Reply::Missing`. A client sends it after it has connected to another daemon.
    Hold {
        /// The nodes.
        ids: Vec<FileId>,
    },
    /// Does the same as `List`, but leaves out the entries of members that cannot be reached:
    /// `Reply::Entries`.
    ListReachable {
        /// The directory.
        dir: FileId,
        /// The cursor of the last entry that the client has, or 0.
        after: u64,
    },
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<'a> {
    /// The name.
    #[serde(borrow, with = "serde_bytes")]
    pub name: Cow<'a, [u8]>,
    /// The cursor, which continues the listing after this entry.
    pub cursor: u64,
    /// The node.
    pub id: FileId,
    /// The kind of the node.
    pub kind: NodeKind,
}

/// A part of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Entries<'a> {
    /// Entries in the order of their cursors.
    #[serde(borrow)]
    pub entries: Vec<Entry<'a>>,
    /// Whether more entries follow.
    pub has_more: bool,
}

impl Entries<'_> {
    /// Returns the same entries with names of their own.
    pub fn into_owned(self) -> Entries<'static> {
        let own = |Entry { name, cursor, id, kind }: Entry<'_>| Entry {
            name: Cow::Owned(name.into_owned()),
            cursor,
            id,
            kind,
        };
        Entries { entries: self.entries.into_iter().map(own).collect(), has_more: self.has_more }
    }
}

/// The marks of one member: the number of its changes, and the number that a copy contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The member.
    pub member: MemberId,
    /// A number that is larger after a later change.
    pub changes: u64,
    /// The value of `changes` before the last complete copy of the pool began. If it is smaller
    /// than `changes`, the member has changes that the copy does not contain.
    pub saved: u64,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply<'a> {
    /// The operation was done.
    Done,
    /// The entry of a name, or `None` if the name does not exist.
    Found(Option<Node>),
    /// The attributes of a node.
    Node(Node),
    /// The attributes of a node to which the receiver got a reference.
    Held(Node),
    /// The node of a name, if another member has the attributes of the node. Only members send it.
    Elsewhere(FileId),
    /// A directory and the name in it.
    Name {
        /// The directory.
        dir: FileId,
        /// The name.
        #[serde(borrow, with = "serde_bytes")]
        name: Cow<'a, [u8]>,
    },
    /// A part of a listing.
    Entries(#[serde(borrow)] Entries<'a>),
    /// Data of a file, the target of a link, or names of extended attributes.
    Bytes(#[serde(borrow, with = "serde_bytes")] Cow<'a, [u8]>),
    /// The value of an extended attribute, or `None` if it is not set.
    Value(#[serde(borrow, with = "serde_bytes")] Option<Cow<'a, [u8]>>),
    /// Data was written; `true` if the size of the file was recorded, too.
    Written(bool),
    /// Inline data of a file.
    Inline {
        /// The data from the requested offset on. The bytes after it, up to the end of the file,
        /// are zeros.
        #[serde(borrow, with = "serde_bytes")]
        data: Cow<'a, [u8]>,
        /// The size of the file, in bytes.
        size_bytes: u64,
    },
    /// The data of the file is in chunks, and stays there.
    InChunks,
    /// An offset in a file.
    Offset(u64),
    /// The space of the pool or of a member, in bytes.
    Space {
        /// The size.
        total_bytes: u64,
        /// The free part.
        free_bytes: u64,
        /// The part that users other than root may use.
        available_bytes: u64,
        /// Identifies the file system with the space of a member; 0 for the pool. Members on one
        /// machine may share a file system.
        file_system: u64,
    },
    /// The counters of a member.
    Counters(Box<MemberCounters>),
    /// The partitions of a member.
    Partitions(Partitions),
    /// The member of each partition, in the order of the partitions.
    Placement(Vec<MemberId>),
    /// The time at which sizes are visible.
    Consistency(Consistency),
    /// Whether a directory has entries.
    HasEntries(bool),
    /// Files that do not exist.
    Missing(Vec<FileId>),
    /// The entry that had a prepared name.
    Prepared(Option<(FileId, NodeKind)>),
    /// Whether a transaction was committed.
    Committed(bool),
    /// Marks of members.
    Marks(Vec<Mark>),
    /// The references of the receiver are kept. If the sender has dropped references, the two
    /// numbers have changed.
    Lease {
        /// The session of the sender.
        session: u64,
        /// How often the sender has dropped references of the receiver in this session.
        number: u64,
    },
}
