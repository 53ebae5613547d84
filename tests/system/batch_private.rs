//! A private store: members of its group read only what the permissions of the entries allow, also
//! if they open the files of the store without Quell.

use std::collections::BTreeSet;
use std::fs;

use crate::batch_users::{Fixture, OTHER, OWNER, USER};
use crate::skip;
use crate::stage::is_root;

/// A script that creates files in directories with different modes.
const FILES: &str = "umask 022; mkdir open; mkdir -m 711 searched; mkdir -m 700 closed; mkdir -m 777 shared; for dir \
                     in open searched closed shared; do echo public-$dir > $dir/public; echo secret-$dir > $dir/secret; \
                     head -c 200000 /dev/zero | tr '\\0' p > $dir/large; head -c 200001 /dev/zero | tr '\\0' s > \
                     $dir/large-secret; chmod 600 $dir/*secret; done; ln open/public open/second";

impl Fixture {
    fn private() -> Fixture {
        Fixture::with_options(&["--private"])
    }

    /// Returns the paths of the files of the store that a user can read without Quell.
    fn readable(&self, uid: u32) -> BTreeSet<String> {
        let script = format!("cd {} && find . -type f -readable 2> /dev/null; true", self.store.display());
        self.sh(uid, &script).expect(0).text().lines().map(str::to_owned).collect()
    }

    /// Runs a script that must fail.
    fn fails(&self, uid: u32, script: &str) {
        assert_ne!(self.sh(uid, script).code(), Some(0), "{script}");
    }
}

#[test]
fn members_of_the_group_read_what_the_permissions_allow() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let fixture = Fixture::private();
    let theirs = fixture.mount(OTHER, "", &[], "mount");
    fixture.sh(OTHER, &format!("cd mount && {FILES}")).expect(0);
    for options in [&[][..], &["--mode", "batch"]] {
        let mine = fixture.mount(USER, "", options, "mount");
        let script = "cd mount; cat open/public open/second searched/public shared/public; head -c 1 open/large; tail -c 1 \
                      searched/large; stat -c %s open/secret open/large-secret; ls open";
        let expected = "public-open\npublic-open\npublic-searched\npublic-shared\npp12\n200001\n\
                        large\nlarge-secret\npublic\nsecond\nsecret\n";
        assert_eq!(fixture.sh(USER, script).expect(0).text(), expected, "{options:?}");
        for refused in [
            "cat open/secret",
            "cat open/large-secret",
            "ls searched",
            "cat searched/secret",
            "ls closed",
            "cat closed/public",
            "stat closed/public",
            "stat closed/missing",
        ] {
            fixture.fails(USER, &format!("cd mount && {refused}"));
        }
        // The bytes of this file are in its inode, and unknown in a batch.
        let removed = fixture.sh(USER, "rm -f mount/shared/secret");
        assert_eq!(removed.code() == Some(0), options.is_empty(), "{}", removed.err);
        fixture.sh(USER, "cd mount; rm -f shared/large-secret; mv shared/public shared/moved").expect(0);
        fixture
            .sh(USER, "cd mount/shared; echo mine > mine; mkdir -p dir; echo x > dir/x; chmod 700 dir")
            .expect(0);
        fixture.umount(USER, &mine).expect(0);
        let left = if options.is_empty() { "" } else { "secret\n" };
        let listed = fixture.sh(OTHER, "cd mount/shared; cat mine; ls").expect(0).text();
        assert_eq!(listed, format!("mine\ndir\nlarge\nmine\nmoved\n{left}"));
        fixture.fails(OTHER, "ls mount/shared/dir");
        let again = "cd mount; echo public-shared > shared/public; echo secret-shared > shared/secret; chmod 600 shared/secret";
        fixture.sh(OTHER, again).expect(0);
    }
    fixture.umount(OTHER, &theirs).expect(0);
    fixture.end();
}

#[test]
fn members_of_the_group_cannot_open_files_of_the_store_that_they_may_not_read() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let fixture = Fixture::private();
    let store = fixture.store.to_str().unwrap();
    let always = BTreeSet::from(["./format".to_owned()]);
    assert_eq!(fixture.readable(USER), always);
    let theirs = fixture.mount(OTHER, "", &[], "mount");
    fixture.sh(OTHER, "umask 022; mkdir mount/sync mount/batch").expect(0);
    for mode in ["sync", "batch"] {
        let before = fixture.readable(USER);
        let job = fixture.mount(OTHER, mode, &["--mode", mode], "job");
        fixture.sh(OTHER, &format!("umask 022; cd job; {FILES}")).expect(0);
        if mode == "batch" {
            // Other users can neither watch a batch nor read its files.
            let number = last_batch(&fixture);
            let watch = ["batch", "watch", store, &number, "--trust-owner", "1", "--list"];
            let listed = fixture.quell(OTHER, &watch).expect(0).text();
            assert!(listed.contains("/batch/closed/secret"), "{listed}");
            for other in [USER, OWNER] {
                fixture.quell(other, &watch).expect(3).says("the batch is one of another user");
            }
        }
        fixture.umount(OTHER, &job).expect(0);
        // The beginning of a batch writes all entries to tables.
        let batch = fixture.mount(OTHER, mode, &["--mode", "batch"], "job");
        fixture.umount(OTHER, &batch).expect(0);
        assert!(fs::read_dir(fixture.store.join("tables")).unwrap().count() > 1);
        let readable = fixture.readable(USER);
        let large: Vec<_> = readable.difference(&before).collect();
        assert!(large.len() == 4 && large.iter().all(|path| path.starts_with("./incoming/")), "{large:?}");
        let sizes = large.iter().map(|path| fs::metadata(fixture.store.join(path)).unwrap().len());
        assert!(sizes.eq([200_000; 4]));
        // A change of the mode changes the users that can read the data file.
        let script = format!("cd mount/{mode}/open; chmod 600 large; chmod 644 large-secret");
        fixture.sh(OTHER, &script).expect(0);
        let changed = fixture.readable(USER);
        assert_eq!((changed.difference(&readable).count(), readable.difference(&changed).count()), (1, 1));
    }
    fixture.umount(OTHER, &theirs).expect(0);
    // The files of the owner of the store.
    let before = fixture.readable(USER);
    let all = fixture.mount(OWNER, "", &[], "mount");
    let script =
        "cd mount; for name in a b; do head -c 100000 /dev/zero > $name; done; chmod 644 a; chmod 600 b";
    fixture.sh(OWNER, script).expect(0);
    let readable = fixture.readable(USER);
    let large: Vec<_> = readable.difference(&before).collect();
    assert!(large.len() == 1 && large[0].starts_with("./data/"), "{large:?}");
    fixture.umount(OWNER, &all).expect(0);
    fixture.end();
}

/// Returns the number of the newest batch of a user other than the owner of the store.
fn last_batch(fixture: &Fixture) -> String {
    let names = fs::read_dir(fixture.store.join("incoming")).unwrap();
    let numbers = names.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u64>().ok());
    numbers.max().unwrap().to_string()
}
