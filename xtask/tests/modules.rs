//! Checks that the modules of each crate form no cycle, and tests the checker with small sources.

mod module_graph;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use module_graph::{Graph, printed};

/// Crates that still have cycles, and the maximum number of their modules that are part of one. The
/// numbers only become smaller, and a crate without cycles leaves the list.
const KNOWN: [(&str, usize); 0] = [];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_path_buf()
}

/// Returns the directories of the workspace's crates.
fn directories() -> Vec<String> {
    let text = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace's manifest");
    let table: toml::Table = text.parse().expect("it is TOML");
    let members = table["workspace"]["members"].as_array().expect("a list").iter();
    members.map(|member| member.as_str().expect("a path").to_owned()).collect()
}

/// Describes the cycles of a graph, each with the paths that make it; returns the number of modules
/// in cycles as well.
fn describe(graph: &Graph) -> (String, usize) {
    let (mut text, mut count) = (String::new(), 0);
    for component in graph.cycles() {
        count += component.modules.len();
        let cycle: Vec<String> = component.cycle.iter().map(printed).collect();
        text += &format!("    {}\n", cycle.join(" -> "));
        for pair in component.cycle.windows(2) {
            let edge = graph.edge(&pair[0], &pair[1]).expect("a step of a cycle is an edge");
            text += &format!("        {} uses {}\n", printed(&pair[0]), edge.path);
        }
        if component.modules.len() + 1 > component.cycle.len() {
            let all: Vec<String> = component.modules.iter().map(printed).collect();
            text += &format!("        modules that reach each other: {}\n", all.join(", "));
        }
    }
    (text, count)
}

#[test]
fn the_modules_of_each_crate_form_no_cycle() {
    let known = BTreeMap::from(KNOWN);
    let mut failures = String::new();
    for directory in directories() {
        let source = root().join(&directory).join("src");
        let roots = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter();
        let (mut text, mut count) = (String::new(), 0);
        for root in roots.filter(|root| root.exists()) {
            let (more, modules) = describe(&Graph::read(&root, &|path| fs::read_to_string(path).ok()));
            text += &more;
            count += modules;
        }
        let allowed = known.get(directory.as_str()).copied().unwrap_or(0);
        if count > allowed {
            failures += &format!(
                "{directory}: {count} modules are in cycles, {allowed} are allowed. Move the item that \
                 a lower module uses into a module below both, or pass it as an argument:\n{text}"
            );
        } else if count == 0 && known.contains_key(directory.as_str()) {
            failures += &format!(
                "{directory}: no module is in a cycle any more: remove its entry from `KNOWN` in \
                 xtask/tests/modules.rs\n"
            );
        }
    }
    for (directory, _) in KNOWN {
        assert!(root().join(directory).is_dir(), "`KNOWN` names {directory}, which is no crate");
    }
    assert!(failures.is_empty(), "cycles of modules (a cycle a -> b -> a: a uses b, b uses a):\n{failures}");
}

/// Returns the cycles of a crate with these files, as `a -> b -> a`.
fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    let files: BTreeMap<PathBuf, String> =
        files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
    let graph = Graph::read(Path::new("lib.rs"), &|path| files.get(path).cloned());
    let cycle = |c: &module_graph::Component| c.cycle.iter().map(printed).collect::<Vec<_>>().join(" -> ");
    graph.cycles().iter().map(cycle).collect()
}

#[test]
fn a_cycle_through_imports_is_found() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "use super::a; pub struct B(Option<Box<a::A>>);"),
    ];
    assert_eq!(cycles(&files), ["a -> b -> a"]);
}

#[test]
fn a_cycle_through_paths_in_expressions_and_macros_is_found() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "pub fn f() -> u32 { crate::b::g() }"),
        ("b.rs", "pub fn g() -> u32 { assert!(crate::c::h() > 0, \"{}\", 1); 1 }"),
        ("c.rs", "pub fn h() -> u32 { vec![super::a::f()][0] }"),
    ];
    assert_eq!(cycles(&files), ["a -> b -> c -> a"]);
}

