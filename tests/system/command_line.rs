//! The help texts of all commands, and the manual pages and completions that are generated from
//! them.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::log_fixture;
use crate::stage::{Launch, Mounted, Stage, has, is_root, launches, quell, send, views};
use crate::trees;

const COMMANDS: [&str; 15] = [
    "index", "run", "record", "boot", "mount", "umount", "log", "pool", "mpi", "verify", "show", "stats",
    "probe", "doctor", "profile",
];

#[test]
fn every_command_has_help_with_an_example() {
    let stage = Stage::new();
    let all = stage.run(stage.quell().arg("--help")).expect(0).text();
    assert!(all.contains("Example:"), "{all}");
    for command in COMMANDS {
        assert!(all.contains(&format!("  {command} ")), "{command} in {all}");
        let help = stage.run(stage.quell().args([command, "--help"])).expect(0).text();
        assert!(help.contains("Example:") && help.contains(&format!("quell {command}")), "{help}");
        assert!(help.contains("--quiet"), "{help}");
        let prints_facts =
            ["index", "record", "verify", "show", "stats", "profile", "probe", "doctor"].contains(&command);
        assert_eq!(help.contains("--json"), prints_facts, "{help}");
    }
    stage.run(stage.quell().arg("--version")).expect(0);
}

#[test]
fn wrong_usage_is_2() {
    let stage = Stage::new();
    for words in [&[][..], &["nonsense"], &["run"], &["run", "-i", "x"], &["mount", "x"], &["show"]] {
        stage.run(stage.quell().args(words)).expect(2);
    }
    let both = ["run", "--scratch", "--writable", "x", "-i", "y", "--", "true"];
    stage.run(stage.quell().args(both)).expect(2).says("--writable");
}

#[test]
fn man_pages_and_completions_are_generated() {
    let stage = Stage::new();
    let (man, completions) = (stage.path("man"), stage.path("completions"));
    stage.run(stage.quell().args(["generate", "man"]).arg(&man)).expect(0);
    stage.run(stage.quell().args(["generate", "completions"]).arg(&completions)).expect(0);
    for command in COMMANDS {
        let page = fs::read_to_string(man.join(format!("quell-{command}.1"))).unwrap();
        assert!(page.contains(".TH"), "{command}");
        for section in ["EXAMPLES", "\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "\"SEE ALSO\""] {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{command}: {section}");
        }
        // Examples are not filled, so that each stays a command in one line.
        let examples = page.split(".SH EXAMPLES\n.nf\n").nth(1).and_then(|rest| rest.split(".fi\n").next());
        assert!(examples.is_some_and(|text| text.lines().any(|line| line.starts_with("quell "))), "{page}");
    }
    let pages: Vec<String> = names_in(&man);
    assert!(
        pages.contains(&"quell.1".to_owned()) && pages.contains(&"quell-log-ls.1".to_owned()),
        "{pages:?}"
    );
    let bash = fs::read_to_string(completions.join("quell.bash")).unwrap();
    assert!(bash.contains("--on-change"));
    assert_eq!(names_in(&completions).len(), 3);
    // Internal commands and options are in neither.
    for internal in ["holder", "calibrate", "generate", "--recording"] {
        for completion in names_in(&completions) {
            let text = fs::read_to_string(completions.join(&completion)).unwrap();
            let is_offered =
                text.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| word == internal);
            assert!(!is_offered, "{completion} offers {internal}");
        }
        assert!(!pages.contains(&format!("quell-{internal}.1")));
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_usage_error_repeats_arguments_as_one_printable_line() {
    let stage = Stage::new();
    let ended = stage.run(stage.quell().arg("non\nsense\x1b[2J")).expect(2);
    assert!(ended.err.contains("non\\nsense") && !ended.err.contains('\x1b'), "{:?}", ended.err);
}

#[test]
fn a_directory_is_accepted_for_the_index_beside_it() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let missing = stage.run(stage.quell().arg("verify").arg(&tree)).expect(2);
    assert!(missing.err.contains("quell index"), "{}", missing.err);
    stage.run(stage.quell().args(["index", "-q"]).arg(&tree)).expect(0);
    for command in [&["verify"][..], &["show"], &["index", "--update"]] {
        stage.run(stage.quell().args(command).arg(&tree)).expect(0);
    }
    for view in views() {
        stage.run(stage.quell_run(&tree, view).args(["--strict", "--", "true"])).expect(0);
    }
    for launch in launches() {
        let Launch::Mount(view) = launch else { continue };
        let mounted = stage.mount(&tree, view, &[]);
        assert_eq!(fs::read_to_string(mounted.point.join("readme")).unwrap(), "hello\n");
        mounted.umount();
    }
    let no_index = stage.file("notes", "text");
    for command in ["verify", "show"] {
        stage.run(stage.quell().arg(command).arg(&no_index)).expect(2).says("not an index file");
    }
    let ended = stage.run(stage.quell().arg("verify").arg(stage.path("absent"))).expect(2);
    assert!(ended.err.trim_end().ends_with("No such file or directory"), "{}", ended.err);
}

