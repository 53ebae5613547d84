//! Decides where log directories of a container belong. Pure functions.

use crate::stores::StoreNumber;

/// The location of a log directory: in the container (`None`), or in `parts` of a store.
pub type LogDirLocation = Option<StoreNumber>;

/// The existing entry with the name of a log directory in a copy of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingLogDir {
    Absent,
    Directory,
    /// A pointer to a store; `None` if it is torn.
    Pointer(Option<StoreNumber>),
}

/// Decides where the copy of a container in `copy_store` gets a log directory that placement puts
/// into `placed`. Returns the location, and the store that a new pointer must name.
pub fn locate_in_copy(
    existing: ExistingLogDir,
    placed: StoreNumber,
    copy_store: StoreNumber,
) -> (LogDirLocation, Option<StoreNumber>) {
    match existing {
        ExistingLogDir::Directory => (None, None),
        ExistingLogDir::Pointer(Some(store)) => (Some(store), None),
        _ if placed == copy_store => (None, None),
        _ => (Some(placed), Some(placed)),
    }
}

/// Returns true if a log directory exists only where placement puts it, or does not exist.
pub fn is_placed(locations: &[LogDirLocation], placed: StoreNumber, home: StoreNumber) -> bool {
    match locations {
        [] => true,
        [location] => location.unwrap_or(home) == placed,
        _ => false,
    }
}

/// The change of the container's reference to a log directory that is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerChange {
    Unchanged,
    /// The directory in the container is replaced by a pointer.
    ReplaceDirectory,
    /// The pointer is written, or changed from the previous store.
    Write {
        previous: Option<StoreNumber>,
    },
}

/// Decides to which location a log directory is moved. `is_in_container` is true if the container
/// has it, and otherwise `pointer` is the store that the container's pointer names. A directory
/// stays in the container if placement puts it into the container's store.
pub fn decide_move(
    is_in_container: bool,
    pointer: Option<StoreNumber>,
    placed: StoreNumber,
    home: StoreNumber,
) -> (LogDirLocation, PointerChange) {
    match is_in_container {
        true if placed == home => (None, PointerChange::Unchanged),
        true => (Some(placed), PointerChange::ReplaceDirectory),
        false if pointer == Some(placed) => (Some(placed), PointerChange::Unchanged),
        false => (Some(placed), PointerChange::Write { previous: pointer }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_the_log_directories_and_pointers_that_it_has() {
        for (existing, placed, expected) in [
            (ExistingLogDir::Directory, 2, (None, None)),
            (ExistingLogDir::Pointer(Some(1)), 2, (Some(1), None)),
            (ExistingLogDir::Absent, 0, (None, None)),
            (ExistingLogDir::Absent, 2, (Some(2), Some(2))),
            (ExistingLogDir::Pointer(None), 0, (None, None)),
            (ExistingLogDir::Pointer(None), 2, (Some(2), Some(2))),
        ] {
            assert_eq!(locate_in_copy(existing, placed, 0), expected, "{existing:?} {placed}");
        }
    }

    #[test]
    fn a_log_directory_in_one_right_location_is_placed() {
        assert!(is_placed(&[], 1, 0));
        assert!(is_placed(&[None], 0, 0) && !is_placed(&[None], 1, 0));
        assert!(is_placed(&[Some(1)], 1, 0) && !is_placed(&[Some(2)], 1, 0));
        assert!(!is_placed(&[None, Some(1)], 1, 0));
    }

    #[test]
    fn the_container_refers_to_the_new_location() {
        assert_eq!(decide_move(true, None, 0, 0), (None, PointerChange::Unchanged));
        assert_eq!(decide_move(true, None, 1, 0), (Some(1), PointerChange::ReplaceDirectory));
        assert_eq!(decide_move(false, Some(1), 1, 0), (Some(1), PointerChange::Unchanged));
        let write = |previous| PointerChange::Write { previous };
        assert_eq!(decide_move(false, Some(2), 1, 0), (Some(1), write(Some(2))));
        assert_eq!(decide_move(false, None, 0, 0), (Some(0), write(None)));
    }
}
