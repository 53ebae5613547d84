//! A store in RADOS, for its server: tables in a guarded log, extents as objects
//! (docs/decisions/0031-blob-on-rados.md).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use quell_blob_service::{
    CheckedStore, Clock, EXTENT_BYTES_MAX, ExtentId, ExtentWriter, Extents, JointRecords, OpenStore, Options,
    Problem, read_joint_records,
};
use quell_kv::{Batch, KeyRange, KeyValue, MemoryStore, Value};
use quell_rados::{LogOptions, ObjectExtents, Objects, Pool, PoolOptions, RadosStore, group_name};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Result};

use crate::embedded::SystemClock;

/// The name of the store in its namespace of the pool.
pub(crate) const NAME: &str = "blob";
/// The size of the commits after which a checkpoint is written, in bytes. The server that replaces
/// this one reads a log of this size in about two seconds.
const CHECKPOINT_BYTES: u64 = 128 << 20;
/// The size of the data of extents in the memory of the server, in bytes.
const CACHE_BYTES: usize = 256 << 20;

/// Opens a pool, given as `rados://POOL[/NAMESPACE][?client=NAME]`. Without a name, the client of
/// the cluster is `client.admin`.
///
/// # Errors
/// The errors of [`Pool::open`].
pub(crate) fn open_pool(address: &str) -> Result<Pool> {
    let mut options = PoolOptions::default();
    let (pool, query) = address.split_once('?').unwrap_or((address, ""));
    match query.strip_prefix("client=") {
        Some(client) if !client.is_empty() => options.client = client.to_owned(),
        _ if query.is_empty() => {}
        _ => {
            let source = Some("a pool is rados://POOL[/NAMESPACE][?client=NAME]".into());
            return Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "open", address) });
        }
    }
    Pool::open(pool, &options)
}

/// A store in RADOS that this process has open.
pub(crate) struct OpenRadosStore {
    pub(crate) store: OpenStore,
    tables: Arc<RadosStore<MemoryStore>>,
}

/// Opens the store `name` in a namespace of a pool, or creates one. From then on, no earlier server
/// of the store can commit. `failed` is called after a failed commit, after which all later commits
/// fail.
///
/// # Errors
/// `Damaged` if the store does not have its format; the errors of the cluster.
pub(crate) fn open(objects: Arc<dyn Objects>, name: &str, failed: Failed) -> Result<OpenRadosStore> {
    open_with(objects, name, failed, Arc::new(SystemClock))
}

/// As [`open`], with another clock.
pub(crate) fn open_with(
    objects: Arc<dyn Objects>,
    name: &str,
    failed: Failed,
    clock: Arc<dyn Clock>,
) -> Result<OpenRadosStore> {
    let (tables, extents) = open_storage(objects, name, failed, true)?;
    let store = tables.store.clone();
    // Listing all objects would delay the first commit, so `remove_orphans` lists them later.
    let options = Options { lists_when_opened: false, ..Options::default() };
    let opened = OpenStore::open(Arc::new(tables), Arc::new(extents), clock, options)?;
    Ok(OpenRadosStore { store: opened, tables: store })
}

fn open_storage(
    objects: Arc<dyn Objects>,
    name: &str,
    failed: Failed,
    create: bool,
) -> Result<(RadosTables, RadosExtents)> {
    let options = LogOptions { create, ..LogOptions::default() };
    let store = Arc::new(RadosStore::open(objects.clone(), name, MemoryStore::new(), &options)?);
    let uncheckpointed = AtomicU64::new(store.log_bytes());
    let (checkpoint_runs, checkpoint) = (Arc::default(), Mutex::default());
    let tables = RadosTables { store, uncheckpointed, checkpoint_runs, checkpoint, failed };
    Ok((tables, RadosExtents(ObjectExtents::new(objects, name, CACHE_BYTES)?)))
}

