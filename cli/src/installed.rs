//! Files that are installed together with this program.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::inputs::{real_path, shown};

/// The file name of the preload library.
pub const PRELOAD_LIBRARY: &str = "libquell_preload.so";

/// Returns the directory with this program.
pub fn program_directory() -> Result<PathBuf, Failure> {
    let program =
        std::env::current_exe().map_err(|error| Failure::cannot(format!("/proc/self/exe: {error}")))?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_owned())
}

/// Returns the program of the daemon.
pub fn daemon() -> Result<PathBuf, Failure> {
    let daemon = program_directory()?.join("quelld");
    match daemon.is_file() {
        true => Ok(daemon),
        false => Err(Failure::cannot(format!(
            "{} does not exist; install the daemon with `make install`",
            shown(&daemon)
        ))),
    }
}

/// Returns a library that was installed, or built, together with this program. `otherwise`: the
/// advice if it does not exist.
pub fn library(name: &str, otherwise: &str) -> Result<PathBuf, Failure> {
    let directory = program_directory()?;
    let places = [directory.join("../lib").join(name), directory.join(name)];
    match places.iter().find(|place| place.is_file()) {
        Some(library) => real_path(library),
        None => Err(Failure::cannot(format!("{} does not exist; {otherwise}", shown(&places[0])))),
    }
}
