//! An open virtual file.

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use libc::c_int;
use quell_threads::lock;
use quell_vfs::{Attributes, Change, ErrorKind, LockOwner, NodeId, OpenMode, WritableFile};

use crate::append_lock;
use crate::counters::Counter;
use crate::ended_children;
use crate::errno::{Errno, Outcome};
use crate::placeholder::{self, Part};
use crate::resolve::{LastLink, Resolved, resolve};
use crate::view::{self, VirtualDir};

/// The flags of open(2) with which another process opens the same file later.
const KEPT_FLAGS: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_SYNC
    | libc::O_DIRECT
    | libc::O_NONBLOCK
    | libc::O_NOFOLLOW
    | libc::O_ASYNC
    | libc::O_NOATIME;

/// The flags of a file that was opened with O_PATH.
const PATH_FLAGS: c_int = libc::O_PATH | libc::O_NOFOLLOW | libc::O_DIRECTORY;

/// O_LARGEFILE, as the kernel defines and reports it. In libc of 64-bit systems it is 0.
#[cfg(target_arch = "x86_64")]
const LARGE_FILE: c_int = 0o100_000;
#[cfg(target_arch = "aarch64")]
const LARGE_FILE: c_int = 0o400_000;

/// The flags that fcntl(2) can change.
pub const CHANGEABLE_FLAGS: c_int = libc::O_APPEND | libc::O_DIRECT | libc::O_NONBLOCK | libc::O_NOATIME;

/// An open file description of a virtual file. Its descriptors in this process are in
/// `descriptors`.
pub struct OpenFile {
    pub dir: &'static VirtualDir,
    path: Mutex<Vec<u8>>,
    flags: AtomicI32,
    opened: Mutex<Option<ManuallyDrop<Opened>>>,
    /// Held by calls that use the position, as the kernel does for threads of one process.
    position: Mutex<()>,
    /// The number of ended children whose data is visible.
    seen_children: AtomicU64,
    /// Held by calls that append: the threads of a process are one owner of the lock in the store.
    appending: Mutex<()>,
    /// The generation of the process that opened the file by its path; `None` if it was inherited.
    first_generation: Option<u32>,
}

/// The file in the process that opened it.
struct Opened {
    generation: u32,
    node: NodeId,
    file: Arc<dyn WritableFile>,
}

/// Returns the [`OpenMode`] for flags of open(2).
pub fn open_mode(flags: c_int) -> OpenMode {
    let access = flags & libc::O_ACCMODE;
    let truncate = flags & libc::O_TRUNC != 0;
    // Linux also truncates a file that is opened for reading, if the caller may write to it.
    OpenMode { read: access != libc::O_WRONLY, write: access != libc::O_RDONLY || truncate, truncate }
}

/// Returns the flags that remain after the open.
pub fn kept_flags(flags: c_int) -> c_int {
    flags & if flags & libc::O_PATH != 0 { PATH_FLAGS } else { KEPT_FLAGS }
}

/// Returns the flags of an open file after F_SETFL.
pub fn changed_flags(known: c_int, wanted: c_int) -> c_int {
    known & !CHANGEABLE_FLAGS | wanted & CHANGEABLE_FLAGS
}

/// Returns the flags that F_GETFL reports.
pub fn reported_flags(kept: c_int) -> c_int {
    kept | if kept & libc::O_PATH != 0 { 0 } else { LARGE_FILE }
}

impl OpenFile {
    /// Returns an open file. `file` is `None` if a process opens it again at first use, or if it
    /// was opened with O_PATH.
    pub fn new(
        dir: &'static VirtualDir,
        path: Vec<u8>,
        flags: c_int,
        file: Option<(NodeId, Box<dyn WritableFile>)>,
    ) -> OpenFile {
        let first_generation = file.is_some().then(view::generation);
        let opened =
            file.map(|(node, file)| Opened { generation: view::generation(), node, file: file.into() });
        OpenFile {
            dir,
            path: Mutex::new(path),
            flags: AtomicI32::new(kept_flags(flags)),
            opened: Mutex::new(opened.map(ManuallyDrop::new)),
            position: Mutex::new(()),
            seen_children: AtomicU64::new(ended_children::count()),
            appending: Mutex::new(()),
            first_generation,
        }
    }

