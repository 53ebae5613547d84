//! Recordings that end at a line of the program's output, and the forwarding of the output.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::boot::{Fixture, files_of};
use crate::skip;
use crate::stage::{Ended, eventually, has};

impl Fixture {
    fn recorded(&self) -> Vec<(String, u64)> {
        files_of(&self.boot(&["show", "--files", "--json"]).expect(0))
    }

    fn until(&self, pattern: &str, script: &str) -> Ended {
        self.record(&["-q", "--until", pattern], script)
    }
}

#[test]
fn a_line_of_the_output_ends_the_program_and_the_recording() {
    let fixture = Fixture::new();
    let ended = fixture.until(
        "^ready to (serve|listen)$",
        r#"cat "$0/small"; echo not ready to serve; echo ready to listen; sleep 600; cat "$0/cold""#,
    );
    assert_eq!(ended.text(), "small\nnot ready to serve\nready to listen\n");
    ended.expect(143);
    assert_eq!(fixture.recorded(), [("small".into(), 1)]);
}

#[test]
fn a_line_of_the_error_output_ends_it_too_and_digits_go_in_brackets() {
    let fixture = Fixture::new();
    let script = r#"cat "$0/small" >/dev/null; echo 8080 >&2; exec sleep 600"#;
    fixture.until("(8080)", script).says("8080").expect(143);
    assert_eq!(fixture.recorded(), [("small".into(), 1)]);
}

