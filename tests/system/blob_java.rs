//! The Java package of blobs: programs that use a store in a directory, and through a server.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::blob_languages::{GUIDE, example, libraries};
use crate::stage::{Ended, Stage, checkout, has, words};

/// Options of the virtual machine: it examines all calls between Java and the native library,
/// accepts this library without a warning since Java 24, needs little memory, and leaves no file in
/// /tmp.
const OPTIONS: [&str; 5] =
    ["-Xcheck:jni", "--enable-native-access=ALL-UNNAMED", "-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData"];

/// The compiled package and a program that tests it.
struct Java {
    libraries: PathBuf,
    classes: std::ffi::OsString,
}

impl Java {
    /// Compiles the package and the program. Returns `None` if they cannot be compiled here.
    fn compiled(stage: &Stage) -> Option<Java> {
        let libraries = libraries("javac")?;
        if !has("cc") {
            println!("SKIPPED: no cc");
            return None;
        }
        let jar = build(stage, &libraries);
        let source = stage.file("BlobCases.java", include_str!("BlobCases.java"));
        let mut javac = stage.command("javac");
        javac.args(["-J-XX:-UsePerfData", "-J-XX:+UseSerialGC", "-Xlint:all", "-Werror", "-d", "."]);
        stage.run(javac.arg("-cp").arg(&jar).arg(source)).expect(0);
        let classes = std::env::join_paths([jar, stage.path(".")]).unwrap();
        Some(Java { libraries, classes })
    }

    fn command(&self, stage: &Stage) -> Command {
        let mut java = stage.with_library(&self.libraries, "java");
        java.args(OPTIONS).arg("-cp").arg(&self.classes);
        java
    }

    /// Runs cases with a location.
    fn run(&self, stage: &Stage, cases: &str, location: impl AsRef<std::ffi::OsStr>) {
        let mut java = self.command(stage);
        check(stage.run(java.args(["BlobCases", cases]).arg(location)));
    }
}

/// Compiles the package, and returns the path of its archive.
fn build(stage: &Stage, libraries: &Path) -> PathBuf {
    let mut build = stage.command(checkout().join("frontends/java/build"));
    stage.run(build.arg(libraries).arg(stage.path("java"))).expect(0);
    stage.path("java/quell-blob.jar")
}

/// Checks that a program has succeeded and that the virtual machine has found no fault.
#[track_caller]
fn check(ended: Ended) -> String {
    let ended = ended.expect(0);
    let text = ended.text();
    for output in [&text, &ended.err] {
        assert!(!output.contains("WARNING") && !output.contains("FATAL"), "{output}");
    }
    text
}

#[test]
fn the_java_package_keeps_its_promises_in_a_directory() {
    let stage = Stage::new();
    let Some(java) = Java::compiled(&stage) else { return };
    java.run(&stage, "cases", format!("dir:{}", stage.path("store").display()));
    stage.run(stage.quell().args(words(&[&"blob", &"fsck", &stage.path("store")]))).expect(0);
}

#[test]
fn the_java_package_keeps_its_promises_through_a_server() {
    let stage = Stage::new();
    let Some(java) = Java::compiled(&stage) else { return };
    let store = stage.path("store");
    let (server, line) = stage.serve(&store, &["--listen", "127.0.0.1:0"]);
    let address = line["address"].as_str().unwrap();
    let location = format!("quell://{address}?key={}", store.join("key").display());
    java.run(&stage, "cases", &location);
    java.run(&stage, "exit", location);
    server.signal(Signal::TERM);
    server.wait().expect(0);
    stage.run(stage.quell().args(words(&[&"blob", &"fsck", &store]))).expect(0);
}

#[test]
fn objects_that_a_java_program_forgets_are_closed() {
    let stage = Stage::new();
    let Some(java) = Java::compiled(&stage) else { return };
    java.run(&stage, "forget", stage.path("store"));
}

#[test]
fn a_java_program_exits_with_operations_in_flight() {
    let stage = Stage::new();
    let Some(java) = Java::compiled(&stage) else { return };
    for _ in 0..4 {
        java.run(&stage, "exit", stage.path("store"));
    }
    stage.run(stage.quell().args(words(&[&"blob", &"fsck", &stage.path("store")]))).expect(0);
}

#[test]
fn the_java_example_of_the_guide_works() {
    let stage = Stage::new();
    let Some(java) = Java::compiled(&stage) else { return };
    let source = stage.file("Events.java", example(GUIDE, "java"));
    for sum in ["21\n", "42\n"] {
        let mut command = java.command(&stage);
        assert_eq!(check(stage.run(command.arg(&source).arg(stage.path("results")))), sum);
    }
}

#[test]
fn the_build_of_the_java_package_names_what_is_missing() {
    let stage = Stage::new();
    let mut build = stage.command(checkout().join("frontends/java/build"));
    build.arg(stage.path("libraries")).arg(stage.path("java")).env("JAVA_HOME", stage.path("nothing"));
    stage.run(&mut build).expect(3).says("default-jdk-headless");
}
