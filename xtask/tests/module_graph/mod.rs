//! The graph of a crate's modules: reads its sources with `syn` and finds which module uses an item
//! that another module defines.
//!
//! A module here is a file; an inline `mod name { ... }` belongs to its file. Code for tests
//! (`#[cfg(test)]`) is left out. A path is followed through imports and re-exports to the module
//! that defines the item. A re-export of an item of a child module does not count as a use.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};

/// The names from the crate's root to a module; empty for the root.
pub type ModulePath = Vec<String>;
/// The segments of a path in the source, such as `crate`, `format`, `Frame`.
type Segments = Vec<String>;

/// Imports and re-exports are followed at most this far, so that `use` items that name each other
/// end.
const IMPORTS_MAX: usize = 32;

#[derive(Default)]
struct Module {
    /// The module whose file contains the code: the module itself, or the one around an inline
    /// module.
    file: ModulePath,
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    /// The names that `use` items bring into scope.
    imports: BTreeMap<String, Segments>,
    /// The modules whose names `use path::*` brings into scope.
    globs: Vec<Segments>,
    /// The paths in code, and private imports.
    uses: Vec<Segments>,
    /// The modules whose names are all imported privately.
    glob_uses: Vec<Segments>,
    /// The paths of `pub use` items.
    re_exports: Vec<Segments>,
}

/// The meaning of a path.
enum Target {
    Module(ModulePath),
    /// An item that this module defines.
    Item(ModulePath),
}

/// One module uses an item of another one.
pub struct Edge {
    /// The path in the source that makes the edge.
    pub path: String,
}

/// The modules of a crate with the edges between them.
pub struct Graph {
    edges: BTreeMap<ModulePath, BTreeMap<ModulePath, Edge>>,
}

/// Modules of which each reaches all others.
pub struct Component {
    pub modules: Vec<ModulePath>,
    /// A shortest cycle among the modules; the first module is repeated at the end.
    pub cycle: Vec<ModulePath>,
}

/// Returns a module's name as it is printed; the root is `crate`.
pub fn printed(module: &ModulePath) -> String {
    if module.is_empty() { "crate".into() } else { module.join("::") }
}

impl Graph {
    /// Reads the crate whose root is the file `root`. `read` returns the content of a file, or
    /// `None` if there is no such file.
    pub fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Graph {
        let mut modules = Modules { modules: BTreeMap::new(), read };
        modules.add_file(root, Vec::new());
        Graph { edges: modules.edges() }
    }

    /// Returns the edge from a module to another one, if there is one.
    pub fn edge(&self, from: &ModulePath, to: &ModulePath) -> Option<&Edge> {
        self.edges.get(from)?.get(to)
    }

    /// Returns the groups of modules that form cycles.
    pub fn cycles(&self) -> Vec<Component> {
        let reached: BTreeMap<_, _> = self.edges.keys().map(|m| (m, self.distances(m))).collect();
        let mut left: BTreeSet<_> = self.edges.keys().collect();
        let mut components = Vec::new();
        while let Some(module) = left.pop_first() {
            let mutual = |other: &&ModulePath| {
                reached[module].contains_key(*other)
                    && reached.get(*other).is_some_and(|from_other| from_other.contains_key(module))
            };
            let modules: Vec<ModulePath> = self.edges.keys().filter(mutual).cloned().collect();
            if modules.is_empty() {
                continue;
            }
            left.retain(|other| !modules.contains(other));
            let shortest = modules.iter().min_by_key(|m| reached[m][m].0).expect("it is not empty");
            let mut cycle = vec![shortest.clone()];
            loop {
                let before = &reached[shortest][&cycle[0]].1;
                cycle.insert(0, before.clone());
                if before == shortest {
                    break;
                }
            }
            components.push(Component { modules, cycle });
        }
        components
    }

    /// Returns for each module that `from` reaches the number of steps (at least one) and the
    /// module before it.
    fn distances(&self, from: &ModulePath) -> BTreeMap<&ModulePath, (usize, ModulePath)> {
        let mut found = BTreeMap::new();
        let mut queue = VecDeque::from([(from, 0)]);
        while let Some((module, steps)) = queue.pop_front() {
            for next in self.edges.get(module).into_iter().flat_map(|edges| edges.keys()) {
                if !found.contains_key(next) {
                    found.insert(next, (steps + 1, module.clone()));
                    queue.push_back((next, steps + 1));
                }
            }
        }
        found
    }
}

struct Modules<'a> {
    modules: BTreeMap<ModulePath, Module>,
    read: &'a dyn Fn(&Path) -> Option<String>,
}

