//! The results of a check.

/// The kind of a problem. docs/techniques/batch.md lists the identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProblemKind {
    /// A table that the image or a snapshot has does not exist.
    MissingTable,
    /// A table does not match its description in the image or in a snapshot.
    DamagedTable,
    /// The value of a key is not an entry, or it is an entry that the key cannot have.
    BadEntry,
    /// Two keys have inodes with the same number.
    InodeTwice,
    /// An inode has a number that the store has not assigned yet, and would assign to a new inode.
    InodeNumber,
    /// A directory has entries or a name, but no inode.
    MissingInode,
    /// A name refers to a file without an inode.
    MissingFile,
    /// A directory or a file has no name.
    NoName,
    /// A directory has a second name.
    SecondName,
    /// A directory is below itself.
    Cycle,
    /// The inode of a directory does not state the parent directory and the name of the entry that
    /// refers to it.
    WrongParent,
    /// An inode has a wrong number of links.
    WrongLinks,
    /// The counted use of a user differs from the inodes that belong to the user.
    WrongUsage,
}

impl ProblemKind {
    /// All kinds.
    pub const ALL: [ProblemKind; 13] = [
        ProblemKind::MissingTable,
        ProblemKind::DamagedTable,
        ProblemKind::BadEntry,
        ProblemKind::InodeTwice,
        ProblemKind::InodeNumber,
        ProblemKind::MissingInode,
        ProblemKind::MissingFile,
        ProblemKind::NoName,
        ProblemKind::SecondName,
        ProblemKind::Cycle,
        ProblemKind::WrongParent,
        ProblemKind::WrongLinks,
        ProblemKind::WrongUsage,
    ];

    /// Returns the identifier, which scripts can compare.
    pub fn identifier(self) -> &'static str {
        match self {
            ProblemKind::MissingTable => "missing-table",
            ProblemKind::DamagedTable => "damaged-table",
            ProblemKind::BadEntry => "bad-entry",
            ProblemKind::InodeTwice => "inode-twice",
            ProblemKind::InodeNumber => "inode-number",
            ProblemKind::MissingInode => "missing-inode",
            ProblemKind::MissingFile => "missing-file",
            ProblemKind::NoName => "no-name",
            ProblemKind::SecondName => "second-name",
            ProblemKind::Cycle => "cycle",
            ProblemKind::WrongParent => "wrong-parent",
            ProblemKind::WrongLinks => "wrong-links",
            ProblemKind::WrongUsage => "wrong-usage",
        }
    }

    /// Returns whether a repair corrects the problem without the loss of an inode.
    pub fn is_repairable(self) -> bool {
        !matches!(
            self,
            ProblemKind::MissingTable
                | ProblemKind::DamagedTable
                | ProblemKind::BadEntry
                | ProblemKind::InodeTwice
        )
    }
}

/// A problem of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The kind.
    pub kind: ProblemKind,
    /// The directory and the name of the entry with the problem. The empty name stands for the
    /// inode of the directory. `None` for a table or a user.
    pub entry: Option<(u64, Vec<u8>)>,
    /// A description.
    pub detail: String,
}

impl Problem {
    pub(super) fn of_entry(kind: ProblemKind, dir: u64, name: &[u8], detail: String) -> Problem {
        Problem { kind, entry: Some((dir, name.to_vec())), detail }
    }

    pub(super) fn of_table(kind: ProblemKind, number: u64, reason: &str) -> Problem {
        Problem { kind, entry: None, detail: format!("table {number}: {reason}") }
    }
}

/// The numbers of inodes in the tree that a check has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// The number of directories.
    pub dirs: u64,
    /// The number of other inodes.
    pub files: u64,
}
