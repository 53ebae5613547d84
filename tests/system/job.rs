//! One reader for a job (`quell run --job`). Each node is a stage: a runtime directory and
//! processes of its own on this machine.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::boot::BLOCK;
use crate::skip;
use crate::stage::{Running, Stage, can_unshare, eventually, has, is_root, quell, send};
use crate::testbed::Testbed;
use crate::unresponsive::{JobFiles, Suspendable};
use crate::{log_fixture, moosefs, trees};

/// Prints the program's files, says that it runs, and waits for a file.
pub const UNTIL: &str = r#"cat "$1"/* | cksum; echo started; while ! test -e "$2"; do sleep 0.05; done"#;

/// The same for a tree of directories.
pub const NESTED_UNTIL: &str =
    r#"cat "$1"/*/* | cksum; echo started; while ! test -e "$2"; do sleep 0.05; done"#;

pub struct Job {
    // The nodes, which end before the directory that they share.
    pub nodes: Vec<Stage>,
    shared: Stage,
    pub tree: PathBuf,
    pub index: PathBuf,
    boot: PathBuf,
}

impl Job {
    pub fn new(nodes: usize) -> Job {
        let shared = Stage::new();
        let tree = shared.dir("tree");
        for number in 0..30 {
            fs::write(tree.join(format!("f{number}")), trees::noise(5 * BLOCK, number)).unwrap();
        }
        let index = shared.index(&tree);
        let boot = shared.path("app.boot");
        let mut record = shared.quell();
        record.args(["record", "-q", "-i"]).arg(&index).arg("-o").arg(&boot);
        shared.run(record.args(["--", "sh", "-c", "cat \"$0\"/* >/dev/null"]).arg(&tree)).expect(0);
        assert!(eventually(|| shared.processes().is_empty()));
        let job = Job { nodes: (0..nodes).map(|_| Stage::new()).collect(), shared, tree, index, boot };
        fs::create_dir(job.directory()).unwrap();
        fs::set_permissions(job.directory(), fs::Permissions::from_mode(0o700)).unwrap();
        job
    }

    /// Returns the directory of the meeting point.
    pub fn directory(&self) -> PathBuf {
        self.shared.path("jobs")
    }