    /// Returns the same file for another process, which opens it again at first use.
    pub fn reopened(&self) -> OpenFile {
        OpenFile::new(self.dir, self.path(), self.flags(), None)
    }

    /// Returns the path below the virtual directory.
    pub fn path(&self) -> Vec<u8> {
        lock(&self.path).clone()
    }

    /// Returns the flags of open(2) that the file has kept.
    pub fn flags(&self) -> c_int {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets the flags that F_SETFL can set.
    pub fn set_flags(&self, flags: c_int) {
        self.flags.store(changed_flags(self.flags(), flags), Ordering::Relaxed);
    }

    fn is_path_only(&self) -> bool {
        self.flags() & libc::O_PATH != 0
    }

    /// Returns the file. A process that inherited the descriptor opens the file by its path.
    pub fn file(&self) -> Outcome<(NodeId, Arc<dyn WritableFile>)> {
        if self.is_path_only() {
            return Err(Errno(libc::EBADF));
        }
        let mut opened = lock(&self.opened);
        if let Some(known) = &*opened
            && known.generation == view::generation()
        {
            return Ok((known.node, Arc::clone(&known.file)));
        }
        let Resolved::Virtual(entry) = resolve(self.dir, &self.path(), LastLink::Keep)? else {
            return Err(Errno(libc::ESTALE));
        };
        let fs = entry.writable()?;
        let Some(found) = entry.found else { return Err(Errno(libc::ESTALE)) };
        let context = crate::view::context();
        let mode = OpenMode { truncate: false, ..open_mode(self.flags()) };
        let file: Arc<dyn WritableFile> = fs.open_as(&context, found.node(), mode)?.into();
        let node = found.into_attributes().node;
        // The object of the parent process is neither used nor dropped here: dropping it would
        // write the parent's buffer.
        opened.replace(ManuallyDrop::new(Opened {
            generation: view::generation(),
            node,
            file: Arc::clone(&file),
        }));
        Ok((node, file))
    }

    /// Returns the file if this process has opened it and its node is `node`.
    pub fn opened_as(&self, node: NodeId) -> Option<Arc<dyn WritableFile>> {
        let opened = lock(&self.opened);
        let known = opened.as_ref().filter(|known| known.generation == view::generation())?;
        (known.node == node).then(|| Arc::clone(&known.file))
    }

    /// Returns whether this process has inherited the descriptor.
    pub fn is_inherited(&self) -> bool {
        self.first_generation != Some(view::generation())
    }

    /// Returns whether this process has opened the file.
    pub fn is_open_here(&self) -> bool {
        self.own_file().is_some()
    }

    /// Returns the file if this process has opened it.
    fn own_file(&self) -> Option<Arc<dyn WritableFile>> {
        let opened = lock(&self.opened);
        opened
            .as_ref()
            .filter(|known| known.generation == view::generation())
            .map(|known| Arc::clone(&known.file))
    }

    fn reader(&self) -> Outcome<Arc<dyn WritableFile>> {
        match open_mode(self.flags()).read {
            true => self.current(),
            false => Err(Errno(libc::EBADF)),
        }
    }

    /// Returns the file with the data of children that have ended.
    fn current(&self) -> Outcome<Arc<dyn WritableFile>> {
        let (_, file) = self.file()?;
        let ended = ended_children::count();
        if self.seen_children.swap(ended, Ordering::Relaxed) != ended {
            match self.dir.has_remote_names() {
                true => file.sync()?,
                false => append_lock::refresh(&*file, self.lock_owner())?,
            }
        }
        Ok(file)
    }

    /// Returns the owner of the locks that the library takes for this open file.
    fn lock_owner(&self) -> LockOwner {
        LockOwner(std::ptr::from_ref(self).addr() as u64 | 1)
    }

    fn writer(&self) -> Outcome<Arc<dyn WritableFile>> {
        match self.flags() & libc::O_ACCMODE != libc::O_RDONLY {
            true => self.current(),
            false => Err(Errno(libc::EBADF)),
        }
    }

    /// Reads from an offset into several buffers. Returns the number of bytes.
    pub fn read_at(&self, buffers: &mut [&mut [u8]], offset: u64) -> Outcome<usize> {
        let file = self.reader()?;
        let mut total = 0;
        for buffer in buffers {
            let received = file.read_at(buffer, offset + total as u64)?;
            total += received;
            if received < buffer.len() {
                break;
            }
        }
        self.dir.count(Counter::Reads, 1);
        self.dir.count(Counter::ReadBytes, total as u64);
        Ok(total)
    }

    /// Reads from the position, and advances it.
    pub fn read(&self, fd: BorrowedFd<'_>, buffers: &mut [&mut [u8]]) -> Outcome<usize> {
        let _position = lock(&self.position);
        self.reader()?;
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        let start = placeholder::reserve(fd, wanted)?;
        let received = self.read_at(buffers, start);
        placeholder::give_back(fd, wanted - received.unwrap_or(0))?;
        received
    }

    /// Writes several buffers at an offset. Linux appends with O_APPEND even here.
    pub fn write_at(&self, buffers: &[&[u8]], offset: u64) -> Outcome<usize> {
        if self.flags() & libc::O_APPEND != 0 {
            return self.append(buffers).map(|(_, written)| written);
        }
        let file = self.writer()?;
        drop_set_id(&*file)?;
        let mut end = offset;
        let mut pieces = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            pieces.push((end, *buffer));
            end = end
                .checked_add(buffer.len() as u64)
                .filter(|end| *end <= i64::MAX as u64)
                .ok_or(Errno(libc::EFBIG))?;
        }
        match pieces[..] {
            [(offset, buffer)] => file.write_at(buffer, offset)?,
            _ => file.write_pieces(&pieces)?,
        }
        self.count_write(end - offset);
        self.sync_if_requested(&*file)?;
        Ok((end - offset) as usize)
    }

