//! The order in which views of a tree are tried. It is a pure function.

use crate::protocol::plan::ViewChoice;

/// Kernel memory per entry of a tmpfs, in bytes: measured with 78,624 entries, see
/// docs/decisions/0004-views.md.
const TMPFS_BYTES_PER_ENTRY: u64 = 1300;

/// File system types that overlayfs refuses as a layer, or fails on, as named in the mount table.
const NO_OVERLAY_LAYERS: [&str; 2] = ["lustre", "gpfs"];

/// A kind of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// overlayfs on a tmpfs with the metadata.
    Overlay,
    /// overlayfs on a FUSE mount with the metadata.
    OverlayFuse,
    /// A FUSE mount.
    Fuse,
}

impl View {
    /// Returns the name as on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            View::Overlay => "overlay",
            View::OverlayFuse => "overlay-fuse",
            View::Fuse => "fuse",
        }
    }
}

/// The properties of a tree that determine the order of views.
#[derive(Debug, Clone)]
pub struct TreeProperties {
    pub entries: u64,
    pub longest_path_bytes: u64,
    /// The type of the file system that contains the data.
    pub file_system: Option<String>,
    pub memory_budget_bytes: u64,
    /// The view that the user selected.
    pub forced: ViewChoice,
}

/// Returns whether overlayfs cannot use a file system of this type as a layer.
pub fn refuses_overlay(file_system: &str) -> bool {
    NO_OVERLAY_LAYERS.contains(&file_system)
}

/// Returns the views to try, best first, and the reasons why others are left out.
pub fn candidates(tree: &TreeProperties) -> (Vec<View>, Vec<String>) {
    match tree.forced {
        ViewChoice::Overlay => return (vec![View::Overlay], vec!["requested".into()]),
        ViewChoice::OverlayFuse => return (vec![View::OverlayFuse], vec!["requested".into()]),
        ViewChoice::Fuse => return (vec![View::Fuse], vec!["requested".into()]),
        ViewChoice::Auto => {}
    }
    let mut views = Vec::new();
    let mut reasons = Vec::new();
    let refused = tree.file_system.as_deref().filter(|kind| refuses_overlay(kind));
    let needed = tree.entries * TMPFS_BYTES_PER_ENTRY;
    if let Some(name) = refused {
        reasons.push(format!("{name} cannot be a layer of overlayfs"));
    } else if tree.longest_path_bytes >= 4095 {
        reasons.push(format!("paths of {} bytes are too long for overlayfs", tree.longest_path_bytes));
    } else if needed > tree.memory_budget_bytes {
        reasons.push(format!(
            "a tmpfs of {} entries takes {} MiB, more than the {} MiB allowed (--memory)",
            tree.entries,
            needed >> 20,
            tree.memory_budget_bytes >> 20
        ));
    } else {
        views.push(View::Overlay);
    }
    // Overlay over FUSE has all requirements of FUSE and is slower to walk, so it is used only on
    // request.
    views.push(View::Fuse);
    (views, reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> TreeProperties {
        TreeProperties {
            entries: 1000,
            longest_path_bytes: 100,
            file_system: Some("fuse.mfs".into()),
            memory_budget_bytes: 256 << 20,
            forced: ViewChoice::Auto,
        }
    }

    #[test]
    fn overlay_is_preferred_and_fuse_comes_next() {
        assert_eq!(candidates(&tree()).0, [View::Overlay, View::Fuse]);
    }

    #[test]
    fn trees_beyond_the_memory_budget_are_served_by_fuse() {
        let large = TreeProperties { entries: 1_000_000, ..tree() };
        let (views, reasons) = candidates(&large);
        assert_eq!(views, [View::Fuse]);
        assert!(reasons[0].contains("1239 MiB"), "{reasons:?}");
    }

    #[test]
    fn file_systems_and_paths_that_overlayfs_refuses_are_served_by_fuse() {
        for case in [
            TreeProperties { file_system: Some("lustre".into()), ..tree() },
            TreeProperties { file_system: Some("gpfs".into()), ..tree() },
            TreeProperties { longest_path_bytes: 5000, ..tree() },
        ] {
            let (views, reasons) = candidates(&case);
            assert_eq!((views, reasons.len()), (vec![View::Fuse], 1));
        }
    }
}
