//! Reads traces of system calls, counts and judges them, foretells what Quell would absorb, and draws the report.
//! It runs no program, opens no file and asks no clock: lines come in, values and text go out. What is counted as
//! what is written in docs/formats/profile.md.

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
