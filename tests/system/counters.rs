//! `quell mount` and `umount`, the counters of `quell stats`, and the permissions in a mount.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::probe::{Snapshot, differences};
use crate::skip;
use crate::stage::{Launch, Stage, eventually, has, is_mounted, is_root, launches, views};
use crate::trees::{self, set_mode};

const NOBODY: &str = "65534";

fn fixture() -> (Stage, PathBuf, PathBuf) {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    (stage, tree, index)
}

/// Returns the views that `quell mount` supports for this user.
fn mount_views() -> Vec<&'static str> {
    launches().into_iter().filter(|launch| matches!(launch, Launch::Mount(_))).map(Launch::view).collect()
}

#[test]
fn a_mount_is_there_for_every_process_until_umount() {
    let (stage, _, index) = fixture();
    for view in mount_views() {
        let mounted = stage.mount(&index, view, &[]);
        // This process is neither a child of the mount command nor in one of its namespaces.
        assert_eq!(fs::read_to_string(mounted.point.join("lib/deep/leaf")).unwrap(), "leaf\n", "{view}");
        assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 4, "{view}");
        let again = stage.run(stage.quell().arg("mount").arg(&index).arg(&mounted.point));
        again.expect(2).says("already has a view");
        let point = mounted.point.clone();
        mounted.umount();
        assert_eq!(fs::read_dir(&point).unwrap().count(), 0, "{view}");
        // All processes have ended when the command ends.
        assert_eq!(stage.processes(), [0; 0], "{view}");
        stage.expect_nothing_left();
    }
}

#[test]
fn a_mount_point_must_be_a_directory() {
    let (stage, tree, index) = fixture();
    let mount = |point: &Path| stage.run(stage.quell().arg("mount").arg(&index).arg(point));
    mount(&stage.path("none")).expect(2).says("none");
    mount(&tree.join("readme")).expect(2).says("readme");
    stage.expect_nothing_left();
}

#[test]
fn a_mount_that_is_taken_away_by_others_ends_its_process() {
    let (stage, _, index) = fixture();
    for view in mount_views() {
        let mounted = stage.mount(&index, view, &[]);
        let script = "umount \"$1\" 2>/dev/null || fusermount3 -u \"$1\"";
        stage.sh(script, &[&mounted.point]).expect(0);
        stage.expect_nothing_left();
    }
}

#[test]
fn umount_takes_only_mounts_of_quell() {
    let (stage, tree, _) = fixture();
    for path in [Path::new("/proc"), Path::new("/"), &tree, &stage.path("none")] {
        stage.run(stage.quell().arg("umount").arg(path)).expect(2).says("not a mount of Quell");
    }
    assert!(is_mounted(Path::new("/proc")));
}

#[test]
fn a_mount_in_use_stays_unless_forced() {
    let (stage, _, index) = fixture();
    for view in mount_views() {
        let mounted = stage.mount(&index, view, &[]);
        let mut user = stage.command("sh");
        user.args(["-c", "echo ready; read line; cat lib/deep/leaf; exit 0"]).current_dir(&mounted.point);
        let mut user = stage.start(user.stdin(Stdio::piped()));
        user.wait_for_output("ready");
        let umount =
            |options: &[&str]| stage.run(stage.quell().arg("umount").args(options).arg(&mounted.point));
        let refused = umount(&[]).expect(3);
        assert!(refused.err.contains("in use") || refused.err.contains("busy"), "{view}: {}", refused.err);
        assert!(is_mounted(&mounted.point), "{view}");
        umount(&["--force"]).expect(0);
        assert!(!is_mounted(&mounted.point), "{view}");
        // The program gets data or an error, and continues.
        drop(user.stdin());
        user.wait().expect(0);
        stage.expect_nothing_left();
    }
}

