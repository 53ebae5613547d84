//! Pools: starting and ending their daemons on one or several nodes, and finding them by name.

mod change;
mod control;
mod keep;
mod keeper;
mod launch;
mod launcher;
mod members;
mod messages;
mod new_pool;
mod node;
mod nodes;
mod placement;
mod running;

use quell_runtime::{Pool, Registry};
pub use quell_wire::pool::{Compression, Consistency, DaemonId, Listen};

pub use control::send_command;
pub use keeper::{run_pool_keeper, start_kept_pool};
pub use launcher::Launcher;
pub use members::{CountedMember, MemberState, member_counters, member_states, stop_pool};
pub use messages::{CommandProgress, KeeperCommand};
pub use new_pool::{NewDaemon, NewPool};
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
