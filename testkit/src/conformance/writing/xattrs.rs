//! Promise: `user.` attributes of files and directories are as they were set, belong to the node
//! whatever its name is, and end with it. Names and values that are too long are refused.

use quell_vfs::errno::{E2BIG, EEXIST, EINVAL, ENODATA, ENOSPC, EOPNOTSUPP, EPERM, ERANGE};
use quell_vfs::{Context, NodeId, Rename, SetXattr, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};

use super::mount::{Mount, WritableImplementation};
use crate::conformance::implementation::refused;

impl Mount {
    fn set(&self, node: NodeId, name: &[u8], value: &[u8], mode: SetXattr) -> quell_vfs::Result<()> {
        self.verbs().set_xattr(&Context::OWN, node, name, value, mode)
    }

    fn unset(&self, node: NodeId, name: &[u8]) -> quell_vfs::Result<()> {
        self.verbs().remove_xattr(&Context::OWN, node, name)
    }

    fn value(&self, node: NodeId, name: &[u8]) -> Option<Vec<u8>> {
        self.fs.xattr(&Context::OWN, node, name).unwrap()
    }

    fn names(&self, node: NodeId) -> Vec<Vec<u8>> {
        let mut names = self.fs.xattr_names(&Context::OWN, node).unwrap();
        assert_eq!(self.fs.xattr_names(&Context::OWN, node).unwrap(), names);
        names.sort();
        names
    }
}

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    if !implementation.xattrs {
        assert!(!mount.fs.capabilities().xattrs);
        let file = mount.write("file", b"");
        refused(mount.set(file, b"user.a", b"1", SetXattr::Any), EOPNOTSUPP);
        refused(mount.unset(file, b"user.a"), EOPNOTSUPP);
        assert_eq!(mount.value(file, b"user.a"), None);
        return;
    }
    assert!(mount.fs.capabilities().xattrs);
    let dir = mount.make_dir("dir");
    for node in [mount.root, dir, mount.write("file", b"bytes")] {
        are_kept(&mount, node);
        are_bounded(&mount, node);
    }
    follow_the_node(&mount, dir);
    belong_to_no_link(&mount);
    if let Some(two) = implementation.two_mounts() {
        let file = two.a.write("file", b"");
        two.a.set(file, b"user.a", b"1", SetXattr::Any).unwrap();
        let found = two.b.lookup(two.b.root, "file").unwrap().node;
        assert_eq!(two.b.value(found, b"user.a").unwrap(), b"1");
        two.b.unset(found, b"user.a").unwrap();
        assert_eq!(two.a.names(file), [b""; 0]);
    }
}

fn are_kept(mount: &Mount, node: NodeId) {
    assert_eq!((mount.names(node), mount.value(node, b"user.a")), (Vec::new(), None));
    refused(mount.set(node, b"user.a", b"0", SetXattr::Replace), ENODATA);
    mount.set(node, b"user.a", b"1", SetXattr::Create).unwrap();
    refused(mount.set(node, b"user.a", b"2", SetXattr::Create), EEXIST);
    assert_eq!(mount.value(node, b"user.a").unwrap(), b"1");
    mount.set(node, b"user.a", b"3", SetXattr::Replace).unwrap();
    mount.set(node, b"user.empty", b"", SetXattr::Any).unwrap();
    mount.set(node, b"user.\xff\xfe", b"\0\n\xff", SetXattr::Any).unwrap();
    assert_eq!(mount.names(node), [&b"user.a"[..], b"user.empty", b"user.\xff\xfe"]);
    assert_eq!(mount.value(node, b"user.a").unwrap(), b"3");
    assert_eq!(mount.value(node, b"user.empty").unwrap(), b"");
    assert_eq!(mount.value(node, b"user.\xff\xfe").unwrap(), b"\0\n\xff");
    let before = mount.attributes(node);
    mount.set(node, b"user.a", b"4", SetXattr::Any).unwrap();
    let after = mount.attributes(node);
    assert!(after.changed >= before.changed && after.modified == before.modified);
    for name in [&b"user.empty"[..], b"user.a", b"user.\xff\xfe"] {
        mount.unset(node, name).unwrap();
        refused(mount.unset(node, name), ENODATA);
        assert_eq!(mount.value(node, name), None);
    }
    assert_eq!(mount.names(node), [b""; 0]);
}

