//! Chooses the directories to cover: software trees on shared file systems in which the program
//! changed nothing.

use std::collections::HashMap;

use crate::analysis::counts::PathCounts;
use crate::analysis::replay::OPERATIONS_TO_LOAD_INDEX;
use crate::locations::{Directories, PathMap};
use crate::paths::PathId;

/// Usual names of directories in an installation prefix; two of them identify a prefix.
const PREFIX_NAMES: [&[u8]; 15] = [
    b"bin",
    b"sbin",
    b"lib",
    b"lib64",
    b"libexec",
    b"share",
    b"etc",
    b"include",
    b"conda-meta",
    b"pyvenv.cfg",
    b"pkgs",
    b"site-packages",
    b"jre",
    b"modules",
    b"jars",
];
/// Names of entries, one of which identifies the root of an application or an installation: node,
/// conda, Spack, git, R.
const ROOT_MARKERS: [&[u8]; 6] =
    [b"node_modules", b"package.json", b"conda-meta", b".spack", b".spack-db", b".git"];
/// Names of directories with packages, which are roots by themselves: node, R, Python, Maven.
const PACKAGE_DIRECTORIES: [&[u8]; 5] =
    [b"node_modules", b"site-library", b"site-packages", b"dist-packages", b".m2"];
/// An entry that every installed package of R has.
const R_PACKAGE: &[u8] = b"DESCRIPTION";
/// Number of packages or archives in one directory that identify a library of R, or a directory of
/// Java archives.
const PACKAGES_MIN: usize = 4;
/// An include directory has at least this number of names that a compiler looked for directly in it
/// and did not find.
const MISSED_HEADERS_MIN: usize = 4;
/// Minimum part of headers in the existing entries of an include directory.
const HEADERS_PART_MIN: f64 = 0.5;
const HEADERS: [&[u8]; 6] = [b".h", b".hh", b".hpp", b".hxx", b".ipp", b".inl"];
/// Minimum number of metadata calls: checking a tree has a cost, too.
const CALLS_MIN: u64 = 16;
/// Minimum part of all metadata calls to shared file systems.
const SHARE_MIN: f64 = 0.01;
/// If directories below one account for this part of its calls, they are proposed instead of it.
const NEARLY_ALL: f64 = 0.9;
/// Maximum number of trees; more are united, because each tree costs an index, a check at each
/// start, and an entry in the configuration.
const TREES_MAX: usize = 5;
/// The operations of a comparison with the index are counted up to this number.
pub const CHECK_OPERATIONS_MAX: u64 = 4096;
/// Number of refused trees that are listed.
const REFUSED_MAX: usize = 16;
/// Limit on the recursion: no tree is proposed that is deeper below the root of a file system.
const DEPTH_MAX: u32 = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    pub path: PathId,
    pub metadata: u64,
    pub missing: u64,
    /// The operations of the comparison with the index at each start, if the user may write to the
    /// tree, counted up to `CHECK_OPERATIONS_MAX`; `None` if the user may not, or if it is unknown.
    pub check: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub path: PathId,
    pub metadata: u64,
    /// The first path below it that was changed; one that is not Python bytecode, if there is any.
    pub changed: PathId,
    /// Whether only Python bytecode (`.pyc`, `__pycache__`) was changed, which Python writes once.
    pub only_bytecode: bool,
}

/// The sums of each directory and everything below it.
#[derive(Debug, Clone, Copy, Default)]
struct Subtree {
    metadata: u64,
    missing: u64,
    /// Number of metadata calls for files and missing names. A client answers repeated calls for
    /// directories from its cache.
    files_metadata: u64,
    /// Number of existing files, and of those that are headers.
    files: u64,
    headers: u64,
    changed_bytecode: Option<PathId>,
    changed_other: Option<PathId>,
}

impl Subtree {
    fn changed(&self) -> Option<PathId> {
        self.changed_other.or(self.changed_bytecode)
    }
}

struct Choice<'a, 'l> {
    map: &'a PathMap<'l>,
    paths: &'a [PathCounts],
    subtree: Vec<Subtree>,
    children: HashMap<PathId, Vec<PathId>>,
    /// The home directory, and the directories that contain it.
    above_home: Vec<PathId>,
    /// The working directory, and the directories that contain it.
    above_working: Vec<PathId>,
    /// The roots of the shared file systems.
    tops: Vec<PathId>,
    refused: Vec<Refused>,
    calls_min: u64,
}

