//! Index and boot image files: their default paths, how they are read, the users who may read an
//! index, and how it is written atomically.

use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quell_boot::{BootImage, ImageFile, LoadingContents};
use quell_index::{Image, format};
use quell_vfs::{Error, ErrorKind, Kind, Result, errno};

use crate::display::shown;
use crate::output::{INDEX, Output};

/// Returns `DIR.quell` beside the directory, whose path has no symbolic links; `None` for the root
/// directory, which has no parent.
pub fn default_index_path(directory: &Path) -> Option<PathBuf> {
    let mut name = directory.file_name()?.to_os_string();
    name.push(".quell");
    Some(directory.parent()?.join(name))
}

/// Reads and validates an index. The file is read in one pass, not mapped: page faults would cause
/// many small requests to a shared file system, and truncating a mapped file kills its readers with
/// SIGBUS (docs/decisions/0002-read-not-map.md).
///
/// The header is checked first; then `admit` is called with the number of bytes, before memory is
/// allocated.
///
/// Errors: `InvalidInput` for a file without the magic number of an index, `Damaged` for a damaged
/// index, and the errors of `admit`.
pub fn load_index<E: From<Error>>(
    path: &Path,
    admit: impl FnOnce(u64) -> std::result::Result<(), E>,
) -> std::result::Result<Image, E> {
    load_index_from(&open(path, READ_INDEX)?, path, admit)
}

/// Does the same as `load_index`, for a file that is already open.
pub fn load_index_from<E: From<Error>>(
    file: &File,
    path: &Path,
    admit: impl FnOnce(u64) -> std::result::Result<(), E>,
) -> std::result::Result<Image, E> {
    let length = regular_length(file, path, READ_INDEX)?;
    let preamble = read_begin(file, path, READ_INDEX, length, format::PREAMBLE_BYTES)?;
    if !Image::is_index(&preamble) {
        let what = if length == 0 {
            "not an index file: it is empty"
        } else {
            "not an index file (it does not begin with QUELLIDX); create one with `quell index DIRECTORY`"
        };
        return Err(wrong_file(path, READ_INDEX, what.into()).into());
    }
    Image::check_preamble(&preamble, length).map_err(|damage| damaged(path, READ_INDEX, damage))?;
    admit(length)?;
    let bytes = read_whole(file, path, READ_INDEX, length)?;
    let image = Image::parse(bytes).map_err(|damage| damaged(path, READ_INDEX, damage))?;
    tracing::debug!(path = %shown(path), bytes = length, entries = image.entries(), "loaded an index");
    Ok(image)
}

/// Reads a boot image in one pass, and validates everything except its frames. `admit` is called as
/// by `load_index`.
pub fn load_boot<E: From<Error>>(
    path: &Path,
    admit: impl FnOnce(u64) -> std::result::Result<(), E>,
) -> std::result::Result<BootImage, E> {
    load_boot_from(&open(path, READ_BOOT)?, path, admit)
}

/// Does the same as `load_boot`, for a file that is already open.
pub fn load_boot_from<E: From<Error>>(
    file: &File,
    path: &Path,
    admit: impl FnOnce(u64) -> std::result::Result<(), E>,
) -> std::result::Result<BootImage, E> {
    let length = regular_length(file, path, READ_BOOT)?;
    let header = read_begin(file, path, READ_BOOT, length, quell_boot::HEADER_BYTES)?;
    if !begins_as_boot_image(&header) {
        return Err(no_boot_image(path).into());
    }
    if let Some(header) = header.first_chunk() {
        BootImage::tables_end(header, length).map_err(|e| damaged(path, READ_BOOT, e))?;
        admit(length)?;
    }
    // A file that ends within the header is refused by `parse`.
    let bytes = read_whole(file, path, READ_BOOT, length)?;
    let image = BootImage::parse(bytes).map_err(|damage| damaged(path, READ_BOOT, damage))?;
    tracing::debug!(path = %shown(path), bytes = length, files = image.files(), "loaded a boot image");
    Ok(image)
}

const READ_INDEX: &str = "read index";
const READ_BOOT: &str = "read boot image";

