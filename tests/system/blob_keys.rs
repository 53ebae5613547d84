//! `quell blob key`: keys with some of the rights for a store.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::Signal;

use crate::blob_languages::{libraries, python};
use crate::skip;
use crate::stage::{Ended, Stage, eventually};

impl Stage {
    /// Derives a key, and returns its file.
    pub fn blob_key(&self, store: &dyn AsRef<std::ffi::OsStr>, name: &str, rights: &[&str]) -> String {
        let file = self.path(name);
        let mut command = self.blob_command(&[&"key", store, &file]);
        self.run(command.args(rights)).expect(0);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        file.to_str().unwrap().to_owned()
    }

    fn write_key(&self, path: &Path, bytes: &[u8]) {
        fs::write(path, bytes).unwrap();
        crate::trees::set_mode(path, 0o600);
    }

    fn blob_as(&self, location: &str, command: &str, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Ended {
        let mut all: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&command, &location];
        all.extend(arguments);
        self.run(&mut self.blob_command(&all))
    }
}

#[test]
fn keys_allow_what_their_prefixes_allow() {
    let stage = Stage::new();
    let store = stage.path("store");
    let file = stage.file("file", "of the owner");
    let (server, line) = stage.serve(&store, &["--listen", "127.0.0.1:0"]);
    let address = line["address"].as_str().unwrap();
    let with = |key: &str| format!("quell://{address}?key={key}");
    for name in ["site/a", "site/b", "sites", "total"] {
        stage.blob_as(store.to_str().unwrap(), "put", &[&file, &name]).expect(0);
    }
    let site = with(&stage.blob_key(&store, "site.key", &["--read", "site/", "--write", "site/a"]));
    let total = with(&stage.blob_key(&store, "total.key", &["--write", "total", "--expires", "30d"]));
    let admin = with(&stage.blob_key(&store, "admin.key", &["--admin"]));

    // Each key has its rights, while both are used.
    assert_eq!(stage.blob_as(&site, "ls", &[&"site/"]).expect(0).text().lines().count(), 2);
    stage.blob_as(&site, "ls", &[]).expect(3).says("no right to list all names; it has the right to list");
    stage.blob_as(&site, "ls", &[&"site"]).expect(3).says("no right to list");
    assert_eq!(stage.blob_as(&site, "cat", &[&"site/b"]).expect(0).text(), "of the owner");
    stage.blob_as(&site, "put", &[&file, &"site/abc"]).expect(0);
    stage.blob_as(&site, "put", &[&file, &"site/b"]).expect(3).says("no right to write site/b");
    stage.blob_as(&site, "cat", &[&"sites"]).expect(3).says("no right to read sites");
    stage.blob_as(&site, "rm", &[&"site/a", &"total"]).expect(3).says("no right to write total");
    stage.blob_as(&total, "put", &[&file, &"total"]).expect(0);
    stage.blob_as(&total, "get", &[&"total", &stage.path("copy")]).expect(3).says("no right to read total");
    stage.blob_as(&total, "add", &[&"total", &"0", &"1"]).expect(3).says("no right to read total");
    stage.blob_as(&total, "stat", &[&"site/a"]).expect(3).says("no right to read site/a");
    stage.blob_as(&site, "gc", &[]).expect(3).says("no right to administer");
    stage.blob_as(&admin, "gc", &[]).expect(0);
    assert_eq!(stage.blob_as(&admin, "ls", &[]).expect(0).text().lines().count(), 5);
    // Programs on the machine of the server have all rights.
    stage.blob_as(&format!("unix:{}", line["socket"].as_str().unwrap()), "gc", &[]).expect(0);

    // A key cannot be changed, and no other key can be derived from it.
    let copy = stage.path("changed.key");
    let mut bytes = fs::read(stage.path("site.key")).unwrap();
    let at = bytes.windows(5).position(|part| part == b"site/").unwrap();
    bytes[at] ^= 1;
    stage.write_key(&copy, &bytes);
    stage.blob_as(&with(copy.to_str().unwrap()), "ls", &[&"site/"]).expect(3).says("different keys");
    let arguments: [&dyn AsRef<std::ffi::OsStr>; 3] = [&stage.path("new.key"), &"--read", &"total"];
    stage.blob_as(&site, "key", &arguments).expect(2).says("derived key");
    stage.blob_as(&admin, "key", &arguments).expect(2).says("derived key");
    // Keys can be derived from a copy of the key of the store.
    let of_store = with(line["key"].as_str().unwrap());
    stage.blob_as(&of_store, "key", &arguments).expect(0);
    stage.blob_as(&of_store, "key", &arguments).expect(3).says("--force");
    let forced: [&dyn AsRef<std::ffi::OsStr>; 5] =
        [&stage.path("new.key"), &"--read", &"site/", &"--force", &"--json"];
    let described = stage.blob_as(&of_store, "key", &forced).expect(0).json();
    assert_eq!((&described["read"][0], &described["admin"]), (&"site/".into(), &false.into()));
    stage.blob_as(&of_store, "key", &[&stage.path("no.key")]).expect(2);

    // The key of another store.
    let other = stage.path("other");
    let (second, _) = stage.serve(&other, &["--listen", "127.0.0.1:0"]);
    let foreign = stage.blob_key(&other, "other.key", &["--admin"]);
    stage.blob_as(&with(&foreign), "ls", &[]).expect(3).says("different keys");
    for server in [server, second] {
        server.signal(Signal::TERM);
        server.wait().expect(0);
    }
}

