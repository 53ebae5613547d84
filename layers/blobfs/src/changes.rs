//! Transactions that create, remove and rename entries. They read the entries that they need, and
//! the commit is refused if another client has changed one of these. So two mounts cannot create
//! the same name, and a mount cannot remove a directory in which another one creates a file at the
//! same time.

use quell_blob::{FileAttributes, OPERATIONS_MAX, Operation, Retries, Transaction};
use quell_vfs::{Error, ErrorKind, Kind, Rename, Result, errno};

use crate::failure::failed;
use crate::names::{is_within, parent};
use crate::shared::{FoundEntry, Shared};

/// The largest number of blobs of a directory that a rename moves. Each needs one operation. In an
/// exchange, each blob of the first directory needs two, so there are at most twice as many
/// operations as blobs.
const MOVED_MAX: usize = (OPERATIONS_MAX - 16) / 2;

/// The largest size of the data that a rename copies, because its new name belongs to another group
/// of servers, in bytes.
const COPIED_BYTES_MAX: u64 = 64 << 20;
/// The size of one read of a copy, in bytes.
const COPY_PART_BYTES: u64 = 4 << 20;
/// The largest sum of the names of the blobs that are renamed in a store with several groups of
/// servers, in bytes: the part of a transaction in a group has at most 1 MiB.
const MOVED_NAMES_BYTES_MAX: usize = 256 << 10;

/// A blob of an entry that is renamed.
struct Move {
    from: Vec<u8>,
    to: Vec<u8>,
    /// The copy of the blob in the group of servers of the new name, if the new name belongs to
    /// another group.
    copy: Option<Vec<u8>>,
}

/// The blobs of an entry that is renamed.
type Moves = Vec<Move>;

/// The copies that a rename has made.
#[derive(Default)]
struct Copies {
    names: Vec<Vec<u8>>,
    bytes: u64,
}

impl Move {
    /// Adds the operations of the move. The new name must be free.
    fn add_to(&self, transaction: &mut Transaction) -> quell_blob::Result<()> {
        match &self.copy {
            Some(copy) => {
                transaction.delete(&self.from)?;
                transaction.rename(copy, &self.to)
            }
            None => transaction.rename(&self.from, &self.to),
        }
    }
}

/// The result of a step of a transaction: an error of the store, after which the transaction may be
/// repeated, or a value, or the error with which this layer refuses the transaction.
type StepResult<T> = quell_blob::Result<Result<T>>;

fn refuse<T>(kind: ErrorKind, operation: &'static str, path: &[u8]) -> StepResult<T> {
    Ok(Err(Error::new(kind, operation, path)))
}

/// Evaluates to the value of a step; if it is an error, returns it from the function.
macro_rules! try_step {
    ($result:expr) => {
        match $result? {
            Ok(value) => value,
            Err(refusal) => return Ok(Err(refusal)),
        }
    };
}

/// Evaluates to the value of a result of this layer. If it is an error, returns it as the refusal
/// of the transaction.
macro_rules! refuse_on_error {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(refusal) => return Ok(Err(refusal)),
        }
    };
}

/// The names and the mode of a rename.
pub(crate) struct Renaming<'a> {
    pub(crate) from: &'a [u8],
    pub(crate) to: &'a [u8],
    pub(crate) mode: Rename,
    /// The blob that receives the data of a replaced file, if the file is in use.
    pub(crate) replaced: Option<Vec<u8>>,
}

impl Shared {
    fn transact<T>(
        &self,
        operation: &'static str,
        path: &[u8],
        mut body: impl FnMut(&mut Transaction) -> StepResult<T>,
    ) -> Result<T> {
        let done = self.store.transact(&Retries::default(), |transaction| body(transaction));
        match done {
            // Another client has changed the entry between two operations of the transaction.
            Err(cause) if cause.kind() == ErrorKind::NotFound => Err(Error {
                source: Some(Box::new(cause)),
                ..Error::new(ErrorKind::NotFound, operation, path)
            }),
            done => done.map_err(|cause| failed(cause, operation, path))?,
        }
    }

