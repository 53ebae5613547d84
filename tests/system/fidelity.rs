//! A view is identical to the original for programs that read. For each documented deviation, the
//! tests check the value that docs/semantics.md gives.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

use crate::probe::{Facts, differences};
use crate::skip;
use crate::stage::{
    Launch, Stage, difference, has, is_root, launches, launches_of_private_tree, views, words,
};
use crate::trees::{self, HUGE_BYTES, noise, set_mode};

/// EOPNOTSUPP.
const NOT_SUPPORTED: &str = "error 95";

/// Returns true if docs/semantics.md documents that a view differs from the original in this
/// property.
fn documented(launch: Launch, name: &str, original: &Facts, view: &Facts) -> bool {
    let is_dir = original["mode"].starts_with('4');
    match name {
        // Overlayfs takes the size of a directory and all status change times from the metadata
        // layer.
        "size" => launch.view() == "overlay" && is_dir,
        "ctime" => launch.view() == "overlay",
        // Before the first open, the kernel derives a file's blocks from its size; directories have
        // the blocks of tmpfs.
        "blocks" if launch.is_overlay() && is_dir => true,
        "blocks" if launch.is_overlay() => view["blocks"] == size_in_blocks(original),
        // A file that the user may not open keeps this value.
        "blocks after opening" if launch.is_overlay() => {
            original["content"].starts_with("error") && view[name] == size_in_blocks(original)
        }
        // A FUSE view of a tree without extended attributes returns EOPNOTSUPP; the kernel
        // remembers this and sends no further requests.
        "xattrs" => launch.view() == "fuse" && original[name].is_empty() && view[name] == NOT_SUPPORTED,
        "absent xattr" => launch.view() == "fuse" && view["xattrs"] == NOT_SUPPORTED,
        _ => false,
    }
}

/// Returns the number of blocks of a file without holes.
fn size_in_blocks(facts: &Facts) -> String {
    (facts["size"].parse::<u64>().unwrap().div_ceil(4096) * 8).to_string()
}

#[test]
fn every_entry_is_seen_as_on_the_original() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let index = stage.index(&tree);
    let original = stage.snapshot_original(&tree);
    assert!(original.len() > 100);
    assert_eq!(original["./contents/huge"]["size"], HUGE_BYTES.to_string());
    let mut lines = Vec::new();
    for launch in launches_of_private_tree() {
        let view = stage.snapshot(launch, &index, &tree);
        let found = differences(&original, &view, |_, name, a, b| documented(launch, name, a, b));
        lines.extend(found.into_iter().map(|line| format!("{launch:?} {line}")));
    }
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn with_a_boot_image_every_entry_is_seen_as_on_the_original() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let index = stage.index(&tree);
    let image = stage.path("app.boot");
    let original = stage.snapshot_original(&tree);
    let output = stage.path("out/probe");
    let probe = stage.probe_command("snapshot", &tree, &output);
    let seen = |mut command: std::process::Command| -> std::collections::BTreeMap<String, Facts> {
        stage.run(command.arg("--").arg(probe.get_program()).args(probe.get_args())).expect(0);
        serde_json::from_slice(&fs::read(&output).unwrap()).unwrap()
    };
    let mut record = stage.quell();
    record.args(["record", "--quiet", "-i"]).arg(&index).arg("-o").arg(&image);
    seen(record);
    let mut lines = Vec::new();
    for view in views() {
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "-b"]).arg(&image);
        let launch = Launch::Run(view);
        // A whole file has the number of blocks of its copy.
        let as_reported = |name: &str, a: &Facts, b: &Facts| {
            documented(launch, name, a, b) || (launch.is_overlay() && name.starts_with("blocks"))
        };
        let found = differences(&original, &seen(command), |_, name, a, b| as_reported(name, a, b));
        lines.extend(found.into_iter().map(|line| format!("{view} {line}")));
    }
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn opens_without_a_round_trip_and_one_thread_show_the_same() {
    if !views().contains(&"fuse") {
        skip!("no fuse view");
    }
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let index = stage.index(&tree);
    let original = stage.snapshot_original(&tree);
    let output = stage.path("out/probe");
    let probe = stage.probe_command("snapshot", &tree, &output);
    let mut command = stage.quell_run(&index, "fuse");
    command.args(["--strict", "--quiet", "--on-change", "ignore", "--threads", "1", "--"]);
    stage.run(command.arg(probe.get_program()).args(probe.get_args())).expect(0);
    let view = serde_json::from_slice(&fs::read(output).unwrap()).unwrap();
    let found = differences(&original, &view, |_, name, a, b| documented(Launch::Run("fuse"), name, a, b));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn sockets_are_shown_and_cannot_be_connected_to_through_the_kernels_views() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    let listener = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    let index = stage.index(&tree);
    assert_eq!(stage.probe_original(&tree.join("socket"), "connect"), "connected");
    for view in views() {
        let output = stage.path("out/probe");
        let probe = stage.probe_command("connect", &tree.join("socket"), &output);
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "--"]).arg(probe.get_program()).args(probe.get_args());
        stage.run(&mut command).expect(0);
        assert_eq!(fs::read_to_string(output).unwrap(), "Connection refused (os error 111)", "{view}");
    }
    drop(listener);
}

