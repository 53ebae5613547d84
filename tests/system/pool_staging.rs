//! `quell pool stage-in` and `stage-out`: trees are equal after both, entries that are not copied
//! are listed, and an interrupted command is continued.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::pool::{Pool, is_incomplete};
use crate::skip;
use crate::stage::{Ended, quell};

/// Kind and permissions, owner, modification time, and content or target of an entry.
pub type Entry = (u32, u32, i64, i64, Vec<u8>);

/// Returns the entries below a directory.
pub fn listing(root: &Path) -> BTreeMap<Vec<u8>, Entry> {
    let mut found = BTreeMap::new();
    let mut left: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let status = fs::symlink_metadata(&path).unwrap();
            let content = if status.is_dir() {
                left.push(path.clone());
                Vec::new()
            } else if status.is_symlink() {
                fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
            } else {
                fs::read(&path).unwrap()
            };
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            found.insert(name, (status.mode(), status.uid(), status.mtime(), status.mtime_nsec(), content));
        }
    }
    found
}

/// Creates a tree with odd names, links, permissions and a file with holes.
pub fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    for number in 0..30_u8 {
        fs::write(root.join(format!("sub/{number}")), vec![number; 1000 * usize::from(number)]).unwrap();
    }
    fs::write(root.join("new\nline \u{202e}"), b"odd").unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"\xff")), b"not UTF-8").unwrap();
    let large: Vec<u8> = (0..9_500_000_u32).map(|at| (at / 3) as u8).collect();
    fs::write(root.join("sub/deep/large"), large).unwrap();
    let sparse = fs::File::create(root.join("sub/sparse")).unwrap();
    sparse.write_all_at(b"data", 40_000_000).unwrap();
    sparse.set_len(60_000_000).unwrap();
    symlink("../nowhere", root.join("sub/link")).unwrap();
    fs::set_permissions(root.join("sub/3"), fs::Permissions::from_mode(0o4750)).unwrap();
    fs::set_permissions(root.join("sub/deep"), fs::Permissions::from_mode(0o555)).unwrap();
    let old = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_nanos(77));
    for name in ["sub/4", "sub/deep", "sub"] {
        fs::File::open(root.join(name)).unwrap().set_times(old).unwrap();
    }
}

#[test]
fn a_tree_is_the_same_after_stage_in_and_stage_out() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    for daemons in [1, 3] {
        let pool = Pool::start(daemons);
        let tree = pool.stage.dir("tree");
        make_tree(&tree);
        let path = |name: &str| pool.stage.path(name).to_str().unwrap().to_owned();
        let staged =
            pool.quell(&["pool", "stage-in", &path("tree"), "p:/in/put", "--manifest", &path("in.jsonl")]);
        assert_eq!((staged.code(), staged.text(), staged.err.as_str()), (Some(0), String::new(), ""));
        // Programs see the files.
        let found = pool.sh("cd in/put/tree && cat new*; readlink sub/link; wc -c <sub/sparse").expect(0);
        assert_eq!(found.text(), "odd../nowhere\n60000000\n");
        let copied = pool.quell(&[
            "pool",
            "stage-out",
            "p:/in/put/tree",
            &path("out"),
            "--manifest",
            &path("out.jsonl"),
        ]);
        assert_eq!((copied.code(), copied.text(), copied.err.as_str()), (Some(0), String::new(), ""));
        assert_eq!(listing(&pool.stage.path("out/tree")), listing(&tree));
        let sparse = fs::metadata(pool.stage.path("out/tree/sub/sparse")).unwrap();
        assert!(sparse.blocks() < 100, "{} blocks", sparse.blocks());
        // Both manifests contain the same lines, in any order.
        let lines = |name: &str| {
            let text = fs::read_to_string(pool.stage.path(name)).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines("in.jsonl"), lines("out.jsonl"));
        assert_eq!(lines("in.jsonl").len(), 35, "34 files, and the end");
        // Files that exist are part of the manifest, too.
        let arguments = ["pool", "stage-in", &path("tree"), "p:/in/put", "--manifest", &path("again.jsonl")];
        pool.quell(&arguments).expect(0);
        assert_eq!(lines("again.jsonl"), lines("in.jsonl"));
        // The entries of the root, and files that exist already.
        pool.quell(&["pool", "stage-out", "p:/", &path("all")]).expect(0);
        assert_eq!(listing(&pool.stage.path("all/in/put/tree")), listing(&tree));
        let again = pool
            .quell(&["pool", "stage-out", "p:/in/put/tree/.", &path("out/tree"), "--json"])
            .expect(0)
            .json();
        assert_eq!((&again["files"], &again["unchanged"]), (&0.into(), &35.into()), "{again}");
        pool.expect_nothing_left();
    }
}

