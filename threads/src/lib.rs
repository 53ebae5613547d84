//! Support for threads: a pool for tasks that create more tasks, calls with a time limit, and locks
//! that stay usable after a panic of another thread. It depends on the standard library only, and
//! does no I/O.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod locks;
mod tasks;
mod timed_calls;

pub use locks::{into_inner, lock, read_lock, try_lock, wait, wait_timeout_while, wait_while, write_lock};
pub use tasks::{Tasks, run};
pub use timed_calls::TimedCalls;
