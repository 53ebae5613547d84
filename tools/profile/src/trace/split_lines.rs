//! Joins lines that a remark of the tracer split. Without `-o`, strace writes
//! `strace: Process 12 attached` within the line of the call that created the process.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::trace::line;

/// For each source the first part of a split line.
#[derive(Debug, Default)]
pub struct SplitLines {
    first_parts: HashMap<u32, Vec<u8>>,
}

impl SplitLines {
    /// Returns a line with the first part that an earlier remark split off; `None` if the line ends
    /// with a remark, so that its rest follows later.
    pub fn joined<'a>(&mut self, space: u32, text: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if let Some(first_part) = line::before_remark(text) {
            self.first_parts.insert(space, first_part.to_vec());
            return None;
        }
        if !self.first_parts.is_empty()
            && !line::is_remark(text)
            && let Some(mut whole) = self.first_parts.remove(&space)
            && line::is_rest(text)
        {
            whole.extend_from_slice(text);
            return Some(Cow::Owned(whole));
        }
        Some(Cow::Borrowed(text))
    }
}
