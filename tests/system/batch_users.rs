//! A store for batches that the members of a group use: the permissions in its name space, batches
//! of other users than its owner, and direct access to its files, without Quell.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Ended, Running, Stage, eventually, is_root, quell, words};

/// Users with accounts, which fusermount3 needs, and a group of all of them.
pub const OWNER: u32 = 1;
pub const USER: u32 = 2;
pub const OTHER: u32 = 3;
pub const GROUP: &str = "4300100";

/// A store for the group, which its owner serves.
pub struct Fixture {
    pub stage: Stage,
    pub store: PathBuf,
    server: Running,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with_options(&[])
    }

    /// Creates the store with these further options.
    pub fn with_options(options: &[&str]) -> Fixture {
        let stage = Stage::new();
        let copy = prepare(&stage, &[OWNER, USER, OTHER]);
        let store = stage.path(format!("home-{OWNER}/store"));
        let mut init = as_user(&stage, OWNER, copy.as_os_str());
        init.args(words(&[&"batch", &"init", &store, &"--group", &GROUP])).args(options);
        stage.run(&mut init).expect(0);
        let mut serve = as_user(&stage, OWNER, copy.as_os_str());
        let server = stage.start(serve.args(words(&[&"batch", &"serve", &store, &"--json"])));
        assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
        Fixture { stage, store, server }
    }

    /// Runs `quell` as a user.
    pub fn quell(&self, uid: u32, arguments: &[&str]) -> Ended {
        let copy = self.stage.path("quell-copy");
        self.stage.run(as_user(&self.stage, uid, copy.as_os_str()).args(arguments))
    }

    /// Runs a shell script as a user, in the home directory.
    pub fn sh(&self, uid: u32, script: &str) -> Ended {
        let home = self.stage.path(format!("home-{uid}"));
        let script = format!("cd {} && {script}", home.display());
        self.stage.run(as_user(&self.stage, uid, "sh".as_ref()).args(["-c", &script]))
    }

    /// Mounts the store, or a directory of it, at a directory in the home directory of a user.
    pub fn mount(&self, uid: u32, below: &str, options: &[&str], name: &str) -> PathBuf {
        let point = self.stage.dir(&format!("home-{uid}/{name}"));
        chown(&point, Some(uid), Some(uid)).unwrap();
        let store = self.store.join(below);
        let store = store.to_str().unwrap().trim_end_matches('/').to_owned();
        let mut arguments = vec!["mount", "--batch", &store];
        if uid != OWNER {
            arguments.extend(["--trust-owner", "1"]);
        }
        arguments.extend(options);
        self.quell(uid, &[&arguments[..], &[point.to_str().unwrap()]].concat()).expect(0);
        point
    }

    pub fn umount(&self, uid: u32, point: &Path) -> Ended {
        self.quell(uid, &["umount", point.to_str().unwrap()])
    }

    pub fn end(self) {
        self.server.signal(Signal::TERM);
        self.server.wait().expect(0);
        let checked = self.stage.path("quell-copy");
        let mut fsck = as_user(&self.stage, OWNER, checked.as_os_str());
        self.stage.run(fsck.args(words(&[&"batch", &"fsck", &self.store]))).expect(0);
    }
}

