//! A partition server of a store, which executes operations on names of large directories.
//! docs/decisions/0058-several-primary-servers.md has the design.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_batch_service::{Obstacle, PROTOCOL, PartitionStore, Place, Reply, Request};
use quell_posix::{Dir, WritableDir};
use quell_vfs::{Error, ErrorKind, Rename, Result};
use quell_wire::{Failure, decode, encode};

use crate::name_requests::{BEYOND_LIMITS, LONG_REPLY, other_version, perform, refuse};
use crate::server_files::ServerFiles;
use crate::store_dir::{KEYS, PARTITIONS, StoreDir};
use crate::store_lock::StoreLock;

/// The file that marks the files of a partition server as complete, its name while it is written,
/// and its content.
const FORMAT_FILE: &[u8] = b"format";
const NEW_FORMAT_FILE: &[u8] = b"format.new";
const FORMAT: &[u8] = b"QUELLPARTITIONS1\n";
/// The largest number of partition servers of a store.
const SERVERS_MAX: u32 = 255;

/// The partitions that a partition server has, and its files.
#[derive(Debug)]
pub struct ServedPartitions {
    // The order of the fields is the order in which they are dropped: the key-value store must be
    // closed before its directory.
    partitions: PartitionStore,
    number: u32,
    dir: StoreDir,
    requests: AtomicU64,
    failures: AtomicU64,
    /// Held until the key-value store is closed.
    _keys: StoreLock,
}

impl ServedPartitions {
    /// Opens the first partition server of the store at `path` that no process has open, or creates
    /// one.
    ///
    /// # Errors
    /// `Unsupported` for a store for a group; `Busy` if the store has 255 partition servers;
    /// `NotFound` if there is no store; the errors of files.
    pub fn open_free(path: &std::path::Path) -> Result<ServedPartitions> {
        let store = StoreDir::open(path)?;
        store.check_format()?;
        let refuse = |kind, reason: &str| {
            let source = Some(reason.to_owned().into());
            Err(Error { source, ..Error::new(kind, "open the partitions of", store.subject()) })
        };
        if store.is_shared() {
            return refuse(ErrorKind::Unsupported, "the directories of a store for a group are not divided");
        }
        for number in 1..=SERVERS_MAX {
            store.make_partition_dir(number)?;
            match ServedPartitions::open_or_create(&store, number, true) {
                // `quell batch fsck` reports files that are missing or damaged.
                Err(error)
                    if matches!(error.kind, ErrorKind::Busy | ErrorKind::Damaged | ErrorKind::NotFound) => {}
                opened => return opened,
            }
        }
        refuse(ErrorKind::Busy, "it has 255 partition servers")
    }

    /// Opens the partitions of a server that exists.
    ///
    /// # Errors
    /// `Busy` if another process has them open; `Damaged` also if files of the server are missing;
    /// the errors of files.
    pub(crate) fn open(store: &StoreDir, number: u32) -> Result<ServedPartitions> {
        ServedPartitions::open_or_create(store, number, false)
    }

    fn open_or_create(store: &StoreDir, number: u32, may_create: bool) -> Result<ServedPartitions> {
        let dir = match store.partition_dir(number) {
            Err(error) if error.kind == ErrorKind::NotFound => return Err(missing(store, number)),
            opened => opened?,
        };
        let files = dir.files()?;
        let names = files.names()?;
        let has = |name: &[u8]| names.iter().any(|found| found == name);
        let is_complete = has(FORMAT_FILE);
        // Opening a directory without a key-value store would create one.
        let is_usable = if is_complete { has(KEYS.as_bytes()) } else { may_create };
        if !is_usable {
            return Err(missing(store, number));
        }
        let keys = dir.open_keys()?;
        if is_complete {
            check_format(&dir)?;
        } else {
            let file = match files.create_file(NEW_FORMAT_FILE, 0o600) {
                Err(error) if error.kind == ErrorKind::Exists => files.open_writable_file(NEW_FORMAT_FILE),
                created => created,
            }?;
            file.write_at(FORMAT, 0)?;
            file.sync()?;
            files.rename(NEW_FORMAT_FILE, &files, FORMAT_FILE, Rename::Replace)?;
            WritableDir::sync(&files)?;
        }
        let partitions = PartitionStore::open(Arc::new(keys.store), Arc::new(store.image_tables()?))?;
        let (requests, failures) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(ServedPartitions { partitions, number, dir, requests, failures, _keys: keys.lock })
    }

