//! RADOS, the object store of Ceph, as a backend of servers.
//!
//! [`Objects`] is the interface to objects, and states what a caller must do after a lost result.
//! [`Pool`] implements it with librados, which is loaded at run time: without it,
//! [`Pool::open`] returns an error that names the package.
//!
//! Only the module of the binding to librados contains unsafe code.

#![warn(missing_docs)]

mod librados;
mod objects;
mod pool;

pub use objects::{
    ATTRIBUTE_BYTES_MAX, NAME_BYTES_MAX, Objects, PendingRead, PendingWrite, Step, TRANSFER_BYTES_MAX, Write,
};
pub use pool::{Pool, PoolOptions};
