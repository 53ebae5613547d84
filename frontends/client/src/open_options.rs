//! The options of an open.

/// Whether an open creates the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Create {
    /// The file must exist; otherwise the open fails with `NotFound`.
    #[default]
    Never,
    /// The file is created if it does not exist.
    IfMissing,
    /// The file must not exist; otherwise the open fails with `Exists`.
    New,
}

/// The options of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// The handle can read.
    pub read: bool,
    /// The handle can write.
    pub write: bool,
    /// Whether the open creates the file.
    pub create: Create,
    /// Truncate the file to 0 bytes. Only with `write`.
    pub truncate: bool,
    /// For a file that is created: the lower twelve bits of `st_mode`, before the umask of the
    /// process is applied.
    pub permissions: u32,
}

impl OpenOptions {
    /// Opens an existing file for reading.
    pub const READ: OpenOptions =
        OpenOptions { read: true, write: false, create: Create::Never, truncate: false, permissions: 0o666 };
    /// Opens an existing file for writing.
    pub const WRITE: OpenOptions = OpenOptions { read: false, write: true, ..OpenOptions::READ };
    /// Opens an existing file for reading and writing.
    pub const READ_WRITE: OpenOptions = OpenOptions { write: true, ..OpenOptions::READ };
}
