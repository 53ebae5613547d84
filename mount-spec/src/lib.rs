//! Assembles layers from files that a user names, once for each mount. It is not used by reads and
//! writes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod assemble;
mod boot_file;
mod disks;
mod display;
mod index_file;
mod index_mode;
mod late_dir;
mod log_stores;
mod new_files;
mod output;
mod pool;
mod pool_daemons;
mod process_counters;
mod resolve;
mod shared_tree;
mod trust;
mod view_tree;
mod view_variable;

pub use assemble::{Covered, belongs_to_root, cover, owners_are_hidden};
pub use boot_file::{FrameFile, LockedBootFile};
pub use disks::{ChainFile, DiskFormat, DiskNames, OpenDisks, Reached, disk_chain};
pub use display::shown;
pub use index_file::{
    OpenBoot, Readers, default_index_path, load_boot, load_boot_from, load_index, load_index_from,
    readers_of, save_index,
};
pub use index_mode::{FLATTEN_THRESHOLD_BYTES, IndexMode};
pub use log_stores::{
    begin_use, change_stores, is_store, open_existing_stores, open_log, open_log_at, open_stores, plan_stores,
};
pub use new_files::NewFiles;
pub use output::{BOOT_IMAGE, INDEX, Output, OutputFormat, QCOW2, directory_of};
pub use pool::{PlacedRange, PoolConnection, PoolMarks, PoolPlacement};
pub use pool_daemons::{open_pool, open_pool_at};
pub use process_counters::{
    PROCESS_COUNTERS, PROCESS_COUNTERS_OFFSET, ProcessCounters, create_process_counters,
    process_counters_bytes, read_process_counters, remove_ended_process_counters,
};
pub use shared_tree::{MemoryFile, SealedFile, SharedFile, SharedFiles, SharedTree, encode_table};
pub use trust::{Distrust, DistrustReason, Ownership, Trusted, TrustedUse};
pub use view_tree::{CheckedIndex, MapFile, OpenTree};
pub use view_variable::{VIEW_VARIABLE, View, ViewBatch, ViewLog, ViewPool, ViewTree};