/// A boot image whose tables were read and validated; its frames are not read yet.
#[derive(Debug)]
pub struct OpenBoot {
    /// The validated tables.
    pub image: BootImage,
    file: File,
    path: PathBuf,
}

impl OpenBoot {
    /// Reads the tables. Calls `admit` with their size, according to the header, before memory is
    /// allocated.
    pub fn begin<E: From<Error>>(
        file: Option<File>,
        path: &Path,
        admit: impl FnOnce(u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<OpenBoot, E> {
        let operation = READ_BOOT;
        let file = file.map_or_else(|| open(path, operation), Ok)?;
        let length = regular_length(&file, path, operation)?;
        let mut bytes = read_begin(&file, path, operation, length, quell_boot::HEADER_BYTES)?;
        if !begins_as_boot_image(&bytes) {
            return Err(no_boot_image(path).into());
        }
        if let Some(header) = bytes.first_chunk() {
            let end = BootImage::tables_end(header, length).map_err(|e| damaged(path, operation, e))?;
            let end = end.min(length);
            admit(end)?;
            bytes = read_whole(&file, path, operation, end)?;
        }
        let image =
            BootImage::parse_tables(bytes, length).map_err(|damage| damaged(path, operation, damage))?;
        tracing::debug!(path = %shown(path), bytes = length, files = image.files(), "read the tables of a boot image");
        Ok(OpenBoot { image, file, path: path.into() })
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the image, and the file, from which frames can be read. `report` gets the first
    /// error of such a read.
    pub fn in_ranges(
        self,
        report: impl Fn(&Error) + Send + Sync + 'static,
    ) -> (BootImage, Arc<dyn ImageFile>) {
        let OpenBoot { image, file, path } = self;
        (image, Arc::new(RangedBootFile { file, path, report: Box::new(report) }))
    }

    /// Reads and decodes all frames in order, with `threads` threads.
    pub fn load(&self, contents: &LoadingContents, threads: usize) -> Result<()> {
        let _span = tracing::debug_span!("load_boot_image", path = %shown(&self.path), threads).entered();
        let read = |offset: u64, into: &mut [u8]| read_exact(&self.file, &self.path, into, offset);
        contents.load(&self.image, threads, &read)
    }
}

/// The open file of a boot image whose frames are read when they are needed. It stays the same file
/// if the path is removed or replaced.
struct RangedBootFile {
    file: File,
    path: PathBuf,
    report: Box<dyn Fn(&Error) + Send + Sync>,
}

impl ImageFile for RangedBootFile {
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        read_exact(&self.file, &self.path, into, offset)
    }

    fn report(&self, error: &Error) {
        (self.report)(error);
    }
}

fn read_exact(file: &File, path: &Path, into: &mut [u8], offset: u64) -> Result<()> {
    file.read_exact_at(into, offset).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            damaged(path, READ_BOOT, std::io::Error::other("it was truncated while it was used"))
        }
        _ => Error::from_io(e, READ_BOOT, path.as_os_str().as_bytes()),
    })
}

fn damaged(
    path: &Path,
    operation: &'static str,
    damage: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error {
        source: Some(Box::new(damage)),
        ..Error::new(ErrorKind::Damaged, operation, path.as_os_str().as_bytes())
    }
}

fn wrong_file(path: &Path, operation: &'static str, why: String) -> Error {
    Error {
        source: Some(Box::new(std::io::Error::other(why))),
        ..Error::new(ErrorKind::InvalidInput, operation, path.as_os_str().as_bytes())
    }
}

/// Returns whether a file may be a boot image. An empty file, or one that ends within the magic
/// number, counts as a damaged boot image.
fn begins_as_boot_image(begin: &[u8]) -> bool {
    begin.iter().zip(&quell_boot::MAGIC).all(|(found, due)| found == due)
}

fn no_boot_image(path: &Path) -> Error {
    wrong_file(
        path,
        READ_BOOT,
        "not a boot image (it does not begin with QUELLBOO); create one with `quell record`".into(),
    )
}

/// Opens a file for reading. The open of a FIFO does not block, and a terminal does not become the
/// controlling terminal.
fn open(path: &Path, operation: &'static str) -> Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(file.into()),
        Err(e) => Err(Error::from_io(e.into(), operation, path.as_os_str().as_bytes())),
    }
}

