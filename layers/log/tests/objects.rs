//! Tests files that begin as objects while two mounts act on them. One mount is interrupted at each
//! of its operations on the store: by an operation of the other mount, by a kill, or by an error of
//! the store. Afterwards the file must be as if the operations had been performed one after the
//! other, and an operation of a killed mount completely or not at all.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod mounted;

use std::cell::Cell;
use std::fmt::Debug;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mounted::MEMORY;
use quell_log::{Choices, LogFs};
use quell_posix::WritableDir;
use quell_testkit::{CountingDir, MemoryStore};
use quell_vfs::{
    Change, Context, ErrorKind, FileSystem, LockMode, LockOwner, LockScope, NewEntry, NodeId, OpenMode,
    Rename, Result, Time, Writable, WritableFile, errno,
};

const NEW: NewEntry = NewEntry { permissions: 0o644, uid: MEMORY.0, gid: MEMORY.1 };
/// Root, which may change owners.
const ROOT: (u32, u32) = (0, 0);

fn choices() -> Choices {
    Choices { index_threads: 1, begins_as_object: true, ..Choices::default() }
}

fn mount(store: &MemoryStore) -> LogFs {
    mounted::mount(vec![store.root()], ROOT, choices())
}

/// An operation on the file `f`, or on `g`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// The first writer writes this number of bytes to the end, and closes the file.
    FirstWrite(usize),
    /// The same, and syncs before the close.
    FirstSync(usize),
    /// Another process writes 10 bytes at this offset.
    Write(u64),
    Truncate(u64),
    Punch,
    Chmod(u32),
    Chgrp(u32),
    Chown(u32),
    SetTime(i64),
    Lock,
    Remove,
    /// Renames `f` to `g`, without replacing it.
    RenameAway,
    /// Renames `g` to `f`.
    RenameOver,
    Create,
    Flatten,
    Read,
}

/// The state of a file as the model has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    content: Vec<u8>,
    permissions: u32,
    uid: u32,
    gid: u32,
    /// The time that was set last, unless the content was changed since.
    time: Option<i64>,
}

/// The files `f` and `g`, and the file that the first writer has open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    f: Option<State>,
    g: Option<State>,
    /// The name of the file of the first writer, `f` or `g`.
    first: Option<u8>,
}

impl Model {
    fn first(&mut self) -> Option<&mut State> {
        match self.first? {
            b'f' => self.f.as_mut(),
            _ => self.g.as_mut(),
        }
    }

    /// Performs an operation, if it is possible.
    fn apply(&mut self, act: Act) {
        let put = |state: &mut State, offset: usize, bytes: &[u8]| {
            let end = offset + bytes.len();
            state.content.resize(state.content.len().max(end), 0);
            state.content[offset..end].copy_from_slice(bytes);
            state.time = None;
        };
        match act {
            Act::FirstWrite(bytes) | Act::FirstSync(bytes) => {
                if let Some(state) = self.first() {
                    put(state, 300, &vec![b'1'; bytes]);
                }
            }
            Act::Write(offset) => {
                self.f.iter_mut().for_each(|state| put(state, offset as usize, &[b'w'; 10]));
            }
            Act::Truncate(size) => self.f.iter_mut().for_each(|state| {
                state.content.resize(size as usize, 0);
                state.time = None;
            }),
            Act::Punch => self.f.iter_mut().for_each(|state| {
                let end = state.content.len().min(20);
                state.content[end.min(10)..end].fill(0);
                state.time = None;
            }),
            Act::Chmod(mode) => self.f.iter_mut().for_each(|state| state.permissions = mode),
            Act::Chgrp(gid) => self.f.iter_mut().for_each(|state| state.gid = gid),
            Act::Chown(uid) => self.f.iter_mut().for_each(|state| state.uid = uid),
            Act::SetTime(time) => self.f.iter_mut().for_each(|state| state.time = Some(time)),
            Act::Remove => {
                self.f = None;
                self.first = self.first.filter(|name| *name != b'f');
            }
            Act::RenameAway if self.f.is_some() && self.g.is_none() => {
                self.g = self.f.take();
                self.first = self.first.map(|_| b'g');
            }
            Act::RenameOver if self.g.is_some() => {
                self.f = self.g.take();
                self.first = None;
            }
            Act::Create if self.f.is_none() => self.f = Some(State { content: Vec::new(), ..fresh() }),
            _ => {}
        }
    }
}

fn fresh() -> State {
    State { content: vec![b'0'; 300], permissions: NEW.permissions, uid: NEW.uid, gid: NEW.gid, time: None }
}

/// An operation that is performed once.
type Pending = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// The file when the operations begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A container from the beginning, without an open writer.
    Container,
    /// An object whose first writer has ended.
    Closed,
    /// An object whose first writer has it open, with data that is not written yet.
    Open,
    /// The same, and another process has created the container.
    WithContainer,
}

