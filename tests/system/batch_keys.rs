//! Keys with which users of a store for a group use its server from other nodes: two users on two
//! nodes of a MooseFS, and keys that the server refuses. `daemon/batch/tests/user_keys.rs` tests
//! the rights and the refusals without programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::batch_users::{GROUP, OWNER, USER, as_user, prepare};
use crate::skip;
use crate::stage::{Ended, Running, Stage, eventually, has, is_root, words};
use crate::testbed::Testbed;

/// A user with an account who is not a member of the group in the databases.
const STRANGER: u32 = 3;
/// A user without an account.
const UNKNOWN: u32 = 4_300_007;

/// A store for a group whose server accepts TCP connections. The databases of the node of the
/// server have the group with the member `USER`.
struct Fixture<'a> {
    stage: &'a Stage,
    /// The nodes of the owner and of the user; otherwise, there is one node, and its socket accepts
    /// no connections.
    testbed: Option<&'a Testbed>,
    store: PathBuf,
    server: Option<Running>,
}

impl<'a> Fixture<'a> {
    fn new(stage: &'a Stage, testbed: Option<&'a Testbed>) -> Fixture<'a> {
        prepare(stage, &[OWNER, USER, STRANGER, UNKNOWN]);
        let above = match testbed {
            Some(testbed) => testbed.node("1").join("shared"),
            None => stage.path("shared"),
        };
        fs::create_dir(&above).unwrap();
        chown(&above, Some(OWNER), Some(OWNER)).unwrap();
        let groups = format!("{}quell-test:x:{GROUP}:bin\n", fs::read_to_string("/etc/group").unwrap());
        stage.file("groups", groups);
        let mut fixture = Fixture { stage, testbed, store: above.join("store"), server: None };
        fixture.quell(OWNER, &["batch", "init", fixture.path(OWNER).as_str(), "--group", GROUP]).expect(0);
        fixture.serve();
        fixture
    }

    /// Returns the path of the store on the node of a user.
    fn path(&self, uid: u32) -> String {
        let path = match self.testbed {
            Some(testbed) => testbed.node(node_of(uid)).join("shared/store"),
            None => self.store.clone(),
        };
        path.to_str().unwrap().to_owned()
    }

    /// Returns a command of a user on a node.
    fn on_node(&self, node: &str, uid: u32, program: &Path) -> Command {
        let inner = as_user(self.stage, uid, program.as_os_str());
        match self.testbed {
            Some(testbed) => wrapped(testbed.exec(node), &inner),
            None => inner,
        }
    }

    /// Runs `quell` as a user on the node of this user.
    fn quell(&self, uid: u32, arguments: &[&str]) -> Ended {
        self.quell_on(node_of(uid), uid, arguments)
    }

    fn quell_on(&self, node: &str, uid: u32, arguments: &[&str]) -> Ended {
        self.stage.run(self.on_node(node, uid, &self.stage.path("quell-copy")).args(arguments))
    }

    fn sh(&self, uid: u32, script: &str) -> Ended {
        let script = format!("cd {} && {script}", self.home(uid).display());
        self.stage.run(self.on_node(node_of(uid), uid, Path::new("sh")).args(["-c", &script]))
    }

    fn home(&self, uid: u32) -> PathBuf {
        self.stage.path(format!("home-{uid}"))
    }

    /// Starts the server. Its node has the groups of the file `groups`.
    fn serve(&mut self) {
        let address = match self.testbed {
            Some(testbed) => testbed.call(&["exec", "1", "sh", "-c", ADDRESS]),
            None => "127.0.0.1".to_owned(),
        };
        let copy = self.stage.path("quell-copy");
        let mut inner = as_user(self.stage, OWNER, copy.as_os_str());
        let listen = format!("{address}:0");
        inner.args(words(&[&"batch", &"serve", &self.store, &"--listen", &listen, &"--json"]));
        let mut outer = match self.testbed {
            Some(testbed) => testbed.exec("1"),
            None => Command::new("env"),
        };
        outer.args(["unshare", "--mount", "--propagation", "private", "sh", "-c"]);
        outer.arg("mount --bind \"$0\" /etc/group && exec \"$@\"").arg(self.stage.path("groups"));
        let server = self.stage.start(&mut wrapped(outer, &inner));
        assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
        if self.testbed.is_none() {
            // As on another node, the socket accepts no connections.
            fs::remove_file(self.store.join("socket")).unwrap();
        }
        self.server = Some(server);
    }

    fn end_server(&mut self) {
        let server = self.server.take().expect("it runs");
        server.signal(Signal::TERM);
        server.wait().expect(0);
    }

    /// Derives a key for a user, and returns a copy of the file that belongs to `holder`.
    fn key_for(&self, uid: u32, holder: u32, options: &[&str]) -> PathBuf {
        let file = self.home(OWNER).join("derived.key");
        let arguments = ["batch", "key", &self.path(OWNER), "--user", &uid.to_string(), "--force", "--file"];
        let arguments = [&arguments[..], &[file.to_str().unwrap()], options].concat();
        self.quell(OWNER, &arguments).expect(0);
        let copy = self.home(holder).join(format!("{uid}.key"));
        fs::copy(&file, &copy).unwrap();
        chown(&copy, Some(holder), Some(holder)).unwrap();
        copy
    }

    fn install(&self, uid: u32, key: &Path) -> Ended {
        let key = key.to_str().unwrap();
        self.quell(uid, &["batch", "key", &self.path(uid), "--trust-owner", "1", "--install", key])
    }

    fn status(&self, uid: u32) -> Ended {
        self.quell(uid, &["batch", "status", &self.path(uid), "--trust-owner", "1"])
    }

    /// Mounts the store, or a directory of it, in the home directory of a user.
    fn mount(&self, uid: u32, below: &str, options: &[&str], name: &str) -> PathBuf {
        let (point, ended) = self.try_mount(uid, below, options, name);
        ended.expect(0);
        point
    }

    fn try_mount(&self, uid: u32, below: &str, options: &[&str], name: &str) -> (PathBuf, Ended) {
        let point = self.stage.dir(&format!("home-{uid}/{name}"));
        chown(&point, Some(uid), Some(uid)).unwrap();
        let store = format!("{}{below}", self.path(uid));
        let trust: &[&str] = if uid == OWNER { &[] } else { &["--trust-owner", "1"] };
        let arguments = [&["mount", "--batch", &store], trust, options, &[point.to_str().unwrap()]].concat();
        let ended = self.quell(uid, &arguments);
        (point, ended)
    }

    fn umount(&self, uid: u32, point: &Path) -> Ended {
        self.quell(uid, &["umount", point.to_str().unwrap()])
    }
}

