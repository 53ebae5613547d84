//! The objects that a mount knows to be whole files while it is the only user of its store: their
//! first writer has ended, and they have no container. The attributes of such a file follow from
//! the attributes of its object, so stat(2) does not open the object. Their headers are kept, so
//! that an open does not read them.

use std::collections::HashMap;

use quell_posix::Stat;
use quell_vfs::FileIdentity;

use crate::format::Head;
use crate::locks::{Rank, RankedMutex};
use crate::stores::only_user::CreationState;
use crate::stores::store::StoreNumber;

/// The largest number of objects, about 15 MB. When there are more, all are forgotten.
const OBJECTS_MAX: usize = 1 << 16;

/// The store of an object, and its identity there.
type Key = (StoreNumber, FileIdentity);

/// The known objects of one mount.
pub(crate) struct KnownObjects(RankedMutex<Known>);

struct Known {
    /// The state of the stores in which the objects were found.
    state: Option<CreationState>,
    objects: HashMap<Key, KnownObject>,
}

#[derive(Debug, Clone, Copy)]
struct KnownObject {
    size_bytes: u64,
    head: Head,
}

impl KnownObjects {
    pub fn new() -> KnownObjects {
        KnownObjects(RankedMutex::new(Rank::Leaf, Known { state: None, objects: HashMap::new() }))
    }

    /// Adds an object that was found to be complete in this state of the stores.
    pub fn add(&self, state: CreationState, object: Key, size_bytes: u64, head: &Head) {
        let mut known = self.0.lock();
        if known.state != Some(state) || known.objects.len() >= OBJECTS_MAX {
            *known = Known { state: Some(state), objects: HashMap::new() };
        }
        known.objects.insert(object, KnownObject { size_bytes, head: *head });
    }

    /// Returns the header of an object with these attributes, if the object is known to be complete
    /// in this state of the stores.
    pub fn head(&self, state: CreationState, store: StoreNumber, stat: &Stat) -> Option<Head> {
        let known = self.0.lock();
        let object = known.objects.get(&(store, stat.identity())).filter(|_| known.state == Some(state))?;
        (object.size_bytes == stat.size_bytes).then_some(object.head)
    }

    /// Forgets an object, because a new one may have its inode.
    pub fn remove(&self, object: Key) {
        self.0.lock().objects.remove(&object);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use quell_testkit::MemoryStore;
    use quell_vfs::{Context, FileSystem, NodeId, Writable};

    use crate::fs::LogFs;
    use crate::session::Choices;
    use crate::test_stores::{again, host, make};

    fn size(fs: &LogFs, node: NodeId) -> u64 {
        fs.attributes(&Context::OWN, node).unwrap().size_bytes
    }

    #[test]
    fn files_have_the_attributes_of_their_objects_until_they_get_containers() {
        let store = MemoryStore::new();
        let stores = crate::stores::Stores::open(vec![store.root()], host(1, 1), 4).unwrap();
        let choices = Choices { begins_as_object: true, ..Choices::default() };
        let fs = LogFs::new(stores.begin_use(&mut || false).unwrap(), choices);
        assert!(fs.be_only_user(Instant::now() + Duration::from_secs(100_000)).unwrap());
        let create = |name: &str| {
            let file = make(&fs, name, 1);
            file.write_at(&[1; 1000], 0).unwrap();
            file.close().unwrap();
        };
        let look_up =
            |name: &str| fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().expect("it exists");
        create("a");
        create("b");
        let (a, b) = (look_up("a"), look_up("b"));
        assert_eq!((a.size_bytes, b.size_bytes, size(&fs, a.node)), (1000, 1000, 1000));
        assert_eq!((a.permissions, a.uid, a.gid, a.nlink), (0o640, 1000, 100, 1));
        let slow = {
            let _open = again(&fs, "b", 1);
            look_up("b").into_attributes()
        };
        let fast = look_up("b").into_attributes();
        assert_eq!(fast, slow, "both ways return the same");
        // The size includes data that a writer of this mount has collected.
        let file = again(&fs, "a", 1);
        file.write_at(&[2; 10], 1000).unwrap();
        assert_eq!((size(&fs, a.node), look_up("a").size_bytes), (1010, 1010));
        file.close().unwrap();
        drop(file);
        assert_eq!((size(&fs, a.node), look_up("a").size_bytes), (1010, 1010), "it has a container");
        assert_eq!(look_up("b").size_bytes, 1000);
        fs.remove(&Context::OWN, fs.root(), b"b").unwrap();
        let new = make(&fs, "b", 1);
        assert_eq!(look_up("b").size_bytes, 0);
        new.write_at(&[3; 1000], 0).unwrap();
        assert_eq!(look_up("b").size_bytes, 1000);
    }
}