/// Checks a group of the store in a namespace of a pool, and passes its problems to `report`. Also
/// returns its joint transactions.
pub(crate) fn check(
    objects: Arc<dyn Objects>,
    (group, groups): (u32, u32),
    repair: bool,
    report: &mut dyn FnMut(Problem),
) -> Result<(CheckedStore, JointRecords)> {
    let (tables, extents) = open_storage(objects, &group_name(NAME, group), Box::new(|_| ()), false)?;
    let checked = quell_blob_service::check(&tables, &extents, repair, report)?;
    Ok((checked, read_joint_records(&tables, (group, groups), report)?))
}

/// The removal of objects that earlier servers have left, on its own thread. The removal ends when
/// the value is dropped.
#[derive(Debug)]
pub struct OrphanRemoval {
    pool: Arc<Pool>,
    thread: Option<JoinHandle<()>>,
}

impl OrphanRemoval {
    pub(crate) fn start(pool: Arc<Pool>, opened: &OpenRadosStore) -> Result<OrphanRemoval> {
        let (store, tables) = (opened.store.clone(), opened.tables.clone());
        let removal = move || {
            // After an error, the objects remain until the next server starts.
            let _ = tables.remove_orphans();
            let _ = store.remove_orphans();
        };
        let thread = std::thread::Builder::new().name("blob orphans".into());
        let thread =
            thread.spawn(removal).map_err(|e| Error::from_io(e, "start a thread", b"blob orphans"))?;
        Ok(OrphanRemoval { pool, thread: Some(thread) })
    }
}