/// Directories of the user who ran the program, if they are known.
#[derive(Debug, Clone, Copy)]
pub struct UserDirectories {
    pub home: Option<PathId>,
    pub working: Option<PathId>,
}

/// Returns the chosen trees, and those that are refused only because of changes, both by decreasing
/// number of calls. No tree contains the home directory of the user: its index would have all files
/// of the user, or of all users, and programs could not write there.
pub fn choose(
    map: &PathMap,
    paths: &[PathCounts],
    user: UserDirectories,
    directories: &mut dyn Directories,
) -> (Vec<Chosen>, Vec<Refused>) {
    let counts = |path: PathId| paths.get(path.index()).copied().unwrap_or_default();
    let mut subtree = vec![Subtree::default(); map.paths.len()];
    let mut children: HashMap<PathId, Vec<PathId>> = HashMap::new();
    let mut tops = Vec::new();
    // An entry of a directory has a larger number than the directory.
    for path in map.paths.all().rev().filter(|p| map.root(*p).on_shared) {
        let own = counts(path);
        let is_directory = own.directory || children.contains_key(&path);
        let this = &mut subtree[path.index()];
        this.metadata += u64::from(own.metadata);
        this.missing += u64::from(own.missing);
        this.files_metadata += if is_directory { 0 } else { u64::from(own.metadata) };
        if own.exists && !own.directory {
            let name = map.paths.name(path);
            this.files += 1;
            this.headers += u64::from(HEADERS.iter().any(|ending| name.ends_with(ending)));
        }
        if own.changed {
            let changed = match is_bytecode(map, path) {
                true => &mut this.changed_bytecode,
                false => &mut this.changed_other,
            };
            *changed = Some(path);
        }
        let this = *this;
        let parent = map.paths.parent(path);
        if path == PathId::ROOT || !map.root(parent).on_shared {
            tops.push(path);
            continue;
        }
        let above = &mut subtree[parent.index()];
        above.metadata += this.metadata;
        above.missing += this.missing;
        above.files_metadata += this.files_metadata;
        above.files += this.files;
        above.headers += this.headers;
        above.changed_bytecode = this.changed_bytecode.or(above.changed_bytecode);
        above.changed_other = this.changed_other.or(above.changed_other);
        if this.metadata > 0 {
            children.entry(parent).or_default().push(path);
        }
    }
    let all: u64 = tops.iter().map(|p| subtree[p.index()].metadata).sum();
    let calls_min = CALLS_MIN.max((all as f64 * SHARE_MIN) as u64);
    let line = |directory: Option<PathId>| -> Vec<PathId> {
        let up = |at: &PathId| (*at != PathId::ROOT).then(|| map.paths.parent(*at));
        std::iter::successors(directory, up).collect()
    };
    let (above_home, above_working) = (line(user.home), line(user.working));
    let refused = Vec::new();
    let mut choice =
        Choice { map, paths, subtree, children, above_home, above_working, tops, refused, calls_min };
    let best: Vec<PathId> =
        choice.tops.clone().into_iter().flat_map(|top| choice.best_trees(top, true, 0)).collect();
    let by_calls = |choice: &Choice, trees: &mut Vec<PathId>| {
        trees.sort_by_key(|p| (std::cmp::Reverse(choice.subtree[p.index()].metadata), *p));
    };
    let mut chosen = choice.united(best);
    by_calls(&choice, &mut chosen);
    chosen.truncate(TREES_MAX);
    let mut chosen = choice.extended(chosen, directories);
    by_calls(&choice, &mut chosen);
    choice.refused.sort_by_key(|r| (std::cmp::Reverse(r.metadata), r.path));
    choice.refused.truncate(REFUSED_MAX);
    let mut chosen_tree = |path: &PathId| {
        let Subtree { metadata, missing, .. } = choice.subtree[path.index()];
        let name = map.paths.bytes(*path);
        let check = directories
            .is_own(&name)
            .then(|| directories.listing(&name, &[], CHECK_OPERATIONS_MAX).unwrap_or(CHECK_OPERATIONS_MAX));
        Chosen { path: *path, metadata, missing, check }
    };
    (chosen.iter().map(&mut chosen_tree).collect(), choice.refused)
}