    /// Writes at the position, and advances it; with O_APPEND at the end of the file.
    pub fn write(&self, fd: BorrowedFd<'_>, buffers: &[&[u8]]) -> Outcome<usize> {
        let _position = lock(&self.position);
        if self.flags() & libc::O_APPEND != 0 {
            // Data that was written without the library was written earlier, so it is stored first.
            self.collect(fd, Part::WholePages)?;
            let (start, written) = self.append(buffers)?;
            placeholder::set_position(fd, start + written as u64)?;
            return Ok(written);
        }
        self.writer()?;
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        let start = placeholder::reserve(fd, wanted)?;
        let written = self.write_at(buffers, start);
        if written.is_err() {
            placeholder::give_back(fd, wanted)?;
        }
        written
    }

    fn append(&self, buffers: &[&[u8]]) -> Outcome<(u64, usize)> {
        let file = self.writer()?;
        drop_set_id(&*file)?;
        // One call, so that no other process writes between the buffers.
        let joined;
        let bytes = match buffers {
            [bytes] => *bytes,
            buffers => {
                joined = buffers.concat();
                &joined
            }
        };
        let _appending = lock(&self.appending);
        let start = match self.dir.has_remote_names() {
            // The process that serves the names performs the append.
            true => file.append(bytes)?,
            false => append_lock::append(&*file, self.lock_owner(), bytes)?,
        };
        self.count_write(bytes.len() as u64);
        self.sync_if_requested(&*file)?;
        Ok((start, bytes.len()))
    }

    fn count_write(&self, bytes: u64) {
        self.dir.count(Counter::Writes, 1);
        self.dir.count(Counter::WrittenBytes, bytes);
    }

    fn sync_if_requested(&self, file: &dyn WritableFile) -> Outcome<()> {
        if self.flags() & libc::O_DSYNC != 0 {
            file.sync()?;
        } else if view::is_ending() {
            file.publish()?;
        }
        Ok(())
    }