/// Returns the length of a regular file.
fn regular_length(file: &File, path: &Path, operation: &'static str) -> Result<u64> {
    let subject = path.as_os_str().as_bytes();
    let metadata = file.metadata().map_err(|e| Error::from_io(e, operation, subject))?;
    match (metadata.is_file(), metadata.is_dir()) {
        (true, _) => Ok(metadata.len()),
        (_, true) => Err(Error::new(ErrorKind::IsADirectory, operation, subject)),
        _ => Err(wrong_file(path, operation, "at byte 0: it is not a regular file".into())),
    }
}

/// Returns the first bytes of a file of `length` bytes, at most `bytes_max`.
fn read_begin(
    file: &File,
    path: &Path,
    operation: &'static str,
    length: u64,
    bytes_max: usize,
) -> Result<Vec<u8>> {
    read_whole(file, path, operation, length.min(bytes_max as u64))
}

/// Returns the first `length` bytes of a file that has at least this length.
fn read_whole(file: &File, path: &Path, operation: &'static str, length: u64) -> Result<Vec<u8>> {
    let subject = path.as_os_str().as_bytes();
    let mut bytes = Vec::new();
    let no_memory = |_| {
        let cause =
            std::io::Error::other(format!("it needs {length} bytes of memory, which are not available"));
        Error {
            source: Some(Box::new(cause)),
            ..Error::new(ErrorKind::Os(errno::ENOMEM), operation, subject)
        }
    };
    let length_here = usize::try_from(length).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(length_here).map_err(no_memory)?;
    bytes.resize(length_here, 0);
    file.read_exact_at(&mut bytes, 0).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            damaged(path, operation, std::io::Error::other("it changed while it was read"))
        }
        _ => Error::from_io(e, operation, subject),
    })?;
    Ok(bytes)
}

/// The users who may read an index. They can also list every directory of the tree, and read the
/// extended attributes of every file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readers {
    /// Whether all users may read the index.
    pub others: bool,
    /// The members of this group.
    pub group: Option<u32>,
}

/// Returns the readers according to the tree's own modes; `above` is the path of its root, whose
/// parent directories count as well. Reading `user.*` attributes needs read permission for the file
/// (xattr(7)), so a file with such attributes counts like a directory.
pub fn readers_of(image: &Image, above: &Path) -> Readers {
    let mut others = !image.has_flag(format::FLAG_ACLS) && image.problem_count() == 0;
    let root_group = image.attributes(quell_index::ROOT).gid;
    let mut group = others;
    let has_xattrs = image.has_flag(format::FLAG_XATTRS);
    for entry in 0..image.entries() {
        let is_dir = image.kind(entry) == Kind::Dir;
        let has_private = || has_xattrs && image.xattrs(entry).any(|(name, _)| name.starts_with(b"user."));
        if !is_dir && !has_private() {
            continue;
        }
        let needed = if is_dir { 0o5 } else { 0o4 };
        let a = image.attributes(entry);
        // If the group has fewer permissions than others, members of the group have no access.
        let open_to_others = a.permissions & needed == needed && a.permissions & needed << 3 == needed << 3;
        others &= open_to_others;
        let open_to_group = a.gid == root_group && a.permissions & needed << 3 == needed << 3;
        group &= open_to_others || open_to_group;
    }
    for directory in above.ancestors().skip(1) {
        let Ok(metadata) = fs::metadata(directory) else { continue };
        let open_to_others = metadata.mode() & 0o011 == 0o011;
        others &= open_to_others;
        group &= open_to_others || (metadata.gid() == root_group && metadata.mode() & 0o010 != 0);
    }
    Readers { others, group: group.then_some(root_group) }
}

