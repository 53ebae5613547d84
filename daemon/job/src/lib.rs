//! A job reads its index and its boot images once: its nodes form a tree, one of them reads the
//! files from the shared file system, and each other one receives them from its parent, block by
//! block, and passes on each block as soon as it has arrived. docs/formats/job-protocol.md
//! describes the messages and the meeting point, and docs/decisions/0047-one-reader-for-a-job.md
//! the reasons.
//!
//! With `--share-data`, the nodes also share blocks of the files of the indexed trees: each node
//! requests them from its parent, and the reader reads the files
//! (docs/decisions/0052-shared-blocks.md).
//!
//! `tree` assigns the parents, as a pure state machine. `contents` has the blocks of this node.
//! `serve` answers other nodes, `fetch` asks them, `read` reads the files, and `node` joins these
//! parts. `shared_blocks` answers requests for shared blocks, `block_cache` keeps the blocks, and
//! `block_client` sends the requests of a view.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
mod block_cache;
mod block_client;
mod calls;
mod contents;
mod environment;
mod fetch;
mod meeting;
mod meeting_server;
mod node;
mod read;
mod serve;
mod shared_blocks;
mod tree;

pub use block_client::BlockClient;
pub use contents::CompleteFile;
pub use environment::{Environment, OpenedFile};
pub use meeting::{Advertisement, MeetingPoint, OwnLink, ReaderLink};
pub use meeting_server::MeetingServer;
pub use node::{JobNode, JobSettings, JobStatus};
pub use shared_blocks::{SharedBlocksLimits, SharedBlocksStatus, SharedTrees};
