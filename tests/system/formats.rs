//! The oldest released files are read for ever. `fixtures/README.md` says how they were made.

use std::fs;
use std::path::PathBuf;

use crate::stage::{Stage, checkout, difference};

fn fixture(name: &str) -> PathBuf {
    checkout().join("tests/system/fixtures").join(name)
}

#[test]
fn version_1_of_the_index_is_read() {
    let stage = Stage::new();
    let expected = fs::read_to_string(fixture("index-v1.json")).unwrap();
    let shown =
        stage.run(stage.quell().args(["show", "--json", "-r"]).arg(fixture("index-v1.quell"))).expect(0);
    assert_eq!(difference(&expected, &shown.text()), "");
    assert_eq!(expected, shown.text());
    let summary =
        stage.run(stage.quell().args(["show", "--json"]).arg(fixture("index-v1.quell"))).expect(0).json();
    assert_eq!(summary["format_version"], 1);
    assert_eq!(summary["root"], "/srv/example");
    assert_eq!(summary["entries"], expected.lines().count());
    assert_eq!(summary["options"], serde_json::json!(["exclude *.pyc"]));
}
