//! Runs the tests of the Python module, which uses this library, with the system's Python and its
//! packages.

use std::path::Path;
use std::process::Command;

#[test]
fn the_python_library_conforms() {
    let python = ["/usr/bin/python3", "python3"].into_iter().find(|python| {
        let recent = "import sys, ctypes; sys.exit(sys.version_info < (3, 9))";
        Command::new(python).args(["-c", recent]).status().is_ok_and(|status| status.success())
    });
    let Some(python) = python else {
        eprintln!("SKIPPED: there is no Python 3.9 or newer");
        return;
    };
    // Cargo builds the library beside this test.
    let own = std::env::current_exe().unwrap();
    let beside = own.parent().unwrap();
    assert!(beside.join("libquell.so").exists(), "no libquell.so in {}", beside.display());
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let temp = tempfile::tempdir().unwrap();
    let store = temp.path().join("store");
    quell_batch::BatchStore::create(&store).unwrap();
    let output = Command::new(python)
        .args(["-W", "error", "-m", "unittest", "discover", "--verbose", "tests"])
        .env("LD_LIBRARY_PATH", beside)
        .env("PYTHONPATH", ".")
        .env("QUELL_TEST_BATCH_STORE", &store)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(package)
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
