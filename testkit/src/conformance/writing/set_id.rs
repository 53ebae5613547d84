//! Promise: a file loses its set-id bits when its content is changed by a process that may not keep
//! them.

use quell_vfs::{Caller, Change, Context, NodeId, OpenMode};

use super::mount::{Mount, WritableImplementation};

/// Permissions before and after a change of the content by a user other than root. A file whose
/// group may not execute it keeps the set-group-ID bit.
const DROPPED: [(u32, u32); 4] = [(0o6755, 0o755), (0o4700, 0o700), (0o2745, 0o2745), (0o644, 0o644)];

fn set(mount: &Mount, node: NodeId, permissions: u32) {
    let change = Change { permissions: Some(permissions), ..Change::default() };
    assert_eq!(mount.verbs().change(&Context::OWN, node, &change).unwrap().permissions, permissions);
}

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, file) = mount.create("file");
    let owner = mount.attributes(node);
    let caller = Caller { uid: owner.uid, gid: owner.gid, groups: Vec::new() };
    let context = Context { caller: Some(&caller), ..Context::for_process(9) };
    let is_root = caller.uid == 0;
    for (before, after) in DROPPED {
        set(&mount, node, before);
        file.drop_set_id().unwrap();
        assert_eq!(mount.attributes(node).permissions, after, "{before:o}");

        let after = if is_root { before } else { after };
        set(&mount, node, before);
        let truncation = Change { size_bytes: Some(3), ..Change::default() };
        let truncated = mount.verbs().change(&context, node, &truncation).unwrap();
        assert_eq!((truncated.permissions, truncated.size_bytes), (after, 3), "{before:o}");

        set(&mount, node, before);
        let mode = OpenMode { truncate: true, ..OpenMode::READ_WRITE };
        drop(mount.verbs().open_as(&context, node, mode).unwrap());
        assert_eq!(mount.attributes(node).permissions, after, "{before:o}");

        set(&mount, node, before);
        drop(mount.verbs().open_path_as(&context, b"file", mode).unwrap());
        assert_eq!(mount.attributes(node).permissions, after, "{before:o}");
    }
}
