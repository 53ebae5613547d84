//! The messages between the nodes of a job, one of which reads files for all:
//! docs/formats/job-protocol.md.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::bounded::at_most;

/// The version of these messages.
pub const PROTOCOL: u32 = 2;
/// The size of a block. The last block of a file can be shorter.
pub const BLOCK_BYTES: usize = 256 << 10;
/// The largest number of files.
pub const FILES_MAX: usize = 64;
/// The largest size of a file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 36;
/// The longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// The longest name of a node and the longest description of a failure, in bytes.
pub const TEXT_BYTES_MAX: usize = 1024;
/// The longest name of a node in a [`Tree`](Reply::Tree), in bytes.
pub const NODE_NAME_BYTES_MAX: usize = 64;
/// The longest result of a comparison of a tree with its index, in bytes.
pub const RESULT_BYTES_MAX: usize = 8 << 10;
/// The largest number of nodes in a [`Tree`](Reply::Tree).
pub const TREE_NODES_MAX: usize = 4096;
/// The largest encoded request.
pub const REQUEST_BYTES_MAX: usize = 2048;
/// The largest encoded reply: a block, a list of files or a tree.
pub const REPLY_BYTES_MAX: usize = 640 << 10;
/// The largest encoded reply to [`SharedBlock`](Request::SharedBlock).
pub const BLOCK_REPLY_BYTES_MAX: usize = BLOCK_BYTES + 1024;

/// The number of a node: the reader is 0, the others are numbered in the order of their requests.
pub type NodeNumber = u32;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// To the reader: adds a node to the tree. The reply is `Placed`.
    Join {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The address at which the node serves other nodes.
        address: SocketAddr,
        /// The name of the node, at most [`TEXT_BYTES_MAX`] bytes.
        name: &'a str,
    },
    /// To the reader: the node gets no more blocks from its parent. The reply is `Placed`.
    Lost {
        /// The node.
        node: NodeNumber,
        /// Its parent.
        parent: NodeNumber,
    },
    /// Asks for the files. The reply is `Files`, or `Wait` while they are not known.
    Files,
    /// Asks for a block. The reply is `Block`, or `Wait` while the node does not have it.
    Block {
        /// The position of the file in the list.
        file: u32,
        /// The number of the block, from 0.
        block: u64,
    },
    /// To the reader: the node has all blocks. The reply is `Noted`.
    Complete {
        /// The node.
        node: NodeNumber,
        /// The bytes that it received from other nodes.
        received_bytes: u64,
        /// The bytes that it read from the file system.
        read_bytes: u64,
        /// The milliseconds since it began.
        milliseconds: u64,
    },
    /// To the reader: asks for the nodes. The reply is `Tree`.
    Tree,
    /// To the reader: asks for the results of its samples of the trees. The reply is `Samples`, or
    /// `Wait` until it has them.
    Samples,
    /// To the reader: asks for the result of its check of a whole tree. The reply is `Checked`.
    Checked {
        /// The position of the index in the list of files.
        file: u32,
    },
    /// To a meeting point: asks for the text of a link. The reply is `Link`.
    ReadLink {
        /// The number of the link.
        link: u128,
    },
    /// To a meeting point: creates a link, unless it exists. The reply is `Link`.
    CreateLink {
        /// The number of the link.
        link: u128,
        /// Its text, at most [`TEXT_BYTES_MAX`] bytes.
        text: &'a str,
    },
    /// To a meeting point: removes a link if it has this text. The reply is `Link`.
    RemoveLink {
        /// The number of the link.
        link: u128,
        /// Its text.
        text: &'a str,
    },
    /// Requests a block of a file of an indexed tree. The reply is `Block`, `NotShared`, or `Wait`
    /// while the node does not have the block.
    SharedBlock(SharedBlockId),
}

