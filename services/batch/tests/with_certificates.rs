//! The tests of batches and of their commits, for batches that submit tables and certificates. The
//! test programs with the names of these modules submit operation logs.

// Each file includes the module `stores`.
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
