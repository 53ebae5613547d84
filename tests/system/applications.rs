//! Applications that need settings in a view, as docs/guides/clusters.md describes them.

use std::fs;

use crate::skip;
use crate::stage::{Stage, has};
use crate::trees::set_mtime;

#[test]
fn git_status_reads_no_unchanged_file() {
    if !has("git") {
        skip!("git is not installed");
    }
    let stage = Stage::new();
    let tree = stage.dir("repository");
    for number in 0..20 {
        let file = tree.join(number.to_string());
        fs::write(&file, "as committed\n").unwrap();
        // Git reads files that are as new as its own index again.
        set_mtime(&file, 1_000_000_000, 0);
    }
    let git = "git -c user.name=a -c user.email=a@b -C \"$1\"";
    let commit = format!("{git} init -q && {git} add . && {git} commit -q -m one && {git} status --short");
    assert_eq!(stage.sh(&commit, &[&tree]).expect(0).text(), "");
    let index = stage.index(&tree);
    // Other bytes with the same size and time: git prints the file if it reads it.
    for number in 0..20 {
        let file = tree.join(number.to_string());
        fs::write(&file, "as it is now\n").unwrap();
        set_mtime(&file, 1_000_000_000, 0);
    }
    for view in ["overlay", "overlay-fuse", "fuse"] {
        let modified = |settings: &str| {
            let script = format!("git --no-optional-locks {settings} -C \"$1\" status --short");
            let mut run = stage.quell();
            run.args(["run", "-q", "--strict", "--check", "none", "--recheck", "0", "--view", view]);
            run.args(["--on-change", "ignore", "-i"]).arg(&index).args(["--", "sh", "-c", &script, "sh"]);
            stage.run(run.arg(&tree)).expect(0).text().lines().count()
        };
        assert_eq!(modified("-c core.checkStat=minimal -c core.trustctime=false"), 0, "{view}");
        // git compares inode numbers and status change times, which a tmpfs does not keep.
        let read_by_default = if view == "overlay" { 20 } else { 0 };
        assert_eq!(modified(""), read_by_default, "{view}");
    }
    stage.expect_nothing_left();
}

#[test]
fn a_database_with_a_write_ahead_log_needs_a_writable_layer() {
    if !has("sqlite3") {
        skip!("sqlite3 is not installed");
    }
    let stage = Stage::new();
    let tree = stage.dir("data");
    let create = "sqlite3 \"$1/db\" 'pragma journal_mode=wal; create table t(a); insert into t values(7);'";
    stage.sh(create, &[&tree]).expect(0);
    let index = stage.index(&tree);
    let select = |options: &[&str], name: &str| {
        let mut run = stage.quell();
        run.args(["run", "-q", "--strict"]).args(options).arg("-i").arg(&index);
        run.args(["--", "sqlite3", &name.replace("DIR", tree.to_str().unwrap()), "select a from t"]);
        stage.run(&mut run)
    };
    let refused = select(&[], "DIR/db");
    assert_ne!(refused.code(), Some(0));
    assert!(refused.err.contains("unable to open database file"), "{}", refused.err);
    assert_eq!(select(&["--scratch"], "DIR/db").expect(0).text(), "7\n");
    assert_eq!(select(&[], "file:DIR/db?immutable=1").expect(0).text(), "7\n");
    stage.expect_nothing_left();
}
