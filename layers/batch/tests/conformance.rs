//! Runs the conformance suite and random histories on name spaces in memory.

mod mounts;

use std::sync::{Arc, RwLock};

use quell_batch_service::{BatchCaller, FILES_OF_USERS, MemoryEntries, NameSpace, ReadAccess, UserNames};
use quell_testkit::MemoryStore;
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::{FileSystem, Time};

use mounts::{NEW, mount, private, shared};

/// Runs `check` on mounts of name spaces that `new` returns.
fn with(new: fn() -> Arc<dyn NameSpace>, mounts_max: usize, check: impl Fn(&WritableImplementation<'_>)) {
    with_data_of(0, true, new, mounts_max, check);
}

/// As [`with`], for mounts that write the data files of `batch`. If `owners` is set, the owners of
/// files are changed.
fn with_data_of(
    batch: u64,
    owners: bool,
    new: fn() -> Arc<dyn NameSpace>,
    mounts_max: usize,
    check: impl Fn(&WritableImplementation<'_>),
) {
    let make = |count: usize| {
        let (names, store) = (new(), MemoryStore::new());
        let mount = |_| -> Arc<dyn FileSystem> { Arc::new(mount(&names, &store, batch)) };
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
        owners,
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

/// Returns a name space that checks the permissions of a user, as the server of a store does for
/// users other than its owner.
fn of_user() -> Arc<dyn NameSpace> {
    user_names(ReadAccess::All)
}

/// Returns the same for a private store, which also checks reads.
fn of_user_of_private_store() -> Arc<dyn NameSpace> {
    user_names(ReadAccess::Permitted)
}

fn user_names(reads: ReadAccess) -> Arc<dyn NameSpace> {
    let names = Arc::new(RwLock::new(MemoryEntries::new(NEW, Time::default())));
    let caller = BatchCaller { uid: NEW.uid, gid: NEW.gid, groups: Vec::new() };
    Arc::new(UserNames::new(names, caller, reads, None))
}

#[test]
fn promises_are_kept_with_checks_of_permissions() {
    let batch = FILES_OF_USERS + u64::from(NEW.uid);
    for of_user in [of_user, of_user_of_private_store] {
        with_data_of(batch, false, of_user, 2, writing::run);
    }
}

#[test]
fn random_histories_with_checks_of_permissions_match_the_model() {
    let batch = FILES_OF_USERS + u64::from(NEW.uid);
    for shape in [Shape::ONE_MOUNT, Shape { mounts: 2, ..LARGE }] {
        for of_user in [of_user, of_user_of_private_store] {
            with_data_of(batch, false, of_user, 2, |found| histories::check(found, shape, 0..40));
        }
    }
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
