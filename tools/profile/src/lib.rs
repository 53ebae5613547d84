//! Reads traces of system calls, counts and classifies them, predicts the requests that Quell would
//! absorb, and draws the report. The crate runs no program, opens no file and reads no clock: lines
//! are its input, values and text its output. The rules of counting are in docs/formats/profile.md.

#![forbid(unsafe_code)]

mod calls;
mod descriptors;
#[cfg(test)]
mod histories_test;
mod nodes;
mod paths;
mod places;
mod processes;
mod profile;
mod reader;
#[cfg(test)]
mod reader_test;
mod render;
mod replay;
mod report;
mod searches;
mod series;
mod strace;
mod tally;
mod trees;

pub use calls::TRACED;
pub use places::{Geography, Links, Mount, NoLinks};
pub use profile::{Capacity, FirstReading, SecondReading};
pub use reader::{LINE_BYTES_MAX, Source};
pub use render::{Chart, PictureError, charts, csv, html, summary};
pub use report::{
    AccessMode, Directory, Elsewhere, MetadataRates, Nodes, NotProposed, Operation, Place, Places, Program,
    Rate, RatePoint, Remaining, Report, Reread, SCHEMA, Scenarios, Search, SearchDirectory, SharedWrite,
    Skipped, SlowDown, SmallFiles, Totals, Tracing, Tree,
};
pub use searches::{Variable, variables};
pub use strace::{has_pid, time_of};
