//! The door for programs in C, and in what calls C: opaque handles, error numbers, and a message for each thread. It
//! translates to `quell-client`; what everything means is said there and in the header, which is made from this room.

// Pointers of C programs cannot be used otherwise; each function states what it requires of them.
#![allow(unsafe_code)]

mod boundary;
mod directories;
mod errors;
mod files;
mod stores;