#[test]
fn a_cycle_between_a_module_and_its_child_is_found() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a.rs", "mod b; pub struct A; pub fn f() { b::g() }"),
        ("a/b.rs", "use super::A; pub fn g() { let _ = A; }"),
    ];
    assert_eq!(cycles(&files), ["a -> a::b -> a"]);
}

#[test]
fn a_re_export_is_followed_to_the_module_that_defines_the_item() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::A; pub use b::{B, f as g};"),
        ("a/mod.rs", "mod inner; pub use inner::A;"),
        ("a/inner.rs", "pub struct A;"),
        ("b.rs", "use crate::A; pub struct B(A); pub fn f() {}"),
    ];
    assert_eq!(cycles(&files), Vec::<String>::new());
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::A; pub use b::f as g;"),
        ("a.rs", "pub struct A; pub fn h() { crate::g() }"),
        ("b.rs", "use crate::*; pub fn f() { let _: A; }"),
    ];
    assert_eq!(cycles(&files), ["a -> b -> a"], "through a glob import");
    let files = [
        ("lib.rs", "mod a; mod b; pub use a::A; pub use b::f as g;"),
        ("a.rs", "pub struct A; pub fn h() { crate::g() }"),
        ("b.rs", "use crate::A; pub fn f() { let _: A; }"),
    ];
    assert_eq!(cycles(&files), ["a -> b -> a"]);
}

#[test]
fn a_parent_that_only_declares_and_re_exports_its_children_uses_none_of_them() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a.rs", "mod b; pub use b::B; pub struct A;"),
        ("a/b.rs", "use super::A; pub struct B(A);"),
    ];
    assert_eq!(cycles(&files), Vec::<String>::new());
}

#[test]
fn a_parent_that_uses_an_item_that_it_re_exports_is_part_of_the_cycle() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a.rs", "mod b; pub use b::B; pub struct A; fn f() { B::new() }"),
        ("a/b.rs", "use super::A; pub struct B(A);"),
    ];
    assert_eq!(cycles(&files), ["a -> a::b -> a"]);
}

#[test]
fn code_for_tests_makes_no_edge() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "pub struct A; #[cfg(test)] mod tests { use crate::b::B; } #[cfg(test)] #[path = \"x.rs\"] mod x;
             #[cfg(all(test, unix))] use crate::b; impl A { #[cfg(test)] fn f() { crate::b::g() } }",
        ),
        ("b.rs", "use crate::a::A; pub struct B(A); pub fn g() {}"),
    ];
    assert_eq!(cycles(&files), Vec::<String>::new());
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub struct A; #[cfg(not(test))] use crate::b::B;"),
        ("b.rs", "use crate::a::A; pub struct B(A);"),
    ];
    assert_eq!(cycles(&files), ["a -> b -> a"]);
}

#[test]
fn inline_modules_belong_to_their_file() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a.rs", "pub fn f() { inner::g() } pub mod inner { use super::*; pub fn g() { f() } }"),
    ];
    assert_eq!(cycles(&files), Vec::<String>::new());
}

#[test]
fn an_exported_macro_belongs_to_the_module_that_defines_it() {
    let files = [
        ("lib.rs", "mod a; mod b; pub fn f() { b::g() }"),
        ("a.rs", "#[macro_export] macro_rules! m { () => { 1 } }"),
        ("b.rs", "pub fn g() -> u32 { crate::m!() }"),
    ];
    assert_eq!(cycles(&files), Vec::<String>::new());
}

#[test]
fn visibility_and_variables_make_no_edge() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "mod c; pub(in crate::b) fn f(c: u32) -> u32 { assert!(c > 0); c }"),
        ("a/c.rs", "pub(in super::super::b) fn g() { super::f(1); }"),
        ("b.rs", "pub fn h() { crate::a::f(1); }"),
    ];
    assert_eq!(cycles(&files), Vec::<String>::new());
}
