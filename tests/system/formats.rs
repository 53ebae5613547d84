//! The oldest released files must remain readable. `fixtures/README.md` describes how they were
//! created.

use std::fs;
use std::path::PathBuf;

use crate::stage::{Stage, checkout, difference};

fn fixture(name: &str) -> PathBuf {
    checkout().join("tests/system/fixtures").join(name)
}

/// Returns the summary that `quell show` prints for a fixture, after comparing its entries with the
/// list in the JSON file.
fn shown_as_recorded(version: u32) -> serde_json::Value {
    let stage = Stage::new();
    let file = fixture(&format!("index-v{version}.quell"));
    let expected = fs::read_to_string(fixture(&format!("index-v{version}.json"))).unwrap();
    let shown = stage.run(stage.quell().args(["show", "--json", "-r"]).arg(&file)).expect(0);
    assert_eq!(difference(&expected, &shown.text()), "");
    assert_eq!(expected, shown.text());
    let summary = stage.run(stage.quell().args(["show", "--json"]).arg(&file)).expect(0).json();
    assert_eq!(summary["format_version"], version);
    assert_eq!(summary["root"], "/srv/example");
    assert_eq!(summary["entries"], expected.lines().count());
    summary
}

#[test]
fn version_1_of_the_index_is_read() {
    assert_eq!(shown_as_recorded(1)["options"], serde_json::json!(["exclude *.pyc"]));
}

#[test]
fn version_2_of_the_index_is_read() {
    assert_eq!(shown_as_recorded(2)["options"], serde_json::json!([]));
}
