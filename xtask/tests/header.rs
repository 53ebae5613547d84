//! Checks that the C headers in the repository are equal to the headers that cbindgen generates
//! from their crates. With `BLESS=1` in the environment the headers are written instead.

use std::fs;
use std::path::Path;

#[test]
fn the_header_agrees_with_the_functions() {
    // The order in the header.
    let sources =
        ["errors", "stores", "batches", "files", "locking", "shares", "virtual_paths", "directories"];
    check("frontends/capi", "quell.h", &sources);
}

#[test]
fn the_header_of_blobs_agrees_with_the_functions() {
    let sources = ["errors", "transforms", "stores", "snapshots", "transactions", "results", "submissions"];
    check("frontends/blob-capi", "quell_blob.h", &sources);
}

fn check(directory: &str, header: &str, sources: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace");
    let crate_directory = root.join(directory);
    let config = cbindgen::Config::from_file(crate_directory.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(crate_directory.join("src").join(source).with_extension("rs"));
    }
    let mut generated = Vec::new();
    builder.generate().expect("the sources are Rust").write(&mut generated);
    let generated = String::from_utf8(generated).expect("text");
    let header = crate_directory.join("include").join(header);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&header, &generated).expect("the header can be written");
    }
    let kept = fs::read_to_string(&header).unwrap_or_default();
    assert!(generated == kept, "{}: run BLESS=1 cargo test -p xtask --test header", header.display());
}
