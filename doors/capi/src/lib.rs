//! The door for programs in C, and in what calls C: opaque handles, error numbers, and a message for each thread. It
//! translates to `quell-client`; what everything means is said there and in the header, which is made from this room.

// Who may call what with which pointers is said in the header, once for all functions.
#![allow(unsafe_code, clippy::missing_safety_doc)]

mod boundary;
mod directories;
mod errors;
mod files;
mod stores;
