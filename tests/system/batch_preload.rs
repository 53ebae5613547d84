//! `quell run --via preload --batch`.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Stage, eventually, has, words};

impl Stage {
    /// Returns the command that runs a program with a store at a directory.
    fn preloaded_batch(&self, store: &Path, dir: &Path, options: &[&str]) -> Command {
        let mut command = self.quell();
        let batch = format!("{}={}", store.display(), dir.display());
        command.args(words(&[&"run", &"--via", &"preload", &"--batch", &batch])).args(options).arg("--");
        command
    }

    /// Returns the command that runs a script, whose first argument is the directory.
    fn preloaded_script(&self, store: &Path, dir: &Path, options: &[&str], script: &str) -> Command {
        let mut command = self.preloaded_batch(store, dir, options);
        command.args(words(&[&"sh", &"-c", &script, &"sh", &dir]));
        command
    }

    /// Returns the output of a script that reads the files of a store.
    fn read_preloaded(&self, store: &Path, script: &str) -> String {
        let dir = self.dir("read");
        self.run(&mut self.preloaded_script(store, &dir, &["--mode", "sync"], script)).expect(0).text()
    }

    /// Checks that no socket of a batch remains in the runtime directory.
    fn expect_no_sockets(&self) {
        let found = self.sh("find \"$XDG_RUNTIME_DIR\" -name 'batch-*' 2>/dev/null || true", &[]).expect(0);
        assert_eq!(found.text(), "");
    }
}

#[test]
fn files_of_all_processes_are_published_when_the_program_ends() {
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let script = r#"
        cd "$1" && mkdir -p a/b && for i in $(seq 50); do (echo $i > a/b/$i) & done; wait
        head -c 300000 /dev/zero > large; echo more >> large; ln a/b/1 hard; ln -s a/b/2 soft
        mv a/b/3 three; rm a/b/4; touch "$1/../ready"; while [ -e "$1/../ready" ]; do sleep 0.02; done
        cat hard soft three; exit 7
    "#;
    let options = ["--batch-name", "first"];
    let program = stage.start(&mut stage.preloaded_script(&store, &dir, &options, script));
    assert!(eventually(|| stage.path("ready").exists()), "{}", program.err());
    // Only the program sees the files, and the batch is open.
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert_eq!(stage.batches(&store)[0]["state"], "open");
    fs::remove_file(stage.path("ready")).unwrap();
    let ended = program.wait().expect(7);
    assert_eq!((ended.text().as_str(), ended.err.as_str()), ("1\n2\n3\n", ""));
    let batches = stage.batches(&store);
    assert_eq!((&batches[0]["state"], &batches[0]["name"]), (&"committed".into(), &"first".into()));
    let read =
        "cd $1; ls a/b | wc -l; cat hard soft three a/b/50; wc -c < large; tail -n 1 large | tr -d '\\0'";
    assert_eq!(stage.read_preloaded(&store, read), "48\n1\n2\n3\n50\n300005\nmore\n");
    // The second batch is limited to a directory of the store.
    let mut inside = stage.preloaded_script(&store.join("a"), &dir, &[], "cd $1; cat b/7; echo more > b/7");
    assert_eq!(stage.run(&mut inside).expect(0).text(), "7\n");
    assert_eq!(stage.read_preloaded(&store, "cat $1/a/b/7"), "more\n");
    stage.expect_no_sockets();
    stage.expect_nothing_left();
}

#[test]
fn signals_are_passed_and_a_killed_process_leaves_its_complete_operations() {
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let run = |script: &str| stage.run(&mut stage.preloaded_script(&store, &dir, &[], script));
    // The child is killed while it creates files.
    let killed = "i=0; (while :; do i=$((i+1)); echo $i > $1/killed-$i; done) & sleep 0.3; kill -KILL $!; echo > $1/parent";
    run(killed).expect(0);
    run("echo > $1/before; kill -KILL $$").expect(137);
    let mut missing = stage.preloaded_batch(&store, &dir, &[]);
    stage.run(missing.arg("/no/such/program")).expect(2);
    let script = "trap 'echo > $1/ended; exit 3' TERM; touch $1/../ready; while :; do sleep 0.02; done";
    let program = stage.start(&mut stage.preloaded_script(&store, &dir, &[], script));
    assert!(eventually(|| stage.path("ready").exists()), "{}", program.err());
    program.signal(Signal::TERM);
    program.wait().expect(3);
    assert_eq!(stage.read_preloaded(&store, "ls $1 | grep -v killed-"), "before\nended\nparent\n");
    // Each file of the killed process is whole, or was just created.
    let whole =
        "cd $1; for f in killed-*; do c=$(cat $f); test -z \"$c\" -o \"killed-$c\" = $f || echo $f: $c; done";
    assert_eq!(stage.read_preloaded(&store, whole), "");
    let fsck = stage.run(stage.quell().args(words(&[&"batch", &"fsck", &store]))).expect(0);
    assert!(fsck.err.contains(" 0 problems"), "{}", fsck.err);
    stage.expect_no_sockets();
    stage.expect_nothing_left();
}

