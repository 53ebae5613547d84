//! The directories of a copy. The attributes of a directory are set after everything below it was
//! copied, because a new entry changes its modification time, and its permissions may forbid new
//! entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_posix::{Dir, Stat, WritableDir};
use quell_vfs::{Change, Error, ErrorKind, Kind, Result};

use crate::context::Context;
use crate::options::Owners;
use crate::xattrs::copy_xattrs;

/// The largest depth of a directory that is copied. The directories above it are kept open.
pub const DEPTH_MAX: usize = 1000;

/// The permissions of the owner to list, enter and change a directory.
const OWNER: u32 = 0o700;

/// A directory that is being copied.
pub struct Directory {
    parent: Option<Arc<Directory>>,
    name: Vec<u8>,
    depth: usize,
    pub source: Arc<dyn Dir>,
    pub target: Arc<dyn WritableDir>,
    /// Whether the copy has created the directory, which then has no other entries.
    pub is_new: bool,
    /// The attributes of the source; `None` if they are not copied to this directory.
    found: Option<Stat>,
    /// The number of entries that are not processed yet, plus 1 while entries are added.
    unfinished: AtomicUsize,
}

impl Directory {
    /// Returns the directory of the entries that the user named. It is in use until `end`.
    pub fn top(source: Arc<dyn Dir>, target: Arc<dyn WritableDir>) -> Arc<Directory> {
        Arc::new(Directory {
            parent: None,
            name: Vec::new(),
            depth: 0,
            source,
            target,
            is_new: false,
            found: None,
            unfinished: AtomicUsize::new(1),
        })
    }

    /// Opens a child directory and creates it at the destination. It is in use until `end`.
    pub fn enter(self: &Arc<Directory>, context: &Context<'_>, name: &[u8]) -> Result<Arc<Directory>> {
        if self.depth >= DEPTH_MAX {
            let source = Some(format!("more than {DEPTH_MAX} directories are above it").into());
            return Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "copy", name) });
        }
        let source = self.source.open_dir(name)?;
        let found = source.stat_self()?;
        let is_new = match self.target.make_dir(name, OWNER) {
            Ok(()) => true,
            Err(error) if error.kind == ErrorKind::Exists => false,
            Err(error) => return Err(error),
        };
        if !is_new {
            self.make_usable(name)?;
        }
        let target = self.target.open_writable_dir(name)?;
        context.progress.add_directory();
        self.add();
        Ok(Arc::new(Directory {
            parent: Some(Arc::clone(self)),
            name: name.to_vec(),
            depth: self.depth + 1,
            source,
            target,
            is_new,
            found: Some(found),
            unfinished: AtomicUsize::new(1),
        }))
    }

    /// Gives the owner of an existing directory of the destination the permission to change it. An
    /// earlier copy may have set permissions without it.
    fn make_usable(&self, name: &[u8]) -> Result<()> {
        let found = self.target.stat(name)?;
        let permissions = found.mode & 0o7777;
        match found.kind() {
            Some(Kind::Dir) if permissions & OWNER == OWNER => Ok(()),
            Some(Kind::Dir) => {
                let permissions = Some(permissions | OWNER);
                self.target.change(name, &Change { permissions, ..Change::default() })
            }
            _ => {
                let source = Some("the destination has another file of this name".into());
                Err(Error { source, ..Error::new(ErrorKind::NotADirectory, "create directory", name) })
            }
        }
    }

    /// Counts an entry, for which `end` must be called later.
    pub fn add(&self) {
        self.unfinished.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that an entry was processed. After the last entry, sets the attributes of the
    /// directory, and calls `end` of its parent.
    pub fn end(self: &Arc<Directory>, context: &Context<'_>) {
        let mut at = self;
        // The counter's memory order makes the changes of all entries precede the change of the
        // attributes.
        while at.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            if !context.progress.is_stopped()
                && let Err(error) = at.set_attributes(context)
            {
                context.fail(&at.path_of(b""), &error);
            }
            match &at.parent {
                Some(parent) => at = parent,
                None => break,
            }
        }
    }

    fn set_attributes(&self, context: &Context<'_>) -> Result<()> {
        let Some(found) = &self.found else { return Ok(()) };
        let mut change = attributes_of(found, context.options.owners);
        if context.options.part.is_some() {
            // Other processes may still create entries in this directory.
            change.permissions = change.permissions.map(|permissions| permissions | OWNER);
        }
        if context.options.keeps_xattrs {
            copy_xattrs(&*self.source, b"", &*self.target, b"")?;
        }
        self.target.change(b"", &change)
    }

    /// Returns the path of an entry relative to the destination directory. An empty name stands for
    /// this directory.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut names = vec![name];
        let mut at = self;
        while let Some(parent) = &at.parent {
            names.push(&at.name);
            at = parent;
        }
        names.reverse();
        if name.is_empty() {
            names.pop();
        }
        names.join(&b'/')
    }
}

/// Returns the permissions of a copy.
pub fn permissions_of(found: &Stat, owners: Owners) -> u32 {
    match owners {
        Owners::User(uid) if uid != found.uid && found.kind() == Some(Kind::File) => found.mode & 0o1777,
        _ => found.mode & 0o7777,
    }
}

/// Returns the change that gives a copy the attributes of its source.
pub fn attributes_of(found: &Stat, owners: Owners) -> Change {
    let keeps_owners = owners == Owners::OfSource;
    Change {
        permissions: Some(permissions_of(found, owners)),
        uid: keeps_owners.then_some(found.uid),
        gid: keeps_owners.then_some(found.gid),
        size_bytes: None,
        modified: Some(found.modified),
    }
}
