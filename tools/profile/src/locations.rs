//! The location of a path: working directory, temporary, shared or local. A path has the location
//! of the longest matching directory among the directories that the caller names, the working
//! directory, the temporary directories, and the mount points.

use crate::paths::{PathId, Paths};

/// The location of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Location {
    /// In the working directory.
    Cwd,
    /// In a directory for temporary files.
    Tmp,
    /// On a shared file system.
    Shared,
    /// Anywhere else.
    Local,
}

impl Location {
    pub const ALL: [Location; 4] = [Location::Cwd, Location::Tmp, Location::Shared, Location::Local];

    pub fn name(self) -> &'static str {
        match self {
            Location::Cwd => "cwd",
            Location::Tmp => "tmp",
            Location::Shared => "shared",
            Location::Local => "local",
        }
    }
}

/// A line of the mount table. Of two lines with the same mount point, the later one is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// The mount point.
    pub point: Vec<u8>,
    /// The type of the file system.
    pub file_system: String,
}

/// Returns whether a file system's files are on other machines. Other FUSE file systems count as
/// shared: on clusters they are MooseFS, ceph-fuse, BeeGFS clients, CVMFS and the like. The
/// exceptions below are local.
pub fn is_shared(file_system: &str) -> bool {
    const SHARED: [&str; 20] = [
        "lustre",
        "lustre_lite",
        "gpfs",
        "nfs",
        "nfs4",
        "beegfs",
        "fhgfs",
        "ceph",
        "cifs",
        "smb3",
        "afs",
        "9p",
        "orangefs",
        "pvfs2",
        "panfs",
        "glusterfs",
        "virtiofs",
        "weka",
        "wekafs",
        "daos",
    ];
    const LOCAL_FUSE: [&str; 8] = [
        "fuse.squashfuse",
        "fuse.squashfuse_ll",
        "fuse.lxcfs",
        "fuse.erofs",
        "fuse.portal",
        "fuse.gvfsd-fuse",
        "fuse.fuse-overlayfs",
        "fuse.appimage",
    ];
    SHARED.contains(&file_system)
        || (file_system == "fuse" || file_system.starts_with("fuse.")) && !LOCAL_FUSE.contains(&file_system)
}

/// The directories that determine the location of a path, known before the first path.
#[derive(Debug, Clone, Default)]
pub struct LocationRules {
    /// The mount table.
    pub mounts: Vec<MountPoint>,
    /// Directories that count as shared regardless of their file system.
    pub shared: Vec<Vec<u8>>,
    /// The directories for temporary files.
    pub temporary: Vec<Vec<u8>>,
    /// The working directory of the first process, if it is known.
    pub working: Option<Vec<u8>>,
    /// The home directory of the user who ran the program, if it is known.
    pub home: Option<Vec<u8>>,
}

/// Reads the targets of symbolic links. Returns `None` if a path is not a link or cannot be read.
/// Called once for each path outside shared file systems, so that `/apps/x` gets the location of
/// the directory that `/apps` refers to.
pub trait Links {
    /// Returns the target of the symbolic link at an absolute path.
    fn target(&mut self, path: &[u8]) -> Option<Vec<u8>>;
}

/// Resolves no links: for traces of another machine.
#[derive(Debug)]
pub struct NoLinks;

impl Links for NoLinks {
    fn target(&mut self, _path: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Answers questions about directories that a trace does not answer.
pub trait Directories {
    /// Returns the number of operations to list a directory and all directories below it, without
    /// those in `except`, which are below it. Counts to `operations_max`, and returns `None` if
    /// there are more, or if a directory cannot be read.
    fn listing(&mut self, directory: &[u8], except: &[Vec<u8>], operations_max: u64) -> Option<u64>;

    /// Returns whether the user may write to a directory, so that `quell run` compares the whole
    /// tree with its index at each start.
    fn is_own(&mut self, directory: &[u8]) -> bool;
}

/// Answers no question: for traces of another machine.
#[derive(Debug)]
pub struct UnknownDirectories;

impl Directories for UnknownDirectories {
    fn listing(&mut self, _directory: &[u8], _except: &[Vec<u8>], _operations_max: u64) -> Option<u64> {
        None
    }

    fn is_own(&mut self, _directory: &[u8]) -> bool {
        false
    }
}

/// A directory that determines the location of the paths in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    pub path: PathId,
    pub location: Location,
    pub on_shared: bool,
    pub file_system: String,
}

/// The index of a `Root`.
pub type RootId = u16;

/// Paths with the root of each.
pub struct PathMap<'l> {
    pub paths: Paths,
    roots: Vec<Root>,
    /// The root of each path, and the target of each symbolic link.
    root_of: Vec<RootId>,
    alias_of: Vec<Option<PathId>>,
    links: &'l mut dyn Links,
}

