//! Families of calls through the preload library: each C program in `preload/` is run on a real
//! directory and on a virtual one, and must print the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;
use crate::stage::{Ended, Stage, has, quell};

const CASES: &str = include_str!("preload/cases.h");

/// A compiled program, a store and a virtual directory.
struct Fixture {
    stage: Stage,
    program: PathBuf,
    real: PathBuf,
    view: PathBuf,
    store: PathBuf,
}

impl Fixture {
    fn new(source: &str) -> Fixture {
        let stage = Stage::new();
        stage.file("cases.h", CASES);
        let (source, program) = (stage.file("cases.c", source), stage.path("cases"));
        stage
            .sh("cc -std=gnu11 -Wall -Werror -Wno-unused-result -o \"$1\" \"$2\"", &[&program, &source])
            .expect(0);
        let (real, view, store) = (stage.dir("real"), stage.dir("view"), stage.dir("store"));
        Fixture { stage, program, real, view, store }
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = self.stage.command(&self.program);
        command.arg(dir).env_remove("QUELL_LOG");
        command
    }

    fn virtual_command(&self) -> Command {
        let mut command = self.command(&self.view);
        let view = serde_json::json!({"log": [{"path": self.view, "stores": [self.store]}]});
        command.env("LD_PRELOAD", quell().with_file_name("libquell_preload.so"));
        command.env("QUELL_VIEW", view.to_string());
        command
    }

    /// Runs the program on both directories and compares the output.
    #[track_caller]
    fn agrees(&self) -> Ended {
        let real = self.stage.run(&mut self.command(&self.real)).expect(0);
        let virtual_run = self.stage.run(&mut self.virtual_command()).expect(0);
        let differences: Vec<_> = real
            .text()
            .lines()
            .zip(virtual_run.text().lines())
            .filter(|(real, found)| real != found)
            .map(|(real, found)| format!("real:    {real}\nvirtual: {found}\n"))
            .collect();
        assert!(differences.is_empty(), "{}{}", differences.concat(), virtual_run.err);
        assert_eq!(real.text().lines().count(), virtual_run.text().lines().count());
        assert!(!real.text().is_empty());
        virtual_run
    }
}

macro_rules! families {
    ($($test:ident $file:literal;)*) => {$(
        #[test]
        fn $test() {
            if !has("cc") {
                skip!("no C compiler (cc)");
            }
            let ended = Fixture::new(include_str!(concat!("preload/", $file))).agrees();
            assert_eq!(ended.err, "", "the library prints nothing on success");
        }
    )*};
}

families! {
    copies_behave_as_on_a_real_directory "copies.c";
    mappings_behave_as_on_a_real_directory "mappings.c";
    streams_behave_as_on_a_real_directory "stdio.c";
    locks_behave_as_on_a_real_directory "locks.c";
}
