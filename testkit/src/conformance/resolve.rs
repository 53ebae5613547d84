//! Promise: resolving a path component by component gives the node of the tree, without following
//! links.

use quell_vfs::errno::{ENOENT, ENOTDIR};
use quell_vfs::{Kind, resolve};

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
    assert_eq!(resolve(fs, deepest.as_bytes()).unwrap().kind, Kind::Dir);
    assert_eq!(resolve(fs, b"bin/link").unwrap().kind, Kind::Symlink);
    refused(resolve(fs, b"bin/link/x"), ENOTDIR);
    refused(resolve(fs, b"bin/tool/x"), ENOTDIR);
    refused(resolve(fs, b"bin/none"), ENOENT);
    refused(resolve(fs, b"none/tool"), ENOENT);
}
