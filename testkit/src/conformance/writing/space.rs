//! Promise: the reported space is consistent.

use super::WritingWorld;

pub(super) fn check(world: &WritingWorld<'_>) {
    let mount = world.mount();
    let space = mount.verbs().space().unwrap();
    assert!(space.total_bytes > 0 && space.free_bytes <= space.total_bytes, "{space:?}");
    assert!(space.available_bytes <= space.free_bytes, "{space:?}");
    assert!(space.entries_free <= space.entries, "{space:?}");
}
