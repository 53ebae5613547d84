//! The files of a virtual machine's disk as a small read-only file system: the disk image and its
//! backing chain, which the caller has opened, each with its size and time at the open. Recorded
//! blocks are copied from memory, all other bytes are read from the files (yolofs, section 1.2.2 of
//! the paper).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_vfs::{
    Attributes, Capabilities, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind, NodeId,
    NodeRef, ReadAt, Result, Time,
};

use crate::disk_name::{DISK_FILES_MAX, parse_disk_name};
use crate::image::BootImage;
use crate::loading::LoadingContents;
use crate::recorded_files::{Served, Tally, copy};

const ROOT: NodeId = NodeId(0);

/// The open file of a backing chain.
pub trait DiskSource: ReadAt {
    /// Checks, at each open through the file system, that the users to whom the file is shown as
    /// readable may still read it; otherwise returns `PermissionDenied`.
    fn check_open(&self) -> Result<()>;
}

/// One file of a backing chain.
pub struct DiskFile {
    /// The path below the root under which the file is shown.
    pub name: Vec<u8>,
    /// The attributes. The node number, the kind and the link count are set by `Disks::new`.
    pub attributes: Attributes,
    /// The open file.
    pub source: Arc<dyn DiskSource>,
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A directory or a file. Files come first, in the order of the chain, so that a file's node number
/// gives its position.
struct Node {
    name: Vec<u8>,
    parent: NodeId,
    attributes: Attributes,
}

/// The relation of a file of a boot image to the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// The file has not changed.
    Same {
        /// The position in the chain.
        position: usize,
    },
    /// The file's size or modification time has changed.
    Changed {
        /// The position in the chain.
        position: usize,
        /// The path at the time of the recording.
        recorded_path: Vec<u8>,
    },
    /// The chain has no file at this position.
    Absent {
        /// The path at the time of the recording.
        recorded_path: Vec<u8>,
    },
}

struct LoadedImage {
    image: BootImage,
    contents: Arc<LoadingContents>,
    /// File numbers in the boot image, by position in the chain.
    files: Vec<Option<u32>>,
}

/// A complete chain.
pub struct Disks {
    /// All nodes except the root, which is node 0.
    nodes: Vec<Node>,
    root: Attributes,
    sources: Vec<Arc<dyn DiskSource>>,
    loaded: Option<LoadedImage>,
    /// For each file, whether it has changed while it was served. Its blocks are then no longer
    /// served from memory.
    changed: Vec<AtomicBool>,
    tally: Tally,
}

impl fmt::Debug for Disks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disks")
            .field("files", &self.sources.len())
            .field("loaded", &self.loaded.is_some())
            .finish_non_exhaustive()
    }
}