/// A store with the file `f`, the mount that is interrupted, and the file of the first writer.
struct Scene {
    store: MemoryStore,
    a: Arc<LogFs>,
    first: Option<Box<dyn WritableFile>>,
    model: Model,
}

fn create(fs: &LogFs, name: &[u8]) -> Result<Box<dyn WritableFile>> {
    Ok(fs.create(&Context::for_process(1), fs.root(), name, NEW, OpenMode::READ_WRITE)?.1)
}

fn node(fs: &LogFs, name: &[u8]) -> Result<NodeId> {
    let found = fs.lookup(&Context::OWN, fs.root(), name)?;
    found
        .map(|found| found.into_attributes().node)
        .ok_or_else(|| quell_vfs::Error::new(ErrorKind::NotFound, "find", name))
}

// False if the stores of the tests on this thread cannot exclude the replacement in a rename.
thread_local!(static HAS_RENAME_FLAGS: Cell<bool> = const { Cell::new(true) });
// False if an open file keeps a link count of 1 in these stores when it is removed, as on NFS.
thread_local!(static COUNTS_REMOVED_NAMES: Cell<bool> = const { Cell::new(true) });

impl Scene {
    fn new(form: Form, has_other: bool, hook: impl Fn() + Send + Sync + 'static) -> Scene {
        let store = MemoryStore::new();
        store.set_rename_flags(HAS_RENAME_FLAGS.get());
        store.set_removed_names_counted(COUNTS_REMOVED_NAMES.get());
        let dir = CountingDir::<dyn WritableDir>::with_hook(store.root(), move |_, _| hook());
        let choices = Choices { begins_as_object: form != Form::Container, ..choices() };
        let a = Arc::new(mounted::mount(vec![Arc::new(dir)], ROOT, choices));
        let file = create(&a, b"f").unwrap();
        file.write_at(&[b'0'; 300], 0).unwrap();
        let mut model = Model { f: Some(fresh()), g: None, first: Some(b'f') };
        let first = match form {
            Form::Container | Form::Closed => {
                file.close().unwrap();
                model.first = None;
                None
            }
            Form::Open => Some(file),
            Form::WithContainer => {
                let b = mount(&store);
                perform(&b, None, Act::Write(290)).unwrap();
                model.f.as_mut().expect("it is there").content[290..].fill(b'w');
                Some(file)
            }
        };
        if has_other {
            let b = mount(&store);
            let file = create(&b, b"g").unwrap();
            file.write_at(&[b'g'; 50], 0).unwrap();
            file.close().unwrap();
            model.g = Some(State { content: vec![b'g'; 50], ..fresh() });
        }
        Scene { store, a, first, model }
    }

    /// Reads both files through a new mount.
    fn found(&self) -> std::result::Result<Model, String> {
        let fs = mount(&self.store);
        let state = |name: &[u8]| -> Result<Option<State>> {
            let Some(found) = fs.lookup(&Context::OWN, fs.root(), name)? else { return Ok(None) };
            let node = found.into_attributes().node;
            let file = fs.open_as(&Context::OWN, node, OpenMode::READ)?;
            let mut content = vec![0xAA; 4 << 20];
            let length = file.read_at(&mut content, 0)?;
            content.truncate(length);
            let attributes = fs.attributes(&Context::OWN, node)?;
            assert_eq!(attributes.size_bytes, length as u64, "size and content of {}", name.escape_ascii());
            let (permissions, uid, gid) = (attributes.permissions, attributes.uid, attributes.gid);
            Ok(Some(State { content, permissions, uid, gid, time: Some(attributes.modified.seconds) }))
        };
        let read = |name: &[u8]| state(name).map_err(|error| format!("{}: {error}", name.escape_ascii()));
        Ok(Model { f: read(b"f")?, g: read(b"g")?, first: None })
    }

    /// Fails unless the files are in one of the states `expected`.
    fn check(&self, expected: &[Model], case: &dyn Debug) {
        let same = |found: &Option<State>, expected: &Option<State>| match (found, expected) {
            (Some(found), Some(expected)) => {
                let time = expected.time.and(found.time);
                State { time, ..found.clone() } == *expected
            }
            (found, expected) => found == expected,
        };
        let found = self.found().unwrap_or_else(|error| panic!("{case:?}: {error}"));
        let is_right = expected.iter().any(|model| same(&found.f, &model.f) && same(&found.g, &model.g));
        let short = |model: &Model| {
            let one = |state: &Option<State>| {
                let state = state.as_ref()?;
                let runs = state.content.chunk_by(|a, b| a == b);
                let runs: Vec<_> = runs.map(|run| format!("{} x {}", run.len(), run[0])).collect();
                Some((runs.join(" "), format!("{:o}", state.permissions), state.uid, state.gid, state.time))
            };
            format!("f {:?}, g {:?}", one(&model.f), one(&model.g))
        };
        let expected: Vec<_> = expected.iter().map(short).collect();
        assert!(is_right, "{case:?}:\nfound    {}\nexpected {expected:#?}", short(&found));
    }
}

