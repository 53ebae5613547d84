//! Promise: an operation whose deadline has passed returns `TimedOut`, if the implementation claims
//! deadlines; otherwise deadlines have no effect.

use std::time::{Duration, Instant};

use quell_vfs::errno::ETIMEDOUT;
use quell_vfs::{Context, Cursor, File, FileSystem, NodeId, Result, resolve};

use super::implementation::{Implementation, node_at, refused, varied_tree};

pub(super) fn check(implementation: &Implementation<'_>) {
    let instance = implementation.create(&varied_tree());
    let fs = &*instance.fs;
    let entries = Entries { dir: node_at(fs, "bin"), file: "bin/tool", name: "tool", link: "bin/link" };
    check_reading(fs, &entries);
}

/// The entries on which [`check_reading`] calls the operations.
pub(super) struct Entries<'a> {
    pub dir: NodeId,
    /// The path of a regular file in `dir`.
    pub file: &'a str,
    /// The name of the file in `dir`.
    pub name: &'a str,
    /// The path of a symbolic link.
    pub link: &'a str,
}

/// Returns the context of a request whose deadline has passed.
pub(super) fn late() -> Context<'static> {
    Context { deadline: Some(Instant::now()), ..Context::OWN }
}

/// Returns the context of a request that has an hour left.
pub(super) fn in_time() -> Context<'static> {
    Context { deadline: Some(Instant::now() + Duration::from_secs(3600)), ..Context::OWN }
}

/// Checks the operations of a readable tree that take a context.
pub(super) fn check_reading(fs: &dyn FileSystem, entries: &Entries<'_>) {
    let without = results(fs, &Context::OWN, entries);
    for ((operation, expected), (_, found)) in without.iter().zip(results(fs, &in_time(), entries)) {
        assert_eq!(found.unwrap(), *expected.as_ref().unwrap(), "{operation} before its deadline");
    }
    for ((operation, expected), (_, found)) in without.into_iter().zip(results(fs, &late(), entries)) {
        if fs.capabilities().deadlines {
            println!("{operation} after its deadline");
            refused(found, ETIMEDOUT);
        } else {
            assert_eq!(found.unwrap(), expected.unwrap(), "{operation} ignores its deadline");
        }
    }
}

/// Calls each operation, and returns its name and a description of its result.
fn results(
    fs: &dyn FileSystem,
    context: &Context<'_>,
    entries: &Entries<'_>,
) -> [(&'static str, Result<String>); 9] {
    let Entries { dir, name, .. } = *entries;
    let path = entries.file.as_bytes();
    // The nodes are valid as long as these references exist.
    let found = |path: &[u8]| resolve(fs, &Context::OWN, path).unwrap();
    let (file_ref, link_ref) = (found(path), found(entries.link.as_bytes()));
    let (file, link) = (file_ref.node(), link_ref.node());
    let mut listed = Vec::new();
    let list = fs.list(context, dir, Cursor::START, &mut |entry| {
        listed.push((entry.name.to_vec(), entry.node, entry.kind));
        true
    });
    [
        ("lookup", fs.lookup(context, dir, name.as_bytes()).map(|found| format!("{found:?}"))),
        ("attributes", fs.attributes(context, file).map(|found| format!("{found:?}"))),
        ("attributes_of_path", fs.attributes_of_path(context, path).map(|found| format!("{found:?}"))),
        ("list", list.map(|()| format!("{listed:?}"))),
        ("read_link", fs.read_link(context, link).map(|target| format!("{target:?}"))),
        ("xattr", fs.xattr(context, file, b"user.note").map(|value| format!("{value:?}"))),
        ("xattr_names", fs.xattr_names(context, file).map(|names| format!("{names:?}"))),
        ("open", fs.open(context, file).and_then(|file| start_of(&*file))),
        ("open_path", fs.open_path(context, path).and_then(|file| start_of(&*file))),
    ]
}

fn start_of(file: &dyn File) -> Result<String> {
    let mut bytes = [0; 100];
    let count = file.read_at(&mut bytes, 0)?;
    Ok(format!("{:?}", &bytes[..count]))
}
