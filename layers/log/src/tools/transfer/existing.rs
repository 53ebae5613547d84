//! Decides whether a transfer copies, skips or refuses an entry whose name may already exist at the
//! destination. Pure functions.

use quell_vfs::{Kind, Time};

/// The action of a transfer for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Create it, or replace the existing entry.
    Copy,
    /// The existing entry is the same.
    Skip,
    /// Report that the name exists.
    Refuse,
}

/// The state of a regular file by which copies are recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    pub size_bytes: u64,
    pub modified: Time,
}

/// Returns the action for a file. `existing` is the entry of its name, with the kind if it is
/// known. Only regular files are replaced, because a device or a link was not created by an earlier
/// transfer. A file that is being written is copied again, because its time may not have changed
/// yet.
pub fn decide_file(
    existing: Option<(Option<Kind>, FileState)>,
    source: FileState,
    is_being_written: bool,
    resume: bool,
) -> Action {
    match existing {
        None => Action::Copy,
        Some((Some(Kind::File), found)) if resume => {
            if found == source && !is_being_written {
                Action::Skip
            } else {
                Action::Copy
            }
        }
        Some(_) => Action::Refuse,
    }
}

/// Returns the action for a symbolic link. `existing` is the kind of the entry of its name;
/// `is_same` is true if it is a link to the same target. `can_replace` is true if a rename replaces
/// a link.
pub fn decide_link(existing: Option<Option<Kind>>, is_same: bool, can_replace: bool, resume: bool) -> Action {
    match existing {
        None => Action::Copy,
        Some(Some(Kind::Symlink)) if resume && is_same => Action::Skip,
        Some(Some(Kind::Symlink)) if resume && can_replace => Action::Copy,
        Some(_) => Action::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: FileState = FileState { size_bytes: 5, modified: Time { seconds: 7, nanoseconds: 0 } };
    const OTHER: FileState = FileState { size_bytes: 6, ..STATE };

    #[test]
    fn only_a_resumed_transfer_skips_and_replaces_files() {
        let file = |state| Some((Some(Kind::File), state));
        for (existing, is_being_written, resume, expected) in [
            (None, false, false, Action::Copy),
            (None, false, true, Action::Copy),
            (file(STATE), false, false, Action::Refuse),
            (file(STATE), false, true, Action::Skip),
            (file(STATE), true, true, Action::Copy),
            (file(OTHER), false, true, Action::Copy),
            (Some((Some(Kind::Symlink), STATE)), false, true, Action::Refuse),
            (Some((None, STATE)), false, true, Action::Refuse),
        ] {
            let action = decide_file(existing, STATE, is_being_written, resume);
            assert_eq!(action, expected, "{existing:?} {is_being_written} {resume}");
        }
    }

    #[test]
    fn only_a_symbolic_link_is_replaced_by_a_symbolic_link() {
        let link = Some(Some(Kind::Symlink));
        for (existing, is_same, can_replace, resume, expected) in [
            (None, false, false, false, Action::Copy),
            (link, true, true, false, Action::Refuse),
            (link, true, false, true, Action::Skip),
            (link, false, true, true, Action::Copy),
            (link, false, false, true, Action::Refuse),
            (Some(Some(Kind::File)), false, true, true, Action::Refuse),
            (Some(None), false, true, true, Action::Refuse),
        ] {
            assert_eq!(decide_link(existing, is_same, can_replace, resume), expected, "{existing:?}");
        }
    }
}
