//! Writes the seeds of the image targets, small trees with all kinds of entries, and those of the
//! log, peer and pool targets. Run with `cargo run --example make_seeds` in this directory.

use std::sync::Arc;

use quell_index::{BuildOptions, BuildProgress, Xattrs, build, encode};
use quell_testkit::MemoryDir;
use quell_testkit::operations::{Shape, random_tree};

fn main() {
    for seed in 0..6 {
        let shape = Shape { entries: 1 + 4 * seed as usize, extremes: seed % 2 == 1, xattrs: true };
        let tree = random_tree(seed, shape);
        // Long attributes make seeds long without reaching more code.
        let tree = tree.without(|node| node.xattrs.values().any(|value| value.len() > 300));
        let exclude = vec!["*.tmp".to_owned()];
        let options = BuildOptions { xattrs: Xattrs::Always, exclude, ..Default::default() };
        let source = Arc::new(MemoryDir::new(Arc::new(tree)));
        let built =
            build(source, b"/tree", &options, 1, None, &BuildProgress::default()).expect("it is in memory");
        let bytes = encode(&built).expect("it is small");
        for target in ["index_image", "index_image_checksummed"] {
            std::fs::write(format!("seeds/{target}/tree-{seed}"), &bytes).expect("run this in fuzz/");
        }
    }
    let seeds = quell_log::fuzzing::seeds().into_iter().chain(quell_transport::peer::fuzzing::seeds());
    for (target, name, bytes) in seeds.chain(pool_messages()) {
        std::fs::write(format!("seeds/{target}/{name}"), bytes).expect("run this in fuzz/");
    }
}

/// A message of each of the three types.
fn pool_messages() -> impl Iterator<Item = (&'static str, &'static str, Vec<u8>)> {
    use quell_wire::pool::{FileId, NewKind, Operation, PeerRequest, RenameMode, Reply};
    let kind = NewKind::Symlink(b"target");
    let create =
        Operation::Create { dir: FileId(7), name: b"name", kind, permissions: 0o644, uid: 1000, gid: 1000 };
    let (from_dir, to_dir, mode) = (FileId(7), FileId(8), RenameMode::Exchange);
    let rename = Operation::Rename { from_dir, from: b"a", to_dir, to: b"b", mode };
    let found: Result<Reply<'_>, quell_wire::Failure> = Ok(Reply::Bytes(b"data"[..].into()));
    [
        ("pool_messages", "create", quell_wire::encode(&create)),
        ("pool_messages", "rename", quell_wire::encode(&PeerRequest::Perform(rename))),
        ("pool_messages", "bytes", quell_wire::encode(&found)),
    ]
    .into_iter()
}
