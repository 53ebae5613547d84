//! Clients of a pool with copies whose daemon ends: they connect to another one and go on.

mod simulated;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_pool::{Daemon, Daemons, LocalData, PoolFs, Unanswered};
use quell_vfs::{
    Change, Context, Error, ErrorKind, FileSystem, NewEntry, NodeRef, OpenMode, Rename, Result, WritableFile,
};
use quell_wire::Failure;
use quell_wire::pool::{Consistency, DirectAccess, Operation, Reply};

use simulated::{Connection, SimulatedPool};

const NEW: NewEntry = NewEntry { permissions: 0o644, uid: 1000, gid: 1000 };
const CHUNK_BYTES: u32 = 100;

/// The end of a daemon with its next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The daemon does not take the operation.
    Before,
    /// The daemon performs the operation, but does not reply.
    After,
}

/// A node with one daemon at a time.
#[derive(Clone)]
struct TestNode(Arc<State>);

struct State {
    pool: SimulatedPool,
    /// The way in which the present daemon ends with the next operation, if it ends.
    end: Mutex<Option<End>>,
    /// The number of attempts to connect that fail next.
    refusals: AtomicUsize,
    has_ended: AtomicBool,
    connections: AtomicUsize,
    wait_limit: Duration,
}

/// A daemon. When it ends, its connection and the references of its clients end.
struct TestDaemon {
    node: TestNode,
    connection: Mutex<Option<Arc<Connection>>>,
    consistency: Consistency,
}

impl TestNode {
    fn start(consistency: Consistency) -> TestNode {
        TestNode::start_with(consistency, Duration::from_millis(500))
    }

    fn start_with(consistency: Consistency, wait_limit: Duration) -> TestNode {
        TestNode(Arc::new(State {
            pool: SimulatedPool::start_with(3, CHUNK_BYTES, consistency),
            end: Mutex::default(),
            refusals: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            wait_limit,
        }))
    }

    fn open(&self) -> PoolFs {
        PoolFs::reconnecting(Box::new(self.clone()), CHUNK_BYTES).unwrap()
    }

    /// Ends the present daemon with the next operation.
    fn end(&self, end: End) {
        *self.0.end.lock().unwrap() = Some(end);
    }

    fn refuse(&self, attempts: usize) {
        self.0.refusals.store(attempts, Ordering::SeqCst);
    }

    /// Returns the number of connections that clients have made.
    fn connections(&self) -> usize {
        self.0.connections.load(Ordering::SeqCst)
    }

    /// Waits until no member has chunks.
    fn expect_no_data(&self) {
        let begun = Instant::now();
        while (0..3).any(|member| !self.0.pool.local_files(member).is_empty()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "chunks of removed files remain");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Daemons for TestNode {
    fn connect(&self) -> Result<Arc<dyn Daemon>> {
        if self.0.has_ended.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::NotFound, "find", "the pool"));
        }
        let refuse = |left: usize| left.checked_sub(1);
        if self.0.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse).is_ok() {
            return Err(Error::new(ErrorKind::Unavailable, "connect", ""));
        }
        let number = self.0.connections.fetch_add(1, Ordering::SeqCst);
        let connection = self.0.pool.connect((number % 3) as u16);
        let consistency = connection.consistency();
        let connection = Mutex::new(Some(Arc::new(connection)));
        Ok(Arc::new(TestDaemon { node: self.clone(), connection, consistency }))
    }

    fn wait_limit(&self) -> Duration {
        self.0.wait_limit
    }
}

impl Daemon for TestDaemon {
    fn call(
        &self,
        deadline: Option<Instant>,
        operation: &Operation<'_>,
        receive: &mut dyn FnMut(Result<Reply<'_>, Failure>),
    ) -> Result<(), Unanswered> {
        let lost = |was_taken| {
            let error = Error::new(ErrorKind::Unavailable, "call", "");
            Err(Unanswered::Lost { error, was_taken })
        };
        let connection = self.connection.lock().unwrap().clone();
        let Some(connection) = connection else { return lost(false) };
        let end = self.node.0.end.lock().unwrap().take();
        match end {
            None => return connection.call(deadline, operation, receive),
            Some(End::After) => connection.call(deadline, operation, &mut |_| {})?,
            Some(End::Before) => {}
        }
        *self.connection.lock().unwrap() = None;
        lost(end == Some(End::After))
    }

    fn dirs_version(&self) -> u64 {
        self.connection.lock().unwrap().as_ref().map_or(0, |connection| connection.dirs_version())
    }

    fn consistency(&self) -> Consistency {
        self.consistency
    }

    fn local_data(&self) -> Option<&LocalData> {
        None
    }

    fn count_direct(&self, _: DirectAccess, _: u64) {}
}

fn create<'a>(fs: &'a PoolFs, name: &str) -> Result<(NodeRef<'a>, Box<dyn WritableFile>)> {
    let writable = fs.writable().unwrap();
    writable.create(&Context::default(), fs.root(), name.as_bytes(), NEW, OpenMode::READ_WRITE)
}

