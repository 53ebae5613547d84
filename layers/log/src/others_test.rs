//! Files that belong to other users than who works with them.

use quell_fs::errno::EACCES;
use quell_fs::{FileSystem, Writable};
use quell_testkit::MemoryStore;

use crate::test_stores::{again, container, content, make, mount};

#[test]
fn who_may_not_write_to_what_a_file_is_made_of_syncs_it_all_the_same() {
    let store = MemoryStore::new();
    let stores = std::slice::from_ref(&store);
    let fs = mount(stores, 1, 1);
    let file = make(&fs, "f", 1);
    file.write_at(b"written by its owner", 0).unwrap();
    file.publish().unwrap();
    // Another user's process.
    store.fail(|operation| {
        let is_theirs = operation.path.ends_with(b"/container") || operation.path.ends_with(b"/access");
        (operation.verb == "open for writing" && is_theirs).then_some(EACCES)
    });
    container(stores, "f").sync().unwrap();
    fs.sync_dir(fs.root()).unwrap();
    for seed in 0..40 {
        let after = [store.crash(seed)];
        let found = content(&after, "f");
        assert!(!format!("{found:?}").contains("record"), "{seed}: {found:?}");
    }
    drop(file);
    assert!(again(&fs, "f", 1).sync().is_ok());
}
