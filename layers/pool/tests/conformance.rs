//! Runs the conformance suite and random histories on pools of one and several members in this
//! process.

mod simulated;

use std::sync::Arc;

use quell_pool::PoolFs;
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::FileSystem;

use simulated::SimulatedPool;

/// Runs `check` on pools of this number of members. Each mount is a client of another member.
fn on_pools(members: u16, chunk_bytes: u32, check: impl Fn(&WritableImplementation<'_>)) {
    let make = |count: usize| {
        let pool = SimulatedPool::start(members, chunk_bytes);
        let mount = |number| -> Arc<dyn FileSystem> {
            Arc::new(PoolFs::new(Arc::new(pool.connect(number as u16 % members)), chunk_bytes))
        };
        Mounts { mounts: (0..count).map(mount).collect(), keep: Some(Box::new(pool)) }
    };
    check(&WritableImplementation {
        name: &format!("pool of {members} members, chunks of {chunk_bytes} bytes"),
        make: &make,
        mounts_max: 2,
        name_bytes_max: 255,
        uid: 1000,
        gid: 1000,
        owners: true,
        rename_kinds: true,
        locks: false,
    });
}

#[test]
fn promises_are_kept_by_a_single_member() {
    on_pools(1, 512 << 10, writing::run);
}

#[test]
fn promises_are_kept_by_three_members() {
    on_pools(3, 4096, writing::run);
}

#[test]
fn random_histories_of_one_mount_match_the_model() {
    on_pools(3, 1000, |implementation| histories::check(implementation, Shape::ONE_MOUNT, 0..25));
    on_pools(3, 1000, |implementation| histories::check(implementation, Shape::DENSE, 0..25));
}

#[test]
fn random_histories_of_two_mounts_match_the_model() {
    on_pools(2, 1000, |implementation| histories::check(implementation, Shape::TWO_MOUNTS, 0..25));
    let dense = Shape { mounts: 2, ..Shape::DENSE };
    on_pools(5, 4096, |implementation| histories::check(implementation, dense, 0..25));
}
