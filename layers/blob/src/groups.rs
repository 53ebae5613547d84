//! The groups of servers of a store in RADOS, for a process that serves some of them
//! (docs/decisions/0035-groups-of-servers.md).

use std::fmt;
use std::sync::Arc;

use quell_blob_service::{Group, OpenStore};
use quell_rados::{Objects, Pool, create_groups, find_secret, group_name, read_groups};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::GROUPS_MAX;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::rados::{self, NAME, OrphanRemoval};
use crate::serving::{ServingLease, Start};

/// The groups of servers of a store in RADOS.
pub struct RadosGroups {
    pool: Arc<Pool>,
    count: u32,
    /// The secret of the servers, if there are several groups.
    secret: Option<[u8; 32]>,
}

impl fmt::Debug for RadosGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RadosGroups").field("count", &self.count).finish_non_exhaustive()
    }
}

/// A store in RADOS, or one of its groups, that a server on this machine has open.
#[derive(Debug)]
pub struct RadosServer {
    /// The store.
    pub store: OpenStore,
    /// The lease, without which the server sends no replies.
    pub lease: Arc<ServingLease>,
    /// The removal of objects that earlier servers have left.
    pub removal: OrphanRemoval,
    /// The group of this server, if the store has several.
    pub group: Option<Group>,
}

impl RadosGroups {
    /// Finds the groups of the store in a pool of RADOS, given as
    /// `rados://POOL[/NAMESPACE][?client=NAME]`. A new store gets `requested` groups, or one group
    /// if it is `None`.
    ///
    /// # Errors
    /// `InvalidInput` if the store has another number of groups than the requested one, or if the
    /// requested number is not between 1 and 64; `Unsupported` if librados is not installed;
    /// `Interrupted` if the start was interrupted; the errors of the cluster.
    pub fn open(pool: &str, requested: Option<u32>, start: &mut Start<'_>) -> Result<RadosGroups> {
        let fail = |reason: String| {
            let error = Error::new(ErrorKind::InvalidInput, "open the groups of", pool);
            Err(Error { source: Some(reason.into()), ..error })
        };
        if requested.is_some_and(|groups| groups == 0 || groups as usize > GROUPS_MAX) {
            return fail(format!("a store has 1 to {GROUPS_MAX} groups"));
        }
        let opened = Arc::new(start.attempt(&|| true, || rados::open_pool(pool))?);
        let count = start.attempt(&|| true, || find_count(&*opened, requested))?;
        if let Some(requested) = requested.filter(|requested| *requested != count) {
            return fail(format!("the store has {count} groups, not {requested}; the number never changes"));
        }
        let secret = match count {
            1 => None,
            _ => {
                let mut new = [0; 32];
                getrandom(&mut new, GetRandomFlags::empty())
                    .map_err(|e| Error::from_io(e.into(), "draw a random number", ""))?;
                Some(start.attempt(&|| true, || find_secret(&*opened, NAME, &new))?)
            }
        };
        Ok(RadosGroups { pool: opened, count, secret })
    }

    /// Returns the number of groups.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Opens a group, or creates it, for a server on this machine. No earlier server of the group
    /// can commit or answer requests from then on.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such group; `Busy` if another server serves the group and must
    /// not be replaced; `Interrupted` if the start was interrupted; the errors of the cluster.
    pub fn open_group(&self, group: u32, start: &mut Start<'_>) -> Result<RadosServer> {
        let place = match &self.secret {
            Some(secret) => Some(Group::new(group, self.count, secret)?),
            None => None,
        };
        let (objects, name): (Arc<dyn Objects>, _) = (self.pool.clone(), group_name(NAME, group));
        let lease = Arc::new(ServingLease::take(&objects, &name, start)?);
        let opened = start.attempt(&|| lease.lost().is_none(), || {
            let failed = lease.clone();
            rados::open(objects.clone(), &name, Box::new(move |error| failed.fail(error)))
        })?;
        lease.wait_for_begin();
        let removal = OrphanRemoval::start(self.pool.clone(), &opened)?;
        Ok(RadosServer { store: opened.store, lease, removal, group: place })
    }
}

/// Returns the number of groups. A new store gets the requested number, or one group.
fn find_count(objects: &dyn Objects, requested: Option<u32>) -> Result<u32> {
    if let Some(count) = read_groups(objects, NAME)? {
        return Ok(count);
    }
    // Stores of earlier versions do not state that they have one group.
    match objects.size(&format!("{NAME}.head")) {
        Err(error) if error.kind == ErrorKind::NotFound => {
            create_groups(objects, NAME, requested.unwrap_or(1))
        }
        Err(error) => Err(error),
        Ok(_) => Ok(1),
    }
}
