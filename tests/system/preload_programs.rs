//! Programs under the preload library: each script in `preload/programs/` is run in a real
//! directory and in a virtual one, and must print the same, end in the same way and leave the same
//! tree. The first lines of a script name the programs that it needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;
use crate::stage::{Stage, checkout, has, quell};

/// Prints a tree.
pub const TREE: &str = include_str!("preload/tree.sh");

/// A real directory, and a virtual one with its store.
pub struct Fixture {
    pub stage: Stage,
    pub real: PathBuf,
    pub view: PathBuf,
    store: PathBuf,
    /// The mode of a store for batches; `None` for a store of log mounts.
    batch_mode: Option<&'static str>,
}

impl Fixture {
    pub fn new() -> Fixture {
        let stage = Stage::new();
        let (real, view, store) = (stage.dir("real"), stage.dir("view"), stage.dir("store"));
        Fixture { stage, real, view, store, batch_mode: None }
    }

    /// Returns a virtual directory whose commands are batches. A later command sees what an earlier
    /// one has published.
    pub fn of_batches() -> Fixture {
        Fixture::of_batch_store("batch")
    }

    fn of_batch_store(mode: &'static str) -> Fixture {
        let stage = Stage::new();
        let (real, view, store) = (stage.dir("real"), stage.dir("view"), stage.batch_store());
        Fixture { stage, real, view, store, batch_mode: Some(mode) }
    }

    /// Returns a command that runs a program in the virtual directory.
    fn command(&self, program: &Path) -> Command {
        let Some(mode) = self.batch_mode else {
            let mut command = self.stage.command(program);
            self.preloaded(&mut command);
            return command;
        };
        let mut command = self.stage.quell();
        let batch = format!("{}={}", self.store.display(), self.view.display());
        command.args(["run", "--via", "preload", "--mode", mode, "--batch", &batch, "--"]).arg(program);
        command
    }

    /// Adds the library and the view to the environment of a command.
    pub fn preloaded<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let view = serde_json::json!({"log": [{"path": self.view, "stores": [self.store]}]});
        command.env("LD_PRELOAD", quell().with_file_name("libquell_preload.so"));
        command.env("QUELL_VIEW", view.to_string()).env_remove("QUELL_LOG")
    }

    /// Returns a shell that runs a script with the directory in the variable D. Its working
    /// directory is a new native one.
    fn shell(&self, script: &str, dir: &Path, is_virtual: bool) -> Command {
        let outside = self.stage.dir(if is_virtual { "outside-view" } else { "outside-real" });
        // A batch finds the runtime directory of the stage by these variables, so only the program
        // gets other ones.
        let mut command = match is_virtual {
            true => self.command(Path::new("env")),
            false => self.stage.command("env"),
        };
        command.args([format!("HOME={}", outside.display()), format!("TMPDIR={}", outside.display())]);
        command.args(["bash", "-c", script, "script"]).env("D", dir).env("LC_ALL", "C.UTF-8");
        command.current_dir(&outside);
        command
    }

    /// Runs a script. Returns its output, its exit code and the tree that it leaves, with the same
    /// name for the directory.
    fn results(&self, script: &str, is_virtual: bool) -> Vec<(&'static str, String)> {
        let dir = if is_virtual { &self.view } else { &self.real };
        let ended = self.stage.run(&mut self.shell(script, dir, is_virtual));
        let tree = self.stage.run(&mut self.shell(TREE, dir, is_virtual)).expect(0);
        let plain = |text: &str| {
            let text = text.replace(dir.to_str().unwrap(), "DIR");
            text.replace("outside-view", "outside").replace("outside-real", "outside")
        };
        vec![
            ("exit code", format!("{:?}", ended.code())),
            ("standard output", plain(&ended.text())),
            ("standard error", plain(&ended.err)),
            ("tree", plain(&tree.text())),
            ("standard error of the tree", plain(&tree.err)),
        ]
    }

    /// Compares both runs of a script.
    #[track_caller]
    fn agrees(&self, script: &str) {
        let (real, found) = (self.results(script, false), self.results(script, true));
        let differences: Vec<String> = real
            .iter()
            .zip(&found)
            .flat_map(|((part, real), (_, found))| differences(part, real, found))
            .collect();
        let error = &found[2].1;
        assert!(differences.is_empty(), "{}\n-- standard error\n{error}", differences.join("\n"));
        assert_eq!(real[0].1, "Some(0)", "the script itself fails: {}", real[2].1);
    }
}