impl Drop for OrphanRemoval {
    /// Waits for the thread: librados must not be used while the process ends.
    fn drop(&mut self) {
        self.pool.end_lists();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// A function that is called after a failed commit, after which all later commits fail.
pub(crate) type Failed = Box<dyn Fn(&Error) + Send + Sync>;

/// The tables of a store in RADOS. Commits start checkpoints.
struct RadosTables {
    store: Arc<RadosStore<MemoryStore>>,
    /// The size of the commits since the last checkpoint, in bytes.
    uncheckpointed: AtomicU64,
    checkpoint_runs: Arc<AtomicBool>,
    /// The thread of the last checkpoint.
    checkpoint: Mutex<Option<JoinHandle<()>>>,
    failed: Failed,
}

impl Drop for RadosTables {
    /// Waits for the checkpoint: librados must not be used while the process ends.
    fn drop(&mut self) {
        if let Some(thread) = lock(&self.checkpoint).take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl RadosTables {
    /// Writes a checkpoint on its own thread, so that commits continue meanwhile.
    fn start_checkpoint(&self) {
        if self.checkpoint_runs.swap(true, Ordering::AcqRel) {
            return;
        }
        let (store, runs) = (self.store.clone(), self.checkpoint_runs.clone());
        let started = std::thread::Builder::new().name("blob checkpoint".into()).spawn(move || {
            // After an error, the log remains as it is, and a later commit starts the next attempt.
            let _ = store.checkpoint();
            runs.store(false, Ordering::Release);
        });
        match started {
            Ok(thread) => {
                self.uncheckpointed.store(0, Ordering::Relaxed);
                *lock(&self.checkpoint) = Some(thread);
            }
            Err(_) => self.checkpoint_runs.store(false, Ordering::Release),
        }
    }
}

impl KeyValue for RadosTables {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.store.get(key)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        let bytes = batch.size_bytes();
        if let Err(error) = self.store.commit(batch) {
            if self.store.sync().is_err() {
                (self.failed)(&error);
            }
            return Err(error);
        }
        if self.uncheckpointed.fetch_add(bytes, Ordering::Relaxed) + bytes >= CHECKPOINT_BYTES {
            self.start_checkpoint();
        }
        Ok(())
    }

    fn scan(&self, range: &KeyRange<'_>, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.store.scan(range, visit)
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    fn size_bytes(&self) -> Result<u64> {
        self.store.size_bytes()
    }
}

/// Extents as objects.
struct RadosExtents(ObjectExtents);

impl Extents for RadosExtents {
    fn write(&self, id: ExtentId, data: &[u8]) -> Result<()> {
        self.0.write(id.0, data)
    }

    fn begin(&self, id: ExtentId) -> Option<Box<dyn ExtentWriter>> {
        Some(Box::new(PartsWriter(self.0.begin(id.0))))
    }

    fn read(&self, id: ExtentId, offset: u64, into: &mut [u8]) -> Result<()> {
        self.0.read(id.0, offset, into)
    }

    fn remove(&self, id: ExtentId) -> Result<()> {
        self.0.remove(&[(id.0, EXTENT_BYTES_MAX as u64)])
    }

    fn remove_all(&self, extents: &[(ExtentId, u64)]) -> Result<()> {
        let extents: Vec<_> = extents.iter().map(|(id, length)| (id.0, *length)).collect();
        self.0.remove(&extents)
    }

    fn list(&self, first: ExtentId, visit: &mut dyn FnMut(ExtentId)) -> Result<()> {
        self.0.list(first.0, &mut |number| visit(ExtentId(number)))
    }
}

struct PartsWriter(quell_rados::ExtentWriter);

impl ExtentWriter for PartsWriter {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.0.append(data)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.0.finish()
    }
}

impl fmt::Debug for RadosTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RadosTables").field("store", &self.store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::sync::mpsc::channel;

    use super::*;
    use quell_blob_service::{ClientId, Permissions, SessionLimits, Sessions};
    use quell_rados::MemoryObjects;
    use quell_wire::blob::{
        DATA_BYTES_MAX, Operation, Reply, Request, Transaction, TransferId, Transform, WrittenExtent,
    };
    use quell_wire::{decode, encode};

    fn open(objects: Arc<dyn Objects>) -> Result<OpenStore> {
        super::open(objects, NAME, Box::new(|_| ())).map(|opened| opened.store)
    }

    fn commit(store: &OpenStore, operations: Vec<Operation>) -> quell_blob_service::CommitResult {
        store.commit(Transaction { operations, ..Transaction::default() })
    }

    fn add(store: &OpenStore) -> quell_blob_service::CommitResult {
        let create = Operation::Create { name: b"sum".to_vec(), may_exist: true };
        let add = Operation::Transform { name: b"sum".to_vec(), offset: 0, transform: Transform::add_i64(1) };
        commit(store, vec![create, add])
    }

    fn sum(store: &OpenStore) -> i64 {
        let mut sum = [0; 8];
        store.snapshot().read(b"sum", 0, &mut sum).expect("read");
        i64::from_le_bytes(sum)
    }

    #[test]
    fn a_server_that_was_replaced_commits_nothing_and_nothing_is_lost() {
        let objects = Arc::new(MemoryObjects::new());
        let first = open(objects.clone()).expect("opened");
        for _ in 0..10 {
            add(&first).expect("committed");
        }
        let large = vec![7; 5 << 20];
        let create = Operation::Create { name: b"large".to_vec(), may_exist: false };
        let append = Operation::Append { name: b"large".to_vec(), data: large.clone() };
        commit(&first, vec![create, append]).expect("committed");
        let second = open(objects).expect("taken over");
        add(&first).expect_err("it was replaced");
        add(&second).expect("committed");
        assert_eq!(sum(&second), 11);
        let mut found = vec![0; large.len()];
        assert_eq!(second.snapshot().read(b"large", 0, &mut found).expect("read"), large.len());
        assert!(found == large);
    }

    #[test]
    fn extents_of_a_client_that_was_killed_are_removed_and_no_others() {
        let objects = Arc::new(MemoryObjects::new());
        let extents = || objects.names().iter().filter(|name| name.contains(".extent.")).count();
        let data: Vec<u8> = (0..11_000_000_u32).map(|number| (number / 5) as u8).collect();
        let first = open(objects.clone()).expect("opened");
        let server = (first.clone(), Arc::new(Sessions::new(first, SessionLimits::default())));
        // The writer starts to write a piece of 4 MiB when it is complete.
        send_extent(&server, 1, &data);
        assert_eq!(extents(), 2);
        let create = Operation::Create { name: b"a".to_vec(), may_exist: true };
        let append = Operation::Append { name: b"a".to_vec(), data: Vec::new() };
        let transaction = Transaction { operations: vec![create, append], ..Transaction::default() };
        let length_bytes = data.len() as u64;
        let written = WrittenExtent { operation: 1, upload: TransferId(1), length_bytes };
        let reply = call(&server, &Request::CommitWritten { transaction, extents: vec![written] });
        assert!(matches!(reply, Reply::Committed(_)), "{reply:?}");
        assert_eq!(extents(), 3);
        // The server finds out that a client has ended.
        send_extent(&server, 2, &data);
        assert_eq!(extents(), 5);
        server.1.end(ClientId(1));
        server.0.collect().expect("collected");
        assert_eq!(extents(), 3);
        // Another server replaces this one before it finds out that a client has ended.
        send_extent(&server, 3, &data);
        assert_eq!(extents(), 5);
        let second = open(objects.clone()).expect("taken over");
        assert_eq!(second.remove_orphans().expect("removed"), 1);
        assert_eq!(extents(), 3);
        let mut found = vec![0; data.len()];
        assert_eq!(second.snapshot().read(b"a", 0, &mut found).expect("read"), data.len());
        assert!(found == data);
        drop((server, second));
        let mut problems = Vec::new();
        check(objects, (0, 1), false, &mut |problem| problems.push(problem)).expect("checked");
        assert!(problems.is_empty(), "{problems:?}");
    }

    fn send_extent(server: &(OpenStore, Arc<Sessions>), upload: u64, data: &[u8]) {
        for (index, part) in data.chunks(DATA_BYTES_MAX).enumerate() {
            let offset = (index * DATA_BYTES_MAX) as u64;
            let request = Request::WriteExtent { upload: TransferId(upload), offset, data: part.to_vec() };
            assert_eq!(call(server, &request), Reply::Done);
        }
    }

    fn call((store, sessions): &(OpenStore, Arc<Sessions>), request: &Request) -> Reply {
        static ALL: LazyLock<Arc<Permissions>> = LazyLock::new(|| Arc::new(Permissions::all()));
        let (sender, receiver) = channel();
        let replied = Box::new(move |reply| sender.send(reply).expect("a receiver"));
        if sessions.execute(ClientId(1), &ALL, &encode(request), 4096, replied) {
            store.commit_pending();
        }
        decode(&receiver.recv().expect("a reply")).expect("a reply")
    }

    #[test]
    fn checkpoints_are_written_and_read() {
        let objects = Arc::new(MemoryObjects::new());
        let store = open(objects.clone()).expect("opened");
        add(&store).expect("committed");
        let create = Operation::Create { name: b"data".to_vec(), may_exist: false };
        commit(&store, vec![create]).expect("created");
        let checkpoints = || objects.names().iter().filter(|name| name.contains(".checkpoint")).count();
        assert_eq!(checkpoints(), 0, "{:?}", objects.names());
        let mut rounds = 0_usize;
        while checkpoints() == 0 {
            rounds += 1;
            assert!(rounds < 500, "no checkpoint: {:?}", objects.names());
            let operations = (0..64_u64)
                .map(|page| Operation::Write {
                    name: b"data".to_vec(),
                    offset: page * 16_384,
                    data: vec![rounds as u8; 16_384],
                })
                .collect();
            commit(&store, operations).expect("committed");
        }
        add(&store).expect("committed");
        drop(store);
        let store = open(objects.clone()).expect("opened again");
        assert_eq!(sum(&store), 2);
        let mut data = [0; 100];
        store.snapshot().read(b"data", 1_000_000, &mut data).expect("read");
        assert_eq!(data, [rounds as u8; 100]);
    }
}