    fn links(&self) -> Vec<PathBuf> {
        fs::read_dir(self.directory()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns `quell run --job` on a node, without the program. The nodes may be slow.
    fn run(&self, node: usize) -> Command {
        let mut command = self.nodes[node].quell();
        command.args(["run", "--strict", "--check", "none", "--share", "test", "--job", "-i"]);
        command.arg(&self.index).arg("-b").arg(&self.boot).arg("--job-dir").arg(self.directory());
        command.args(["--job-interface", "lo", "--job-timeout", "600"]);
        command
    }

    /// Returns a program that runs until the file `go` exists.
    fn until(&self, node: usize) -> Command {
        let mut command = self.run(node);
        command.args(["--", "sh", "-c", UNTIL, "sh"]).arg(&self.tree).arg(self.go());
        command
    }

    pub fn go(&self) -> PathBuf {
        self.shared.path("go")
    }

    fn start(&self, node: usize) -> Running {
        let mut running = self.nodes[node].start(&mut self.until(node));
        running.wait_for_output("started");
        running
    }

    pub fn status(&self, node: usize) -> serde_json::Value {
        let ended = self.nodes[node].run(self.nodes[node].quell().args(["job", "status", "--json"]));
        ended.expect(0).json()
    }

    pub fn checksum(&self) -> String {
        self.shared.sh("cat \"$1\"/* | cksum", &[&self.tree]).expect(0).text()
    }

    /// Returns the job holder of a node.
    pub fn process(&self, node: usize) -> i32 {
        let is_of_job = |pid: &i32| {
            let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            let targets = links.filter_map(|entry| fs::read_link(entry.path()).ok());
            targets.into_iter().any(|target| target.to_string_lossy().contains("memfd:quell-job"))
        };
        let found: Vec<i32> = self.nodes[node].holders().into_iter().filter(is_of_job).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }

    #[track_caller]
    pub fn expect_nothing_left(&self) {
        self.nodes.iter().for_each(Stage::expect_nothing_left);
        assert_eq!(self.links(), Vec::<PathBuf>::new());
    }
}

pub fn why_not(job: &Job) -> Option<&'static str> {
    (!is_root() && !can_unshare(&job.shared)).then_some("user namespaces are not for ordinary users here")
}

#[test]
fn the_nodes_of_a_job_use_files_that_only_one_of_them_opens() {
    let job = Job::new(4);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    let first = job.start(0);
    assert_eq!(job.links().len(), 1);
    // No other node can open the files.
    for path in [&job.index, &job.boot] {
        fs::rename(path, path.with_extension("away")).unwrap();
    }
    let others: Vec<Running> = (1..4).map(|node| job.start(node)).collect();
    let own = |node| job.status(node)[0].clone();
    let (read, received) = (own(0)["read_bytes"].as_u64().unwrap(), own(0)["received_bytes"].as_u64());
    let length = |path: &Path| fs::metadata(path.with_extension("away")).unwrap().len();
    assert_eq!((read, received), (length(&job.index) + length(&job.boot), Some(0)));
    for (node, parent) in [(1, 0), (2, 0), (3, 1)] {
        let own = own(node);
        assert_eq!(
            (own["node"].as_u64(), own["parent"].as_u64()),
            (Some(node as u64), Some(parent)),
            "{own}"
        );
        assert_eq!(
            (own["received_bytes"].as_u64(), own["read_bytes"].as_u64()),
            (Some(read), Some(0)),
            "{own}"
        );
    }
    // The reader is told after the program of a node has started.
    let is_complete = |node: &serde_json::Value| !node["milliseconds"].is_null();
    assert!(eventually(|| {
        let nodes = own(0)["nodes"].as_array().unwrap().clone();
        nodes.len() == 4 && nodes.iter().all(is_complete)
    }));
    let shown = job.nodes[3].run(job.nodes[3].quell().args(["job", "status"])).expect(0).text();
    assert!(shown.contains("this is node 3"), "{shown}");

    // Further processes of a node use its copy.
    let again = job.nodes[1].run(job.run(1).args(["--", "echo", "again"])).expect(0);
    assert_eq!((again.text(), again.err.as_str()), ("again\n".into(), ""));
    assert_eq!(own(1)["nodes"].as_array().map(Vec::len), own(0)["nodes"].as_array().map(Vec::len));

    fs::write(job.go(), "").unwrap();
    let checksum = job.checksum();
    for running in others.into_iter().chain([first]) {
        let ended = running.wait().expect(0);
        assert_eq!((ended.text(), ended.err.as_str()), (format!("{checksum}started\n"), ""));
    }
    job.expect_nothing_left();
    let none = job.nodes[0].run(job.nodes[0].quell().args(["job", "status"])).expect(1);
    assert!(none.err.contains("no `quell run --job` of yours"), "{}", none.err);
}

#[test]
fn the_process_of_a_job_ends_with_the_run_that_is_interrupted() {
    let job = Job::new(1);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let running = job.start(0);
        assert_eq!(job.links().len(), 1);
        send(running.pid(), signal);
        running.wait();
        job.expect_nothing_left();
    }
    // A signal to the process itself: the program goes on.
    let running = job.start(0);
    send(job.process(0), Signal::TERM);
    assert!(eventually(|| job.links().is_empty()));
    fs::write(job.go(), "").unwrap();
    running.wait().expect(0);
    job.expect_nothing_left();
}

#[test]
fn a_killed_reader_is_replaced_and_programs_that_run_do_not_notice() {
    let job = Job::new(3);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    let running: Vec<Running> = (0..2).map(|node| job.start(node)).collect();
    let link = fs::read_link(&job.links()[0]).unwrap();
    send(job.process(0), Signal::KILL);
    assert!(eventually(|| job.nodes[0].holders().len() == 1));
    let third = job.start(2);
    assert_eq!(job.status(2)[0]["node"].as_u64(), Some(0), "it is the reader now");
    assert_ne!(fs::read_link(&job.links()[0]).unwrap(), link);
    // The node without a reader still reports about itself.
    let status = job.status(1);
    assert_eq!(status[0]["parent"].as_u64(), Some(0), "{status}");
    fs::write(job.go(), "").unwrap();
    let checksum = job.checksum();
    for running in running.into_iter().chain([third]) {
        let ended = running.wait().expect(0);
        assert_eq!((ended.text(), ended.err.as_str()), (format!("{checksum}started\n"), ""));
    }
    // The next run on the node removes the socket of the killed process.
    job.nodes[0].run(job.run(0).args(["--", "true"])).expect(0);
    job.expect_nothing_left();
}