#[test]
fn what_is_not_copied_is_listed_and_the_exit_code_is_1() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(1);
    let tree = pool.stage.dir("tree");
    fs::write(tree.join("file"), b"content").unwrap();
    let bound = std::os::unix::net::UnixListener::bind(tree.join("soc\nket")).unwrap();
    let name = tree.to_str().unwrap();
    let staged = pool.quell(&["pool", "stage-in", name, "p:/"]).expect(1);
    assert!(staged.err.contains("tree/soc\\nket: copy: not supported"), "{}", staged.err);
    let failed = pool.quell(&["pool", "stage-in", name, "/nonexistent", "p:/", "--json"]).expect(1);
    assert_eq!(failed.err, "");
    let lines: Vec<serde_json::Value> =
        failed.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut paths: Vec<&str> = lines.iter().filter_map(|line| line["path"].as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["nonexistent", "tree/soc\nket"]);
    assert_eq!((&lines[2]["failed"], &lines[2]["unchanged"]), (&2.into(), &1.into()));
    drop(bound);
    // The pool has a file in the place of a directory.
    pool.sh("rm -r tree && echo >tree").expect(0);
    pool.quell(&["pool", "stage-in", name, "p:/"]).expect(1).says("another file of this name");
    // Wrong usage.
    pool.quell(&["pool", "stage-in", name, "p"]).expect(2).says("NAME:/PATH");
    pool.quell(&["pool", "stage-in", name, name, "p:/"]).expect(2).says("the same name");
    pool.quell(&["pool", "stage-in", name, "other:/"]).expect(2).says("there is no pool other");
    pool.quell(&["pool", "stage-in", name, "p:/", "--part", "2/2"]).expect(2).says("I/N");
    pool.quell(&["pool", "stage-out", "p:/a/b", name]).expect(2).says("No such file");
    pool.quell(&["pool", "stage-out", "p:/a", name]).expect(1).says("No such file");
    pool.expect_nothing_left();
}

#[test]
fn a_command_that_was_interrupted_or_killed_is_continued() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(2);
    let tree = pool.stage.dir("tree");
    for number in 0..600 {
        fs::write(tree.join(number.to_string()), vec![1; 5000]).unwrap();
    }
    let name = tree.to_str().unwrap();
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let mut command = pool.stage.quell();
        let running = pool.stage.start(command.args(["pool", "stage-in", name, "p:/", "-j", "2"]));
        // After the first files have their names.
        let has_begun = || !pool.sh("ls tree 2>/dev/null").text().is_empty();
        assert!(crate::stage::eventually(has_begun));
        running.signal(signal);
        let ended = running.wait();
        // The command may have ended before the signal.
        assert!(ended.code() == code || ended.code() == Some(0), "{:?}: {}", ended.code(), ended.err);
        if signal == Signal::INT {
            assert_eq!(pool.sh("ls -A tree | grep -c quell-staging").text(), "0\n");
        }
        // Each file that has its name is complete.
        let sizes = pool.sh("find tree -name '[0-9]*' -type f ! -size 5000c | wc -l").expect(0);
        assert_eq!(sizes.text().trim(), "0");
    }
    pool.quell(&["pool", "stage-in", name, "p:/"]).expect(0);
    let out = pool.stage.dir("out");
    pool.quell(&["pool", "stage-out", "p:/tree", out.to_str().unwrap()]).expect(0);
    assert_eq!(listing(&out.join("tree")), listing(&tree));
    pool.expect_nothing_left();
}

