//! Tests the contract with system calls on a real mount of the reference model, so that they cover
//! the kernel and the FUSE server. Random histories cover sequences that no other test has.

mod mounted;
mod through;

use std::sync::Arc;

use quell_fuse::{Options, Session};
use quell_testkit::WritableModel;
use quell_testkit::conformance::writing::{self, Mounts, WritableImplementation};
use quell_testkit::histories::{self, Shape};
use quell_vfs::{Change, Context, FileSystem, NodeId, Writable};
use through::Through;

/// A mount, unmounted and removed when dropped.
struct Mounted {
    _session: Session,
    dir: tempfile::TempDir,
}

fn mount(model: &WritableModel, exclusive: bool) -> quell_vfs::Result<Mounted> {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { exclusive, ..Options::default() };
    let session = quell_fuse::mount_at(Arc::new(model.clone()), dir.path(), &options)?;
    Ok(Mounted { _session: session, dir })
}

/// Returns `count` mounts of one new model, which only this mount changes if it is `exclusive`.
fn mounts(count: usize, exclusive: bool) -> Mounts {
    let model = WritableModel::new();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mine = Change { uid: Some(uid), gid: Some(gid), ..Change::default() };
    model.change(&Context::OWN, NodeId(0), &mine).unwrap();
    let keep: Vec<Mounted> = (0..count).map(|_| mount(&model, exclusive).unwrap()).collect();
    let mounts = keep.iter().map(|mounted| Arc::new(Through::new(mounted.dir.path())) as Arc<dyn FileSystem>);
    Mounts { mounts: mounts.collect(), keep: Some(Box::new(keep)) }
}

/// Runs `ask` on mounts that others may change, if this machine allows mounts.
fn of_the_mount(ask: impl FnOnce(&WritableImplementation<'_>)) {
    of_mounts(("a mount of the model", 3), &|count| mounts(count, false), ask);
}

/// Runs `ask` on a mount whose names and attributes the kernel keeps.
fn of_the_exclusive_mount(ask: impl FnOnce(&WritableImplementation<'_>)) {
    of_mounts(("an exclusive mount of the model", 1), &|count| mounts(count, true), ask);
}

fn of_mounts(
    (name, mounts_max): (&str, usize),
    make: &dyn Fn(usize) -> Mounts,
    ask: impl FnOnce(&WritableImplementation<'_>),
) {
    if let Some(reason) = mounted::why_no_mounts(&[]) {
        return println!("SKIPPED: {reason}");
    }
    // Permissions must arrive unchanged.
    rustix::process::umask(rustix::fs::Mode::empty());
    ask(&WritableImplementation {
        name,
        make,
        mounts_max,
        name_bytes_max: 255,
        path_bytes_max: usize::MAX,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        owners: rustix::process::geteuid().is_root(),
        rename_kinds: true,
        hard_links: true,
        writes_zeros: true,
        locks: false,
        xattrs: true,
    });
}

#[test]
fn a_mount_conforms() {
    of_the_mount(writing::run);
}

#[test]
fn an_exclusive_mount_conforms() {
    of_the_exclusive_mount(writing::run);
}

#[test]
fn histories_through_an_exclusive_mount_equal_the_model() {
    of_the_exclusive_mount(|implementation| histories::check(implementation, Shape::ONE_MOUNT, 0..15));
}

#[test]
fn histories_through_one_mount_equal_the_model() {
    of_the_mount(|implementation| histories::check(implementation, Shape::ONE_MOUNT, 0..15));
}

#[test]
fn histories_of_short_writes_equal_the_model() {
    of_the_mount(|implementation| histories::check(implementation, Shape::DENSE, 0..15));
}

#[test]
fn histories_of_two_alternating_mounts_equal_the_model() {
    of_the_mount(|implementation| histories::check(implementation, Shape::TWO_MOUNTS, 0..15));
}