/// Creates the home directories of users, and returns a copy of the program that they can execute.
pub fn prepare(stage: &Stage, users: &[u32]) -> PathBuf {
    fs::set_permissions(stage.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = stage.path("quell-copy");
    fs::copy(quell(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    for uid in users {
        for name in ["runtime", "home"] {
            let dir = stage.dir(&format!("{name}-{uid}"));
            chown(&dir, Some(*uid), Some(*uid)).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o711)).unwrap();
        }
        let runtime = stage.path(format!("runtime-{uid}"));
        fs::set_permissions(runtime, fs::Permissions::from_mode(0o700)).unwrap();
    }
    copy
}

/// Returns a command of a member of the group.
pub fn as_user(stage: &Stage, uid: u32, program: &std::ffi::OsStr) -> Command {
    let mut command = stage.command("setpriv");
    let id = uid.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--groups", GROUP, "--"]).arg(program);
    command.env("QUELL_RUNTIME_DIR", stage.path(format!("runtime-{uid}")));
    command
}

#[test]
fn members_of_the_group_use_a_store_with_their_permissions() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let fixture = Fixture::new();
    let store = fixture.store.to_str().unwrap();
    fixture.quell(USER, &["batch", "status", store]).expect(3).says("--trust-owner 1");
    fixture.quell(USER, &["batch", "status", store, "--trust-owner", "3"]).expect(3).says("--trust-owner 1");
    let theirs = fixture.mount(OWNER, "", &[], "mount");
    let mine = fixture.mount(USER, "", &[], "mount");
    let script = "set -e; cd mount; mkdir open closed; chmod 777 open; echo text > open/file; head -c 200000 /dev/zero \
                  | tr '\\0' a > open/large; chmod 666 open/large; echo x > closed/file; chmod 700 closed";
    fixture.sh(OWNER, script).expect(0);
    // The permissions of the name space hold for the other user.
    let script = "set -e; cd mount; mkdir dir; echo mine > dir/file; ln dir/file dir/second; chmod 600 dir/file; head -c \
                  300000 /dev/zero > dir/large; mv dir/large open/moved; cat open/file; head -c 1 open/large; echo more >> \
                  open/large; stat -c '%u %s' open/moved open/large";
    let done = fixture.sh(USER, script).expect(0);
    assert_eq!(done.text(), "text\na2 300000\n1 200005\n");
    for refused in [
        "echo x > open/file",
        "rmdir open",
        "mv open renamed",
        "chmod 777 open",
        "cat closed/file",
        "touch closed/new",
    ] {
        let ended = fixture.sh(USER, &format!("cd mount && {refused}"));
        assert_ne!(ended.code(), Some(0), "{refused}");
    }
    // The owner of the store reads the large files of the other user.
    assert_eq!(
        fixture.sh(OWNER, "tail -c 5 mount/open/large; wc -c < mount/open/moved").expect(0).text(),
        "more\n300000\n"
    );
    fixture.umount(USER, &mine).expect(0);
    fixture.umount(OWNER, &theirs).expect(0);
    // Without Quell, the other user can read tables, but cannot change a file of the owner.
    for refused in
        ["ls keys", "ls batches", "cat lock", "touch new", "touch tables/new", "touch data/new", "rm socket"]
    {
        let ended = fixture.sh(USER, &format!("cd {store} && {refused} < /dev/null"));
        assert_ne!(ended.code(), Some(0), "{refused}");
    }
    fixture
        .sh(USER, &format!("cd {store} && for file in format tables/*; do ! echo x >> $file; done"))
        .expect(0);
    fixture.end();
}

#[test]
fn a_batch_of_another_user_is_committed_by_the_server() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let fixture = Fixture::new();
    let store = fixture.store.to_str().unwrap();
    let mine = fixture.mount(USER, "", &[], "mount");
    fixture.sh(USER, "mkdir mount/run").expect(0);
    // The umask must not keep the server from reading the tables.
    let script = "umask 077; cd job && mkdir d && for i in $(seq 300); do echo $i > d/$i; done && head -c 200000 /dev/zero > large";
    for options in [&["--mode", "batch"][..], &["--mode", "batch", "--lazy"]] {
        let job = fixture.mount(USER, "run", options, "job");
        fixture.sh(USER, script).expect(0);
        // Another process neither commits nor aborts the batch.
        let batches = fixture.quell(USER, &["batch", "status", store, "--trust-owner", "1"]).expect(0).text();
        let number = batches.lines().last().unwrap().split_whitespace().next().unwrap().to_owned();
        fixture
            .quell(USER, &["batch", "abort", store, &number, "--trust-owner", "1"])
            .expect(3)
            .says("a process uses it");
        fixture.umount(USER, &job).expect(0);
        let listed = fixture.sh(USER, "ls mount/run/d | wc -l; wc -c < mount/run/large").expect(0);
        assert_eq!(listed.text(), "300\n200000\n", "{options:?}");
        let left = fs::read_dir(fixture.store.join("incoming").join(&number)).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 1, "the data file is left only: {left:?}");
        fixture.sh(USER, "rm -r mount/run/*").expect(0);
    }
    // Its user resolves the conflicts of a batch.
    let job = fixture.mount(USER, "run", &["--mode", "batch"], "job");
    fixture.sh(USER, "echo batch > job/same && echo others > mount/run/same").expect(0);
    let watch =
        |number| fixture.quell(USER, &["batch", "watch", store, number, "--trust-owner", "1", "--list"]);
    assert_eq!(watch("3").expect(0).text().split_whitespace().collect::<Vec<_>>(), ["6", "/run/same"]);
    watch("2").expect(2).says("it is not open");
    let ended = fixture.umount(USER, &job).expect(0);
    let conflicts = ["batch", "conflicts", store, "3", "--trust-owner", "1"];
    assert!(ended.err.contains("1 conflict"), "{}", ended.err);
    let expected = "/run/same was created by others meanwhile; kept as /run/same.quell-conflict-3-1\n";
    assert_eq!(fixture.quell(USER, &conflicts).expect(1).text(), expected);
    fixture.quell(USER, &[&conflicts[..], &["--keep", "mine", "--all"]].concat()).expect(0);
    fixture.quell(USER, &conflicts).expect(0);
    assert_eq!(fixture.sh(USER, "cd mount/run && cat * && rm *").expect(0).text(), "batch\n");
    // A batch that cannot be read is not committed, and its user aborts it.
    let job = fixture.mount(USER, "run", &["--mode", "batch"], "job");
    fixture.sh(USER, "echo x > job/file").expect(0);
    let last = fs::read_dir(fixture.store.join("incoming")).unwrap();
    let last =
        last.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u64>().ok()).max().unwrap();
    let dir = fixture.store.join("incoming").join(last.to_string());
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    fixture.umount(USER, &job).expect(3).says("was not committed");
    let last = last.to_string();
    fixture.quell(USER, &["batch", "abort", store, &last, "--trust-owner", "1"]).expect(0);
    assert!(!dir.exists());
    let program = ["sh", "-c", "echo done > \"$0/ran\""];
    let home = fixture.stage.path(format!("home-{USER}/job"));
    let batch = format!("{store}/run={}", home.display());
    let arguments = ["run", "--batch", &batch, "--trust-owner", "1", "--"];
    let arguments = [&arguments[..], &program, &[home.to_str().unwrap()]].concat();
    fixture.quell(USER, &arguments).expect(0);
    assert_eq!(fixture.sh(USER, "cat mount/run/ran").expect(0).text(), "done\n");
    fixture.umount(USER, &mine).expect(0);
    fixture.end();
}