#[test]
fn several_processes_copy_parts_of_a_tree() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(2);
    let tree = pool.stage.dir("tree");
    make_tree(&tree);
    let out = pool.stage.dir("out");
    for (verb, from, to) in
        [("stage-in", tree.to_str().unwrap(), "p:/"), ("stage-out", "p:/tree", out.to_str().unwrap())]
    {
        let mut command = pool.stage.quell();
        command.args(["pool", verb, from, to, "--part", "auto"]);
        pool.stage.run(&mut command).expect(2).says("mpirun");
        let mut start = |rank: &str| pool.stage.start(command.env("PMI_RANK", rank).env("PMI_SIZE", "3"));
        let running = ["0", "1", "2"].map(&mut start);
        for process in running {
            process.wait().expect(0);
        }
    }
    let content = |root: &Path| -> Vec<_> {
        listing(root).into_iter().map(|(path, entry)| (path, entry.0 | 0o700, entry.4)).collect()
    };
    assert_eq!(content(&out.join("tree")), content(&tree));
    pool.expect_nothing_left();
}

#[test]
fn a_pool_ends_without_discard_only_after_all_its_changes_were_copied() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(3);
    let out = pool.stage.dir("out");
    let out = out.to_str().unwrap();
    let is_refused = || {
        pool.quell(&["pool", "down", "p"]).expect(1).says("not copied out");
    };
    pool.sh("mkdir d && echo 1 >d/a && echo 2 >d/b").expect(0);
    is_refused();
    // A copy of a part, a copy that failed, and a copy with --part do not count.
    pool.quell(&["pool", "stage-out", "p:/d", out]).expect(0);
    is_refused();
    fs::create_dir_all(pool.stage.path("blocked/d/a")).unwrap();
    pool.quell(&["pool", "stage-out", "p:/", pool.stage.path("blocked").to_str().unwrap()]).expect(1);
    is_refused();
    pool.quell(&["pool", "stage-out", "p:/", out, "--part", "0/1"]).expect(0);
    is_refused();
    // Every kind of change after a complete copy.
    let changes = [
        "echo 3 >>d/a",
        ": >d/b",
        "chmod 600 d/b",
        "touch d/c",
        "ln -s x d/link",
        "mv d/c d/e",
        "mkdir d/sub",
        "rm d/e",
        "rmdir d/sub",
    ];
    for change in changes {
        pool.quell(&["pool", "stage-out", "p:/", out]).expect(0);
        pool.sh(change).expect(0);
        is_refused();
    }
    // Reading is not a change.
    pool.quell(&["pool", "stage-out", "p:/", out]).expect(0);
    pool.sh("ls -lR && cat d/a").expect(0);
    pool.quell(&["pool", "down", "p"]).expect(0);
    assert_eq!(fs::read(Path::new(out).join("d/a")).unwrap(), b"1\n3\n");
    assert_eq!(pool.quell(&["pool", "ls"]).expect(0).text(), "");
    // A pool without files.
    let mut up = pool.stage.quell();
    up.args(["pool", "up", "p", "--local", "1", "--dir"]).arg(pool.stage.path("data"));
    pool.stage.run(&mut up).expect(0);
    pool.sh("touch a && rm a").expect(0);
    pool.quell(&["pool", "down", "p"]).expect(0);
    pool.stage.expect_nothing_left();
}

