//! Promise: the reported space is consistent.

use super::mount::WritableImplementation;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let space = mount.verbs().space().unwrap();
    assert!(space.total_bytes > 0 && space.free_bytes <= space.total_bytes, "{space:?}");
    assert!(space.available_bytes <= space.free_bytes, "{space:?}");
    assert!(space.entries_free <= space.entries, "{space:?}");
}
