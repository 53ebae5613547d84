//! A name space that another process has open. The operations are requests to this process.
//! docs/formats/batch-protocol.md describes the messages.

use std::collections::HashMap;
use std::sync::Mutex;

use quell_batch_service::{
    Bytes, FoundNode, Inode, InodeChange, NameSpace, NewNode, Place, Quota, Removed, RenameRequest, Renamed,
    Reply, Request,
};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Kind, NewEntry, Rename, Result, Time};

/// The connection to a process that has a name space open.
pub(crate) trait Server: Send + Sync {
    /// Sends a request, and returns the reply, which is not `Failed`.
    fn call(&self, request: &Request) -> Result<Reply>;
    /// Returns the error for a reply that does not belong to the request.
    fn unexpected(&self) -> Error;
    /// Returns a number that differs from earlier ones if a directory was renamed, removed or
    /// changed since. [`NO_VERSION`] if such changes are not counted; [`ENDED`] after the end of
    /// the name space.
    fn version(&self) -> u64 {
        NO_VERSION
    }
}

/// The version of a name space whose directories must not be cached.
pub(crate) const NO_VERSION: u64 = 0;
/// The version after the process has ended the name space.
pub(crate) const ENDED: u64 = u64::MAX;
/// The largest number of cached directories.
const DIRS_MAX: usize = 1024;

/// Directories as they were at a version, by the number of the parent directory and their name.
#[derive(Default)]
struct Dirs {
    version: u64,
    count: usize,
    found: HashMap<u64, HashMap<Vec<u8>, FoundNode>>,
}

impl Dirs {
    fn get(&self, version: u64, dir: u64, name: &[u8]) -> Option<FoundNode> {
        if version != self.version {
            return None;
        }
        self.found.get(&dir)?.get(name).cloned()
    }

    /// Adds a directory. `version` was read before the directory was looked up.
    fn insert(&mut self, version: u64, (dir, name): (u64, &[u8]), found: FoundNode) {
        if version != self.version || self.count >= DIRS_MAX {
            *self = Dirs { version, ..Dirs::default() };
        }
        if self.found.entry(dir).or_default().insert(name.to_vec(), found).is_none() {
            self.count += 1;
        }
    }
}

/// The name space that another process has open.
pub(crate) struct ServedNames<S> {
    server: S,
    dirs: Mutex<Dirs>,
}

impl<S> ServedNames<S> {
    pub(crate) fn new(server: S) -> ServedNames<S> {
        ServedNames { server, dirs: Mutex::default() }
    }
}

fn bytes(name: &[u8]) -> Bytes {
    Bytes(name.to_vec())
}

impl<S: Server> ServedNames<S> {
    fn call_for_found(&self, request: &Request) -> Result<FoundNode> {
        match self.server.call(request)? {
            Reply::Found(Some(found)) => Ok(found),
            _ => Err(self.server.unexpected()),
        }
    }

    fn call_for_removed(&self, request: &Request) -> Result<Removed> {
        match self.server.call(request)? {
            Reply::Removed(removed) => Ok(removed),
            _ => Err(self.server.unexpected()),
        }
    }
}

impl<S: Server> NameSpace for ServedNames<S> {
    fn is_shared(&self) -> bool {
        true
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        match self.server.call(&Request::Lookup { dir, name: bytes(name) })? {
            Reply::Found(found) => Ok(found),
            _ => Err(self.server.unexpected()),
        }
    }

    fn lookup_on_path(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        let version = self.server.version();
        if version == NO_VERSION {
            return self.lookup(dir, name);
        }
        if let Some(found) = lock(&self.dirs).get(version, dir, name) {
            return Ok(Some(found));
        }
        let found = self.lookup(dir, name)?;
        if let Some(found) = &found
            && found.inode.kind()? == Kind::Dir
        {
            lock(&self.dirs).insert(version, (dir, name), found.clone());
        }
        Ok(found)
    }

    fn check_open(&self) -> Result<()> {
        match self.server.version() {
            ENDED => {
                Err(Error::new(ErrorKind::Unavailable, "write", "a file of a name space that has ended"))
            }
            _ => Ok(()),
        }
    }

    fn find(&self, number: u64, place: &Place) -> Result<FoundNode> {
        self.call_for_found(&Request::Find { number, place: place.clone() })
    }

