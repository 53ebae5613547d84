//! Reads traces of system calls, counts and judges them, foretells what Quell would absorb, and draws the report.
//! It runs no program, opens no file and asks no clock: lines come in, values and text go out. What is counted as
//! what is written in docs/formats/profile.md.

mod report;

pub use report::{
    AccessMode, Directory, Elsewhere, MetadataRates, Nodes, NotProposed, Operation, Place, Places, Program,
    Rate, RatePoint, Remaining, Report, Reread, SCHEMA, Scenarios, Search, SearchDirectory, SharedWrite,
    Skipped, SlowDown, SmallFiles, Totals, Tracing, Tree,
};
