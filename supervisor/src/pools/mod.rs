//! Pools: starting and stopping their daemons, and finding them by name.

mod launch;
mod registry;

pub use launch::{NewPool, start_pool, stop_pool};
pub use registry::{Pool, PoolMember, find_pool, forget_incomplete_pool, pools};
