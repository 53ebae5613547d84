//! Mounts a directory read-only, with a delay of each request: a file system whose server is far
//! away. `make demo` measures a program on it, without privileges.
//!
//! `cargo run --profile demo -p quell-fuse --example delayed DIRECTORY MOUNTPOINT MICROSECONDS`
//!
//! Prints `ready` when the directory is mounted, and unmounts it at the end of standard input. The
//! directory must not change meanwhile: the kernel caches every answer until the mount ends. A
//! program on a parallel file system, whose caches expire, makes at least as many requests. If this
//! process is killed, `fusermount3 -u MOUNTPOINT` removes the mount.

#[path = "../tests/through/mod.rs"]
mod through;

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quell_fuse::Options;
use quell_vfs::{
    Attributes, Capabilities, Context, Cursor, DirEntry, File, FileSystem, NodeId, NodeRef, ReadAt, Result,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use through::Through;

/// Number of requests that wait at the same time.
const THREADS: usize = 16;

struct Delayed {
    tree: Through,
    /// The number that `tree` has for the directory if it is found as the parent of another
    /// directory.
    number_of_root: NodeId,
    delay: Duration,
}

impl Delayed {
    fn wait(&self) {
        std::thread::sleep(self.delay);
    }
}

impl FileSystem for Delayed {
    fn capabilities(&self) -> Capabilities {
        Capabilities { immutable: true, ..self.tree.capabilities() }
    }

    fn root(&self) -> NodeId {
        self.tree.root()
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        self.wait();
        self.tree.lookup(context, dir, name)
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        self.wait();
        Ok(Attributes { node, ..self.tree.attributes(context, node)? })
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        let parent = self.tree.parent(node)?;
        Ok(if parent == self.number_of_root { self.root() } else { parent })
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        self.tree.path(node)
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.wait();
        // The cursors are positions in the listing, because the offsets of ext4 are too large for a
        // cursor. The server of a tree that never changes sends the attributes with the names.
        let (mut position, mut failed) = (0, None);
        let mut visit_with_attributes = |entry: DirEntry<'_>| {
            position += 1;
            if position <= after.0 {
                return true;
            }
            match self.tree.lookup(context, dir, entry.name) {
                Ok(Some(found)) => {
                    let attributes = Some(found.into_attributes());
                    visit(DirEntry { next: Cursor(position), attributes, ..entry })
                }
                Ok(None) => true,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        };
        self.tree.list(context, dir, Cursor::START, &mut visit_with_attributes)?;
        failed.map_or(Ok(()), Err)
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        self.wait();
        self.tree.read_link(context, node)
    }

    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.wait();
        self.tree.xattr(context, node, name)
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.wait();
        self.tree.xattr_names(context, node)
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        self.wait();
        let file = self.tree.open(context, node)?;
        Ok(Box::new(DelayedFile { file, delay: self.delay }))
    }

    /// Keeps the node: in a tree that never changes, every number is valid for ever.
    fn forget(&self, _node: NodeId, _references: u64) {}
}

struct DelayedFile {
    file: Box<dyn File>,
    delay: Duration,
}

impl ReadAt for DelayedFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        std::thread::sleep(self.delay);
        self.file.read_at(into, offset)
    }
}

impl File for DelayedFile {
    fn attributes(&self) -> Result<Attributes> {
        std::thread::sleep(self.delay);
        self.file.attributes()
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, mountpoint, microseconds] = words.as_slice() else {
        panic!("usage: delayed DIRECTORY MOUNTPOINT MICROSECONDS");
    };
    let delay = Duration::from_micros(microseconds.parse().expect("a number of microseconds"));
    // Each entry that the kernel knows is an open descriptor.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("a limit of open files");
    let tree = Through::new(Path::new(directory));
    let number_of_root = tree.attributes(&Context::OWN, tree.root()).expect("a directory").node;
    let tree = Delayed { tree, number_of_root, delay };
    let options = Options { threads: THREADS, ..Options::default() };
    let session = quell_fuse::mount_at(Arc::new(tree), Path::new(mountpoint), &options).expect("a mount");
    println!("ready");
    std::io::stdout().flush().expect("standard output");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input");
    session.stop();
}
