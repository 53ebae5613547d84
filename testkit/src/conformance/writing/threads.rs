//! Promise: any number of threads may write, append and read at the same time. Writes that do not
//! overlap are all present, appended records are complete and present once, and where writes
//! overlap, each byte comes from one of the writes, the same for all later readers.

use std::collections::BTreeSet;

use quell_vfs::{Context, NodeId, OpenMode, WritableFile};

use super::mount::{Mount, WritableImplementation, whole};

const THREADS: usize = 4;

fn in_threads(mount: &Mount, node: NodeId, work: impl Fn(usize, &dyn WritableFile) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (work, fs) = (&work, &mount.fs);
            scope.spawn(move || {
                let context = Context::for_process(thread as u32 / 2);
                let file = fs.writable().unwrap().open_as(&context, node, OpenMode::READ_WRITE).unwrap();
                work(thread, &*file);
                file.close().unwrap();
            });
        }
    });
}

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    disjoint(&mount);
    overlapping(&mount);
    appended(&mount);
    one_handle(&mount);
    names(&mount);
}

fn disjoint(mount: &Mount) {
    let node = mount.write("disjoint", b"");
    in_threads(mount, node, |thread, file| {
        for i in 0..60 {
            let block = i * THREADS + thread;
            file.write_at(&[block as u8; 777], block as u64 * 777).unwrap();
            let mut back = [0; 777];
            assert_eq!(file.read_at(&mut back, block as u64 * 777).unwrap(), 777);
            assert_eq!(back, [block as u8; 777], "a thread reads what it wrote");
        }
    });
    let bytes = mount.bytes(node);
    assert_eq!(bytes.len(), 60 * THREADS * 777);
    assert!(bytes.chunks(777).enumerate().all(|(i, chunk)| chunk.iter().all(|byte| *byte == i as u8)));
}

fn overlapping(mount: &Mount) {
    let node = mount.write("overlapping", &[0; 3000]);
    in_threads(mount, node, |thread, file| {
        for i in 0..60 {
            file.write_at(&[thread as u8 + 1; 1000], i % 20 * 100).unwrap();
        }
    });
    let bytes = mount.bytes(node);
    assert_eq!(bytes.len(), 3000);
    assert!(bytes[..2900].iter().all(|byte| (1..=THREADS as u8).contains(byte)) && bytes[2900..] == [0; 100]);
    for _ in 0..3 {
        assert!(mount.bytes(node) == bytes, "readers differ");
    }
    let file = mount.open(node);
    file.sync().unwrap();
    assert!(whole(&*file) == bytes, "readers differ");
}

fn appended(mount: &Mount) {
    let node = mount.write("appended", b"");
    in_threads(mount, node, |thread, file| {
        for i in 0..60 {
            let record = [thread as u8, i, thread as u8, i, 0xEE];
            let at = file.append(&record).unwrap();
            let mut back = [0; 5];
            file.read_at(&mut back, at).unwrap();
            assert_eq!((at % 5, back), (0, record));
        }
    });
    let bytes = mount.bytes(node);
    let records: BTreeSet<&[u8]> = bytes.chunks(5).collect();
    assert_eq!((bytes.len(), records.len()), (60 * THREADS * 5, 60 * THREADS), "every record once");
    assert!(records.iter().all(|record| record[4] == 0xEE && record[..2] == record[2..4]));
}

/// Checks the promise with one open file that all threads use.
fn one_handle(mount: &Mount) {
    let (node, file) = mount.create("one handle");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = &file;
            scope.spawn(move || {
                for i in 0..40 {
                    let block = i * THREADS + thread;
                    file.write_at(&[block as u8; 100], block as u64 * 100).unwrap();
                    if i % 16 == 0 {
                        file.publish().unwrap();
                    }
                    let mut some = [0; 100];
                    let count = file.read_at(&mut some, (i * 37) as u64 * 100).unwrap();
                    assert!(some[..count].iter().all(|byte| [0, (i * 37) as u8].contains(byte)));
                }
            });
        }
    });
    let bytes = mount.bytes(node);
    assert!(bytes.len() == 40 * THREADS * 100);
    assert!(bytes.chunks(100).enumerate().all(|(i, chunk)| chunk.iter().all(|byte| *byte == i as u8)));
}

/// Checks names that are created and removed concurrently, each in its own thread.
fn names(mount: &Mount) {
    let dir = mount.make_dir("names");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fs, new) = (&mount.fs, mount.new);
            scope.spawn(move || {
                let verbs = fs.writable().unwrap();
                for i in 0..30 {
                    let (name, to) = (format!("{thread} {i}"), format!("{thread} moved"));
                    let (created, file) =
                        verbs.create(&Context::OWN, dir, name.as_bytes(), new, OpenMode::READ_WRITE).unwrap();
                    file.write_at(name.as_bytes(), 0).unwrap();
                    file.publish().unwrap();
                    drop(file);
                    verbs
                        .rename(
                            &Context::OWN,
                            dir,
                            name.as_bytes(),
                            dir,
                            to.as_bytes(),
                            quell_vfs::Rename::Replace,
                        )
                        .unwrap();
                    let found =
                        fs.lookup(&Context::OWN, dir, to.as_bytes()).unwrap().expect("it was renamed");
                    assert_eq!(found.node, created.node);
                    verbs.forget(found.node, 2);
                }
            });
        }
    });
    assert_eq!(crate::compare::listing(&*mount.fs, dir, 3).unwrap().len(), THREADS);
}
