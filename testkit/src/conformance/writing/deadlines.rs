//! Promise: an operation whose deadline has passed returns `TimedOut` and changes nothing, if the
//! implementation claims deadlines; otherwise deadlines have no effect.

use quell_vfs::errno::ETIMEDOUT;
use quell_vfs::{Change, Context, NodeId, OpenMode, Rename, Result, Writable};

use super::mount::{Mount, WritableImplementation};
use crate::compare::listing;
use crate::conformance::deadlines::{Entries, check_reading, in_time, late};
use crate::conformance::implementation::refused;

const TRUNCATE: OpenMode = OpenMode { truncate: true, ..OpenMode::WRITE };

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let file = mount.write("file", b"bytes");
    mount.write("moved", b"bytes");
    mount.write("removed", b"bytes");
    mount.make_dir("removed dir");
    let link = mount.verbs().make_symlink(&Context::OWN, mount.root, b"link", b"x", mount.new);
    drop(link.unwrap());
    let entries = Entries { dir: mount.root, file: "file", name: "file", link: "link" };
    check_reading(&*mount.fs, &entries);
    if mount.fs.capabilities().deadlines {
        let state = || (listing(&*mount.fs, mount.root, 100).unwrap(), mount.attributes(file));
        let before = state();
        for (operation, call) in operations() {
            println!("{operation} after its deadline");
            refused(call(mount.verbs(), &late(), &mount, file), ETIMEDOUT);
            assert!(state() == before, "{operation} changed something after its deadline");
        }
        assert_eq!(mount.bytes(file), b"bytes");
        call_all(&mount, file, &in_time());
    } else {
        call_all(&mount, file, &late());
    }
}

/// Calls all operations, each of which succeeds once in a new mount.
fn call_all(mount: &Mount, file: NodeId, context: &Context<'_>) {
    for (operation, call) in operations() {
        call(mount.verbs(), context, mount, file)
            .unwrap_or_else(|error| panic!("{operation} with {context:?}: {error}"));
    }
}

type Call = fn(&dyn Writable, &Context<'_>, &Mount, NodeId) -> Result<()>;

/// Returns the operations that need a writable tree, with their names.
fn operations() -> [(&'static str, Call); 10] {
    [
        ("change", |verbs, context, _, file| {
            let change = Change { permissions: Some(0o600), ..Change::default() };
            verbs.change(context, file, &change).map(drop)
        }),
        ("open_as", |verbs, context, _, file| verbs.open_as(context, file, TRUNCATE)?.close()),
        ("open_path_as", |verbs, context, _, _| verbs.open_path_as(context, b"file", TRUNCATE)?.close()),
        ("create", |verbs, context, mount, _| {
            verbs.create(context, mount.root, b"created", mount.new, OpenMode::WRITE)?.1.close()
        }),
        ("make_dir", |verbs, context, mount, _| {
            verbs.make_dir(context, mount.root, b"created dir", mount.new_dir).map(drop)
        }),
        ("make_symlink", |verbs, context, mount, _| {
            verbs.make_symlink(context, mount.root, b"created link", b"x", mount.new).map(drop)
        }),
        ("rename", |verbs, context, mount, _| {
            verbs.rename(context, mount.root, b"moved", mount.root, b"new name", Rename::Replace)
        }),
        ("remove", |verbs, context, mount, _| verbs.remove(context, mount.root, b"removed")),
        ("remove_dir", |verbs, context, mount, _| verbs.remove_dir(context, mount.root, b"removed dir")),
        ("sync_dir", |verbs, context, mount, _| verbs.sync_dir(context, mount.root)),
    ]
}
