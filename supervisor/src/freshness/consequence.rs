//! The effect of a change of a tree on the programs of a view, as a part of a message. Pure.

use quell_index::Change;
use quell_vfs::Kind;

use crate::protocol::plan::ChangePolicy;

/// The properties of a view that determine the effect of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewAtChange {
    /// Overlayfs opens files and compares nothing.
    Overlay,
    /// Files are compared with the index when they are opened.
    Compared(ChangePolicy),
}

/// How a changed file is shown from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// With its current size, time and data.
    Now,
    /// With the size, time and data that are in memory.
    FromMemory,
    /// With the indexed size and time.
    AsIndexed,
}

/// Returns the effect of a change of an entry.
pub fn consequence(view: ViewAtChange, kind: Kind, change: &Change, shown: Shown) -> &'static str {
    let Change::Changed(what) = change else {
        return match (change, view) {
            (Change::Added, _) => "the view does not have it",
            (_, ViewAtChange::Overlay) => "the view still lists it, and opening it fails with ENOENT",
            (_, ViewAtChange::Compared(ChangePolicy::Refuse)) => {
                "the view still lists it, and opening it fails with ESTALE"
            }
            (_, ViewAtChange::Compared(_)) => "the view still lists it, and opening it fails",
        };
    };
    let is_other_file = |what: &[&str]| what.iter().any(|what| ["size", "mtime", "ctime"].contains(what));
    let is_refused = |what: &[&str]| what.iter().any(|what| *what != "nlink");
    match (kind, shown, view) {
        (Kind::Dir, ..) => "the view lists its entries as they were indexed",
        (Kind::File, Shown::Now, _) => "programs see the file as it is now",
        (Kind::File, Shown::FromMemory, _) => "programs see the file of the boot image",
        (Kind::File, _, ViewAtChange::Overlay) if is_other_file(what) => {
            "the view shows its indexed size and time, and its new data"
        }
        (Kind::File, _, ViewAtChange::Compared(ChangePolicy::Refuse)) if is_refused(what) => {
            "opening it fails with ESTALE, unless a boot image has its data"
        }
        (Kind::File, _, ViewAtChange::Compared(_)) if is_other_file(what) => {
            "programs read its new data up to the indexed size"
        }
        _ => "the view shows its indexed metadata",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_states_the_effect_in_each_view() {
        let refuse = ViewAtChange::Compared(ChangePolicy::Refuse);
        let serve = ViewAtChange::Compared(ChangePolicy::Serve);
        let size = Change::Changed(vec!["size", "mtime"]);
        let links = Change::Changed(vec!["nlink"]);
        for (view, kind, change, shown, expected) in [
            (ViewAtChange::Overlay, Kind::File, &size, Shown::Now, "as it is now"),
            (ViewAtChange::Overlay, Kind::File, &size, Shown::FromMemory, "of the boot image"),
            (
                ViewAtChange::Overlay,
                Kind::File,
                &size,
                Shown::AsIndexed,
                "indexed size and time, and its new",
            ),
            (refuse, Kind::File, &size, Shown::AsIndexed, "ESTALE"),
            (serve, Kind::File, &size, Shown::AsIndexed, "up to the indexed size"),
            (refuse, Kind::File, &links, Shown::AsIndexed, "indexed metadata"),
            (ViewAtChange::Overlay, Kind::Dir, &size, Shown::AsIndexed, "lists its entries"),
            (ViewAtChange::Overlay, Kind::File, &Change::Removed, Shown::AsIndexed, "ENOENT"),
            (refuse, Kind::File, &Change::Removed, Shown::AsIndexed, "ESTALE"),
        ] {
            let text = consequence(view, kind, change, shown);
            assert!(text.contains(expected), "{view:?} {kind:?} {change:?} {shown:?}: {text}");
        }
    }
}