#[test]
fn a_killed_mount_can_be_taken_away() {
    let (stage, _, index) = fixture();
    for view in mount_views() {
        let mounted = stage.mount(&index, view, &[]);
        crate::stage::send(stage.holder(), rustix::process::Signal::KILL);
        assert!(crate::stage::eventually(|| stage.processes().is_empty()));
        let read = fs::read(mounted.point.join("readme"));
        assert_eq!(read.is_ok(), view == "overlay", "{view}: {read:?}");
        mounted.umount();
    }
}

/// Returns the counters of the only view of a path.
fn counters(stage: &Stage, path: &Path) -> serde_json::Value {
    let reports = stage.run(stage.quell().args(["stats", "--json"]).arg(path)).expect(0).json();
    assert_eq!(reports.as_array().unwrap().len(), 1, "{reports}");
    reports[0]["trees"][0]["counters"].clone()
}

#[test]
fn requests_to_a_fuse_view_are_counted() {
    if !mount_views().contains(&"fuse") {
        skip!("no fuse mount");
    }
    let (stage, tree, index) = fixture();
    let mounted = stage.mount(&index, "fuse", &["--recheck", "0"]);
    let before = counters(&stage, &mounted.point);
    for number in 0..7 {
        assert!(fs::metadata(mounted.point.join(format!("absent{number}"))).is_err());
    }
    // The kernel has cached that the name is absent and sends no request.
    for _ in 0..20 {
        assert!(fs::metadata(mounted.point.join("absent0")).is_err());
    }
    assert_eq!(fs::read(mounted.point.join("lib/data")).unwrap().len(), 10_000);
    assert_eq!(fs::read_dir(mounted.point.join("lib/deep")).unwrap().count(), 1);
    fs::read_link(mounted.point.join("link")).unwrap();
    let after = counters(&stage, &mounted.point);
    let grown = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    assert_eq!(grown("negative_lookups"), 7, "{after}");
    assert!(grown("lookups") >= 9, "{after}");
    assert_eq!((grown("opens"), grown("opens_refused")), (1, 0), "{after}");
    assert_eq!(grown("bytes_read"), 10_000, "{after}");
    assert_eq!((grown("listings"), grown("links_read")), (1, 1), "{after}");
    // The counters are the same by the index's name, as text and for Prometheus.
    assert_eq!(counters(&stage, &index), after);
    let text = stage.run(stage.quell().arg("stats").arg(&mounted.point)).expect(0).text();
    assert!(text.contains("negative lookups    7"), "{text}");
    let file = stage.path("quell.prom");
    stage.run(stage.quell().arg("stats").arg(&mounted.point).arg("--prometheus").arg(&file)).expect(0);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("# TYPE quell_negative_lookups_total counter\n"), "{text}");
    let line = text.lines().find(|line| line.starts_with("quell_negative_lookups_total{")).unwrap();
    assert!(line.ends_with("} 7") && line.contains("view=\"fuse\""), "{line}");
    assert!(text.contains("quell_entries{"));
    let printed = stage.run(stage.quell().arg("stats").arg(&index).args(["--prometheus", "-"])).expect(0);
    assert_eq!(printed.text(), text);
    mounted.umount();
    stage.run(stage.quell().arg("stats").arg(&index)).expect(1).says("no view of");
    stage.run(stage.quell().arg("stats").arg(stage.path("none"))).expect(2);
    assert!(tree.is_dir());
}

#[test]
fn a_running_programs_view_has_its_numbers_too() {
    let (stage, tree, index) = fixture();
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--recheck", "100", "--", "sh", "-c", "cat \"$1/link\"; read line", "sh"]);
        let mut running = stage.start(command.arg(&tree).stdin(Stdio::piped()));
        running.wait_for_output("leaf");
        for path in [&index, &tree] {
            let reports = stage.run(stage.quell().args(["stats", "--json"]).arg(path)).expect(0).json();
            let seen = &reports[0]["trees"][0];
            assert_eq!((&seen["view"], &seen["entries"]), (&(*view).into(), &9.into()));
            assert_eq!(seen["counters"].is_null(), *view == "overlay", "{seen}");
        }
        let looked = || {
            let reports = stage.run(stage.quell().args(["stats", "--json"]).arg(&index)).expect(0).json();
            reports[0]["trees"][0]["looks"].as_u64().unwrap()
        };
        assert!(crate::stage::eventually(|| looked() > 2), "{view}");
        drop(running.stdin());
        running.wait();
    }
}

