//! A client of the primary server and of the partition servers of a store. It sends an operation on
//! a name to the server that has the name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use quell_batch_service::{PartitionMap, Place, Reply, Request};
use quell_threads::lock;
use quell_vfs::{Error, Result};

use crate::partition_servers::{Called, Connections};
use crate::remote::Remote;
use crate::served_names::Server;

/// The largest number of directories whose servers are known.
const DIRS_MAX: usize = 1024;

/// The servers of a store.
pub(crate) struct PartitionClients {
    primary: Arc<Remote>,
    partitions: Connections,
    /// The servers of directories, as far as this client knows them.
    maps: Mutex<HashMap<u64, PartitionMap>>,
}

impl std::fmt::Debug for PartitionClients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionClients").field("primary", &self.primary).finish_non_exhaustive()
    }
}

impl PartitionClients {
    pub(crate) fn new(primary: Arc<Remote>) -> Result<PartitionClients> {
        let partitions = Connections::new(primary.dir().duplicate()?);
        Ok(PartitionClients { primary, partitions, maps: Mutex::default() })
    }

    fn server_of(&self, dir: u64, name: &[u8]) -> Option<u32> {
        lock(&self.maps).get(&dir)?.server_of(name)
    }

    fn remember(&self, dir: u64, map: PartitionMap) {
        let mut maps = lock(&self.maps);
        if maps.len() >= DIRS_MAX {
            maps.clear();
        }
        maps.insert(dir, map);
    }

    /// Makes the primary server take back the partitions of a directory.
    fn take_back(&self, dir: u64) -> Result<()> {
        match self.primary.call(&Request::TakeBack { dir })? {
            Reply::Done => {
                lock(&self.maps).remove(&dir);
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
                match self.primary.call(request)? {
                    Reply::Partitions(map) => self.remember(dir, map),
                    reply => return Ok(reply),
                }
                continue;
            };
            match self.partitions.call(server, request)? {
                Called::Reply(Reply::NotAssigned) => {
                    if let Some(reply) = self.servers_now((dir, name), request, &mut has_waited)? {
                        return Ok(reply);
                    }
                }
                Called::Reply(Reply::NeedsPrimary) => return self.call_primary(dir, request),
                Called::Reply(reply) => return Ok(reply),
                Called::Unreachable { error, may_be_executed } => {
                    match may_be_executed && !request.is_repeatable() {
                        true => return Err(error),
                        false => self.take_back(dir)?,
                    }
                }
            }
        }
    }

    /// Asks the primary server for the servers of a directory, because the known one does not have
    /// the name. Returns the reply if the primary server has executed the request. `has_waited`
    /// states whether the known server still did not have the name after the end of a division.
    fn servers_now(
        &self,
        (dir, name): (u64, &[u8]),
        request: &Request,
        has_waited: &mut bool,
    ) -> Result<Option<Reply>> {
        let before = self.server_of(dir, name);
        match self.primary.call(request)? {
            Reply::Partitions(map) => self.remember(dir, map),
            reply => {
                lock(&self.maps).remove(&dir);
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
    fn call_primary(&self, dir: u64, request: &Request) -> Result<Reply> {
        // The file does not have the name any more. If it has another one, its inode is there.
        let linked = match request.clone() {
            Request::Find { number, .. } => Some(Request::Find { number, place: Place::Linked(number) }),
            Request::Change { number, change, now, .. } => {
                Some(Request::Change { number, place: Place::Linked(number), change, now })
            }
            _ => None,
        };
        if let Some(linked) = linked {
            return self.primary.call(&linked);
        }
        loop {
            match self.primary.call(request)? {
                Reply::Partitions(_) => self.take_back(dir)?,
                reply => return Ok(reply),
            }
        }
    }
}

impl Server for Arc<PartitionClients> {
    fn call(&self, request: &Request) -> Result<Reply> {
        match request.partition_name() {
            Some(name) => self.call_for_name(name, request),
            None => self.primary.call(request),
        }
    }

    fn unexpected(&self) -> Error {
        self.primary.unexpected_reply()
    }
}
