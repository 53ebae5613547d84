//! The parameters of histories.

/// The parameters of histories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The number of operations.
    pub operations: usize,
    /// The number of mounts that take turns.
    pub mounts: usize,
    /// The number of processes that open files.
    pub processes: u32,
    /// The number of file names in each of three directories.
    pub names: usize,
    /// The size below which most files stay, in bytes.
    pub file_bytes: usize,
    /// The maximum length of one write.
    pub write_bytes_max: usize,
    /// Whether some writes go beyond 2^40.
    pub far: bool,
    /// Whether references to open files are returned. A kernel never does this, and the contract
    /// does not state whether writes to such a file are visible immediately through its name.
    pub forgets: bool,
}

impl Shape {
    /// Three processes on one mount.
    pub const ONE_MOUNT: Shape = Shape {
        operations: 250,
        mounts: 1,
        processes: 3,
        names: 3,
        file_bytes: 60_000,
        write_bytes_max: 9000,
        far: true,
        forgets: false,
    };

    /// Two mounts that take turns.
    pub const TWO_MOUNTS: Shape = Shape { mounts: 2, ..Shape::ONE_MOUNT };

    /// Short writes close together, so that many overlap.
    pub const DENSE: Shape = Shape {
        operations: 400,
        names: 1,
        file_bytes: 2000,
        write_bytes_max: 300,
        far: false,
        ..Shape::ONE_MOUNT
    };
}