/// Performs an operation of a mount. `first` is the file of the first writer.
fn perform(fs: &LogFs, first: Option<&dyn WritableFile>, act: Act) -> Result<()> {
    let change = |change: Change| fs.change(&Context::OWN, node(fs, b"f")?, &change).map(drop);
    let none = Change::default();
    let opened = || fs.open_as(&Context::for_process(7), node(fs, b"f")?, OpenMode::READ_WRITE);
    match act {
        Act::FirstWrite(bytes) | Act::FirstSync(bytes) => {
            let Some(first) = first else { return Ok(()) };
            first.write_at(&vec![b'1'; bytes], 300)?;
            if let Act::FirstSync(_) = act {
                first.sync()?;
            }
            first.publish()
        }
        Act::Write(offset) => {
            let file = opened()?;
            file.write_at(&[b'w'; 10], offset)?;
            file.close()
        }
        Act::Truncate(size) => change(Change { size_bytes: Some(size), ..none }),
        Act::Punch => {
            let file = opened()?;
            file.write_zeros(10, 10)?;
            file.close()
        }
        Act::Chmod(mode) => change(Change { permissions: Some(mode), ..none }),
        Act::Chgrp(gid) => change(Change { gid: Some(gid), ..none }),
        Act::Chown(uid) => change(Change { uid: Some(uid), ..none }),
        Act::SetTime(seconds) => change(Change { modified: Some(Time { seconds, nanoseconds: 0 }), ..none }),
        Act::Lock => {
            let file = opened()?;
            let (owner, scope) = (LockOwner(5), LockScope::WholeFile);
            let locks = file.locks()?;
            locks.try_lock(owner, scope, LockMode::Exclusive)?;
            locks.unlock(owner, scope)?;
            file.close()
        }
        Act::Remove => fs.remove(&Context::OWN, fs.root(), b"f"),
        Act::RenameAway => fs.rename(&Context::OWN, fs.root(), b"f", fs.root(), b"g", Rename::Keep),
        Act::RenameOver => fs.rename(&Context::OWN, fs.root(), b"g", fs.root(), b"f", Rename::Replace),
        Act::Create => create(fs, b"f")?.close(),
        Act::Flatten => fs.flatten(node(fs, b"f")?).map(drop),
        Act::Read => {
            let file = fs.open_as(&Context::OWN, node(fs, b"f")?, OpenMode::READ)?;
            file.read_at(&mut [0; 400], 0).map(drop)
        }
    }
}

const TIME: i64 = 77;

/// The operations of the mount that is interrupted.
const INTERRUPTED: &[Act] = &[
    Act::FirstWrite(100),
    Act::FirstSync(100),
    Act::FirstWrite(2 << 20),
    Act::Write(600),
    Act::Truncate(0),
    Act::Truncate(150),
    Act::Punch,
    Act::Chmod(0o600),
    Act::Chmod(0o666),
    Act::Chgrp(77),
    Act::Chown(55),
    Act::SetTime(TIME),
    Act::Lock,
    Act::Remove,
    Act::RenameAway,
    Act::RenameOver,
    Act::Flatten,
];

/// The operations of the other mount.
const OTHERS: &[Act] = &[
    Act::Write(700),
    Act::Truncate(0),
    Act::Chmod(0o640),
    Act::Chgrp(88),
    Act::Chown(66),
    Act::SetTime(99),
    Act::Remove,
    Act::RenameAway,
    Act::RenameOver,
    Act::Create,
    Act::Read,
];

const FORMS: [Form; 3] = [Form::Closed, Form::Open, Form::WithContainer];

/// Returns the forms of the file and the operations that have a meaning for it.
fn cases() -> impl Iterator<Item = (Form, Act)> {
    FORMS.into_iter().flat_map(|form| {
        let is_first = |act: &Act| matches!(act, Act::FirstWrite(_) | Act::FirstSync(_));
        INTERRUPTED
            .iter()
            .filter(move |act| form != Form::Closed || !is_first(act))
            .map(move |act| (form, *act))
    })
}

/// Applies the operations that succeeded, in this order.
fn after(begin: &Model, acts: &[(Act, bool)]) -> Model {
    let mut model = begin.clone();
    acts.iter().filter(|(_, is_done)| *is_done).for_each(|(act, _)| model.apply(*act));
    model
}