impl Choice<'_, '_> {
    fn counts(&self, path: PathId) -> PathCounts {
        self.paths.get(path.index()).copied().unwrap_or_default()
    }

    fn is_directory(&self, path: PathId) -> bool {
        self.counts(path).directory || self.children.contains_key(&path)
    }

    /// Returns whether a file or directory exists, as far as the program has found out.
    fn exists(&self, path: PathId) -> bool {
        let subtree = self.subtree[path.index()];
        self.counts(path).exists || subtree.metadata > subtree.missing
    }

    /// Returns whether the entries of a directory, or its name, identify the root of an
    /// application, of packages, or of headers.
    fn is_root(&self, path: PathId, children: &[PathId]) -> bool {
        let name = |path: &PathId| self.map.paths.name(*path);
        if PACKAGE_DIRECTORIES.contains(&name(&path)) {
            return true;
        }
        let (existing, missed): (Vec<PathId>, Vec<PathId>) =
            children.iter().partition(|child| self.exists(**child));
        if existing.iter().any(|child| ROOT_MARKERS.contains(&name(child))) {
            return true;
        }
        let is_r_package = |package: &&PathId| {
            let below = self.children.get(package);
            below.is_some_and(|below| below.iter().any(|p| name(p) == R_PACKAGE && self.exists(*p)))
        };
        if existing.iter().filter(is_r_package).count() >= PACKAGES_MIN
            || existing.iter().filter(|child| name(child).ends_with(b".jar")).count() >= PACKAGES_MIN
        {
            return true;
        }
        // A compiler looks for each header in every include directory, and finds it in one of them.
        let subtree = self.subtree[path.index()];
        missed.len() >= MISSED_HEADERS_MIN
            && subtree.headers > 0
            && subtree.headers as f64 >= subtree.files as f64 * HEADERS_PART_MIN
    }

    /// Unites trees while there are too many: those in the directory with the most trees, deepest
    /// first. A directory is a tree of its own only if the program changed nothing in it, and if it
    /// is not the root of a file system.
    fn united(&self, mut trees: Vec<PathId>) -> Vec<PathId> {
        while trees.len() > TREES_MAX {
            let mut counts: HashMap<PathId, (u32, usize)> = HashMap::new();
            for tree in &trees {
                let above = self.above(*tree);
                let depth = above.len() as u32;
                for (up, directory) in above.iter().enumerate() {
                    let entry = counts.entry(*directory).or_insert((depth - up as u32, 0));
                    entry.1 += 1;
                }
            }
            let best = counts
                .into_iter()
                .filter(|(directory, (_, count))| *count >= 2 && self.may_be_tree(*directory))
                .max_by_key(|(directory, (depth, _))| (*depth, std::cmp::Reverse(*directory)));
            let Some((directory, _)) = best else { break };
            trees.retain(|tree| !self.is_below(*tree, directory));
            trees.push(directory);
        }
        trees
    }

    /// Returns the directories that contain a path, up to the root of its file system.
    fn above(&self, path: PathId) -> Vec<PathId> {
        let mut above = Vec::new();
        let mut at = path;
        while at != PathId::ROOT && !self.tops.contains(&at) {
            at = self.map.paths.parent(at);
            above.push(at);
        }
        above
    }

    /// Returns whether a directory can be a tree at all.
    fn may_be_tree(&self, directory: PathId) -> bool {
        directory != PathId::ROOT
            && !self.tops.contains(&directory)
            && !self.above_home.contains(&directory)
            && self.subtree[directory.index()].changed().is_none()
    }