/// Prints the address of a node.
const ADDRESS: &str =
    "ip -4 -o address show scope global | sed -n 's/.* inet \\([0-9.]*\\).*/\\1/p' | head -n 1";

/// Returns the node of a user.
fn node_of(uid: u32) -> &'static str {
    if uid == OWNER { "1" } else { "2" }
}

/// Returns a command that executes another one at its end.
fn wrapped(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

#[test]
fn a_user_on_another_node_uses_a_store_with_a_key() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    let mut fixture = Fixture::new(&stage, Some(&testbed));
    fixture.status(USER).expect(3).says("--trust-owner 1 --install FILE");
    let key = fixture.key_for(USER, USER, &["--expires", "1d"]);
    fixture.install(USER, &key).expect(0);
    fs::remove_file(key).unwrap();
    let theirs = fixture.mount(OWNER, "", &[], "mount");
    let mine = fixture.mount(USER, "", &[], "mount");
    let script = "set -e; cd mount; mkdir open closed; chmod 777 open; echo text > open/file; head -c 200000 /dev/zero \
                  | tr '\\0' a > open/large; chmod 666 open/large; echo x > closed/file; chmod 700 closed";
    fixture.sh(OWNER, script).expect(0);
    // The permissions of the name space hold on the other node.
    let script = "set -e; cd mount; mkdir dir; echo mine > dir/file; chmod 600 dir/file; head -c 300000 /dev/zero > \
                  dir/large; mv dir/large open/moved; cat open/file; head -c 1 open/large; echo more >> open/large; touch \
                  open/large; stat -c '%u %s' open/moved open/large";
    let done = fixture.sh(USER, script).expect(0);
    assert_eq!(done.text(), "text\na2 300000\n1 200005\n");
    for refused in [
        "echo x > open/file",
        "rmdir open",
        "mv open renamed",
        "chmod 777 open",
        "touch -d 2001-01-01 open/large",
        "cat closed/file",
        "touch closed/new",
    ] {
        let ended = fixture.sh(USER, &format!("cd mount && {refused}"));
        assert_ne!(ended.code(), Some(0), "{refused}");
    }
    let script = "tail -c 5 mount/open/large; wc -c < mount/open/moved";
    assert_eq!(fixture.sh(OWNER, script).expect(0).text(), "more\n300000\n");
    // A batch on the other node is verified by the server.
    fixture.sh(USER, "mkdir mount/run").expect(0);
    let script = "set -e; cd job; mkdir d; for i in $(seq 300); do echo $i > d/$i; done; head -c 200000 /dev/zero > large";
    for options in [&["--mode", "batch"][..], &["--mode", "batch", "--lazy"]] {
        let job = fixture.mount(USER, "/run", options, "job");
        fixture.sh(USER, script).expect(0);
        let batches = fixture.status(USER).expect(0).text();
        let number = batches.lines().last().unwrap().split_whitespace().next().unwrap().to_owned();
        // The lock of the batch holds on both nodes.
        for (node, path) in [("2", fixture.path(USER)), ("1", fixture.path(OWNER))] {
            let abort = ["batch", "abort", &path, &number, "--trust-owner", "1"];
            fixture.quell_on(node, USER, &abort).expect(3).says("a process uses it");
        }
        fixture.umount(USER, &job).expect(0);
        let listed = fixture.sh(OWNER, "ls mount/run/d | wc -l; wc -c < mount/run/large").expect(0);
        assert_eq!(listed.text(), "300\n200000\n", "{options:?}");
        fixture.sh(USER, "rm -r mount/run/*").expect(0);
    }
    // A batch begins only in a directory that the user may change.
    let refused = fixture.home(USER).join("job");
    let store = format!("{}/closed", fixture.path(USER));
    let arguments =
        ["mount", "--batch", &store, "--trust-owner", "1", "--mode", "batch", refused.to_str().unwrap()];
    assert_ne!(fixture.quell(USER, &arguments).code(), Some(0));
    fixture.umount(USER, &mine).expect(0);
    fixture.umount(OWNER, &theirs).expect(0);
    fixture.end_server();
    fixture.quell(OWNER, &["batch", "fsck", &fixture.path(OWNER)]).expect(0);
}

