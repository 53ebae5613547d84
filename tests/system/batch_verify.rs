//! `quell batch verify`: auxiliary servers verify the batches of a store, and are killed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::skip;
use crate::stage::{Ended, Running, Stage, eventually, is_root, quell, words};

struct Fixture {
    stage: Stage,
    store: PathBuf,
    files: PathBuf,
}

impl Fixture {
    /// A store, and a directory with 200 files.
    fn new() -> Fixture {
        let stage = Stage::new();
        let store = stage.path("store");
        stage.run(stage.quell().args(words(&[&"batch", &"init", &store]))).expect(0);
        let files = stage.dir("files");
        for number in 0..200 {
            fs::write(files.join(number.to_string()), "bytes").unwrap();
        }
        Fixture { stage, store, files }
    }

    fn batch(&self, arguments: &[&str]) -> Ended {
        self.stage.run(self.stage.quell().arg("batch").args(arguments))
    }

    fn store(&self) -> &str {
        self.store.to_str().unwrap()
    }

    fn serve(&self, options: &[&str]) -> Running {
        let mut command = self.stage.quell();
        command.args(words(&[&"batch", &"serve", &self.store, &"--json"])).args(options);
        let server = self.stage.start(&mut command);
        assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
        server
    }

    /// Starts an auxiliary server after the last one has ended, and waits until it is listed.
    fn verify(&self) -> Running {
        assert!(eventually(|| self.auxiliary().is_empty()));
        let mut command = self.stage.quell();
        command.args(words(&[&"batch", &"verify", &self.store, &"--json"]));
        let running = self.stage.start(&mut command);
        assert!(eventually(|| self.auxiliary().len() == 1), "{} {}", running.out(), running.err());
        running
    }

    /// Begins to import the files as a batch.
    fn import(&self, to: &str) -> Running {
        let mut command = self.stage.quell();
        let to = format!("{}/{to}", self.store());
        command.args(words(&[&"batch", &"import", &self.files, &to, &"--quiet"]));
        self.stage.start(&mut command)
    }

    fn status(&self) -> Value {
        self.batch(&["status", self.store(), "--json"]).expect(0).json()
    }

    fn auxiliary(&self) -> Vec<Value> {
        self.status()["auxiliary_servers"].as_array().expect("a list").clone()
    }

    /// Ends the server, removes the files that remain from verifications, and checks the store.
    fn end(self, server: Running) {
        server.signal(Signal::TERM);
        server.wait().expect(0);
        self.batch(&["gc", self.store()]).expect(0);
        assert_eq!(verifications(&self.store), 0);
        self.batch(&["fsck", self.store()]).expect(0);
    }
}

fn verifications(store: &Path) -> usize {
    let names = fs::read_dir(store.join("tables")).unwrap();
    names.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with("verify-")).count()
}

/// Returns the events that an auxiliary server has printed.
fn events(text: &str) -> Vec<String> {
    let event =
        |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["event"].as_str().unwrap().to_owned();
    text.lines().map(event).collect()
}

