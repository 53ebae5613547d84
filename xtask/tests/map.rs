//! Compares the tables of ARCHITECTURE.md with the dependencies of the crates, and checks the
//! project's rules for files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Names that say nothing about the content of a file.
const MEANINGLESS_NAMES: [&str; 6] = ["utils", "util", "helpers", "helper", "misc", "common"];
/// Directories with files of other projects, or generated files.
const FOREIGN_DIRECTORIES: [&str; 6] =
    ["target", ".git", "corpus", "artifacts", "node_modules", "__pycache__"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_path_buf()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn manifest(path: impl AsRef<Path>) -> toml::Table {
    let path = path.as_ref();
    read(path).parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// One crate of the workspace.
struct Member {
    name: String,
    directory: String,
    dependencies: BTreeSet<String>,
    for_tests: BTreeSet<String>,
}

fn members() -> Vec<Member> {
    let workspace = manifest("Cargo.toml");
    let members = workspace["workspace"]["members"].as_array().expect("a list").clone();
    let member = |directory: toml::Value| {
        let directory = directory.as_str().expect("a path").to_owned();
        let table = manifest(Path::new(&directory).join("Cargo.toml"));
        Member {
            name: table["package"]["name"].as_str().expect("a name").to_owned(),
            directory,
            dependencies: names_in(&table, &["dependencies", "build-dependencies"]),
            for_tests: names_in(&table, &["dev-dependencies"]),
        }
    };
    members.into_iter().map(member).collect()
}

/// Returns the packages in these tables, including dependencies of specific targets.
fn names_in(manifest: &toml::Table, tables: &[&str]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut parents = vec![manifest];
    let targets = manifest.get("target").and_then(|t| t.as_table());
    parents.extend(targets.into_iter().flat_map(|t| t.values()).filter_map(|t| t.as_table()));
    for table in parents.iter().flat_map(|parent| tables.iter().filter_map(|t| parent.get(*t)?.as_table())) {
        for (key, dependency) in table {
            let renamed = dependency.get("package").and_then(|p| p.as_str());
            names.insert(renamed.unwrap_or(key).to_owned());
        }
    }
    names
}

/// Returns the rows of the table below a heading; each cell is the set of its words in backticks.
fn table_below(heading: &str) -> BTreeMap<String, Vec<BTreeSet<String>>> {
    let text = read("ARCHITECTURE.md");
    let below = text
        .split_once(&format!("{heading}\n"))
        .unwrap_or_else(|| panic!("no heading {heading} in ARCHITECTURE.md"))
        .1;
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let rows = below.lines().take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with("| `"));
    let mut table = BTreeMap::new();
    for row in rows {
        let mut cells = row.trim_matches('|').split('|').map(words);
        let key = cells.next().and_then(|cell| cell.into_iter().next()).expect("a row begins with a name");
        assert!(table.insert(key.clone(), cells.collect()).is_none(), "{heading}: `{key}` has two rows");
    }
    assert!(!table.is_empty(), "{heading}: no rows");
    table
}

fn is_member(name: &str, members: &[Member]) -> bool {
    members.iter().any(|member| member.name == name)
}

#[test]
fn the_tables_list_exactly_the_crates_of_the_workspace() {
    let members = members();
    let crates: BTreeSet<_> = members.iter().map(|m| m.name.clone()).collect();
    for heading in ["## Crates", "## Allowed dependencies"] {
        let listed: BTreeSet<_> = table_below(heading).into_keys().collect();
        assert_eq!(listed, crates, "{heading}");
    }
    let described = table_below("## Crates");
    for member in &members {
        let directory = &described[&member.name][0];
        assert!(directory.contains(&member.directory), "{}: {directory:?}", member.name);
    }
}

#[test]
fn every_dependency_is_in_the_table() {
    let members = members();
    let edges = table_below("## Allowed dependencies");
    let mut wrong = Vec::new();
    for member in &members {
        let [allowed, in_tests] = edges[&member.name].as_slice() else { panic!("{}", member.name) };
        for to in allowed.union(in_tests).filter(|to| !is_member(to, &members)) {
            wrong.push(format!(
                "the table allows {} to depend on {to}, which is not a crate of the workspace",
                member.name
            ));
        }
        for to in member.dependencies.iter().filter(|to| is_member(to, &members) && !allowed.contains(*to)) {
            wrong.push(format!("{} depends on {to}", member.name));
        }
        let test_edges = member.for_tests.iter().filter(|to| is_member(to, &members));
        for to in test_edges.filter(|to| !allowed.contains(*to) && !in_tests.contains(*to)) {
            wrong.push(format!("{}'s tests depend on {to}", member.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "not allowed by the table in ARCHITECTURE.md; change the code, or the table with a reason:\n  {}",
        wrong.join("\n  ")
    );
}

#[test]
fn every_library_is_linked_only_by_the_crates_of_its_row() {
    let members = members();
    let libraries = table_below("### External libraries");
    let mut wrong = Vec::new();
    for member in &members {
        for library in member.dependencies.iter().filter(|name| !is_member(name, &members)) {
            match libraries.get(library) {
                Some(linking) if linking[0].contains(&member.name) => {}
                _ => wrong.push(format!("{} links {library}", member.name)),
            }
        }
        let is_known = |name: &&String| is_member(name, &members) || libraries.contains_key(*name);
        for library in member.for_tests.iter().filter(|name| !is_known(name)) {
            wrong.push(format!("{}'s tests link {library}", member.name));
        }
    }
    for (library, linking) in &libraries {
        let is_in_tests = || members.iter().any(|member| member.for_tests.contains(library));
        if linking[0].is_empty() && !is_in_tests() {
            wrong.push(format!("the table lists {library} for tests, and no test links it"));
        }
        for name in linking[0].iter() {
            let linked = members.iter().any(|m| m.name == *name && m.dependencies.contains(library));
            if !linked {
                wrong.push(format!("the table lists {name} for {library}, which it does not link"));
            }
        }
    }
    assert!(wrong.is_empty(), "different from the table in ARCHITECTURE.md:\n  {}", wrong.join("\n  "));
}

#[test]
fn every_library_is_pinned_and_has_a_reason_for_its_choice() {
    let libraries: BTreeSet<String> = table_below("### External libraries").into_keys().collect();
    let workspace = manifest("Cargo.toml");
    let pinned = workspace["workspace"]["dependencies"].as_table().expect("a table").iter();
    let pinned = pinned.filter(|(_, requirement)| requirement.get("path").is_none());
    assert_eq!(pinned.map(|(name, _)| name.clone()).collect::<BTreeSet<_>>(), libraries, "Cargo.toml");
    let decision = "docs/decisions/0005-dependencies.md";
    let text = read(decision);
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let explained = rows.filter(|cell| *cell != "crate").flat_map(|cell| cell.split(", "));
    assert_eq!(explained.map(str::to_owned).collect::<BTreeSet<_>>(), libraries, "{decision}");
}

/// Returns the libraries that only the crates in their row may link, with the reason in the third
/// cell.
fn reasons() -> Vec<(String, String)> {
    let text = read("ARCHITECTURE.md");
    let below = text.split_once("### External libraries\n").expect("the heading is there").1;
    let rows = below.lines().take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let kept = cells.filter_map(|cells| match cells[..] {
        [library, _, reason] if !reason.is_empty() => {
            Some((library.trim_matches('`').to_owned(), reason.into()))
        }
        [_, _, _] => None,
        _ => panic!("a row of the table of libraries does not have three cells: {cells:?}"),
    });
    kept.collect()
}

/// Returns the external packages in the lock file that depend on `package`.
fn dependents_among_others(package: &str, members: &[Member]) -> BTreeSet<String> {
    let lock = manifest("Cargo.lock");
    let packages = lock["package"].as_array().expect("a list");
    let name = |package: &toml::Value| package["name"].as_str().expect("a name").to_owned();
    let depends = |on: &&toml::Value| {
        let dependencies = on.get("dependencies").and_then(|d| d.as_array()).into_iter().flatten();
        dependencies.filter_map(|d| d.as_str()?.split(' ').next()).any(|d| d == package)
    };
    packages.iter().filter(depends).map(name).filter(|name| !is_member(name, members)).collect()
}

/// Returns the lines of deny.toml between `BEGIN` and `END`, which ARCHITECTURE.md determines: the
/// crates that may link each library.
fn denials() -> String {
    let members = members();
    let linking = table_below("### External libraries");
    let mut kept = reasons();
    kept.push(("quell-testkit".into(), "for tests and benchmarks; linked into no release".into()));
    let mut lines = String::new();
    for (package, reason) in kept {
        let mut wrappers = linking.get(&package).map_or_else(BTreeSet::new, |crates| crates[0].clone());
        wrappers.extend(members.iter().filter(|m| m.for_tests.contains(&package)).map(|m| m.name.clone()));
        wrappers.extend(dependents_among_others(&package, &members));
        let wrappers: Vec<String> = wrappers.iter().map(|name| format!("{name:?}")).collect();
        let wrappers = wrappers.join(", ");
        lines += &format!("    {{ crate = {package:?}, wrappers = [{wrappers}], reason = {reason:?} }},\n");
    }
    lines
}

/// Compares the lines in deny.toml with those of the architecture. With `BLESS=1` in the
/// environment, writes them instead.
#[test]
fn deny_toml_agrees_with_the_table_of_libraries() {
    let (begin, end) = ("    # BEGIN: written by `make fix` from ARCHITECTURE.md\n", "    # END\n");
    let text = read("deny.toml");
    let (before, rest) = text.split_once(begin).expect("deny.toml has the line BEGIN");
    let (found, after) = rest.split_once(end).expect("deny.toml has the line END");
    let generated = denials();
    if std::env::var_os("BLESS").is_some() {
        fs::write(root().join("deny.toml"), [before, begin, &generated, end, after].concat())
            .expect("it can be written");
    } else {
        assert!(
            found == generated,
            "deny.toml differs from ARCHITECTURE.md; `make fix` writes, between BEGIN and END:\n{generated}"
        );
    }
}

#[test]
fn libraries_are_pinned_in_one_place() {
    let workspace = manifest("Cargo.toml");
    let libraries = workspace["workspace"]["dependencies"].as_table().expect("a table");
    for (name, requirement) in libraries {
        let version = requirement.as_str().or_else(|| requirement.get("version").and_then(|v| v.as_str()));
        let pinned = version.is_some_and(|v| v.starts_with('='));
        assert!(pinned || requirement.get("path").is_some(), "{name} is not pinned to one version");
    }
    for member in members() {
        let path = Path::new(&member.directory).join("Cargo.toml");
        let table = manifest(&path);
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, requirement) in table.get(kind).and_then(|t| t.as_table()).into_iter().flatten() {
                let inherited = requirement.get("workspace").and_then(|w| w.as_bool()) == Some(true);
                assert!(
                    inherited,
                    "{}: {name} does not inherit its version from the workspace",
                    path.display()
                );
            }
        }
        let lints = table.get("lints").and_then(|l| l.get("workspace")?.as_bool());
        assert_eq!(lints, Some(true), "{} does not inherit the lints of the workspace", path.display());
    }
}

/// Returns all files of the repository with this ending, relative to its root.
fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![root()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !FOREIGN_DIRECTORIES.contains(&name.as_str()) {
                directories.push(path);
            } else if kind.is_file() && name.ends_with(ending) {
                found.push(path.strip_prefix(root()).expect("below it").to_path_buf());
            }
        }
    }
    found.sort();
    assert!(!found.is_empty());
    found
}

