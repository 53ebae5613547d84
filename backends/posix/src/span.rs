//! The spans of a trace: one for each operation on the file system below. A span is entered for the
//! time of the operation; if no trace is written, it costs a comparison.

use quell_vfs::printable;
use tracing::span::EnteredSpan;

/// Enters the span of an operation on an open directory or an open file.
pub fn operation_span(operation: &'static str) -> EnteredSpan {
    tracing::debug_span!("backend", operation).entered()
}

/// Enters the span of an operation on the entry `name` of a directory.
pub fn entry_span(operation: &'static str, name: &[u8]) -> EnteredSpan {
    tracing::debug_span!("backend", operation, name = %printable(name)).entered()
}

/// Enters the span of a transfer of `bytes` bytes at an offset of an open file.
pub fn file_span(operation: &'static str, offset: u64, bytes: usize) -> EnteredSpan {
    tracing::debug_span!("backend", operation, offset, bytes).entered()
}