#[test]
fn batches_are_verified_by_a_process_that_status_lists() {
    let fixture = Fixture::new();
    let key = fixture.store.join("commit-key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o7777, 0o600);
    // A store of an earlier version has no key.
    fs::remove_file(&key).unwrap();
    assert!(fixture.auxiliary().is_empty());
    let server = fixture.serve(&["--listen", "127.0.0.1:0"]);
    assert_eq!(fs::read(&key).unwrap().len(), 32);
    // On another node, the socket accepts no connections.
    fs::rename(fixture.store.join("socket"), fixture.store.join("socket-elsewhere")).unwrap();
    let remote = fixture.verify();
    fs::rename(fixture.store.join("socket-elsewhere"), fixture.store.join("socket")).unwrap();
    fixture.import("one").wait().expect(0);
    let [only] = &fixture.auxiliary()[..] else { panic!("one") };
    assert_eq!((&only["verified"], &only["failed"], &only["batch"]), (&1.into(), &0.into(), &Value::Null));
    let text = fixture.batch(&["status", fixture.store()]).expect(0).text();
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("auxiliary server ") && last.ends_with(": idle, 1 batch verified"), "{text}");
    // SIGTERM ends an idle auxiliary server, and Ctrl-C one that is connected through the socket.
    remote.signal(Signal::TERM);
    let ended = remote.wait().expect(0);
    assert_eq!(events(&ended.text()), ["connected", "begun", "verified"]);
    assert!(eventually(|| fixture.auxiliary().is_empty()));
    let local = fixture.verify();
    fixture.import("two").wait().expect(0);
    local.signal(Signal::INT);
    let ended = local.wait().expect(0);
    let verified: Value = serde_json::from_str(ended.text().lines().last().unwrap()).unwrap();
    // 200 files and two directories.
    assert_eq!((&verified["event"], &verified["entries"]), (&"verified".into(), &202.into()), "{verified}");
    // Without an auxiliary server, the server verifies batches itself.
    assert!(eventually(|| fixture.auxiliary().is_empty()));
    fixture.import("three").wait().expect(0);
    // A key that differs from the key of the server.
    let own = fs::read(&key).unwrap();
    fs::write(&key, [7; 32]).unwrap();
    fixture.batch(&["verify", fixture.store()]).expect(3).says("key");
    fs::write(&key, own).unwrap();
    assert_eq!(verifications(&fixture.store), 0, "nothing is left");
    let states: Vec<_> =
        fixture.status()["batches"].as_array().unwrap().iter().map(|batch| batch["state"].clone()).collect();
    assert_eq!(states, ["committed"; 3]);
    fixture.end(server);
}

#[test]
fn a_batch_is_committed_after_its_auxiliary_server_or_the_server_was_killed() {
    let fixture = Fixture::new();
    let mut server = fixture.serve(&[]);
    // A stopped process gets the batch and verifies nothing. On a slow machine its request may have
    // expired before; then the server verifies the batch.
    for (number, is_server_killed) in [false, true].into_iter().enumerate() {
        let stopped = fixture.verify();
        stopped.signal(Signal::STOP);
        let mut import = fixture.import(&format!("import-{number}"));
        let has_batch = || fixture.auxiliary().iter().any(|server| !server["batch"].is_null());
        assert!(eventually(|| !import.is_running() || has_batch()), "{}", import.err());
        if is_server_killed {
            server.signal(Signal::KILL);
            server.wait();
            server = fixture.serve(&[]);
        } else {
            stopped.signal(Signal::KILL);
        }
        import.wait().expect(0);
        if is_server_killed {
            // The stopped process finds the next server, and the verification of the first one is
            // not repeated.
            stopped.signal(Signal::CONT);
            assert!(eventually(|| fixture.auxiliary().len() == 1));
            fixture.import("last").wait().expect(0);
            assert_eq!(fixture.auxiliary()[0]["verified"], 1);
            stopped.signal(Signal::TERM);
            stopped.wait().expect(0);
        } else {
            stopped.wait();
        }
    }
    let states: Vec<_> =
        fixture.status()["batches"].as_array().unwrap().iter().map(|batch| batch["state"].clone()).collect();
    assert_eq!(states, ["committed"; 3]);
    fixture.end(server);
}

#[test]
fn auxiliary_servers_that_are_killed_while_they_verify_harm_no_batch() {
    let fixture = Fixture::new();
    let server = fixture.serve(&[]);
    for round in 0..3 {
        let verifier = fixture.verify();
        let import = fixture.import(&format!("import-{round}"));
        assert!(eventually(|| verifier.out().contains("begun")), "{}", import.err());
        std::thread::sleep(std::time::Duration::from_millis(round));
        verifier.signal(Signal::KILL);
        verifier.wait();
        import.wait().expect(0);
        assert!(eventually(|| fixture.auxiliary().is_empty()));
    }
    let batches = fixture.status()["batches"].as_array().unwrap().clone();
    assert!(
        batches.iter().all(|batch| batch["state"] == "committed" && batch["entries"] == 202),
        "{batches:?}"
    );
    fixture.end(server);
}

