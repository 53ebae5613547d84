//! The options of an open.

/// Whether an open creates the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Create {
    #[default]
    Never,
    IfMissing,
    /// The file must not exist; otherwise the open fails with `Exists`.
    New,
}

/// The options of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    pub read: bool,
    pub write: bool,
    pub create: Create,
    /// Truncate the file to 0 bytes. Only with `write`.
    pub truncate: bool,
    /// For a file that is created: the lower twelve bits of `st_mode`, before the umask of the
    /// process is applied.
    pub permissions: u32,
}

impl OpenOptions {
    pub const READ: OpenOptions =
        OpenOptions { read: true, write: false, create: Create::Never, truncate: false, permissions: 0o666 };
    pub const WRITE: OpenOptions = OpenOptions { read: false, write: true, ..OpenOptions::READ };
    pub const READ_WRITE: OpenOptions = OpenOptions { write: true, ..OpenOptions::READ };
}