/// Returns true if an operation has failed because the other one has removed, renamed or created
/// the file.
fn is_absent(error: &quell_vfs::Error) -> bool {
    matches!(error.kind, ErrorKind::NotFound | ErrorKind::Stale | ErrorKind::Exists)
}

/// Returns a hook that performs the pending operation, on another thread, before the operation on
/// the store for which `left` is 0. `usize::MAX`: it is not performed.
fn interrupting(pending: &Pending, left: &Arc<AtomicUsize>) -> impl Fn() + Send + Sync + 'static {
    let (pending, left) = (Arc::clone(pending), Arc::clone(left));
    move || {
        if left.load(Ordering::SeqCst) != usize::MAX && left.fetch_sub(1, Ordering::SeqCst) == 0 {
            left.store(usize::MAX, Ordering::SeqCst);
            let act = pending.lock().unwrap().take().expect("it is done once");
            std::thread::spawn(act).join().unwrap();
        }
    }
}

/// Performs `act`, interrupted at each of its operations on the store by `other`, on another mount.
fn perform_at_the_same_time(form: Form, act: Act, other: Act, has_other: bool) {
    let (mut at, mut was_done) = (0, true);
    while was_done {
        // The operation of the other mount, and its result.
        let pending: Pending = Arc::default();
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let scene = Scene::new(form, has_other, interrupting(&pending, &left));
        let b = Arc::new(mount(&scene.store));
        let result: Arc<Mutex<Option<Result<()>>>> = Arc::default();
        let (fs, reported, second) = (Arc::clone(&b), Arc::clone(&result), other);
        *pending.lock().unwrap() = Some(Box::new(move || {
            *reported.lock().unwrap() = Some(perform(&fs, None, second));
        }));
        left.store(at, Ordering::SeqCst);
        let first = perform(&scene.a, scene.first.as_deref(), act);
        left.store(usize::MAX, Ordering::SeqCst);
        if let Some(file) = &scene.first {
            let _ = file.close(); // fails if the file was removed
        }
        let done = result.lock().unwrap().take();
        let case = (form, act, other, has_other, at);
        was_done = done.is_some();
        // Only one mount at a time changes owners as root.
        let is_owner = |act: Act| matches!(act, Act::Chown(_) | Act::Chgrp(_));
        // While root changes the owner of a file, a change of its permissions can fail.
        let is_mode = matches!((act, other), (Act::Chown(_), Act::Chmod(_)));
        let may_be_busy = is_mode || is_owner(other) && (is_owner(act) || act == Act::Lock);
        let is_expected =
            |error: &quell_vfs::Error| is_absent(error) || may_be_busy && error.kind == ErrorKind::Busy;
        let second = match &done {
            Some(Err(error)) => {
                assert!(is_expected(error), "{case:?}: {error}");
                false
            }
            Some(Ok(())) => true,
            None => false,
        };
        if let Err(error) = &first {
            assert!(is_expected(error), "{case:?}: {error}");
        }
        let (one, two) = ((act, first.is_ok()), (other, second));
        let mut orders = vec![after(&scene.model, &[one, two]), after(&scene.model, &[two, one])];
        // Data that the first writer has collected may count as written later.
        if matches!(form, Form::Open | Form::WithContainer) {
            let mut begin = scene.model.clone();
            begin.f.as_mut().expect("it is there").content.clear();
            let mut late = after(&begin, &[two]);
            if let Some(state) = late.first() {
                state.content.resize(state.content.len().max(300), 0);
                state.content[..300].fill(b'0');
                state.time = None;
            }
            orders.push(after(&late, &[one]));
        }
        scene.check(&orders, &case);
        at += 1;
        assert!(at < 200, "{case:?}");
    }
}

#[test]
fn two_operations_of_two_mounts_at_the_same_time_are_performed_one_after_the_other() {
    for (form, act) in cases() {
        // Zeros extend a file that is truncated meanwhile, see several_mounts.rs.
        for other in OTHERS.iter().filter(|other| act != Act::Punch || **other != Act::Truncate(0)) {
            [false, true]
                .into_iter()
                .for_each(|has_other| perform_at_the_same_time(form, act, *other, has_other));
        }
    }
}

/// Root replaces `access` of a container when it changes the owner.
#[test]
fn changes_of_attributes_of_a_container_at_the_same_time_are_kept() {
    const CHANGES: [Act; 3] = [Act::Chmod(0o640), Act::Chown(66), Act::Chgrp(88)];
    for act in CHANGES {
        for other in CHANGES.into_iter().filter(|other| *other != act) {
            perform_at_the_same_time(Form::Container, act, other, false);
        }
    }
}

// True on the thread whose operations on the store fail.
thread_local!(static IS_FAILING: Cell<bool> = const { Cell::new(false) });

