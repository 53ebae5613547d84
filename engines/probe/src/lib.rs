//! Measures how many metadata operations a second a file system sustains, within hard caps, and leaves nothing behind.
//! It decides in `budget`, `curve`, `kind` and `leftover`, which touch nothing, and acts in `crew`, `home`,
//! `measure` and `node`. It never follows a link and never removes what a probe did not make. What is asked and why:
//! docs/techniques/probe.md.

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
