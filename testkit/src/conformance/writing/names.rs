//! Promise: names may have any bytes up to the stated length, and names that differ in any byte are
//! different.

use quell_vfs::errno::{EINVAL, ENAMETOOLONG};
use quell_vfs::{Context, OpenMode, Rename};

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
        let (_, file) = verbs.create(&Context::OWN, root, name, mount.new, OpenMode::READ_WRITE).unwrap();
        file.write_at(name, 0).unwrap();
        file.publish().unwrap();
    }
    let mut listed: Vec<_> = listing(&*mount.fs, root, 3).unwrap().into_iter().map(|e| e.0).collect();
    listed.sort();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(listed, sorted);
    for name in &names {
        let found = mount.fs.lookup(&Context::OWN, root, name).unwrap().expect("it was created");
        assert_eq!(mount.bytes(found.node), *name);
    }
    for (i, name) in names.iter().enumerate() {
        let to = format!("plain {i}");
        verbs.rename(&Context::OWN, root, name, root, to.as_bytes(), Rename::Replace).unwrap();
        assert_eq!(mount.bytes_at(&to).unwrap(), *name);
        assert_eq!(mount.fs.lookup(&Context::OWN, root, name).unwrap(), None);
        verbs.remove(&Context::OWN, root, to.as_bytes()).unwrap();
    }
    // Directories and links may have the same names.
    for name in &names {
        let dir = verbs.make_dir(&Context::OWN, root, name, mount.new_dir).unwrap().into_attributes().node;
        verbs.make_symlink(&Context::OWN, dir, name, name, mount.new).unwrap();
        let link = mount.fs.lookup(&Context::OWN, dir, name).unwrap().expect("it was created");
        assert_eq!(mount.fs.read_link(&Context::OWN, link.node).unwrap(), *name);
        verbs.remove(&Context::OWN, dir, name).unwrap();
        verbs.remove_dir(&Context::OWN, root, name).unwrap();
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
    refused(verbs.create(&Context::OWN, root, &too_long, mount.new, OpenMode::READ_WRITE), ENAMETOOLONG);
    refused(verbs.rename(&Context::OWN, root, b"file", root, &too_long, Rename::Replace), ENAMETOOLONG);
    refused(mount.fs.lookup(&Context::OWN, root, &longer), ENAMETOOLONG);
    refused(verbs.make_dir(&Context::OWN, root, &longer, mount.new_dir), ENAMETOOLONG);
    refused(verbs.make_symlink(&Context::OWN, root, &longer, b"x", mount.new), ENAMETOOLONG);
    for bad in [&b""[..], b".", b"..", b"a/b", b"nul\0"] {
        refused(verbs.create(&Context::OWN, root, bad, mount.new, OpenMode::READ_WRITE), EINVAL);
        refused(verbs.make_dir(&Context::OWN, root, bad, mount.new_dir), EINVAL);
        refused(verbs.make_symlink(&Context::OWN, root, bad, b"x", mount.new), EINVAL);
        refused(verbs.rename(&Context::OWN, root, b"file", root, bad, Rename::Replace), EINVAL);
    }
    assert_eq!(listing(&*mount.fs, root, 10).unwrap().len(), 1);
    assert_eq!(mount.bytes_at("file").unwrap(), b"bytes");
}
