//! Compares the functions that libc.so.6 exports with frontends/preload/table.txt, and the table
//! with the functions that the preload library defines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::skip;
use crate::stage::{Stage, has, quell};

const TABLE: &str = include_str!("../../frontends/preload/table.txt");

/// The treatment of a function by the library, according to the table.
#[derive(Debug, PartialEq, Eq)]
enum Treatment {
    Wrapped,
    Native,
}

struct Table {
    functions: BTreeMap<String, Treatment>,
    /// Functions without I/O. A `*` in a pattern stands for any characters.
    patterns: Vec<String>,
}

impl Table {
    fn read() -> Table {
        let mut table = Table { functions: BTreeMap::new(), patterns: Vec::new() };
        for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.splitn(3, ' ');
            let name = words.next().unwrap().to_owned();
            let (kind, reason) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            assert_eq!(kind != "wrapped", !reason.is_empty(), "a reason is missing or superfluous: {line}");
            let is_new = match kind {
                "wrapped" => table.functions.insert(name, Treatment::Wrapped).is_none(),
                "native" => table.functions.insert(name, Treatment::Native).is_none(),
                "other" => {
                    table.patterns.push(name);
                    true
                }
                _ => panic!("unknown word {kind:?}: {line}"),
            };
            assert!(is_new, "the table has two lines for one function: {line}");
        }
        table
    }
}

/// Returns whether a name has the form of a pattern with at most one `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((begin, end)) => {
            name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end)
        }
    }
}

/// Returns the functions that a shared library exports, as `nm` lists them.
fn exported(stage: &Stage, library: &Path) -> BTreeSet<String> {
    let listed = stage.run(stage.command("nm").args(["-D", "--defined-only"]).arg(library)).expect(0);
    let lines = listed.text();
    let functions = lines.lines().filter_map(|line| {
        let mut words = line.split_whitespace().rev();
        let (name, kind) = (words.next()?, words.next()?);
        let name = name.split('@').next()?;
        matches!(kind, "T" | "W" | "i").then(|| name.to_owned())
    });
    functions.collect()
}

/// Returns the path of the libc that this process uses, if it is glibc.
fn libc_path() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    paths.map(PathBuf::from).find(|path| path.ends_with("libc.so.6"))
}

#[test]
fn every_function_of_libc_is_in_the_table_and_the_wrapped_ones_are_defined() {
    let library = quell().with_file_name("libquell_preload.so");
    let Some(libc) = libc_path() else { skip!("this program does not use glibc") };
    if !has("nm") {
        skip!("no nm (binutils)");
    }
    let stage = Stage::new();
    let table = Table::read();
    let libc_functions = exported(&stage, &libc);
    assert!(libc_functions.contains("openat") && libc_functions.len() > 1000, "nm of {}", libc.display());

    let is_listed = |name: &&String| {
        table.functions.contains_key(*name) || table.patterns.iter().any(|pattern| matches(pattern, name))
    };
    let missing: Vec<&String> = libc_functions.iter().filter(|name| !is_listed(name)).collect();
    assert!(
        missing.is_empty(),
        "{} exports functions that frontends/preload/table.txt does not list: {missing:?}\n\
         If such a function takes or returns a path or a descriptor, define it in \
         frontends/preload/src/wrappers and add the line `NAME wrapped`, or add `NAME native REASON`. \
         Otherwise add `NAME other REASON`.",
        libc.display()
    );

    let own_functions = exported(&stage, &library);
    let defined: BTreeSet<&String> = own_functions.intersection(&libc_functions).collect();
    let wrapped = table.functions.iter().filter(|(_, treatment)| **treatment == Treatment::Wrapped);
    let wrapped: BTreeSet<&String> = wrapped.map(|(name, _)| name).collect();
    let unlisted: Vec<_> = defined.difference(&wrapped).collect();
    assert!(
        unlisted.is_empty(),
        "{} defines functions that frontends/preload/table.txt does not list as `wrapped`: {unlisted:?}",
        library.display()
    );
    let undefined: Vec<_> = wrapped.iter().filter(|name| !own_functions.contains(**name)).collect();
    assert!(
        undefined.is_empty(),
        "frontends/preload/table.txt lists functions as `wrapped` that {} does not define: {undefined:?}",
        library.display()
    );
}

#[test]
fn a_pattern_matches_names_with_its_beginning_and_its_end() {
    assert!(matches("str*", "strlen") && matches("get*ent", "getpwent") && matches("abs", "abs"));
    assert!(!matches("str*", "wcslen") && !matches("get*ent", "gent") && !matches("abs", "labs"));
}