impl Disks {
    /// Creates the file system.
    ///
    /// Errors: `InvalidInput` for no file or more than `DISK_FILES_MAX` files, for a name that is
    /// not a path below the root, and for a name that two files have.
    pub fn new(files: Vec<DiskFile>, uid: u32, gid: u32) -> Result<Disks> {
        if files.is_empty() || files.len() > DISK_FILES_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "serve a disk of", files.len().to_string()));
        }
        let newest = files.iter().map(|file| file.attributes.modified).max().unwrap_or_default();
        let root = directory(ROOT, uid, gid, newest);
        let (mut nodes, mut sources): (Vec<Node>, Vec<_>) = (Vec::new(), Vec::new());
        let mut paths = Vec::new();
        for (number, file) in (1..).zip(files) {
            let attributes =
                Attributes { node: NodeId(number), kind: Kind::File, nlink: 1, ..file.attributes };
            nodes.push(Node { name: Vec::new(), parent: ROOT, attributes });
            sources.push(file.source);
            paths.push(file.name);
        }
        for (at, path) in paths.iter().enumerate() {
            let refused = |kind| Err(Error::new(kind, "name a disk's file", path));
            let mut parent = ROOT;
            let mut components = path.split(|b| *b == b'/').peekable();
            while let Some(name) = components.next() {
                if quell_vfs::check_name(name).is_err() {
                    return refused(ErrorKind::InvalidInput);
                }
                let existing =
                    nodes.iter().find(|n| n.parent == parent && n.name == name).map(|n| n.attributes);
                match (components.peek(), existing) {
                    (Some(_), Some(dir)) if dir.kind == Kind::Dir => parent = dir.node,
                    (Some(_), None) => {
                        let attributes = directory(NodeId(nodes.len() as u64 + 1), uid, gid, newest);
                        nodes.push(Node { name: name.to_vec(), parent, attributes });
                        parent = attributes.node;
                    }
                    (None, None) => {
                        nodes[at].name = name.to_vec();
                        nodes[at].parent = parent;
                    }
                    _ => return refused(ErrorKind::InvalidInput),
                }
            }
        }
        let changed = sources.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Disks { nodes, root, sources, loaded: None, changed, tally: Tally::default() })
    }

    /// Returns the relation of each file of an image to the chain, in the order of the image.
    pub fn fits(&self, image: &BootImage) -> Vec<Fit> {
        let fit = |number| {
            let file = image.file(number);
            let (position, recorded_path) = parse_disk_name(file.name).expect("checked with the image");
            let recorded_path = recorded_path.to_vec();
            if position >= self.sources.len() {
                return Fit::Absent { recorded_path };
            }
            let now = &self.nodes[position].attributes;
            match now.size_bytes == file.size_bytes && now.modified == file.modified {
                true => Fit::Same { position },
                false => Fit::Changed { position, recorded_path },
            }
        };
        (0..image.files()).map(fit).collect()
    }

    /// Returns the chain, with the recorded blocks of the files that have not changed served from
    /// memory.
    pub fn with_image(mut self, image: &BootImage, contents: Arc<LoadingContents>) -> Disks {
        let mut files = vec![None; self.sources.len()];
        for (number, fit) in (0..).zip(self.fits(image)) {
            if let Fit::Same { position } = fit {
                files[position] = Some(number);
            }
        }
        tracing::debug!(
            files = image.files(),
            files_that_fit = files.iter().flatten().count(),
            blocks = image.contents(),
            recordings = image.recordings(),
            "opened the boot image of a disk"
        );
        self.loaded = Some(LoadedImage { image: image.tables(), contents, files });
        self
    }

    /// Serves no more blocks of this file from memory.
    pub fn mark_changed(&self, position: usize) {
        self.changed[position].store(true, Ordering::Relaxed);
    }

    /// Returns the number of blocks served so far.
    pub fn served(&self) -> Served {
        self.tally.served()
    }

    fn node(&self, node: NodeId) -> Result<&Node> {
        let at = usize::try_from(node.0).ok().and_then(|number| number.checked_sub(1));
        at.and_then(|at| self.nodes.get(at))
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "find a node", b""))
    }

    /// Copies from memory up to the first missing block. Returns the number of bytes.
    fn copy(&self, position: usize, into: &mut [u8], offset: u64) -> usize {
        let Some(loaded) = &self.loaded else { return 0 };
        let Some(number) = loaded.files[position].filter(|_| !self.changed[position].load(Ordering::Relaxed))
        else {
            return 0;
        };
        let copy_block = |content, within: usize, into: &mut [u8]| {
            let block = loaded.contents.block(content);
            block.map(|block| into.copy_from_slice(&block[within..within + into.len()])).is_some()
        };
        let done = copy(&loaded.image, &copy_block, &loaded.image.file(number), into, offset);
        self.tally.memory(done);
        done
    }

    fn read(&self, position: usize, into: &mut [u8], offset: u64) -> Result<usize> {
        let size = self.nodes[position].attributes.size_bytes;
        let wanted = (into.len() as u64).min(size.saturating_sub(offset)) as usize;
        let into = &mut into[..wanted];
        let done = self.copy(position, into, offset);
        if done == wanted {
            return Ok(done);
        }
        // The rest is read at once: blocks in memory beyond the gap do not justify a second read.
        let rest = self.sources[position].read_at(&mut into[done..], offset + done as u64)?;
        self.tally.source(rest);
        if done + rest < wanted {
            // The file was truncated. A virtual machine would read the missing bytes as zeros.
            return Err(Error::new(ErrorKind::Stale, "read", &self.nodes[position].name));
        }
        Ok(wanted)
    }
}

fn directory(node: NodeId, uid: u32, gid: u32, modified: Time) -> Attributes {
    Attributes {
        node,
        kind: Kind::Dir,
        permissions: 0o555,
        uid,
        gid,
        nlink: 2,
        rdev: 0,
        size_bytes: 0,
        blocks: 0,
        modified,
        changed: modified,
    }
}

struct DiskHandle {
    disks: Arc<Disks>,
    position: usize,
}

impl File for DiskHandle {
    fn attributes(&self) -> Result<Attributes> {
        Ok(self.disks.nodes[self.position].attributes)
    }
}

impl ReadAt for DiskHandle {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.disks.read(self.position, into, offset)
    }
}

/// The chain as a file system.
#[derive(Debug, Clone)]
pub struct DisksFs(pub Arc<Disks>);

impl FileSystem for DisksFs {
    fn capabilities(&self) -> Capabilities {
        Capabilities { immutable: true, ..Capabilities::default() }
    }