#[test]
fn batches_of_another_user_are_verified_by_a_process_of_the_owner_only() {
    const OWNER: u32 = 1;
    const USER: u32 = 2;
    const GROUP: &str = "4300101";
    if !is_root() {
        skip!("only root can be two users");
    }
    let fixture = Fixture::new();
    let Fixture { stage, files, .. } = &fixture;
    fs::set_permissions(stage.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = stage.path("quell-copy");
    fs::copy(quell(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(files, fs::Permissions::from_mode(0o755)).unwrap();
    let home = stage.dir("home");
    chown(&home, Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o711)).unwrap();
    let store = home.join("group-store");
    let as_user = |uid: u32, program: &Path, arguments: &[&str]| {
        let mut command = stage.command("setpriv");
        let id = uid.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--groups", GROUP, "--"]).arg(program).args(arguments);
        command
    };
    let text = store.to_str().unwrap();
    stage.run(&mut as_user(OWNER, &copy, &["batch", "init", text, "--group", GROUP])).expect(0);
    let server = stage.start(&mut as_user(OWNER, &copy, &["batch", "serve", text, "--json"]));
    assert!(eventually(|| server.out().ends_with('\n')), "{}", server.err());
    let status = |uid| {
        let arguments = ["batch", "status", text, "--json", "--trust-owner", "1"];
        stage.run(&mut as_user(uid, &copy, &arguments)).expect(0).json()
    };
    // Neither another user nor root is an auxiliary server.
    stage.run(&mut as_user(USER, &copy, &["batch", "verify", text])).expect(3).says("only its owner, user 1");
    stage.run(stage.quell().args(["batch", "verify", text])).expect(3).says("only its owner, user 1");
    let key = store.join("commit-key");
    let refused = stage.run(&mut as_user(USER, Path::new("cat"), &[key.to_str().unwrap()]));
    assert_ne!(refused.code(), Some(0));
    let verifier = stage.start(&mut as_user(OWNER, &copy, &["batch", "verify", text, "--json"]));
    assert!(eventually(|| status(OWNER)["auxiliary_servers"].as_array().unwrap().len() == 1));
    assert_eq!(status(USER)["auxiliary_servers"].as_array().unwrap().len(), 0, "only the owner sees them");
    let to = format!("{text}/import");
    let import = ["batch", "import", files.to_str().unwrap(), &to, "--trust-owner", "1"];
    stage.run(&mut as_user(USER, &copy, &import)).expect(0);
    assert!(eventually(|| verifier.out().contains("verified")), "{} {}", verifier.out(), verifier.err());
    let events = events(&verifier.out());
    assert_eq!(events, ["connected", "begun", "verified"]);
    assert_eq!(status(USER)["batches"][0]["state"], "committed");
    assert_eq!(verifications(&store), 0);
    // The tables belong to the owner of the store, and its group can read them.
    for table in fs::read_dir(store.join("tables")).unwrap() {
        use std::os::unix::fs::MetadataExt;
        let found = table.unwrap().metadata().unwrap();
        assert_eq!((found.uid(), found.gid().to_string().as_str()), (OWNER, GROUP));
        assert!([0o640, 0o600].contains(&(found.mode() & 0o7777)), "{:o}", found.mode());
    }
    let out = stage.dir("out");
    chown(&out, Some(USER), Some(USER)).unwrap();
    let export = ["batch", "export", &to, out.to_str().unwrap(), "--trust-owner", "1"];
    stage.run(&mut as_user(USER, &copy, &export)).expect(0);
    assert_eq!(fs::read_dir(out.join("import/files")).unwrap().count(), 200);
    for process in [verifier, server] {
        process.signal(Signal::TERM);
        process.wait().expect(0);
    }
    stage.run(&mut as_user(OWNER, &copy, &["batch", "fsck", text])).expect(0);
}