#[test]
fn a_link_without_an_answering_reader_is_replaced_with_one_message() {
    let job = Job::new(1);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    let running = job.start(0);
    let name = job.links()[0].clone();
    fs::write(job.go(), "").unwrap();
    running.wait().expect(0);
    job.expect_nothing_left();
    // This process accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!("quell-job-1:{},{}", "0".repeat(64), silent.local_addr().unwrap());
    std::os::unix::fs::symlink(&text, &name).unwrap();
    // The last of two equal options counts.
    let mut command = job.nodes[0].quell();
    command.args(["run", "--strict", "--check", "none", "--share", "test", "--job", "-i"]).arg(&job.index);
    command.arg("-b").arg(&job.boot).arg("--job-dir").arg(job.directory());
    command.args(["--job-timeout", "0.3", "--", "cat"]).arg(job.tree.join("f0"));
    let ended = job.nodes[0].run(&mut command).expect(0);
    assert!(ended.out == fs::read(job.tree.join("f0")).unwrap());
    let said = ended.err.matches("replacing the link, and reading the files").count();
    assert_eq!((said, ended.err.lines().count()), (1, 1), "{}", ended.err);
    job.expect_nothing_left();
}

#[test]
fn a_directory_stands_for_the_index_beside_it_and_a_missing_one_is_created() {
    let job = Job::new(2);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    let of_tree = |node: usize, words: &[&str]| {
        let mut command = job.nodes[node].quell();
        command.args(["run", "--strict", "--check", "none", "--share", "dir", "--job", "-i"]).arg(&job.tree);
        command.arg("-b").arg(&job.boot).arg("--job-dir").arg(job.directory());
        command.args(["--job-interface", "lo", "--job-timeout", "600", "--"]).args(words);
        command
    };
    let beside = job.tree.with_extension("quell");
    if beside != job.index {
        fs::rename(&job.index, &beside).unwrap();
    }
    let go = job.go();
    let until = ["sh", "-c", UNTIL, "sh", job.tree.to_str().unwrap(), go.to_str().unwrap()];
    let mut first = job.nodes[0].start(&mut of_tree(0, &until));
    first.wait_for_output("started");
    fs::rename(&beside, beside.with_extension("away")).unwrap();
    let other = job.nodes[1].run(&mut of_tree(1, &["echo", "runs"])).expect(0);
    assert_eq!((other.text(), other.err.as_str()), ("runs\n".into(), ""));
    fs::write(&go, "").unwrap();
    first.wait().expect(0);
    // The index is of another directory.
    let other_tree = job.shared.dir("other-tree");
    let other_index = job.shared.path("other-tree.quell");
    fs::copy(beside.with_extension("away"), &other_index).unwrap();
    let mut command = job.nodes[0].quell();
    command.args(["run", "--share", "dir", "--job", "--job-interface", "lo", "-i"]).arg(&other_tree);
    command.arg("--job-dir").arg(job.directory()).args(["--", "true"]);
    job.nodes[0].run(&mut command).expect(2).says("is an index of");
    assert!(eventually(|| job.nodes[0].processes().is_empty()));
    // No index exists.
    let created = job.nodes[0].run(&mut of_tree(0, &["echo", "runs"])).expect(0);
    assert_eq!((created.text(), created.err.as_str()), ("runs\n".into(), ""));
    assert!(beside.exists());
    for node in &job.nodes {
        assert!(eventually(|| node.processes().is_empty()));
        node.sh("rm -f \"$0\"/*.refused \"$0\"/said-*", &[&node.runtime()]);
    }
    job.expect_nothing_left();
}

/// Returns the number of established TCP connections in the network namespace of a process.
fn connections(pid: i32) -> usize {
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    table.lines().filter(|line| line.split_whitespace().nth(3) == Some("01")).count()
}

/// Connects the network namespaces of these processes. The namespaces and their bridge end with
/// the processes.
fn connect(stage: &Stage, bridge: i32, nodes: &[Running]) {
    for (number, node) in (1..).zip(nodes) {
        let script = format!(
            "nsenter -t {bridge} --net ip link add v{number} type veth peer name eth0 netns {pid} &&
            nsenter -t {bridge} --net ip link set v{number} master bridge0 up &&
            nsenter -t {pid} --net ip addr add 10.99.0.{number}/24 dev eth0 &&
            nsenter -t {pid} --net ip link set eth0 up",
            pid = node.pid(),
        );
        stage.sh(&script, &[]).expect(0);
    }
}

