//! The conformance suite for writable file systems of the contract, one promise per file. An
//! implementation provides a function that creates an empty file system, and states the features
//! that it supports. The suite panics if a result is wrong, after printing the name of the promise.

mod append;
mod attributes;
mod bytes;
mod create;
mod deadlines;
mod directories;
mod handles;
mod hard_links;
mod holes;
mod listing;
mod locks;
mod mount;
mod mounts;
mod names;
mod nodes;
mod open_and_removed;
mod paths;
mod pieces;
mod publish;
mod rename;
mod set_id;
mod space;
mod symlinks;
mod threads;
mod truncate;
mod xattrs;

pub use mount::{Mounts, WritableImplementation};

type Promise = fn(&WritableImplementation<'_>);

const PROMISES: [(&str, Promise); 25] = [
    ("create", create::check),
    ("bytes", bytes::check),
    ("holes", holes::check),
    ("append", append::check),
    ("truncate", truncate::check),
    ("set-id bits", set_id::check),
    ("pieces", pieces::check),
    ("names", names::check),
    ("paths", paths::check),
    ("directories", directories::check),
    ("symlinks", symlinks::check),
    ("rename", rename::check),
    ("hard links", hard_links::check),
    ("open and removed", open_and_removed::check),
    ("attributes", attributes::check),
    ("extended attributes", xattrs::check),
    ("listing", listing::check),
    ("nodes", nodes::check),
    ("handles", handles::check),
    ("publish", publish::check),
    ("mounts", mounts::check),
    ("locks", locks::check),
    ("threads", threads::check),
    ("space", space::check),
    ("deadlines", deadlines::check),
];

/// Checks all promises.
pub fn run(implementation: &WritableImplementation<'_>) {
    for (name, _) in PROMISES {
        check(name, implementation);
    }
}

/// Checks the promise of this name. Panics if no promise has this name, or if the promise is not
/// kept.
pub fn check(promise: &str, implementation: &WritableImplementation<'_>) {
    println!("{}: {promise}", implementation.name);
    let found = PROMISES.iter().find(|(name, _)| *name == promise);
    found.expect("a promise has this name").1(implementation);
}
