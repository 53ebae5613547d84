//! `quelld`: the daemon of a node. It has no options: the program that starts it, `quell pool up`,
//! passes the settings through standard input. docs/formats/pool.md describes them. A daemon that
//! keeps its data in memory runs this program again, with an argument (`memory`).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod backups;
mod clock;
mod control;
mod event;
mod failure;
mod input;
mod memory;
mod node_files;
mod peers;
mod placement;
mod request;
mod router;
mod service;
mod start;
mod storage;

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Requests allocate many small values; docs/decisions/0005-dependencies.md has
/// the measurement.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    if let Some(size) = memory::size_for_helper() {
        return memory::run_helper(&size);
    }
    match start::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            start::report(&failure);
            ExitCode::from(failure.code())
        }
    }
}
