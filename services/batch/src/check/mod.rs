//! The check of a master image, and its repair. The check finds whether the tables are intact and
//! the entries form a tree. The repair changes entries so that they form a tree.
//!
//! All entries are read once, in the order of their keys ([`scan`]). The check needs memory for
//! each directory and each file with several names, and about 10 bytes for each inode. The repairs
//! ([`repair`]) remove no inode: a directory or file without a name gets one in the directory
//! `/quell-found`.

mod problem;
mod repair;
mod scan;
mod tables;

use quell_vfs::Result;

use crate::image::Image;

pub use problem::{Checked, Problem, ProblemKind};
pub use tables::check_tables;

/// Checks the entries of an image, and passes each problem to `report`. If `repairs` is set, the
/// problems that can be corrected are corrected.
///
/// # Errors
/// `Damaged` if a table cannot be read; the errors of files and commits.
pub(crate) fn check(image: &mut Image, repairs: bool, report: &mut dyn FnMut(&Problem)) -> Result<Checked> {
    let mut scan = scan::Scan::default();
    scan.read(image, report)?;
    let is_use_right = scan.compare_usage(image.usage(), report);
    let checked = scan.checked();
    let repair = repair::Repair::new(scan, image, report).run()?;
    if repairs {
        repair.apply(image)?;
        if !is_use_right {
            image.recount_usage()?;
        }
    }
    Ok(checked)
}
