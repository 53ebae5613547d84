//! `libquell_preload.so`: serves virtual directories to a dynamically linked program through its
//! own calls of libc, without a mount. The dynamic linker loads it with LD_PRELOAD, and the
//! variable QUELL_VIEW describes the directories; docs/techniques/preload.md describes the
//! semantics.
//!
//! - `wrappers` defines the functions of libc that the program calls instead. Each decides whether
//!   its path or descriptor is virtual. If not, it calls the next definition, usually libc's.
//! - `paths` compares paths with the virtual directories, as pure functions; `resolve` walks a
//!   virtual path in its file system.
//! - `descriptors` maps the numbers of descriptors to open files. Each open file has a real
//!   descriptor of the kernel, its `placeholder`. It keeps the position, which processes share,
//!   and the description with which a process that inherits the descriptor opens the file again.
//! - `dispatch` serves system calls that do not pass through libc.
//! - `process` initializes the library, and handles fork, exec and exit.
//!
//! Rules: the library allocates from an allocator of its own, starts no thread, and does nothing in
//! a process without the variable. Code that serves a virtual file runs inside `guard::inside`,
//! which blocks signals, because a signal handler may call any of these functions. The backends use
//! raw system calls, so that they do not call the wrappers.

#![allow(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod allocator;
mod append_lock;
mod attributes;
mod c_bytes;
mod collective;
mod counters;
mod cwd;
mod descriptors;
// Other architectures have no handler, and use only a part of this module.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]
mod dispatch;
mod ended_children;
mod environment;
mod errno;
mod guard;
mod library_copies;
mod locate;
mod locate_at;
mod memory_copy;
mod messages;
mod next;
mod open_dir;
mod open_file;
mod originals;
mod own_descriptors;
mod paths;
mod pause;
mod placeholder;
mod process;
mod process_id;
mod program;
mod refusals;
mod resolve;
// The same holds as for `dispatch`.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod selector;
mod shared_memory;
mod spare_placeholders;
mod start;
mod streams;
mod supervise;
mod variadic;
mod view;
mod wrappers;