    /// Finds an entry in the state that a transaction reads.
    fn find_in(&self, transaction: &mut Transaction, path: &[u8]) -> StepResult<Option<FoundEntry>> {
        if let Some(stat) = transaction.stat(refuse_on_error!(self.names.of_file(path)))? {
            return Ok(Ok(Some(FoundEntry::of_blob(stat))));
        }
        let blob = refuse_on_error!(self.names.of_dir(path));
        let first = transaction.list(&blob, "", 1)?;
        Ok(Ok(FoundEntry::of_dir(&blob, &first)))
    }

    /// Checks that the directory of an entry exists, and returns its attributes, if they were set.
    fn require_parent(
        &self,
        transaction: &mut Transaction,
        path: &[u8],
    ) -> StepResult<Option<FileAttributes>> {
        let dir = parent(path);
        let blob = refuse_on_error!(self.names.of_dir(dir));
        if let Some(stat) = transaction.stat(&blob)? {
            return Ok(Ok(stat.file));
        }
        if !dir.is_empty() && transaction.list(&blob, "", 1)?.is_empty() {
            return refuse(ErrorKind::NotFound, "look into", dir);
        }
        Ok(Ok(None))
    }

    /// Adds operations that set the time of the directory of an entry. The directory then exists
    /// also without entries.
    fn touch_parent(&self, transaction: &mut Transaction, path: &[u8]) -> StepResult<()> {
        let dir = parent(path);
        if !dir.is_empty() {
            let blob = refuse_on_error!(self.names.of_dir(dir));
            transaction.create(&blob)?;
            transaction.resize(&blob, 0)?;
        }
        Ok(Ok(()))
    }

    /// Creates a file, a directory, or a symbolic link with the target `data`, and returns its
    /// attributes.
    pub(crate) fn create(
        &self,
        path: &[u8],
        kind: Kind,
        file: FileAttributes,
        data: &[u8],
    ) -> Result<FileAttributes> {
        let blob = match kind {
            Kind::Dir => self.names.of_dir(path)?,
            _ => self.names.of_file(path)?,
        };
        self.transact("create", path, |transaction| {
            let dir = try_step!(self.require_parent(transaction, path));
            if try_step!(self.find_in(transaction, path)).is_some() {
                return refuse(ErrorKind::Exists, "create", path);
            }
            let mut file = file;
            if let Some(dir) = dir.filter(|dir| dir.mode & 0o2000 != 0) {
                file.gid = dir.gid;
                file.mode |= if kind == Kind::Dir { 0o2000 } else { 0 };
            }
            transaction.create_new(&blob)?;
            if !data.is_empty() {
                transaction.write(&blob, 0, data)?;
            }
            let name = blob.clone();
            transaction.add(Operation::SetAttributes { name, file: Some(file), modified_ns: None })?;
            try_step!(self.touch_parent(transaction, path));
            Ok(Ok(file))
        })
    }

    /// Removes a file or symbolic link. `unnamed` is the blob that receives its data, if the file
    /// is in use.
    pub(crate) fn remove(&self, path: &[u8], unnamed: Option<&[u8]>) -> Result<()> {
        let blob = self.names.of_file(path)?;
        self.transact("remove", path, |transaction| {
            match try_step!(self.find_in(transaction, path)) {
                None => return refuse(ErrorKind::NotFound, "remove", path),
                Some(found) if found.kind == Kind::Dir => {
                    return refuse(ErrorKind::IsADirectory, "remove", path);
                }
                Some(_) => {}
            }
            match unnamed {
                Some(unnamed) => transaction.rename(&blob, unnamed)?,
                None => transaction.delete(&blob)?,
            }
            self.touch_parent(transaction, path)
        })
    }

    /// Removes an empty directory.
    pub(crate) fn remove_dir(&self, path: &[u8]) -> Result<()> {
        let blob = self.names.of_dir(path)?;
        self.transact("remove", path, |transaction| {
            match try_step!(self.find_in(transaction, path)) {
                None => return refuse(ErrorKind::NotFound, "remove", path),
                Some(found) if found.kind != Kind::Dir => {
                    return refuse(ErrorKind::NotADirectory, "remove", path);
                }
                Some(_) => {}
            }
            if !is_empty(transaction, &blob)? {
                return refuse(ErrorKind::NotEmpty, "remove", path);
            }
            transaction.delete(&blob)?;
            self.touch_parent(transaction, path)
        })
    }

