//! The program runs as without Quell: exit code, signals, terminal, directory, arguments and
//! children are unchanged. However the program or its holder ends, nothing remains.

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Stage, eventually, has, send, views};
use crate::trees;

/// A small tree, its index, and commands to run in a view.
struct Fixture {
    stage: Stage,
    tree: std::path::PathBuf,
    index: std::path::PathBuf,
}

impl Fixture {
    fn new() -> Fixture {
        let stage = Stage::new();
        let tree = trees::small(&stage, "tree");
        let index = stage.index(&tree);
        Fixture { stage, tree, index }
    }

    fn run(&self, view: &str) -> std::process::Command {
        let mut command = self.stage.quell_run(&self.index, view);
        command.args(["--strict", "--quiet", "--"]);
        command
    }

    fn sh(&self, view: &str, script: &str) -> std::process::Command {
        let mut command = self.run(view);
        command.args(["sh", "-c", script, "sh"]).arg(&self.tree);
        command
    }
}

#[test]
fn the_exit_code_is_the_programs() {
    let fixture = Fixture::new();
    for view in views() {
        for code in [0, 1, 2, 3, 77, 255] {
            fixture.stage.run(&mut fixture.sh(view, &format!("exit {code}"))).expect(code);
        }
    }
}

#[test]
fn a_program_that_is_not_there_is_127_and_one_that_cannot_start_126() {
    let fixture = Fixture::new();
    for view in views() {
        fixture.stage.run(fixture.run(view).arg("/not/there")).expect(127).says("/not/there");
        fixture.stage.run(fixture.run(view).arg("no-such-program-anywhere")).expect(127);
        fixture.stage.run(fixture.run(view).arg(fixture.tree.join("readme"))).expect(126).says("readme");
        fixture.stage.run(fixture.run(view).arg(fixture.tree.join("lib"))).expect(126);
    }
}

#[test]
fn death_by_a_signal_is_seen_as_such() {
    let fixture = Fixture::new();
    for view in views() {
        for signal in [Signal::KILL, Signal::TERM, Signal::SEGV] {
            let script = format!("kill -{} $$", signal.as_raw());
            let ended = fixture.stage.run(&mut fixture.sh(view, &script));
            assert_eq!(ended.status.signal(), Some(signal.as_raw()), "{view}");
        }
    }
}