    /// Returns the number of the server.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the files by which clients find the server.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn server_files(&self) -> Result<ServerFiles> {
        Ok(ServerFiles::new(self.dir.duplicate()?))
    }

    /// Executes an encoded request, and returns the encoded reply.
    pub fn execute(&self, request: &[u8], reply_bytes_max: usize) -> Vec<u8> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let executed = decode(request).and_then(|request: Request| match request.is_within_limits() {
            true => self.perform(request),
            false => Err(refuse(BEYOND_LIMITS)),
        });
        let encoded = executed.and_then(|reply| {
            let encoded = encode(&reply);
            if encoded.len() <= reply_bytes_max { Ok(encoded) } else { Err(refuse(LONG_REPLY)) }
        });
        encoded.unwrap_or_else(|error| {
            self.failures.fetch_add(1, Ordering::Relaxed);
            encode(&Reply::Failed(Failure::new(&error)))
        })
    }

    /// Executes a request.
    ///
    /// # Errors
    /// The errors of the operation; `Unsupported` for a request that only the primary server
    /// executes.
    pub(crate) fn perform(&self, request: Request) -> Result<Reply> {
        let done = match request {
            Request::Hello { protocol: PROTOCOL } => Ok(Reply::Welcome { store: 0 }),
            Request::Hello { protocol } => Err(other_version(protocol)),
            Request::Assign(new) => self.partitions.assign(*new).map(|()| Reply::Done),
            Request::GiveBack { number } => self.partitions.give_back(number).map(Reply::Returned),
            Request::Forget { number } => self.partitions.forget(number).map(|()| Reply::Done),
            Request::Touched { dir, number } => self.partitions.touched(dir, number).map(Reply::Touched),
            Request::Counters => Ok(Reply::Counters(self.counters()?)),
            // The inode of a divided directory.
            Request::Find { place: Place::Dir(_), .. } | Request::Sync => {
                perform(self.partitions.name_space(), request)
            }
            request if request.partition_name().is_some() => perform(self.partitions.name_space(), request),
            _ => return Ok(Reply::NeedsPrimary),
        };
        done.or_else(|error| match Obstacle::of(&error) {
            Some(Obstacle::NotAssigned) => Ok(Reply::NotAssigned),
            Some(Obstacle::NeedsPrimary | Obstacle::AtOtherServer { .. }) => Ok(Reply::NeedsPrimary),
            None => Err(error),
        })
    }

    /// Returns the numbers of assignments, of requests, and of failed requests.
    ///
    /// # Errors
    /// The errors of reads.
    pub fn counters(&self) -> Result<Vec<(String, u64)>> {
        let assignments = self.partitions.assignments()? as u64;
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = [
            ("assignments", assignments),
            ("requests", value(&self.requests)),
            ("failed", value(&self.failures)),
        ];
        Ok(counters.map(|(name, value)| (name.to_owned(), value)).to_vec())
    }

    /// Waits until all changes survive a power failure.
    ///
    /// # Errors
    /// The errors of fsync(2).
    pub fn sync(&self) -> Result<()> {
        self.partitions.sync()
    }
}

/// Returns the error of a partition server whose files are missing.
fn missing(store: &StoreDir, number: u32) -> Error {
    let reason = format!(
        "files are missing in its directory {PARTITIONS}/{number}: restore these files, or discard their changes of \
         names with \"quell batch fsck STORE --repair\""
    );
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Damaged, "open the store", store.subject()) }
}

fn check_format(dir: &StoreDir) -> Result<()> {
    let mut bytes = [0; FORMAT.len() + 1];
    let length = dir.files()?.open_file(FORMAT_FILE)?.read_at(&mut bytes, 0)?;
    match bytes[..length] == *FORMAT {
        true => Ok(()),
        false => {
            let source = Some("its file `format` does not have the format of this version".into());
            Err(Error { source, ..Error::new(ErrorKind::Damaged, "open the partitions in", dir.subject()) })
        }
    }
}