    /// Renames an entry, or exchanges two entries.
    pub(crate) fn rename(&self, renaming: &Renaming<'_>) -> Result<()> {
        let Renaming { from, to, mode, replaced } = renaming;
        let refuse = |kind| refuse(kind, "rename", from);
        let (from_file, to_file) = (self.names.of_file(from)?, self.names.of_file(to)?);
        let mut copies = Copies::default();
        let renamed = self.transact("rename", from, |transaction| {
            self.discard(&mut copies);
            let Some(source) = try_step!(self.find_in(transaction, from)) else {
                return refuse(ErrorKind::NotFound);
            };
            try_step!(self.require_parent(transaction, to));
            let target = try_step!(self.find_in(transaction, to));
            let is_dir = |found: &FoundEntry| found.kind == Kind::Dir;
            let source_is_dir = is_dir(&source);
            if *mode == Rename::Keep && target.is_some() {
                return refuse(ErrorKind::Exists);
            }
            if from == to {
                return Ok(Ok(()));
            }
            if source_is_dir && is_within(to, from) {
                return refuse(ErrorKind::InvalidInput);
            }
            let moves = try_step!(self.moves(transaction, &mut copies, (from, to), source_is_dir));
            match (mode, &target) {
                (Rename::Exchange, None) => return refuse(ErrorKind::NotFound),
                (Rename::Exchange, Some(target)) => {
                    if is_dir(target) && is_within(from, to) {
                        return refuse(ErrorKind::InvalidInput);
                    }
                    let back = try_step!(self.moves(transaction, &mut copies, (to, from), is_dir(target)));
                    if 2 * moves.len() + back.len() > 2 * MOVED_MAX {
                        return Ok(Err(too_many_blobs(from)));
                    }
                    // The blobs are exchanged through temporary names that no other blob has.
                    let mut second = Moves::new();
                    for Move { from, to, copy } in moves {
                        let aside = match copy {
                            Some(copy) => {
                                transaction.delete(&from)?;
                                copy
                            }
                            None => {
                                let aside = refuse_on_error!(self.removed_name(&from));
                                transaction.rename(&from, &aside)?;
                                aside
                            }
                        };
                        second.push(Move { from: aside, to, copy: None });
                    }
                    for of_move in back.iter().chain(&second) {
                        of_move.add_to(transaction)?;
                    }
                    try_step!(self.touch_parent(transaction, from));
                    return self.touch_parent(transaction, to);
                }
                (_, None) => {}
                (_, Some(target)) => match (source_is_dir, is_dir(target)) {
                    (false, true) => return refuse(ErrorKind::IsADirectory),
                    (true, false) => return refuse(ErrorKind::NotADirectory),
                    (true, true) => {
                        let blob = refuse_on_error!(self.names.of_dir(to));
                        if !is_empty(transaction, &blob)? {
                            return refuse(ErrorKind::NotEmpty);
                        }
                        transaction.delete(&blob)?;
                    }
                    (false, false) => match replaced {
                        Some(unnamed) => transaction.rename(&to_file, unnamed)?,
                        None => transaction.delete(&to_file)?,
                    },
                },
            }
            debug_assert!(source_is_dir || moves.first().is_some_and(|first| first.from == from_file));
            for of_move in &moves {
                of_move.add_to(transaction)?;
            }
            try_step!(self.touch_parent(transaction, from));
            self.touch_parent(transaction, to)
        });
        self.discard(&mut copies);
        renamed
    }