    fn root(&self) -> NodeId {
        ROOT
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        if self.attributes(context, dir)?.kind != Kind::Dir {
            return Err(Error::new(ErrorKind::NotADirectory, "look up", name));
        }
        let found = match name {
            b"." => Some(self.attributes(context, dir)?),
            b".." => Some(self.attributes(context, self.parent(dir)?)?),
            name if name.len() > quell_vfs::NAME_BYTES_MAX => {
                return Err(Error::new(ErrorKind::NameTooLong, "look up", name));
            }
            name => {
                let mut nodes = self.0.nodes.iter();
                nodes.find(|node| node.parent == dir && node.name == name).map(|node| node.attributes)
            }
        };
        Ok(found.map(NodeRef::permanent))
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        if node == ROOT { Ok(self.0.root) } else { Ok(self.0.node(node)?.attributes) }
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        if node == ROOT { Ok(ROOT) } else { Ok(self.0.node(node)?.parent) }
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        let mut path = Vec::new();
        let mut at = node;
        while at != ROOT {
            let node = self.0.node(at)?;
            path = if path.is_empty() { node.name.clone() } else { [&node.name[..], b"/", &path].concat() };
            at = node.parent;
        }
        Ok(path)
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if self.attributes(context, dir)?.kind != Kind::Dir {
            return Err(Error::new(ErrorKind::NotADirectory, "list", b""));
        }
        for node in self.0.nodes.iter().filter(|node| node.parent == dir) {
            let next = Cursor(node.attributes.node.0);
            let attributes = node.attributes;
            let Attributes { node: number, kind, .. } = attributes;
            let entry = DirEntry { name: &node.name, next, node: number, kind, attributes: Some(attributes) };
            if next > after && !visit(entry) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, _: &Context<'_>, _: NodeId) -> Result<Vec<u8>> {
        Err(Error::new(ErrorKind::InvalidInput, "read link", b""))
    }

    fn xattr(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn xattr_names(&self, _: &Context<'_>, _: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn open(&self, _: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        match node.0.checked_sub(1).map(|position| position as usize) {
            Some(position) if position < self.0.sources.len() => {
                let named = |e| Error { subject: self.0.nodes[position].name.clone(), ..e };
                self.0.sources[position].check_open().map_err(named)?;
                Ok(Box::new(DiskHandle { disks: self.0.clone(), position }))
            }
            Some(position) if position >= self.0.nodes.len() => {
                Err(Error::new(ErrorKind::NotFound, "open", b""))
            }
            _ => Err(Error::new(ErrorKind::IsADirectory, "open", b"")),
        }
    }

    /// Node numbers are permanent.
    fn forget(&self, _: NodeId, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::BLOCK_BYTES;
    use crate::{Choice, Recorder, RecorderFs, Subject};

    struct Bytes(Vec<u8>);

    impl ReadAt for Bytes {
        fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            let length = rest.len().min(into.len());
            into[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }
    }

    impl DiskSource for Bytes {
        fn check_open(&self) -> Result<()> {
            Ok(())
        }
    }

    fn file(name: &[u8], bytes: Vec<u8>, seconds: i64) -> DiskFile {
        let modified = Time { seconds, nanoseconds: 0 };
        let attributes = Attributes {
            kind: Kind::File,
            size_bytes: bytes.len() as u64,
            permissions: 0o444,
            ..directory(ROOT, 0, 0, modified)
        };
        DiskFile { name: name.to_vec(), attributes, source: Arc::new(Bytes(bytes)) }
    }

    fn noise(blocks: usize) -> Vec<u8> {
        (0..blocks * BLOCK_BYTES).map(|at| (at / BLOCK_BYTES * 31 + at % 251) as u8).collect()
    }

    fn disks(seconds: i64) -> Arc<Disks> {
        let files = vec![file(b"top.qcow2", noise(9), seconds), file(b"sub/base.raw", noise(20), 7)];
        Arc::new(Disks::new(files, 0, 0).unwrap())
    }

    fn recorded(reads: &[(u64, usize, u64)]) -> BootImage {
        let disks = disks(1);
        let recorder = Recorder::new();
        let fs = RecorderFs::new(Arc::new(DisksFs(disks.clone())), recorder.clone());
        for (node, length, offset) in reads {
            fs.open(&Context::OWN, NodeId(*node)).unwrap().read_at(&mut vec![0; *length], *offset).unwrap();
        }
        let subject = Subject::Disk(vec![b"/srv/top.qcow2".to_vec(), b"/srv/sub/base.raw".to_vec()]);
        BootImage::parse(recorder.pack(&DisksFs(disks), &subject, &Choice::ALL, 1).unwrap().0).unwrap()
    }

    #[test]
    fn files_are_at_the_paths_of_their_names() {
        let fs = DisksFs(disks(1));
        let found = quell_vfs::resolve(&fs, &Context::OWN, b"sub/base.raw").unwrap();
        assert_eq!((found.node, found.size_bytes), (NodeId(2), 20 * 4096));
        assert_eq!(fs.path(NodeId(2)).unwrap(), b"sub/base.raw");
        let mut names = Vec::new();
        fs.list(&Context::OWN, ROOT, Cursor::START, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
        assert_eq!(names, [&b"top.qcow2"[..], b"sub"]);
        for (one, two) in [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a", ".."), ("a", "b//c"), ("a", "")] {
            let files = vec![file(one.as_bytes(), noise(1), 1), file(two.as_bytes(), noise(1), 1)];
            assert!(Disks::new(files, 0, 0).is_err(), "{one} and {two}");
        }
    }

    #[test]
    fn recorded_blocks_come_from_memory_and_others_from_the_source() {
        let image = recorded(&[(1, 100, 5000), (2, 3 * 4096, 4096)]);
        let contents = LoadingContents::new(&image);
        let disks = Arc::new(Arc::into_inner(disks(1)).unwrap().with_image(&image, contents.clone()));
        let fs = DisksFs(disks.clone());
        // A read of a block that is not loaded yet waits.
        let early = std::thread::spawn({
            let fs = fs.clone();
            move || fs.open(&Context::OWN, NodeId(1)).unwrap().read_at(&mut [0; 10], 5000).unwrap()
        });
        contents
            .load(&image, 2, &|offset, into| {
                into.copy_from_slice(&image.as_bytes()[offset as usize..][..into.len()]);
                Ok(())
            })
            .unwrap();
        assert_eq!(early.join().unwrap(), 10);
        let mut into = vec![0; 5 * 4096];
        assert_eq!(
            fs.open(&Context::OWN, NodeId(2)).unwrap().read_at(&mut into[..2 * 4096], 6000).unwrap(),
            2 * 4096
        );
        assert_eq!(into[..2 * 4096], noise(20)[6000..6000 + 2 * 4096]);
        assert_eq!(disks.served().from_source, 0);
        assert_eq!(fs.open(&Context::OWN, NodeId(2)).unwrap().read_at(&mut into, 4096).unwrap(), 5 * 4096);
        assert_eq!(into, noise(20)[4096..6 * 4096]);
        assert_eq!(disks.served().from_source, 2);
        disks.mark_changed(1);
        fs.open(&Context::OWN, NodeId(2)).unwrap().read_at(&mut into[..4096], 4096).unwrap();
        assert_eq!(disks.served().from_source, 3);
    }

    #[test]
    fn blocks_that_fail_to_load_are_read_from_the_source() {
        let image = recorded(&[(2, 3 * 4096, 4096)]);
        for flip in [false, true] {
            let contents = LoadingContents::new(&image);
            let disks = Arc::new(Arc::into_inner(disks(1)).unwrap().with_image(&image, contents.clone()));
            let loaded = contents.load(&image, 2, &|_, into| {
                into.fill(7);
                if flip { Ok(()) } else { Err(Error::new(ErrorKind::Os(5), "read", b"it")) }
            });
            assert!(loaded.is_err());
            let mut into = vec![0; 3 * 4096];
            DisksFs(disks.clone()).open(&Context::OWN, NodeId(2)).unwrap().read_at(&mut into, 4096).unwrap();
            assert_eq!(into, noise(20)[4096..4 * 4096]);
            assert_eq!(disks.served(), Served { from_memory: 0, from_source: 3 });
        }
    }

    #[test]
    fn a_file_that_changed_or_is_absent_does_not_fit() {
        let image = recorded(&[(1, 1, 0), (2, 1, 0)]);
        let recorded_path = b"/srv/top.qcow2".to_vec();
        assert_eq!(
            disks(2).fits(&image),
            [Fit::Changed { position: 0, recorded_path }, Fit::Same { position: 1 }]
        );
        let alone = Disks::new(vec![file(b"top.qcow2", noise(9), 1)], 0, 0).unwrap();
        let recorded_path = b"/srv/sub/base.raw".to_vec();
        assert_eq!(alone.fits(&image), [Fit::Same { position: 0 }, Fit::Absent { recorded_path }]);
    }

    #[test]
    fn a_truncated_source_is_an_error_and_never_zeros() {
        let mut short = file(b"disk", noise(2), 1);
        short.attributes.size_bytes = 4 * 4096;
        let fs = DisksFs(Arc::new(Disks::new(vec![short], 0, 0).unwrap()));
        let open = fs.open(&Context::OWN, NodeId(1)).unwrap();
        assert_eq!(open.read_at(&mut [0; 4096], 4096).unwrap(), 4096);
        assert_eq!(open.read_at(&mut [0; 8192], 4096).unwrap_err().kind, ErrorKind::Stale);
        assert_eq!(open.read_at(&mut [0; 4096], 4 * 4096).unwrap(), 0);
    }
}