impl Modules<'_> {
    /// Reads a file as the module `path`, and the modules that it declares.
    fn add_file(&mut self, file: &Path, path: ModulePath) {
        let text = (self.read)(file).unwrap_or_else(|| panic!("{}: no such file", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let directory = file.parent().unwrap_or(Path::new(""));
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let below = match stem {
            "lib" | "main" | "mod" => directory.to_path_buf(),
            stem => directory.join(stem),
        };
        self.add_items(&parsed.items, path.clone(), &path, directory, &below);
    }

    /// Adds a module with these items. `file` is the module of the file; files of child modules are
    /// in the directory `below`, and those with a `path` attribute are relative to `directory`.
    fn add_items(
        &mut self,
        items: &[syn::Item],
        path: ModulePath,
        file: &ModulePath,
        directory: &Path,
        below: &Path,
    ) {
        let mut code = Code { module: Module { file: file.clone(), ..Module::default() } };
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            let syn::Item::Mod(declared) = item else {
                code.visit_item(item);
                if let Some(name) = defined_name(item) {
                    code.module.items.insert(name);
                }
                continue;
            };
            let name = declared.ident.to_string();
            let child = [path.as_slice(), std::slice::from_ref(&name)].concat();
            code.module.children.insert(name.clone());
            if let Some((_, content)) = &declared.content {
                let below = below.join(&name);
                self.add_items(content, child, file, &below, &below);
                continue;
            }
            let candidates: Vec<PathBuf> = match path_attribute(&declared.attrs) {
                Some(explicit) => vec![directory.join(explicit)],
                None => vec![below.join(format!("{name}.rs")), below.join(&name).join("mod.rs")],
            };
            let found = candidates.iter().find(|file| (self.read)(file).is_some());
            let found = found.unwrap_or_else(|| panic!("no file for module {name}: {candidates:?}"));
            self.add_file(found, child);
        }
        let exported = items.iter().filter(|item| is_exported_macro(item)).filter_map(defined_name);
        let exported: Vec<String> = exported.collect();
        let before = self.modules.insert(path.clone(), code.module);
        if let Some(before) = before {
            // Keeps the macros that modules below this root have already exported.
            self.modules.entry(path.clone()).or_default().imports.extend(before.imports);
        }
        for name in exported.into_iter().filter(|_| !path.is_empty()) {
            // An exported macro has its path at the root, wherever it is written.
            let origin = [vec!["crate".into()], path.clone(), vec![name.clone()]].concat();
            self.modules.entry(Vec::new()).or_default().imports.insert(name, origin);
        }
    }

    fn edges(&self) -> BTreeMap<ModulePath, BTreeMap<ModulePath, Edge>> {
        let mut edges: BTreeMap<ModulePath, BTreeMap<ModulePath, Edge>> = BTreeMap::new();
        for (path, module) in &self.modules {
            edges.entry(module.file.clone()).or_default();
            let mut add = |to: &ModulePath, segments: &Segments| {
                let (from, to) = (&module.file, &self.modules[to].file);
                if from != to {
                    let edge = || Edge { path: segments.join("::") };
                    edges.entry(from.clone()).or_default().entry(to.clone()).or_insert_with(edge);
                }
            };
            for segments in &module.uses {
                // A module that is imported as a whole is used by the paths through it.
                if let Some(Target::Item(to)) = self.resolve(path, segments, false, IMPORTS_MAX) {
                    add(&to, segments);
                }
            }
            for segments in &module.glob_uses {
                if let Some(Target::Module(to)) = self.resolve(path, segments, true, IMPORTS_MAX) {
                    add(&to, segments);
                }
            }
            for segments in &module.re_exports {
                match self.resolve(path, segments, false, IMPORTS_MAX) {
                    Some(Target::Item(to)) if !to.starts_with(path) => add(&to, segments),
                    _ => {}
                }
            }
        }
        edges
    }

    /// Returns the meaning of a path in the module `from`, or `None` if it leads out of the crate.
    /// `is_prefix`: more segments follow, so a module is preferred to an item of the same name.
    fn resolve(&self, from: &ModulePath, path: &[String], is_prefix: bool, imports: usize) -> Option<Target> {
        let mut at = from.clone();
        let mut rest = path;
        let mut is_local = true;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                _ => break,
            }
            (rest, is_local) = (others, false);
        }
        while let Some((name, others)) = rest.split_first() {
            match self.named(&at, name, is_prefix || !others.is_empty(), imports) {
                Some(Target::Module(module)) => at = module,
                Some(item) => return Some(item),
                None if is_local => return None,
                // The name may be the name of a library that the module re-exports.
                None => return Some(Target::Item(at)),
            }
            (rest, is_local) = (others, false);
        }
        Some(Target::Module(at))
    }

    /// Returns the meaning of a name in a module's scope.
    fn named(&self, module: &ModulePath, name: &str, is_prefix: bool, imports: usize) -> Option<Target> {
        let imports = imports.checked_sub(1)?;
        let scope = self.modules.get(module)?;
        let child = || {
            let path = [module.as_slice(), &[name.to_owned()]].concat();
            scope.children.contains(name).then_some(Target::Module(path))
        };
        let item = || scope.items.contains(name).then(|| Target::Item(module.clone()));
        let own = if is_prefix { child().or_else(item) } else { item().or_else(child) };
        if own.is_some() {
            return own;
        }
        if let Some(origin) = scope.imports.get(name) {
            // `use name;` in the 2018 editions and later means the library.
            let is_library = origin.len() == 1 && origin[0] == name;
            return if is_library { None } else { self.resolve(module, origin, is_prefix, imports) };
        }
        scope.globs.iter().find_map(|glob| match self.resolve(module, glob, true, imports)? {
            Target::Module(other) if other != *module => self.named(&other, name, is_prefix, imports),
            _ => None,
        })
    }
}

