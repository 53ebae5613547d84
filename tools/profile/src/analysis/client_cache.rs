//! The operations that a client of a shared file system sends for a call, given the content of its
//! caches. The rules describe a client that caches directories and attributes for a second
//! (MooseFS, FUSE in general); docs/techniques/profile.md has the reasons.

use std::collections::{HashMap, HashSet};

use crate::locations::PathMap;
use crate::paths::PathId;
use crate::trace::calls::Effect;
use crate::trace::event::{CallResult, Event};

/// The caches of one client of a shared file system.
#[derive(Debug)]
pub struct ClientCache {
    cache_us: u64,
    /// The time at which each directory was looked up by name, and at which each path's attributes
    /// were fetched.
    directories: HashMap<PathId, u64>,
    attributes: HashMap<PathId, u64>,
    /// The time at which each directory was listed, which looks up the directories in it.
    listed: HashMap<PathId, u64>,
    /// Directories that a process has listed and not closed: its requests are answered from the
    /// listing.
    open_listings: HashSet<(u32, PathId)>,
    /// Symbolic links whose target is cached, and files of which a first part was read.
    links: HashSet<PathId>,
    read: HashSet<PathId>,
}

impl ClientCache {
    /// Returns empty caches. `cache_us` is the time for which the client uses cached directories
    /// and attributes, in microseconds.
    pub fn new(cache_us: u64) -> ClientCache {
        ClientCache {
            cache_us,
            directories: HashMap::new(),
            attributes: HashMap::new(),
            listed: HashMap::new(),
            open_listings: HashSet::new(),
            links: HashSet::new(),
            read: HashSet::new(),
        }
    }

    fn is_cached(&self, times: &HashMap<PathId, u64>, path: PathId, now: u64) -> bool {
        times.get(&path).is_some_and(|then| now.saturating_sub(*then) <= self.cache_us)
    }

    /// Returns the number of lookups for the directories on the path from `base` to this one.
    pub fn look_up_directories(
        &mut self,
        map: &PathMap,
        base: PathId,
        path: PathId,
        process: u32,
        now: u64,
    ) -> u32 {
        let mut operations = 0;
        let mut at = path;
        // The root of a file system is known to its client.
        while at != base && at != PathId::ROOT && map.root(map.paths.parent(at)).on_shared {
            let above = map.paths.parent(at);
            if !self.is_cached(&self.directories, at, now) {
                let is_listed = self.is_cached(&self.listed, above, now)
                    || self.open_listings.contains(&(process, above));
                operations += u32::from(!is_listed);
                self.directories.insert(at, now);
                self.attributes.insert(at, now);
            }
            at = above;
        }
        operations
    }

    /// Returns the operations for looking up a file. Names of files are not cached.
    fn look_up_file(&mut self, map: &PathMap, base: PathId, path: PathId, process: u32, now: u64) -> u32 {
        let directory = map.paths.parent(path);
        self.attributes.insert(path, now);
        let is_listed = self.open_listings.contains(&(process, directory));
        self.look_up_directories(map, base, directory, process, now) + u32::from(!is_listed)
    }

    /// Returns the number of operations that the client sends for this call.
    pub fn operations(&mut self, map: &PathMap, event: &Event, path: PathId, is_directory: &[bool]) -> u32 {
        let (now, process) = (event.time_us, event.process);
        let directory = is_directory.get(path.index()).copied().unwrap_or(false);
        let Some(named) = event.named_path else {
            return self.operations_by_descriptor(map, event, path);
        };
        if event.result.is_missing() {
            // The lookup ends at the first missing name. The client sends a lookup even for a name
            // that is not in a cached listing.
            let mut at = path;
            loop {
                let above = map.paths.parent(at);
                let known = is_directory.get(above.index()).copied().unwrap_or(false);
                if at == PathId::ROOT || known || above == event.base || !map.root(above).on_shared {
                    return self.look_up_directories(map, event.base, above, process, now)
                        + u32::from(at != PathId::ROOT);
                }
                at = above;
            }
        }
        let mut operations = match directory {
            true => self.look_up_directories(map, event.base, path, process, now),
            false => self.look_up_file(map, event.base, path, process, now),
        };
        if is_link(map, named, path) {
            operations += self.look_up_file(map, event.base, named, process, now) + self.read_link(named);
        }
        operations
            + match event.call.effect {
                Effect::Open(_) | Effect::Create | Effect::Execute => {
                    u32::from(event.result == CallResult::Succeeded)
                }
                Effect::Change | Effect::Rename(_) => 1,
                Effect::Inspect
                    if event.name.starts_with(b"readlink") && event.result == CallResult::Succeeded =>
                {
                    self.read_link(path)
                }
                Effect::Inspect if reads_space(event) => 1,
                Effect::Inspect if reads_attributes(event) => self.fetch_attributes(path, now),
                _ => 0,
            }
    }

