//! Rebalance: moves every container, and every log directory of a container with logs in several
//! stores, to the store that the placement map gives. A drained store is emptied and leaves the
//! map.
//!
//! A container is first copied and synced, then gets its name in the new store, and is removed from
//! the old store last. If the process is killed, there are at most two copies, of which the copy in
//! the home store is complete; the next run copies missing parts and removes the other copy. Logs
//! only grow and their names are unique, so a copy is completed by copying files that are missing
//! or shorter.
//!
//! Files that are being written are skipped. A writer that opens a file while it is moved is
//! detected by the names in `meta`, because every writer creates a name there before its logs: the
//! move is then undone.
//!
//! `run` walks the tree, and `state` has the state of the walk. `decisions` has the pure decisions;
//! `container_move` and `log_dir_move` do the moves with `copy`.

mod container_move;
mod copy;
mod decisions;
mod log_dir_move;
mod run;
mod state;

pub use run::{preview_rebalance, rebalance};
pub use state::RebalanceResult;
