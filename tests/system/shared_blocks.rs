//! Blocks of files that the nodes of a job share (`quell run --job --share-data`). Each node is a
//! stage, as in `job.rs`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::boot::BLOCK;
use crate::job::{Job, MooseFsJob, NESTED_UNTIL, UNTIL, why_not};
use crate::moosefs;
use crate::skip;
use crate::stage::{Running, eventually, has, is_root, send};

/// The bytes of the tree of a `Job`.
const TREE_BYTES: u64 = 30 * 5 * BLOCK as u64;
/// The memory that its shared blocks take: each of the 30 files is one block, which takes 256 bytes
/// more than its content.
const TREE_MEMORY_BYTES: u64 = TREE_BYTES + 30 * 256;

/// Reads one file, waits for a file, and reads all files.
const IN_TWO_STEPS: &str =
    r#"cksum <"$1/f0"; echo started; while ! test -e "$2"; do sleep 0.05; done; cat "$1"/* | cksum"#;

/// Returns `quell run --job --share-data` without a boot image on a node, and without the program.
fn run(job: &Job, node: usize) -> Command {
    let mut command = job.nodes[node].quell();
    command.args(["run", "--strict", "--check", "none", "--recheck", "0", "--share", "test", "--job"]);
    command.arg("--share-data=8").arg("-i").arg(&job.index).arg("--job-dir").arg(job.directory());
    command.args(["--job-interface", "lo", "--job-timeout", "600"]);
    command
}

fn start(job: &Job, node: usize, script: &str) -> Running {
    let mut command = run(job, node);
    command.args(["--", "sh", "-c", script, "sh"]).arg(&job.tree).arg(job.go());
    let mut running = job.nodes[node].start(&mut command);
    running.wait_for_output("started");
    running
}

fn blocks(job: &Job, node: usize, name: &str) -> u64 {
    let status = job.status(node);
    status[0]["shared_blocks"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status}"))
}

/// Writes other bytes to a file, without a change of its size.
fn change(file: &Path) {
    let length = fs::metadata(file).unwrap().len() as usize;
    File::options().write(true).open(file).unwrap().write_all_at(&vec![b'x'; length], 0).unwrap();
}

#[test]
fn files_in_no_boot_image_are_read_by_one_node_of_the_job() {
    let job = Job::new(4);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    let checksum = job.checksum();
    let mut running = vec![start(&job, 0, UNTIL)];
    assert_eq!(
        (blocks(&job, 0, "read_bytes"), blocks(&job, 0, "memory_bytes")),
        (TREE_BYTES, TREE_MEMORY_BYTES)
    );
    // The other nodes cannot read the indexed content any more.
    (0..30).for_each(|number| change(&job.tree.join(format!("f{number}"))));
    running.extend((1..4).map(|node| start(&job, node, UNTIL)));
    for node in 1..4 {
        let of_node = |name| blocks(&job, node, name);
        assert_eq!((of_node("read_bytes"), of_node("received_bytes")), (0, TREE_BYTES), "node {node}");
        assert_eq!(of_node("memory_bytes_max"), 8 << 20);
    }
    // The reader sends to its view, and to nodes 1 and 2; node 3 is a child of node 1.
    assert_eq!([0, 1, 2, 3].map(|node| blocks(&job, node, "sent_blocks")), [90, 60, 30, 30]);
    let text = job.nodes[1].run(job.nodes[1].quell().args(["job", "status"])).expect(0).text();
    assert!(text.contains("shared blocks of this node: 60 sent"), "{text}");

    fs::write(job.go(), "").unwrap();
    for running in running {
        let ended = running.wait().expect(0);
        assert_eq!((ended.text(), ended.err.as_str()), (format!("{checksum}started\n"), ""));
    }
    job.expect_nothing_left();
}

#[test]
fn a_changed_file_is_refused_on_all_nodes() {
    let job = Job::new(2);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    change(&job.tree.join("f1"));
    let running: Vec<Running> = (0..2)
        .map(|node| {
            let script =
                r#"cksum <"$1/f0"; cat "$1/f1"; echo started; while ! test -e "$2"; do sleep 0.05; done"#;
            start(&job, node, script)
        })
        .collect();
    assert_eq!((blocks(&job, 0, "read_bytes"), blocks(&job, 1, "read_bytes")), (5 * BLOCK as u64, 0));
    fs::write(job.go(), "").unwrap();
    for running in running {
        let ended = running.wait().expect(0);
        assert!(ended.err.contains("Stale file handle") && ended.err.lines().count() == 1, "{}", ended.err);
        assert_eq!(ended.text().lines().count(), 2, "{}", ended.text());
    }
    job.expect_nothing_left();
}