/// Calls `act` while operations of this thread on the store fail as `refusal` decides by their
/// number. Returns the result, and whether an operation failed.
fn failing<T>(
    store: &MemoryStore,
    refusal: impl Fn(usize) -> Option<i32> + Send + 'static,
    act: impl FnOnce() -> T,
) -> (T, bool) {
    let (count, failed) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&failed);
    store.fail(move |_| {
        if !IS_FAILING.get() {
            return None;
        }
        let refused = refusal(count.fetch_add(1, Ordering::SeqCst));
        seen.fetch_add(usize::from(refused.is_some()), Ordering::SeqCst);
        refused
    });
    IS_FAILING.set(true);
    let result = act();
    IS_FAILING.set(false);
    store.fail_nothing();
    (result, failed.load(Ordering::SeqCst) > 0)
}

#[test]
fn an_operation_that_is_killed_is_performed_or_not_and_another_mount_continues() {
    for (form, act) in cases() {
        for other in OTHERS {
            let (mut at, mut was_killed) = (0, true);
            while was_killed {
                let scene = Scene::new(form, act == Act::RenameOver || *other == Act::RenameOver, || {});
                let first = scene.first.as_deref();
                let killed = failing(
                    &scene.store,
                    move |number| (number >= at).then_some(errno::EIO),
                    || perform(&scene.a, first, act),
                );
                was_killed = killed.1;
                let case = (form, act, *other, at);
                let b = mount(&scene.store);
                let second = perform(&b, None, *other);
                if let Err(error) = &second {
                    // The memory store keeps the lock, because the killed process still exists.
                    let is_locked = act == Act::Lock && error.kind == ErrorKind::Busy;
                    // Root gives a file to a third user, and changes its group and permissions,
                    // only after `meta`, which may belong to the second one already, and the object
                    // have the same owner again.
                    let is_half_given = matches!(
                        (act, other),
                        (Act::Chown(_), Act::Chown(_) | Act::Chgrp(_) | Act::Chmod(_))
                    ) && error.errno() == errno::EPERM;
                    assert!(is_absent(error) || is_locked || is_half_given, "{case:?}: {error}");
                }
                let two = (*other, second.is_ok());
                let mut expected = vec![after(&scene.model, &[(act, true), two])];
                if killed.0.is_err() {
                    expected.push(after(&scene.model, &[two]));
                }
                // Data that the first writer had collected is lost, if it was not written.
                let is_published = matches!(act, Act::FirstWrite(_) | Act::FirstSync(_)) && killed.0.is_ok();
                if form != Form::Closed && !is_published {
                    let mut without = scene.model.clone();
                    let lost = match form {
                        Form::WithContainer => [vec![0; 290], vec![b'w'; 10]].concat(),
                        _ => Vec::new(),
                    };
                    without.f.as_mut().expect("it is there").content = lost;
                    expected.push(after(&without, &[two]));
                    expected.push(after(&without, &[(act, true), two]));
                }
                scene.check(&expected, &case);
                // The killed process closes nothing.
                let Scene { store, a, first, model } = scene;
                let _killed = ManuallyDrop::new((a, first));
                drop((store, model));
                at += 1;
                assert!(at < 400, "{case:?}");
            }
        }
    }
}

#[test]
fn an_operation_that_fails_once_for_lack_of_space_is_performed_by_the_next_attempt() {
    for (form, act) in cases() {
        let (mut at, mut has_failed) = (0, true);
        while has_failed {
            let scene = Scene::new(form, act == Act::RenameOver, || {});
            let first = scene.first.as_deref();
            let (result, failed) = failing(
                &scene.store,
                move |number| (number == at).then_some(errno::ENOSPC),
                || perform(&scene.a, first, act),
            );
            has_failed = failed;
            let case = (form, act, at);
            let done = match result {
                Ok(()) => Ok(()),
                Err(_) => perform(&scene.a, first, act),
            };
            if let Err(error) = &done {
                // The first attempt was performed.
                assert!(is_absent(error), "{case:?}: {error}");
            }
            if let Some(first) = first {
                let _ = first.close();
            }
            scene.check(&[after(&scene.model, &[(act, true)])], &case);
            at += 1;
            assert!(at < 400, "{case:?}");
        }
    }
}

/// Objects are named and renamed by link(2) and unlink(2) on such file systems.
#[test]
fn renames_without_flags_lose_no_file() {
    HAS_RENAME_FLAGS.set(false);
    const ACTS: [Act; 4] = [Act::Write(600), Act::Remove, Act::RenameAway, Act::RenameOver];
    for form in FORMS {
        for (act, other) in ACTS.into_iter().flat_map(|act| ACTS.map(|other| (act, other))) {
            for has_other in [false, true] {
                perform_at_the_same_time(form, act, other, has_other);
            }
        }
    }
    HAS_RENAME_FLAGS.set(true);
}