#[test]
fn the_views_over_fuse_show_the_inode_numbers_of_the_originals() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    fs::hard_link(tree.join("readme"), tree.join("lib/second-name")).unwrap();
    let index = stage.index(&tree);
    let numbers = "find \"$1\" -mindepth 1 $2 -printf '%P %i\\n' | sort";
    for (view, entries) in [("fuse", ""), ("overlay-fuse", "! -type d")] {
        let entries = Path::new(entries);
        let original = stage.sh(numbers, &[&tree, entries]).expect(0).text();
        assert!(original.lines().count() >= 5, "{original}");
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "--", "sh", "-c", numbers, "sh"]).arg(&tree).arg(entries);
        assert_eq!(stage.run(&mut command).expect(0).text(), original, "{view}");
    }
}

#[test]
fn find_and_checksums_print_the_same() {
    let stage = Stage::new();
    let tree = trees::varied(&stage);
    let index = stage.index(&tree);
    // Overlayfs shows other sizes for directories only.
    let find = |sizes: &str| {
        format!(
            "cd \"$1\" && find . -printf '{sizes}%p %y %m %T@ %l %n\\n' | LC_ALL=C sort && \
             find . -type f -size -100M -perm -400 -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"
        )
    };
    for launch in launches_of_private_tree() {
        let script = find(if launch.view() == "overlay" { "" } else { "%s " });
        let files = "cd \"$1\" && find . -not -type d -printf '%p %s\\n' | LC_ALL=C sort";
        for script in [&script, files] {
            let original = stage.sh(script, &[&tree]).expect(0);
            let view = stage
                .run_in_view(launch, &index, &tree, |root| words(&[&"sh", &"-c", &script, &"sh", &root]))
                .expect(0);
            assert!(original.text().lines().count() > 80);
            assert_eq!(difference(&original.text(), &view.text()), "", "{launch:?}");
            assert_eq!(original.out, view.out, "{launch:?}: the order differs");
        }
    }
}

#[test]
fn a_hundred_thousand_entries_in_one_directory() {
    let stage = Stage::new();
    let tree = stage.dir("wide");
    let wide = fs::File::open(&tree).unwrap();
    for number in 0..100_000 {
        let name = format!("entry-{number:06}");
        rustix::fs::symlinkat("target", &wide, name).unwrap();
    }
    let index = stage.index(&tree);
    let script = "cd \"$1\" && ls -U | wc -l && ls -f | md5sum && ls -f | md5sum && \
                  ls -U | LC_ALL=C sort | md5sum && test -L entry-099999 && ! test -L entry-100000";
    let original = stage.sh(script, &[&tree]).expect(0).text();
    for launch in launches() {
        let view = stage
            .run_in_view(launch, &index, &tree, |root| words(&[&"sh", &"-c", &script, &"sh", &root]))
            .expect(0)
            .text();
        let lines: Vec<&str> = view.lines().collect();
        assert_eq!(lines[0], "100000", "{launch:?}");
        assert_eq!(lines[1], lines[2], "{launch:?}: the order is not stable");
        assert_eq!(lines[3], original.lines().nth(3).unwrap(), "{launch:?}");
    }
}