/// A block of a file of an indexed tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SharedBlockId {
    /// The position of the index in the list of files.
    pub index: u32,
    /// The number of the entry in the index.
    pub entry: u32,
    /// The number of the block, from 0.
    pub block: u64,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply<'a> {
    /// The position of a node in the tree.
    Placed(Placement),
    /// The files, in the order in which they are numbered.
    Files(#[serde(deserialize_with = "at_most::<FILES_MAX, _, _>")] Vec<FileState>),
    /// A block.
    Block {
        /// XXH3-64 of the bytes, computed by the node that read them from the file system.
        checksum: u64,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// The node does not have the requested data yet: ask again.
    Wait,
    /// The node does not serve the request, for this reason.
    Refused(&'a str),
    /// The message was received.
    Noted,
    /// The nodes, in the order of their numbers.
    Tree(#[serde(deserialize_with = "at_most::<TREE_NODES_MAX, _, _>")] Vec<NodeState>),
    /// For each file the result of the sample of its tree, at most [`RESULT_BYTES_MAX`] bytes;
    /// `None` if the reader has made none.
    Samples(#[serde(deserialize_with = "at_most::<FILES_MAX, _, _>")] Vec<Option<CheckResult>>),
    /// The result of the check of a whole tree, at most [`RESULT_BYTES_MAX`] bytes; `None` if the
    /// reader does not have it.
    Checked(Option<CheckResult>),
    /// The text that a link had before the request; `None` if it did not exist.
    Link(Option<&'a str>),
    /// The nodes of the job do not share this file; the client opens it itself.
    NotShared,
}

/// The result of a comparison of a tree with its index, which only the processes that compare trees
/// read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckResult(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// The position of a node in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The number of the node.
    pub node: NodeNumber,
    /// The number of its parent.
    pub parent: NodeNumber,
    /// The address of the parent; `None` if it is the reader.
    pub address: Option<SocketAddr>,
}

/// A file, or the reason why it could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileState {
    /// The file was opened.
    Open(FileAttributes),
    /// The reason why the file could not be opened.
    Failed(String),
}

/// A file as the reader has opened it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttributes {
    /// The path without symbolic links, at most [`PATH_BYTES_MAX`] bytes.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// The directory that the user named instead of the index beside it, without symbolic links, at
    /// most [`PATH_BYTES_MAX`] bytes.
    #[serde(with = "serde_bytes")]
    pub directory: Option<Vec<u8>>,
    /// The size, in bytes: at most [`FILE_BYTES_MAX`].
    pub size_bytes: u64,
    /// The mode, with the type of the file.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Whether the group bits of the mode are the mask of an access control list.
    pub has_acl: bool,
    /// The number of the inode.
    pub inode: u64,
    /// The time of the last modification: seconds since 1970.
    pub modified_seconds: i64,
    /// Its nanoseconds.
    pub modified_nanoseconds: u32,
}

/// A node of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// The number of the node.
    pub node: NodeNumber,
    /// Its parent; `None` for the reader.
    pub parent: Option<NodeNumber>,
    /// The name, at most [`NODE_NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// The bytes that it received from other nodes; 0 until it is complete.
    pub received_bytes: u64,
    /// The bytes that it read from the file system; 0 until it is complete.
    pub read_bytes: u64,
    /// The milliseconds until it had all blocks; `None` if it does not have them.
    pub milliseconds: Option<u64>,
}

impl FileState {
    /// Returns whether all lengths are within their limits.
    pub fn is_bounded(&self) -> bool {
        match self {
            FileState::Open(file) => {
                is_absolute(&file.path)
                    && file.directory.as_deref().is_none_or(is_absolute)
                    && file.size_bytes <= FILE_BYTES_MAX
                    && file.modified_nanoseconds < 1_000_000_000
            }
            FileState::Failed(text) => text.len() <= TEXT_BYTES_MAX,
        }
    }
}

fn is_absolute(path: &[u8]) -> bool {
    path.len() <= PATH_BYTES_MAX && path.first() == Some(&b'/') && !path.contains(&0)
}

impl FileAttributes {
    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        self.size_bytes.div_ceil(BLOCK_BYTES as u64)
    }

    /// Returns the length of a block, in bytes; 0 for one after the end.
    pub fn block_bytes(&self, block: u64) -> usize {
        block_bytes(self.size_bytes, block)
    }
}

/// Returns the length of a block of a file of this size, in bytes; 0 for one after the end.
pub fn block_bytes(size_bytes: u64, block: u64) -> usize {
    let begin = block.saturating_mul(BLOCK_BYTES as u64);
    size_bytes.saturating_sub(begin).min(BLOCK_BYTES as u64) as usize
}

