//! The results of both readings, from which the parts of a report are computed.

use crate::analysis::counts::{Counts, Extents, PathCounts};
use crate::analysis::replay::Replay;
use crate::analysis::trees::{Chosen, Refused};
use crate::locations::PathMap;
use crate::paths::PathId;
use crate::trace::reader::Reader;

/// The results of both readings.
#[derive(Debug)]
pub struct Measured<'a, 'l> {
    pub map: &'a PathMap<'l>,
    /// The reader of the first reading.
    pub reader: &'a Reader,
    pub counts: &'a Counts,
    pub replay: &'a Replay,
    pub chosen: &'a [Chosen],
    pub refused: &'a [Refused],
    /// Whether each path is a directory, by its number.
    pub is_directory: &'a [bool],
    pub extents: &'a Extents,
    /// The ratio of the durations with and without the tracer.
    pub slow_down: f64,
    /// The duration in the trace.
    pub traced_us: u64,
}

impl Measured<'_, '_> {
    /// Returns the duration without the tracer.
    pub fn duration_s(&self) -> f64 {
        self.traced_us as f64 / 1e6 / self.slow_down
    }

    /// Converts a time in the trace to seconds after the first call, without the tracer.
    pub fn offset_s(&self, time_us: u64) -> f64 {
        time_us.saturating_sub(self.counts.begin_us.unwrap_or(time_us)) as f64 / 1e6 / self.slow_down
    }

    pub fn counted_paths(&self) -> impl Iterator<Item = (PathId, &PathCounts)> {
        self.map.paths.all().zip(&self.counts.paths)
    }

    pub fn shared_paths(&self) -> impl Iterator<Item = (PathId, &PathCounts)> {
        self.counted_paths().filter(|(path, _)| self.map.root(*path).on_shared)
    }

    /// Returns the bytes of a file that are read or mapped, each byte once.
    pub fn distinct_bytes(&self, path: PathId, counts: &PathCounts) -> u64 {
        self.extents.get(&path).map_or(0, |extent| extent.bytes).max(counts.mapped)
    }

    pub fn location_name(&self, path: PathId) -> String {
        self.map.root(path).location.name().to_owned()
    }

    pub fn text(&self, path: PathId) -> String {
        self.map.paths.text(path)
    }

    /// Returns whether a path is a device or a file of the kernel: writing to it changes no file
    /// system.
    pub fn is_device(&self, path: PathId) -> bool {
        let ancestors = self.map.paths.line(path);
        let names: Vec<&[u8]> = ancestors.iter().take(2).map(|p| self.map.paths.name(*p)).collect();
        match names.as_slice() {
            [b"dev", b"shm"] => false,
            [b"dev" | b"proc" | b"sys", ..] => true,
            _ => false,
        }
    }
}
