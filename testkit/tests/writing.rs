//! Tests the conformance suite for writable trees on the model.

use std::sync::Arc;

use quell_testkit::WritableModel;
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_vfs::FileSystem;

/// Returns mounts of one model, which are all the same.
fn models(count: usize) -> Mounts {
    let model: Arc<dyn FileSystem> = Arc::new(WritableModel::new());
    Mounts { mounts: vec![model; count], keep: None }
}

#[test]
fn the_writable_model_conforms() {
    writing::run(&WritableImplementation {
        name: "writable model",
        make: &models,
        mounts_max: 2,
        name_bytes_max: 255,
        path_bytes_max: usize::MAX,
        uid: 1000,
        gid: 100,
        owners: true,
        rename_kinds: true,
        hard_links: true,
        writes_zeros: true,
        locks: true,
        xattrs: true,
    });
}
