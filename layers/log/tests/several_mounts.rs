//! Several mounts of the same stores that work on the same name at once: directories that are made, removed, renamed and filled. Two mounts are interleaved at every operation on the store.

// `own` is for mounts of real directories.
#[allow(dead_code)]
mod mounted;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mounted::MEMORY;
use quell_backing::WritableDir;
use quell_fs::{ErrorKind, FileSystem, New, NodeId, Open, Rename, Result, Writable};
use quell_log::{Choices, LogFs};
use quell_testkit::{CountingDir, MemoryStore};

const NEW: New = New { permissions: 0o755, uid: MEMORY.0, gid: MEMORY.1 };

fn choices(buffer_bytes: usize, flatten_bytes: u64) -> Choices {
    Choices { buffer_bytes, index_threads: 2, flatten_bytes, flattens_later: false }
}

fn roots(stores: &[MemoryStore]) -> Vec<Arc<dyn WritableDir>> {
    stores.iter().map(|store| store.root() as Arc<dyn WritableDir>).collect()
}

fn mount(stores: &[MemoryStore]) -> LogFs {
    mounted::mount(roots(stores), MEMORY, choices(1 << 16, 0))
}

fn stores(count: usize) -> Vec<MemoryStore> {
    (0..count).map(|_| MemoryStore::new()).collect()
}

fn by(process: u32) -> Open {
    Open { process, ..Open::READ_WRITE }
}

fn node(fs: &LogFs, name: &[u8]) -> NodeId {
    fs.lookup(fs.root(), name).unwrap().expect("it is there").node
}

/// The mount of a process whose every operation on the stores is announced.
fn hooked(stores: &[MemoryStore], hook: impl Fn() + Send + Sync + 'static) -> LogFs {
    let hook = Arc::new(hook);
    let roots = stores.iter().map(|store| {
        let hook = Arc::clone(&hook);
        let dir = CountingDir::<dyn WritableDir>::with_hook(store.root(), move |_, _| hook());
        Arc::new(dir) as Arc<dyn WritableDir>
    });
    mounted::mount(roots.collect(), MEMORY, choices(1 << 16, 0))
}

/// What one mount does while another one is at its `at`th operation on the stores; does nothing before it is armed.
struct Between {
    at: usize,
    count: AtomicUsize,
    is_armed: AtomicBool,
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Between {
    fn new(at: usize) -> Arc<Between> {
        let (count, is_armed) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Between { at, count, is_armed, act: Mutex::new(None) })
    }

    fn arm(&self, act: impl FnOnce() + Send + 'static) {
        *self.act.lock().unwrap() = Some(Box::new(act));
        self.is_armed.store(true, Ordering::SeqCst);
    }

    fn pass(&self) {
        if self.is_armed.load(Ordering::SeqCst) && self.count.fetch_add(1, Ordering::SeqCst) == self.at {
            let act = self.act.lock().unwrap().take();
            act.expect("it is done once")();
        }
    }

    /// Whether the operation was long enough for it.
    fn disarm(&self) -> bool {
        self.is_armed.store(false, Ordering::SeqCst);
        self.act.lock().unwrap().is_none()
    }
}

/// Calls `run` for each operation on the stores during which another mount may act, until there are no more.
fn at_every_operation(mut run: impl FnMut(Arc<Between>) -> bool) {
    let count = (0..1000).take_while(|at| run(Between::new(*at))).count();
    assert!((3..1000).contains(&count), "{count} operations");
}

// --- directories --------------------------------------------------------------------------------

/// Every store has the directory `name`.
fn is_everywhere(stores: &[MemoryStore], name: &[u8]) -> bool {
    stores.iter().all(|store| store.root().stat(name).is_ok())
}

fn make_files(fs: &LogFs, dir: NodeId) -> Vec<(Vec<u8>, Result<()>)> {
    let one = |number: usize| {
        let name = format!("file{number}").into_bytes();
        let made = fs.create(dir, &name, NEW, by(9)).map(drop);
        (name, made)
    };
    (0..6).map(one).collect()
}

#[test]
fn of_two_mounts_that_make_a_directory_one_makes_it_and_it_stays() {
    for count in [1, 2] {
        at_every_operation(|between| {
            let stores = stores(count);
            let passes = Arc::clone(&between);
            let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
            let told = Arc::new(Mutex::new(None));
            let (other, tells) = (Arc::clone(&b), Arc::clone(&told));
            between.arm(move || {
                let made = other.make_dir(other.root(), b"dir", NEW);
                let files = made.as_ref().ok().map(|dir| make_files(&other, dir.node));
                *tells.lock().unwrap() = Some((made.map(drop), files));
            });
            let made = a.make_dir(a.root(), b"dir", NEW).map(drop);
            let was_done = between.disarm();
            let at = between.at;
            let fresh = mount(&stores);
            let dir = node(&fresh, b"dir");
            if let Some((other, files)) = told.lock().unwrap().take() {
                assert_ne!(made.is_ok(), other.is_ok(), "{count} {at}: {made:?} {other:?}");
                let lost = made.and(other).unwrap_err();
                assert_eq!(lost.kind, ErrorKind::Exists, "{count} {at}");
                for (name, made) in files.unwrap_or_default() {
                    made.unwrap();
                    assert!(fresh.lookup(dir, &name).unwrap().is_some(), "{count} {at}");
                }
            }
            assert!(make_files(&fresh, dir).iter().all(|(_, made)| {
                made.as_ref().is_ok_and(|()| true)
                    || made.as_ref().is_err_and(|error| error.kind == ErrorKind::Exists)
            }));
            assert!(is_everywhere(&stores, b"dir"), "{count} {at}");
            was_done
        });
    }
}