#[test]
fn files_of_a_daemon_that_has_ended_are_listed() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(3);
    let tree = pool.stage.dir("tree");
    make_tree(&tree);
    let tree = tree.to_str().unwrap();
    pool.quell(&["pool", "stage-in", tree, "p:/"]).expect(0);
    // The killed daemon is neither the one to which programs connect, nor the one with the root
    // directory.
    crate::stage::send(pool.daemons()[1], Signal::KILL);
    let out = pool.stage.path("out");
    let copied = pool.quell(&["pool", "stage-out", "p:/tree", out.to_str().unwrap()]).expect(1);
    assert!(copied.err.lines().all(|line| line.starts_with("quell: ")), "{}", copied.err);
    let staged = pool.quell(&["pool", "stage-in", tree, "p:/", "--json"]).expect(1);
    assert!(staged.text().contains("\"error\""), "{}", staged.text());
    pool.quell(&["pool", "down", "p"]).expect(1).says("cannot be determined").says("--discard");
    pool.expect_nothing_left();
}

#[test]
fn everything_that_the_other_daemons_have_is_copied_if_one_has_ended() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    // Programs connect to one of the daemons, and one has the root directory.
    for ended in 0..3 {
        let pool = Pool::start(3);
        let tree = pool.stage.dir("tree");
        let names: Vec<String> = (0..90).map(|number| format!("file-{number}")).collect();
        for name in &names {
            fs::write(tree.join(name), name).unwrap();
        }
        pool.quell(&["pool", "stage-in", &format!("{}/.", tree.display()), "p:/"]).expect(0);
        let daemon = pool.daemons()[ended];
        crate::stage::send(daemon, Signal::KILL);
        // Until the killed daemon has ended, connections to it can be lost while the command
        // begins.
        while fs::read_to_string(format!("/proc/{daemon}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let out = pool.stage.path("out");
        let run = pool.quell(&["pool", "stage-out", "p:/", out.to_str().unwrap(), "--json"]).expect(1);
        let text = run.text();
        let failed = |path: &str| text.contains(&format!("\"path\":\"{path}\""));
        let copied: Vec<&String> = names.iter().filter(|name| out.join(name).exists()).collect();
        // The names of about a third of the files are lost, and the data of a third of the others.
        assert!((10..80).contains(&copied.len()), "{} files were copied", copied.len());
        for name in copied {
            assert_eq!(fs::read_to_string(out.join(name)).unwrap(), *name);
            assert!(!failed(name), "{name} was copied and is listed as a failure");
        }
        assert!(failed(""), "the lost names are not reported: {text}");
        pool.expect_nothing_left();
    }
}

/// Runs the example of a Slurm job, without Slurm and on this machine, with a program that writes a
/// result. `destination`: the directory from which the job was submitted.
fn run_example_job(pool: &Pool, destination: &Path) -> Ended {
    let bin = pool.stage.dir("bin");
    let executable = |path: PathBuf, text: &str| {
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    // The pool of the test is already there.
    let quell = quell().display().to_string();
    executable(bin.join("quell"), &format!("[ \"$2\" = up ] || exec '{quell}' \"$@\""));
    executable(bin.join("srun"), "exec \"$@\"");
    let directory = pool.stage.dir("submitted");
    let program = "mkdir \"$QUELL_POOL_DIR/results\" && echo result >\"$QUELL_POOL_DIR/results/file\"";
    executable(directory.join("simulate"), program);
    let script = include_str!("../../examples/slurm/pool-job.sh").replace("name=job-$SLURM_JOB_ID", "name=p");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = pool.stage.command("bash");
    command.args(["-c", &script]).current_dir(&directory).env("SLURM_SUBMIT_DIR", destination);
    pool.stage.run(command.env("PATH", format!("{}:{path}", bin.display())))
}

#[test]
fn the_example_of_a_job_ends_its_pool_only_if_the_results_were_copied() {
    if is_incomplete() {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let pool = Pool::start(2);
    let no_directory = pool.stage.file("file", "");
    let failed = run_example_job(&pool, &no_directory);
    assert_ne!(failed.code(), Some(0));
    failed.says("--discard");
    assert_eq!(pool.sh("cat results/file && rm -r results").expect(0).text(), "result\n");
    let destination = pool.stage.dir("destination");
    run_example_job(&pool, &destination).expect(0);
    assert_eq!(fs::read_to_string(destination.join("results/file")).unwrap(), "result\n");
    pool.stage.expect_nothing_left();
}
