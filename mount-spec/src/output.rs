//! Output files of commands. An existing file is replaced only if it is empty or a regular file in
//! the format that is written; with `--force`, any regular file is. Symbolic links, devices, FIFOs
//! and directories are never replaced.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// Number of bytes that are read to detect a format.
const BEGIN_BYTES: usize = 64 << 10;
const STICKY: u32 = 0o1000;

/// A format, detected by the first bytes of a file.
#[derive(Debug, Clone, Copy)]
pub struct OutputFormat {
    /// The name with its article: `an index`.
    pub name: &'static str,
    /// Returns whether a file that begins with these bytes has this format.
    pub begins: fn(&[u8]) -> bool,
}

/// An index of a tree.
pub const INDEX: OutputFormat = OutputFormat { name: "an index", begins: quell_index::Image::is_index };
/// A boot image.
pub const BOOT_IMAGE: OutputFormat =
    OutputFormat { name: "a boot image", begins: |bytes| bytes.starts_with(&quell_boot::MAGIC) };
/// A qcow2 image.
pub const QCOW2: OutputFormat =
    OutputFormat { name: "a qcow2 image", begins: |bytes| quell_qcow2::is_qcow2(bytes) };

/// An output file.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// The path of the file.
    pub path: &'a Path,
    /// The format that is written.
    pub format: OutputFormat,
    /// Whether to replace any regular file.
    pub force: bool,
}

impl Output<'_> {
    /// Checks that the file may be written. Called before the work begins, and again by `replace`.
    ///
    /// Errors: `InvalidInput` with the reason if an existing file must not be replaced.
    pub fn check(&self) -> Result<()> {
        let failed = |e: std::io::Error| Error::from_io(e, "write", self.path.as_os_str().as_bytes());
        if self.path == Path::new("-") {
            return Err(self.refused(
                "the result is written to a named file, not to standard output (a file named - is ./-)",
            ));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let not_regular = "it is not a regular file: links, devices, pipes and directories are not replaced";
        let file: File = match rustix::fs::openat(CWD, self.path, flags, Mode::empty()) {
            Ok(file) => file.into(),
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Err(self.refused(not_regular)),
            Err(Errno::ACCESS) if self.force => return self.check_unreadable(not_regular),
            Err(Errno::ACCESS) => {
                let why = format!(
                    "it cannot be read, so it is not known to be {}; --force replaces it",
                    self.format.name
                );
                return Err(self.refused(&why));
            }
            Err(e) => return Err(failed(e.into())),
        };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(self.refused(not_regular));
        }
        if self.force {
            return Ok(());
        }
        let directory = std::fs::metadata(directory_of(self.path)).map_err(failed)?;
        if directory.mode() & STICKY != 0 && metadata.uid() != rustix::process::geteuid().as_raw() {
            let why = format!(
                "it belongs to user {}, in a directory where users replace only their own files",
                metadata.uid()
            );
            return Err(self.refused(&why));
        }
        let mut begin = vec![0; BEGIN_BYTES];
        let length = file.read_at(&mut begin, 0).map_err(failed)?;
        match length == 0 || (self.format.begins)(&begin[..length]) {
            true => Ok(()),
            false => {
                Err(self.refused(&format!("it exists and is not {}; --force replaces it", self.format.name)))
            }
        }
    }

    fn check_unreadable(&self, not_regular: &str) -> Result<()> {
        let found = std::fs::symlink_metadata(self.path);
        match found.map_err(|e| Error::from_io(e, "write", self.path.as_os_str().as_bytes()))?.is_file() {
            true => Ok(()),
            false => Err(self.refused(not_regular)),
        }
    }

    fn refused(&self, why: &str) -> Error {
        Error {
            source: Some(Box::new(std::io::Error::other(why.to_owned()))),
            ..Error::new(ErrorKind::InvalidInput, "write", self.path.as_os_str().as_bytes())
        }
    }

    /// Writes the bytes to a temporary file and renames it to the path. A reader therefore sees the
    /// complete old file or the complete new one, even with concurrent writers or after an
    /// interruption. Before the rename only the owner has access; `admit` sets the final
    /// permissions.
    pub fn replace(&self, bytes: &[u8], admit: impl FnOnce(&File) -> std::io::Result<()>) -> Result<()> {
        self.replace_with(|file| file.write_all(bytes), admit)
    }

    /// Does the same as `replace`, with the bytes that `write` writes to the temporary file.
    pub fn replace_with(
        &self,
        write: impl FnOnce(&mut File) -> std::io::Result<()>,
        admit: impl FnOnce(&File) -> std::io::Result<()>,
    ) -> Result<()> {
        let failed = |e| Error::from_io(e, "write", self.path.as_os_str().as_bytes());
        self.check()?;
        let directory = directory_of(self.path);
        let prefix = aside_prefix(self.path);
        // The temporary file is removed if it is not renamed.
        let mut builder = tempfile::Builder::new();
        let mut aside = builder.prefix(&prefix).suffix(ASIDE).tempfile_in(directory).map_err(failed)?;
        write(aside.as_file_mut()).map_err(failed)?;
        admit(aside.as_file()).map_err(failed)?;
        aside.as_file().sync_all().map_err(failed)?;
        self.check()?;
        aside.persist(self.path).map_err(|e| failed(e.error))?;
        Ok(())
    }
}

/// Returns the directory of a file, which is `.` for a path without one.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns the prefix of the temporary file's name; random letters and `ASIDE` follow.
pub(crate) fn aside_prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

pub(crate) const ASIDE: &str = ".aside";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_of_the_format_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let replace = |force| {
            let output = Output { path: &path, format: INDEX, force };
            output.replace(b"QUELLIDX new", |_| Ok(()))
        };
        replace(false).unwrap();
        replace(false).unwrap();
        fs::write(&path, "").unwrap();
        replace(false).unwrap();
        fs::write(&path, "print('hello')\n").unwrap();
        let refused = replace(false).unwrap_err();
        assert!(
            refused.kind == ErrorKind::InvalidInput && refused.to_string().contains("--force"),
            "{refused}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"print('hello')\n");
        replace(true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"QUELLIDX new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "a temporary file is left");
    }

    #[test]
    fn links_directories_and_devices_are_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("out"), directory.path().join("target"));
        fs::write(&target, "QUELLIDX").unwrap();
        let refused = |path: &Path| {
            for force in [false, true] {
                let output = Output { path, format: INDEX, force };
                let error = output.replace(b"QUELLIDX new", |_| Ok(())).unwrap_err();
                assert_eq!(error.kind, ErrorKind::InvalidInput, "{error}");
            }
        };
        symlink(&target, &path).unwrap();
        refused(&path);
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"QUELLIDX");
        fs::remove_file(&path).unwrap();
        symlink(directory.path().join("nothing"), &path).unwrap();
        refused(&path);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused(&path);
        fs::remove_dir(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused(&path);
        assert!(Output { path: Path::new("/dev/null"), format: INDEX, force: true }.check().is_err());
        assert!(Output { path: Path::new("-"), format: INDEX, force: true }.check().is_err());
    }
}
