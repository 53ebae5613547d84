//! Promise: names may have any bytes up to the stated length, and names that differ in any byte are
//! different.

use quell_vfs::errno::{EINVAL, ENAMETOOLONG};
use quell_vfs::{Open, Rename};

use super::mount::WritableImplementation;
use crate::compare::listing;
use crate::conformance::implementation::refused;

/// Returns names that formats, shells and other systems treat specially.
pub(super) fn odd_names() -> Vec<Vec<u8>> {
    let odd: [&[u8]; 22] = [
        b"a",
        b"A",
        b"a ",
        b" a",
        b"...",
        b"-rf",
        b"with\nnewline",
        b"\xff\xfe",
        b"\x01",
        b"*",
        b"a~",
        b"a.container",
        b"a.container~",
        b"a.container~~",
        b".container",
        b"container",
        b".quell2",
        b".a",
        b"%61",
        b"a\\b",
        b"\xc3\xa9",
        b"e\xcc\x81",
    ];
    odd.iter().map(|name| name.to_vec()).collect()
}

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    let longest = vec![b'n'; implementation.name_bytes_max];
    let almost = vec![b'n'; implementation.name_bytes_max - 1];
    let names = [odd_names(), vec![longest, almost]].concat();
    for name in &names {
        let (_, file) = verbs.create(root, name, mount.new, Open::READ_WRITE).unwrap();
        file.write_at(name, 0).unwrap();
        file.publish().unwrap();
    }
    let mut listed: Vec<_> = listing(&*mount.fs, root, 3).unwrap().into_iter().map(|e| e.0).collect();
    listed.sort();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(listed, sorted);
    for name in &names {
        let found = mount.fs.lookup(root, name).unwrap().expect("it was created");
        assert_eq!(mount.bytes(found.node), *name);
    }
    for (i, name) in names.iter().enumerate() {
        let to = format!("plain {i}");
        verbs.rename(root, name, root, to.as_bytes(), Rename::Replace).unwrap();
        assert_eq!(mount.bytes_at(&to).unwrap(), *name);
        assert_eq!(mount.fs.lookup(root, name).unwrap(), None);
        verbs.remove(root, to.as_bytes()).unwrap();
    }
    // The same names for directories and links.
    for name in &names {
        let dir = verbs.make_dir(root, name, mount.new_dir).unwrap().node;
        verbs.make_symlink(dir, name, name, mount.new).unwrap();
        let link = mount.fs.lookup(dir, name).unwrap().expect("it was created");
        assert_eq!(mount.fs.read_link(link.node).unwrap(), *name);
        verbs.remove(dir, name).unwrap();
        verbs.remove_dir(root, name).unwrap();
    }
    assert_eq!(listing(&*mount.fs, root, 10).unwrap(), []);
    refuse_bad_names(implementation);
}

fn refuse_bad_names(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (verbs, root) = (mount.verbs(), mount.root);
    mount.write("file", b"bytes");
    let too_long = vec![b'n'; implementation.name_bytes_max + 1];
    let longer = vec![b'n'; 256];
    refused(verbs.create(root, &too_long, mount.new, Open::READ_WRITE), ENAMETOOLONG);
    refused(verbs.rename(root, b"file", root, &too_long, Rename::Replace), ENAMETOOLONG);
    refused(mount.fs.lookup(root, &longer), ENAMETOOLONG);
    refused(verbs.make_dir(root, &longer, mount.new_dir), ENAMETOOLONG);
    refused(verbs.make_symlink(root, &longer, b"x", mount.new), ENAMETOOLONG);
    for bad in [&b""[..], b".", b"..", b"a/b", b"nul\0"] {
        refused(verbs.create(root, bad, mount.new, Open::READ_WRITE), EINVAL);
        refused(verbs.make_dir(root, bad, mount.new_dir), EINVAL);
        refused(verbs.make_symlink(root, bad, b"x", mount.new), EINVAL);
        refused(verbs.rename(root, b"file", root, bad, Rename::Replace), EINVAL);
    }
    assert_eq!(listing(&*mount.fs, root, 10).unwrap().len(), 1);
    assert_eq!(mount.bytes_at("file").unwrap(), b"bytes");
}
