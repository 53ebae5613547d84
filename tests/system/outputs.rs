//! Output files of commands: existing files are kept, nothing is written into covered trees, and a
//! full disk or a closed pipe leads to an exit code.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::stage::{Ended, Stage, is_root, quell, views, words};
use crate::trees;

fn fixture() -> (Stage, PathBuf, PathBuf) {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    (stage, tree, index)
}

fn run(stage: &Stage, words: Vec<OsString>) -> Ended {
    stage.run(stage.quell().args(words))
}

/// Returns the names in a directory, sorted.
fn names(directory: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

/// Returns the arguments of a command that writes to a path, with or without --force.
type CommandWith<'a> = dyn Fn(&Path, bool) -> Vec<OsString> + 'a;

#[test]
fn only_files_of_the_format_are_replaced() {
    let (stage, tree, index) = fixture();
    let boot = stage.path("first.boot");
    let cat = tree.join("readme");
    run(&stage, words(&[&"record", &"-q", &"-i", &index, &"-o", &boot, &"--", &"cat", &cat])).expect(0);
    let out = stage.path("train.py");
    let commands: [&CommandWith; 4] = [
        &|out, force| [words(&[&"index", &"-q", &tree, &"-o", &out]), forced(force)].concat(),
        &|out, force| {
            let begin = words(&[&"record", &"-q", &"-i", &index, &"-o", &out]);
            [begin, forced(force), words(&[&"--", &"cat", &cat])].concat()
        },
        &|out, force| [words(&[&"boot", &"merge", &boot, &"-o", &out]), forced(force)].concat(),
        &|out, force| [words(&[&"stats", &index, &"--prometheus", &out]), forced(force)].concat(),
    ];
    for (number, command) in commands.into_iter().enumerate() {
        let succeeds = if number == 3 { 1 } else { 0 };
        fs::write(&out, "print('hello')\n").unwrap();
        run(&stage, command(&out, false)).expect(2).says("--force").says("train.py");
        assert_eq!(fs::read(&out).unwrap(), b"print('hello')\n", "{number}");
        run(&stage, command(&out, true)).expect(succeeds);
        assert_ne!(fs::read(&out).unwrap(), b"print('hello')\n", "{number}");
        if number < 3 {
            // A file of the same format.
            run(&stage, command(&out, false)).expect(succeeds);
        }
        fs::remove_file(&out).unwrap();
        // A link and its target.
        let target = stage.file("target", "precious");
        let link = stage.path("link");
        symlink(&target, &link).unwrap();
        for force in [false, true] {
            run(&stage, command(&link, force)).expect(2).says("not a regular file");
            run(&stage, command(Path::new("/dev/null"), force)).expect(2).says("not a regular file");
            let ended =
                stage.run(stage.quell().args(command(Path::new("-"), force)).current_dir(stage.path("")));
            if number < 3 {
                ended.expect(2).says("standard output");
            }
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        fs::remove_file(&link).unwrap();
    }
    let null = fs::metadata("/dev/null").unwrap();
    assert!(std::os::unix::fs::FileTypeExt::is_char_device(&null.file_type()));
    assert!(!stage.path("-").exists());
}

fn forced(force: bool) -> Vec<OsString> {
    if force { vec!["--force".into()] } else { Vec::new() }
}

#[test]
fn nothing_is_written_into_a_covered_tree_by_default() {
    let (stage, tree, index) = fixture();
    let before = names(&tree);
    let modified = fs::metadata(&tree).unwrap().mtime_nsec();
    let untouched = |what: &str| {
        assert_eq!(names(&tree), before, "{what}");
        assert_eq!(fs::metadata(&tree).unwrap().mtime_nsec(), modified, "{what}");
    };
    let ended = stage.run(
        stage.quell().args(["run", "-q", "--strict", "-i", ".", "--", "cat", "readme"]).current_dir(&tree),
    );
    assert_eq!(ended.expect(0).text(), "hello\n");
    assert!(stage.path("tree.quell").is_file(), "the index lies beside the directory");
    untouched("run -i .");
    let sub = tree.join("lib");
    for (first, second) in [(&tree, &sub), (&sub, &tree)] {
        run(&stage, words(&[&"run", &"-i", first, &"-i", second, &"--", &"true"])).expect(2).says("-o");
        untouched("a tree in a tree");
    }
    run(&stage, words(&[&"index", &sub])).expect(2).says("-o");
    fs::remove_file(stage.path("tree.quell")).unwrap();
    run(&stage, words(&[&"run", &"-i", &sub, &"-i", &tree, &"--", &"true"])).expect(2).says("-o");
    run(&stage, words(&[&"run", &"-i", &sub, &"-i", &index, &"--", &"true"])).expect(2).says("-o");
    untouched("before the tree has an index");
    let ended = stage.run(stage.quell().args(["index", ".", "-o", "x.quell"]).current_dir(&tree));
    ended.expect(2).says("inside the tree");
    run(&stage, words(&[&"record", &"-i", &index, &"-o", &tree.join("x.boot"), &"--", &"true"]))
        .expect(2)
        .says("inside the tree");
    let layer = tree.join("layer/deep");
    let ended = run(&stage, words(&[&"run", &"--writable", &layer, &"-i", &index, &"--", &"echo", &"ran"]));
    assert_eq!(ended.expect(2).says("inside the tree").text(), "");
    untouched("a writable layer");
    let ended = stage.run(stage.quell().args(["index", "/"]).current_dir(stage.dir("empty")));
    ended.expect(2).says("-o");
    assert!(names(&stage.path("empty")).is_empty() && !Path::new("/.quell").exists());
}

#[test]
fn a_writable_layer_is_accessible_to_its_owner_only() {
    let (stage, _, index) = fixture();
    let layer = stage.path("layer");
    let mut command = stage.quell();
    command.args(["run", "-q", "--writable"]).arg(&layer).arg("-i").arg(&index);
    let ended = stage.run(command.args(["--", "true"]));
    if !ended.err.is_empty() {
        println!("SKIPPED: no writable layer here: {}", ended.err);
        return;
    }
    for path in [&layer, &layer.join("lock")] {
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o077, 0, "{}", path.display());
    }
}

/// Returns the exit code and the standard error of a command whose standard output is a full
/// device, or a pipe without a reader.
#[track_caller]
fn code_where_output_fails(stage: &Stage, command: &mut Command, full: bool) -> (Option<i32>, String) {
    let err = stage.path("err");
    let out: Stdio = match full {
        true => File::options().write(true).open("/dev/full").unwrap().into(),
        false => {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            writer.into()
        }
    };
    let status = command.stdout(out).stderr(File::create(&err).unwrap()).status().unwrap();
    let error = fs::read_to_string(&err).unwrap();
    assert!(!error.contains("panicked"), "{command:?}: {error}");
    (status.code(), error)
}

#[test]
fn a_full_disk_and_a_closed_pipe_have_exit_codes() {
    let (stage, tree, index) = fixture();
    let boot = stage.path("boot");
    run(&stage, words(&[&"record", &"-q", &"-i", &index, &"-o", &boot, &"--", &"cat", &tree.join("readme")]))
        .expect(0);
    fs::write(tree.join("new"), "").unwrap();
    let (store, again, merged) = (stage.dir("store"), stage.path("again"), stage.path("merged"));
    let plain = stage.file("plain", "content of a file");
    run(&stage, words(&[&"log", &"import", &"-q", &plain, &store, &"file"])).expect(0);
    let trace = stage.file(
        "trace.strace",
        "7 1700000000.000001 openat(AT_FDCWD, \"/etc/passwd\", O_RDONLY) = 3 <0.000010>\n",
    );
    let report = stage.path("report");
    let commands: Vec<Vec<OsString>> = vec![
        words(&[&"--help"]),
        words(&[&"--version"]),
        words(&[&"run", &"--help"]),
        words(&[&"doctor"]),
        words(&[&"doctor", &"--json"]),
        words(&[&"show", &index]),
        words(&[&"show", &"--json", &index]),
        words(&[&"show", &"-r", &index]),
        words(&[&"verify", &index]),
        words(&[&"verify", &"--json", &index]),
        words(&[&"index", &tree, &"-o", &again]),
        words(&[&"index", &"--json", &tree, &"-o", &again]),
        words(&[&"boot", &"show", &"--files", &boot]),
        words(&[&"boot", &"show", &"--json", &boot]),
        words(&[&"boot", &"verify", &boot]),
        words(&[&"boot", &"merge", &boot, &"-o", &merged]),
        words(&[&"log", &"ls", &store]),
        words(&[&"log", &"ls", &"--json", &store]),
        words(&[&"log", &"stat", &store, &"file"]),
        words(&[&"log", &"stat", &"--json", &store, &"file"]),
        words(&[&"log", &"map", &store, &"file"]),
        words(&[&"log", &"map", &"--json", &store, &"file"]),
        words(&[&"log", &"flatten", &"--json", &store, &"file"]),
        words(&[&"log", &"fsck", &"--json", &store]),
        words(&[&"log", &"export", &"--json", &"--resume", &store, &"file", &stage.path("exported")]),
        words(&[&"log", &"import", &"--json", &"--resume", &plain, &store, &"file"]),
        words(&[&"log", &"rebalance", &"--json", &store]),
        words(&[&"probe", &"--yes", &"--json", &"--seconds", &"1", &stage.dir("probed")]),
        words(&[&"profile", &"--json", &"--force", &"-o", &report, &"--import", &trace]),
    ];
    for command in commands {
        for full in [true, false] {
            let (code, error) = code_where_output_fails(&stage, stage.quell().args(&command), full);
            assert_eq!(code, Some(if full { 3 } else { 141 }), "{command:?}: {error}");
            assert_eq!(error.contains("standard output"), full, "{command:?}: {error}");
            assert_eq!(error.contains("space"), full, "{command:?}: {error}");
        }
    }
    // In a view, where a holder answers.
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        command.args(["--check", "none", "-q", "--"]).arg(quell()).args(["stats", "--json"]).arg(&tree);
        let (code, error) = code_where_output_fails(&stage, &mut command, true);
        assert_eq!(code, Some(3), "{view}: {error}");
        assert!(error.contains("standard output"), "{view}: {error}");
    }
    // Standard error cannot be written: only the exit code tells the result.
    let mut process = stage.quell();
    process.args(["show", "none"]).stderr(File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(process.status().unwrap().code(), Some(2));
}

#[test]
fn control_characters_in_names_are_escaped() {
    let stage = Stage::new();
    let tree = stage.dir("tree\x1b]0;owned\x07");
    let odd = ["\x1b[31mred", "two\nlines", "\u{9b}2J", "\u{202e}gpj.exe", "\u{7f}", "back\\slash"];
    for name in odd {
        fs::write(tree.join(name), "").unwrap();
    }
    symlink("\x1b[32m", tree.join("link")).unwrap();
    let index = stage.index(&tree);
    let harmless = |bytes: &[u8], what: &str| {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let odd =
            text.chars().find(|c| (c.is_control() && *c != '\n') || matches!(c, '\u{202a}'..='\u{202e}'));
        assert_eq!(odd, None, "{what}: {text:?}");
        // A part of the name `two\nlines` would be a line of its own.
        assert!(!text.lines().any(|line| line.starts_with("lines")), "{what}: {text:?}");
    };
    for name in odd {
        fs::remove_file(tree.join(name)).unwrap();
    }
    fs::write(tree.join("\x1b[33mnew"), "").unwrap();
    let boot = stage.path("\x1b[34m");
    let two = "two\nlines";
    let (store, damaged) = (stage.dir("store"), stage.file(two, "QUELLIDX"));
    let absent = stage.dir("bin").join(two);
    run(&stage, words(&[&"log", &"import", &index, &store, &two])).expect(0);
    for command in [
        words(&[&"show", &damaged]),
        words(&[&"show", &index, &two]),
        words(&[&"index", &"none", &"-o", &two]),
        words(&[&"index", &damaged]),
        words(&[&"boot", &"show", &damaged]),
        words(&[&"run", &"-i", &damaged, &"--", &"true"]),
        words(&[&"run", &"-i", &index, &"-b", &damaged, &"--", &"true"]),
        words(&[&"run", &"-i", &index, &"--writable", &damaged, &"--", &"true"]),
        words(&[&"run", &"-i", &index, &"--strict", &"--", &absent]),
        words(&[&"run", &"--config", &damaged, &"--", &"true"]),
        words(&[&"run", &"--image", &damaged, &"-b", &damaged, &"--", &"true"]),
        words(&[&"mount", &index, &damaged]),
        words(&[&"mount", &"--log", &damaged, &stage.path("point")]),
        words(&[&"umount", &damaged]),
        words(&[&"stats", &damaged]),
        words(&[&"doctor", &damaged]),
        words(&[&"log", &"ls", &store]),
        words(&[&"log", &"stat", &store, &two]),
        words(&[&"log", &"map", &store, &two]),
        words(&[&"log", &"fsck", &store, &two]),
        words(&[&"log", &"fsck", &damaged]),
        words(&[&"log", &"import", &index, &store, &two]),
        words(&[&"log", &"export", &store, &two, &damaged]),
        words(&[&"log", &"rebalance", &store, &"--add", &damaged]),
        words(&[&"verify", &index]),
        words(&[&"verify", &"--json", &index]),
        words(&[&"show", &index]),
        words(&[&"show", &"-r", &index]),
        words(&[&"show", &"-r", &"--json", &index]),
        words(&[&"show", &index, &"\x1b[31mnone"]),
        words(&[&"run", &"-i", &index, &"--", &"true"]),
        words(&[&"run", &"-i", &"\x1b[31mnone", &"--", &"true"]),
        words(&[&"index", &tree]),
        words(&[&"boot", &"show", &boot]),
        words(&[&"\x1b[31m"]),
        words(&[&"show", &"--\x1b[31m"]),
    ] {
        let ended = run(&stage, command.clone());
        let what = format!("{command:?}");
        harmless(&ended.out, &what);
        harmless(ended.err.as_bytes(), &what);
    }
    let printed = run(&stage, words(&[&"verify", &index])).expect(1);
    let lines: Vec<_> = printed.text().lines().map(str::to_owned).collect();
    for line in ["- \\x1b[31mred", "- two\\nlines", "- \\u{9b}2J", "- \\u{202e}gpj.exe", "+ \\x1b[33mnew"] {
        assert!(lines.iter().any(|printed| printed == line), "no {line} in {lines:?}");
    }
    // JSON contains the original names.
    let printed = run(&stage, words(&[&"verify", &"--json", &index])).expect(1).json();
    let paths: Vec<&str> =
        printed["differences"].as_array().unwrap().iter().filter_map(|d| d["path"].as_str()).collect();
    for name in odd {
        assert!(paths.contains(&name), "{name:?} in {paths:?}");
    }
}

#[test]
fn an_index_with_private_attributes_is_private() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let file = tree.join("readme");
    if rustix::fs::setxattr(&file, "user.secret", b"x", rustix::fs::XattrFlags::empty()).is_err() {
        println!("SKIPPED: no extended attributes on this file system");
        return;
    }
    let mode = |file_mode| {
        trees::set_mode(&file, file_mode);
        fs::metadata(stage.index(&tree)).unwrap().mode() & 0o777
    };
    assert_eq!(mode(0o644), 0o644);
    assert_eq!(mode(0o600), 0o600);
    assert_eq!(mode(0o640), 0o640);
}

