//! Writes the seeds of the image targets, small trees with all kinds of entries, and those of the
//! log and peer targets. Run with `cargo run --example make_seeds` in this directory.

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
    for (target, name, bytes) in seeds {
        std::fs::write(format!("seeds/{target}/{name}"), bytes).expect("run this in fuzz/");
    }
}
