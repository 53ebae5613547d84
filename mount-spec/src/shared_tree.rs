//! Trees that one process of a node, the holder, keeps in memory for programs that serve them in
//! their own processes. Each file is in a memfd of the holder: the index, a table, and the whole
//! files of the boot image. The memfds are sealed before any other process opens them, so other
//! processes read the bytes that the holder has validated. Programs open them as
//! `/proc/HOLDER/fd/NUMBER`, which works for processes of the same user, and also for those that
//! have closed all descriptors.
//!
//! The table, with numbers in little endian:
//!
//! ```text
//! +0   magic    8 bytes   "QUELLSF1"
//! +8   root     68 bytes  the attributes of the tree's root when the holder opened it:
//!                         mode, uid, gid, nlink (u32), size, modified seconds, changed seconds,
//!                         device, inode (u64), modified nanoseconds, changed nanoseconds (u32),
//!                         reserved (u32)
//! +76  files    u32       number of rows
//! +80  rows     16 bytes  for each file, in the order of the nodes:
//!                         node (u32), descriptor of the holder (u32), inode of the memfd (u64)
//! ```

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use quell_posix::Stat;
use quell_vfs::{Error, ErrorKind, NodeId, Result, Time};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, Timespec, Timestamps};
use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"QUELLSF1";
const ROWS_OFFSET: usize = 80;
const ROW_BYTES: usize = 16;

/// The longest name of a memfd that is used, in bytes. The kernel's limit is 249.
const NAME_BYTES_MAX: usize = 200;

/// The seals of a file whose bytes and size cannot change.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// A memfd of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedFile {
    /// Its descriptor in the holder.
    pub descriptor: u32,
    /// `st_dev`, which is the same for all memfds of a node.
    pub device: u64,
    /// `st_ino`: the number of the descriptor may have another meaning after the holder has ended.
    pub inode: u64,
}

/// A tree in the memory of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedTree {
    /// The process id of the holder.
    pub holder: u32,
    /// The index.
    pub index: SharedFile,
    /// The table.
    pub table: SharedFile,
}

fn failed(operation: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |cause| Error::from_io(cause.into(), operation, "a file in memory")
}

/// A file in memory that can still be written.
#[derive(Debug)]
pub struct MemoryFile {
    memfd: OwnedFd,
}

impl MemoryFile {
    /// Creates a file of zeros. `name`: the name that /proc/PID/maps shows.
    pub fn create(name: &[u8], size_bytes: u64) -> Result<MemoryFile> {
        let name = &name[..name.len().min(NAME_BYTES_MAX)];
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create(name, flags).map_err(failed("create"))?;
        rustix::fs::ftruncate(&memfd, size_bytes).map_err(failed("allocate"))?;
        Ok(MemoryFile { memfd })
    }

