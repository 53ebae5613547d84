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
    let (code, said) = skips("none", "== unit and document tests\ntest a ... ok\n", None);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_skip_that_is_not_listed_fails() {
    let (code, said) = skips("unknown", "== system tests\nSKIPPED: the moon is full\n", None);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the moon is full (not on the list)"), "{said}");
}

#[test]
fn a_listed_skip_passes_only_for_the_user_that_it_is_listed_for() {
    let list = "root | only for users | a reason\nuser | only for root | a reason\n";
    let log = "== system tests as the ordinary user x\nSKIPPED: only for root\n";
    assert_eq!(skips("user", log, Some(list)).0, Some(0));
    let log = "== system tests as the ordinary user x\nSKIPPED: only for users\n";
    let (code, said) = skips("root", log, Some(list));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("as an ordinary user: only for users (expected only with: root)"), "{said}");
}

#[test]
fn a_skip_is_accepted_by_facts_that_hold_together() {
    let log = "== system tests as the ordinary user x\nSKIPPED: it\n";
    assert_eq!(skips("both", log, Some("user,root | it | never\n")).0, Some(1));
    assert_eq!(skips("either", log, Some("user,root | it | never\nuser | i* | always\n")).0, Some(0));
}

#[test]
fn an_expected_skip_that_did_not_occur_is_mentioned_and_passes() {
    let (code, said) = skips("absent", "== system tests\n", Some("user | something | a reason\n"));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("expected here, but not skipped: something (user: a reason)"), "{said}");
}

#[test]
fn a_list_with_a_fault_is_refused() {
    for list in ["moonlight | x | y\n", "root | x\n"] {
        let (code, said) = skips("fault", "", Some(list));
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("line 1"), "{said}");
    }
}
