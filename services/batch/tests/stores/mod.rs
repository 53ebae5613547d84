//! Stores in memory and in temporary directories.

// Each test program uses only a part of this file.
#![allow(dead_code)]

pub mod operations;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use quell_batch_service::{
    Auxiliary, BatchCaller, BatchRecord, BatchState, Certificate, Conflict, Content, DataChange, Entry,
    FIRST_INODE, FoundNode, Image, InitialEntries, Inode, InodeChange, Key, MEMORY_BYTES, Marker, NameSpace,
    Names, NewBatch, NewNode, NewPart, Place, Primary, PrivateEntries, ProofForm, Quota, QuotaSubject, ROOT,
    SubmittedVisitor, TableDir, TableFiles, Usage, Verdict, VerificationTask,
};
use quell_kv::MemoryStore;
use quell_vfs::{Kind, NewEntry, Result, Time};

pub const NOW: Time = Time { seconds: 100, nanoseconds: 0 };
pub const LATER: Time = Time { seconds: 200, nanoseconds: 0 };
pub const USER: u32 = 1000;
pub const NEW: NewEntry = NewEntry { permissions: 0o755, uid: USER, gid: USER };
pub const FILE: NewEntry = NewEntry { permissions: 0o644, uid: USER, gid: USER };

/// Returns the form in which the batches of this test program are submitted. `with_certificates.rs`
/// repeats the tests of other programs with the other form.
pub fn proof_form() -> ProofForm {
    match env!("CARGO_CRATE_NAME") {
        "with_certificates" => ProofForm::Certificate,
        _ => ProofForm::Log,
    }
}

/// A store in memory and a temporary directory, with its primary server.
pub struct Fixture {
    pub primary: Primary,
    /// The key-value store of the primary server.
    pub store: Arc<MemoryStore>,
    pub directory: tempfile::TempDir,
    /// The memory of the private name spaces, in bytes.
    pub memory_bytes: usize,
    /// The form in which batches are submitted.
    pub form: ProofForm,
}

/// An open batch.
pub struct Open {
    pub record: BatchRecord,
    pub names: RwLock<Names<PrivateEntries>>,
    pub files: Arc<UnsyncedFiles>,
}