    /// Replaces trees with a directory above them if that absorbs more operations than the
    /// comparison of the additional directories with the index takes. This is the case for a
    /// directory in a search list, in which most names are missing, and for several trees beside
    /// one another. The number of listed directories is less than the number of absorbed
    /// operations.
    fn extended(&self, mut trees: Vec<PathId>, directories: &mut dyn Directories) -> Vec<PathId> {
        for tree in trees.clone() {
            if !trees.contains(&tree) {
                // A directory above an earlier tree has replaced this one, too.
                continue;
            }
            let (mut best, mut saved_by_best) = (None, 0);
            let above = self.above(tree).into_iter();
            let possible = |at: &PathId| self.may_be_tree(*at) && !self.above_working.contains(at);
            for at in above.take_while(possible) {
                let covered: Vec<PathId> =
                    trees.iter().copied().filter(|tree| self.is_below(*tree, at)).collect();
                let calls = |path: PathId| self.subtree[path.index()].files_metadata;
                let absorbed = calls(at).saturating_sub(covered.iter().map(|tree| calls(*tree)).sum());
                let saved = absorbed + (covered.len() as u64).saturating_sub(1) * OPERATIONS_TO_LOAD_INDEX;
                if saved < saved_by_best + self.calls_min {
                    continue;
                }
                let except: Vec<Vec<u8>> = covered.iter().map(|tree| self.map.paths.bytes(*tree)).collect();
                if directories.listing(&self.map.paths.bytes(at), &except, saved).is_some() {
                    (best, saved_by_best) = (Some(at), saved);
                }
            }
            if let Some(directory) = best {
                trees.retain(|tree| !self.is_below(*tree, directory));
                trees.push(directory);
            }
        }
        trees
    }

    fn is_below(&self, path: PathId, directory: PathId) -> bool {
        let mut at = path;
        while at != PathId::ROOT && at != directory {
            at = self.map.paths.parent(at);
        }
        at == directory
    }

    /// Returns the best trees at or below this directory.
    fn best_trees(&mut self, path: PathId, top: bool, depth: u32) -> Vec<PathId> {
        let subtree = self.subtree[path.index()];
        let holds_home = self.above_home.contains(&path);
        let top = top || holds_home;
        if subtree.metadata < self.calls_min || depth > DEPTH_MAX || !self.is_directory(path) {
            return Vec::new();
        }
        let children = self.children.get(&path).cloned().unwrap_or_default();
        let exists = |p: &&PathId| self.exists(**p);
        let parts = children
            .iter()
            .filter(exists)
            .filter(|p| PREFIX_NAMES.contains(&self.map.paths.name(**p)))
            .count();
        let files = children.iter().filter(exists).filter(|p| !self.is_directory(**p)).count();
        // The root of a file system contains the files of all users; the root directory cannot be
        // covered at all.
        let is_root = !top && self.is_root(path, &children);
        let is_prefix = path != PathId::ROOT && !holds_home && (parts >= 2 || parts == 1 && !top || is_root);
        if is_prefix && subtree.changed().is_none() {
            return vec![path];
        }
        let mut lower = Vec::new();
        for child in children {
            lower.extend(self.best_trees(child, false, depth + 1));
        }
        let covered: u64 = lower.iter().map(|p| self.subtree[p.index()].metadata).sum();
        let enough = covered as f64 >= subtree.metadata as f64 * NEARLY_ALL;
        match subtree.changed() {
            None if !top && files > 0 && !enough => vec![path],
            Some(changed) if is_prefix => {
                let only_bytecode = subtree.changed_other.is_none();
                self.refused.push(Refused { path, metadata: subtree.metadata, changed, only_bytecode });
                lower
            }
            _ => lower,
        }
    }
}

