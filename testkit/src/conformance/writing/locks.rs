//! Promise: locks exclude one another as in the reference model, also between mounts; a lock shows
//! the data that its previous owner has written; locks end when their file is closed. An
//! implementation without locks answers ENOLCK.

use quell_vfs::{
    Context, FileLocks, LockMode, LockOwner, LockScope, NodeId, OpenMode, TO_END, WritableFile, errno,
};

use super::mount::{Mount, WritableImplementation, read, whole};
use crate::{LockTable, Random};

/// The largest offset that a byte can have.
const OFFSET_LAST: u64 = i64::MAX as u64 - 1;

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    if !implementation.locks {
        return answers_enolck(implementation);
    }
    let mount = implementation.mount();
    scopes(&mount);
    ends(&mount);
    histories(implementation);
    if let Some(two) = implementation.two_mounts() {
        let (node, file) = two.a.create("file");
        drop(file);
        let there = two.b.lookup(two.b.root, "file").unwrap().node;
        shows_data([(&two.a, node), (&two.b, there)]);
    }
    let (node, file) = mount.create("alone");
    drop(file);
    shows_data([(&mount, node), (&mount, node)]);
}

fn answers_enolck(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (_, file) = mount.create("file");
    let (owner, scope, mode) = (LockOwner(1), LockScope::ALL_BYTES, LockMode::Shared);
    let locked = file.locks().and_then(|locks| locks.try_lock(owner, scope, mode));
    assert_eq!(locked.unwrap_err().errno(), errno::ENOLCK);
    let found = file.locks().and_then(|locks| locks.conflicting(owner, scope, mode));
    assert_eq!(found.unwrap_err().errno(), errno::ENOLCK);
}

fn bytes(first: u64, last: u64) -> LockScope {
    LockScope::Bytes { first, last }
}

fn locks(file: &dyn WritableFile) -> &dyn FileLocks {
    file.locks().expect("it keeps locks")
}

fn scopes(mount: &Mount) {
    let (_, file) = mount.create("scopes");
    let locks = locks(&*file);
    let (a, b) = (LockOwner(u64::MAX), LockOwner(0));
    let exclusive = |owner, scope| locks.try_lock(owner, scope, LockMode::Exclusive).unwrap();

    // Locks of bytes and of the whole file do not conflict.
    assert!(exclusive(a, LockScope::ALL_BYTES) && exclusive(b, LockScope::WholeFile));
    assert!(!exclusive(b, bytes(OFFSET_LAST, OFFSET_LAST)) && !exclusive(a, LockScope::WholeFile));
    assert!(!exclusive(a, LockScope::Everything), "b holds a part of it");
    let found = locks.conflicting(a, LockScope::WholeFile, LockMode::Shared).unwrap().unwrap();
    assert_eq!((found.scope, found.mode), (LockScope::WholeFile, LockMode::Exclusive));
    let found = locks.conflicting(b, bytes(7, 7), LockMode::Shared).unwrap().unwrap();
    assert_eq!(found.scope, LockScope::ALL_BYTES);

    // A range to the end of the file keeps its end when a part of it is unlocked.
    locks.unlock(a, bytes(10, 19)).unwrap();
    assert!(exclusive(b, bytes(10, 19)) && !exclusive(b, bytes(9, 9)) && !exclusive(b, bytes(20, 20)));
    let found = locks.conflicting(b, bytes(15, 30), LockMode::Exclusive).unwrap().unwrap();
    assert_eq!(found.scope, bytes(20, TO_END));
    locks.unlock(a, LockScope::ALL_BYTES).unwrap();
    assert!(exclusive(b, bytes(0, OFFSET_LAST)));
    locks.unlock(b, LockScope::Everything).unwrap();
    assert_eq!(locks.conflicting(a, LockScope::Everything, LockMode::Exclusive).unwrap(), None);

    // A lock of everything conflicts with both kinds.
    assert!(exclusive(a, LockScope::Everything));
    assert!(!exclusive(b, LockScope::WholeFile) && !exclusive(b, bytes(3, 3)));
    locks.release(a).unwrap();

    for wrong in [bytes(5, 4), bytes(OFFSET_LAST + 1, TO_END), bytes(TO_END, TO_END)] {
        assert_eq!(locks.try_lock(a, wrong, LockMode::Shared).unwrap_err().errno(), errno::EINVAL);
        assert_eq!(locks.unlock(a, wrong).unwrap_err().errno(), errno::EINVAL);
    }
    // Unlocking without a lock has no effect.
    locks.unlock(LockOwner(77), LockScope::Everything).unwrap();
    locks.release(LockOwner(77)).unwrap();
}