#[test]
fn times_are_printed_in_local_time_with_its_offset() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400);
    fs::File::open(tree.join("readme")).unwrap().set_modified(time).unwrap();
    let index = stage.index(&tree);
    let mut show = stage.quell();
    let text = stage.run(show.env("TZ", "XYZ-2:30").arg("show").arg(&index).arg("readme")).expect(0).text();
    assert!(text.contains(" 1970-01-02 02:30:00 +0230 "), "{text}");
}

#[test]
fn an_unmount_of_a_mount_in_use_names_the_option_that_succeeds() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    for launch in launches() {
        let Launch::Mount(view) = launch else { continue };
        let mounted = stage.mount(&index, view, &[]);
        let open = fs::File::open(mounted.point.join("readme")).unwrap();
        stage.run(stage.quell().arg("umount").arg(&mounted.point)).expect(3).says("--force");
        drop(open);
        mounted.umount();
    }
    stage.expect_nothing_left();
}

#[test]
fn doctor_explains_files_and_directories_that_cannot_be_read() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    let tree_line = format!("{} lies on", tree.display());
    for path in [&tree, &index, &tree.join("readme")] {
        let ended = stage.run(stage.quell().arg("doctor").arg(path));
        // The text is broken into lines at blanks.
        let text = ended.text().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&tree_line), "{}: {text}", path.display());
    }
    if !is_root() {
        let closed = stage.dir("closed/inner");
        trees::set_mode(closed.parent().unwrap(), 0);
        let text = stage.run(stage.quell().arg("doctor").arg(&closed)).text();
        trees::set_mode(closed.parent().unwrap(), 0o700);
        assert!(text.contains("Permission denied"), "{text}");
    }
}

#[test]
fn doctor_works_in_a_user_namespace_and_fits_a_terminal() {
    let stage = Stage::new();
    if !stage.sh("unshare -r true", &[]).status.success() {
        println!("SKIPPED: no user namespaces");
        return;
    }
    let ended = stage.run(stage.command("unshare").arg("-r").arg(quell()).arg("doctor"));
    assert!([Some(0), Some(3)].contains(&ended.code()), "{ended:?}");
    let text = ended.text();
    assert!(text.contains("\nview: "), "{text}");
    for line in text.lines() {
        // A path is not broken.
        assert!(line.chars().count() <= 80 || line.contains('/'), "{line}");
    }
}

