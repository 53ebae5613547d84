//! The check of a master image: whether its tables are intact, whether its entries are those of a
//! tree, and the changes that make them one.
//!
//! All entries are read once, in the order of their keys ([`scan`]). The memory depends on the
//! number of directories and of files with several names, and has about 10 bytes for each inode.
//! The repairs ([`repair`]) remove no inode: a directory or file without a name gets one in the
//! directory `/quell-found`.

mod problem;
mod repair;
mod scan;
mod tables;

use quell_vfs::Result;

use crate::image::Image;

pub use problem::{Checked, Problem, ProblemKind};
pub use tables::check_tables;

/// Checks the entries of an image, passes each problem to `report`, and corrects those that can be
/// if `repairs` is set.
///
/// # Errors
/// `Damaged` if a table cannot be read; the errors of files and commits.
pub(crate) fn check(image: &mut Image, repairs: bool, report: &mut dyn FnMut(&Problem)) -> Result<Checked> {
    let mut scan = scan::Scan::default();
    scan.read(image, report)?;
    let checked = scan.checked();
    let repair = repair::Repair::new(scan, image, report).run()?;
    if repairs {
        repair.apply(image)?;
    }
    Ok(checked)
}
