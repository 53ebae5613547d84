//! Runs the conformance suite and random histories on the blobs of a store in this process.

use std::sync::Arc;

use quell_blob::Store;
use quell_blobfs::{BlobFs, Owner};
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::FileSystem;

const OWNER: Owner = Owner { uid: 1000, gid: 1000 };

/// Runs `check` on stores whose blobs below `prefix` are files.
fn with_prefix(prefix: &str, check: impl Fn(&WritableImplementation<'_>)) {
    let make = |count: usize| {
        let directory = tempfile::tempdir().expect("a directory");
        let store =
            Store::open(&format!("dir:{}", directory.path().join("store").display())).expect("opened");
        let mount = |number| -> Arc<dyn FileSystem> {
            Arc::new(BlobFs::new(store.clone(), prefix.as_bytes(), OWNER, number as u64).expect("a mount"))
        };
        Mounts { mounts: (0..count).map(mount).collect(), keep: Some(Box::new(directory)) }
    };
    check(&WritableImplementation {
        name: &format!("blobs below \"{prefix}\""),
        make: &make,
        mounts_max: 2,
        name_bytes_max: 255,
        path_bytes_max: 1023 - prefix.len(),
        uid: OWNER.uid,
        gid: OWNER.gid,
        owners: true,
        rename_kinds: true,
        hard_links: false,
        writes_zeros: false,
        locks: false,
        xattrs: false,
    });
}

#[test]
fn promises_are_kept() {
    with_prefix("", writing::run);
}

#[test]
fn promises_are_kept_below_a_prefix() {
    with_prefix("shared", writing::run);
}

#[test]
fn random_histories_of_one_mount_match_the_model() {
    with_prefix("a", |implementation| histories::check(implementation, Shape::ONE_MOUNT, 0..15));
    with_prefix("a", |implementation| histories::check(implementation, Shape::DENSE, 0..15));
}

#[test]
fn random_histories_of_two_mounts_match_the_model() {
    with_prefix("", |implementation| histories::check(implementation, Shape::TWO_MOUNTS, 0..15));
    let dense = Shape { mounts: 2, ..Shape::DENSE };
    with_prefix("", |implementation| histories::check(implementation, dense, 0..15));
}
