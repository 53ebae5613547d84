//! Determines which variable makes a program look for a name in a directory: by the environment if
//! the directory is listed there, otherwise by the kind of name.

use std::collections::HashMap;

use crate::paths::{PathId, Paths};
use crate::trace::calls::Effect;

/// A variable with a list of directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The name of the variable.
    pub name: String,
    /// The absolute paths in its value, in order.
    pub directories: Vec<Vec<u8>>,
}

/// Returns the variables of an environment that are lists of directories.
pub fn variables<'a>(environment: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<Variable> {
    let is_list = |name: &[u8]| name.ends_with(b"PATH") || name.ends_with(b"LIB") || name.ends_with(b"LIBS");
    let mut variables: Vec<Variable> = environment
        .filter(|(name, _)| is_list(name))
        .map(|(name, value)| Variable {
            name: String::from_utf8_lossy(name).into_owned(),
            directories: value
                .split(|b| *b == b':')
                .filter(|d| d.starts_with(b"/"))
                .map(<[u8]>::to_vec)
                .collect(),
        })
        .filter(|v| !v.directories.is_empty())
        .collect();
    variables.sort_by(|a, b| a.name.cmp(&b.name));
    variables
}

/// The kind of a search: the number of the environment variable that lists the directory, or the
/// variable that the name suggests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SearchKind {
    Environment(u16),
    Names(&'static str),
}

#[derive(Debug, Default)]
pub struct Searches {
    variables: Vec<Variable>,
    directories: HashMap<PathId, u16>,
}

pub const LOADER: &str = "LD_LIBRARY_PATH or RPATH";
pub const PYTHON: &str = "PYTHONPATH (sys.path)";
pub const PERL: &str = "PERL5LIB (@INC)";
pub const LOCALE: &str = "LANG, LOCPATH (locale)";
pub const PATH: &str = "PATH";
/// Searches that have default directories: the variable of each, and its name in the report if the
/// variable is not set.
const SEARCHES: [(&str, &str); 5] = [
    ("CLASSPATH or JAVA_HOME", "class path of java"),
    ("R_LIBS", "library search of R"),
    ("RUBYLIB, GEM_PATH", "load path of ruby"),
    ("NODE_PATH", "module search of node"),
    ("CPATH", "include directories of the compiler"),
];
/// Limit on nested packages.
const PACKAGE_LEVELS_MAX: usize = 8;

impl Searches {
    /// Returns the searches by these variables. `resolve` returns the number of a directory.
    pub fn new(variables: Vec<Variable>, mut resolve: impl FnMut(&[u8]) -> PathId) -> Searches {
        let mut directories = HashMap::new();
        for (number, variable) in variables.iter().enumerate() {
            for directory in &variable.directories {
                directories.entry(resolve(directory)).or_insert(number as u16);
            }
        }
        Searches { variables, directories }
    }

    pub fn name(&self, kind: &SearchKind) -> (&str, &'static str) {
        match kind {
            SearchKind::Environment(number) => (&self.variables[usize::from(*number)].name, "environment"),
            SearchKind::Names(name) => {
                let is_set = |variable: &Variable| words(name).any(|word| word == variable.name);
                let search = SEARCHES.iter().find(|(variables, _)| variables == name);
                match search {
                    // A program searches these directories also without the variable.
                    Some((_, search)) if !self.variables.iter().any(is_set) => (search, "names"),
                    _ => (name, "names"),
                }
            }
        }
    }

    /// Returns the search that a lookup of this path belongs to, or `None` if it belongs to no
    /// known search.
    pub fn kind(&self, paths: &Paths, path: PathId, effect: Effect) -> Option<SearchKind> {
        let name = paths.name(path);
        let by_name = by_name(paths, path, name);
        let mut directory = paths.parent(path);
        // Modules are in packages, which are directories below those in the variable.
        let levels = if matches!(by_name, Some(PYTHON | PERL)) { PACKAGE_LEVELS_MAX } else { 1 };
        for _ in 0..levels {
            if let Some(number) = self.directories.get(&directory) {
                let variable = self.variables[usize::from(*number)].name.as_str();
                // A directory may be in several lists; the kind of name must be compatible with the
                // variable.
                if by_name.is_none_or(|kind| words(kind).any(|word| word == variable)) {
                    return Some(SearchKind::Environment(*number));
                }
            }
            directory = paths.parent(directory);
        }
        if effect == Effect::Execute {
            return Some(SearchKind::Names(PATH));
        }
        by_name.map(SearchKind::Names)
    }
}

