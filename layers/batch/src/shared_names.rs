//! A name space that this process serves to processes of the same user on this node, through the
//! local channel. docs/formats/batch-protocol.md describes the messages.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use quell_batch_service::{NameSpace, PROTOCOL, Place, Reply, Request};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Kind, Rename, Result};
use quell_wire::{Failure, decode, encode};

use crate::name_requests::{BEYOND_LIMITS, LONG_REPLY, perform, refuse};
use crate::remote::REPLY_BYTES_MAX;
use crate::served_names::{ENDED, NO_VERSION};

/// The largest number of files in each of the two maps of renamed files.
const RENAMED_MAX: usize = 32_768;

/// The newest names of the files that were renamed last. A client that has such a file open knows
/// only the name with which it has opened the file.
#[derive(Default)]
struct Renamed {
    newer: HashMap<u64, Place>,
    older: HashMap<u64, Place>,
}

impl Renamed {
    fn place(&self, number: u64) -> Option<&Place> {
        self.newer.get(&number).or_else(|| self.older.get(&number))
    }

    fn insert(&mut self, number: u64, (dir, name): (u64, Vec<u8>)) {
        if self.newer.len() >= RENAMED_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(number, Place::Name { dir, name });
    }

    fn remove(&mut self, number: u64) {
        self.newer.remove(&number);
        self.older.remove(&number);
    }
}

/// A name space that this process serves.
pub struct SharedNames {
    names: Arc<dyn NameSpace>,
    store_number: u128,
    /// Whether only the requests that this value executes change the name space.
    is_exclusive: bool,
    renamed: Mutex<Renamed>,
    /// The directory of the store.
    dir: OwnedFd,
}

impl std::fmt::Debug for SharedNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedNames").field("store_number", &self.store_number).finish_non_exhaustive()
    }
}

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Executed {
    /// The encoded reply.
    pub reply: Vec<u8>,
    /// Whether a directory was renamed or removed, or its attributes were changed, so that the
    /// version of the directories must change.
    pub changed_dirs: bool,
}

impl SharedNames {
    pub(crate) fn new(
        names: Arc<dyn NameSpace>,
        store_number: u128,
        is_exclusive: bool,
        dir: OwnedFd,
    ) -> SharedNames {
        SharedNames { names, store_number, is_exclusive, renamed: Mutex::default(), dir }
    }

    /// Returns a descriptor of the directory of the store, which clients get.
    ///
    /// # Errors
    /// The errors of fcntl(2).
    pub fn store_descriptor(&self) -> Result<OwnedFd> {
        self.dir.try_clone().map_err(|cause| Error::from_io(cause, "duplicate", "the directory of the store"))
    }

    /// Returns the version of the directories at the beginning.
    pub fn first_version(&self) -> u64 {
        if self.is_exclusive { NO_VERSION + 1 } else { NO_VERSION }
    }

    /// Returns the version of the directories after the end of the name space.
    pub fn last_version(&self) -> u64 {
        ENDED
    }

    /// Executes an encoded request of any client.
    pub fn execute(&self, request: &[u8]) -> Executed {
        let (reply, changed_dirs) = match self.perform(request) {
            Ok((reply, changed_dirs)) => (encode(&reply), changed_dirs),
            Err(error) => (failed(&error), false),
        };
        let is_too_long = reply.len() > REPLY_BYTES_MAX as usize;
        let reply = if is_too_long { failed(&refuse(LONG_REPLY)) } else { reply };
        Executed { reply, changed_dirs: changed_dirs && self.is_exclusive }
    }

    fn perform(&self, request: &[u8]) -> Result<(Reply, bool)> {
        let request: Request = decode(request)?;
        if !request.is_within_limits() {
            return Err(refuse(BEYOND_LIMITS));
        }
        if let Request::Hello { protocol } = request {
            return match protocol {
                PROTOCOL => Ok((Reply::Welcome { store: self.store_number }, false)),
                _ => Err(Error::new(ErrorKind::Unsupported, "greet", "")),
            };
        }
        let is_dir = |dir: u64, name: &[u8]| {
            let found = self.names.lookup(dir, name);
            // If the look-up fails, the entry may be a directory.
            found.map_or(true, |found| {
                found.is_some_and(|found| !matches!(found.inode.kind(), Ok(Kind::File)))
            })
        };
        let changes_dir = match &request {
            Request::RemoveDir { .. } => true,
            Request::Rename(rename) => {
                is_dir(rename.from_dir, &rename.from.0)
                    || rename.mode == Rename::Exchange && is_dir(rename.to_dir, &rename.to.0)
            }
            _ => false,
        };
        let reply = self.perform_on_names(request)?;
        let changed_dir = matches!(&reply, Reply::Changed(inode) if matches!(inode.kind(), Ok(Kind::Dir)));
        Ok((reply, changes_dir || changed_dir))
    }

    fn perform_on_names(&self, request: Request) -> Result<Reply> {
        let moves = match &request {
            Request::Rename(rename) => {
                let (from, to) =
                    ((rename.from_dir, rename.from.0.clone()), (rename.to_dir, rename.to.0.clone()));
                Some((from, to))
            }
            _ => None,
        };
        let renamed = self.with_newest_place(&request);
        let reply = match (perform(&*self.names, request), renamed) {
            (Err(error), Some(request)) if error.kind == ErrorKind::Stale => perform(&*self.names, request)?,
            (reply, _) => reply?,
        };
        match (&reply, moves) {
            (Reply::Renamed(moved), Some((from, to))) => {
                let mut renamed = lock(&self.renamed);
                renamed.insert(moved.moved, to);
                if let Some(exchanged) = moved.exchanged {
                    renamed.insert(exchanged, from);
                }
            }
            (Reply::Removed(removed), _) if removed.place.is_none() => {
                lock(&self.renamed).remove(removed.inode.number);
            }
            _ => {}
        }
        Ok(reply)
    }

    /// Returns the same request for the newest name of a file, if the file was renamed.
    fn with_newest_place(&self, request: &Request) -> Option<Request> {
        let (Request::Find { number, place }
        | Request::Link { number, place, .. }
        | Request::Change { number, place, .. }) = request
        else {
            return None;
        };
        let newest = lock(&self.renamed).place(*number).filter(|newest| *newest != place)?.clone();
        let mut request = request.clone();
        if let Request::Find { place, .. } | Request::Link { place, .. } | Request::Change { place, .. } =
            &mut request
        {
            *place = newest;
        }
        Some(request)
    }

    /// Waits until the changes survive a power failure.
    ///
    /// # Errors
    /// The errors of fsync(2).
    pub fn sync(&self) -> Result<()> {
        self.names.sync()
    }
}

fn failed(error: &Error) -> Vec<u8> {
    encode(&Reply::Failed(Failure::new(error)))
}