#[test]
fn a_runtime_directory_of_another_user_is_not_used() {
    if !is_root() {
        // The unit test of the function covers this case without another user.
        println!("SKIPPED: a directory of another user is made by root alone");
        return;
    }
    let stage = Stage::new();
    // In a /tmp of its own, so that the machine's /tmp is not changed; the user does not exist.
    let script = "mount -t tmpfs -o mode=1777 none /tmp; mkdir -m 700 /tmp/quell-4242421 /tmp/copy; chown 4242420 /tmp/quell-4242421
        cp \"$1\" /tmp/copy/quell; cp -r \"$2\" /tmp/copy/tree; chown -R 4242421 /tmp/copy; unset QUELL_RUNTIME_DIR
        setpriv --reuid 4242421 --regid 4242421 --clear-groups -- sh -c '
            /tmp/copy/quell stats /tmp/copy/tree; echo $?; ls -d /tmp/quell-4242421-1'";
    // The source of the script's copies must not lie below the /tmp that it hides.
    let outside = tempfile::Builder::new().prefix("quell-outputs.").tempdir_in("/var/tmp").unwrap();
    fs::copy(crate::stage::quell(), outside.path().join("quell")).unwrap();
    fs::create_dir(outside.path().join("tree")).unwrap();
    let mut command = stage.command("unshare");
    command
        .args(["-m", "sh", "-ec", script, "sh"])
        .arg(outside.path().join("quell"))
        .arg(outside.path().join("tree"));
    let ended = stage.run(&mut command).expect(0);
    assert_eq!(ended.text(), "1\n/tmp/quell-4242421-1\n", "{}", ended.err);
}

