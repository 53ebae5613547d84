//! Random operations on random trees, view against original.

use std::path::Path;

pub fn perform(_root: &Path) -> String {
    String::new()
}
