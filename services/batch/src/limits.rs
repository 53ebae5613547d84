//! The limits of the use of a store (decision 56).

use std::collections::{BTreeMap, BTreeSet};

use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::usage::{Difference, Usage, UsageChanges, UsageOfUsers};

/// The value of a limit that permits any number. It is for users to whom the limit for each user
/// must not apply.
pub const UNLIMITED: u64 = u64::MAX;
/// The largest number of users with limits of their own. All limits are in the copy of the
/// description of the image, which is written with each new table.
const USERS_MAX: usize = 1 << 16;
/// The user to whom no limit of users applies.
const SUPERUSER: u32 = 0;

/// The object of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum QuotaSubject {
    /// All inodes of the store.
    Store,
    /// The inodes of each user without a limit of their own, except root.
    EachUser,
    /// The inodes of a user.
    User(u32),
}

impl QuotaSubject {
    /// Returns the position of the subject in a list.
    pub fn position(self) -> u64 {
        match self {
            QuotaSubject::Store => 0,
            QuotaSubject::EachUser => 1,
            QuotaSubject::User(uid) => 2 + u64::from(uid),
        }
    }
}

/// The largest numbers of inodes and bytes. `None` is a limit that was not set: for a user, the
/// limit for each user applies in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limit {
    /// The largest number of inodes.
    pub inodes: Option<u64>,
    /// The largest sum of the sizes of the regular files, in bytes.
    pub bytes: Option<u64>,
}

/// The change of one number of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum NumberChange {
    /// The number remains.
    #[default]
    Keep,
    /// The number is set. [`UNLIMITED`] permits any number.
    Set(u64),
    /// The number is removed.
    Unset,
}

/// The change of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LimitChange {
    /// The change of the number of inodes.
    pub inodes: NumberChange,
    /// The change of the number of bytes.
    pub bytes: NumberChange,
}

/// The use and the limit of a subject. [`QuotaSubject::EachUser`] has no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// The user, or the store.
    pub subject: QuotaSubject,
    /// The use.
    pub usage: Usage,
    /// The limit.
    pub limit: Limit,
}

/// The limits of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Limits {
    store: Limit,
    each_user: Limit,
    users: BTreeMap<u32, Limit>,
}

/// Returns the error of a file or of a commit. A quota of the shared file system is no limit of the
/// store: the operation can have taken effect, and a user other than the owner of the store can do
/// nothing about it.
pub(crate) fn of_file_system(error: Error) -> Error {
    match error.kind {
        ErrorKind::Quota => Error { kind: ErrorKind::NoSpace, ..error },
        _ => error,
    }
}

impl NumberChange {
    fn applied_to(self, number: Option<u64>) -> Option<u64> {
        match self {
            NumberChange::Keep => number,
            NumberChange::Set(new) => Some(new),
            NumberChange::Unset => None,
        }
    }
}

impl Limits {
    /// Returns whether no limit is set.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Limits::default()
    }

    /// Returns the limits after a change.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of root, and if too many users have limits of their own.
    pub(crate) fn changed(&self, subject: QuotaSubject, change: LimitChange) -> Result<Limits> {
        let refused = |reason: String| {
            let error = Error::new(ErrorKind::InvalidInput, "set a limit", "");
            Err(Error { source: Some(reason.into()), ..error })
        };
        let mut limits = self.clone();
        let limit = match subject {
            QuotaSubject::Store => &mut limits.store,
            QuotaSubject::EachUser => &mut limits.each_user,
            QuotaSubject::User(SUPERUSER) => {
                return refused("the limits of users do not apply to root".into());
            }
            QuotaSubject::User(uid) => limits.users.entry(uid).or_default(),
        };
        limit.inodes = change.inodes.applied_to(limit.inodes);
        limit.bytes = change.bytes.applied_to(limit.bytes);
        if !matches!(subject, QuotaSubject::User(_)) {
            // Without another limit that would apply, no limit is the same.
            limit.inodes = limit.inodes.filter(|number| *number != UNLIMITED);
            limit.bytes = limit.bytes.filter(|number| *number != UNLIMITED);
        }
        limits.users.retain(|_, limit| *limit != Limit::default());
        match limits.users.len() <= USERS_MAX {
            true => Ok(limits),
            false => refused(format!("{USERS_MAX} users have limits of their own already")),
        }
    }

    /// Checks that changes increase no number above its limit. `reserved` returns the increases by
    /// the prepared batches, which count as use: of a user, or of the whole store.
    ///
    /// # Errors
    /// `Quota` if there is such a number.
    pub(crate) fn check(
        &self,
        changes: &UsageChanges,
        usage: &UsageOfUsers,
        reserved: &dyn Fn(Option<u32>) -> Usage,
    ) -> Result<()> {
        if *self == Limits::default() {
            return Ok(());
        }
        for (uid, change) in changes.of_users().filter(|(uid, _)| *uid != SUPERUSER) {
            let usage = usage.of(uid).with(reserved(Some(uid)));
            self.of_user(uid).check(&|| format!("user {uid}"), usage, change)?;
        }
        self.store.check(&|| "the store".into(), usage.total().with(reserved(None)), changes.total())
    }

    /// Returns the limit that is set for a user.
    fn own(&self, uid: u32) -> Limit {
        self.users.get(&uid).copied().unwrap_or_default()
    }

    /// Returns the limit that applies to a user.
    fn of_user(&self, uid: u32) -> Limit {
        let own = self.own(uid);
        let Limit { inodes, bytes } = self.each_user;
        Limit { inodes: own.inodes.or(inodes), bytes: own.bytes.or(bytes) }
    }

    /// Returns the use and the limit of the whole store.
    pub(crate) fn quota_of_store(&self, usage: &UsageOfUsers) -> Quota {
        Quota { subject: QuotaSubject::Store, usage: usage.total(), limit: self.store }
    }

    /// Returns the use and the limit of the whole store, the limit for each user, and then the use
    /// and the limit of each user with inodes or an individual limit.
    pub(crate) fn quotas(&self, usage: &UsageOfUsers) -> Vec<Quota> {
        let each = Quota { subject: QuotaSubject::EachUser, usage: Usage::default(), limit: self.each_user };
        let uids: BTreeSet<u32> =
            usage.iter().map(|(uid, _)| uid).chain(self.users.keys().copied()).collect();
        let of_user =
            |uid| Quota { subject: QuotaSubject::User(uid), usage: usage.of(uid), limit: self.own(uid) };
        [self.quota_of_store(usage), each].into_iter().chain(uids.into_iter().map(of_user)).collect()
    }
}

impl Limit {
    fn check(self, subject: &dyn Fn() -> String, usage: Usage, change: Difference) -> Result<()> {
        let new = change.applied_to(usage);
        let exceeded = |is_more: bool, new: u128, limit: Option<u64>, unit: &str| match limit {
            Some(limit) if is_more && limit != UNLIMITED && new > u128::from(limit) => {
                let subject = subject();
                let reason = format!("{subject} would have {new} {unit}; the limit is {limit}");
                Err(Error { source: Some(reason.into()), ..Error::new(ErrorKind::Quota, "change", "") })
            }
            _ => Ok(()),
        };
        exceeded(change.inodes > 0, new.inodes.into(), self.inodes, "inodes")?;
        exceeded(change.bytes > 0, new.bytes, self.bytes, "bytes")
    }
}
