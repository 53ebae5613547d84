//! Tests the attributes of a file while one of its writers ends.

use std::sync::{Arc, Mutex, mpsc};

use quell_posix::WritableDir;
use quell_testkit::{CountingDir, MemoryStore};
use quell_vfs::{Context, FileSystem};

use crate::fs::LogFs;
use crate::session::Choices;
use crate::stores::Stores;
use crate::test_stores::{again, host, make};

/// Ends one of the writers.
type End = Box<dyn FnOnce() + Send>;

const FILE_BYTES: u64 = 2 * 100_000;

fn blocks_while_a_writer_ends(begins_as_object: bool) -> u64 {
    let choices = Choices {
        buffer_bytes: 40_000,
        index_threads: 1,
        flatten_bytes: 0,
        flattens_later: false,
        begins_as_object,
    };
    let begin = Arc::new(Mutex::new(None::<End>));
    let to_end = Arc::clone(&begin);
    let root: Arc<dyn WritableDir> = MemoryStore::new().root();
    // The modification time of one of the writers is read after `meta`.
    let root: Arc<dyn WritableDir> = Arc::new(CountingDir::with_hook(root, move |_, operation| {
        if operation.verb == "stat open file"
            && let Some(end) = to_end.lock().unwrap().take()
        {
            end();
        }
    }));
    let fs = LogFs::new(Stores::open(vec![root], host(5, 1), 4).unwrap(), choices);
    let files = [make(&fs, "f", 1), again(&fs, "f", 2)];
    for (file, at) in files.iter().zip([0, FILE_BYTES / 2]) {
        file.write_at(&vec![1; FILE_BYTES as usize / 2], at).unwrap();
        file.publish().unwrap();
    }
    let node = fs.lookup(&Context::OWN, fs.root(), b"f").unwrap().unwrap().into_attributes().node;
    let (one, one_ended) = mpsc::channel();
    let (both, both_ended) = mpsc::channel();
    // The hook is called while one of the writers is locked, so the other one ends.
    let end: End = Box::new(move || {
        for file in files {
            let (one, both) = (one.clone(), both.clone());
            std::thread::spawn(move || {
                drop(file);
                let _ = one.send(()); // the hook receives one of the two
                both.send(()).unwrap();
            });
        }
        one_ended.recv().unwrap();
    });
    *begin.lock().unwrap() = Some(end);
    let attributes = fs.attributes(&Context::OWN, node).unwrap();
    assert_eq!(both_ended.iter().take(2).count(), 2, "the hook was not called");
    assert_eq!(attributes.size_bytes, FILE_BYTES);
    attributes.blocks
}

#[test]
fn the_data_of_a_writer_that_ends_counts_once() {
    for begins_as_object in [false, true] {
        let blocks = blocks_while_a_writer_ends(begins_as_object);
        let expected = FILE_BYTES / 512..FILE_BYTES / 512 * 11 / 10;
        assert!(expected.contains(&blocks), "{blocks} blocks, object: {begins_as_object}");
    }
}