/// Checks that locks end with the open file through which they were taken.
fn ends(mount: &Mount) {
    let (node, first) = mount.create("ends");
    let second = mount.open(node);
    let (a, b) = (LockOwner(1), LockOwner(2));
    assert!(locks(&*first).try_lock(a, bytes(0, 9), LockMode::Exclusive).unwrap());
    assert!(!locks(&*second).try_lock(b, bytes(5, 5), LockMode::Shared).unwrap());
    first.close().unwrap();
    assert!(locks(&*second).try_lock(b, bytes(5, 5), LockMode::Shared).unwrap());
    assert_eq!(first.locks().map(|_| ()).unwrap_err().errno(), errno::EBADF);
    // An owner that has closed its file opens it again and locks it, before the first open file is
    // closed.
    locks(&*second).release(b).unwrap();
    let third = mount.open(node);
    assert!(locks(&*third).try_lock(b, bytes(5, 5), LockMode::Exclusive).unwrap());
    second.close().unwrap();
    assert!(!locks(&*third).try_lock(a, bytes(5, 5), LockMode::Shared).unwrap());
    // A file that was removed keeps its locks.
    mount.verbs().remove(&Context::OWN, mount.root, b"ends").unwrap();
    assert!(!locks(&*third).try_lock(a, bytes(5, 5), LockMode::Shared).unwrap());
    assert!(locks(&*third).try_lock(a, bytes(6, 6), LockMode::Shared).unwrap());
}

/// Checks that a lock shows the data that was written under the previous one, through files that
/// were open all the time.
fn shows_data(at: [(&Mount, NodeId); 2]) {
    let opened = at.map(|(mount, node)| {
        let context = Context::for_process(node.0 as u32 % 7 + 1);
        mount.verbs().open_as(&context, node, OpenMode::READ_WRITE).unwrap()
    });
    let scope = bytes(0, TO_END);
    for round in 0..20_u64 {
        let (file, owner) = (&opened[round as usize % 2], LockOwner(round % 2));
        assert!(locks(&**file).try_lock(owner, scope, LockMode::Exclusive).unwrap(), "round {round}");
        let counter = read(&**file, 0, 8);
        let expected = if round == 0 { Vec::new() } else { round.to_le_bytes().to_vec() };
        assert_eq!(counter, expected, "round {round}");
        file.write_at(&(round + 1).to_le_bytes(), 0).unwrap();
        file.append(b"+").unwrap();
        locks(&**file).unlock(owner, scope).unwrap();
    }
    // An exclusive lock that becomes a shared one shows the data, too.
    assert!(locks(&*opened[0]).try_lock(LockOwner(0), scope, LockMode::Exclusive).unwrap());
    opened[0].append(b"-").unwrap();
    assert!(locks(&*opened[0]).try_lock(LockOwner(0), scope, LockMode::Shared).unwrap());
    assert!(locks(&*opened[1]).try_lock(LockOwner(1), scope, LockMode::Shared).unwrap());
    let mut expected = 20_u64.to_le_bytes().to_vec();
    expected.extend([b'+'; 20]);
    expected.push(b'-');
    assert!(whole(&*opened[1]) == expected, "written before the exclusive lock became a shared one");
    locks(&*opened[1]).release(LockOwner(1)).unwrap();
    locks(&*opened[0]).release(LockOwner(0)).unwrap();
    assert!(locks(&*opened[0]).try_lock(LockOwner(5), scope, LockMode::Shared).unwrap());
    assert!(whole(&*opened[0]) == expected, "appended at the end that the previous owner left");
    locks(&*opened[0]).release(LockOwner(5)).unwrap();
}

/// Checks random operations of several owners on two mounts against the model.
fn histories(implementation: &WritableImplementation<'_>) {
    let Some(two) = implementation.two_mounts() else { return };
    let mounts = [&two.a, &two.b];
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let name = format!("history {seed}");
        drop(two.a.create(&name));
        let open = |mount: usize| {
            let node = mounts[mount].lookup(mounts[mount].root, &name).unwrap().node;
            mounts[mount].open(node)
        };
        // Each owner has its own open file, so that a close concerns one owner.
        let mut files: Vec<Box<dyn WritableFile>> = (0..6).map(|owner| open(owner % 2)).collect();
        let mut table = LockTable::default();
        for step in 0..150 {
            let at = random.below(files.len());
            let owner = ((at % 2) as u64, LockOwner(at as u64));
            let mode = *random.pick(&[LockMode::Shared, LockMode::Exclusive]);
            let first = random.below(12) as u64;
            let scope = match random.below(10) {
                0 => LockScope::WholeFile,
                1 => LockScope::Everything,
                2 => bytes(first, TO_END),
                3 => LockScope::ALL_BYTES,
                _ => bytes(first, first + random.below(6) as u64),
            };
            let note = || format!("seed {seed}, step {step}, owner {at}, {scope:?}, {mode:?}");
            let held = locks(&*files[at]);
            match random.below(12) {
                0..=5 => {
                    let expected = table.try_lock(owner, scope, mode).unwrap();
                    assert_eq!(held.try_lock(owner.1, scope, mode).unwrap(), expected, "{}", note());
                }
                6..=8 => {
                    table.unlock(owner, scope).unwrap();
                    held.unlock(owner.1, scope).unwrap();
                }
                9 => {
                    table.release(owner);
                    held.release(owner.1).unwrap();
                }
                10 => {
                    let expected = table.conflicting(owner, scope, mode).unwrap();
                    let found = held.conflicting(owner.1, scope, mode).unwrap();
                    assert_eq!(found.is_some(), expected.is_some(), "{}", note());
                    // Any of the conflicting locks may be returned: each conflicts by itself.
                    if let Some(found) = found {
                        let itself = table.conflicting(owner, found.scope, LockMode::Exclusive).unwrap();
                        assert!(itself.is_some(), "{}: {found:?}", note());
                    }
                }
                _ => {
                    table.release(owner);
                    files[at].close().unwrap();
                    files[at] = open(at % 2);
                }
            }
        }
    }
}