fn remove(fs: &PoolFs, name: &str) -> Result<()> {
    fs.writable().unwrap().remove(&Context::default(), fs.root(), name.as_bytes())
}

fn exists(fs: &PoolFs, name: &str) -> bool {
    fs.attributes_of_path(&Context::default(), name.as_bytes()).unwrap().is_some()
}

#[test]
fn open_files_go_on_when_their_daemon_ends() {
    for end in [End::Before, End::After] {
        for consistency in [Consistency::Synchronous, Consistency::Commit] {
            let node = TestNode::start(consistency);
            let fs = node.open();
            let (entry, file) = create(&fs, "file").unwrap();
            let data: Vec<u8> = (0..=255).cycle().take(3000).collect();
            file.write_at(&data, 0).unwrap();
            node.end(end);
            file.write_at(&data, 2000).unwrap();
            let mut found = vec![0; 5000];
            node.end(end);
            assert_eq!(file.read_at(&mut found, 0).unwrap(), 5000);
            assert!(found[..2000] == data[..2000] && found[2000..] == data);
            node.end(end);
            assert_eq!(file.attributes().unwrap().size_bytes, 5000);
            node.end(end);
            file.drop_set_id().unwrap();
            node.end(end);
            file.sync().unwrap();
            node.end(end);
            assert!(exists(&fs, "file"));
            file.write_at(b"last", 5000).unwrap();
            node.end(end);
            file.close().unwrap();
            let other = node.open();
            let seen = other.attributes_of_path(&Context::default(), b"file").unwrap().unwrap();
            assert_eq!(seen.size_bytes, 5004);
            drop((entry, file));
            remove(&fs, "file").unwrap();
            node.expect_no_data();
        }
    }
}

#[test]
fn an_operation_is_repeated_if_it_was_not_taken_or_if_a_repetition_has_no_other_effect() {
    let node = TestNode::start(Consistency::Synchronous);
    let fs = node.open();
    let writable = fs.writable().unwrap();
    let context = Context::default();
    let (entry, file) = create(&fs, "file").unwrap();
    file.write_at(b"data", 0).unwrap();
    let truncation = Change { size_bytes: Some(2), ..Change::default() };
    let rename = |from: &str, to: &str| {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        writable.rename(&context, fs.root(), from, fs.root(), to, Rename::Replace)
    };
    // Each operation is performed at most once.
    node.end(End::Before);
    drop(create(&fs, "new").unwrap());
    node.end(End::Before);
    rename("new", "moved").unwrap();
    node.end(End::Before);
    remove(&fs, "moved").unwrap();
    node.end(End::Before);
    assert_eq!(file.append(b"more").unwrap(), 4);
    node.end(End::Before);
    writable.change(&context, entry.node(), &truncation).unwrap();
    assert_eq!(file.attributes().unwrap().size_bytes, 2);
    // The operation was performed, but its result is not known.
    let unknown = |result: Result<()>| assert_eq!(result.unwrap_err().kind, ErrorKind::Unavailable);
    node.end(End::After);
    unknown(create(&fs, "new").map(drop));
    assert!(exists(&fs, "new"));
    node.end(End::After);
    unknown(rename("new", "moved"));
    assert!(exists(&fs, "moved") && !exists(&fs, "new"));
    node.end(End::After);
    unknown(remove(&fs, "moved"));
    assert!(!exists(&fs, "moved"));
    node.end(End::After);
    unknown(file.append(b"more").map(drop));
    assert!(!exists(&fs, "moved"));
    node.end(End::After);
    unknown(writable.change(&context, entry.node(), &truncation).map(drop));
    assert_eq!(file.attributes().unwrap().size_bytes, 2);
    // The same mode is set twice.
    let mode = Change { permissions: Some(0o600), ..Change::default() };
    node.end(End::After);
    assert_eq!(writable.change(&context, entry.node(), &mode).unwrap().mode() & 0o777, 0o600);
    assert_eq!(node.connections(), 12);
}

#[test]
fn a_removed_file_that_ends_with_its_daemon_is_stale() {
    let node = TestNode::start(Consistency::Synchronous);
    let fs = node.open();
    let (entry, file) = create(&fs, "file").unwrap();
    file.write_at(b"data", 0).unwrap();
    let (kept_entry, kept) = create(&fs, "kept").unwrap();
    kept.write_at(b"data", 0).unwrap();
    remove(&fs, "file").unwrap();
    assert_eq!(file.attributes().unwrap().size_bytes, 4);
    node.end(End::Before);
    // The daemon of this test returns the references of its clients when it ends.
    let stale = |result: Result<()>| assert_eq!(result.unwrap_err().kind, ErrorKind::Stale);
    stale(file.attributes().map(drop));
    stale(file.write_at(b"lost", 0));
    stale(file.read_at(&mut [0; 4], 0).map(drop));
    stale(file.sync());
    stale(fs.attributes(&Context::default(), entry.node()).map(drop));
    file.close().unwrap();
    drop((entry, file));
    // The client has a new reference to the other file.
    let other = node.open();
    remove(&other, "kept").unwrap();
    let mut found = [0; 4];
    assert_eq!((kept.read_at(&mut found, 0).unwrap(), &found), (4, b"data"));
    drop((kept_entry, kept));
    node.expect_no_data();
}

