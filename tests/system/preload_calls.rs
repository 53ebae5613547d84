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
            .sh(
                "cc -std=gnu11 -Wall -Werror -Wno-unused-result -pthread -o \"$1\" \"$2\"",
                &[&program, &source],
            )
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
        self.command_with(serde_json::json!({"log": [{"path": self.view, "stores": [self.store]}]}))
    }

    fn command_with(&self, view: serde_json::Value) -> Command {
        let mut command = self.command(&self.view);
        command.env("LD_PRELOAD", quell().with_file_name("libquell_preload.so"));
        command.env("QUELL_VIEW", view.to_string());
        command
    }

    /// Runs the program on both directories and compares the output.
    #[track_caller]
    fn agrees(&self) -> Ended {
        self.agrees_with(&mut self.virtual_command())
    }

    /// Compares the output of a command with that of the program on the real directory.
    #[track_caller]
    fn agrees_with(&self, command: &mut Command) -> Ended {
        let real = self.stage.run(&mut self.command(&self.real)).expect(0);
        let virtual_run = self.stage.run(command).expect(0);
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
    asynchronous_operations_complete "asynchronous.c";
    descriptors_work_with_other_calls "descriptors.c";
    placeholders_of_closed_files_are_used_again "reopened.c";
    copies_behave_as_on_a_real_directory "copies.c";
    mappings_behave_as_on_a_real_directory "mappings.c";
    streams_behave_as_on_a_real_directory "stdio.c";
    wide_characters_are_read_and_written "wide.c";
    own_descriptors_and_locks_survive_the_program "own.c";
    flags_of_open_files_are_reported "flags.c";
    trees_are_walked_by_fts "fts.c";
    locks_behave_as_on_a_real_directory "locks.c";
    walks_find_the_same_entries "walks.c";
    standard_descriptors_are_replaced "terminals.c";
}

#[test]
fn a_program_that_is_executed_with_a_list_of_arguments_stores_its_output() {
    if !has("cc") || !has("busybox") {
        skip!("no C compiler (cc), or no busybox");
    }
    let fixture = Fixture::new(include_str!("preload/lists.c"));
    let busybox = fixture.stage.sh("command -v busybox", &[]).expect(0).text();
    let source = fixture.stage.file("locker.c", include_str!("preload/locker.c"));
    let locker = fixture.stage.path("locker");
    fixture.stage.sh("cc -static -Wall -Werror -o \"$1\" \"$2\"", &[&locker, &source]).expect(0);
    let run = |mut command: Command| {
        command.env("BUSYBOX", busybox.trim()).env("LOCKER", &locker);
        fixture.stage.run(&mut command).expect(0)
    };
    let (real, found) = (run(fixture.command(&fixture.real)), run(fixture.virtual_command()));
    assert_eq!(found.text(), real.text());
    // The working directory is virtual.
    assert_eq!(found.err.matches("it is statically linked").count(), 4, "{}", found.err);
    assert!(real.text().contains("locked: 0"), "{}", real.text());
    assert!(real.text().contains("one 2 3 4 5 6 7 8 9"), "{}", real.text());
}

#[test]
fn data_that_a_library_writes_at_the_end_of_the_process_is_stored() {
    if !has("cc") {
        skip!("no C compiler (cc)");
    }
    let source = "#include <unistd.h>\nvoid begin(void);\n\
                  int main(int count, char **words) { begin(); return count != 2; }\n";
    let stage = Stage::new();
    let (main, late) = (stage.file("main.c", source), stage.file("late.c", include_str!("preload/late.c")));
    let (library, program) = (stage.path("liblate.so"), stage.path("cases"));
    let script = "cc -shared -fPIC -o \"$1\" \"$2\" && cc -o \"$3\" \"$4\" \"$1\"";
    stage.sh(script, &[&library, &late, &program, &main]).expect(0);
    let (real, view, store) = (stage.dir("real"), stage.dir("view"), stage.dir("store"));
    let fixture = Fixture { stage, program, real, view, store };
    fixture.stage.run(fixture.virtual_command().current_dir(&fixture.view)).expect(0);
    let shown = fixture.virtual_command();
    let mut reader = fixture.stage.command("sh");
    reader.args(["-c", "cd \"$0\" && cat stream descriptor formatted new"]).arg(&fixture.view);
    for (name, value) in shown.get_envs() {
        if let Some(value) = value {
            reader.env(name, value);
        }
    }
    let stored = fixture.stage.run(&mut reader).expect(0).text();
    assert_eq!(stored, "early, lateearly, lateearly, late 1 2.5late");
}

#[test]
fn signals_interrupt_a_process_that_waits_to_append() {
    if !has("cc") {
        skip!("no C compiler (cc)");
    }
    let fixture = Fixture::new(include_str!("preload/interrupts.c"));
    // The program locks a file in the container.
    let log = serde_json::json!({"path": fixture.view, "stores": [fixture.store], "new_files": "container"});
    let mut command = fixture.command_with(serde_json::json!({ "log": [log] }));
    let ended = fixture.stage.run(command.env("STORE", &fixture.store)).expect(0);
    let results: Vec<_> =
        ended.text().lines().filter_map(|line| Some(line.rsplit_once(" = ")?.1.to_owned())).collect();
    // The child ends by SIGALRM.
    assert_eq!(results, ["0", "-1 EINTR", "14", "0", "6", "0", "text again"], "{}", ended.err);
}