    /// Returns the operations of a call by descriptor: only attributes, changes and listings need
    /// any.
    fn operations_by_descriptor(&mut self, map: &PathMap, event: &Event, path: PathId) -> u32 {
        match event.call.effect {
            Effect::Inspect if reads_space(event) => 1,
            Effect::Inspect if reads_attributes(event) => {
                let is_listed = self.open_listings.contains(&(event.process, map.paths.parent(path)));
                if is_listed { 0 } else { self.fetch_attributes(path, event.time_us) }
            }
            Effect::Change => 1,
            Effect::List => self.list(event, path),
            Effect::Close if event.closes_last_copy => {
                self.open_listings.remove(&(event.process, path));
                0
            }
            _ => 0,
        }
    }

    fn fetch_attributes(&mut self, path: PathId, now: u64) -> u32 {
        let kept = self.is_cached(&self.attributes, path, now);
        if !kept {
            self.attributes.insert(path, now);
        }
        u32::from(!kept)
    }

    fn read_link(&mut self, link: PathId) -> u32 {
        u32::from(self.links.insert(link))
    }

    /// Returns the operations of a listing. Its first part fetches all of it, and changes the
    /// directory's access time.
    fn list(&mut self, event: &Event, path: PathId) -> u32 {
        let first = self.open_listings.insert((event.process, path));
        if first {
            self.listed.insert(path, event.time_us);
            self.attributes.remove(&path);
        }
        u32::from(first)
    }

    /// Records a read. Data that is read from the servers changes the access time, so attributes
    /// are requested again.
    pub fn read(&mut self, path: PathId) {
        if self.read.insert(path) {
            self.attributes.remove(&path);
        }
    }

    /// Returns the operations that the view sends for a file of a covered tree: at the first open,
    /// the lookups from the root of the tree, and the open. After that, the kernel looks up the
    /// name in the layer below whenever a program names the file, because this client does not let
    /// it cache names of files.
    pub fn covered(
        &mut self,
        map: &PathMap,
        event: &Event,
        top: PathId,
        path: PathId,
        seen: &mut HashSet<PathId>,
    ) -> u32 {
        let opens = u32::from(opens(event));
        match (event.named_path, seen.contains(&path)) {
            (None, true) if reads_attributes(event) => self.fetch_attributes(path, event.time_us),
            (Some(_), true) => {
                self.attributes.insert(path, event.time_us);
                1 + opens
            }
            (Some(_), false) if opens > 0 => {
                seen.insert(path);
                self.look_up_file(map, top, path, event.process, event.time_us) + opens
            }
            _ => 0,
        }
    }
}

/// Returns whether `named` is a symbolic link to the path, and not a path through links of
/// directories.
fn is_link(map: &PathMap, named: PathId, path: PathId) -> bool {
    named != path
        && map.root(named).on_shared
        && (map.paths.parent(named) == map.paths.parent(path)
            || map.paths.name(named) != map.paths.name(path))
}

fn reads_space(event: &Event) -> bool {
    event.name.windows(6).any(|part| part == b"statfs")
}

fn reads_attributes(event: &Event) -> bool {
    event.call.effect == Effect::Inspect && event.name.windows(4).any(|part| part == b"stat")
}

/// Returns whether the call opens a file, for reading, writing or listing.
pub fn opens(event: &Event) -> bool {
    let opens = matches!(event.call.effect, Effect::Open(_) | Effect::Create | Effect::Execute);
    opens && event.result == CallResult::Succeeded
}