fn are_bounded(mount: &Mount, node: NodeId) {
    refused(mount.set(node, b"user.", b"", SetXattr::Any), EINVAL);
    refused(mount.set(node, b"strange", b"", SetXattr::Any), EOPNOTSUPP);
    let name = [b"user.".as_slice(), &[b'x'; XATTR_NAME_BYTES_MAX - 5]].concat();
    refused(mount.set(node, &[&name[..], b"x"].concat(), b"", SetXattr::Any), ERANGE);
    let value = vec![b'v'; XATTR_VALUE_BYTES_MAX];
    refused(mount.set(node, &name, &[&value[..], b"v"].concat(), SetXattr::Any), E2BIG);
    mount.set(node, &name, &value, SetXattr::Any).unwrap();
    assert_eq!((mount.names(node), mount.value(node, &name)), (vec![name.clone()], Some(value.clone())));
    // Attributes that do not fit change nothing, and removed ones make space.
    let mut count = 0;
    let refusal = loop {
        match mount.set(node, format!("user.{count}").as_bytes(), &value, SetXattr::Create) {
            Ok(()) if count < 1000 => count += 1,
            Ok(()) => panic!("the attributes of a node have no bound"),
            Err(error) => break error.errno(),
        }
    };
    assert_eq!((refusal, mount.names(node).len()), (ENOSPC, count + 1));
    assert_eq!(mount.value(node, &name), Some(value));
    mount.unset(node, &name).unwrap();
    mount.set(node, b"user.last", b"1", SetXattr::Create).unwrap();
    for name in mount.names(node) {
        mount.unset(node, &name).unwrap();
    }
}

fn follow_the_node(mount: &Mount, dir: NodeId) {
    let (verbs, root) = (mount.verbs(), mount.root);
    let node = mount.write("old", b"bytes");
    mount.set(node, b"user.a", b"1", SetXattr::Any).unwrap();
    let other = mount.write("other", b"");
    mount.set(other, b"user.b", b"2", SetXattr::Any).unwrap();
    verbs.rename(&Context::OWN, root, b"old", dir, b"new", Rename::Replace).unwrap();
    assert_eq!(mount.lookup(dir, "new").unwrap().node, node);
    assert_eq!(mount.names(node), [b"user.a"]);
    // The replaced file has its attributes as long as it is in use.
    verbs.rename(&Context::OWN, dir, b"new", root, b"other", Rename::Replace).unwrap();
    assert_eq!(mount.value(node, b"user.a").unwrap(), b"1");
    assert_eq!(mount.value(other, b"user.b").unwrap(), b"2");
    mount.set(dir, b"user.dir", b"3", SetXattr::Any).unwrap();
    verbs.rename(&Context::OWN, root, b"dir", root, b"moved", Rename::Replace).unwrap();
    assert_eq!(mount.value(dir, b"user.dir").unwrap(), b"3");
    // A new entry of the same name has no attributes.
    verbs.remove(&Context::OWN, root, b"other").unwrap();
    verbs.remove_dir(&Context::OWN, root, b"moved").unwrap();
    assert_eq!(mount.names(mount.write("other", b"")), [b""; 0]);
    assert_eq!(mount.names(mount.make_dir("moved")), [b""; 0]);
}

/// As xattr(7) describes it, symbolic links have no `user.` attributes.
fn belong_to_no_link(mount: &Mount) {
    let link = mount.verbs().make_symlink(&Context::OWN, mount.root, b"link", b"moved", mount.new).unwrap();
    refused(mount.set(link.node(), b"user.a", b"1", SetXattr::Any), EPERM);
    refused(mount.unset(link.node(), b"user.a"), EPERM);
    assert_eq!(mount.names(link.node()), [b""; 0]);
}
