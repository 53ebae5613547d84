//! Stores in temporary directories.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use quell_batch::{BatchFs, BatchStore, OpenBatch, StoreAccess, Unused, fsck};

use super::create;

pub const WAIT: Duration = Duration::from_secs(60);
pub const LARGE: usize = 100_000;

/// A store in a temporary directory.
pub struct Store(tempfile::TempDir);

impl Store {
    pub fn new() -> Store {
        let directory = tempfile::tempdir().unwrap();
        BatchStore::create(&directory.path().join("store")).unwrap();
        Store(directory)
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("store")
    }

    pub fn open(&self) -> BatchStore {
        BatchStore::open(&self.path(), WAIT).unwrap()
    }

    /// Calls `with` with a mount of the master image.
    pub fn with_mount<T>(&self, with: impl FnOnce(&BatchFs) -> T) -> T {
        let store = self.open();
        let fs = store.file_system(b"").unwrap();
        let result = with(&fs);
        fs.end().unwrap();
        result
    }

    pub fn begin(&self) -> OpenBatch {
        OpenBatch::begin(StoreAccess::open(&self.path(), WAIT).unwrap(), b"", "job", false).unwrap()
    }

    pub fn collect(&self, removes: bool) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut visit = |unused: &Unused| {
            assert!(found.insert(String::from_utf8(unused.path.clone()).unwrap()));
        };
        self.open().collect_garbage(removes, &mut visit).unwrap();
        found
    }

    pub fn problems(&self, repairs: bool) -> Vec<(&'static str, Option<String>)> {
        let mut found = Vec::new();
        fsck(&self.path(), WAIT, repairs, &mut |problem| {
            let path = problem.path.clone().map(|path| String::from_utf8(path).unwrap());
            found.push((problem.kind, path));
        })
        .unwrap();
        found
    }
}

/// Creates a file with a content.
pub fn put(fs: &BatchFs, name: &str, content: &[u8]) {
    let (_, file) = create(fs, name);
    file.write_at(content, 0).unwrap();
    file.close().unwrap();
}
