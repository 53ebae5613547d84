//! Support for threads: a pool for tasks that create more tasks, and locks whose users survive the
//! panic of another thread. It depends on the standard library only, and does no I/O.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod locks;
mod tasks;

pub use locks::{into_inner, lock, read_lock, try_lock, wait, wait_timeout_while, wait_while, write_lock};
pub use tasks::{Tasks, run};