#[test]
fn a_killed_rename_without_flags_leaves_a_name_that_can_be_removed() {
    HAS_RENAME_FLAGS.set(false);
    let mut had_both = 0;
    for form in FORMS {
        let (mut at, mut was_killed) = (0, true);
        while was_killed {
            let scene = Scene::new(form, false, || {});
            let first = scene.first.as_deref();
            let killed = failing(
                &scene.store,
                move |number| (number >= at).then_some(errno::EIO),
                || perform(&scene.a, first, Act::RenameAway),
            );
            was_killed = killed.1;
            let case = (form, at);
            let found = scene.found().unwrap_or_else(|error| panic!("{case:?}: {error}"));
            let has_both = found.f.is_some() && found.g.is_some();
            had_both += usize::from(has_both);
            let content = found.f.clone().or(found.g).map(|state| state.content);
            let b = mount(&scene.store);
            if has_both {
                // Two names of one file are not changed.
                b.rename(&Context::OWN, b.root(), b"f", b.root(), b"g", Rename::Replace).unwrap();
                perform(&b, None, Act::Remove).unwrap();
            } else if found.f.is_some() {
                perform(&b, None, Act::RenameAway).unwrap();
            }
            let after = scene.found().unwrap_or_else(|error| panic!("{case:?}: {error}"));
            assert_eq!(after.f, None, "{case:?}");
            assert_eq!(after.g.map(|state| state.content), content, "{case:?}");
            let Scene { store, a, first, model } = scene;
            let _killed = ManuallyDrop::new((a, first));
            drop((store, model));
            at += 1;
        }
    }
    assert!(had_both > 0, "no kill left both names");
    HAS_RENAME_FLAGS.set(true);
}

#[test]
fn the_end_of_the_first_writer_does_not_change_the_modification_time() {
    // An empty file, and a file of one full frame, get a mark of the end.
    for bytes in [0, 1 << 20] {
        let store = MemoryStore::new();
        let (fs, other) = (mount(&store), mount(&store));
        let file = create(&fs, b"f").unwrap();
        file.write_at(&vec![1; bytes], 0).unwrap();
        let found = node(&fs, b"f").unwrap();
        let modified = |fs: &LogFs, node| fs.attributes(&Context::OWN, node).unwrap().modified;
        let before = modified(&fs, found);
        file.close().unwrap();
        drop(file);
        let there = node(&other, b"f").unwrap();
        assert_eq!([modified(&fs, found), modified(&other, there)], [before; 2], "{bytes} bytes");
    }
}

/// The use of a file that is being replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    LookUp,
    Read,
    Write,
    Truncate,
}

/// Calls `before`, and then `act` while a mount replaces `f` up to three times: before operation
/// `at` of `act` on the store, and then after each `distance` operations. Returns whether `f` was
/// replaced, and the result.
fn while_replaced<B, T>(
    (form, is_same_mount): (Form, bool),
    (at, distance): (usize, usize),
    before: impl FnOnce(&Scene) -> B,
    act: impl FnOnce(&Scene, B) -> T,
) -> (bool, T) {
    const REPLACEMENTS: usize = 3;
    let replacing: Arc<Mutex<Option<Arc<LogFs>>>> = Arc::default();
    let (count, done) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let (hook_replacing, hook_done) = (Arc::clone(&replacing), Arc::clone(&done));
    let scene = Scene::new(form, false, move || {
        // Not for the operations of the replacement itself.
        let Some(fs) = hook_replacing.lock().unwrap().take() else { return };
        let number = count.fetch_add(1, Ordering::SeqCst);
        let is_due = number >= at && (number - at).is_multiple_of(distance);
        if is_due && hook_done.fetch_add(1, Ordering::SeqCst) < REPLACEMENTS {
            let fs = Arc::clone(&fs);
            let act = move || {
                create(&fs, b"g").unwrap().close().unwrap();
                perform(&fs, None, Act::RenameOver).unwrap();
            };
            std::thread::spawn(act).join().unwrap();
        }
        *hook_replacing.lock().unwrap() = Some(fs);
    });
    let prepared = before(&scene);
    let choices = Choices { begins_as_object: form != Form::Container, ..choices() };
    *replacing.lock().unwrap() = Some(match is_same_mount {
        true => Arc::clone(&scene.a),
        false => Arc::new(mounted::mount(vec![scene.store.root()], ROOT, choices)),
    });
    let result = act(&scene, prepared);
    *replacing.lock().unwrap() = None;
    (done.load(Ordering::SeqCst) > 0, result)
}