impl std::fmt::Debug for PathMap<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PathMap").field("paths", &self.paths.len()).field("roots", &self.roots).finish()
    }
}

/// The kernel's limit: more links on one path count as a loop.
const LINKS_MAX: u32 = 40;

/// The source of a root. If two name the same directory, the later one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RuleSource {
    Mount,
    Temporary,
    Working,
    Caller,
}

impl<'l> PathMap<'l> {
    pub fn new(rules: &LocationRules, links: &'l mut dyn Links) -> PathMap<'l> {
        let root = Root {
            path: PathId::ROOT,
            location: Location::Local,
            on_shared: false,
            file_system: String::new(),
        };
        let mut map = PathMap {
            paths: Paths::default(),
            roots: vec![root],
            root_of: vec![0],
            alias_of: vec![None],
            links,
        };
        let mut named: Vec<(Vec<&[u8]>, RuleSource, &str)> = Vec::new();
        for mount in &rules.mounts {
            named.push((components(&mount.point), RuleSource::Mount, &mount.file_system));
        }
        named.extend(rules.temporary.iter().map(|p| (components(p), RuleSource::Temporary, "")));
        // The root directory contains all paths, so as a working directory it is ignored.
        let working = rules.working.iter().filter(|p| !components(p).is_empty());
        named.extend(working.map(|p| (components(p), RuleSource::Working, "")));
        named.extend(rules.shared.iter().map(|p| (components(p), RuleSource::Caller, "")));
        // Directories come before their entries, so that each path gets the root of the directory
        // that contains it.
        named.sort_by(|a, b| (a.0.len(), &a.0, a.1).cmp(&(b.0.len(), &b.0, b.1)));
        let called: Vec<Vec<&[u8]>> = rules.shared.iter().map(|p| components(p)).collect();
        for (path, source, file_system) in named {
            let by_caller = called.iter().any(|c| path.starts_with(c));
            map.add_root(&path, source, file_system, by_caller);
        }
        map
    }

    fn add_root(&mut self, path: &[&[u8]], source: RuleSource, file_system: &str, by_caller: bool) {
        let id = path.iter().fold(PathId::ROOT, |at, name| self.child(at, name));
        let around = self.root(id).clone();
        let Ok(next) = RootId::try_from(self.roots.len()) else { return };
        let root = match source {
            RuleSource::Mount => {
                let on_shared = by_caller || is_shared(file_system);
                let location = if on_shared { Location::Shared } else { Location::Local };
                Root { path: id, location, on_shared, file_system: file_system.to_owned() }
            }
            RuleSource::Temporary => Root { path: id, location: Location::Tmp, ..around },
            RuleSource::Working => Root { path: id, location: Location::Cwd, ..around },
            RuleSource::Caller => Root { path: id, location: Location::Shared, on_shared: true, ..around },
        };
        self.roots.push(root);
        self.root_of[id.index()] = next;
    }

    pub fn roots(&self) -> &[Root] {
        &self.roots
    }

    pub fn root_id(&self, path: PathId) -> RootId {
        self.root_of[path.index()]
    }

    pub fn root(&self, path: PathId) -> &Root {
        &self.roots[usize::from(self.root_id(path))]
    }

    fn child(&mut self, parent: PathId, name: &[u8]) -> PathId {
        let id = self.paths.child(parent, name);
        if id.index() == self.root_of.len() {
            self.root_of.push(self.root_of[parent.index()]);
            self.alias_of.push(None);
        }
        id
    }

    /// Returns the path that `text` refers to, relative to `base`: without `.` and `..`, with links
    /// outside shared file systems resolved.
    pub fn resolve(&mut self, base: PathId, text: &[u8], follow_last: bool) -> PathId {
        self.walk(base, text, follow_last, &mut LINKS_MAX.clone())
    }

    fn walk(&mut self, base: PathId, text: &[u8], follow_last: bool, links_left: &mut u32) -> PathId {
        let mut at = if text.starts_with(b"/") { PathId::ROOT } else { base };
        let mut names = text.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".").peekable();
        while let Some(name) = names.next() {
            if name == b".." {
                at = self.paths.parent(at);
                continue;
            }
            let known = self.paths.len();
            let next = self.child(at, name);
            if next.index() == known && !self.root(next).on_shared && *links_left > 0 {
                *links_left -= 1;
                if let Some(target) = self.links.target(&self.paths.bytes(next)) {
                    let target = self.walk(at, &target, true, links_left);
                    self.alias_of[next.index()] = Some(target).filter(|t| *t != next);
                } else {
                    *links_left += 1;
                }
            }
            let is_last = names.peek().is_none();
            at = match self.alias_of[next.index()] {
                Some(target) if !is_last || follow_last => target,
                _ => next,
            };
        }
        at
    }
}

