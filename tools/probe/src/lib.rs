//! Measures how many metadata operations per second a file system sustains, within hard limits, and
//! removes everything it creates. Decisions are made in `budget`, `curve`, `kind` and `leftover`,
//! which access no files; `directory`, `measure`, `node` and `pool` act on them. The crate follows
//! no link below the directory that the user names, and never removes a file that a probe did not
//! create. docs/techniques/probe.md describes the requests and the reasons for them.
//!
//! The trace has an event for each measured step and for each directory that is created or removed.
//! It has none for a single request, because writing it would lower the measured rate; only
//! requests that take too long have one.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod budget;
mod curve;
mod directory;
mod kind;
mod leftover;
mod measure;
mod node;
mod pool;
mod progress;
mod refusal;

pub use budget::Limits;
pub use curve::{End, Step};
pub use directory::{Cleaned, clean};
pub use kind::{AnsweredBy, OperationKind};
pub use leftover::Leftover;
pub use measure::{KindRate, ProbeResult, Survey, measure, survey};
pub use progress::{ProbeProgress, Stage};
pub use refusal::Refusal;