/// The source of the view is itself a FUSE view, which counts the requests that it receives.
#[test]
fn nothing_but_data_reaches_the_source() {
    if !mount_views().contains(&"fuse") {
        skip!("no fuse mount, which could count");
    }
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    for number in 0..500 {
        fs::create_dir_all(tree.join(format!("wide/{}", number % 50))).unwrap();
        fs::write(tree.join(format!("wide/{}/{number}", number % 50)), "x").unwrap();
    }
    let inner = stage.index(&tree);
    let point = stage.dir("counting");
    let mount = || {
        let mut command = stage.quell();
        command.args(["mount", "-q", "--view", "fuse", "--recheck", "0"]).arg(&inner).arg(&point);
        stage.run(&mut command).expect(0);
    };
    // The holder of a run uses the mount for a moment after the run has ended.
    let umount = || {
        let is_done = || stage.run(stage.quell().arg("umount").arg(&point)).code() == Some(0);
        assert!(eventually(is_done));
    };
    mount();
    let index = stage.index(&point);
    umount();
    for view in views() {
        // A new mount each time, with empty caches.
        let asked = |script: &str, options: &[&str]| {
            mount();
            let mut command = stage.quell_run(&index, view);
            command.args(["--strict", "--quiet", "--recheck", "0"]).args(options);
            stage.run(command.args(["--", "sh", "-c", script, "sh"]).arg(&point)).expect(0);
            let seen = counters_of_mount(&stage, &point);
            umount();
            seen
        };
        let sum = |seen: &serde_json::Value| -> u64 {
            let metadata = ["lookups", "attributes", "listings", "links_read", "xattrs"];
            metadata.iter().map(|name| seen[name].as_u64().unwrap()).sum()
        };
        let walk = "find \"$1\" -printf '%p %y %m %s %T@ %l %n\\n' >/dev/null; ls -lR \"$1\" >/dev/null; \
                    for i in 1 2 3 4 5 6 7 8 9; do test -e \"$1/bin/absent$i\"; done; true";
        let seen = asked(walk, &["--check", "sample"]);
        assert!(sum(&seen) <= 16, "{view}: {seen}");
        for none in ["listings", "negative_lookups", "links_read", "opens", "reads"] {
            assert_eq!(seen[none], 0, "{view}: {none} in {seen}");
        }
        // The sample makes almost all requests; the mount itself needs only a few.
        let (with, without) = (asked("true", &["--check", "sample"]), asked("true", &["--check", "none"]));
        assert!(sum(&with) - sum(&without) <= 8, "{view}: {with} {without}");
        // Reading a file costs the path lookup and the reads.
        let seen = asked("cat \"$1/wide/7/57\" \"$1/wide/7/107\"", &["--check", "none"]);
        assert_eq!(seen["opens"], 2, "{view}: {seen}");
        assert!(sum(&seen) - sum(&without) <= 8, "{view}: {seen} {without}");
    }
}

/// Returns the counters of the mount, without those of views whose source it is.
fn counters_of_mount(stage: &Stage, point: &Path) -> serde_json::Value {
    let reports = stage.run(stage.quell().args(["stats", "--json"]).arg(point)).expect(0).json();
    let of_mount = |report: &&serde_json::Value| report["mountpoint"].is_string();
    reports.as_array().unwrap().iter().find(of_mount).unwrap()["trees"][0]["counters"].clone()
}

