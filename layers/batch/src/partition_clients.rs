//! A client of the primary server and of the partition servers of a store. It sends an operation on
//! a name to the server that executes the operations on the name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quell_batch_service::{Content, FoundNode, Inode, PartitionMap, Place, Reply, Request, Timestamp};
use quell_threads::lock;
use quell_vfs::{Error, Result};

use crate::partition_servers::{CallOutcome, Connections, TIMES_KEPT};
use crate::remote::Remote;
use crate::served_names::Server;

/// The largest number of directories whose servers are known.
const DIRS_MAX: usize = 1024;

/// A client of all servers of a store.
pub(crate) struct PartitionedClient {
    primary: Arc<Remote>,
    partitions: Connections,
    known: Mutex<KnownDirs>,
}

/// The divided directories that a client knows.
#[derive(Default)]
struct KnownDirs {
    dirs: HashMap<u64, KnownDir>,
    /// The directories by the number of the directory above and their name there.
    by_name: HashMap<u64, HashMap<Vec<u8>, u64>>,
}

/// The servers and the attributes of a divided directory, as a client has received them.
struct KnownDir {
    map: PartitionMap,
    /// The time of the last known change of its names. A program sees its own changes at once.
    touched: Option<Timestamp>,
    /// The time of the last request for its attributes to the primary server.
    requested: Option<Instant>,
    /// The number of the directory above, and the name there.
    name: Option<(u64, Vec<u8>)>,
}

impl KnownDirs {
    /// Adds a divided directory, or replaces its servers.
    fn insert(&mut self, dir: u64, map: PartitionMap) {
        if self.dirs.len() >= DIRS_MAX {
            *self = KnownDirs::default();
        }
        match self.dirs.get_mut(&dir) {
            Some(known) => known.map = map,
            None => drop(self.dirs.insert(dir, KnownDir { map, touched: None, requested: None, name: None })),
        }
    }

    /// Removes a directory.
    fn remove(&mut self, dir: u64) {
        let removed = self.dirs.remove(&dir);
        let Some((above, name)) = removed.and_then(|known| known.name) else { return };
        if let Some(names) = self.by_name.get_mut(&above) {
            names.remove(&name);
            if names.is_empty() {
                self.by_name.remove(&above);
            }
        }
    }

    /// Adds the attributes of a divided directory that the primary server has returned.
    fn note_attributes(&mut self, inode: &Inode) {
        let Some(known) = self.dirs.get_mut(&inode.number) else { return };
        known.touched = known.touched.max(Some(inode.changed));
        known.requested = Some(Instant::now());
        if let Content::Parent { dir, name } = &inode.content {
            self.by_name.entry(*dir).or_default().insert(name.clone(), inode.number);
            known.name = Some((*dir, name.clone()));
        }
    }

    /// Returns a partition server that knows the attributes of the directory to which a request
    /// refers. As long as the directory is divided, only its times change.
    fn server_of_attributes(&self, request: &Request) -> Option<(u64, u32)> {
        let dir = match request {
            Request::Find { number, place: Place::Dir(_) } => *number,
            Request::Lookup { dir, name } => *self.by_name.get(dir)?.get(&name.0)?,
            _ => return None,
        };
        let known = self.dirs.get(&dir)?;
        let is_recent = known.requested.is_some_and(|requested| requested.elapsed() < TIMES_KEPT);
        // The clients distribute these requests over the servers.
        let server = known.map.any_server(std::process::id()).filter(|_| is_recent)?;
        Some((dir, server))
    }
}

impl std::fmt::Debug for PartitionedClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionedClient").field("primary", &self.primary).finish_non_exhaustive()
    }
}

impl PartitionedClient {
    pub(crate) fn new(primary: Arc<Remote>) -> Result<PartitionedClient> {
        let partitions = Connections::new(primary.dir().duplicate()?);
        Ok(PartitionedClient { primary, partitions, known: Mutex::default() })
    }

    fn server_of(&self, dir: u64, name: &[u8]) -> Option<u32> {
        lock(&self.known).dirs.get(&dir)?.map.server_of(name)
    }

    fn remember(&self, dir: u64, map: PartitionMap) {
        lock(&self.known).insert(dir, map);
    }

    /// Notes a change of the names of a directory by a partition server.
    fn note_change(&self, dir: u64, request: &Request) {
        if let Request::Create { now, .. } | Request::Remove { now, .. } = request
            && let Some(known) = lock(&self.known).dirs.get_mut(&dir)
        {
            known.touched = known.touched.max(Some(*now));
        }
    }