#[test]
fn an_export_replaces_no_device_and_no_link() {
    let stage = Stage::new();
    let (store, plain) = (stage.dir("store"), stage.file("plain", "content"));
    run(&stage, words(&[&"log", &"import", &"-q", &plain, &store, &"file"])).expect(0);
    let target = stage.file("target", "precious");
    let link = stage.path("link");
    symlink(&target, &link).unwrap();
    let fifo = stage.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for existing in [&link, &fifo, &target] {
        for options in [&[][..], &["--resume"]] {
            if existing == &target && !options.is_empty() {
                continue; // --resume replaces a regular file.
            }
            let before = fs::symlink_metadata(existing).unwrap();
            let mut command = stage.quell();
            command.args(["log", "export", "-q"]).args(options).arg(&store).arg("file").arg(existing);
            let ended = stage.run(&mut command);
            assert_ne!(ended.code(), Some(0), "{}", existing.display());
            let after = fs::symlink_metadata(existing).unwrap();
            assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()), "{}", existing.display());
        }
    }
    assert_eq!(fs::read(&target).unwrap(), b"precious");
}

#[test]
fn inputs_of_a_profile_are_read_up_to_a_bound() {
    let stage = Stage::new();
    let huge = stage.file("huge", "");
    File::options().write(true).open(&huge).unwrap().set_len(60 << 30).unwrap();
    let trace = stage.file(
        "trace.strace",
        "7 1700000000.000001 openat(AT_FDCWD, \"/etc/passwd\", O_RDONLY) = 3 <0.000010>\n",
    );
    for option in ["--capacity", "--mounts"] {
        let ended = run(&stage, words(&[&"profile", &option, &huge, &"--import", &trace]));
        ended.expect(2).says("huge").says("has more than");
    }
}