#[test]
fn paths_longer_than_the_kernels_limit_are_reached_step_by_step() {
    let stage = Stage::new();
    let tree = stage.dir("deep");
    let mut at = rustix::fs::openat(CWD, &tree, OFlags::PATH, Mode::empty()).unwrap();
    let name = "d".repeat(200);
    for _ in 0..25 {
        rustix::fs::mkdirat(&at, &name, Mode::from_raw_mode(0o755)).unwrap();
        at = rustix::fs::openat(&at, &name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(&at, "file", flags, Mode::from_raw_mode(0o644)).unwrap();
    rustix::io::write(&file, b"deep down").unwrap();
    rustix::fs::symlinkat("file", &at, "link").unwrap();
    drop((at, file));
    let index = stage.index(&tree);
    let original = stage.snapshot_original(&tree);
    assert!(original.keys().any(|path| path.len() > 5000));
    // Overlayfs does not support such long paths, so `auto` uses FUSE and reports the reason.
    let ended = stage.run(stage.quell_run(&index, "auto").args(["--strict", "-v", "--", "true"])).expect(0);
    ended.says("covered by fuse").says("too long for overlayfs");
    if views().contains(&"overlay") {
        stage.run(stage.quell_run(&index, "overlay").args(["--strict", "--", "true"])).expect(3);
    }
    for launch in launches().into_iter().filter(|launch| launch.view() == "fuse") {
        let view = stage.snapshot(launch, &index, &tree);
        let found = differences(&original, &view, |_, name, a, b| documented(launch, name, a, b));
        assert!(found.is_empty(), "{launch:?}\n{}", found.join("\n"));
    }
}

#[test]
fn files_can_be_mapped() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    let content = noise(3_000_001, 11);
    fs::write(tree.join("mapped"), &content).unwrap();
    let index = stage.index(&tree);
    let original = stage.probe_original(&tree.join("mapped"), "map");
    assert!(original.starts_with("3000001 "));
    for launch in launches() {
        let output = stage.path("out/mapped");
        let ended = stage.run_in_view(launch, &index, &tree, |root| {
            let command = stage.probe_command("map", &root.join("mapped"), &output);
            std::iter::once(command.get_program()).chain(command.get_args()).map(Into::into).collect()
        });
        ended.expect(0);
        assert_eq!(fs::read_to_string(&output).unwrap(), original, "{launch:?}");
    }
}

#[test]
fn scripts_and_programs_run_from_the_tree() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let index = stage.index(&tree);
    for launch in launches() {
        let ended =
            stage.run_in_view(launch, &index, &tree, |root| words(&[&root.join("bin/tool"), &"one", &"two"]));
        assert_eq!(ended.expect(0).text(), "tool ran with one two\n", "{launch:?}");
    }
}

#[test]
fn a_program_finds_its_library_beside_itself() {
    if !has("cc") {
        skip!("no C compiler");
    }
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::create_dir(tree.join("bin")).unwrap();
    fs::create_dir(tree.join("lib")).unwrap();
    let library = stage.file("answer.c", "int answer(void) { return 42; }\n");
    let program = stage.file(
        "ask.c",
        "#include <stdio.h>\nint answer(void);\nint main(void) { printf(\"%d\\n\", answer()); return 0; }\n",
    );
    let build = "cc -shared -fPIC -o \"$1/lib/libanswer.so\" \"$2\" && \
                 cc -o \"$1/bin/ask\" \"$3\" -L\"$1/lib\" -lanswer -Wl,-rpath,'$ORIGIN/../lib'";
    stage.sh(build, &[&tree, &library, &program]).expect(0);
    let index = stage.index(&tree);
    for launch in launches() {
        let ended = stage.run_in_view(launch, &index, &tree, |root| words(&[&root.join("bin/ask")]));
        assert_eq!(ended.expect(0).text(), "42\n", "{launch:?}");
    }
}