impl Fixture {
    pub fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::new());
        Image::create(&*store, 7, NEW, NOW).unwrap();
        let files = Arc::new(tables(&directory.path().join("image")));
        Fixture {
            primary: Primary::open(store.clone(), files).unwrap(),
            store,
            directory,
            memory_bytes: MEMORY_BYTES,
            form: proof_form(),
        }
    }

    /// Returns a new store whose root directory has these files.
    pub fn beginning_with(inodes: &[(&str, Inode)]) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::new());
        let files = Arc::new(tables(&directory.path().join("image")));
        // There is so little memory that each entry becomes a temporary table.
        let mut initial = InitialEntries::new(files.clone(), 0);
        let root = file_inode(ROOT, Content::Parent { dir: ROOT, name: Vec::new() });
        let root = Inode { mode: 0o040_755, links: 2, size_bytes: 0, ..root };
        for (name, inode) in inodes {
            initial.add(&Key::of_name(ROOT, name.as_bytes()), &Entry::Inode(inode.clone())).unwrap();
        }
        initial.add(&Key::of_dir(ROOT), &Entry::Inode(root)).unwrap();
        let next = FIRST_INODE + inodes.len() as u64;
        Image::create_with(&*store, 7, initial.finish(next).unwrap()).unwrap();
        Fixture {
            primary: Primary::open(store.clone(), files).unwrap(),
            store,
            directory,
            memory_bytes: MEMORY_BYTES,
            form: proof_form(),
        }
    }

    pub fn master(&self) -> Arc<dyn NameSpace> {
        self.primary.name_space()
    }

    pub fn begin(&self) -> Open {
        self.begin_as(USER, ROOT, false).unwrap()
    }

    pub fn begin_as(&self, uid: u32, subtree: u64, is_atomic: bool) -> Result<Open> {
        let caller = BatchCaller { uid, gid: uid, groups: Vec::new() };
        let record = self.primary.begin(NewBatch { name: "job".into(), caller, subtree, is_atomic })?;
        let files = Arc::new(tables(&self.directory.path().join(format!("batch-{}", record.number))));
        let names = self.primary.private(&record, files.clone(), self.memory_bytes)?;
        Ok(Open { record, names: RwLock::new(names), files })
    }

    /// Begins a batch that consists of parts.
    pub fn begin_for_parts(&self, is_atomic: bool) -> BatchRecord {
        let caller = BatchCaller { uid: USER, gid: USER, groups: Vec::new() };
        let new = NewBatch { name: "job".into(), caller, subtree: ROOT, is_atomic };
        self.primary.begin_for_parts(new).unwrap()
    }

    pub fn join(&self, batch: u64) -> Result<Open> {
        let caller = BatchCaller { uid: USER, gid: USER, groups: Vec::new() };
        let record = self.primary.join(NewPart { batch, name: "part".into(), caller })?;
        let files = Arc::new(tables(&self.directory.path().join(format!("batch-{}", record.number))));
        let names = self.primary.private(&record, files.clone(), self.memory_bytes)?;
        Ok(Open { record, names: RwLock::new(names), files })
    }

    /// Commits a batch with the present changes of its parts.
    pub fn commit_parts(&self, batch: u64, parts: &[&Open]) -> Result<BatchRecord> {
        let certificates: Vec<_> = parts.iter().map(|part| self.certificate(part)).collect();
        self.commit_certified(batch, parts, &certificates)
    }

    /// Commits a batch with these certificates of its parts.
    pub fn commit_certified(
        &self,
        batch: u64,
        parts: &[&Open],
        certificates: &[Certificate],
    ) -> Result<BatchRecord> {
        self.primary.commit_with(&self.primary.lock_commit(batch), &|number, visit| {
            let at = parts.iter().position(|part| part.record.number == number).expect("a part");
            visit(&certificates[at], &*parts[at].files)
        })
    }

    /// Verifies a batch, and prepares it for a transaction with this marker.
    pub fn prepare(&self, batch: &Open, blob: &str) -> Result<BatchRecord> {
        let certificate = self.certificate(batch);
        let changes = |_, visit: &mut SubmittedVisitor<'_>| visit(&certificate, &*batch.files);
        let guard = self.primary.lock_commit(batch.record.number);
        self.primary.prepare_by(&NoAuxiliary, &guard, &changes, &marker(blob))
    }

    pub fn publish(&self, batch: &Open, blob: &str) -> Result<BatchRecord> {
        self.primary.publish(&self.primary.lock_commit(batch.record.number), blob)
    }

    pub fn roll_back(&self, batch: &Open, blob: &str) -> Result<BatchRecord> {
        self.primary.roll_back(&self.primary.lock_commit(batch.record.number), blob)
    }

    /// Returns the conflicts of a batch that is committed.
    pub fn conflicts_of(&self, batch: u64) -> Vec<Conflict> {
        let mut found = Vec::new();
        self.primary
            .conflicts(batch, &mut |conflict| {
                found.push(conflict);
                Ok(())
            })
            .unwrap();
        found
    }

    /// Checks that the image is intact.
    pub fn check(&self, text: &str) {
        let mut problems = Vec::new();
        self.primary.check(false, &mut |problem| problems.push(problem.clone())).unwrap();
        assert_eq!(problems, [], "{text}");
    }

    pub fn commit(&self, batch: &Open) -> Result<BatchRecord> {
        self.primary.commit(batch.record.number, &self.certificate(batch), &*batch.files)
    }

    pub fn certificate(&self, batch: &Open) -> Certificate {
        let names = batch.names.read().unwrap();
        let store = self.primary.store_number();
        names.0.submit(store, &batch.record, &*batch.files, self.form, 0).unwrap()
    }

    pub fn conflicts(&self, batch: &Open) -> Vec<Conflict> {
        let record = self.commit(batch).unwrap();
        let mut found = Vec::new();
        self.primary
            .conflicts(record.number, &mut |conflict| {
                found.push(conflict);
                Ok(())
            })
            .unwrap();
        assert!(
            matches!(record.state, BatchState::Committed { conflicts, .. } if conflicts.count == found.len() as u64)
        );
        found
    }
}

/// A primary server without auxiliary servers.
pub struct NoAuxiliary;

impl Auxiliary for NoAuxiliary {
    fn verify(&self, _: &VerificationTask) -> Result<Option<Verdict>> {
        Ok(None)
    }
}