/// Returns the words of a name, such as the variables in it.
fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split([' ', ',', '(', ')'])
}

fn by_name(paths: &Paths, path: PathId, name: &[u8]) -> Option<&'static str> {
    let has = |part: &[u8]| name.windows(part.len()).any(|w| w == part);
    let ends = |endings: &[&[u8]]| endings.iter().any(|e| name.ends_with(e));
    let above = |names: &[&[u8]]| {
        let mut at = paths.parent(path);
        // Near enough to belong to the same installation.
        (0..6).any(|_| {
            let found = names.contains(&paths.name(at));
            at = paths.parent(at);
            found
        })
    };
    if has(b".cpython-") || ends(&[b".abi3.so", b"module.so", b".py", b".pyc", b".pth", b"._pth", b".pyd"]) {
        return Some(PYTHON);
    }
    if matches!(name, b"__init__.so" | b"__pycache__" | b"pyvenv.cfg" | b"pybuilddir.txt")
        || name.starts_with(b"python3") && ends(&[b".zip"])
    {
        return Some(PYTHON);
    }
    if ends(&[b".pm", b".pmc", b".pl", b".ph", b".al", b".ix"]) {
        return Some(PERL);
    }
    if above(&[b"locale", b"locale-langpack", b"LC_MESSAGES", b"i18n"])
        || ends(&[b".mo"])
        || name == b"locale-archive"
    {
        return Some(LOCALE);
    }
    if name == b"glibc-hwcaps"
        || above(&[b"glibc-hwcaps"])
        || matches!(name, b"tls" | b"haswell" | b"x86_64" | b"x86-64-v2" | b"x86-64-v3" | b"x86-64-v4")
    {
        return Some(LOADER);
    }
    if name.starts_with(b"lib") && has(b".so") || has(b".so.") {
        return Some(LOADER);
    }
    if ends(&[b".so"]) {
        return Some(if above(&[b"site-packages", b"dist-packages", b"lib-dynload"]) {
            PYTHON
        } else {
            LOADER
        });
    }
    if above(&[b"site-packages", b"dist-packages"]) {
        return Some(PYTHON);
    }
    let by_ending: [(&[&[u8]], &'static str); 10] = [
        (&[b".jar", b".class", b".jmod", b".jsa"], "CLASSPATH or JAVA_HOME"),
        (&[b".rdx", b".rdb", b".rds", b".RData", b".Rprofile", b".Renviron"], "R_LIBS"),
        (&[b".rb", b".gemspec"], "RUBYLIB, GEM_PATH"),
        (&[b".tcl", b".tm"], "TCLLIBPATH"),
        (&[b".lua"], "LUA_PATH"),
        (&[b".mjs", b".cjs", b".js", b".node"], "NODE_PATH"),
        (&[b".pc"], "PKG_CONFIG_PATH"),
        (&[b".h", b".hpp"], "CPATH"),
        (&[b".cmake"], "CMAKE_PREFIX_PATH"),
        (&[b".nal", b".pal", b".nin", b".pin", b".ndb", b".pdb", b".ncbirc"], "BLASTDB"),
    ];
    if let Some((_, variable)) = by_ending.iter().find(|(endings, _)| ends(endings)) {
        return Some(variable);
    }
    if above(&[b"terminfo"]) {
        return Some("TERMINFO");
    }
    if above(&[b"gconv"]) {
        return Some("GCONV_PATH");
    }
    (above(&[b"bin", b"sbin"]) && paths.name(paths.parent(path)).ends_with(b"bin")).then_some(PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(paths: &mut Paths, text: &[u8]) -> PathId {
        text.split(|b| *b == b'/')
            .filter(|n| !n.is_empty())
            .fold(PathId::ROOT, |at, name| paths.child(at, name))
    }

    #[test]
    fn the_kind_of_name_determines_the_variable() {
        let mut paths = Paths::default();
        let searches = Searches::default();
        for (path, kind) in [
            ("/a/lib/libx.so.1", Some(LOADER)),
            ("/a/lib/glibc-hwcaps/x86-64-v3", Some(LOADER)),
            ("/a/site-packages/x.libs/tls/haswell", Some(LOADER)),
            ("/a/lib/glibc-hwcaps/x86-64-v3/libm.so.6", Some(LOADER)),
            ("/a/numpy/__init__.cpython-311-x86_64-linux-gnu.so", Some(PYTHON)),
            ("/a/numpy/__init__.py", Some(PYTHON)),
            ("/usr/share/perl5/Bio/SeqIO.pmc", Some(PERL)),
            ("/usr/share/locale/en_US/LC_MESSAGES/libc.mo", Some(LOCALE)),
            ("/usr/local/bin/python", Some(PATH)),
            ("/db/nt.nal", Some("BLASTDB")),
            ("/app/node_modules/a/index.js", Some("NODE_PATH")),
            ("/app/include/a.hpp", Some("CPATH")),
            ("/data/genome.fa", None),
        ] {
            let id = add(&mut paths, path.as_bytes());
            let found = searches.kind(&paths, id, Effect::Inspect);
            assert_eq!(found, kind.map(SearchKind::Names), "{path}");
        }
        let program = add(&mut paths, b"/opt/x/tool");
        assert_eq!(searches.kind(&paths, program, Effect::Execute), Some(SearchKind::Names(PATH)));
    }

    #[test]
    fn a_variable_that_is_not_set_is_not_named() {
        let mut paths = Paths::default();
        let kind = SearchKind::Names("NODE_PATH");
        assert_eq!(Searches::default().name(&kind).0, "module search of node");
        let set = variables([(b"NODE_PATH".as_slice(), b"/app/modules".as_slice())].into_iter());
        let searches = Searches::new(set, |directory| add(&mut paths, directory));
        assert_eq!(searches.name(&kind).0, "NODE_PATH");
        assert_eq!(searches.name(&SearchKind::Names("CPATH")).0, "include directories of the compiler");
        // Variables that a user sets for a program keep their names.
        assert_eq!(Searches::default().name(&SearchKind::Names("BLASTDB")).0, "BLASTDB");
    }

    #[test]
    fn the_environment_has_priority_over_the_kind_of_name() {
        let environment = [
            (b"LD_LIBRARY_PATH".as_slice(), b"/sw/lib:/sw/lib64:".as_slice()),
            (b"PATH", b"/sw/bin:/usr/bin"),
            (b"HOME", b"/home/u"),
            (b"MYAPP_PATH", b"/sw/lib:/sw/data"),
            (b"PERL5LIB", b"/sw/perl"),
        ];
        let variables = variables(environment.into_iter());
        assert_eq!(
            variables.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(),
            ["LD_LIBRARY_PATH", "MYAPP_PATH", "PATH", "PERL5LIB"]
        );
        let mut paths = Paths::default();
        let searches = Searches::new(variables, |directory| add(&mut paths, directory));
        for (path, name) in [
            ("/sw/lib/libx.so", "LD_LIBRARY_PATH"),
            ("/sw/data/genome.fa", "MYAPP_PATH"),
            ("/sw/bin/tool", "PATH"),
            ("/sw/bin/tool.py", PYTHON),
            ("/sw/perl/Bio/Seq/IO.pm", "PERL5LIB"),
            ("/sw/perl/Bio/x.py", PYTHON),
            ("/sw/lib/plugins/libx.so", LOADER),
        ] {
            let id = add(&mut paths, path.as_bytes());
            let kind = searches.kind(&paths, id, Effect::Inspect).expect(path);
            assert_eq!(searches.name(&kind).0, name, "{path}");
        }
    }
}