/// Lines of `file_systems.c` in which a log directory differs from a file system of the kernel: the
/// beginning of the expression, and the result.
const OTHER_ANSWERS: [(&str, &str); 6] = [
    // A container in the store has a suffix of ten bytes.
    ("space.f_namelen", "245"),
    ("portable.f_namemax", "245"),
    ("pathconf(\"f\", _PC_NAME_MAX)", "245"),
    ("name_to_handle_at(", "-1 EOPNOTSUPP"),
    ("inotify_add_watch(watches, \"f\"", "-1 ENOSPC"),
    ("inotify_add_watch(watches, \"/\"", "1"),
];

#[test]
fn a_log_directory_has_no_extended_attributes_handles_and_watches() {
    if !has("cc") {
        skip!("no C compiler (cc)");
    }
    let fixture = Fixture::new(include_str!("preload/file_systems.c"));
    let real = fixture.stage.run(&mut fixture.command(&fixture.real)).expect(0).text();
    let found = fixture.stage.run(&mut fixture.virtual_command()).expect(0);
    assert_eq!(found.err, "");
    let found = found.text();
    assert!(found.lines().count() > 30 && found.lines().count() == real.lines().count(), "{found}");
    for (real, found) in real.lines().zip(found.lines()) {
        let (_, call) = found.split_once(": ").unwrap();
        let (expression, result) = call.rsplit_once(" = ").unwrap();
        let other = OTHER_ANSWERS.iter().find(|(begin, _)| expression.starts_with(begin));
        if let Some((_, answer)) = other {
            assert_eq!(result, *answer, "{expression}");
        } else if expression.contains("xattr(") && !result.contains("ENOENT") {
            assert_eq!(result, "-1 EOPNOTSUPP", "{expression}");
        } else {
            assert_eq!(found, real);
        }
    }

    // Refused calls are reported once if events are asked for.
    let told = fixture.stage.run(fixture.virtual_command().env("QUELL_LOG", "info")).expect(0);
    assert_eq!(told.err.matches("inotify_add_watch is not supported").count(), 1, "{}", told.err);
}

#[test]
fn refused_calls_fail_and_a_shared_mapping_for_writing_is_reported_once() {
    if !has("cc") {
        skip!("no C compiler (cc)");
    }
    let fixture = Fixture::new(include_str!("preload/refusals.c"));
    let ended = fixture.stage.run(&mut fixture.virtual_command()).expect(0);
    let results: Vec<_> =
        ended.text().lines().filter_map(|line| Some(line.rsplit_once(" = ")?.1.to_owned())).collect();
    let expected = [
        "-1 ENODEV",
        "-1 ENODEV",
        "0",
        "-1 ENOMEM",
        "0",
        "-1 ENOSYS",
        "-1 EOPNOTSUPP",
        // flock(2)
        "0",
        "-1 ENOLCK",
        "-1 ENOLCK",
        "-1 EAGAIN",
        "0",
        // SA_RESTART
        "0",
        "1",
        "0",
        "0",
    ];
    assert_eq!(results, expected, "{}{}", ended.text(), ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    ended.says("quell mount");
}

#[test]
fn an_indexed_tree_answers_like_the_tree_and_cannot_be_changed() {
    if !has("cc") {
        skip!("no C compiler (cc)");
    }
    let fixture = Fixture::new(include_str!("preload/trees.c"));
    let deep = fixture.real.join("d/e");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(fixture.real.join("d/one"), "hello\n").unwrap();
    std::os::unix::fs::symlink("one", fixture.real.join("d/link")).unwrap();
    for name in ["1", "2", "3"] {
        std::fs::write(deep.join(name), name).unwrap();
    }
    let index = fixture.stage.index(&fixture.real);
    let real = fixture.stage.run(&mut fixture.command(&fixture.real)).expect(0).text();
    let view = serde_json::json!({"tree": [{"path": fixture.real, "index": index}]});
    let mut command = fixture.command(&fixture.real);
    command.env("LD_PRELOAD", quell().with_file_name("libquell_preload.so"));
    command.env("QUELL_VIEW", view.to_string());
    let found = fixture.stage.run(&mut command).expect(0);
    assert_eq!(found.err, "");
    let found = found.text();
    let changes = found.strip_prefix(&real).unwrap_or_else(|| panic!("{found}\n-- but really\n{real}"));
    assert_eq!(changes.lines().count(), 4);
    assert!(changes.lines().all(|line| line.ends_with("-1 EROFS")), "{changes}");
}

/// Returns the reason why system calls cannot be dispatched to the library here.
pub fn why_no_dispatch() -> Option<String> {
    let doctor = Command::new(quell()).args(["doctor", "--", "sh"]).output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let reason =
        text.lines().find_map(|line| line.split_once("cannot serve its system calls without libc: "));
    reason.map(|(_, reason)| reason.to_owned())
}

#[test]
fn system_calls_without_libc_are_served_on_request() {
    if !has("cc") {
        skip!("no C compiler (cc)");
    }
    if let Some(reason) = why_no_dispatch() {
        skip!("{reason}");
    }
    let fixture = Fixture::new(include_str!("preload/raw_calls.c"));
    let log = serde_json::json!([{"path": fixture.view, "stores": [fixture.store]}]);
    let view = serde_json::json!({"log": log, "dispatch": true});
    let ended = fixture.agrees_with(&mut fixture.command_with(view));
    assert_eq!(ended.err, "", "the library prints nothing on success");
}