/// Looks `f` up or opens it, by its name or by the node that was looked up before, while it is
/// replaced (see [`while_replaced`]).
fn use_while_replaced(
    (form, usage, is_known, is_same_mount): (Form, Use, bool, bool),
    times: (usize, usize),
) -> (bool, Result<()>) {
    let mode = match usage {
        Use::Truncate => OpenMode { truncate: true, ..OpenMode::READ_WRITE },
        Use::Write => OpenMode::READ_WRITE,
        Use::LookUp | Use::Read => OpenMode::READ,
    };
    let look_up = |scene: &Scene| is_known.then(|| node(&scene.a, b"f").unwrap());
    while_replaced((form, is_same_mount), times, look_up, |scene, known| {
        known.map_or_else(|| node(&scene.a, b"f"), Ok).and_then(|node| match usage {
            Use::LookUp => scene.a.attributes(&Context::OWN, node).map(drop),
            // The object is empty if it is one of those that replace `f`.
            Use::Read if form == Form::Closed => {
                scene.a.open_as(&Context::OWN, node, mode)?.read_at(&mut [0; 10], 0).map(drop)
            }
            _ => scene.a.open_as(&Context::for_process(9), node, mode).map(drop),
        })
    })
}

/// A rename replaces `f` atomically, so the name exists at any time.
#[test]
fn a_file_is_found_and_opened_while_it_is_replaced_again_and_again() {
    for form in [Form::Closed, Form::Container] {
        for usage in [Use::LookUp, Use::Read, Use::Write, Use::Truncate] {
            for (is_known, is_same_mount) in [(false, false), (true, false), (false, true), (true, true)] {
                let (mut at, mut was_done) = (0, true);
                while was_done {
                    was_done = false;
                    for distance in [1, 2, 3, 5] {
                        let case = (form, usage, is_known, is_same_mount);
                        let (done, used) = use_while_replaced(case, (at, distance));
                        assert!(used.is_ok(), "{case:?}, operation {at}, distance {distance}: {used:?}");
                        was_done |= done;
                    }
                    at += 1;
                    assert!(at < 400, "{form:?}, {usage:?}");
                }
            }
        }
    }
}

/// Uses an open file in all ways that need a container or read the file, and returns its content.
fn use_descriptor(fs: &LogFs, node: NodeId, file: &dyn WritableFile) -> Result<Vec<u8>> {
    file.write_at(b"more", 300)?;
    file.sync()?;
    file.write_zeros(10, 10)?;
    fs.change(&Context::OWN, node, &Change { size_bytes: Some(302), ..Change::default() })?;
    let (owner, scope) = (LockOwner(5), LockScope::WholeFile);
    let locks = file.locks()?;
    locks.try_lock(owner, scope, LockMode::Exclusive)?;
    locks.unlock(owner, scope)?;
    assert_eq!(file.attributes()?.size_bytes, 302);
    let mut content = vec![0xAA; 1000];
    let length = file.read_at(&mut content, 0)?;
    content.truncate(length);
    Ok(content)
}

/// NFS renames an open file instead of removing it, and its link count remains 1.
#[test]
fn a_removed_object_with_a_link_count_leaves_no_container() {
    let store = MemoryStore::new();
    store.set_removed_names_counted(false);
    let fs = mount(&store);
    let file = create(&fs, b"f").unwrap();
    file.write_at(&[b'0'; 300], 0).unwrap();
    file.publish().unwrap();
    let node = node(&fs, b"f").unwrap();
    fs.remove(&Context::OWN, fs.root(), b"f").unwrap();
    assert_eq!(use_descriptor(&fs, node, &*file).unwrap(), used_content());
    file.close().unwrap();
    drop(file);
    fs.forget(node, 2);
    assert_nothing_left(&store, &"removed");
}

/// Checks that no container is left outside of the directories of the mount.
#[track_caller]
fn assert_nothing_left(store: &MemoryStore, case: &dyn Debug) {
    let own = store.root().open_writable_dir(b".quell").unwrap();
    for area in [&b"new"[..], b"parts", b"trash"] {
        let left = own.open_writable_dir(area).unwrap().names().unwrap();
        assert!(left.is_empty(), "{case:?}: {left:?} in {}", area.escape_ascii());
    }
}

/// The content of a file of 300 bytes `0` after `use_descriptor`.
fn used_content() -> Vec<u8> {
    [vec![b'0'; 10], vec![0; 10], vec![b'0'; 280], b"mo".to_vec()].concat()
}

