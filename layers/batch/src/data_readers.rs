//! The users that can read the data files of a private store. The access control list of a data
//! file follows the owner, the group and the mode of its inode, but not the directories above.
//! docs/formats/batch.md describes the lists.

use quell_batch_service::{Content, DataFile, FILES_OF_USERS, Inode, Names, PrivateEntries};
use quell_posix::OpenFile;
use quell_vfs::{Error, ErrorKind, Result, errno};
use rustix::process::geteuid;

use crate::access_list::{PrivateStore, Readers, set_list};
use crate::data::Data;
use crate::incoming::open_data_file;

/// A data file of an earlier batch, and the readers that its inode has after the batch.
#[derive(Debug)]
pub(crate) struct ChangedReaders {
    file: DataFile,
    readers: Readers,
}

/// The data file of an inode.
enum Found {
    /// A file whose list this user can change.
    Changeable(ChangeableFile),
    /// A file of another user, or one that this user cannot open.
    OfAnotherUser,
    /// There is no file.
    Missing,
}

/// A data file whose list this user can change.
struct ChangeableFile {
    file: Box<dyn OpenFile>,
    store: PrivateStore,
    uid: u32,
}

impl ChangeableFile {
    fn readers(&self, inode: &Inode) -> Readers {
        self.store.readers(inode, self.uid)
    }

    fn set(&self, readers: &Readers) -> Result<()> {
        set_list(&*self.file, &self.store.list(readers, self.uid))
    }
}

impl Data {
    /// Returns whether the list of a data file is changed together with its inode. In a batch, the
    /// lists of other batches' files are changed at its end, because others read these files
    /// meanwhile.
    fn changes_at_once(&self, file: DataFile) -> bool {
        self.is_own(file) || self.batch == 0 || self.batch >= FILES_OF_USERS
    }

    /// Returns whether the same users may read a file with one of these inodes as with the other
    /// one.
    pub(crate) fn have_equal_readers(&self, one: &Inode, other: &Inode) -> bool {
        let readers = |inode| self.private.map(|store| store.readers(inode, geteuid().as_raw()));
        readers(one) == readers(other)
    }

    /// Prepares a change of an inode: removes from the list of its data file the users that may not
    /// read the file after the change.
    ///
    /// # Errors
    /// EPERM if there are such users, and the list belongs to another user; the errors of files.
    pub(crate) fn restrict_readers(&self, before: &Inode, after: &Inode) -> Result<()> {
        let Content::File(file) = before.content else { return Ok(()) };
        let Some(store) = self.private else { return Ok(()) };
        let readers = |inode| store.readers(inode, geteuid().as_raw());
        let (old, new) = (readers(before), readers(after));
        if old.is_subset(&new) {
            return Ok(());
        }
        match self.find(file)? {
            Found::Missing => Ok(()),
            Found::Changeable(_) if !self.changes_at_once(file) => Ok(()),
            Found::Changeable(file) => file.set(&file.readers(before).intersection(&file.readers(after))),
            Found::OfAnotherUser => {
                let reason = "another user owns the data file of this file, and only that user can withdraw \
                              read access; copy the file and replace it with the copy";
                let error = Error::new(ErrorKind::Os(errno::EPERM), "change", "the permissions of the file");
                Err(Error { source: Some(reason.into()), ..error })
            }
        }
    }

    /// Sets the list of the data file of an inode that was changed. The list of a file of another
    /// user remains.
    ///
    /// # Errors
    /// The errors of files.
    pub(crate) fn set_readers(&self, inode: &Inode) -> Result<()> {
        let Content::File(file) = inode.content else { return Ok(()) };
        if !self.changes_at_once(file) {
            return Ok(());
        }
        match self.find(file)? {
            Found::Changeable(file) => file.set(&file.readers(inode)),
            Found::OfAnotherUser | Found::Missing => Ok(()),
        }
    }

    /// Prepares the commit of a batch: removes from the lists of earlier batches' data files the
    /// users that may not read the files after the batch. Returns the files whose list is to be set
    /// when the batch is committed, because more users may read them.
    ///
    /// # Errors
    /// The errors of files and of the tables of the batch.
    pub(crate) fn restrict_earlier(&self, names: &Names<PrivateEntries>) -> Result<Vec<ChangedReaders>> {
        let is_earlier =
            |inode: &Inode| matches!(inode.content, Content::File(file) if !self.changes_at_once(file));
        let mut changed = Vec::new();
        for (before, after) in names.0.changed_inodes(is_earlier)? {
            let Content::File(data_file) = after.content else { continue };
            let Found::Changeable(file) = self.find(data_file)? else { continue };
            let (old, new) = (file.readers(&before), file.readers(&after));
            if old == new {
                continue;
            }
            // Others may have changed the permissions in the image since the snapshot.
            let present = file.store.readers_of(&*file.file, file.uid)?.unwrap_or_default();
            file.set(&present.intersection(&new))?;
            if !new.is_subset(&old) {
                changed.push(ChangedReaders { file: data_file, readers: new });
            }
        }
        Ok(changed)
    }

    /// Sets the lists of data files that [`restrict_earlier`](Self::restrict_earlier) has returned.
    ///
    /// # Errors
    /// The errors of files. It can be repeated.
    pub(crate) fn extend_earlier(&self, changed: &[ChangedReaders]) -> Result<()> {
        changed.iter().try_for_each(|changed| match self.find(changed.file)? {
            Found::Changeable(file) => file.set(&changed.readers),
            Found::OfAnotherUser | Found::Missing => Ok(()),
        })
    }

    /// Opens a data file of a private store to change its list. A file of `data` must belong to the
    /// owner of the store, and a file of `incoming` to the user of its directory, so no other file
    /// of this user can have been put in its place.
    fn find(&self, file: DataFile) -> Result<Found> {
        let (Some(store), Some(incoming)) = (self.private, &self.incoming) else {
            return Ok(Found::Missing);
        };
        let (opened, owner) = match self.open_of_owner(file) {
            Err(error) if error.kind == ErrorKind::NotFound => (open_data_file(incoming, file), None),
            opened => (opened, Some(store.owner)),
        };
        let file = match opened {
            Err(error) => match error.kind {
                ErrorKind::NotFound => return Ok(Found::Missing),
                ErrorKind::PermissionDenied | ErrorKind::InvalidInput => return Ok(Found::OfAnotherUser),
                _ => return Err(error),
            },
            Ok(file) => file,
        };
        let (uid, user) = (file.stat()?.uid, geteuid());
        let is_in_place = owner.is_none_or(|owner| owner == uid);
        match is_in_place && (user.is_root() || user.as_raw() == uid) {
            true => Ok(Found::Changeable(ChangeableFile { file, store, uid })),
            false => Ok(Found::OfAnotherUser),
        }
    }
}

#[cfg(test)]
#[path = "data_readers_test.rs"]
mod tests;