/// Returns whether a path is a file of Python bytecode, or a directory of such files.
fn is_bytecode(map: &PathMap, path: PathId) -> bool {
    const DIRECTORY: &[u8] = b"__pycache__";
    let name = map.paths.name(path);
    name == DIRECTORY || map.paths.name(map.paths.parent(path)) == DIRECTORY || name.ends_with(b".pyc")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locations::{LocationRules, NoLinks, UnknownDirectories};

    /// Returns the trees that are chosen for these paths on a shared file system, each with this
    /// number of calls. A path with `!` at the end is missing; a path with `+` was changed.
    fn chosen(paths: &[(&str, u32)]) -> Vec<String> {
        chosen_with(paths, &mut UnknownDirectories)
    }

    fn chosen_with(paths: &[(&str, u32)], directories: &mut dyn Directories) -> Vec<String> {
        let rules = LocationRules { shared: vec![b"/m".to_vec()], ..LocationRules::default() };
        let mut links = NoLinks;
        let mut map = PathMap::new(&rules, &mut links);
        let mut counts: Vec<PathCounts> = Vec::new();
        let home = map.resolve(PathId::ROOT, b"/m/home/me", true);
        for (path, metadata) in paths {
            let is_missing = path.ends_with('!');
            let id = map.resolve(PathId::ROOT, path.trim_end_matches(['!', '+']).as_bytes(), true);
            if counts.len() <= id.index() {
                counts.resize(id.index() + 1, PathCounts::default());
            }
            counts[id.index()] = PathCounts {
                metadata: *metadata,
                missing: if is_missing { *metadata } else { 0 },
                exists: !is_missing,
                changed: path.ends_with('+'),
                ..PathCounts::default()
            };
        }
        let working = map.resolve(PathId::ROOT, b"/m/site/run", true);
        let user = UserDirectories { home: Some(home), working: Some(working) };
        let (chosen, _) = choose(&map, &counts, user, directories);
        chosen.iter().map(|tree| map.paths.text(tree.path)).collect()
    }

    #[test]
    fn the_root_of_a_node_application_is_one_tree() {
        let modules: Vec<String> =
            (0..12).map(|n| format!("/m/u/app/node_modules/package{n}/index.js")).collect();
        let mut paths: Vec<(&str, u32)> = modules.iter().map(|path| (path.as_str(), 100)).collect();
        paths.extend([
            ("/m/u/package.json!", 20),
            ("/m/u/node_modules!", 20),
            ("/m/u/app/node_modules/package1/package.json", 50),
        ]);
        assert_eq!(chosen(&paths), ["/m/u/app"], "node_modules identifies the application");
        paths.push(("/m/u/app/package.json", 5));
        assert_eq!(chosen(&paths), ["/m/u/app"]);
        paths.push(("/m/u/app/dist/bundle.js+", 5));
        assert_eq!(chosen(&paths), ["/m/u/app/node_modules"], "the program writes beside the modules");
    }

    /// Directories of which listing takes a number of operations, without those in `except`.
    struct Sizes(HashMap<&'static str, u64>);

    impl Directories for Sizes {
        fn listing(&mut self, directory: &[u8], _: &[Vec<u8>], operations_max: u64) -> Option<u64> {
            let size = self.0.get(std::str::from_utf8(directory).unwrap()).copied();
            size.filter(|size| *size <= operations_max)
        }

        fn is_own(&mut self, directory: &[u8]) -> bool {
            directory == b"/m/u/perl"
        }
    }

    #[test]
    fn a_directory_above_is_chosen_if_it_absorbs_more_than_its_comparison_takes() {
        // Names of modules in other directories are missing in the first directory of a search
        // list.
        let mut paths = vec![("/m/u/perl/Bio/lib/a.pm", 200), ("/m/u/perl/Bio/lib/b.pm", 100)];
        let missing: Vec<String> = (0..50).map(|n| format!("/m/u/perl/other{n}.pm!")).collect();
        paths.extend(missing.iter().map(|path| (path.as_str(), 1)));
        assert_eq!(chosen(&paths), ["/m/u/perl/Bio"], "its size is unknown");
        let sizes = |size: u64| Sizes(HashMap::from([("/m/u/perl", size), ("/m/u", 1_000_000)]));
        assert_eq!(chosen_with(&paths, &mut sizes(50)), ["/m/u/perl"]);
        assert_eq!(chosen_with(&paths, &mut sizes(51)), ["/m/u/perl/Bio"]);
        let mut sizes = Sizes(HashMap::from([("/m/u/perl", 50), ("/m/u", 50)]));
        assert_eq!(chosen_with(&paths, &mut sizes), ["/m/u/perl"], "/m/u absorbs no more");
        // Each index takes operations to load.
        let two = [("/m/u/a/lib/x", 100), ("/m/u/b/lib/x", 100), ("/m/u/c/lib/x", 100)];
        let sizes = |size: u64| Sizes(HashMap::from([("/m/u", size)]));
        assert_eq!(chosen_with(&two, &mut sizes(22)), ["/m/u"]);
        assert_eq!(chosen_with(&two, &mut sizes(23)).len(), 3);
    }

    #[test]
    fn no_tree_is_chosen_inside_a_directory_that_replaced_trees() {
        let paths = [("/m/u/p/a/lib/x", 100), ("/m/u/q/b/lib/x", 100), ("/m/u/r/c/lib/x", 100)];
        let mut sizes = Sizes(HashMap::from([("/m/u", 20), ("/m/u/p", 1), ("/m/u/q", 1), ("/m/u/r", 1)]));
        assert_eq!(chosen_with(&paths, &mut sizes), ["/m/u"]);
    }

    #[test]
    fn a_directory_above_is_not_chosen_if_it_contains_the_working_directory() {
        let mut paths = vec![("/m/site/env/lib/a", 200), ("/m/site/env/bin/b", 100)];
        let missing: Vec<String> = (0..50).map(|n| format!("/m/site/other{n}!")).collect();
        paths.extend(missing.iter().map(|path| (path.as_str(), 1)));
        let mut sizes = Sizes(HashMap::from([("/m/site", 1)]));
        assert_eq!(chosen_with(&paths, &mut sizes), ["/m/site/env"]);
    }

    #[test]
    fn libraries_of_r_jars_git_and_conda_are_trees() {
        for (names, root) in [
            (
                &[
                    "lib/dplyr/DESCRIPTION",
                    "lib/tidyr/DESCRIPTION",
                    "lib/rlang/DESCRIPTION",
                    "lib/cli/DESCRIPTION",
                ][..],
                "/m/u/lib",
            ),
            (&["x/a.jar", "x/b.jar", "x/c.jar", "x/d.jar"], "/m/u/x"),
            (&["work/.git/index", "work/src/a.c", "work/doc/b.txt"], "/m/u/work"),
            (&["envs/one/conda-meta/history", "envs/one/x/y/z"], "/m/u/envs/one"),
            (&["cache/.m2/repository/org/a/a.pom", "cache/.m2/repository/com/b/b.pom"], "/m/u/cache/.m2"),
        ] {
            let paths: Vec<String> = names.iter().map(|name| format!("/m/u/{name}")).collect();
            let mut paths: Vec<(&str, u32)> = paths.iter().map(|path| (path.as_str(), 50)).collect();
            // The user's other files are not in the tree.
            paths.push(("/m/u/result.txt+", 3));
            assert_eq!(chosen(&paths), [root], "{names:?}");
        }
    }

    #[test]
    fn the_include_directory_is_chosen_and_not_the_library_in_it() {
        let mut paths = vec![
            ("/m/u/inc/boost/asio.hpp", 200),
            ("/m/u/inc/boost/mpl/if.hpp", 300),
            ("/m/u/inc/boost/mpl/and.hpp", 300),
        ];
        assert_eq!(chosen(&paths).len(), 1);
        paths.extend([
            ("/m/u/inc/vector!", 40),
            ("/m/u/inc/string!", 40),
            ("/m/u/inc/bits!", 40),
            ("/m/u/inc/stdio.h!", 40),
        ]);
        assert_eq!(chosen(&paths), ["/m/u/inc"]);
    }

    #[test]
    fn no_tree_contains_the_home_directory() {
        let paths = [
            ("/m/home/me/package.json", 50),
            ("/m/home/me/node_modules/a/index.js", 100),
            ("/m/home/me/node_modules/b/index.js", 100),
            ("/m/home/me/bin/x", 50),
            ("/m/home/me/lib/y", 50),
        ];
        assert!(chosen(&paths).contains(&"/m/home/me/node_modules".to_owned()), "{:?}", chosen(&paths));
        let many: Vec<String> = (0..9).map(|n| format!("/m/home/me/app{n}/package.json")).collect();
        let paths: Vec<(&str, u32)> = many.iter().map(|path| (path.as_str(), 100)).collect();
        assert_eq!(chosen(&paths).len(), TREES_MAX);
        for paths in [&paths[..], &[("/m/home/package.json", 100), ("/m/home/node_modules/a", 200)]] {
            let trees = chosen(paths);
            assert!(!trees.iter().any(|tree| "/m/home/me".starts_with(tree.as_str())), "{trees:?}");
        }
    }

    #[test]
    fn many_trees_are_united_below_the_root_of_the_file_system() {
        let names: Vec<String> = (0..4)
            .flat_map(|n| ["bin/a", "lib/b"].map(|file| format!("/m/sw/group/tool{n}/{file}")))
            .chain((0..4).flat_map(|n| ["bin/a", "lib/b"].map(|file| format!("/m/sw/other{n}/{file}"))))
            .collect();
        let paths: Vec<(&str, u32)> = names.iter().map(|path| (path.as_str(), 50)).collect();
        let trees = chosen(&paths);
        assert_eq!(trees.len(), 5, "{trees:?}");
        assert_eq!(trees[0], "/m/sw/group", "{trees:?}");
    }
}