#[test]
fn directories_that_were_cached_before_are_looked_up_again() {
    let node = TestNode::start(Consistency::Synchronous);
    let (fs, other) = (node.open(), node.open());
    let context = Context::default();
    let dir =
        |fs: &PoolFs| Ok::<_, Error>(fs.lookup_on_path(&context, fs.root(), b"dir")?.map(|dir| dir.node()));
    fs.writable().unwrap().make_dir(&context, fs.root(), b"dir", NEW).unwrap();
    let cached = dir(&fs).unwrap().unwrap();
    node.end(End::Before);
    assert!(!exists(&fs, "file"));
    assert_eq!(dir(&fs).unwrap().unwrap(), cached);
    node.end(End::Before);
    assert!(!exists(&fs, "file"));
    other.writable().unwrap().remove_dir(&context, other.root(), b"dir").unwrap();
    assert_eq!(dir(&fs).unwrap(), None);
}

#[test]
fn operations_wait_for_a_daemon_for_a_limited_time() {
    let node = TestNode::start(Consistency::Synchronous);
    let fs = node.open();
    let (_entry, file) = create(&fs, "file").unwrap();
    // A daemon is started after some time.
    node.end(End::Before);
    node.refuse(3);
    file.write_at(b"data", 0).unwrap();
    // No daemon is started. Threads that wait get the error at the same time.
    node.end(End::Before);
    node.refuse(usize::MAX);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            let fail = || assert_eq!(file.write_at(b"more", 2).unwrap_err().kind, ErrorKind::Unavailable);
            scope.spawn(fail);
        }
    });
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    // Operations after the limit make one attempt each, and go on if a daemon was started at last.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(file.attributes().unwrap_err().kind, ErrorKind::Unavailable);
    node.refuse(1);
    assert_eq!(file.attributes().unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(file.attributes().unwrap().size_bytes, 4);
    // A deadline ends the wait.
    node.end(End::Before);
    node.refuse(usize::MAX);
    let deadline = Some(Instant::now() + Duration::from_millis(20));
    let context = Context { deadline, ..Context::default() };
    let late = fs.attributes(&context, fs.root()).unwrap_err();
    assert!(matches!(late.kind, ErrorKind::TimedOut), "{late}");
    // The end of the pool ends the wait at once.
    node.0.has_ended.store(true, Ordering::SeqCst);
    assert_eq!(file.attributes().unwrap_err().kind, ErrorKind::Unavailable);
}

#[test]
fn threads_go_on_when_daemons_end_again_and_again() {
    let node = TestNode::start_with(Consistency::Commit, Duration::from_secs(60));
    let fs = node.open();
    let is_done = AtomicBool::new(false);
    let work = |thread: usize| {
        let name = format!("file{thread}");
        let (_entry, file) = create(&fs, &name).unwrap();
        for round in 0..100 {
            let data = vec![(thread + round) as u8; 350];
            file.write_at(&data, 0).unwrap();
            let mut found = vec![0; 350];
            assert_eq!(file.read_at(&mut found, 0).unwrap(), 350);
            assert!(found == data);
            let other = format!("{name}-{round}");
            let (_entry, other_file) = create(&fs, &other).unwrap();
            other_file.write_at(b"x", 0).unwrap();
            other_file.close().unwrap();
            assert!(fs.lookup(&Context::default(), fs.root(), other.as_bytes()).unwrap().is_some());
            remove(&fs, &other).unwrap();
        }
        file.close().unwrap();
        remove(&fs, &name).unwrap();
    };
    let work = &work;
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| {
            let mut ends = 0;
            while !is_done.load(Ordering::SeqCst) {
                let connections = node.connections();
                node.refuse(ends % 2);
                node.end(End::Before);
                ends += 1;
                while node.connections() == connections && !is_done.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                // Otherwise the daemon ends while the client makes references.
                if ends % 3 != 0 {
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
            ends
        });
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || work(thread))).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        is_done.store(true, Ordering::SeqCst);
        ended.into_iter().for_each(|ended| ended.unwrap());
        assert!(ending.join().unwrap() > 10);
    });
    *node.0.end.lock().unwrap() = None;
    node.refuse(0);
    assert!(node.connections() > 10);
    // Every reference was returned or has ended with its connection.
    drop(fs);
    node.expect_no_data();
}
