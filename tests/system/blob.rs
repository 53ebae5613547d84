//! `quell blob`: stores in directories, as users use them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::skip;
use crate::stage::{Ended, Stage, is_root, quell, words};
use crate::trees::noise;

impl Stage {
    /// Runs `quell blob` with these arguments.
    #[track_caller]
    pub fn blob(&self, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Ended {
        self.run(self.quell().arg("blob").args(words(arguments)))
    }

    fn store(&self) -> PathBuf {
        self.path("store")
    }
}

fn names(ended: &Ended) -> Vec<String> {
    let name = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].as_str().unwrap().into()
    };
    ended.text().lines().map(name).collect()
}

#[test]
fn files_are_copied_into_blobs_and_out_of_them() {
    let stage = Stage::new();
    let store = stage.store();
    let content = noise(700_001, 1);
    let file = stage.file("data", &content);
    assert_eq!(stage.blob(&[&"put", &store, &file]).expect(0).text(), "");
    stage.blob(&[&"put", &store, &file, &"a/b"]).expect(0);
    stage.blob(&[&"put", &store, &stage.file("small", "text"), &"a/c"]).expect(0);
    assert_eq!(names(&stage.blob(&[&"ls", &store, &"--json"]).expect(0)), ["a/b", "a/c", "data"]);
    assert_eq!(names(&stage.blob(&[&"ls", &store, &"a/", &"--json"]).expect(0)), ["a/b", "a/c"]);
    let copy = stage.path("copy");
    stage.blob(&[&"get", &store, &"a/b", &copy]).expect(0);
    assert!(fs::read(&copy).unwrap() == content);
    stage.blob(&[&"get", &store, &"a/c", &copy]).expect(2).says("--force");
    stage.blob(&[&"get", &store, &"a/c", &copy, &"--force"]).expect(0);
    assert_eq!(fs::read(&copy).unwrap(), b"text");
    let link = stage.path("link");
    std::os::unix::fs::symlink(&copy, &link).unwrap();
    stage.blob(&[&"get", &store, &"a/b", &link, &"--force"]).expect(2).says("not a regular file");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&copy), mode(&file), "both have the mode of a new file");
    let part = stage.blob(&[&"cat", &store, &"a/c", &"--offset", &"1", &"--length", &"2"]).expect(0);
    assert_eq!(part.text(), "ex");
    // A blob is replaced entirely.
    stage.blob(&[&"put", &store, &stage.file("short", "x"), &"a/b"]).expect(0);
    assert_eq!(stage.blob(&[&"stat", &store, &"a/b", &"--json"]).expect(0).json()["size"], 1);
    stage.blob(&[&"rm", &store, &"a/b", &"missing"]).expect(2).says("nothing was deleted");
    stage.blob(&[&"rm", &store, &"--force", &"a/b", &"missing"]).expect(0);
    stage.blob(&[&"stat", &store, &"a/b"]).expect(1).says("there is no such blob");
    stage.blob(&[&"gc", &store]).expect(0);
    stage.blob(&[&"fsck", &store, &"--json"]).expect(0);
    let extents =
        |dir: &Path| fs::read_dir(dir).unwrap().map(|e| fs::read_dir(e.unwrap().path()).unwrap().count());
    assert_eq!(extents(&store.join("extents")).sum::<usize>(), 1, "only `data` has an extent");
}

#[test]
fn a_backup_has_the_same_blobs_and_does_not_need_the_original() {
    let stage = Stage::new();
    let store = stage.store();
    let file = stage.file("data", noise(100_000, 2));
    stage.blob(&[&"put", &store, &file]).expect(0);
    // 8 EiB, of which 8 bytes are stored.
    stage.blob(&[&"add", &store, &"sparse", &"9000000000000000000", &"7"]).expect(0);
    let backup = stage.path("backup");
    stage.blob(&[&"backup", &store, &backup]).expect(0);
    stage.blob(&[&"backup", &store, &backup]).expect(2).says("name a new directory");
    stage.blob(&[&"backup", &store, &store.join("copy")]).expect(2).says("directory of its store");
    let directory = fs::read_dir(stage.path(".")).unwrap();
    let mut names = directory.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!names.any(|name| name.contains("incomplete")));
    // The time of the last change is kept.
    let attributes = |store: &PathBuf| stage.blob(&[&"stat", store, &"data", &"--json"]).expect(0).json();
    assert_eq!(attributes(&backup), attributes(&store));
    let empty = stage.path("empty");
    stage.blob(&[&"put", &empty, &file]).expect(0);
    stage.blob(&[&"rm", &empty, &"data"]).expect(0);
    stage.blob(&[&"backup", &empty, &stage.path("nothing")]).expect(0);
    assert_eq!(stage.blob(&[&"ls", &stage.path("nothing")]).expect(0).text(), "");
    fs::remove_dir_all(&store).unwrap();
    let sum = stage.blob(&[&"add", &backup, &"sparse", &"9000000000000000000", &"0"]).expect(0);
    assert_eq!(sum.text(), "7\n");
    let copy = stage.path("copy");
    stage.blob(&[&"get", &backup, &"data", &copy]).expect(0);
    assert!(fs::read(copy).unwrap() == fs::read(file).unwrap());
}

