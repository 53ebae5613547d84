//! Reads traces of system calls, counts and classifies them, predicts the requests that Quell would
//! absorb, and draws the report. The crate runs no program, opens no file and reads no clock: lines
//! are its input, values and text its output. The rules of counting are in docs/formats/profile.md.
//! `unsafe` is allowed only for the symbol of `render/hypotf.rs`.

#![warn(missing_docs)]

mod analysis;
mod format;
mod locations;
mod paths;
mod render;
mod report;
mod trace;

pub use analysis::readings::{Capacity, FirstReading, SecondReading, TraceSummary};
pub use analysis::searches::{Variable, variables};
pub use locations::{Directories, Links, LocationRules, MountPoint, NoLinks, UnknownDirectories};
pub use render::chart::{Chart, charts};
pub use render::operations::csv;
pub use render::page::html;
pub use render::picture::PictureError;
pub use render::terminal::summary;
pub use report::{
    AccessMode, Directory, Elsewhere, LocationTotals, Locations, MetadataRates, NextStep, Nodes, NotProposed,
    Operation, PathNode, ProcessLane, Program, Rate, RatePoint, Remaining, Report, Reread, SCHEMA, Scenarios,
    Search, SearchDirectory, SharedTotals, SharedWrite, Skipped, SlowDown, SmallFiles, Totals, Tracing, Tree,
    Verdict, VerdictKind,
};
pub use trace::calls::TRACED;
pub use trace::line::{has_pid, time_of};
pub use trace::reader::{LINE_BYTES_MAX, LineSource};