#[test]
fn an_ordinary_user_lets_others_in_only_where_the_administrator_allows_it() {
    if is_root() {
        skip!("root may use allow_other without a line in /etc/fuse.conf");
    }
    if !mount_views().contains(&"fuse") {
        skip!("no fuse mount");
    }
    let configuration = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if configuration.lines().any(|line| line.trim() == "user_allow_other") {
        skip!("this machine allows it");
    }
    let (stage, _, index) = fixture();
    let point = stage.dir("point");
    let mut command = stage.quell();
    command.args(["mount", "--allow-other"]).arg(&index).arg(&point);
    stage.run(&mut command).expect(3).says("user_allow_other");
    stage.expect_nothing_left();
}

/// Runs this program as another user.
fn as_nobody(stage: &Stage, root: &Path) -> Snapshot {
    let copy = stage.path("probe-program");
    if !copy.exists() {
        fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        let answers = stage.dir("answers");
        fs::set_permissions(answers, fs::Permissions::from_mode(0o1777)).unwrap();
    }
    let output = stage.path("answers/probe");
    let _ = fs::remove_file(&output);
    let probe = stage.probe_command("snapshot", root, &output);
    let mut command: Command = stage.command("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--groups", "12345", "env"]);
    let own = std::env::current_exe().unwrap();
    command.args(probe.get_args().map(|word| if word == own.as_os_str() { copy.as_os_str() } else { word }));
    stage.run(&mut command).expect(0);
    serde_json::from_slice(&fs::read(output).unwrap()).unwrap()
}

#[test]
fn permissions_hold_for_every_user_of_a_mount() {
    if !is_root() {
        skip!("only root can look as another user");
    }
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    for (path, mode, owner) in [
        ("open", 0o644, 0),
        ("private", 0o600, 0),
        ("group", 0o640, 12345),
        ("group-only", 0o604, 12345),
        ("runnable", 0o711, 0),
        ("listed", 0o600, 0),
        ("masked", 0o640, 0),
    ] {
        let path = tree.join(path);
        fs::write(&path, "secret").unwrap();
        chown(&path, Some(0), Some(owner)).unwrap();
        set_mode(&path, mode);
    }
    for (path, mode, group) in
        [("closed", 0o700, 0), ("search", 0o711, 0), ("list", 0o744, 0), ("theirs", 0o750, 12345)]
    {
        let path = tree.join(path);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "x").unwrap();
        chown(&path, Some(0), Some(group)).unwrap();
        set_mode(&path, mode);
    }
    if has("setfacl") {
        let script = "cd \"$1\" && setfacl -m u:65534:r listed && setfacl -m u:65534:rw,m::- masked && \
                      setfacl -m u:65534:rx closed";
        stage.sh(script, &[&tree]).expect(0);
    }
    // The root's permissions, too, allow access to the owner, the group, or all users.
    for (uid, gid, mode) in
        [(0, 0, 0o755), (65534, 0, 0o700), (0, 12345, 0o750), (0, 0, 0o700), (0, 0, 0o711)]
    {
        chown(&tree, Some(uid), Some(gid)).unwrap();
        set_mode(&tree, mode);
        let index = stage.index(&tree);
        let original = as_nobody(&stage, &tree);
        if mode == 0o755 {
            assert_eq!(original["./private"]["may read"], "error 13");
            assert_eq!(original["./group"]["may read"], "yes");
        }
        // Some files are not readable by every user; for such a tree, root mounts only the fuse
        // view.
        for view in views().iter().filter(|view| **view == "fuse") {
            let mounted = stage.mount(&index, view, &[]);
            let seen = as_nobody(&stage, &mounted.point);
            // Only permissions are compared here; other tests compare the rest.
            let found = differences(&original, &seen, |_, fact, _, _| {
                !["may read", "may execute", "content", "listing", "entries", "stat", "mode"].contains(&fact)
            });
            assert!(found.is_empty(), "{view} {uid}:{gid} {mode:o}\n{}", found.join("\n"));
            mounted.umount();
        }
    }
}