#[test]
fn a_batch_whose_process_is_killed_is_lost_and_can_be_aborted() {
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let script = r#"
        echo > $1/a; touch $1/../ready; while [ -e $1/../ready ]; do sleep 0.02; done
        echo b > $1/b; echo $? > $1/../status
    "#;
    let program = stage.start(&mut stage.preloaded_script(&store, &dir, &[], script));
    assert!(eventually(|| stage.path("ready").exists()), "{}", program.err());
    program.signal(Signal::KILL);
    program.wait();
    fs::remove_file(stage.path("ready")).unwrap();
    // The program gets errors.
    assert!(eventually(|| fs::read_to_string(stage.path("status")).is_ok_and(|text| text.ends_with('\n'))));
    assert_ne!(fs::read_to_string(stage.path("status")).unwrap(), "0\n");
    assert_eq!(stage.batches(&store)[0]["state"], "open");
    let abort = words(&[&"batch", &"abort", &store, &"1"]);
    stage.run(stage.quell().args(&abort)).expect(0);
    assert_eq!(stage.read_preloaded(&store, "ls $1"), "");
    stage.expect_nothing_left();
}

#[test]
fn processes_that_the_program_leaves_running_lose_access() {
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let script = r#"
        beside=${1%/*}
        (exec > /dev/null 2>&1; while [ ! -e $beside/end ]; do sleep 0.02; done
         echo late > $1/late; echo $? > $beside/status) &
        echo > $1/in-time
    "#;
    stage.run(&mut stage.preloaded_script(&store, &dir, &[], script)).expect(0);
    fs::write(stage.path("end"), "").unwrap();
    assert!(eventually(|| fs::read_to_string(stage.path("status")).is_ok_and(|text| text.ends_with('\n'))));
    assert_ne!(fs::read_to_string(stage.path("status")).unwrap(), "0\n");
    assert_eq!(stage.read_preloaded(&store, "ls $1"), "in-time\n");
    stage.expect_nothing_left();
}

#[test]
fn programs_use_the_synchronous_mode_of_a_server() {
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let server = stage.start(stage.quell().args(words(&[&"batch", &"serve", &store])));
    assert!(eventually(|| store.join("socket").exists()), "{}", server.err());
    let run = |script: &str| {
        stage.run(&mut stage.preloaded_script(&store, &dir, &["--mode", "sync"], script)).expect(0).text()
    };
    run("mkdir -p $1/a/b; echo x > $1/a/b/c; head -c 100000 /dev/zero > $1/large");
    assert_eq!(run("cat $1/a/b/c; wc -c < $1/large; mv $1/a $1/z; ls $1"), "x\n100000\nlarge\nz\n");
    server.signal(Signal::TERM);
    server.wait().expect(0);
    stage.expect_no_sockets();
    stage.expect_nothing_left();
}

#[test]
fn python_programs_share_a_batch_between_their_processes() {
    if !has("python3") {
        skip!("python3 is not installed");
    }
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let program = r#"
import multiprocessing, os, sys
os.chdir(sys.argv[1])
def work(number):
    os.makedirs(f"dir{number % 4}", exist_ok=True)
    for file in range(25):
        path = f"dir{number % 4}/{number}-{file}"
        with open(path + ".new", "w") as f:
            f.write(path * 1000)
        os.rename(path + ".new", path)
        with open("log", "a") as f:
            f.write(path + "\n")
    return number
multiprocessing.set_start_method("fork")
with multiprocessing.Pool(4) as pool:
    assert sorted(pool.map(work, range(16))) == list(range(16))
paths = [f"dir{n % 4}/{n}-{f}" for n in range(16) for f in range(25)]
assert sorted(open("log").read().split()) == sorted(paths)
assert all(open(path).read() == path * 1000 for path in paths)
print(len(paths))
"#;
    let mut command = stage.preloaded_batch(&store, &dir, &[]);
    command.args(words(&[&"python3", &"-c", &program, &dir]));
    assert_eq!(stage.run(&mut command).expect(0).text(), "400\n");
    assert_eq!(
        stage.read_preloaded(&store, "cd $1; cat dir*/* | wc -c; wc -l < log"),
        format!("{}\n400\n", {
            let bytes = |n: usize, f: usize| format!("dir{}/{n}-{f}", n % 4).len() * 1000;
            (0..16).flat_map(|n| (0..25).map(move |f| bytes(n, f))).sum::<usize>()
        })
    );
    stage.expect_nothing_left();
}

#[test]
fn git_works_in_a_batch() {
    if !has("git") {
        skip!("git is not installed");
    }
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let script = r#"
        set -e; cd $1; git init -q r; cd r; git config user.name n; git config user.email e
        mkdir d; for i in $(seq 20); do echo $i > d/$i; done; git add .; git commit -qm one; git mv d e
        git commit -qm two; git gc -q; git clone -q . ../copy; cd ../copy; git fsck --strict 2>&1; git log --format=%s
    "#;
    assert_eq!(
        stage.run(&mut stage.preloaded_script(&store, &dir, &[], script)).expect(0).text(),
        "two\none\n"
    );
    let read = "cd $1/copy; git status --short; ls e | wc -l";
    assert_eq!(stage.read_preloaded(&store, read), "20\n");
    stage.expect_nothing_left();
}

#[test]
fn parts_of_a_batch_are_committed_together() {
    let stage = Stage::new();
    let (store, dir) = (stage.batch_store(), stage.dir("job"));
    let begun = stage.run(stage.quell().args(words(&[&"batch", &"begin", &store]))).expect(0).text();
    let number = begun.trim().to_owned();
    for part in ["one", "two"] {
        let script = format!("mkdir -p $1/dir; echo {part} > $1/dir/{part}");
        stage.run(&mut stage.preloaded_script(&store, &dir, &["--join", &number], &script)).expect(0);
    }
    assert_eq!(stage.read_preloaded(&store, "ls $1"), "");
    stage.run(stage.quell().args(words(&[&"batch", &"commit", &store, &number]))).expect(0);
    assert_eq!(stage.read_preloaded(&store, "cat $1/dir/*"), "one\ntwo\n");
    stage.expect_nothing_left();
}