/// Returns the components of a path, without `.`. `..` is kept; it does not occur in a mount table.
fn components(path: &[u8]) -> Vec<&[u8]> {
    path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: [(&str, &str); 7] = [
        ("/", "ext4"),
        ("/proc", "proc"),
        ("/mnt/lustre one", "lustre"),
        ("/home", "nfs4"),
        ("/home/local", "xfs"),
        ("/tmp", "tmpfs"),
        ("/mfs", "fuse.mfs"),
    ];

    struct Table(Vec<(&'static str, &'static str)>);

    impl Links for Table {
        fn target(&mut self, path: &[u8]) -> Option<Vec<u8>> {
            let found = self.0.iter().find(|(from, _)| from.as_bytes() == path)?;
            Some(found.1.as_bytes().to_vec())
        }
    }

    fn rules() -> LocationRules {
        LocationRules {
            mounts: MOUNTS
                .map(|(point, kind)| MountPoint { point: point.into(), file_system: kind.into() })
                .to_vec(),
            shared: vec![b"/opt/sw".to_vec()],
            temporary: vec![b"/tmp".to_vec()],
            working: Some(b"/home/u/job".to_vec()),
            home: None,
        }
    }

    fn location(map: &mut PathMap, path: &str) -> (Location, bool, String) {
        let id = map.resolve(PathId::ROOT, path.as_bytes(), true);
        let root = map.root(id);
        (root.location, root.on_shared, root.file_system.clone())
    }

    #[test]
    fn the_longest_directory_decides() {
        let (rules, mut links) = (rules(), NoLinks);
        let mut map = PathMap::new(&rules, &mut links);
        for (path, expected, on_shared) in [
            ("/usr/lib", Location::Local, false),
            ("/mnt/lustre one/x", Location::Shared, true),
            ("/mnt/lustre onex", Location::Local, false),
            ("/home/other", Location::Shared, true),
            ("/home/u/job/out", Location::Cwd, true),
            ("/home/u/job/../x", Location::Shared, true),
            ("/home/local/x", Location::Local, false),
            ("/tmp/x", Location::Tmp, false),
            ("/opt/sw/bin", Location::Shared, true),
            ("/mfs/env", Location::Shared, true),
            ("/", Location::Local, false),
        ] {
            let (location, shared, _) = location(&mut map, path);
            assert_eq!((location, shared), (expected, on_shared), "{path}");
        }
    }

    #[test]
    fn directories_of_the_caller_have_priority() {
        let mut rules = rules();
        rules.shared = vec![b"/tmp".to_vec(), b"/home/local".to_vec(), b"/".to_vec()];
        rules.working = Some(b"/".to_vec());
        let mut links = NoLinks;
        let mut map = PathMap::new(&rules, &mut links);
        for path in ["/tmp/x", "/home/local/x", "/usr", "/proc/1"] {
            assert_eq!(location(&mut map, path).0, Location::Shared, "{path}");
        }
        assert_eq!(location(&mut map, "/home/local").2, "xfs");
    }

    #[test]
    fn the_target_of_a_link_decides() {
        let rules = rules();
        let mut links = Table(vec![
            ("/apps", "/mfs/apps"),
            ("/usr/bin/python", "../../mfs/env/bin/python"),
            ("/loop", "/loop2"),
            ("/loop2", "/loop"),
            ("/self", "self"),
        ]);
        let mut map = PathMap::new(&rules, &mut links);
        assert_eq!(location(&mut map, "/apps/x").0, Location::Shared);
        assert_eq!(location(&mut map, "/apps/x").0, Location::Shared, "a second time");
        assert_eq!(location(&mut map, "/usr/bin/python").0, Location::Shared);
        let link = map.resolve(PathId::ROOT, b"/usr/bin/python", false);
        assert_eq!(map.root(link).location, Location::Local, "the link itself");
        for path in ["/loop/x", "/self/self/x"] {
            location(&mut map, path);
        }
    }

    #[test]
    fn fuse_file_systems_count_as_shared_except_known_local_ones() {
        for (kind, shared) in [
            ("fuse.mfs", true),
            ("fuse", true),
            ("fuse.squashfuse", false),
            ("fuseblk", false),
            ("overlay", false),
        ] {
            assert_eq!(is_shared(kind), shared, "{kind}");
        }
    }
}