#[test]
fn a_directory_that_could_not_be_read_is_closed_not_empty() {
    if is_root() {
        skip!("root can read every directory");
    }
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    let closed = tree.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("hidden"), "").unwrap();
    set_mode(&closed, 0o000);
    let index = stage.path("partial.quell");
    stage.run(stage.quell().args(["index", "-o"]).arg(&index).arg(&tree)).expect(1).says("closed");
    for launch in launches() {
        let script = "ls \"$1/closed\"; echo $?; cat \"$1/closed/hidden\"; echo $?; cat \"$1/readme\"";
        let ended = stage
            .run_in_view(launch, &index, &tree, |root| words(&[&"sh", &"-c", &script, &"sh", &root]))
            .expect(0);
        assert_eq!(ended.text(), "2\n1\nhello\n", "{launch:?}");
        assert_eq!(ended.err.matches("Permission denied").count(), 2, "{launch:?}: {}", ended.err);
    }
    set_mode(&closed, 0o755);
}

/// A user namespace that maps one user can show no other owner.
#[test]
fn files_of_others_belong_to_the_caller_in_a_kernel_view_and_to_the_overflow_user_in_fuse() {
    if is_root() {
        skip!("root needs no user namespace, so it sees every owner");
    }
    let tree = Path::new("/usr/share/common-licenses");
    if !fs::metadata(tree).is_ok_and(|metadata| metadata.uid() == 0) {
        skip!("no directory of root's to look at");
    }
    let stage = Stage::new();
    let index = stage.index(tree);
    let original = stage.snapshot_original(tree);
    let me = rustix::process::geteuid().as_raw().to_string();
    let group = rustix::process::getegid().as_raw().to_string();
    for launch in launches() {
        let view = stage.snapshot(launch, &index, tree);
        let found = differences(&original, &view, |_, name, a, b| match name {
            "uid" | "gid" if launch == Launch::Run("overlay") => {
                b[name] == if name == "uid" { me.as_str() } else { group.as_str() }
            }
            "uid" | "gid" if launch.maps_one_user() => b[name] == "65534",
            _ => documented(launch, name, a, b),
        });
        assert!(found.is_empty(), "{launch:?}\n{}", found.join("\n"));
        // Being shown as the owner gives no more permissions: the view is read-only and the modes
        // apply.
        let ended = stage.run_in_view(launch, &index, tree, |root| words(&[&"touch", &root.join("new")]));
        assert_ne!(ended.code(), Some(0));
    }
}

#[test]
fn a_private_tree_is_open_to_its_owner() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    set_mode(&tree, 0o700);
    set_mode(&tree.join("lib"), 0o700);
    set_mode(&tree.join("readme"), 0o600);
    let index = stage.index(&tree);
    let original = stage.snapshot_original(&tree);
    for launch in launches_of_private_tree() {
        let view = stage.snapshot(launch, &index, &tree);
        let found = differences(&original, &view, |_, name, a, b| documented(launch, name, a, b));
        assert!(found.is_empty(), "{launch:?}\n{}", found.join("\n"));
    }
}

#[test]
fn names_outside_the_tree_count_as_links() {
    let stage = Stage::new();
    let tree = stage.dir("tree");
    fs::write(tree.join("file"), "x").unwrap();
    for number in 0..5 {
        fs::hard_link(tree.join("file"), stage.path(format!("outside{number}"))).unwrap();
    }
    let index = stage.index(&tree);
    for launch in launches() {
        let ended = stage
            .run_in_view(launch, &index, &tree, |root| words(&[&"stat", &"-c", &"%h", &root.join("file")]));
        assert_eq!(ended.expect(0).text(), "6\n", "{launch:?}");
    }
}

#[test]
fn a_tree_named_through_a_symbolic_link_is_covered_at_its_real_path() {
    let stage = Stage::new();
    let tree = trees::small(&stage, "tree");
    symlink(&tree, stage.path("alias")).unwrap();
    let index = stage.index(&stage.path("alias"));
    for view in views() {
        let script = "cat \"$1/readme\" && grep -c \" $2 \" /proc/self/mountinfo";
        let alias = stage.path("alias");
        let mut command = stage.quell_run(&index, view);
        command.args(["--strict", "--quiet", "--", "sh", "-c", script, "sh"]).arg(&alias).arg(&tree);
        assert_eq!(stage.run(&mut command).expect(0).text(), "hello\n1\n", "{view}");
    }
}