/// Returns the beginning of a text, at most `bytes_max` bytes.
pub fn shortened(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Returns the checksum of a block.
pub fn block_checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode, encode};

    fn file(size_bytes: u64) -> FileAttributes {
        FileAttributes {
            path: b"/shared/env.quell".to_vec(),
            directory: None,
            size_bytes,
            mode: 0o100_644,
            uid: 1000,
            gid: 100,
            has_acl: false,
            inode: 7,
            modified_seconds: -1,
            modified_nanoseconds: 999_999_999,
        }
    }

    #[test]
    fn the_example_of_the_format_is_encoded() {
        let request = Request::Block { file: 1, block: 300 };
        assert_eq!(encode(&request), [3, 1, 0xac, 0x02]);
        assert_eq!(encode(&Reply::Wait), [3]);
        let shared = Request::SharedBlock(SharedBlockId { index: 0, entry: 300, block: 2 });
        assert_eq!(encode(&shared), [11, 0, 0xac, 0x02, 2]);
        assert_eq!(encode(&Reply::NotShared), [10]);
        let join = Request::Join { protocol: 2, address: "10.0.0.7:513".parse().unwrap(), name: "n7" };
        assert_eq!(encode(&join), [0, 2, 0, 10, 0, 0, 7, 0x81, 0x04, 2, b'n', b'7']);
    }

    #[test]
    fn the_largest_messages_are_within_the_limits() {
        let name = "n".repeat(TEXT_BYTES_MAX);
        let join = Request::Join { protocol: u32::MAX, address: "[::1]:65535".parse().unwrap(), name: &name };
        assert!(encode(&join).len() <= REQUEST_BYTES_MAX);
        let link = Request::CreateLink { link: u128::MAX, text: &name };
        assert!(encode(&link).len() <= REQUEST_BYTES_MAX);
        let samples = vec![Some(CheckResult(vec![1; RESULT_BYTES_MAX])); FILES_MAX];
        assert!(encode(&Reply::Samples(samples)).len() <= REPLY_BYTES_MAX);
        let block = Reply::Block { checksum: u64::MAX, bytes: &vec![1; BLOCK_BYTES] };
        assert!(encode(&block).len() <= BLOCK_REPLY_BYTES_MAX);
        let shared = SharedBlockId { index: u32::MAX, entry: u32::MAX, block: u64::MAX };
        assert!(encode(&Request::SharedBlock(shared)).len() <= REQUEST_BYTES_MAX);
        let long = FileAttributes {
            path: vec![b'/'; PATH_BYTES_MAX],
            directory: Some(vec![b'/'; PATH_BYTES_MAX]),
            uid: u32::MAX,
            ..file(FILE_BYTES_MAX)
        };
        assert!(encode(&Reply::Files(vec![FileState::Open(long); FILES_MAX])).len() <= REPLY_BYTES_MAX);
        let node = NodeState {
            node: u32::MAX,
            parent: Some(u32::MAX),
            name: "n".repeat(NODE_NAME_BYTES_MAX),
            received_bytes: u64::MAX,
            read_bytes: u64::MAX,
            milliseconds: Some(u64::MAX),
        };
        assert!(encode(&Reply::Tree(vec![node; TREE_NODES_MAX])).len() <= REPLY_BYTES_MAX);
    }

    #[test]
    fn too_many_files_and_values_out_of_bounds_are_refused() {
        let files = vec![FileState::Open(file(1)); FILES_MAX + 1];
        assert!(decode::<Reply<'_>>(&encode(&Reply::Files(files))).is_err());
        assert!(FileState::Open(file(FILE_BYTES_MAX)).is_bounded());
        let bad = [
            FileState::Open(file(FILE_BYTES_MAX + 1)),
            FileState::Open(FileAttributes { path: b"env".to_vec(), ..file(1) }),
            FileState::Open(FileAttributes { path: b"/a\0b".to_vec(), ..file(1) }),
            FileState::Open(FileAttributes { path: vec![b'/'; PATH_BYTES_MAX + 1], ..file(1) }),
            FileState::Open(FileAttributes { directory: Some(b"env".to_vec()), ..file(1) }),
            FileState::Open(FileAttributes { modified_nanoseconds: 1_000_000_000, ..file(1) }),
            FileState::Failed("x".repeat(TEXT_BYTES_MAX + 1)),
        ];
        assert!(bad.iter().all(|bad| !bad.is_bounded()));
    }

    #[test]
    fn a_file_has_a_short_block_at_its_end_and_none_after_it() {
        let of = |size: u64| (file(size).blocks(), file(size).block_bytes(0), file(size).block_bytes(1));
        assert_eq!(of(0), (0, 0, 0));
        assert_eq!(of(1), (1, 1, 0));
        assert_eq!(of(BLOCK_BYTES as u64 + 5), (2, BLOCK_BYTES, 5));
        assert_eq!(file(1).block_bytes(u64::MAX), 0);
    }

    #[test]
    fn a_text_is_shortened_between_characters() {
        assert_eq!(shortened("abc", 2), "ab");
        assert_eq!(shortened("a\u{e4}", 2), "a");
        assert_eq!(shortened("abc", 9), "abc");
    }
}
