//! Tests `scripts/skips`: it accepts the skips that tests/expected-skips lists for the user and the
//! machine, and no others.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_path_buf()
}

/// Returns the exit code and the output of `scripts/skips` for a log, with another list if one is
/// given.
fn skips(name: &str, log: &str, list: Option<&str>) -> (Option<i32>, String) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("log");
    std::fs::write(&path, log).unwrap();
    let mut command = Command::new(root().join("scripts/skips"));
    if let Some(list) = list {
        let path = directory.join("list");
        std::fs::write(&path, list).unwrap();
        command.arg("--list").arg(path);
    }
    let Output { status, stdout, stderr } = command.arg(path).output().expect("python3 is installed");
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

#[test]
fn the_list_is_well_formed_and_a_run_without_skips_passes() {
    let (code, output) = skips("none", "== unit and document tests\ntest a ... ok\n", None);
    assert_eq!(code, Some(0), "{output}");
}

#[test]
fn a_skip_that_is_not_listed_fails() {
    let (code, output) = skips("unknown", "== system tests\nSKIPPED: no such file system\n", None);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("no such file system (not on the list)"), "{output}");
}

#[test]
fn a_listed_skip_passes_only_for_the_user_that_it_is_listed_for() {
    let list = "root | only for users | a reason\nuser | only for root | a reason\n";
    let log = "== system tests as the ordinary user x\nSKIPPED: only for root\n";
    assert_eq!(skips("user", log, Some(list)).0, Some(0));
    let log = "== system tests as the ordinary user x\nSKIPPED: only for users\n";
    let (code, output) = skips("root", log, Some(list));
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("as an ordinary user: only for users (expected only with: root)"), "{output}");
}

#[test]
fn a_skip_is_accepted_by_facts_that_hold_together() {
    let log = "== system tests as the ordinary user x\nSKIPPED: a test\n";
    assert_eq!(skips("both", log, Some("user,root | a test | never\n")).0, Some(1));
    assert_eq!(skips("either", log, Some("user,root | a test | never\nuser | a * | always\n")).0, Some(0));
}

#[test]
fn an_expected_skip_that_did_not_occur_is_mentioned_and_passes() {
    let (code, output) = skips("absent", "== system tests\n", Some("user | something | a reason\n"));
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("expected here, but not skipped: something (user: a reason)"), "{output}");
}

#[test]
fn a_list_with_a_fault_is_refused() {
    for list in ["unknown | x | y\n", "root | x\n"] {
        let (code, output) = skips("fault", "", Some(list));
        assert_eq!(code, Some(2), "{output}");
        assert!(output.contains("line 1"), "{output}");
    }
}
