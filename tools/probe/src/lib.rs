//! Measures how many metadata operations per second a file system sustains, within hard limits, and
//! removes everything it creates. Decisions are made in `budget`, `curve`, `kind` and `leftover`,
//! which access no files; `crew`, `home`, `measure` and `node` act on them. The crate never follows
//! a link and never removes a file that a probe did not create. docs/techniques/probe.md describes
//! the requests and the reasons for them.

mod budget;
mod crew;
mod curve;
mod home;
mod kind;
mod leftover;
mod measure;
mod node;
mod progress;
mod refusal;

pub use budget::Limits;
pub use curve::{End, Step};
pub use home::{Cleaned, clean};
pub use kind::{Answerer, Kind};
pub use leftover::Leftover;
pub use measure::{KindRate, Outcome, Survey, measure, survey};
pub use progress::{Progress, Stage};
pub use refusal::Refusal;
