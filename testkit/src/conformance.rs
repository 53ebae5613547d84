//! The conformance suite for read-only file systems of the contract, one promise per file. An
//! implementation provides a function that creates it from a described tree. The suite creates
//! trees, checks results, and panics if a result is wrong, after printing the name of the promise.

mod attributes;
mod capabilities;
mod deadlines;
mod hard_links;
mod implementation;
mod links;
mod list;
mod lookup;
mod paths;
mod read;
mod resolve;
mod stale;
pub mod writing;
mod xattrs;

pub use implementation::{Implementation, Instance};

type Promise = fn(&Implementation<'_>);

const PROMISES: [(&str, Promise); 12] = [
    ("attributes", attributes::check),
    ("capabilities", capabilities::check),
    ("deadlines", deadlines::check),
    ("hard links", hard_links::check),
    ("links", links::check),
    ("list", list::check),
    ("lookup", lookup::check),
    ("paths", paths::check),
    ("read", read::check),
    ("resolve", resolve::check),
    ("stale", stale::check),
    ("xattrs", xattrs::check),
];

/// Checks all promises.
pub fn run(implementation: &Implementation<'_>) {
    for (name, _) in PROMISES {
        check(name, implementation);
    }
}

/// Checks the promise of this name. Panics if no promise has this name, or if the promise is not
/// kept.
pub fn check(promise: &str, implementation: &Implementation<'_>) {
    println!("{}: {promise}", implementation.name);
    let found = PROMISES.iter().find(|(name, _)| *name == promise);
    found.expect("a promise has this name").1(implementation);
}
