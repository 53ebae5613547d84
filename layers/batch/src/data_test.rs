//! Tests of the directories of data files in a store for a group.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use quell_batch_service::FILES_OF_USERS;

use super::*;

const OTHER: u32 = 4_300_003;

fn data_of_this_user(store: &Path) -> Data {
    let dir = |name: &str| OwnedFd::from(fs::File::open(store.join(name)).unwrap());
    let user = FILES_OF_USERS + u64::from(rustix::process::geteuid().as_raw());
    Data::of_group(Arc::new(PosixDir::of_descriptor(dir("data"))), dir("incoming"), user, true, None).unwrap()
}

#[test]
fn no_data_file_is_written_to_or_opened_in_a_directory_that_others_can_change() {
    let store = tempfile::tempdir().unwrap();
    fs::create_dir(store.path().join("data")).unwrap();
    fs::create_dir(store.path().join("incoming")).unwrap();
    let (file, _) = data_of_this_user(store.path()).create(3).unwrap();
    assert!(matches!(data_of_this_user(store.path()).open(file), Ok(Handle::Own(_))));
    let top = store.path().join("incoming").join(incoming_name(file.batch));
    for dir in [top.clone(), top.join("03")] {
        let is_refused = || {
            let data = data_of_this_user(store.path());
            let errors = [data.create(3).err(), data.open(file).err(), data.remove(file).err()];
            errors
                .iter()
                .all(|error| error.as_ref().is_some_and(|error| error.kind == ErrorKind::PermissionDenied))
        };
        for mode in [0o770, 0o757] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            assert!(is_refused(), "{} {mode:o}", dir.display());
        }
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(!is_refused());
        if rustix::process::geteuid().is_root() {
            chown(&dir, Some(OTHER), None).unwrap();
            assert!(is_refused(), "{}", dir.display());
            chown(&dir, Some(0), None).unwrap();
        } else {
            println!("not tested without root: directories of other users");
        }
    }
}
