//! A job reads its index and its boot images once: its nodes form a tree, one of them reads the
//! files from the shared file system, and each other one receives them from its parent, block by
//! block, and passes on each block as soon as it has arrived. docs/formats/job-protocol.md
//! describes the messages and the meeting point, and docs/decisions/0047-one-reader-for-a-job.md
//! the reasons.
//!
//! `tree` assigns the parents, as a pure state machine. `contents` has the blocks of this
//! node. `serve` answers other nodes, `fetch` asks them, `read` reads the files, and `node` joins
//! these parts.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
mod calls;
mod contents;
mod environment;
mod fetch;
mod meeting;
mod meeting_server;
mod node;
mod read;
mod serve;
mod tree;

pub use contents::SharedBytes;
pub use environment::{Environment, OpenedFile};
pub use meeting::{Advertisement, Meeting, MeetingPoint, OwnLink};
pub use meeting_server::MeetingServer;
pub use node::{JobNode, JobSettings, JobStatus};