pub fn marker(blob: &str) -> Marker {
    Marker { location: "dir:/blobs".into(), blob: blob.into() }
}

/// Returns the use of each user.
pub fn usage(primary: &Primary) -> Vec<(u32, Usage)> {
    let of_user = |quota: Quota| match quota.subject {
        QuotaSubject::User(uid) => Some((uid, quota.usage)),
        QuotaSubject::Store | QuotaSubject::EachUser => None,
    };
    primary.quotas().unwrap().into_iter().filter_map(of_user).collect()
}

/// Returns the inode of a file of 7 bytes.
pub fn file_inode(number: u64, content: Content) -> Inode {
    let (modified, changed) = (NOW.into(), NOW.into());
    Inode {
        number,
        mode: 0o100_644,
        uid: USER,
        gid: USER,
        links: 1,
        size_bytes: 7,
        modified,
        changed,
        content,
        xattrs: Vec::new(),
    }
}

pub fn tables(path: &Path) -> UnsyncedFiles {
    std::fs::create_dir_all(path).unwrap();
    UnsyncedFiles { dir: TableDir::new(OwnedFd::from(File::open(path).unwrap())), path: path.to_owned() }
}

/// The tables in a directory, without fsync(2), which would take most of the time of the tests.
pub struct UnsyncedFiles {
    dir: TableDir,
    path: PathBuf,
}

impl TableFiles for UnsyncedFiles {
    fn create(&self, number: u64) -> Result<File> {
        self.dir.create(number)
    }

    fn sync_content(&self, _: u64, _: &File) -> Result<()> {
        Ok(())
    }

    fn open(&self, number: u64) -> Result<File> {
        self.dir.open(number)
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.dir.remove(number)
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.dir.list()
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn put_copy(&self, bytes: &[u8]) -> Result<()> {
        std::fs::write(self.path.join("image"), bytes)
            .map_err(|cause| quell_vfs::Error::from_io(cause, "write", "the copy"))
    }

    fn copy(&self) -> Result<Option<Vec<u8>>> {
        self.dir.copy()
    }
}

pub fn make_dir(names: &dyn NameSpace, dir: u64, name: &str) -> u64 {
    names.create(dir, name.as_bytes(), NewNode::Dir, NEW, NOW).unwrap().inode.number
}

pub fn make_file(names: &dyn NameSpace, dir: u64, name: &str) -> FoundNode {
    names.create(dir, name.as_bytes(), NewNode::File, FILE, NOW).unwrap()
}

pub fn write(names: &dyn NameSpace, file: &FoundNode, bytes: &[u8]) {
    names.change((file.inode.number, &file.place), &content(bytes), LATER).unwrap();
}

/// Returns the tree as sorted lines: path, kind, permissions, links, content.
pub fn tree(names: &dyn NameSpace) -> Vec<String> {
    let mut lines = Vec::new();
    let mut dirs = vec![(ROOT, String::new())];
    while let Some((dir, path)) = dirs.pop() {
        let inode = names.find(dir, &Place::Dir(dir)).unwrap().inode;
        lines.push(format!("{path}/ {:o} {}", inode.mode & 0o7777, inode.links));
        let mut found = Vec::new();
        names
            .list(dir, b"", &mut |name, _, _| {
                found.push(name.to_vec());
                true
            })
            .unwrap();
        for name in found {
            let node = names.lookup(dir, &name).unwrap().unwrap();
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            if node.inode.kind().unwrap() == Kind::Dir {
                assert_eq!(names.parent(node.inode.number).unwrap(), (dir, name), "{path}");
                dirs.push((node.inode.number, path));
                continue;
            }
            let mode = node.inode.mode & 0o7777;
            let content = match &node.inode.content {
                Content::Inline(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Content::Empty => String::new(),
                other => format!("{other:?}"),
            };
            lines.push(format!("{path} {mode:o} {} {content}", node.inode.links));
        }
    }
    lines.sort();
    lines
}

/// Returns the change that writes this content.
pub fn content(bytes: &[u8]) -> InodeChange {
    let writes = vec![(0, bytes.to_vec())];
    let size_bytes = Some(bytes.len() as u64);
    let data = Some(DataChange::Inline { writes, size_bytes, append: Vec::new() });
    InodeChange { data, ..InodeChange::default() }
}