#[test]
fn every_source_file_begins_with_its_purpose() {
    for path in files(".rs") {
        let text = read(&path);
        let first = text.lines().next().unwrap_or_default();
        let purpose = first.strip_prefix("//! ").unwrap_or_default();
        assert!(purpose.len() > 10, "{} does not begin with `//!` and its purpose", path.display());
    }
}

#[test]
fn no_file_has_a_name_without_meaning() {
    for path in [files(".rs"), files(".py"), files(".c")].concat() {
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let parts = path.parent().into_iter().flat_map(|p| p.iter()).filter_map(|part| part.to_str());
        let meaningless = parts.chain([stem]).find(|part| MEANINGLESS_NAMES.contains(part));
        assert_eq!(meaningless, None, "{}: name the file by its content", path.display());
    }
}

/// Returns the targets of a Markdown file's links.
fn links(text: &str) -> Vec<&str> {
    let ends = |rest: &'static str| move |c: char| rest.contains(c);
    text.split("](").skip(1).filter_map(|rest| rest.split(ends(") \"")).next()).collect()
}

#[test]
fn links_between_documents_have_a_target() {
    let mut broken = Vec::new();
    for path in files(".md") {
        let text = read(&path);
        for link in links(&text) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let from = root().join(&path);
            if !from.parent().expect("a file has one").join(target).exists() {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links to files that do not exist:\n  {}", broken.join("\n  "));
}

/// Returns the words in backticks of a Markdown file, without code blocks.
fn words_in_backticks(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect();
    prose.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A word in backticks that ends as a source file does is the end of a file's path:
/// `view/mount.rs`. A function may follow it: `serve.rs::flush`.
#[test]
fn source_files_that_documents_name_exist() {
    const ENDINGS: [&str; 3] = [".rs", ".py", ".sh"];
    let sources: Vec<PathBuf> = ENDINGS.into_iter().flat_map(files).collect();
    let mut missing = Vec::new();
    for path in files(".md") {
        for word in words_in_backticks(&read(&path)) {
            let name = word.split("::").next().unwrap_or_default();
            let is_path = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
            let is_file = ENDINGS.iter().any(|ending| name.ends_with(ending)) && name.chars().all(is_path);
            if is_file && !sources.iter().any(|source| source.ends_with(name)) {
                missing.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "named in documents, but missing:\n  {}", missing.join("\n  "));
}

#[test]
fn documents_that_the_code_names_exist() {
    let mut missing = Vec::new();
    for path in [files(".rs"), files("Cargo.toml"), files("Makefile")].concat() {
        let text = read(&path);
        let is_path = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
        for word in text.split(|c| !is_path(c)) {
            let word = word.trim_end_matches('.');
            if word.starts_with("docs/") && word.ends_with(".md") && !root().join(word).exists() {
                missing.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "named in the code, but missing:\n  {}", missing.join("\n  "));
}

#[test]
fn every_unsafe_block_has_a_safety_comment() {
    for path in files(".rs") {
        if path.starts_with("xtask") {
            continue; // the search strings are in this file
        }
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let is_unsafe =
                ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|u| code.contains(u));
            // A function states its requirements in its documentation, and a block its reason.
            let states = |line: &&str| line.contains("SAFETY:") || line.contains("# Safety");
            let reason = lines[i.saturating_sub(6)..i].iter().any(states);
            assert!(!is_unsafe || reason, "{}:{}: no `SAFETY:` above it", path.display(), i + 1);
        }
    }
}

/// Crates that contain `unsafe` code, which their `lib.rs` and the architecture explain.
const UNSAFE_CRATES: [&str; 8] = [
    "quell-blob-capi",
    "quell-boundary",
    "quell-capi",
    "quell-overlay",
    "quell-preload",
    "quell-profile",
    "quell-rados",
    "quell-transport",
];

#[test]
fn crates_without_unsafe_code_forbid_it() {
    for member in members() {
        let source = Path::new(&member.directory).join("src");
        let roots = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter();
        for path in roots.filter(|path| root().join(path).exists()) {
            let forbids = read(&path).lines().any(|line| line == "#![forbid(unsafe_code)]");
            let may_be_unsafe = UNSAFE_CRATES.contains(&member.name.as_str());
            assert!(forbids != may_be_unsafe, "{}: add or remove #![forbid(unsafe_code)]", path.display());
        }
    }
}

#[test]
fn libraries_warn_of_missing_documentation() {
    let libraries = members().into_iter().map(|member| Path::new(&member.directory).join("src/lib.rs"));
    for path in libraries.filter(|path| root().join(path).exists()) {
        let warns = read(&path).lines().any(|line| line == "#![warn(missing_docs)]");
        assert!(warns, "{}: add #![warn(missing_docs)]", path.display());
    }
}