    /// Writes bytes at an offset within the size.
    pub fn write(&self, mut bytes: &[u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            let written = rustix::io::pwrite(&self.memfd, bytes, offset).map_err(failed("write"))?;
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Reads bytes at an offset. They must be within the size.
    pub fn read(&self, mut bytes: &mut [u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            match rustix::io::pread(&self.memfd, &mut *bytes, offset).map_err(failed("read"))? {
                0 => return Err(Error::new(ErrorKind::Damaged, "read", "a file in memory")),
                count => {
                    bytes = &mut bytes[count..];
                    offset += count as u64;
                }
            }
        }
        Ok(())
    }

    /// Seals the file, and gives it a modification time for programs that read it without Quell.
    pub fn seal(self, modified: Option<Time>) -> Result<SealedFile> {
        let shared = self.seal_in_place(modified)?;
        Ok(SealedFile { shared, _memfd: self.memfd })
    }

    /// Does the same as `seal`. Other processes can open the file while this value exists.
    pub fn seal_in_place(&self, modified: Option<Time>) -> Result<SharedFile> {
        if let Some(Time { seconds, nanoseconds }) = modified {
            let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::futimens(&self.memfd, &times).map_err(failed("set the time of"))?;
        }
        rustix::fs::fcntl_add_seals(&self.memfd, SEALS).map_err(failed("seal"))?;
        let found = rustix::fs::fstat(&self.memfd).map_err(failed("stat"))?;
        let descriptor = self.memfd.as_raw_fd().cast_unsigned();
        Ok(SharedFile { descriptor, device: found.st_dev, inode: found.st_ino })
    }
}

/// A sealed file of this process, which other processes can open while this value exists.
#[derive(Debug)]
pub struct SealedFile {
    /// Identifies the file for other processes.
    pub shared: SharedFile,
    _memfd: OwnedFd,
}

impl SealedFile {
    /// Creates a file with these bytes.
    pub fn of(name: &[u8], bytes: &[u8]) -> Result<SealedFile> {
        let file = MemoryFile::create(name, bytes.len() as u64)?;
        file.write(bytes, 0)?;
        file.seal(None)
    }
}

/// Returns the table of a tree.
pub fn encode_table(root: &Stat, files: &[(NodeId, SharedFile)]) -> Vec<u8> {
    let mut bytes = Vec::from(MAGIC);
    for number in [root.mode, root.uid, root.gid, root.nlink] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let (modified, changed) = (root.modified.seconds as u64, root.changed.seconds as u64);
    for number in [root.size_bytes, modified, changed, root.device, root.inode] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for number in [root.modified.nanoseconds, root.changed.nanoseconds, 0, files.len() as u32] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let mut rows: Vec<(u32, SharedFile)> = files.iter().map(|(node, file)| (node.0 as u32, *file)).collect();
    rows.sort_unstable_by_key(|(node, _)| *node);
    for (node, SharedFile { descriptor, inode, .. }) in rows {
        bytes.extend_from_slice(&node.to_le_bytes());
        bytes.extend_from_slice(&descriptor.to_le_bytes());
        bytes.extend_from_slice(&inode.to_le_bytes());
    }
    bytes
}

/// The table of a tree in a process that serves it.
#[derive(Debug, Clone)]
pub struct SharedFiles {
    holder: u32,
    device: u64,
    /// The attributes of the root when the holder opened it.
    pub root: Stat,
    /// Sorted by node: the node, the descriptor of the holder, the inode.
    rows: Vec<(u32, u32, u64)>,
}

impl SharedFiles {
    /// Decodes the table of a holder.
    pub fn decode(tree: &SharedTree, bytes: &[u8]) -> Option<SharedFiles> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let time = |seconds: usize, nanoseconds: usize| {
            Some(Time { seconds: long(seconds)? as i64, nanoseconds: word(nanoseconds)? })
        };
        if !bytes.starts_with(MAGIC) {
            return None;
        }
        let root = Stat {
            mode: word(8)?,
            uid: word(12)?,
            gid: word(16)?,
            nlink: word(20)?,
            size_bytes: long(24)?,
            modified: time(32, 64)?,
            changed: time(40, 68)?,
            device: long(48)?,
            inode: long(56)?,
            ..Stat::default()
        };
        let rows = bytes.get(ROWS_OFFSET..)?;
        if rows.len() != (word(76)? as usize).checked_mul(ROW_BYTES)? {
            return None;
        }
        let row = |at: usize| Some((word(at)?, word(at + 4)?, long(at + 8)?));
        let rows = (ROWS_OFFSET..bytes.len()).step_by(ROW_BYTES).map(row).collect::<Option<_>>()?;
        Some(SharedFiles { holder: tree.holder, device: tree.table.device, root, rows })
    }

    /// Returns whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Opens a file for reading, with a position of its own; `None` if the holder does not have it,
    /// or cannot be reached.
    pub fn open(&self, node: NodeId) -> Option<OwnedFd> {
        let node = u32::try_from(node.0).ok()?;
        let at = self.rows.binary_search_by_key(&node, |row| row.0).ok()?;
        let (_, descriptor, inode) = self.rows[at];
        open_shared(self.holder, SharedFile { descriptor, device: self.device, inode })
    }

    /// Returns the device of all files.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Returns the inode of each file with its node, sorted by inode.
    pub fn nodes_by_inode(&self) -> Vec<(u64, NodeId)> {
        let mut nodes: Vec<_> =
            self.rows.iter().map(|(node, _, inode)| (*inode, NodeId((*node).into()))).collect();
        nodes.sort_unstable_by_key(|(inode, _)| *inode);
        nodes
    }
}

/// Opens a file of a holder for reading. The descriptor is closed on exec.
fn open_shared(holder: u32, file: SharedFile) -> Option<OwnedFd> {
    let path = format!("/proc/{holder}/fd/{}", file.descriptor);
    // NONBLOCK: after the holder has ended, another process may have its process ID, and the
    // descriptor may be a FIFO.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let found = rustix::fs::fstat(&opened).ok()?;
    ((found.st_dev, found.st_ino) == (file.device, file.inode)).then_some(opened)
}

impl SharedFile {
    /// Opens the file for reading; `None` if the holder has ended, runs on another node or as
    /// another user, or if this is not a sealed file of this user.
    pub fn open(&self, holder: u32) -> Option<File> {
        let opened = open_shared(holder, *self)?;
        let is_own = rustix::fs::fstat(&opened).ok()?.st_uid == rustix::process::geteuid().as_raw();
        let seals = rustix::fs::fcntl_get_seals(opened.as_fd()).ok()?;
        (is_own && seals.contains(SEALS)).then(|| File::from(opened))
    }
}

impl SharedTree {
    /// Opens the index and the table: see [`SharedFile::open`].
    pub fn open(&self) -> Option<[File; 2]> {
        Some([self.index.open(self.holder)?, self.table.open(self.holder)?])
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn tree(files: &[(NodeId, SharedFile)]) -> (SharedTree, [SealedFile; 2]) {
        let root = Stat { mode: 0o40755, inode: 7, device: 9, nlink: 2, ..Stat::default() };
        let index = SealedFile::of(b"index", b"the index").unwrap();
        let table = SealedFile::of(b"table", &encode_table(&root, files)).unwrap();
        let shared = SharedTree { holder: std::process::id(), index: index.shared, table: table.shared };
        (shared, [index, table])
    }

    fn read(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn files_of_a_holder_are_opened_with_positions_of_their_own() {
        let modified = Time { seconds: 1_000_000_000, nanoseconds: 5 };
        let file = MemoryFile::create(b"data", 5).unwrap();
        file.write(b"bytes", 0).unwrap();
        let file = file.seal(Some(modified)).unwrap();
        let (shared, kept) = tree(&[(NodeId(3), file.shared), (NodeId(1), kept_file().shared)]);
        let [index, table] = shared.open().unwrap();
        assert_eq!(read(&index), b"the index");
        let files = SharedFiles::decode(&shared, &read(&table)).unwrap();
        assert_eq!((files.root.mode, files.root.inode, files.root.device), (0o40755, 7, 9));
        let opened = File::from(files.open(NodeId(3)).unwrap());
        assert_eq!(read(&opened), b"bytes");
        assert!(opened.write_at(b"x", 0).is_err());
        assert_eq!(
            opened.metadata().unwrap().modified().unwrap(),
            std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5)
        );
        // The file of node 1 does not exist any more; its number is used by another file or none.
        assert!(files.open(NodeId(1)).is_none() && files.open(NodeId(2)).is_none());
        assert!(files.nodes_by_inode().contains(&(file.shared.inode, NodeId(3))));
        drop(kept);
        assert!(shared.open().is_none());
    }

    fn kept_file() -> SealedFile {
        SealedFile::of(b"gone", b"").unwrap()
    }

    #[test]
    fn a_file_without_seals_is_not_used() {
        let (mut shared, _kept) = tree(&[]);
        let open = MemoryFile::create(b"open", 9).unwrap();
        let found = rustix::fs::fstat(&open.memfd).unwrap();
        let descriptor = open.memfd.as_raw_fd().cast_unsigned();
        shared.index = SharedFile { descriptor, device: found.st_dev, inode: found.st_ino };
        assert!(shared.open().is_none());
    }

    #[test]
    fn a_damaged_table_is_refused() {
        let (shared, _kept) = tree(&[]);
        let [_, table] = shared.open().unwrap();
        let bytes = read(&table);
        assert!(SharedFiles::decode(&shared, &bytes).is_some());
        for length in 0..bytes.len() {
            assert!(SharedFiles::decode(&shared, &bytes[..length]).is_none(), "{length}");
        }
        let mut many = bytes;
        many[76..80].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(SharedFiles::decode(&shared, &many).is_none());
    }
}