#[test]
fn doctor_names_the_view_that_is_then_taken() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    let printed = stage.run(stage.quell().args(["doctor", "--json"]).arg(&tree)).expect(0).json();
    let view = printed["view"].as_str().unwrap();
    assert!(views().contains(&view), "{printed}");
    let mut command = stage.quell_run(&index, "auto");
    stage.run(command.args(["--strict", "-v", "--", "true"])).expect(0).says(&format!("covered by {view} "));
    let text = stage.run(stage.quell().arg("doctor").arg(&tree)).expect(0).text();
    // The text is broken into lines at blanks.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("view: {view}: ")) && text.contains("lies on"), "{text}");
    assert!(text.contains("groups and owners"), "{text}");
    let advice = "quell mount --view fuse INDEX DIRECTORY";
    assert_eq!(text.contains("65534") && text.contains(advice), !is_root(), "{text}");
    // `quell doctor` leaves no mounts.
    assert!(stage.mounts().is_empty());
    stage.run(stage.quell().args(["doctor", "/no/such/directory"])).expect(2);
}

#[test]
fn success_prints_nothing_unless_verbose() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    for view in views() {
        let ended = stage.run(stage.quell_run(&index, view).args(["--", "cat"]).arg(tree.join("readme")));
        let ended = ended.expect(0);
        assert_eq!((ended.text().as_str(), ended.err.as_str()), ("hello\n", ""), "{view}");
        let ended = stage.run(stage.quell_run(&index, view).args(["--verbose", "--", "true"])).expect(0);
        let lines: Vec<&str> = ended.err.lines().collect();
        assert!(
            matches!(lines[..], [line] if line.contains(&format!("covered by {view} "))),
            "{view}: {lines:?}"
        );
    }
    let point = stage.dir("point");
    for launch in launches() {
        let Launch::Mount(view) = launch else { continue };
        let ended =
            stage.run(stage.quell().args(["mount", "--view", view]).arg(&index).arg(&point)).expect(0);
        assert_eq!((ended.text().as_str(), ended.err.as_str()), ("", ""), "{view}");
        let ended = stage.run(stage.quell().arg("umount").arg(&point)).expect(0);
        assert_eq!((ended.text().as_str(), ended.err.as_str()), ("", ""), "{view}");
    }
    stage.expect_nothing_left();
}

#[test]
fn quiet_prints_only_errors() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        let ended = stage.run(command.args(["-q", "--", "true"])).expect(0);
        assert_eq!((ended.text(), ended.err), (String::new(), String::new()), "{view}");
    }
    let ended = stage.run(stage.quell().args(["verify", "-q"]).arg(&index)).expect(0);
    assert_eq!((ended.text(), ended.err), (String::new(), String::new()));
}

/// A process that is stopped until the value is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Stopped {
        send(pid, Signal::STOP);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        send(self.0, Signal::CONT);
    }
}

#[test]
fn a_terminal_shows_a_bar_and_a_log_does_not() {
    if !has("script") {
        println!("SKIPPED: script(1) is not installed");
        return;
    }
    let fixture = log_fixture!();
    let stage = &fixture.stage;
    let (tree, index) = (stage.dir("tree"), stage.path("index"));
    fs::write(tree.join("file"), "").unwrap();
    let slow = stage.dir("tree/slow");
    stage.run(&mut fixture.command(&[&fixture.store], &["--quiet"], &slow)).expect(0);
    let mounted = Mounted::at(stage, slow);
    let line =
        format!("'{}' index --cross-mounts '{}' -o '{}'", quell().display(), tree.display(), index.display());
    // The directory of the log mount is read only after the bar was shown, so the speed of this
    // machine does not matter.
    let stopped = Stopped::new(stage.holder());
    let mut command = stage.command("script");
    // Without TERM there is no bar.
    command.env("TERM", "xterm");
    let mut running = stage.start(command.args(["-q", "-e", "-c", &line, "/dev/null"]));
    running.wait_for_output("indexing");
    drop(stopped);
    let shown = running.wait().expect(0).text();
    assert!(shown.contains('\x1b') && shown.contains("entries") && shown.contains("/s"), "{shown:?}");
    let logged = stage.sh(&line, &[]).expect(0);
    assert!(!logged.text().contains('\x1b') && !logged.err.contains('\x1b'));
    assert!(logged.text().contains("3 entries"), "{}", logged.text());
    mounted.umount();
}