    /// Returns the blobs of an entry, and their names after a rename from the first path to the
    /// second one. Blobs whose new names belong to another group of servers are copied.
    fn moves(
        &self,
        transaction: &mut Transaction,
        copies: &mut Copies,
        (from, to): (&[u8], &[u8]),
        is_dir: bool,
    ) -> StepResult<Moves> {
        let mut names = Vec::new();
        if is_dir {
            let (old, new) =
                (refuse_on_error!(self.names.of_dir(from)), refuse_on_error!(self.names.of_dir(to)));
            for (blob, _) in transaction.list(&old, "", MOVED_MAX + 1)? {
                let moved = [&new[..], &blob[old.len()..]].concat();
                if moved.len() > quell_blob::NAME_BYTES_MAX {
                    return refuse(ErrorKind::NameTooLong, "rename", from);
                }
                names.push((blob, moved));
            }
        } else {
            let of_file = |path| self.names.of_file(path);
            names.push((refuse_on_error!(of_file(from)), refuse_on_error!(of_file(to))));
        }
        let names_bytes: usize = names.iter().map(|(blob, moved)| blob.len() + moved.len()).sum();
        let is_too_large = self.store.groups() > 1 && names_bytes > MOVED_NAMES_BYTES_MAX;
        if names.len() > MOVED_MAX || is_too_large {
            return Ok(Err(too_many_blobs(from)));
        }
        let mut moves = Moves::new();
        for (from, to) in names {
            let copy = match self.store.group_of(&from) == self.store.group_of(&to) {
                true => None,
                false => Some(try_step!(self.copy(transaction, copies, &from, &to))),
            };
            moves.push(Move { from, to, copy });
        }
        Ok(Ok(moves))
    }

    /// Copies a blob to the group of servers of its new name, and returns the name of the copy. The
    /// transaction reads the whole blob, and is refused if the blob changes.
    fn copy(
        &self,
        transaction: &mut Transaction,
        copies: &mut Copies,
        from: &[u8],
        to: &[u8],
    ) -> StepResult<Vec<u8>> {
        let Some(stat) = transaction.stat(from)? else {
            return refuse(ErrorKind::NotFound, "rename", from);
        };
        let name = refuse_on_error!(self.removed_name(to));
        copies.names.push(name.clone());
        self.store.create(&name)?;
        let mut end = 0;
        while let Some(start) = transaction.next_data(from, end)? {
            let length = COPY_PART_BYTES.min(stat.size_bytes.saturating_sub(start));
            copies.bytes += length;
            if copies.bytes > COPIED_BYTES_MAX {
                return Ok(Err(too_large_copy(from)));
            }
            let mut part = vec![0; length as usize];
            let count = transaction.read(from, start, &mut part)?;
            if count == 0 {
                break;
            }
            self.store.write(&name, start, &part[..count])?;
            end = start + count as u64;
        }
        let (file, modified_ns) = (stat.file, Some(stat.modified_ns));
        self.store.commit(vec![
            Operation::Resize { name: name.clone(), size_bytes: stat.size_bytes },
            Operation::SetAttributes { name: name.clone(), file, modified_ns },
        ])?;
        Ok(Ok(name))
    }

    /// Deletes the copies that were not given their new names.
    fn discard(&self, copies: &mut Copies) {
        for name in std::mem::take(copies).names {
            // After an error, a later mount deletes the copy.
            let _ = self.delete_removed(&name);
        }
    }
}

/// Returns the error of a rename that would copy too much data. After this error, mv(1) copies the
/// file itself.
fn too_large_copy(path: &[u8]) -> Error {
    let reason = "the new name belongs to another group of servers, and the rename would copy more than \
                  64 MiB; copy the file or directory, then remove the old one";
    let error = Error::new(ErrorKind::Os(errno::EXDEV), "rename", path);
    Error { source: Some(reason.into()), ..error }
}

/// Returns the error of a rename that needs more operations than a transaction can have.
fn too_many_blobs(path: &[u8]) -> Error {
    let reason =
        "the names are too many or too long for one transaction; copy the directory, then remove the old one";
    let error = Error::new(ErrorKind::Os(errno::EXDEV), "rename", path);
    Error { source: Some(reason.into()), ..error }
}

/// Returns whether the directory of a blob, which exists, has no other blobs.
fn is_empty(transaction: &mut Transaction, blob: &[u8]) -> quell_blob::Result<bool> {
    Ok(transaction.list(blob, "", 2)?.iter().all(|(name, _)| name == blob))
}