#[test]
fn keys_are_refused_with_the_reason() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let stage = Stage::new();
    let mut fixture = Fixture::new(&stage, None);
    let store = fixture.path(OWNER);
    // The address can be read by the group, and the keys cannot.
    let mode = |name: &str| fs::metadata(fixture.store.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("address"), mode("key")), (0o640, 0o600));
    fixture.status(USER).expect(3).says("--trust-owner 1 --install FILE");
    let as_root = ["batch", "status", &store, "--trust-owner", "1"];
    stage.run(stage.quell().args(as_root)).expect(3).says("root can use it there only");
    // A key of another user, a file that others can read, and a file that is no key.
    fixture.install(USER, &fixture.key_for(STRANGER, USER, &[])).expect(2).says("it is a key of user 3");
    let key = fixture.key_for(USER, USER, &[]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    fixture.install(USER, &key).expect(3).says("chmod go= FILE");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fixture.install(USER, Path::new("/dev/null")).code().filter(|code| *code != 0).expect("it is no key");
    // With its key, the user lists batches; with a changed one, it does not.
    fixture.install(USER, &key).expect(0);
    fixture.status(USER).expect(0);
    let installed = fixture.store.join("incoming/user-2/key");
    assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o600);
    let valid = fs::read(&installed).unwrap();
    let description = valid.windows(4).position(|bytes| bytes == b"user").expect("a description");
    let of_stranger = fs::read(fixture.key_for(STRANGER, USER, &[])).unwrap();
    let mut with_other_user = of_stranger.clone();
    with_other_user[description + 4] = 2;
    let mut with_other_expiry = fs::read(fixture.key_for(USER, USER, &["--expires", "1h"])).unwrap();
    with_other_expiry[description + 8..description + 16].copy_from_slice(&[0xff; 8]);
    for changed in [with_other_user, with_other_expiry] {
        fs::write(&installed, changed).unwrap();
        fixture.status(USER).expect(3).says("the server refuses your key");
    }
    // Another member cannot read the key, and its user alone can replace it.
    assert_ne!(fixture.sh(STRANGER, &format!("cat {}", installed.display())).code(), Some(0));
    // An expired key.
    let key = fixture.key_for(USER, USER, &["--expires", "1s"]);
    fixture.install(USER, &key).expect(0);
    assert!(eventually(|| fixture.status(USER).code() == Some(3)));
    fixture.status(USER).expect(3).says("the key has expired");
    // Users that the databases of the server's node do not know, or not as members.
    for (uid, words) in [(STRANGER, "user 3 is not a member of group"), (UNKNOWN, "is not known on the node")]
    {
        let key = fixture.key_for(uid, uid, &[]);
        fixture.install(uid, &key).expect(0);
        fixture.status(uid).expect(3).says(words);
    }
    // A new key of the store ends all others. The owner connects with the new one.
    let key = fixture.key_for(USER, USER, &[]);
    fixture.install(USER, &key).expect(0);
    fixture.status(USER).expect(0);
    fixture.end_server();
    fs::remove_file(fixture.store.join("key")).unwrap();
    fixture.serve();
    fixture.status(USER).expect(3).says("the server refuses your key");
    fixture.quell(OWNER, &["batch", "status", &store]).expect(0);
    let printed = ["batch", "key", &store, "--user", "2", "--expires", "2d", "--file"];
    let file = fixture.home(OWNER).join("printed.key");
    let printed = [&printed[..], &[file.to_str().unwrap(), "--json"]].concat();
    let line: Value = serde_json::from_str(&fixture.quell(OWNER, &printed).expect(0).text()).unwrap();
    assert_eq!(line["user"], 2);
    assert!(line["expires_s"].as_u64().is_some_and(|time| time > 1_700_000_000));
    fixture.quell(OWNER, &printed).expect(3).says("--force");
    fixture.quell(OWNER, &["batch", "key", &store, "--user", "1", "--file", "key"]).expect(2);
    // Only the owner of the store derives keys, and has no use for one.
    let of_other = ["batch", "key", &store, "--user", "3", "--file", "key"];
    assert_ne!(fixture.quell(USER, &of_other).code(), Some(0));
    fixture.install(OWNER, &file).expect(2).says("its owner needs no other key");
    fixture.end_server();
}