    fn parent(&self, dir: u64) -> Result<(u64, Vec<u8>)> {
        match self.server.call(&Request::Parent { dir })? {
            Reply::Parent { dir, name } => Ok((dir, name.0)),
            _ => Err(self.server.unexpected()),
        }
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], u64, Kind) -> bool) -> Result<()> {
        let mut after = bytes(after);
        loop {
            let reply = self.server.call(&Request::List { dir, after: after.clone() })?;
            let Reply::Names { names, is_last } = reply else { return Err(self.server.unexpected()) };
            for listed in &names {
                let kind = listed.kind().ok_or_else(|| self.server.unexpected())?;
                if !visit(&listed.name.0, listed.number, kind) {
                    return Ok(());
                }
            }
            match names.into_iter().next_back() {
                // Names ascend, so the list ends.
                Some(last) if !is_last && last.name.0 > after.0 => after = last.name,
                _ if is_last => return Ok(()),
                _ => return Err(self.server.unexpected()),
            }
        }
    }

    fn create(&self, dir: u64, name: &[u8], node: NewNode, new: NewEntry, now: Time) -> Result<FoundNode> {
        let (name, new, now) = (bytes(name), new.into(), now.into());
        self.call_for_found(&Request::Create { dir, name, node, new, now })
    }

    fn link(&self, (number, place): (u64, &Place), dir: u64, name: &[u8], now: Time) -> Result<FoundNode> {
        let (place, name, now) = (place.clone(), bytes(name), now.into());
        self.call_for_found(&Request::Link { number, place, dir, name, now })
    }

    fn remove(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        self.call_for_removed(&Request::Remove { dir, name: bytes(name), now: now.into() })
    }

    fn remove_dir(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        self.call_for_removed(&Request::RemoveDir { dir, name: bytes(name), now: now.into() })
    }

    fn rename(
        &self,
        (from_dir, from): (u64, &[u8]),
        (to_dir, to): (u64, &[u8]),
        mode: Rename,
        now: Time,
    ) -> Result<Renamed> {
        let (from, to, now) = (bytes(from), bytes(to), now.into());
        match self.server.call(&Request::Rename(RenameRequest { from_dir, from, to_dir, to, mode, now }))? {
            Reply::Renamed(renamed) => Ok(renamed),
            _ => Err(self.server.unexpected()),
        }
    }

    fn change(&self, (number, place): (u64, &Place), change: &InodeChange, now: Time) -> Result<Inode> {
        let (place, change, now) = (place.clone(), change.clone(), now.into());
        match self.server.call(&Request::Change { number, place, change, now })? {
            Reply::Changed(inode) => Ok(inode),
            _ => Err(self.server.unexpected()),
        }
    }

    fn quota(&self) -> Result<Option<Quota>> {
        match self.server.call(&Request::Quota)? {
            Reply::Quota(quota) => Ok(quota),
            _ => Err(self.server.unexpected()),
        }
    }

    fn sync(&self) -> Result<()> {
        match self.server.call(&Request::Sync)? {
            Reply::Done => Ok(()),
            _ => Err(self.server.unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_batch_service::Content;

    use super::*;

    fn dir(number: u64) -> FoundNode {
        let content = Content::Parent { dir: 1, name: b"a".to_vec() };
        let inode = Inode {
            number,
            mode: Kind::Dir.mode_bits() | 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            size_bytes: 0,
            modified: Time::default().into(),
            changed: Time::default().into(),
            content,
            xattrs: Vec::new(),
        };
        FoundNode { place: Place::Dir(number), inode }
    }

    #[test]
    fn a_directory_is_cached_until_the_version_changes() {
        let mut dirs = Dirs::default();
        dirs.insert(1, (1, b"a"), dir(5));
        assert_eq!(dirs.get(1, 1, b"a"), Some(dir(5)));
        assert_eq!(dirs.get(1, 1, b"b"), None);
        assert_eq!(dirs.get(2, 1, b"a"), None);
        dirs.insert(2, (1, b"b"), dir(6));
        assert_eq!(dirs.get(2, 1, b"a"), None);
    }

    #[test]
    fn the_number_of_cached_directories_is_bounded() {
        let mut dirs = Dirs::default();
        for number in 0..=DIRS_MAX as u64 {
            dirs.insert(1, (1, number.to_string().as_bytes()), dir(number));
        }
        assert_eq!((dirs.count, dirs.found[&1].len()), (1, 1));
    }
}
