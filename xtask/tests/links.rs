//! Checks the links of all Markdown files of the repository: the file to which a relative link
//! refers exists in the repository, and has the heading that the part after `#` names. Links to
//! other hosts are not checked, because the tests need no network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The links and the identifiers of the headings of a document.
struct Document {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

#[test]
fn links_refer_to_files_and_headings_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace");
    let mut documents = BTreeMap::new();
    read_documents(root, Path::new(""), &mut documents);
    assert!(documents.contains_key(Path::new("docs/glossary.md")), "the documents were not found");

    let mut checked = 0;
    let mut problems = Vec::new();
    for (path, document) in &documents {
        for link in document.links.iter().filter(|link| !is_external(link)) {
            checked += 1;
            if let Err(problem) = check(root, path, link, &documents) {
                problems.push(format!("{}: ({link}): {problem}", path.display()));
            }
        }
    }
    assert!(problems.is_empty(), "broken links:\n{}", problems.join("\n"));
    assert!(checked > 100, "only {checked} links were found");
}

#[test]
fn identifiers_of_headings_are_those_of_github() {
    let text = "# A `--flag` of `quell run`\n\n## Files, and *names*\n\n## Same\n\n## Same\n";
    let expected = ["a---flag-of-quell-run", "files-and-names", "same", "same-1"];
    assert_eq!(parse(text).anchors, expected.map(str::to_owned).into());
}

#[test]
fn a_link_to_nothing_is_a_problem() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documents = BTreeMap::from([(PathBuf::from("pages/a.md"), parse("# Name\n"))]);
    let check = |link| check(root, Path::new("pages/b.md"), link, &documents);
    assert_eq!(check("a.md#name"), Ok(()));
    assert_eq!(check("../Cargo.toml"), Ok(()));
    assert!(check("a.md#other").unwrap_err().contains("no heading"));
    assert!(check("missing.txt").unwrap_err().contains("does not exist"));
    assert!(check("../../secret").unwrap_err().contains("outside"));
}

/// Reads the Markdown files below `directory`, except in directories of build results and in hidden
/// ones.
fn read_documents(root: &Path, directory: &Path, documents: &mut BTreeMap<PathBuf, Document>) {
    for entry in std::fs::read_dir(root.join(directory)).expect("a directory of the repository") {
        let entry = entry.expect("an entry");
        let name = entry.file_name();
        let path = directory.join(&name);
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            let hidden = name.as_encoded_bytes().starts_with(b".");
            if !hidden && name != "target" {
                read_documents(root, &path, documents);
            }
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(root.join(&path)).expect("a text");
            documents.insert(path, parse(&text));
        }
    }
}

fn parse(text: &str) -> Document {
    let mut document = Document { links: Vec::new(), anchors: BTreeSet::new() };
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let name = identifier(&heading.take().expect("a heading has begun"));
                let others = document.anchors.iter();
                let same = others.filter(|other| is_repetition(other, &name)).count();
                let anchor = if same == 0 { name } else { format!("{name}-{same}") };
                document.anchors.insert(anchor);
            }
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                document.links.push(dest_url.into_string());
            }
            _ => {}
        }
    }
    document
}

/// Returns the identifier that GitHub gives a heading.
fn identifier(heading: &str) -> String {
    let kept = heading.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns whether `anchor` is `name`, or `name` with the number of a repetition.
fn is_repetition(anchor: &str, name: &str) -> bool {
    let Some(rest) = anchor.strip_prefix(name) else { return false };
    let digits = rest.strip_prefix('-');
    rest.is_empty() || digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
}

fn is_external(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

fn check(
    root: &Path,
    from: &Path,
    link: &str,
    documents: &BTreeMap<PathBuf, Document>,
) -> Result<(), String> {
    let (file, anchor) = match link.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (link, None),
    };
    let directory = from.parent().expect("a document is in a directory");
    let path = if file.is_empty() { Some(from.to_owned()) } else { join(directory, file) };
    let path = path.ok_or_else(|| "is outside of the repository".to_owned())?;
    let document = documents.get(&path);
    if document.is_none() && !root.join(&path).exists() {
        return Err(format!("{} does not exist", path.display()));
    }
    match (anchor, document) {
        (Some(anchor), Some(document)) if !document.anchors.contains(anchor) => {
            Err(format!("{} has no heading with this name", path.display()))
        }
        _ => Ok(()),
    }
}

/// Joins a directory of the repository and a relative path; `None` if the result is outside of the
/// repository.
fn join(directory: &Path, path: &str) -> Option<PathBuf> {
    let mut joined = directory.to_owned();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => joined.push(name),
            Component::ParentDir => {
                if !joined.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(joined)
}
