//! A directory with tables.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, XattrFlags, fchmod, fsetxattr, fstat, fsync, openat, renameat,
    unlinkat,
};
use rustix::io::Errno;

use crate::files::TableFiles;
use crate::image_copy::COPY_BYTES_MAX;

/// The end of the names of tables.
const SUFFIX: &str = ".table";
/// The name of the copy of the image's description, and the name of a new copy while it is written.
const COPY: &str = "image";
const NEW_COPY: &str = "image.new";
/// The tables in a directory: files that are named by their numbers in hexadecimal.
#[derive(Debug)]
pub struct TableDir {
    dir: OwnedFd,
    /// The mode of new tables.
    permissions: u32,
    /// The access control list of new tables.
    access_list: Option<Vec<u8>>,
}

/// The mode of a file that only its owner can read.
const PRIVATE: u32 = 0o600;

impl TableDir {
    /// Returns the tables in an open directory. Only their owner can read them.
    pub fn new(dir: OwnedFd) -> TableDir {
        TableDir::with_permissions(dir, PRIVATE)
    }

    /// Returns the tables in an open directory, where new tables get the mode `permissions`.
    pub fn with_permissions(dir: OwnedFd, permissions: u32) -> TableDir {
        TableDir { dir, permissions, access_list: None }
    }

    /// Returns the tables in an open directory. Besides their owner, only the users of this access
    /// control list can read new tables. The list has the form of the extended attribute
    /// `system.posix_acl_access`.
    pub fn with_access_list(dir: OwnedFd, list: Vec<u8>) -> TableDir {
        TableDir { dir, permissions: PRIVATE, access_list: Some(list) }
    }

    /// Returns the name of the file of a table.
    pub fn file_name(number: u64) -> String {
        name_of(number)
    }

    fn open_with(&self, name: &str, flags: OFlags) -> Result<File> {
        // A pipe of this name must not block the process.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR);
        let file = file.map_err(|error| failed(error, "open", name))?;
        let found = fstat(&file).map_err(|error| failed(error, "open", name))?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            _ => Err(Error::new(ErrorKind::Damaged, "open", name)),
        }
    }

    fn remove_name(&self, name: &str) -> Result<()> {
        match unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed(error, "remove", name)),
        }
    }
}

impl TableFiles for TableDir {
    fn create(&self, number: u64) -> Result<File> {
        // A process that was killed may have left a file, which others may have open.
        self.remove(number)?;
        let name = name_of(number);
        let file = self.open_with(&name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        if self.permissions != PRIVATE {
            let permissions = Mode::from_raw_mode(self.permissions);
            fchmod(&file, permissions).map_err(|error| failed(error, "set the permissions of", &name))?;
        }
        if let Some(list) = &self.access_list {
            fsetxattr(&file, "system.posix_acl_access", list, XattrFlags::empty())
                .map_err(|error| failed(error, "set the access control list of", &name))?;
        }
        Ok(file)
    }

    fn sync_content(&self, number: u64, file: &File) -> Result<()> {
        file.sync_data().map_err(|cause| Error::from_io(cause, "synchronize", name_of(number)))
    }

    fn open(&self, number: u64) -> Result<File> {
        self.open_with(&name_of(number), OFlags::RDONLY)
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.remove_name(&name_of(number))
    }

    fn list(&self) -> Result<Vec<u64>> {
        let fail = |error| failed(error, "list", "the tables");
        let mut numbers = Vec::new();
        for entry in Dir::read_from(&self.dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let number = entry.file_name().to_str().ok().and_then(|name| name.strip_suffix(SUFFIX));
            numbers.extend(number.and_then(|digits| u64::from_str_radix(digits, 16).ok()));
        }
        Ok(numbers)
    }

    fn sync(&self) -> Result<()> {
        fsync(&self.dir).map_err(|error| failed(error, "synchronize", "the tables"))
    }

    fn put_copy(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > COPY_BYTES_MAX {
            // A longer copy could not be read again.
            let reason = "the description of the image would have more than 256 MiB; commit or abort batches";
            let error = Error::new(ErrorKind::NoSpace, "write", COPY);
            return Err(Error { source: Some(reason.into()), ..error });
        }
        self.remove_name(NEW_COPY)?;
        let mut file = self.open_with(NEW_COPY, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written.map_err(|cause| Error::from_io(cause, "write", NEW_COPY))?;
        renameat(&self.dir, NEW_COPY, &self.dir, COPY).map_err(|error| failed(error, "rename", NEW_COPY))?;
        self.sync()
    }

    fn copy(&self) -> Result<Option<Vec<u8>>> {
        let file = match self.open_with(COPY, OFlags::RDONLY) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        let length = file.take(COPY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
        let length = length.map_err(|cause| Error::from_io(cause, "read", COPY))?;
        match length <= COPY_BYTES_MAX {
            true => Ok(Some(bytes)),
            false => Err(Error::new(ErrorKind::Damaged, "read", COPY)),
        }
    }
}

fn name_of(number: u64) -> String {
    format!("{number:016x}{SUFFIX}")
}

fn failed(error: Errno, operation: &'static str, subject: &str) -> Error {
    Error::from_io(error.into(), operation, subject)
}