#[test]
fn a_batch_whose_key_has_expired_is_committed_with_another_key() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let stage = Stage::new();
    let mut fixture = Fixture::new(&stage, None);
    fixture.install(USER, &fixture.key_for(USER, USER, &[])).expect(0);
    let mount = fixture.mount(USER, "", &[], "mount");
    fixture.sh(USER, "mkdir mount/run").expect(0);
    fixture.umount(USER, &mount).expect(0);
    let job = fixture.mount(USER, "/run", &["--mode", "batch"], "job");
    fixture.sh(USER, "echo text > job/file").expect(0);
    fixture.install(USER, &fixture.key_for(USER, USER, &["--expires", "1s"])).expect(0);
    assert!(eventually(|| fixture.status(USER).code() == Some(3)));
    fixture.umount(USER, &job).expect(3).says("the key has expired");
    fixture.install(USER, &fixture.key_for(USER, USER, &[])).expect(0);
    let batches = fixture.status(USER).expect(0).text();
    assert!(batches.trim_start().starts_with("1  open"), "{batches}");
    fixture.quell(USER, &["batch", "commit", &fixture.path(USER), "1", "--trust-owner", "1"]).expect(0);
    let mount = fixture.mount(USER, "", &[], "mount");
    assert_eq!(fixture.sh(USER, "cat mount/run/file").expect(0).text(), "text\n");
    fixture.umount(USER, &mount).expect(0);
    fixture.end_server();
}

#[test]
fn a_mount_uses_the_key_that_replaces_an_expired_one() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let stage = Stage::new();
    let mut fixture = Fixture::new(&stage, None);
    let install = |expires: &str| {
        fixture.install(USER, &fixture.key_for(USER, USER, &["--expires", expires])).expect(0);
    };
    // On a busy machine, a key can expire before the mount has begun.
    let mounted = ["4s", "20s", "100s"].iter().find_map(|expires| {
        install(expires);
        let (point, ended) = fixture.try_mount(USER, "", &[], "mount");
        (ended.code() == Some(0)).then_some(point)
    });
    let mount = mounted.expect("the key has not expired");
    assert!(eventually(|| fixture.sh(USER, "touch mount/early").code() != Some(0)));
    let refused = fixture.sh(USER, "echo text > mount/file");
    assert!(refused.err.contains("Permission denied"), "{}", refused.err);
    install("1d");
    fixture.sh(USER, "echo text > mount/file").expect(0);
    assert_eq!(fixture.sh(USER, "cat mount/file").expect(0).text(), "text\n");
    // The next server has another key, from which the next key of the user is derived.
    fixture.end_server();
    fs::remove_file(fixture.store.join("key")).unwrap();
    fixture.serve();
    let refused = fixture.sh(USER, "echo more >> mount/file");
    assert!(refused.err.contains("Permission denied"), "{}", refused.err);
    fixture.install(USER, &fixture.key_for(USER, USER, &[])).expect(0);
    fixture.sh(USER, "echo more >> mount/file").expect(0);
    assert_eq!(fixture.sh(USER, "cat mount/file").expect(0).text(), "text\nmore\n");
    fixture.umount(USER, &mount).expect(0);
    fixture.end_server();
}