#[test]
fn a_killed_process_loses_no_acknowledged_addition() {
    let stage = Stage::new();
    let store = stage.store();
    stage.blob(&[&"add", &store, &"sum", &"0", &"0"]).expect(0);
    let acknowledged = stage.path("acknowledged");
    // Each command prints the sum when it is committed.
    let script = "while :; do \"$0\" blob add \"$1\" sum 0 1 >> \"$2\" || exit 1; done";
    let mut sum = 0;
    for _ in 0..5 {
        let before = sum;
        let mut command = stage.command("sh");
        command.arg("-c").arg(script).arg(crate::stage::quell()).arg(&store).arg(&acknowledged);
        let running = stage.start(&mut command);
        let last = || {
            let text = fs::read_to_string(&acknowledged).unwrap_or_default();
            text.lines().last().map_or(0, |line| line.parse().unwrap_or(0))
        };
        assert!(crate::stage::eventually(|| last() > before + 3));
        for pid in stage.processes() {
            crate::stage::send(pid, rustix::process::Signal::KILL);
        }
        running.wait();
        assert!(crate::stage::eventually(|| stage.processes().is_empty()));
        let acknowledged: i64 = last();
        // A killed process that is not found any more can still have the store open for a moment.
        let mut found: i64 = 0;
        let mut error = String::new();
        assert!(
            crate::stage::eventually(|| {
                let ended = stage.blob(&[&"add", &store, &"sum", &"0", &"0"]);
                let is_in_use = ended.code() == Some(3) && ended.err.contains("another process has it open");
                error.clone_from(&ended.err);
                if !is_in_use {
                    found = ended.expect(0).text().trim().parse().unwrap();
                }
                !is_in_use
            }),
            "{error}"
        );
        assert!(found == acknowledged || found == acknowledged + 1, "{found}, {acknowledged} acknowledged");
        sum = found;
    }
    stage.blob(&[&"fsck", &store]).expect(0);
}

#[test]
fn damage_is_reported_with_the_blob() {
    let stage = Stage::new();
    let store = stage.store();
    stage.blob(&[&"put", &store, &stage.file("data", noise(100_000, 3))]).expect(0);
    fs::write(store.join("extents/1/ffff"), "left by a killed process").unwrap();
    let found = stage.blob(&[&"fsck", &store, &"--repair", &"--json"]).expect(0).json();
    assert_eq!((&found["kind"], &found["repaired"]), (&"orphan-extent".into(), &true.into()));
    let extent = fs::read_dir(store.join("extents/1")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&extent).unwrap();
    bytes[70_000] ^= 1;
    fs::write(&extent, bytes).unwrap();
    let found = stage.blob(&[&"fsck", &store, &"--repair", &"--json"]).expect(1).json();
    assert_eq!((&found["kind"], &found["name"]), (&"damaged-extent".into(), &"data".into()));
    stage.blob(&[&"cat", &store, &"data"]).expect(2).says("checksum");
}

#[test]
fn stores_that_are_in_use_or_belong_to_others_are_refused() {
    let stage = Stage::new();
    let store = stage.store();
    stage.blob(&[&"ls", &store]).expect(2).says("No such file");
    assert!(!store.exists(), "a command that only reads has created a store");
    let empty = stage.dir("empty");
    crate::trees::set_mode(&empty, 0o700);
    stage.blob(&[&"ls", &empty]).expect(2).says("there is no store");
    // While a pipe has data to come, `put` has the store open.
    let mut writer = stage.quell();
    writer.args(words(&[&"blob", &"put", &store, &"-", &"piped"])).stdin(std::process::Stdio::piped());
    let mut running = stage.start(&mut writer);
    let input = running.stdin();
    assert!(crate::stage::eventually(|| store.join("format").exists()));
    stage.blob(&[&"ls", &store]).expect(3).says("another process has it open");
    drop(input);
    running.wait().expect(0);
    assert_eq!(names(&stage.blob(&[&"ls", &store, &"--json"]).expect(0)), ["piped"]);
    let shared = stage.dir("shared");
    crate::trees::set_mode(&shared, 0o777);
    stage.blob(&[&"put", &shared, &stage.file("f", "x")]).expect(3).says("other users have access");
}

#[test]
fn a_store_on_a_full_disk_can_be_read_and_emptied() {
    if !is_root() {
        skip!("a small file system to fill needs root to mount it");
    }
    let stage = Stage::new();
    let (disk, file) = (stage.dir("disk"), stage.file("data", noise(30_000_000, 3)));
    // In a mount namespace of its own, so that no mount remains.
    let script = r#"mount -t tmpfs -o size=300m none "$1" || exit 77
        store=$1/store
        for i in 1 2 3 4 5 6 7 8 9 10; do "$2" blob put "$store" "$3" "$i" || break; done
        echo "put $i"
        "$2" blob ls "$store" >/dev/null && "$2" blob cat "$store" 1 | cmp - "$3" && echo read
        for name in $("$2" blob ls "$store" --json | sed 's/.*"name":"\([^"]*\)".*/\1/'); do
            "$2" blob rm "$store" "$name" || exit 78
        done
        "$2" blob gc "$store" && "$2" blob put "$store" "$3" again && echo again"#;
    let mut command = stage.command("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&disk).arg(quell()).arg(&file);
    let ended = stage.run(&mut command).expect(0).says("No space left on device");
    let text = ended.text();
    assert!(
        text.ends_with("read\nagain\n") && !text.contains("put 1\n") && !text.contains("put 10"),
        "{text}"
    );
}