/// A descriptor keeps its file, as on a local file system: an object gets a container also after
/// it has lost its name, and nothing is left of both when the descriptor is closed. If another
/// mount replaces the object while its container is used, it deletes the container.
#[test]
fn a_descriptor_keeps_an_object_that_is_replaced() {
    let expected = used_content();
    // The other mount is on another node, so its removals are counted.
    let cases = [Form::Closed, Form::Open].into_iter().flat_map(|form| {
        [(false, true), (true, true), (true, false)]
            .map(|(is_same_mount, counts)| (form, is_same_mount, counts))
    });
    for (form, is_same_mount, counts) in cases {
        COUNTS_REMOVED_NAMES.set(counts);
        let (mut at, mut was_done) = (0, true);
        while was_done {
            let case = (form, is_same_mount, counts, at);
            let open = |scene: &Scene| {
                let node = node(&scene.a, b"f").unwrap();
                let mode = OpenMode::READ_WRITE;
                (node, scene.a.open_as(&Context::for_process(9), node, mode).unwrap())
            };
            let act = |scene: &Scene, (node, file): (NodeId, Box<dyn WritableFile>)| {
                let used = use_descriptor(&scene.a, node, &*file);
                let closed = file.close();
                drop(file);
                scene.a.forget(node, 1);
                (used.and_then(|content| closed.map(|()| content)), scene.store.clone())
            };
            let (done, (content, store)) = while_replaced((form, is_same_mount), (at, 1000), open, act);
            match content {
                Ok(content) => assert!(content == expected, "{case:?}: {}", content.escape_ascii()),
                Err(error) => {
                    let may_fail = !is_same_mount && at > 0 && is_absent(&error);
                    assert!(may_fail, "{case:?}: {error}");
                }
            }
            if done && is_same_mount {
                assert_nothing_left(&store, &case);
            }
            was_done = done;
            at += 1;
            assert!(at < 400, "{case:?}");
        }
    }
    COUNTS_REMOVED_NAMES.set(true);
}

/// The removal looks for a container, which another thread of the mount may create at the same
/// time.
#[test]
fn a_descriptor_that_is_used_while_the_object_is_removed_leaves_no_container() {
    for (form, counts) in
        [Form::Closed, Form::Open].into_iter().flat_map(|form| [(form, true), (form, false)])
    {
        COUNTS_REMOVED_NAMES.set(counts);
        let (mut at, mut was_done) = (0, true);
        while was_done {
            let case = (form, counts, at);
            let pending: Pending = Arc::default();
            let left = Arc::new(AtomicUsize::new(usize::MAX));
            let scene = Scene::new(form, false, interrupting(&pending, &left));
            let node = node(&scene.a, b"f").unwrap();
            let mode = OpenMode::READ_WRITE;
            let file: Arc<dyn WritableFile> =
                Arc::from(scene.a.open_as(&Context::for_process(9), node, mode).unwrap());
            let used: Arc<Mutex<Option<Result<Vec<u8>>>>> = Arc::default();
            let (fs, open, content) = (Arc::clone(&scene.a), Arc::clone(&file), Arc::clone(&used));
            *pending.lock().unwrap() = Some(Box::new(move || {
                *content.lock().unwrap() = Some(use_descriptor(&fs, node, &*open));
            }));
            left.store(at, Ordering::SeqCst);
            perform(&scene.a, None, Act::Remove).unwrap();
            left.store(usize::MAX, Ordering::SeqCst);
            let done = used.lock().unwrap().take();
            was_done = done.is_some();
            if let Some(content) = done {
                let content = content.unwrap_or_else(|error| panic!("{case:?}: {error}"));
                assert!(content == used_content(), "{case:?}: {}", content.escape_ascii());
            }
            pending.lock().unwrap().take();
            file.close().unwrap();
            drop(file);
            scene.a.forget(node, 1);
            let store = scene.store.clone();
            drop(scene);
            assert_nothing_left(&store, &case);
            at += 1;
            assert!(at < 400, "{case:?}");
        }
    }
    COUNTS_REMOVED_NAMES.set(true);
}

/// Another mount may have seen the end of the object, and have recorded it in the container.
#[test]
fn an_object_is_not_continued_after_its_end_was_written_although_this_failed() {
    for is_synced in [false, true] {
        let store = MemoryStore::new();
        let (fs, other) = (mount(&store), mount(&store));
        let file = create(&fs, b"f").unwrap();
        // A change of the time ends an empty object.
        store.fail(|operation| (operation.verb == "write back").then_some(errno::EIO));
        let failed = perform(&fs, None, Act::SetTime(TIME)).unwrap_err();
        assert_eq!(failed.errno(), errno::EIO);
        store.fail_nothing();
        if is_synced {
            file.sync().unwrap();
        }
        perform(&other, None, Act::Lock).unwrap(); // creates the container
        file.write_at(&[b'1'; 100], 0).unwrap();
        file.close().unwrap();
        let mut content = vec![0; 200];
        let opened = other.open_as(&Context::OWN, node(&other, b"f").unwrap(), OpenMode::READ).unwrap();
        let length = opened.read_at(&mut content, 0).unwrap();
        assert_eq!(&content[..length], [b'1'; 100], "synced: {is_synced}");
    }
}