#[test]
fn a_prompt_ends_it_before_its_line_does() {
    let fixture = Fixture::new();
    let ended =
        fixture.until("login: $", r#"cat "$0/small" >/dev/null; printf "host login: "; exec sleep 600"#);
    assert_eq!(ended.expect(143).text(), "host login: ");
}

#[test]
fn children_that_outlive_their_parent_are_ended_with_it() {
    let fixture = Fixture::new();
    let script = r#"(cat "$0/small"; sleep 600) & (setsid sh -c "sleep 600; echo no") & wait"#;
    assert_eq!(fixture.until("^small$", script).expect(143).text(), "small\n");
    let script = r#"(sleep 0.2; cat "$0/small"; sleep 600; echo no) & exit 5"#;
    assert_eq!(fixture.until("^small$", script).expect(5).text(), "small\n");
    assert_eq!(fixture.recorded(), [("small".into(), 1)]);
    // A time limit as the condition has the same effect.
    fixture.until("1", r#"cat "$0/small" >/dev/null; sleep 600; echo no"#).expect(143);
    assert_eq!(fixture.recorded(), [("small".into(), 1)]);
}

#[test]
fn a_program_may_end_by_itself_before_any_line_matches() {
    let fixture = Fixture::new();
    let script = r#"trap 'echo going; exit 9' TERM; cat "$0/small"; while :; do sleep 0.05; done"#;
    assert_eq!(fixture.until("^small$", script).expect(9).text(), "small\ngoing\n");
    let ended = fixture.record(&["--until", "never said"], r#"cat "$0/small"; exit 3"#).expect(3);
    ended.says("the program ended before a line matched 'never said'; all of it is recorded");
    assert_eq!(fixture.recorded(), [("small".into(), 1)]);
}

#[test]
fn output_is_passed_on_unaltered_and_input_is_the_programs_own() {
    let fixture = Fixture::new();
    // All byte values, lines with and without line feeds, and more than the capacity of a pipe.
    let mut bytes: Vec<u8> = (0..=255u8).cycle().take(300_000).collect();
    bytes.extend_from_slice(b"\r\n\n\x1b[31mred\x1b[0m");
    let input = fixture.stage.file("input", &bytes);
    let mut command = fixture.stage.quell();
    command
        .args(["record", "-q", "--until", "never said", "-i"])
        .arg(&fixture.index)
        .arg("-o")
        .arg(&fixture.image);
    command.args([
        "--",
        "sh",
        "-c",
        r#"cat "$0/small" >/dev/null; tee /dev/stderr; echo of the error output >&2"#,
    ]);
    let ended = fixture.stage.run(command.arg(&fixture.tree).stdin(fs::File::open(input).unwrap())).expect(0);
    assert!(ended.out == bytes, "other bytes");
    assert!(ended.err.ends_with("of the error output\n") && ended.err.len() > bytes.len());
}

#[test]
fn a_closed_output_pipe_ends_the_program_as_without_quell() {
    let fixture = Fixture::new();
    let script = r#""$1" record -q --until never -i "$2" -o "$3" -- sh -c 'cat "$0/small" >/dev/null; exec yes' "$4" | head -n 1"#;
    let paths: [&Path; 4] = [&crate::stage::quell(), &fixture.index, &fixture.image, &fixture.tree];
    let ended = fixture.stage.sh(script, &paths).expect(0);
    assert_eq!(ended.text(), "y\n");
    fixture.boot(&["verify"]).expect(0);
}

#[test]
fn where_ours_is_a_terminal_the_program_has_one() {
    if !has("script") {
        skip!("script(1), which makes a terminal, is not installed");
    }
    let fixture = Fixture::new();
    let program = fixture.stage.file(
        "program",
        "cat \"$TREE/small\" >/dev/null; [ -t 1 ] && [ -t 2 ] && echo terminals; stty size <&1; echo ready >&2; exec sleep 600\n",
    );
    let script = r#"stty cols 91 rows 17; "$QUELL" record -q --until ready -i "$INDEX" -o "$IMAGE" -- sh "$PROGRAM"; echo "code $?""#;
    // script(1) passes its command to a shell without arguments.
    let mut command = fixture.stage.command("script");
    command.env("QUELL", crate::stage::quell()).env("INDEX", &fixture.index);
    command.env("IMAGE", &fixture.image).env("PROGRAM", program).env("TREE", &fixture.tree);
    let ended = fixture.stage.run(command.args(["-qefc", script, "/dev/null"])).expect(0);
    assert_eq!(ended.text(), "terminals\r\n17 91\r\nready\r\ncode 143\r\n");
}

#[test]
fn an_argument_that_is_neither_pattern_nor_time_is_refused_before_the_program_runs() {
    let fixture = Fixture::new();
    for (until, words) in
        [("(", "not a valid regular expression"), ("0", "more than 0"), ("", "matches every line")]
    {
        fixture.until(until, "echo run").expect(2).says(words);
    }
    assert!(!fixture.image.exists());
}

#[test]
fn a_signal_to_the_recorder_ends_the_program_and_the_image_is_written() {
    let fixture = Fixture::new();
    for (signal, word) in [(Signal::INT, "small"), (Signal::TERM, "cold")] {
        let script = format!(r#"cat "$0/{word}" >/dev/null; echo read; sleep 600; echo no"#);
        let mut running = fixture.start_recording(&["-q"], &script);
        running.wait_for_output("read");
        running.signal(signal);
        assert_eq!(running.wait().expect(143).text(), "read\n");
        let recorded = fixture.recorded();
        assert!(recorded.len() == 1 && recorded[0].0 == word, "{recorded:?}");
    }
}

#[test]
fn no_time_at_all_is_counted_from_the_programs_start_and_never_ends_without_a_word() {
    let fixture = Fixture::new();
    fixture.record(&["-q"], r#"cat "$0/small""#).expect(0);
    let before = fs::read(&fixture.image).unwrap();
    // The program may be ended before it has read anything.
    let ended = fixture.until("0.000001", r#"cat "$0/cold" >/dev/null; exec sleep 600"#).expect(143);
    if fs::read(&fixture.image).unwrap() == before {
        ended.says("nothing was recorded: no file of the tree was opened");
    } else {
        assert_eq!(fixture.recorded()[0].0, "cold");
    }
}

#[test]
fn a_second_signal_keeps_the_recording() {
    let fixture = Fixture::new();
    let script = r#"trap "" TERM; cat "$0/small"; while ! test -e "$0.go"; do sleep 0.05; done"#;
    let mut running = fixture.start_recording(&["-q"], script);
    running.wait_for_output("small");
    running.signal(Signal::INT);
    running.wait_for_error("Ctrl-C again leaves them running");
    running.signal(Signal::INT);
    running.wait().expect(130);
    fs::write(fixture.stage.path("tree.go"), "").unwrap();
    assert!(eventually(|| fixture.stage.processes().is_empty()));
    assert_eq!(fixture.recorded(), [("small".into(), 1)]);
}

#[test]
fn background_processes_of_the_program_are_recorded_named_and_can_be_ended() {
    let fixture = Fixture::new();
    let script = r#"(cat "$0/small"; exec sleep 600) & exit 4"#;
    let mut running = fixture.start_recording(&["-q"], script);
    running.wait_for_error("still running, and recorded: process ");
    running.signal(Signal::INT);
    assert_eq!(running.wait().expect(4).text(), "small\n");
    assert_eq!(fixture.recorded(), [("small".into(), 1)]);
}