/// Collects the paths in the code of one module.
struct Code {
    module: Module,
}

impl Code {
    /// Adds one name of a `use` item.
    fn import(&mut self, path: Segments, name: Option<String>, is_re_export: bool) {
        let Some(name) = name else {
            self.module.globs.push(path.clone());
            if !is_re_export {
                self.module.glob_uses.push(path);
            }
            return;
        };
        if is_re_export {
            self.module.re_exports.push(path.clone());
        } else {
            self.module.uses.push(path.clone());
        }
        self.module.imports.insert(name, path);
    }

    fn add_use(&mut self, tree: &syn::UseTree, before: &Segments, is_re_export: bool) {
        let with = |name: &syn::Ident| [before.as_slice(), &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.add_use(&path.tree, &with(&path.ident), is_re_export),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_use(tree, before, is_re_export));
            }
            syn::UseTree::Glob(_) => self.import(before.clone(), None, is_re_export),
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.import(before.clone(), before.last().cloned(), is_re_export);
            }
            syn::UseTree::Name(name) => {
                self.import(with(&name.ident), Some(name.ident.to_string()), is_re_export);
            }
            syn::UseTree::Rename(renamed) => {
                let path = if renamed.ident == "self" { before.clone() } else { with(&renamed.ident) };
                self.import(path, Some(renamed.rename.to_string()), is_re_export);
            }
        }
    }

    /// Collects the paths in the tokens of a macro. A single lower-case name counts only if it is
    /// called, because most are variables.
    fn scan(&mut self, mut cursor: Cursor<'_>) {
        let mut is_member = false;
        while !cursor.eof() {
            if let Some((name, rest)) = cursor.ident() {
                let mut path = vec![name.to_string()];
                cursor = rest;
                while let Some((name, rest)) = path_separator(cursor).and_then(|rest| rest.ident()) {
                    path.push(name.to_string());
                    cursor = rest;
                }
                let is_called = cursor.any_group().is_some();
                let is_lower = path[0].starts_with(|c: char| c.is_lowercase());
                if !is_member && (path.len() > 1 || is_called || !is_lower) {
                    self.module.uses.push(path);
                }
                is_member = false;
            } else if let Some((inside, _, _, rest)) = cursor.any_group() {
                self.scan(inside);
                (cursor, is_member) = (rest, false);
            } else {
                is_member = cursor.punct().is_some_and(|(punct, _)| punct.as_char() == '.');
                let skipped = cursor.punct().map(|(_, rest)| rest);
                let skipped = skipped.or_else(|| cursor.literal().map(|(_, rest)| rest));
                let skipped = skipped.or_else(|| cursor.lifetime().map(|(_, rest)| rest));
                cursor = skipped.expect("a token of one of the kinds");
            }
        }
    }
}

/// Returns the position behind `::`.
fn path_separator(cursor: Cursor<'_>) -> Option<Cursor<'_>> {
    let colon = |cursor: Cursor<'_>| cursor.punct().is_some_and(|(punct, _)| punct.as_char() == ':');
    let (_, second) = cursor.punct().filter(|_| colon(cursor))?;
    let (_, behind) = second.punct().filter(|_| colon(second))?;
    Some(behind)
}

impl<'ast> Visit<'ast> for Code {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Const(item) => &item.attrs,
            syn::ImplItem::Fn(item) => &item.attrs,
            syn::ImplItem::Type(item) => &item.attrs,
            syn::ImplItem::Macro(item) => &item.attrs,
            _ => return,
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            let is_re_export = !matches!(item.vis, syn::Visibility::Inherited);
            self.add_use(&item.tree, &Vec::new(), is_re_export);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.module.uses.push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        self.scan(TokenBuffer::new2(called.tokens.clone()).begin());
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {} // `pub(in crate::path)` uses nothing

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::ForeignMod(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether attributes restrict an item to tests: `cfg(test)` or `cfg(all(test, ...))`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let mut found = false;
        // Other parts of the condition are ignored, including errors in them.
        let _ = attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("test") {
                found = true;
            } else if meta.path.is_ident("all") {
                meta.parse_nested_meta(|inner| {
                    found |= inner.path.is_ident("test");
                    Ok(())
                })?;
            }
            Ok(())
        });
        found
    })
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    match &attribute.meta.require_name_value().ok()?.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
        _ => None,
    }
}

fn is_exported_macro(item: &syn::Item) -> bool {
    matches!(item, syn::Item::Macro(item) if item.attrs.iter().any(|a| a.path().is_ident("macro_export")))
}

/// Returns the name that an item defines in its module; `None` for imports, modules and `impl`
/// blocks.
fn defined_name(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}
