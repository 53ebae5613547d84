//! One reader for a job (`quell run --job`). Each node is a stage: a runtime directory and
//! processes of its own on this machine.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::boot::BLOCK;
use crate::skip;
use crate::stage::{Running, Stage, can_unshare, eventually, is_root, quell, send};
use crate::trees;

/// Prints the program's files, says that it runs, and waits for a file.
const UNTIL: &str = r#"cat "$1"/* | cksum; echo started; while ! test -e "$2"; do sleep 0.05; done"#;

struct Job {
    // The nodes, which end before the directory that they share.
    nodes: Vec<Stage>,
    shared: Stage,
    tree: PathBuf,
    index: PathBuf,
    boot: PathBuf,
}

impl Job {
    fn new(nodes: usize) -> Job {
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
    fn directory(&self) -> PathBuf {
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

    fn go(&self) -> PathBuf {
        self.shared.path("go")
    }

    fn start(&self, node: usize) -> Running {
        let mut running = self.nodes[node].start(&mut self.until(node));
        running.wait_for_output("started");
        running
    }

    fn status(&self, node: usize) -> serde_json::Value {
        let ended = self.nodes[node].run(self.nodes[node].quell().args(["job", "status", "--json"]));
        ended.expect(0).json()
    }

    fn checksum(&self) -> String {
        self.shared.sh("cat \"$1\"/* | cksum", &[&self.tree]).expect(0).text()
    }

    /// Returns the job holder of a node.
    fn process(&self, node: usize) -> i32 {
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
    fn expect_nothing_left(&self) {
        self.nodes.iter().for_each(Stage::expect_nothing_left);
        assert_eq!(self.links(), Vec::<PathBuf>::new());
    }
}

fn why_not(job: &Job) -> Option<&'static str> {
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
fn a_node_that_gets_no_answer_reads_the_files_itself_and_prints_one_message() {
    let job = Job::new(1);
    if let Some(reason) = why_not(&job) {
        skip!("{reason}");
    }
    let running = job.start(0);
    let name = job.links()[0].clone();
    fs::write(job.go(), "").unwrap();
    running.wait().expect(0);
    job.expect_nothing_left();
    // It accepts connections, and never answers.
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
    let said = ended.err.matches("reading them from the file system").count();
    assert_eq!((said, ended.err.lines().count()), (1, 1), "{}", ended.err);
    assert_eq!(fs::read_link(&name).unwrap(), Path::new(&text), "the link of another process stays");
    fs::remove_file(name).unwrap();
    job.expect_nothing_left();
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