    /// Returns the attributes of a divided directory from a partition server. `None` if the request
    /// must be sent to the primary server.
    fn attributes(&self, request: &Request) -> Option<Reply> {
        let (dir, server) = lock(&self.known).server_of_attributes(request)?;
        let find = Request::Find { number: dir, place: Place::Dir(dir) };
        let Ok(CallOutcome::Reply(Reply::Found(Some(mut found)))) = self.partitions.call(server, &find)
        else {
            // The next operation on a name finds the servers.
            lock(&self.known).remove(dir);
            return None;
        };
        // A directory that was renamed is looked up by the primary server.
        let is_found = match (request, &found.inode.content) {
            (Request::Lookup { dir, name }, Content::Parent { dir: above, name: present }) => {
                dir == above && name.0 == *present
            }
            _ => true,
        };
        if !is_found {
            return None;
        }
        if let Some(KnownDir { touched: Some(touched), .. }) = lock(&self.known).dirs.get(&dir) {
            found.inode.touch(*touched);
        }
        Some(Reply::Found(Some(found)))
    }

    /// Sends a request to the primary server.
    fn call_primary(&self, request: &Request) -> Result<Reply> {
        let mut reply = self.primary.call(request)?;
        if let Reply::Found(Some(FoundNode { place: Place::Dir(dir), inode })) = &mut reply {
            let mut known = lock(&self.known);
            known.note_attributes(inode);
            if let Some(KnownDir { touched: Some(touched), .. }) = known.dirs.get(dir) {
                inode.touch(*touched);
            }
        }
        Ok(reply)
    }

    /// Makes the primary server take back the partitions of a directory.
    fn take_back(&self, dir: u64) -> Result<()> {
        match self.primary.call(&Request::TakeBack { dir })? {
            Reply::Done => {
                lock(&self.known).remove(dir);
                Ok(())
            }
            _ => Err(self.primary.unexpected_reply()),
        }
    }

    /// Executes an operation on a name.
    fn call_for_name(&self, (dir, name): (u64, &[u8]), request: &Request) -> Result<Reply> {
        let mut has_waited = false;
        loop {
            let Some(server) = self.server_of(dir, name) else {
                match self.call_primary(request)? {
                    Reply::Partitions(map) => self.remember(dir, map),
                    reply => return Ok(reply),
                }
                continue;
            };
            match self.partitions.call(server, request)? {
                CallOutcome::Reply(Reply::NotAssigned) => {
                    if let Some(reply) = self.servers_now((dir, name), request, &mut has_waited)? {
                        return Ok(reply);
                    }
                }
                CallOutcome::Reply(Reply::NeedsPrimary) => return self.call_undivided(dir, request),
                CallOutcome::Reply(reply) => {
                    self.note_change(dir, request);
                    return Ok(reply);
                }
                CallOutcome::Unreachable { error, may_be_executed } => {
                    match may_be_executed && !request.is_repeatable() {
                        true => return Err(error),
                        false => self.take_back(dir)?,
                    }
                }
            }
        }
    }

    /// Requests the servers of a directory from the primary server, because the known server does
    /// not execute the operations on the name. Returns the reply if the primary server has executed
    /// the request. `has_waited` states whether the caller has waited for the end of a division
    /// already; this function sets it if it waits, or takes the partitions back.
    fn servers_now(
        &self,
        (dir, name): (u64, &[u8]),
        request: &Request,
        has_waited: &mut bool,
    ) -> Result<Option<Reply>> {
        let before = self.server_of(dir, name);
        match self.call_primary(request)? {
            Reply::Partitions(map) => self.remember(dir, map),
            reply => {
                lock(&self.known).remove(dir);
                return Ok(Some(reply));
            }
        }
        if self.server_of(dir, name) == before {
            match *has_waited {
                // The directory is being divided, or its partitions are being taken back.
                false => self.await_division(dir)?,
                true => self.take_back(dir)?,
            }
            *has_waited = true;
        }
        Ok(None)
    }

    fn await_division(&self, dir: u64) -> Result<()> {
        match self.primary.call(&Request::AwaitDivision { dir })? {
            Reply::Done => Ok(()),
            _ => Err(self.primary.unexpected_reply()),
        }
    }

    /// Lets the primary server execute a request that a partition server cannot execute.
    fn call_undivided(&self, dir: u64, request: &Request) -> Result<Reply> {
        // The file does not have the name any more. If it has another one, its inode is there.
        let linked = match request.clone() {
            Request::Find { number, .. } => Some(Request::Find { number, place: Place::Linked(number) }),
            Request::Change { number, change, now, .. } => {
                Some(Request::Change { number, place: Place::Linked(number), change, now })
            }
            _ => None,
        };
        if let Some(linked) = linked {
            return self.call_primary(&linked);
        }
        loop {
            match self.call_primary(request)? {
                Reply::Partitions(_) => self.take_back(dir)?,
                reply => return Ok(reply),
            }
        }
    }
}

impl Server for Arc<PartitionedClient> {
    fn call(&self, request: &Request) -> Result<Reply> {
        if let Some(reply) = self.attributes(request) {
            return Ok(reply);
        }
        match request.partition_name() {
            Some(name) => self.call_for_name(name, request),
            None => self.call_primary(request),
        }
    }

    fn unexpected(&self) -> Error {
        self.primary.unexpected_reply()
    }
}