#[test]
fn signals_to_the_process_reach_the_program() {
    let fixture = Fixture::new();
    for view in views() {
        for (signal, name) in [(Signal::INT, "INT"), (Signal::TERM, "TERM"), (Signal::USR1, "USR1")] {
            let script =
                format!("trap 'echo caught; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
            let mut running = fixture.stage.start(&mut fixture.sh(view, &script));
            running.wait_for_output("ready");
            running.signal(signal);
            assert_eq!(running.wait().expect(9).text(), "ready\ncaught\n", "{view}");
        }
    }
}

#[test]
fn the_terminal_is_the_programs() {
    if !has("script") {
        skip!("script(1) is not installed");
    }
    let fixture = Fixture::new();
    for view in views() {
        let quell = crate::stage::quell();
        let line = format!(
            "'{}' run --view {view} --strict --quiet -i '{}' -- sh -c 'test -t 0 && test -t 1 && tty && \
             echo controlling > /dev/tty && ps -o tpgid= -o pgid= -p $$ | awk \"{{print (\\$1 == \\$2)}}\"'",
            quell.display(),
            fixture.index.display()
        );
        let mut command = fixture.stage.command("script");
        command.args(["-q", "-e", "-c", &line, "/dev/null"]);
        let text = fixture.stage.run(&mut command).expect(0).text().replace('\r', "");
        assert!(text.starts_with("/dev/pts/"), "{view}: {text}");
        assert!(text.ends_with("controlling\n1\n"), "{view}: {text}");
    }
}

#[test]
fn input_and_output_pass_through() {
    let fixture = Fixture::new();
    for view in views() {
        let mut command = fixture.sh(view, "cat; echo to stderr >&2");
        let mut running = fixture.stage.start(command.stdin(Stdio::piped()));
        running.stdin().write_all(b"through\0and through").unwrap();
        let ended = running.wait().expect(0);
        assert_eq!((ended.out.as_slice(), ended.err.as_str()), (&b"through\0and through"[..], "to stderr\n"));
    }
}

#[test]
fn the_working_directory_is_kept_and_shows_the_view() {
    let fixture = Fixture::new();
    symlink(fixture.tree.join("lib"), fixture.stage.path("alias")).unwrap();
    let elsewhere = fixture.stage.dir("else where");
    for view in views() {
        let script = "pwd -P; touch new-file 2>/dev/null && rm new-file && echo writable; ls";
        for (directory, expected) in [
            (fixture.tree.clone(), "bin\nlib\nlink\nreadme\n".to_owned()),
            (fixture.tree.join("lib/deep"), "leaf\n".into()),
            (fixture.stage.path("alias"), "data\ndeep\n".into()),
            (elsewhere.clone(), "writable\n".into()),
        ] {
            let ended = fixture.stage.run(fixture.sh(view, script).current_dir(&directory)).expect(0);
            let real = directory.canonicalize().unwrap();
            assert_eq!(ended.text(), format!("{}\n{expected}", real.display()), "{view}");
        }
    }
}

#[test]
fn the_environment_and_the_arguments_are_the_same() {
    let fixture = Fixture::new();
    let odd: [&[u8]; 6] = [b"\xff\xfe", b"", b"new\nline", b"--view", b"-i", b"a b'\"\\"];
    for view in views() {
        let direct = fixture.stage.run(fixture.stage.command("env").env("ODD", "a=b\nc")).text();
        let covered = fixture.stage.run(fixture.run(view).arg("env").env("ODD", "a=b\nc")).expect(0).text();
        assert_eq!(direct, covered, "{view}");
        let mut command = fixture.run(view);
        command.args(["printf", "<%s>"]).args(odd.map(std::ffi::OsStr::from_bytes));
        let expected: Vec<u8> = odd.iter().flat_map(|word| [b"<", *word, b">"].concat()).collect();
        assert_eq!(fixture.stage.run(&mut command).expect(0).out, expected, "{view}");
    }
}

#[test]
fn limits_mask_and_open_files_are_the_same() {
    let fixture = Fixture::new();
    let script = "ulimit -a; umask; ls /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status";
    let direct = fixture.stage.run(fixture.stage.command("sh").args(["-c", script])).text();
    for view in views() {
        let covered = fixture.stage.run(&mut fixture.sh(view, script)).expect(0).text();
        assert_eq!(without_reserved_signals(&direct), without_reserved_signals(&covered), "{view}");
    }
}

/// Returns lines of /proc/PID/status without signals 32 and 33 in the set of ignored signals. The C
/// library handles them when a process creates a thread, so they are not ignored after exec(2).
fn without_reserved_signals(status: &str) -> Vec<String> {
    let line = |line: &str| match line.strip_prefix("SigIgn:\t") {
        Some(set) => format!("SigIgn: {:x}", u64::from_str_radix(set, 16).unwrap() & !(0b11 << 31)),
        None => line.to_owned(),
    };
    status.lines().map(line).collect()
}

#[test]
fn ignored_signals_stay_ignored() {
    let fixture = Fixture::new();
    // Except SIGPIPE, which Rust's runtime changes at start and at exec (docs/semantics.md).
    let script = "trap '' HUP INT QUIT; exec \"$@\"";
    let words = ["grep", "-E", "Sig(Blk|Ign|Cgt)", "/proc/self/status"];
    let ignoring = || {
        let mut command = fixture.stage.command("sh");
        command.args(["-c", script, "sh"]);
        command
    };
    let direct = fixture.stage.run(ignoring().args(words)).expect(0).text();
    for view in views() {
        let mut command = ignoring();
        command.arg(crate::stage::quell()).args(["run", "--strict", "--quiet", "--view", view, "-i"]);
        let covered = fixture.stage.run(command.arg(&fixture.index).arg("--").args(words)).expect(0).text();
        assert_eq!(without_reserved_signals(&direct), without_reserved_signals(&covered), "{view}");
    }
}

#[test]
fn the_program_finds_no_child_that_it_did_not_start() {
    let fixture = Fixture::new();
    for view in views() {
        // A shell builtin, because another program would be a child process.
        let script = "read children </proc/$$/task/$$/children; echo \"<$children>\"";
        assert_eq!(fixture.stage.run(&mut fixture.sh(view, script)).expect(0).text(), "<>\n", "{view}");
    }
}

#[test]
fn the_process_is_the_one_that_was_started() {
    let fixture = Fixture::new();
    for view in views() {
        let running = fixture.stage.start(&mut fixture.sh(view, "echo $$"));
        let pid = running.pid();
        assert_eq!(running.wait().expect(0).text(), format!("{pid}\n"), "{view}");
    }
}

#[test]
fn children_that_outlive_the_program_still_see_the_view() {
    let fixture = Fixture::new();
    for view in views() {
        let done = fixture.stage.path(format!("done-{view}"));
        let go = fixture.stage.path(format!("go-{view}"));
        let script = "setsid sh -c 'while ! test -e \"$2\"; do sleep 0.05; done; \
                      touch \"$1/new\" 2>\"$3\"; cat \"$1/lib/deep/leaf\" >>\"$3\"; mv \"$3\" \"$3.whole\"' \
                      sh \"$1\" \"$2\" \"$3\" </dev/null >/dev/null 2>&1 & exit 5";
        let mut command = fixture.sh(view, script);
        command.arg(&go).arg(&done);
        fixture.stage.run(&mut command).expect(5);
        assert_eq!(fixture.stage.holders().len(), 1, "{view}");
        fs::write(&go, "").unwrap();
        let whole = fixture.stage.path(format!("done-{view}.whole"));
        assert!(eventually(|| whole.exists()), "{view}");
        let text = fs::read_to_string(&whole).unwrap();
        assert!(text.contains("Read-only") && text.ends_with("leaf\n"), "{view}: {text}");
        fixture.stage.expect_nothing_left();
    }
}

#[test]
fn nothing_is_left_when_the_program_ends_or_is_killed() {
    let fixture = Fixture::new();
    for view in views() {
        fixture.stage.run(&mut fixture.sh(view, "true")).expect(0);
        fixture.stage.expect_nothing_left();
        let mut running = fixture.stage.start(&mut fixture.sh(view, "echo ready; exec sleep 600"));
        running.wait_for_output("ready");
        assert_eq!(fixture.stage.holders().len(), 1);
        running.signal(Signal::KILL);
        assert_eq!(running.wait().status.signal(), Some(9), "{view}");
        fixture.stage.expect_nothing_left();
    }
}

#[test]
fn an_overlay_view_keeps_working_without_its_holder() {
    let fixture = Fixture::new();
    if !views().contains(&"overlay") {
        skip!("no overlay view");
    }
    let script = "echo ready; read line; cat \"$1/lib/deep/leaf\" \"$1/readme\"; ls \"$1\"";
    let mut running = fixture.stage.start(fixture.sh("overlay", script).stdin(Stdio::piped()));
    running.wait_for_output("ready");
    send(fixture.stage.holder(), Signal::KILL);
    assert!(eventually(|| fixture.stage.holders().is_empty()));
    running.stdin().write_all(b"\n").unwrap();
    assert_eq!(running.wait().expect(0).text(), "ready\nleaf\nhello\nbin\nlib\nlink\nreadme\n");
    eventually(|| fixture.stage.processes().is_empty());
}

#[test]
fn without_its_holder_a_fuse_view_answers_with_errors_and_does_not_hang() {
    let fixture = Fixture::new();
    for view in views().iter().filter(|view| **view != "overlay") {
        // An open file, a file that is not open, a name that does not exist, and a listing.
        let script = "exec 3<\"$1/lib/data\"; echo ready; read line; cat \"$1/lib/deep/leaf\" && echo opened; \
                      stat \"$1/absent\"; ls \"$1/lib\" ; echo went on; exit 6";
        let mut running = fixture.stage.start(fixture.sh(view, script).stdin(Stdio::piped()));
        running.wait_for_output("ready");
        send(fixture.stage.holder(), Signal::KILL);
        assert!(eventually(|| fixture.stage.holders().is_empty()), "{view}");
        running.stdin().write_all(b"\n").unwrap();
        let ended = running.wait().expect(6);
        assert!(ended.text().ends_with("went on\n"), "{view}: {}", ended.text());
        assert!(!ended.text().contains("opened"), "{view}: {}", ended.text());
        // ENOTCONN, or ECONNABORTED for requests in flight when the holder ended.
        let messages = ["Transport endpoint is not connected", "Software caused connection abort"];
        let errors: usize = messages.iter().map(|message| ended.err.matches(message).count()).sum();
        assert!(errors >= 3, "{view}: {}", ended.err);
    }
}

#[test]
fn killed_while_it_starts_it_leaves_nothing() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    let directory = fs::File::open(&tree).unwrap();
    for number in 0..20_000 {
        rustix::fs::symlinkat("target", &directory, format!("{number}")).unwrap();
    }
    let index = stage.index(&tree);
    for view in views() {
        // Immediately, after the holder has started, and in between.
        for stop in 0..4 {
            let mut command = stage.quell_run(&index, view);
            command.args(["--check", "full", "--", "sleep", "600"]);
            let running = stage.start(&mut command);
            match stop {
                0 => {}
                1 => assert!(eventually(|| stage.processes().len() > 1)),
                2 => assert!(eventually(|| !stage.holders().is_empty())),
                _ => assert!(eventually(|| fs::read_dir(stage.runtime()).is_ok_and(|mut entries| entries
                    .any(|e| e.is_ok_and(|e| e.file_name().as_bytes().ends_with(b".sock")))))),
            }
            running.signal(Signal::KILL);
            running.wait();
            assert!(
                eventually(|| stage.processes().is_empty()),
                "{view}, killed at stop {stop}: {:?}",
                stage.processes()
            );
            assert!(stage.mounts().is_empty());
        }
    }
    // The remains of a killed command in the runtime directory do not disturb the next one.
    for view in views() {
        stage.run(stage.quell_run(&index, view).args(["--strict", "--", "true"])).expect(0);
    }
}