    /// Changes the position, as lseek(2) does. The whole file counts as data.
    pub fn seek(&self, fd: BorrowedFd<'_>, offset: i64, whence: c_int) -> Outcome<i64> {
        let _position = lock(&self.position);
        let invalid = Errno(libc::EINVAL);
        let size = || -> Outcome<i64> { Ok(self.attributes()?.size_bytes as i64) };
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => placeholder::position(fd)? as i64,
            libc::SEEK_END => size()?,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let size = size()?;
                if offset < 0 || offset >= size {
                    return Err(Errno(libc::ENXIO));
                }
                let found = if whence == libc::SEEK_DATA { offset } else { size };
                placeholder::set_position(fd, found as u64)?;
                return Ok(found);
            }
            _ => return Err(invalid),
        };
        let target = base.checked_add(offset).ok_or(Errno(libc::EOVERFLOW))?;
        if target < 0 {
            return Err(invalid);
        }
        placeholder::set_position(fd, target as u64)?;
        Ok(target)
    }

    /// Returns the attributes of the file.
    pub fn attributes(&self) -> Outcome<Attributes> {
        if self.is_path_only() {
            let Resolved::Virtual(entry) = resolve(self.dir, &self.path(), LastLink::Keep)? else {
                return Err(Errno(libc::ESTALE));
            };
            return Ok(**entry.found.as_ref().ok_or(Errno(libc::ESTALE))?);
        }
        Ok(self.file()?.1.attributes()?)
    }

    /// Changes attributes of the file.
    pub fn change(&self, change: &Change) -> Outcome<()> {
        let (node, _) = self.file()?;
        let context = crate::view::context();
        self.dir.fs()?.writable().ok_or(Errno(libc::EROFS))?.change(&context, node, change)?;
        Ok(())
    }

    /// Sets the size. Errors: EINVAL if the file was not opened for writing.
    pub fn truncate(&self, size_bytes: u64) -> Outcome<()> {
        self.writer().map_err(|_| Errno(libc::EINVAL))?;
        self.change(&Change { size_bytes: Some(size_bytes), ..Change::default() })
    }

    /// Makes the data durable and visible to others.
    pub fn sync(&self, fd: BorrowedFd<'_>) -> Outcome<()> {
        self.collect(fd, Part::WholePages)?;
        Ok(self.file()?.1.sync()?)
    }

    /// Makes the data visible to other processes. Called at each close of a descriptor, at an exec
    /// and at a fork.
    pub fn publish(&self, fd: BorrowedFd<'_>, part: Part) -> Outcome<()> {
        let collected = self.collect(fd, part);
        let published = self.own_file().map_or(Ok(()), |file| file.publish().map_err(Errno::from));
        collected.and(published)
    }

    /// Writes the data that reached the placeholder without this library.
    fn collect(&self, fd: BorrowedFd<'_>, part: Part) -> Outcome<()> {
        if !placeholder::has_uncollected_data(fd) {
            return Ok(());
        }
        let appends = self.flags() & libc::O_APPEND != 0;
        let file = self.writer()?;
        let mut end = None;
        let zeros = placeholder::collected(fd, part, &mut |bytes, offset| {
            if appends {
                // The zeros between two runs of data were written, too.
                let gap = offset - end.unwrap_or(offset);
                self.append(&[&vec![0; gap as usize], bytes])?;
                end = Some(offset + bytes.len() as u64);
            } else {
                file.write_at(bytes, offset)?;
            }
            Ok(())
        })?;
        let Some((zeros, offset)) = zeros else { return Ok(()) };
        let size_bytes = self.attributes()?.size_bytes;
        let wanted = if appends { size_bytes + zeros } else { offset + zeros };
        match wanted > size_bytes {
            true => self.truncate(wanted),
            false => Ok(()),
        }
    }

    /// Closes the file after its last descriptor in this process, and returns an error of its
    /// writes that was not reported yet.
    pub fn close(&self) -> Outcome<()> {
        let Some(opened) = lock(&self.opened).take() else { return Ok(()) };
        if opened.generation != view::generation() {
            return Ok(()); // `ManuallyDrop` keeps the parent's object
        }
        let Opened { node, file, .. } = ManuallyDrop::into_inner(opened);
        let closed = file.close();
        if let Some(fs) = self.dir.opened_fs() {
            fs.forget(node, 1);
        }
        Ok(closed?)
    }

    /// Returns whether the file that this process has open has no name any more.
    pub fn is_removed(&self) -> bool {
        self.own_file().is_some_and(|file| file.attributes().is_ok_and(|found| found.nlink == 0))
    }

    /// Records that the file has another name.
    pub fn renamed(&self, path: Vec<u8>) {
        *lock(&self.path) = path;
    }
}

/// Removes set-id bits before a write of a user other than root, as the kernel does.
fn drop_set_id(file: &dyn WritableFile) -> Outcome<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    match file.drop_set_id() {
        Err(error) if error.kind == ErrorKind::Unsupported => Ok(()),
        result => Ok(result?),
    }
}
