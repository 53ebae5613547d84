//! Promise: reads return the file's data at any offset, fewer bytes than requested only at its end,
//! and none beyond. Only regular files can be opened.

use quell_vfs::errno::{EINVAL, EISDIR};
use quell_vfs::{Context, FileSystem, resolve};

use super::implementation::{Implementation, node_at, refused, varied_tree};
use crate::tree::TreeNode;

pub(super) fn check(implementation: &Implementation<'_>) {
    let tree = varied_tree();
    let instance = implementation.create(&tree);
    let fs = &*instance.fs;
    for path in ["bin/tool", "lib/the tool", "lib/a", "lib/sparse", "lib/empty file", "many/f699"] {
        let number = tree.paths().into_iter().find(|(p, _)| p == path.as_bytes()).expect("it was created").1;
        read_everywhere(fs, path, tree.node(number));
    }
    refused(fs.open(&Context::OWN, fs.root()), EISDIR);
    refused(fs.open(&Context::OWN, node_at(fs, "bin")), EISDIR);
    for special in ["bin/link", "lib/fifo", "lib/socket"] {
        refused(fs.open(&Context::OWN, node_at(fs, special)), EINVAL);
    }
    many_readers(fs);
}

fn read_everywhere(fs: &dyn FileSystem, path: &str, node: &TreeNode) {
    let file = fs.open(&Context::OWN, resolve(fs, &Context::OWN, path.as_bytes()).unwrap().node).unwrap();
    let end = node.size_bytes;
    assert_eq!(file.attributes().unwrap(), *resolve(fs, &Context::OWN, path.as_bytes()).unwrap());
    let (mut last, mut beyond, mut first) = ([0; 3], [0; 2], [0; 4]);
    let mut pieces = [(end.saturating_sub(1), &mut last[..]), (end, &mut beyond[..]), (0, &mut first[..])];
    let counts = file.read_pieces(&mut pieces).unwrap();
    assert_eq!(counts, [end.min(1) as usize, 0, end.min(4) as usize], "{path}");
    let mut expected = [0; 4];
    node.read_at(&mut expected, 0);
    assert_eq!(first, expected, "{path}");
    for offset in [0, 1, 4095, 4096, 65_535, end.saturating_sub(1), end, end + 1, i64::MAX as u64 - 5000] {
        for length in [0, 1, 5, 4096, 5000] {
            let (mut expected, mut found) = (vec![0xAA; length], vec![0xAA; length]);
            let count = node.read_at(&mut expected, offset);
            assert_eq!(file.read_at(&mut found, offset).unwrap(), count, "{path} {length} at {offset}");
            assert_eq!(found[..count], expected[..count], "{path} {length} at {offset}");
        }
    }
}

/// Checks that any number of threads may read one open file at the same time.
fn many_readers(fs: &dyn FileSystem) {
    let file = fs.open(&Context::OWN, node_at(fs, "lib/a")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let file = &file;
            scope.spawn(move || {
                for i in 0..50 {
                    let mut buffer = vec![0; 100 + i];
                    let count = file.read_at(&mut buffer, thread * 1000 + i as u64).unwrap();
                    assert!(count == buffer.len() && buffer.iter().all(|b| *b == 7));
                }
            });
        }
    });
}