#[test]
fn a_member_commits_a_batch_beyond_a_limit_later_together_with_blobs() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let fixture = Fixture::new();
    let store = fixture.store.to_str().unwrap();
    let theirs = fixture.mount(OWNER, "", &[], "mount");
    fixture.sh(OWNER, "mkdir -m 777 mount/open").expect(0);
    let limit = |uid, files: &str| {
        let arguments = ["batch", "quota", store, "--each-user", "--files", files, "--trust-owner", "1"];
        fixture.quell(uid, &arguments)
    };
    limit(OWNER, "2").expect(0);
    limit(USER, "9").expect(3).says("only the owner of the store can set limits");
    let batch = fixture.mount(USER, "open", &["--mode", "batch"], "batch");
    fixture.sh(USER, "echo a > batch/a && echo b > batch/b && echo c > batch/c").expect(0);
    let refused = fixture.umount(USER, &batch);
    assert!(refused.code() != Some(0), "{}", refused.err);
    let refused = refused.says("user 2 would have 3 inodes; the limit is 2");
    assert!(refused.err.contains("quell batch commit"), "{}", refused.err);
    let status = ["batch", "status", store, "--trust-owner", "1", "--json"];
    let listed = fixture.quell(USER, &status).json();
    assert_eq!(
        (&listed["batches"][0]["state"], fixture.sh(OWNER, "ls mount/open").text().as_str()),
        (&"open".into(), "")
    );
    let number = listed["batches"][0]["number"].to_string();
    limit(OWNER, "3").expect(0);
    let document = r#"{"store": "blobs", "operations": [{"operation": "create", "blob": "runs/7"}]}"#;
    let commit = format!(
        "echo '{document}' > blobs.json && {} batch commit --trust-owner 1 --blobs blobs.json {store} {number}",
        fixture.stage.path("quell-copy").display()
    );
    fixture.sh(USER, &commit).expect(0);
    assert_eq!(
        fixture.sh(OWNER, "cat mount/open/a mount/open/c && stat -c %u mount/open/b").expect(0).text(),
        "a\nc\n2\n"
    );
    let blob = format!("{} blob ls blobs runs/", fixture.stage.path("quell-copy").display());
    assert!(fixture.sh(USER, &blob).expect(0).text().contains("runs/7"));
    // The limit holds in the synchronous mode, too.
    let mine = fixture.mount(USER, "open", &[], "synchronous");
    let ended = fixture.sh(USER, "touch synchronous/d");
    assert!(ended.code() != Some(0) && ended.err.contains("Disk quota exceeded"), "{}", ended.err);
    fixture.sh(USER, "rm synchronous/a && touch synchronous/d").expect(0);
    fixture.umount(USER, &mine).expect(0);
    fixture.umount(OWNER, &theirs).expect(0);
    fixture.end();
}