#[test]
fn a_key_ends_at_its_time_of_expiry_and_with_the_key_of_the_store() {
    let stage = Stage::new();
    let store = stage.path("store");
    let (server, line) = stage.serve(&store, &["--listen", "127.0.0.1:0"]);
    let with = |line: &serde_json::Value, key: &str| {
        format!("quell://{}?key={key}", line["address"].as_str().unwrap())
    };
    let (short, long) = (
        stage.blob_key(&store, "short.key", &["--admin", "--expires", "1s"]),
        stage.blob_key(&store, "long.key", &["--admin"]),
    );
    let refused = || stage.blob_as(&with(&line, &short), "ls", &[]);
    assert!(eventually(|| refused().code() != Some(0)));
    refused().expect(3).says("the key has expired");
    stage.blob_as(&with(&line, &long), "ls", &[]).expect(0);
    server.signal(Signal::TERM);
    server.wait().expect(0);
    fs::remove_file(store.join("key")).unwrap();
    let (server, line) = stage.serve(&store, &["--listen", "127.0.0.1:0"]);
    stage.blob_as(&with(&line, &long), "ls", &[]).expect(3).says("different keys");
    server.signal(Signal::TERM);
    server.wait().expect(0);
}

#[test]
fn a_program_has_the_rights_of_its_key() {
    let (Some(libraries), Some(python)) = (libraries("cc"), python()) else {
        skip!("no library, or no Python 3.9 or later");
    };
    let stage = Stage::new();
    let store = stage.path("store");
    let (server, line) = stage.serve(&store, &["--listen", "127.0.0.1:0"]);
    let file = stage.file("file", "of the owner");
    for name in ["site/a", "total"] {
        stage.blob_as(store.to_str().unwrap(), "put", &[&file, &name]).expect(0);
    }
    let location = |key: String| format!("quell://{}?key={key}", line["address"].as_str().unwrap());
    let reader = location(stage.blob_key(&store, "reader.key", &["--read", "site/"]));
    let writer = location(stage.blob_key(&store, "writer.key", &["--write", "site/", "--write", "sum"]));
    let script = r#"
import asyncio, sys
import quell.blob
from quell.blob import Transform

def refused(words, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except PermissionError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{words}: allowed")

with quell.blob.open(sys.argv[1]) as reader, quell.blob.open(sys.argv[2]) as writer:
    assert reader.read("site/a") == b"of the owner"
    refused("no right to read total", reader.read, "total")
    refused("no right to write site/a", reader.append, "site/a", b"!")
    writer.append("site/a", b"!")
    refused("no right to read site/a", writer.read, "site/a")

    @writer.transactional
    def record(t, blob):
        t.append("site/a", b"!")
        t.create("sum", exist_ok=True)
        t.transform("sum", 0, Transform("add", "i64", 1))
        t.append(blob, b"!")

    record("site/a")
    refused("no right to write total", record, "total")
    with reader.snapshot() as snapshot:
        assert snapshot.read("site/a") == b"of the owner!!!"
        assert [name for name, stat in snapshot.list("site/")] == ["site/a"]
        refused("no right to list all names", lambda: list(snapshot.list("")))

    async def submit():
        batch = reader.batch()
        batch.append("site/a", b"?")
        await batch.commit_async()

    refused("no right to write site/a", asyncio.run, submit())
    assert reader.read("site/a") == b"of the owner!!!"
"#;
    let mut program = stage.with_package(&libraries, python);
    stage.run(program.args(["-W", "error", "-c", script, &reader, &writer])).expect(0);
    server.signal(Signal::TERM);
    server.wait().expect(0);
}