/// Returns the lines that differ.
pub fn differences(part: &str, real: &str, found: &str) -> Vec<String> {
    let count = real.lines().count().max(found.lines().count());
    let lines = |text: &str| {
        text.lines().map(str::to_owned).chain(std::iter::repeat(String::new())).take(count).collect()
    };
    let (real, found): (Vec<String>, Vec<String>) = (lines(real), lines(found));
    let pairs = real.into_iter().zip(found).filter(|(real, found)| real != found).take(20);
    pairs.map(|(real, found)| format!("{part}:\n  real:    {real}\n  virtual: {found}")).collect()
}

/// Returns a program that a script needs and that is not installed.
pub fn missing(script: &str) -> Option<&str> {
    let needs = script.lines().find_map(|line| line.strip_prefix("# needs: ")).unwrap_or_default();
    needs.split_whitespace().chain(["bash"]).find(|program| !has(program))
}

macro_rules! programs {
    ($($name:ident)*) => {
        const SCRIPTS: &[&str] = &[$(stringify!($name)),*];

        programs!(tests Fixture::new: $($name)*);

        /// The same scripts in batches.
        mod batches {
            use super::*;

            programs!(tests Fixture::of_batches: $($name)*);
        }
    };
    (tests $fixture:path: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let script = include_str!(concat!("preload/programs/", stringify!($name), ".sh"));
                if let Some(program) = missing(script) {
                    skip!("{program} is not installed");
                }
                $fixture().agrees(script);
            }
        )*
    };
}

programs! {
    appends
    archives
    coreutils
    dash
    databases
    descriptors
    editors
    java
    node
    perl
    python
    shell
    sources
    static_programs
}

#[test]
fn every_script_is_run() {
    let found = std::fs::read_dir(checkout().join("tests/system/preload/programs")).unwrap();
    let mut found: Vec<String> = found
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().trim_end_matches(".sh").to_owned())
        .collect();
    found.sort();
    let mut scripts = SCRIPTS.to_vec();
    scripts.sort_unstable();
    assert_eq!(found, scripts);
}

/// The number of seeds of random calls in one run of the tests.
const SEEDS: usize = 100;

/// Compiles a program, or ends the test.
macro_rules! compiled {
    ($fixture:expr, $source:literal) => {{
        if !has("cc") {
            skip!("no C compiler (cc)");
        }
        let source = $fixture.stage.file($source, include_str!(concat!("preload/", $source)));
        let program = $fixture.stage.path("program");
        let script = "cc -std=gnu11 -O1 -Wall -Werror -pthread -o \"$1\" \"$2\"";
        $fixture.stage.sh(script, &[&program, &source]).expect(0);
        program
    }};
}

#[track_caller]
fn check_random_calls(fixture: &Fixture) {
    let program = compiled!(fixture, "random.c");
    let run = |mut command: Command, dir: &Path| {
        fixture.stage.run(command.arg(dir).arg("0").arg(SEEDS.to_string())).expect(0)
    };
    let real = run(fixture.stage.command(&program), &fixture.real);
    let found = run(fixture.command(&program), &fixture.view);
    let different = differences("random calls", &real.text(), &found.text());
    assert!(different.is_empty(), "{}\n{}", different.join("\n"), found.err);
    assert_eq!(found.err, "");
}

#[test]
fn random_calls_have_the_results_of_a_real_directory() {
    check_random_calls(&Fixture::new());
}

#[test]
fn random_calls_in_a_batch_have_the_results_of_a_real_directory() {
    check_random_calls(&Fixture::of_batches());
}

#[test]
fn random_calls_in_the_synchronous_mode_have_the_results_of_a_real_directory() {
    check_random_calls(&Fixture::of_batch_store("sync"));
}

#[test]
fn files_of_a_program_begin_as_objects_unless_the_view_names_containers() {
    let fixture = Fixture::new();
    let view = |form: Option<&str>| {
        let mut log = serde_json::json!({"path": fixture.view, "stores": [fixture.store]});
        if let Some(form) = form {
            log["new_files"] = form.into();
        }
        serde_json::json!({ "log": [log] }).to_string()
    };
    for (form, is_object) in [(None, true), (Some("object"), true), (Some("container"), false)] {
        let name = form.unwrap_or("default");
        let mut command = fixture.stage.command("sh");
        fixture.preloaded(&mut command).env("QUELL_VIEW", view(form));
        command.args(["-c", "echo text > \"$1\" && cat \"$1\"", "sh"]).arg(fixture.view.join(name));
        assert_eq!(fixture.stage.run(&mut command).expect(0).text(), "text\n", "{name}");
        assert_eq!(fixture.store.join(format!("{name}.container")).is_file(), is_object, "{name}");
    }
}
