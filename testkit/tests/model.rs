//! Tests the conformance suite on the model and on the memory directory.

use std::sync::Arc;

use quell_posix::{Dir, PosixDir};
use quell_testkit::conformance::{self, Implementation, Instance};
use quell_testkit::operations::{Shape, random_tree};
use quell_testkit::{MemoryDir, Model, Tree, make_on_disk};
use quell_vfs::Kind;

#[test]
fn the_model_conforms() {
    for deadlines in [false, true] {
        let make = |tree: &Tree| {
            let model = Model::new(Arc::new(tree.clone()));
            let model = if deadlines { model.with_deadlines() } else { model };
            Instance { fs: Arc::new(model), keep: None }
        };
        conformance::run(&Implementation {
            name: if deadlines { "model with deadlines" } else { "model" },
            exact: true,
            devices: true,
            xattrs: true,
            make: &make,
        });
    }
}

/// Compares all results of two directories, recursively.
fn compare(memory: &dyn Dir, real: &dyn Dir, path: &str) {
    let mut names = (memory.names().unwrap(), real.names().unwrap());
    names.0.sort();
    names.1.sort();
    assert_eq!(names.0, names.1, "{path}");
    assert_eq!(memory.xattrs(b"").unwrap(), real.xattrs(b"").unwrap());
    for name in names.0.iter().chain([&b"none".to_vec(), &vec![b'x'; 256]]) {
        let path = format!("{path}/{}", name.escape_ascii());
        let (a, b) = (memory.stat(name), real.stat(name));
        match (&a, &b) {
            (Ok(a), Ok(b)) => {
                assert_eq!((a.mode, a.modified), (b.mode, b.modified), "{path}");
                if Kind::from_mode(a.mode) != Some(Kind::Dir) {
                    assert_eq!((a.size_bytes, a.nlink), (b.size_bytes, b.nlink), "{path}");
                }
            }
            (a, b) => assert_eq!(number(a), number(b), "{path}"),
        }
        let (a, b) = (memory.read_link(name), real.read_link(name));
        assert_eq!(number(&a), number(&b), "{path}");
        assert_eq!(a.ok(), b.ok(), "{path}");
        assert_eq!(memory.xattrs(name).ok(), real.xattrs(name).ok(), "{path}");
        let (a, b) = (memory.open_file(name), real.open_file(name));
        assert_eq!(a.is_ok(), b.is_ok(), "opening {path}");
        if let (Ok(a), Ok(b)) = (a, b) {
            let mut bytes = (vec![0; 7000], vec![0; 7000]);
            assert_eq!(a.read_at(&mut bytes.0, 3).unwrap(), b.read_at(&mut bytes.1, 3).unwrap());
            assert_eq!(bytes.0, bytes.1, "{path}");
            assert_eq!(a.stat().unwrap().size_bytes, b.stat().unwrap().size_bytes);
        }
        assert_eq!(number(&memory.enter(name)), number(&real.enter(name)), "{path}");
        if let Ok(below) = memory.enter(name) {
            assert!(below.names().is_err() && real.enter(name).unwrap().names().is_err());
        }
        match (memory.open_dir(name), real.open_dir(name)) {
            (Ok(a), Ok(b)) => compare(&*a, &*b, &path),
            (a, b) => assert_eq!(number(&a), number(&b), "{path}"),
        }
    }
}

fn number<T>(answer: &quell_vfs::Result<T>) -> i32 {
    answer.as_ref().map_or_else(quell_vfs::Error::errno, |_| 0)
}

#[test]
fn a_directory_in_memory_behaves_like_a_real_one() {
    for seed in 0..8 {
        let tree = Arc::new(random_tree(seed, Shape::SMALL));
        let temp = tempfile::tempdir().unwrap();
        if let Err(e) = make_on_disk(&tree, temp.path()) {
            println!("SKIPPED: {e}");
            continue;
        }
        compare(&MemoryDir::new(tree), &PosixDir::open(temp.path()).unwrap(), "");
    }
}
