//! Promise: resolving a path component by component gives the node of the tree, without following
//! links.

use quell_vfs::errno::{EISDIR, ELOOP, ENOENT, ENOTDIR};
use quell_vfs::{Context, FileSystem, Kind, resolve};

use super::implementation::{Implementation, node_at, refused, varied_tree};

pub(super) fn check(implementation: &Implementation<'_>) {
    let instance = implementation.create(&varied_tree());
    let fs = &*instance.fs;
    let tool = node_at(fs, "bin/tool");
    for path in ["/bin/tool", "bin//tool", "./bin/./tool", "lib/../bin/tool", "../../bin/tool", "bin/tool/"] {
        assert_eq!(node_at(fs, path), tool, "{path}");
    }
    for path in ["", "/", ".", "..", "bin/.."] {
        assert_eq!(node_at(fs, path), fs.root(), "{path}");
    }
    let deepest = (0..40).fold("deep".to_owned(), |path, i| format!("{path}/{i}"));
    assert_eq!(resolve(fs, &Context::OWN, deepest.as_bytes()).unwrap().kind, Kind::Dir);
    assert_eq!(resolve(fs, &Context::OWN, b"bin/link").unwrap().kind, Kind::Symlink);
    refused(resolve(fs, &Context::OWN, b"bin/link/x"), ELOOP);
    refused(resolve(fs, &Context::OWN, b"bin/link/.."), ELOOP);
    refused(resolve(fs, &Context::OWN, b"bin/tool/x"), ENOTDIR);
    refused(resolve(fs, &Context::OWN, b"bin/tool/.."), ENOTDIR);
    refused(resolve(fs, &Context::OWN, b"bin/none"), ENOENT);
    refused(resolve(fs, &Context::OWN, b"none/tool"), ENOENT);
    whole_paths(fs);
}

/// Checks that the whole-path operations give the same results as a lookup of each component.
fn whole_paths(fs: &dyn FileSystem) {
    let context = Context::OWN;
    for path in
        ["", "bin", "bin/tool", "/lib/../bin/./tool", "bin/link", "lib/names", "bin/none", "none/tool"]
    {
        let walked = resolve(fs, &context, path.as_bytes()).ok().map(|found| *found);
        assert_eq!(fs.attributes_of_path(&context, path.as_bytes()).unwrap(), walked, "{path}");
    }
    refused(fs.attributes_of_path(&context, b"bin/tool/x"), ENOTDIR);
    refused(fs.attributes_of_path(&context, b"bin/link/x"), ELOOP);
    let mut start = [0; 9];
    let file = fs.open_path(&context, b"bin/tool").unwrap();
    assert_eq!(file.read_at(&mut start, 0).unwrap(), 9);
    assert_eq!(&start, b"#!/bin/sh");
    assert_eq!(file.attributes().unwrap().node, node_at(fs, "bin/tool"));
    refused(fs.open_path(&context, b"bin"), EISDIR);
    refused(fs.open_path(&context, b"bin/none"), ENOENT);
    refused(fs.open_path(&context, b"bin/link/x"), ELOOP);
}