/// Writes an index; see [`Output::replace`]. The modification time of the file becomes the time, by
/// the clock of its file system, at which the tree began to be read: `age` before now.
/// `quell index --update=dirs` reads directories again that changed shortly before that time or
/// later.
pub fn save_index(path: &Path, bytes: &[u8], readers: Readers, age: Duration, force: bool) -> Result<()> {
    Output { path, format: INDEX, force }.replace(bytes, |file| {
        let written = file.metadata()?.modified()?;
        file.set_modified(written.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH))?;
        let mut mode = 0o600;
        if readers.others {
            mode |= 0o044;
        }
        if let (false, Some(group)) = (readers.others, readers.group) {
            let group = rustix::fs::Gid::from_raw(group);
            // If the group cannot be set, its members get no access.
            if rustix::fs::fchown(file, None, Some(group)).is_ok() {
                mode |= 0o040;
            }
        }
        file.set_permissions(Permissions::from_mode(mode))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_index_file_is_beside_the_directory() {
        for (directory, file) in
            [("/sw/env", Some("/sw/env.quell")), ("/env", Some("/env.quell")), ("/", None)]
        {
            assert_eq!(default_index_path(Path::new(directory)), file.map(PathBuf::from));
        }
    }

    #[test]
    fn the_time_of_an_index_is_the_beginning_of_the_build() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tree.quell");
        let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let before = directory.path().join("before");
        fs::write(&before, "").unwrap();
        let age = Duration::from_secs(1000);
        save_index(&path, &format::MAGIC, Readers { others: false, group: None }, age, false).unwrap();
        let passed = modified(&path).duration_since(modified(&before) - age).unwrap();
        assert!(passed < age, "{passed:?}");
        assert!(modified(&path) < modified(&before));
    }

    #[test]
    fn a_header_is_checked_before_memory_is_allocated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sparse");
        let length = 60 << 30;
        let refused = |begin: &[u8]| {
            fs::write(&path, begin).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
            let never = |_| -> Result<()> { panic!("memory was admitted for") };
            let file = File::open(&path).unwrap();
            let index = load_index_from(&file, &path, never).map(drop).unwrap_err();
            let boot = load_boot_from(&file, &path, never).map(drop).unwrap_err();
            (index.kind, boot.kind)
        };
        assert_eq!(refused(b"#!/bin/sh\n"), (ErrorKind::InvalidInput, ErrorKind::InvalidInput));
        assert_eq!(refused(b"QUELLIDX"), (ErrorKind::Damaged, ErrorKind::InvalidInput));
        assert_eq!(refused(b"QUELLBOO"), (ErrorKind::InvalidInput, ErrorKind::Damaged));
        let device = File::open("/dev/zero").unwrap();
        let refused = load_index_from(&device, Path::new("/dev/zero"), |_| Ok::<_, Error>(())).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidInput);
    }

    #[test]
    fn memory_for_the_tables_of_a_boot_image_is_admitted_before_it_is_allocated() {
        struct Zeros;
        impl quell_boot::ReadBlock for Zeros {
            fn read(
                &mut self,
                _: &quell_boot::Recorded,
                _: &mut [u8; quell_boot::BLOCK_BYTES],
            ) -> Result<bool> {
                Ok(true)
            }
        }
        let mut packer = quell_boot::Packer::default();
        let mut recording = quell_boot::Recording::new();
        packer.add(
            &quell_boot::disk_name(0, b"/disk.raw"),
            4096,
            quell_vfs::Time { seconds: 1, nanoseconds: 0 },
            None,
        );
        recording.add(0, 0..1);
        let mut bytes = packer.pack(quell_boot::ImageKind::Disk, &recording, &mut Zeros, 1).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine.boot");
        fs::write(&path, &bytes).unwrap();
        let mut admitted = 0;
        OpenBoot::begin(None, &path, |bytes| {
            admitted = bytes;
            Ok::<(), Error>(())
        })
        .unwrap();
        assert!((quell_boot::HEADER_BYTES as u64..=bytes.len() as u64).contains(&admitted), "{admitted}");
        let none = |_| Err::<(), _>(Error::new(ErrorKind::InvalidInput, "reserve memory", b""));
        assert_eq!(OpenBoot::begin(None, &path, none).unwrap_err().operation, "reserve memory");
        // A sparse file whose header claims that almost all of it is names: `admit` must not be
        // called.
        let length = 60 << 30;
        bytes[16..24].copy_from_slice(&u64::to_le_bytes(length));
        bytes[72..80].copy_from_slice(&u64::to_le_bytes(length - 4096));
        fs::write(&path, &bytes).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let refused = OpenBoot::begin(None, &path, none).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Damaged);
    }
}
