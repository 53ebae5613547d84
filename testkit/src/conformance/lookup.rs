//! Promise: a name is found only in its directory; elsewhere the result is "no such entry", which
//! is not an error.

use quell_vfs::Context;
use quell_vfs::errno::{ENAMETOOLONG, ENOTDIR};

use super::implementation::{Implementation, node_at, refused, varied_tree};

pub(super) fn check(implementation: &Implementation<'_>) {
    let tree = varied_tree();
    let instance = implementation.create(&tree);
    let fs = &*instance.fs;
    let many = node_at(fs, "many");
    for i in 0..700 {
        assert!(fs.lookup(&Context::OWN, many, format!("f{i}").as_bytes()).unwrap().is_some());
        // Neighbours in sorted order, and other prefixes and suffixes.
        for near in [format!("f{i}\0"), format!("f{i} "), format!("f{i}~"), format!("g{i}"), format!("F{i}")]
        {
            assert_eq!(fs.lookup(&Context::OWN, many, near.as_bytes()).unwrap(), None, "{near}");
        }
    }
    assert_eq!(fs.lookup(&Context::OWN, many, b"tool").unwrap(), None, "a name of another directory");
    assert_eq!(fs.lookup(&Context::OWN, fs.root(), b"").unwrap(), None);
    assert_eq!(fs.lookup(&Context::OWN, fs.root(), b"bin/tool").unwrap(), None, "a path is no name");
    assert_eq!(fs.lookup(&Context::OWN, node_at(fs, "empty"), b"a").unwrap(), None);
    let names = node_at(fs, "lib/names");
    assert!(fs.lookup(&Context::OWN, names, &[b'n'; 255]).unwrap().is_some());
    assert_eq!(fs.lookup(&Context::OWN, names, &[b'n'; 254]).unwrap(), None);
    refused(fs.lookup(&Context::OWN, names, &[b'n'; 256]), ENAMETOOLONG);
    refused(fs.lookup(&Context::OWN, names, &[b'n'; 70_000]), ENAMETOOLONG);
    refused(fs.lookup(&Context::OWN, node_at(fs, "bin/tool"), b"x"), ENOTDIR);
    refused(fs.lookup(&Context::OWN, node_at(fs, "bin/link"), b"x"), ENOTDIR);
}