#[test]
fn a_directory_that_is_filled_while_it_is_removed_stays_in_every_store() {
    for count in [1, 2, 3] {
        for knows_it in [false, true] {
            at_every_operation(|between| {
                let stores = stores(count);
                let passes = Arc::clone(&between);
                let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
                a.make_dir(a.root(), b"dir", NEW).unwrap();
                if knows_it {
                    let dir = node(&b, b"dir");
                    drop(b.create(dir, b"x", NEW, by(1)).unwrap());
                    b.remove(dir, b"x").unwrap();
                }
                let told = Arc::new(Mutex::new(Vec::new()));
                let (other, tells) = (Arc::clone(&b), Arc::clone(&told));
                between.arm(move || {
                    if let Ok(Some(dir)) = other.lookup(other.root(), b"dir") {
                        *tells.lock().unwrap() = make_files(&other, dir.node);
                    }
                });
                let removed = a.remove_dir(a.root(), b"dir");
                let was_done = between.disarm();
                let at = between.at;
                let files = std::mem::take(&mut *told.lock().unwrap());
                let made: Vec<_> = files.iter().filter(|(_, made)| made.is_ok()).collect();
                let fresh = mount(&stores);
                let dir = fresh.lookup(fresh.root(), b"dir").unwrap();
                assert_eq!(removed.is_ok(), dir.is_none(), "{count} {knows_it} {at}");
                assert_eq!(
                    removed.is_ok(),
                    made.is_empty(),
                    "{count} {knows_it} {at}: {removed:?} {files:?}"
                );
                if let Some(dir) = dir {
                    assert_eq!(removed.unwrap_err().kind, ErrorKind::NotEmpty, "{count} {knows_it} {at}");
                    assert!(is_everywhere(&stores, b"dir"), "{count} {knows_it} {at}");
                    // And the mount that filled it goes on in it.
                    let again = node(&b, b"dir");
                    for (name, _) in made {
                        for (fs, dir) in [(&fresh, dir.node), (&*b, again)] {
                            assert!(fs.lookup(dir, name).unwrap().is_some(), "{count} {knows_it} {at}");
                        }
                    }
                    make_files(&b, again);
                    for (name, _) in make_files(&fresh, dir.node) {
                        assert!(b.lookup(again, &name).unwrap().is_some(), "{count} {knows_it} {at}");
                    }
                }
                was_done
            });
        }
    }
}

#[test]
fn what_fills_a_directory_while_another_is_renamed_over_it_stays() {
    for count in [1, 2] {
        at_every_operation(|between| {
            let stores = stores(count);
            let passes = Arc::clone(&between);
            let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
            for name in [b"old", b"new"] {
                a.make_dir(a.root(), name, NEW).unwrap();
            }
            drop(a.create(node(&a, b"old"), b"inside", NEW, by(1)).unwrap());
            let told = Arc::new(Mutex::new(Vec::new()));
            let (other, tells) = (Arc::clone(&b), Arc::clone(&told));
            between.arm(move || {
                if let Ok(Some(dir)) = other.lookup(other.root(), b"new") {
                    *tells.lock().unwrap() = make_files(&other, dir.node);
                }
            });
            let renamed = a.rename(a.root(), b"old", a.root(), b"new", Rename::Replace);
            let was_done = between.disarm();
            let at = between.at;
            let files = std::mem::take(&mut *told.lock().unwrap());
            let fresh = mount(&stores);
            let new = node(&fresh, b"new");
            let old = fresh.lookup(fresh.root(), b"old").unwrap();
            for (name, _) in files.iter().filter(|(_, made)| made.is_ok()) {
                // With several stores there is a moment in which both names lead to both directories.
                let is_in_old =
                    count > 1 && old.is_some_and(|old| fresh.lookup(old.node, name).unwrap().is_some());
                let is_there = is_in_old || fresh.lookup(new, name).unwrap().is_some();
                assert!(is_there, "{count} {at}: {renamed:?}");
            }
            match renamed {
                Ok(()) => {
                    assert!(fresh.lookup(new, b"inside").unwrap().is_some(), "{count} {at}");
                    assert!(fresh.lookup(fresh.root(), b"old").unwrap().is_none(), "{count} {at}");
                }
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::NotEmpty, "{count} {at}");
                    let old = node(&fresh, b"old");
                    assert!(fresh.lookup(old, b"inside").unwrap().is_some(), "{count} {at}");
                    assert!(is_everywhere(&stores, b"old") && is_everywhere(&stores, b"new"), "{count} {at}");
                }
            }
            was_done
        });
    }
}

#[test]
fn of_a_file_made_and_one_renamed_to_its_name_none_is_an_error_of_a_directory() {
    for how in [Rename::Replace, Rename::Keep] {
        at_every_operation(|between| {
            let stores = stores(1);
            let passes = Arc::clone(&between);
            let (a, b) = (hooked(&stores, move || passes.pass()), Arc::new(mount(&stores)));
            drop(a.create(a.root(), b"from", NEW, by(1)).unwrap());
            let other = Arc::clone(&b);
            between.arm(move || drop(other.create(other.root(), b"to", NEW, by(2))));
            let renamed = a.rename(a.root(), b"from", a.root(), b"to", how);
            let was_done = between.disarm();
            let at = between.at;
            let fresh = mount(&stores);
            assert!(fresh.lookup(fresh.root(), b"to").unwrap().is_some(), "{at}");
            match renamed {
                Ok(()) => assert!(fresh.lookup(fresh.root(), b"from").unwrap().is_none(), "{at}"),
                Err(error) => assert_eq!((error.kind, how), (ErrorKind::Exists, Rename::Keep), "{at}"),
            }
            was_done
        });
    }
}
