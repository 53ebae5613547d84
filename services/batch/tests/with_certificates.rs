//! The tests of batches and of their commits, for batches that submit tables and certificates. The
//! programs with the same names have batches that submit the operation log.

// Each file has the stores as a module of its own.
#![allow(clippy::duplicate_mod)]

#[path = "batches.rs"]
mod batches;
#[path = "crashes.rs"]
mod crashes;
#[path = "forgeries.rs"]
mod forgeries;
#[path = "parts.rs"]
mod parts;
#[path = "sequences.rs"]
mod sequences;
