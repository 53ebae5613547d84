//! Checks that the C header in the repository is the one that cbindgen generates from
//! frontends/capi. With `BLESS=1` in the environment the header is written instead.

use std::fs;
use std::path::Path;

#[test]
fn the_header_agrees_with_the_functions() {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is in the workspace")
        .join("frontends/capi");
    let config = cbindgen::Config::from_file(crate_directory.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    // The order in the header.
    for source in ["errors", "stores", "files", "locking", "shares", "virtual_paths", "directories"] {
        builder = builder.with_src(crate_directory.join("src").join(source).with_extension("rs"));
    }
    let mut generated = Vec::new();
    builder.generate().expect("the sources are Rust").write(&mut generated);
    let generated = String::from_utf8(generated).expect("text");
    let header = crate_directory.join("include/quell.h");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&header, &generated).expect("the header can be written");
    }
    let kept = fs::read_to_string(&header).unwrap_or_default();
    assert!(generated == kept, "{}: run BLESS=1 cargo test -p xtask --test header", header.display());
}
