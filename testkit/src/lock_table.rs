//! The reference model of locks: a list of the locks of one file, simple enough to be verified by
//! reading.

use quell_vfs::{Error, ErrorKind, HeldLock, LockMode, LockOwner, LockScope, Result};

/// The first offset that no byte of a file can have.
const OFFSETS_END: u64 = i64::MAX as u64;

/// An owner, and the mount that it uses.
pub type MountOwner = (u64, LockOwner);

/// Locks of fcntl(2), and locks of flock(2), which do not conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bytes,
    WholeFile,
}

/// Bytes from `first` to `last`, both included; for the whole file both are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    kind: Kind,
    first: u64,
    last: u64,
}

#[derive(Debug, Clone)]
struct LockEntry {
    owner: MountOwner,
    part: Part,
    mode: LockMode,
}

/// The locks of one file.
#[derive(Debug, Clone, Default)]
pub struct LockTable(Vec<LockEntry>);

fn parts(scope: LockScope) -> Result<Vec<Part>> {
    let whole_file = Part { kind: Kind::WholeFile, first: 0, last: 0 };
    let bytes = |first, last| Part { kind: Kind::Bytes, first, last };
    match scope {
        LockScope::WholeFile => Ok(vec![whole_file]),
        LockScope::Everything => Ok(vec![whole_file, bytes(0, u64::MAX)]),
        LockScope::Bytes { first, last } if first <= last && first < OFFSETS_END => {
            // Nothing lies between the largest offset and the end.
            Ok(vec![bytes(first, if last >= OFFSETS_END - 1 { u64::MAX } else { last })])
        }
        LockScope::Bytes { first, .. } => Err(Error::new(ErrorKind::InvalidInput, "lock", first.to_string())),
    }
}

impl Part {
    fn overlaps(&self, other: &Part) -> bool {
        self.kind == other.kind && self.first <= other.last && other.first <= self.last
    }
}

impl LockTable {
    /// Locks `scope`, unless another owner has a conflicting lock; returns whether it is
    /// locked now.
    pub fn try_lock(&mut self, owner: MountOwner, scope: LockScope, mode: LockMode) -> Result<bool> {
        if self.conflicting(owner, scope, mode)?.is_some() {
            return Ok(false);
        }
        self.unlock(owner, scope)?;
        self.0.extend(parts(scope)?.into_iter().map(|part| LockEntry { owner, part, mode }));
        Ok(true)
    }

    /// Removes the owner's locks of `scope`.
    pub fn unlock(&mut self, owner: MountOwner, scope: LockScope) -> Result<()> {
        for removed in parts(scope)? {
            let mut left = Vec::new();
            for held in self.0.drain(..) {
                if held.owner != owner || !held.part.overlaps(&removed) {
                    left.push(held);
                    continue;
                }
                if held.part.first < removed.first {
                    let part = Part { last: removed.first - 1, ..held.part };
                    left.push(LockEntry { part, ..held.clone() });
                }
                if held.part.last > removed.last {
                    left.push(LockEntry { part: Part { first: removed.last + 1, ..held.part }, ..held });
                }
            }
            self.0 = left;
        }
        Ok(())
    }

    /// Returns a lock of another owner with which the described lock would conflict.
    pub fn conflicting(
        &self,
        owner: MountOwner,
        scope: LockScope,
        mode: LockMode,
    ) -> Result<Option<HeldLock>> {
        let wanted = parts(scope)?;
        let conflicts = |held: &&LockEntry| {
            held.owner != owner
                && (held.mode == LockMode::Exclusive || mode == LockMode::Exclusive)
                && wanted.iter().any(|part| part.overlaps(&held.part))
        };
        Ok(self.0.iter().find(conflicts).map(|held| {
            let Part { kind, first, last } = held.part;
            let scope = match kind {
                Kind::Bytes => LockScope::Bytes { first, last },
                Kind::WholeFile => LockScope::WholeFile,
            };
            HeldLock { scope, mode: held.mode }
        }))
    }

    /// Removes all locks of an owner.
    pub fn release(&mut self, owner: MountOwner) {
        self.0.retain(|held| held.owner != owner);
    }
}