#[test]
fn nodes_go_on_if_one_in_the_middle_of_the_tree_is_killed_while_they_receive() {
    if !is_root() {
        skip!("only root makes nodes with a network of their own");
    }
    if !["ip", "nsenter", "unshare", "setpriv"].iter().all(|program| has(program)) {
        skip!("no ip, nsenter, unshare or setpriv");
    }
    const NODES: usize = 8;
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let JobFiles { index, jobs } = shared.job_files();

    let network = Stage::new();
    let hold = |script: &str| {
        let mut command = network.command("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", script]);
        let mut holder = network.start(&mut command);
        holder.wait_for_output("ready");
        holder
    };
    let bridge = hold(
        "ip link add name bridge0 type bridge && ip link set bridge0 up && echo ready && exec sleep 3600",
    );
    let namespaces: Vec<Running> =
        (0..NODES).map(|_| hold("ip link set lo up && echo ready && exec sleep 3600")).collect();
    connect(&network, bridge.pid(), &namespaces);

    let stages: Vec<Stage> = (0..NODES).map(|_| Stage::new()).collect();
    let go = fixture.stage.path("go");
    let in_namespace = |node: usize| {
        let mut command = stages[node].command("nsenter");
        command.args(["-t", &namespaces[node].pid().to_string(), "--net"]).arg(quell());
        command
    };
    let total = || namespaces.iter().map(|namespace| connections(namespace.pid())).sum::<usize>();
    let suspended = shared.suspend();
    let (mut running, mut expected) = (Vec::new(), 0);
    for (node, stage) in stages.iter().enumerate() {
        let mut command = in_namespace(node);
        command.args(["run", "--strict", "--check", "none", "--share", "middle", "--job", "-i"]).arg(&index);
        // No node stops waiting for one that is slow.
        command.arg("--job-dir").arg(&jobs).args(["--job-timeout", "600", "--", "sh", "-c"]);
        command.arg(r#"cat "$0/small"; echo started; while ! test -e "$1"; do sleep 0.05; done"#);
        running.push(stage.start(command.arg(&shared.tree).arg(&go)));
        // Each node is connected to the reader, and to its parent if that is another one. Both ends
        // of a connection are counted.
        expected += match node {
            0 => 0,
            1 | 2 => 2,
            _ => 4,
        };
        match node {
            0 => assert!(eventually(|| fs::read_dir(&jobs).unwrap().count() == 1)),
            _ => assert!(eventually(|| total() == expected), "{} connections, not {expected}", total()),
        }
    }
    // Nodes 3 and 4 are children of node 1, and node 7 is a child of node 3.
    send(stages[1].holder(), Signal::KILL);
    let killed = Instant::now();
    // Node 1 had connections to the reader and to its two children. The children connect again only
    // to the reader, to which they have a connection.
    assert!(eventually(|| total() == expected - 6), "{}", total());
    // The children did not wait until `--job-timeout` was over.
    assert!(killed.elapsed() < Duration::from_secs(60), "{:?}", killed.elapsed());
    drop(suspended);
    for node in &mut running {
        node.wait_for_output("started");
    }
    let status = |node: usize| {
        let ended = stages[node].run(in_namespace(node).args(["job", "status", "--json"]));
        ended.expect(0).json()[0].clone()
    };
    let length = fs::metadata(&index).unwrap().len();
    let has_all = |node: &serde_json::Value| !node["milliseconds"].is_null();
    let nodes = || status(0)["nodes"].as_array().unwrap().clone();
    assert!(eventually(|| nodes().iter().filter(|node| has_all(node)).count() == NODES - 1), "{:?}", nodes());
    let parents: Vec<Option<u64>> = nodes().iter().map(|node| node["parent"].as_u64()).collect();
    assert_eq!(parents, [None, Some(0), Some(0), Some(0), Some(0), Some(2), Some(2), Some(3)]);
    for node in 0..NODES {
        let of_node = &nodes()[node];
        let bytes = (of_node["received_bytes"].as_u64(), of_node["read_bytes"].as_u64());
        match node {
            0 => assert_eq!(bytes, (Some(0), Some(length))),
            1 => assert!(!has_all(of_node)),
            _ => assert_eq!(bytes, (Some(length), Some(0)), "node {node}"),
        }
    }
    // Each node prints the same tree.
    assert_eq!(status(7)["nodes"].as_array(), Some(&nodes()));
    let text = stages[3].run(in_namespace(3).args(["job", "status"])).expect(0).text();
    assert!(text.contains("this is node 3") && text.lines().count() == 2 + NODES, "{text}");
    fs::write(&go, "").unwrap();
    for (node, ended) in running.into_iter().map(Running::wait).enumerate() {
        let ended = ended.expect(0);
        assert_eq!(ended.text(), "small\nstarted\n");
        // The run whose job holder was killed opens the file itself, and prints a message.
        assert_eq!(ended.err.lines().count(), usize::from(node == 1), "{}", ended.err);
    }
    for stage in &stages {
        assert!(eventually(|| stage.processes().is_empty()));
        stage.sh("rm -f \"$0\"/*.refused \"$0\"/said-* \"$0\"/*.lock \"$0\"/*.sock", &[&stage.runtime()]);
    }
    assert_eq!(fs::read_dir(&jobs).unwrap().count(), 0);
    drop((namespaces, bridge));
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn received_files_are_checked_as_files_are() {
    let job = Job::new(2);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    // A damaged index: equal messages on the node that reads it and on the one that receives it.
    let mut bytes = fs::read(&job.index).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    let whole = fs::read(&job.index).unwrap();
    fs::write(&job.index, &bytes).unwrap();
    let refused = |node: usize, code: i32| {
        let ended = job.nodes[node].run(job.run(node).args(["--", "true"])).expect(code);
        assert!(ended.err.contains("quell: "), "{}", ended.err);
        ended.err
    };
    // The process of the reader ends with its run, so a second one keeps it.
    let mut plain = job.nodes[0].quell();
    plain.args(["run", "--strict", "--check", "none", "-i"]).arg(&job.index).args(["--", "true"]);
    let expected = job.nodes[0].run(&mut plain);
    let code = expected.code().unwrap();
    assert_ne!(code, 0);
    assert_eq!([refused(0, code), refused(1, code)], [expected.err.clone(), expected.err]);
    fs::write(&job.index, &whole).unwrap();

    // An index that every user may write to.
    fs::set_permissions(&job.index, fs::Permissions::from_mode(0o666)).unwrap();
    for node in 0..2 {
        assert!(refused(node, 2).contains("may be written to by every user"));
    }
    fs::set_permissions(&job.index, fs::Permissions::from_mode(0o600)).unwrap();

    // A file that is neither an index nor a boot image is not read.
    fs::write(&job.boot, "a secret that is not a boot image").unwrap();
    for node in 0..2 {
        let said = refused(node, 2);
        assert!(said.contains("neither an index nor a boot image"), "{said}");
    }
    job.nodes.iter().for_each(|node| assert!(eventually(|| node.processes().is_empty())));
    job.expect_nothing_left();
}

#[test]
fn the_job_must_be_known_and_the_directory_private() {
    let job = Job::new(1);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    let node = &job.nodes[0];
    let mut unknown = node.command(quell());
    unknown.args(["run", "--job", "-i"]).arg(&job.index).args(["--", "true"]);
    let ended = node.run(&mut unknown).expect(2);
    assert!(ended.err.contains("--share NAME"), "{}", ended.err);
    fs::set_permissions(job.directory(), fs::Permissions::from_mode(0o750)).unwrap();
    let ended = node.run(job.run(0).args(["--", "echo", "runs"])).expect(0);
    assert_eq!(ended.text(), "runs\n");
    assert!(ended.err.contains("mode 0700") && ended.err.contains("reading the index"), "{}", ended.err);
    assert_eq!(job.links(), Vec::<PathBuf>::new());
    job.nodes[0].sh("rm -f \"$0\"/*.refused \"$0\"/said-*", &[&job.nodes[0].runtime()]);
    assert!(eventually(|| job.nodes[0].processes().is_empty()));
}

/// Names and attributes stay in the caches of the clients for longer than a test runs, so the
/// counts do not depend on the speed of the machine.
const LONG_CACHES: &str = "mfsattrcacheto=3600,mfsentrycacheto=3600,mfsdirentrycacheto=3600";

/// A job on the nodes of a MooseFS.
pub struct MooseFsJob {
    // The nodes, whose programs use the mounts, end before the MooseFS.
    pub nodes: Vec<Stage>,
    pub testbed: Testbed,
    pub stage: Stage,
    /// The mount of each node.
    pub mount: PathBuf,
    pub tree: PathBuf,
    pub index: PathBuf,
    /// A directory of the file system that only the user can enter.
    pub private: PathBuf,
}

impl MooseFsJob {
    /// Starts a MooseFS with the tree of [`moosefs::make_tree`].
    pub fn start(nodes: usize) -> MooseFsJob {
        let stage = Stage::new();
        let testbed = Testbed::start_with(&stage, nodes, LONG_CACHES);
        let first = testbed.node("1");
        moosefs::make_tree(&first.join("tree"));
        fs::create_dir(first.join("private")).unwrap();
        fs::set_permissions(first.join("private"), fs::Permissions::from_mode(0o700)).unwrap();
        let mount = stage.dir("shared");
        let [tree, index, private] = ["tree", "tree.quell", "private"].map(|name| mount.join(name));
        let nodes = (0..nodes).map(|_| Stage::new()).collect();
        MooseFsJob { nodes, testbed, stage, mount, tree, index, private }
    }

    /// Returns a call of `quell` on a node. Nodes are numbered from 1.
    pub fn on_node(&self, node: usize) -> Command {
        let mut command = self.testbed.on_node(&node.to_string(), &self.mount);
        for variable in crate::stage::JOB_VARIABLES {
            command.env_remove(variable);
        }
        let stage = &self.nodes[node - 1];
        command.env("QUELL_RUNTIME_DIR", stage.runtime()).env("XDG_STATE_HOME", stage.state()).arg(quell());
        command
    }

    /// Indexes the tree. Returns the checksum of its files.
    pub fn index_tree(&self) -> String {
        self.stage.run(self.on_node(1).args(["index", "-q"]).arg(&self.tree)).expect(0);
        let tree = self.testbed.node("1").join("tree");
        self.stage.sh("cat \"$1\"/*/* | cksum", &[&tree]).expect(0).text()
    }

    /// Stops the MooseFS.
    pub fn end(self) {
        drop(self.testbed);
        self.stage.expect_nothing_left();
    }
}

/// Writes the text of the meeting point to a file, and waits for another file.
const LAUNCHER: &str =
    r#"printf %s "$QUELL_JOB" >"$1"; echo ready; while ! test -e "$2"; do sleep 0.05; done; exit 7"#;

#[test]
fn each_further_node_of_16_makes_at_most_two_requests_to_the_metadata_server() {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    const NODES: usize = 16;
    let job = MooseFsJob::start(NODES);
    let MooseFsJob { stage, testbed, nodes, tree, index, .. } = &job;
    let boot = job.mount.join("app.boot");
    // The state directory is on the shared file system, as a home directory often is.
    let on_node = |node: usize| {
        let mut command = job.on_node(node);
        command.env("XDG_STATE_HOME", &job.private);
        command
    };
    let expected = job.index_tree();
    let mut record = on_node(1);
    record.args(["record", "-q", "-i"]).arg(index).arg("-o").arg(&boot);
    stage.run(record.args(["--", "sh", "-c", "cat \"$0\"/*/* >/dev/null"]).arg(tree)).expect(0);

    let (meeting, launched) = (stage.path("meeting"), stage.path("launched"));
    let mut launcher = stage.quell();
    launcher.args(["job", "run", "--", "sh", "-c", LAUNCHER, "sh"]).arg(&meeting).arg(&launched);
    let mut launcher = stage.start(&mut launcher);
    launcher.wait_for_output("ready");
    let text = fs::read_to_string(&meeting).unwrap();
    assert!(text.starts_with("quell-job-1:"), "{text}");

    for check in ["sample", "auto"] {
        let go = stage.path(format!("go-{check}"));
        let start = |node: usize| {
            let mut command = on_node(node);
            command.args(["run", "--strict", "--share", "few", "--check", check, "--recheck", "0", "--job"]);
            command.env("QUELL_JOB", &text).args(["--job-timeout", "600", "-i"]).arg(index);
            command.arg("-b").arg(&boot).args(["--", "sh", "-c", NESTED_UNTIL, "sh"]).arg(tree).arg(&go);
            nodes[node - 1].start(&mut command)
        };
        let mut running = vec![start(1)];
        running[0].wait_for_output("started");
        let numbers: Vec<String> = (2..=NODES).map(|node| node.to_string()).collect();
        let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
        for node in &numbers {
            testbed.call(&["drop", node]);
        }
        // All at the same time.
        let asked = testbed.requests_during(&numbers, || {
            running.extend((2..=NODES).map(start));
            running.iter_mut().skip(1).for_each(|running| running.wait_for_output("started"));
        });
        for (node, asked) in numbers.iter().zip(asked) {
            // The directory of the tree is looked up, and the kernel asks for its file system.
            assert!(moosefs::metadata(&asked) <= 2, "--check {check}, node {node}: {asked:?}");
            assert_eq!(asked.get("read"), None, "--check {check}, node {node}: {asked:?}");
        }
        fs::write(&go, "").unwrap();
        for ended in running.into_iter().map(|running| running.wait().expect(0)) {
            assert_eq!((ended.text(), ended.err.as_str()), (format!("{expected}started\n"), ""));
        }
        assert!(eventually(|| nodes.iter().all(|node| node.processes().is_empty())));
    }
    fs::write(&launched, "").unwrap();
    launcher.wait().expect(7);
    job.end();
}

#[test]
fn the_comparisons_of_the_reader_count_for_all_nodes() {
    let job = Job::new(2);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    let run = |node: usize, name: &str, check: &str, words: &[&str]| {
        let mut command = job.nodes[node].quell();
        command.args(["run", "--check", check, "--recheck", "0", "--share", name, "--job", "-i"]);
        command.arg(&job.index).arg("--job-dir").arg(job.directory());
        command.args(["--job-interface", "lo", "--job-timeout", "600", "--"]).args(words);
        command
    };
    let (tree, added) = (job.tree.to_str().unwrap().to_owned(), job.tree.join("added"));
    let first_until = |name: &str, check: &str, go: &Path| {
        let until = ["sh", "-c", UNTIL, "sh", &tree, go.to_str().unwrap()];
        let mut first = job.nodes[0].start(&mut run(0, name, check, &until));
        first.wait_for_output("started");
        first
    };

    // The reader has found no difference, and the other node does not compare again.
    let go = job.shared.path("go-equal");
    let first = first_until("equal", "sample", &go);
    fs::write(&added, "new\n").unwrap();
    let is_added = ["test", "-e", added.to_str().unwrap()];
    let ended = job.nodes[1].run(&mut run(1, "equal", "sample", &is_added)).expect(1);
    assert_eq!(ended.err, "");
    fs::write(&go, "").unwrap();
    first.wait().expect(0);

    // The reader finds a difference, so the programs of both nodes run on the original directory.
    let go = job.shared.path("go-changed");
    let first = first_until("changed", "sample", &go);
    let ended = job.nodes[1].run(&mut run(1, "changed", "sample", &is_added)).expect(0);
    assert!(ended.err.contains("is out of date"), "{}", ended.err);
    fs::write(&go, "").unwrap();
    assert!(first.wait().expect(0).err.contains("is out of date"));

    // The result of the check of the whole tree arrives while the programs run.
    job.shared.run(job.shared.quell().args(["index", "-q", "--update"]).arg(&job.index)).expect(0);
    let go = job.shared.path("go-whole");
    let first = first_until("whole", "auto", &go);
    let until = ["sh", "-c", UNTIL, "sh", &tree, go.to_str().unwrap()];
    let mut second = job.nodes[1].start(&mut run(1, "whole", "auto", &until));
    second.wait_for_output("started");
    let results = |node: usize| {
        let entries = fs::read_dir(job.nodes[node].runtime()).unwrap().flatten();
        // The files that end in `.aside` are renamed when they are complete.
        let is_result = |path: &PathBuf| {
            let name = path.file_name().unwrap().as_encoded_bytes();
            name.starts_with(b"check-view-") && !name.ends_with(b".aside")
        };
        // A file can be removed after it was listed.
        let read = |path: PathBuf| match fs::read_to_string(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            text => Some(text.unwrap()),
        };
        entries.map(|entry| entry.path()).filter(is_result).filter_map(read).collect::<Vec<_>>()
    };
    for node in 0..2 {
        assert!(eventually(|| results(node) == ["null"]), "node {node}: {:?}", results(node));
    }
    fs::write(&go, "").unwrap();
    first.wait().expect(0);
    second.wait().expect(0);
    for node in &job.nodes {
        assert!(eventually(|| node.processes().is_empty()));
    }
    assert_eq!((results(0), results(1)), (vec![], vec![]));
}
