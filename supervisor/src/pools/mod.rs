//! Pools: starting and ending their daemons on one or several nodes, and finding them by name.

mod keeper;
mod launch;
mod launcher;
mod members;
mod node;
mod nodes;
mod replicas;

use quell_runtime::{Pool, Registry};
pub use quell_wire::pool::{Compression, Consistency, Lifetime, Listen};

pub use keeper::{run_pool_keeper, signals, start_kept_pool};
pub use launch::{NewMember, NewPool, StartedPool, start_pool};
pub use launcher::Launcher;
pub use members::{CountedMember, MemberState, member_counters, member_states, stop_pool};
pub use node::{Node, host_of};
pub use nodes::{JobNodes, NODES_MAX, nodes_of_file, nodes_of_job};

use crate::failure::Failure;

/// Returns the pool of this name on this node.
pub fn find_pool(name: &str) -> Result<Pool, Failure> {
    Ok(Registry::of_user()?.find(name)?)
}

/// Returns all pools of this user on this node, sorted by name.
pub fn pools() -> Result<Vec<Pool>, Failure> {
    Ok(Registry::of_user()?.pools()?)
}