#[test]
fn programs_go_on_if_a_job_holder_is_killed() {
    let job = Job::new(2);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    let checksum = job.checksum();
    let running: Vec<Running> = (0..2).map(|node| start(&job, node, IN_TWO_STEPS)).collect();
    send(job.process(0), Signal::KILL);
    assert!(eventually(|| job.nodes[0].holders().len() == 1));
    fs::write(job.go(), "").unwrap();
    let lost = [
        "cannot get blocks of files from the job holder",
        "cannot receive blocks of files from another node",
    ];
    for (running, lost) in running.into_iter().zip(lost) {
        let ended = running.wait().expect(0);
        assert!(ended.text().ends_with(&format!("started\n{checksum}")), "{}", ended.text());
        assert!(ended.err.contains(lost) && ended.err.lines().count() == 1, "{}", ended.err);
    }
    // The next run on the node removes the sockets of the killed process.
    job.nodes[0].run(run(&job, 0).args(["--", "true"])).expect(0);
    job.expect_nothing_left();
}

#[test]
fn options_without_shared_blocks_are_refused() {
    let job = Job::new(1);
    for (options, expected) in [
        (&["--view", "overlay"][..], "only with --view fuse"),
        (&["--via", "preload"], "--via preload"),
        (&["--on-change", "serve"], "--on-change refuse"),
    ] {
        let mut command = run(&job, 0);
        job.nodes[0].run(command.args(options).args(["--", "true"])).expect(2).says(expected);
    }
    for (options, expected) in
        [(&["--share-data"][..], "--job"), (&["--job", "--share-data=0"], "0 is not in")]
    {
        let mut command = job.nodes[0].quell();
        command.arg("run").args(options).arg("-i").arg(&job.index).args(["--", "true"]);
        job.nodes[0].run(&mut command).expect(2).says(expected);
    }
    job.expect_nothing_left();
}

#[test]
fn the_file_system_gets_the_reads_and_opens_of_one_node() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    const NODES: usize = 6;
    let job = MooseFsJob::start(NODES);
    let MooseFsJob { stage, testbed, nodes, .. } = &job;
    fs::write(testbed.node("1").join("tree/d00/large"), vec![b'l'; 5 << 20]).unwrap();
    let expected = job.index_tree();
    let numbers: Vec<String> = (1..=NODES).map(|node| node.to_string()).collect();
    let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
    // Runs the program on the first nodes at the same time, and returns their requests.
    let requests = |count: usize| {
        let go = stage.path(format!("go-{count}"));
        numbers.iter().for_each(|node| _ = testbed.call(&["drop", node]));
        let start = |node: usize| {
            let mut command = job.on_node(node);
            let name = format!("jobs-{count}");
            command.args(["run", "--strict", "--share", &name, "--check", "none", "--recheck", "0"]);
            command.args(["--job", "--share-data", "--job-timeout", "600", "--job-dir"]).arg(&job.private);
            command.arg("-i").arg(&job.index).args(["--", "sh", "-c", NESTED_UNTIL, "sh"]);
            command.arg(&job.tree).arg(&go);
            nodes[node - 1].start(&mut command)
        };
        let mut running = Vec::new();
        let asked = testbed.requests_during(&numbers[..count], || {
            running.extend((1..=count).map(start));
            running.iter_mut().for_each(|running| running.wait_for_output("started"));
        });
        fs::write(&go, "").unwrap();
        for ended in running.into_iter().map(|running| running.wait().expect(0)) {
            assert_eq!((ended.text(), ended.err.as_str()), (format!("{expected}started\n"), ""));
        }
        assert!(eventually(|| nodes.iter().all(|node| node.processes().is_empty())));
        asked
    };
    let of_one = requests(1).remove(0);
    let of_all = requests(NODES);
    let sum = |name: &str| of_all.iter().filter_map(|asked| asked.get(name)).sum::<u64>();
    assert!(of_one["open"] > 600 && of_one["read"] > 600, "{of_one:?}");
    // The kernel reads ahead in the large file, depending on the order of the reads.
    for (name, further) in [("open", 0), ("read", 20)] {
        assert!(sum(name) <= of_one[name] + further, "{name}: {of_one:?} {of_all:?}");
    }
    // The first node that finds no other is the reader.
    let opens = |node: &usize| of_all[*node].get("open").copied();
    let reader = (0..NODES).max_by_key(opens).unwrap();
    for (_, asked) in of_all.iter().enumerate().filter(|(node, _)| *node != reader) {
        // The directory of the meeting point and the link are looked up, the link is read, and the
        // directory of the tree is looked up.
        assert!(moosefs::metadata(asked) <= 4, "{asked:?}");
        assert_eq!(asked.get("read"), None, "{asked:?}");
    }
    // The comparisons after the reads cause no requests while the client has the attributes.
    assert!(of_one.get("getattr").is_none_or(|count| *count < 100), "{of_one:?}");
    job.end();
}
