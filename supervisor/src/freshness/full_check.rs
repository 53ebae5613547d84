//! The full check: reads a tree again and compares all of its entries with its index.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use quell_index::{BuildOptions, BuildProgress, Difference, Image, compare};
use quell_posix::PosixDir;

use crate::console::{Console, ProgressTask};
use crate::display::shown;
use crate::failure::Failure;
use crate::inputs::root_of;

/// Number of requests in flight.
const THREADS: usize = 16;

/// Returns all differences between the tree at `source` and its index. Ends early, with an error,
/// once `is_unwanted` returns true.
pub fn full_check(
    image: &Image,
    source: &Path,
    quiet: bool,
    console: &dyn Console,
    is_unwanted: &dyn Fn() -> bool,
) -> Result<Vec<Difference>, Failure> {
    let (options, root_path) = (BuildOptions::from_image(image)?, root_of(image));
    let progress = BuildProgress::default();
    let title = format!("indexing {}", shown(source));
    let expected_entries = Some(image.entries().into());
    let task = ProgressTask { title: &title, progress: &progress, expected_entries, quiet };
    let _span = tracing::debug_span!("full_check", source = %shown(source)).entered();
    let mut tree = None;
    console.watch(&task, is_unwanted, &mut || {
        let build = || {
            let root = Arc::new(PosixDir::open(source)?);
            quell_index::build(root, root_path.as_os_str().as_bytes(), &options, THREADS, None, &progress)
        };
        tree = Some(build());
    });
    let tree = tree.unwrap_or_else(|| unreachable!("`watch` runs it"))?;
    let now = Image::parse(quell_index::encode(&tree)?)
        .map_err(|damage| Failure::cannot(format!("the index of the present tree is damaged: {damage}")))?;
    let mut differences = Vec::new();
    compare(image, &now, &mut |difference| {
        differences.push(difference);
        true
    });
    Ok(differences)
}
