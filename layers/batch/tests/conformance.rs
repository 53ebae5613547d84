//! Runs the conformance suite and random histories on name spaces in memory.

mod mounts;

use std::sync::Arc;

use quell_batch_service::NameSpace;
use quell_testkit::MemoryStore;
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::FileSystem;

use mounts::{NEW, mount, private, shared};

/// Runs `check` on mounts of name spaces that `new` returns.
fn with(new: fn() -> Arc<dyn NameSpace>, mounts_max: usize, check: impl Fn(&WritableImplementation<'_>)) {
    let make = |count: usize| {
        let (names, store) = (new(), MemoryStore::new());
        let mount = |_| -> Arc<dyn FileSystem> { Arc::new(mount(&names, &store, 0)) };
        Mounts { mounts: (0..count).map(mount).collect(), keep: None }
    };
    check(&WritableImplementation {
        name: if mounts_max == 1 { "private name space" } else { "shared name space" },
        make: &make,
        mounts_max,
        name_bytes_max: 255,
        path_bytes_max: usize::MAX,
        uid: NEW.uid,
        gid: NEW.gid,
        owners: true,
        rename_kinds: true,
        hard_links: true,
        writes_zeros: false,
        locks: false,
        xattrs: true,
    });
}

#[test]
fn promises_are_kept_in_a_shared_name_space() {
    with(shared, 2, writing::run);
}

#[test]
fn promises_are_kept_in_a_private_name_space() {
    with(private, 1, writing::run);
}

/// Most files become larger than the content of an inode.
const LARGE: Shape = Shape { file_bytes: 120_000, write_bytes_max: 40_000, ..Shape::ONE_MOUNT };

#[test]
fn random_histories_of_one_mount_match_the_model() {
    for shape in [Shape::ONE_MOUNT, Shape::DENSE, LARGE] {
        with(private, 1, |implementation| histories::check(implementation, shape, 0..40));
        with(shared, 2, |implementation| histories::check(implementation, shape, 0..40));
    }
}

#[test]
fn random_histories_of_two_mounts_match_the_model() {
    for shape in [Shape::ONE_MOUNT, Shape::DENSE, LARGE] {
        let shape = Shape { mounts: 2, ..shape };
        with(shared, 2, |implementation| histories::check(implementation, shape, 0..40));
    }
}
