//! Pools on several nodes: each node is a process with a network, a host name and mounts of its
//! own, and `ssh` is a script that runs a command in the namespaces of a node.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::skip;
use crate::stage::{Ended, Running, Stage, eventually, has, is_root, quell, send};

/// Runs a command as `ssh` does, and records its arguments. A host without a file in `nodes` cannot
/// be reached, and the host `silent` never answers.
const SSH: &str = "#!/bin/sh
echo \"$*\" >>\"$(dirname \"$0\")/ssh.log\"
while [ \"$1\" != -- ]; do shift; done
host=$2; shift 2
[ \"$host\" != silent ] || exec sleep 600
pid=$(cat \"$(dirname \"$0\")/nodes/$host\" 2>/dev/null) || {
  echo \"ssh: connect to host $host port 22: No route to host\" >&2
  exit 255
}
exec nsenter -t \"$pid\" --net --mount --uts sh -c \"$*\"
";

/// The first process of a node, which keeps its namespaces. `$1` is the host name, `$2` the stage.
const NODE: &str = "set -e
hostname \"$1\"
mount -t tmpfs -o mode=0700 none \"$2/runtime\"
mount -t tmpfs -o mode=0700 none \"$2/data\"
mount --bind \"$2/hosts\" /etc/hosts
ip link set lo up
echo ready
exec sleep 3600";

/// Nodes that are connected by a bridge. Their namespaces end with their processes.
struct Cluster {
    // Declared before the stage, because the end of the stage checks that no process is left.
    nodes: Vec<Running>,
    _network: Running,
    stage: Stage,
    files: PathBuf,
}

impl Cluster {
    fn start(count: usize) -> Cluster {
        let stage = Stage::new();
        for name in ["runtime", "data", "bin/nodes"] {
            stage.dir(name);
        }
        let files = stage.dir("files");
        let ssh = stage.file("bin/ssh", SSH);
        fs::set_permissions(ssh, fs::Permissions::from_mode(0o755)).unwrap();
        let names: String = (1..=count).map(|node| format!("10.99.0.{node} n{node}\n")).collect();
        stage.file("hosts", format!("127.0.0.1 localhost\n{names}"));
        // The namespaces end with the test, even if it is killed.
        let hold = |script: &str, arguments: &[&str]| {
            let mut command = stage.command("setpriv");
            command.args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--uts", "sh", "-c", script]);
            let mut holder = stage.start(command.arg("sh").args(arguments).arg(stage.path("")));
            holder.wait_for_output("ready");
            holder
        };
        let network = hold(
            "ip link add name bridge0 type bridge && ip link set bridge0 up && echo ready && exec sleep 3600",
            &[],
        );
        let nodes: Vec<Running> = (1..=count).map(|node| hold(NODE, &[&format!("n{node}")])).collect();
        for (node, holder) in (1..).zip(&nodes) {
            let pid = holder.pid().to_string();
            stage.file(&format!("bin/nodes/n{node}"), &pid);
            let script = format!(
                "nsenter -t {bridge} --net ip link add v{node} type veth peer name eth0 netns {pid} &&
                nsenter -t {bridge} --net ip link set v{node} master bridge0 up &&
                nsenter -t {pid} --net ip addr add 10.99.0.{node}/24 dev eth0 &&
                nsenter -t {pid} --net ip link set eth0 up",
                bridge = network.pid(),
            );
            stage.sh(&script, &[]).expect(0);
        }
        Cluster { nodes, _network: network, stage, files }
    }

    /// Returns a command that runs a program on a node; the first one is 1.
    fn command(&self, node: usize, program: &Path) -> Command {
        let mut command = self.stage.command("nsenter");
        let pid = self.nodes[node - 1].pid().to_string();
        command.args(["-t", &pid, "--net", "--mount", "--uts"]).arg(program);
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.stage.path("bin").display()));
        command
    }

    fn quell(&self, node: usize, arguments: &[&str]) -> Ended {
        self.stage.run(self.command(node, &quell()).args(arguments))
    }

    /// Returns a command that starts a pool from the first node on these hosts.
    fn up(&self, hosts: &str, arguments: &[&str]) -> Command {
        let hosts = self.stage.file("hosts.txt", hosts);
        let mut command = self.command(1, &quell());
        command.args(["pool", "up", "p", "--hosts"]).arg(hosts).arg("--dir").arg(self.stage.path("data"));
        command.args(arguments);
        command
    }

    /// Returns a command that runs a script on a node in the directory of the pool.
    fn program(&self, node: usize, script: &str) -> Command {
        let mut command = self.command(node, &quell());
        command.arg("run").arg("--pool").arg(format!("p={}", self.files.display())).arg("--");
        command.args(["sh", "-c", &format!("cd \"$0\" || exit\n{script}")]).arg(&self.files);
        command
    }

    /// Runs a script on a node in the directory of the pool.
    fn sh(&self, node: usize, script: &str) -> Ended {
        self.stage.run(&mut self.program(node, script))
    }

    /// Returns the processes of the pool on all nodes: daemons, launchers and the keeper.
    fn pool_processes(&self) -> Vec<String> {
        let is_of_pool =
            |line: &String| ["quelld", "pool-keeper", "sleep 600"].iter().any(|p| line.contains(p));
        let processes = self.stage.processes().into_iter();
        let lines = processes.map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            format!("{pid} {}", String::from_utf8_lossy(&line).replace('\0', " "))
        });
        lines.filter(is_of_pool).collect()
    }

    /// Returns the process id of the keeper.
    fn keeper(&self) -> i32 {
        let found: Vec<String> = self.pool_processes();
        let keepers: Vec<&String> = found.iter().filter(|line| line.contains("pool-keeper")).collect();
        assert_eq!(keepers.len(), 1, "{found:?}");
        keepers[0].split(' ').next().unwrap().parse().unwrap()
    }

    /// Returns the files of pools on all nodes.
    fn pool_files(&self) -> String {
        let find = |node: usize| {
            let mut command = self.command(node, Path::new("find"));
            command.arg(self.stage.path("runtime")).arg(self.stage.path("data")).args(["-mindepth", "1"]);
            self.stage.run(&mut command).expect(0).text()
        };
        (1..=self.nodes.len()).map(find).collect()
    }

    #[track_caller]
    fn expect_nothing_left(&self) {
        assert!(eventually(|| self.pool_processes().is_empty()), "{:?}", self.pool_processes());
        // The counters of programs that have ended are removed by the next `stats`.
        for node in 1..=self.nodes.len() {
            self.quell(node, &["stats", "--json", "/"]);
        }
        assert_eq!(self.pool_files(), "");
    }
}

/// Returns the reason why this user cannot make nodes here.
fn why_no_nodes() -> Option<&'static str> {
    let directory = quell();
    match () {
        () if !is_root() => Some("only root makes nodes with a network of their own"),
        () if !["ip", "nsenter", "unshare", "setpriv"].iter().all(|program| has(program)) => {
            Some("no ip, nsenter, unshare or setpriv")
        }
        () if is_incomplete(&directory) => Some("no quelld or no libquell_preload.so beside the binary"),
        () => None,
    }
}

fn is_incomplete(program: &Path) -> bool {
    !program.with_file_name("quelld").exists() || !program.with_file_name("libquell_preload.so").exists()
}

#[test]
fn programs_on_all_nodes_see_the_files_and_any_node_ends_the_pool() {
    if let Some(reason) = why_no_nodes() {
        skip!("{reason}");
    }
    let cluster = Cluster::start(3);
    let ended = cluster.stage.run(&mut cluster.up("n1 # first\nn2\n\nn3\n", &[])).expect(0);
    assert_eq!((ended.text(), ended.err.as_str()), (String::new(), ""));
    cluster.sh(2, "mkdir d && echo from $(hostname) >d/file && head -c 3000000 /dev/zero >d/zeros").expect(0);
    let read = cluster.sh(3, "cat d/file; wc -c <d/zeros; echo more >>d/file").expect(0);
    assert_eq!(read.text(), "from n2\n3000000\n");
    assert_eq!(cluster.sh(1, "cat d/file").expect(0).text(), "from n2\nmore\n");

    let status = cluster.quell(2, &["pool", "status", "p", "--json"]).expect(0).json();
    let daemons = status["daemons"].as_array().unwrap();
    let of =
        |key: &str| -> Vec<&str> { daemons.iter().map(|daemon| daemon[key].as_str().unwrap()).collect() };
    assert_eq!(of("host"), ["n1", "n2", "n3"]);
    for (node, address) in (1..).zip(of("address")) {
        assert!(address.starts_with(&format!("10.99.0.{node}:")), "{address}");
    }
    // The key is neither in a command line nor in a file.
    let log = fs::read_to_string(cluster.stage.path("bin/ssh.log")).unwrap();
    let command = quell().with_file_name("quelld");
    assert!(log.lines().all(|line| line.ends_with(command.to_str().unwrap())), "{log}");

    // A stopped daemon does not answer; the other daemons do.
    let stopped = i32::try_from(daemons[2]["pid"].as_i64().unwrap()).unwrap();
    send(stopped, Signal::STOP);
    let status = cluster.quell(1, &["pool", "status", "p", "--wait-ms", "300", "--json"]).expect(1).json();
    let errors: Vec<bool> =
        status["daemons"].as_array().unwrap().iter().map(|daemon| daemon["error"].is_null()).collect();
    assert_eq!(errors, [true, true, false], "{status}");
    send(stopped, Signal::CONT);

    cluster.quell(3, &["pool", "down", "p"]).expect(1).says("--discard");
    cluster.quell(3, &["pool", "down", "p", "--discard"]).expect(0);
    cluster.expect_nothing_left();
    cluster.quell(1, &["pool", "status", "p"]).expect(2).says("there is no pool p");
}

#[test]
fn the_daemons_end_with_the_keeper() {
    if let Some(reason) = why_no_nodes() {
        skip!("{reason}");
    }
    let cluster = Cluster::start(2);
    for signal in [Signal::KILL, Signal::TERM, Signal::HUP] {
        cluster.stage.run(&mut cluster.up("n1\nn2\n", &[])).expect(0);
        cluster.sh(2, "echo data >file").expect(0);
        send(cluster.keeper(), signal);
        cluster.expect_nothing_left();
    }
}

#[test]
fn a_daemon_that_a_signal_ends_leaves_nothing_on_its_node() {
    if let Some(reason) = why_no_nodes() {
        skip!("{reason}");
    }
    let cluster = Cluster::start(2);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        cluster.stage.run(&mut cluster.up("n1\nn2\n", &[])).expect(0);
        let status = cluster.quell(2, &["pool", "status", "p", "--json"]).expect(0).json();
        for daemon in status["daemons"].as_array().unwrap() {
            send(i32::try_from(daemon["pid"].as_i64().unwrap()).unwrap(), signal);
        }
        cluster.expect_nothing_left();
    }
}

#[test]
fn a_failed_start_names_the_node_and_leaves_nothing() {
    if let Some(reason) = why_no_nodes() {
        skip!("{reason}");
    }
    let cluster = Cluster::start(2);
    let refused = cluster.stage.run(&mut cluster.up("n1\nn2\nn9\n", &[])).expect(3);
    let refused = refused.says("the daemon on n9").says("No route to host").says("exit status: 255");
    assert_eq!(refused.err.lines().count(), 2, "{}", refused.err);
    cluster.expect_nothing_left();
    // A daemon that fails on its node.
    fs::create_dir(cluster.stage.path("only-here")).unwrap();
    let hide = format!("mount -t tmpfs none {}", cluster.stage.path("only-here").display());
    let mut command = cluster.command(2, Path::new("sh"));
    cluster.stage.run(command.args(["-c", &hide])).expect(0);
    let inside = cluster.stage.path("only-here/data");
    fs::create_dir(&inside).unwrap();
    let mut up = cluster.up("n1\nn2\n", &[]);
    cluster.stage.run(up.arg("--dir").arg(&inside)).expect(2);
    let hosts = cluster.stage.path("hosts.txt");
    let mut up = cluster.command(1, &quell());
    up.args(["pool", "up", "p", "--hosts"]).arg(&hosts).arg("--dir").arg(&inside);
    cluster.stage.run(&mut up).expect(2).says("the daemon on n2").says("No such file or directory");
    cluster.expect_nothing_left();
    assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
    // A pool of the same name on one of the nodes.
    let data = cluster.stage.path("data");
    let local = ["pool", "up", "p", "--local", "1", "--dir", data.to_str().unwrap()];
    cluster.quell(2, &local).expect(0);
    cluster.stage.run(&mut cluster.up("n1\nn2\n", &[])).expect(2).says("n2").says("the pool p exists");
    cluster.quell(2, &["pool", "status", "p"]).expect(0);
    cluster.quell(2, &["pool", "down", "p"]).expect(0);
    cluster.expect_nothing_left();
    // A node that does not answer.
    let slow = cluster.stage.run(&mut cluster.up("n1\nsilent\n", &["--timeout", "1"])).expect(3);
    slow.says("no answer from the daemons on silent");
    cluster.expect_nothing_left();
    let mut up = cluster.stage.start(&mut cluster.up("n1\nsilent\nn2\n", &[]));
    let begun = || cluster.pool_processes().iter().any(|line| line.contains("sleep 600"));
    assert!(eventually(|| begun() || !up.is_running()));
    up.signal(Signal::INT);
    up.wait().expect(130).says("interrupted");
    cluster.expect_nothing_left();
}

/// Runs the last argument, the path of the daemon, here.
const LAUNCHER: &str = "#!/bin/sh
echo \"$(basename \"$0\") $*\" >>\"$(dirname \"$0\")/launcher.log\"
for word; do :; done
exec \"$word\"
";

/// A directory with launchers of job systems that start all daemons on this machine.
fn launchers(stage: &Stage, scripts: &[(&str, &str)]) {
    stage.dir("bin");
    for (name, script) in scripts {
        let path = stage.file(&format!("bin/{name}"), script);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn the_nodes_of_a_job_are_those_of_its_system() {
    if is_incomplete(&quell()) {
        skip!("no quelld or no libquell_preload.so beside the binary");
    }
    let stage = Stage::new();
    let scontrol = "#!/bin/sh\n[ \"$*\" = 'show hostnames n[1-2]' ] && printf 'n1\\nn2\\n'\n";
    // The job has two of the three nodes of the instance.
    let flux = format!(
        "#!/bin/sh\n[ \"$*\" != 'hostlist --expand local' ] || exec echo n3 n1
        [ \"$*\" != 'hostlist --expand instance' ] || exec echo n1 n2 n3\n{}",
        LAUNCHER.trim_start_matches("#!/bin/sh\n")
    );
    let scripts = [
        ("srun", LAUNCHER),
        ("ssh", LAUNCHER),
        ("mpirun", LAUNCHER),
        ("scontrol", scontrol),
        ("flux", flux.as_str()),
    ];
    launchers(&stage, &scripts);
    let data = stage.dir("data");
    // One line for each slot.
    let pbs = stage.file("pbs", "n1\nn1\nn2\nn2\n");
    let quelld = quell().with_file_name("quelld");
    let quelld = quelld.to_str().unwrap();
    let started = |variables: &[(&str, &str)], arguments: &[&str]| -> Vec<String> {
        let path = format!("{}:{}", stage.path("bin").display(), std::env::var("PATH").unwrap());
        let mut up = stage.quell();
        up.args(["pool", "up", "p", "--interface", "lo", "--dir"]).arg(&data).args(arguments);
        stage.run(up.env("PATH", path).envs(variables.iter().copied())).expect(0);
        let status = stage.run(stage.quell().args(["pool", "status", "p", "--json"])).expect(0).json();
        let log = fs::read_to_string(stage.path("bin/launcher.log")).unwrap();
        fs::remove_file(stage.path("bin/launcher.log")).unwrap();
        stage.run(stage.quell().args(["pool", "down", "p"])).expect(0);
        let mut lines: Vec<String> = log
            .lines()
            .map(|line| line.strip_suffix(quelld).expect("the daemon's path").to_owned())
            .collect();
        assert_eq!(status["daemons"].as_array().unwrap().len(), lines.len());
        lines.sort();
        lines
    };
    let slurm = [("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_JOB_ID", "7")];
    let steps = started(&slurm, &[]);
    assert_eq!(steps.len(), 2);
    assert!(steps[0].starts_with("srun ") && steps[0].ends_with(" --nodelist n1 "), "{steps:?}");
    assert!(steps[1].contains("--overlap") && steps[1].ends_with(" --nodelist n2 "), "{steps:?}");
    assert_eq!(started(&[("FLUX_URI", "local:///x")], &[]), ["flux exec --rank 0 ", "flux exec --rank 2 "]);
    let pbs = [("PBS_NODEFILE", pbs.to_str().unwrap())];
    assert!(started(&pbs, &[])[1].ends_with(" -- n2 "));
    assert_eq!(started(&pbs, &["--nodes", "1", "--launcher", "mpirun"]), ["mpirun -n 1 --host n1 "]);
    let template = format!("{} -x {{host}}", stage.path("bin/ssh").display());
    assert_eq!(started(&pbs, &["--launcher", &template]), ["ssh -x n1 ", "ssh -x n2 "]);
    let refused = |arguments: &[&str], words: &str| {
        stage.run(stage.quell().args(["pool", "up", "p"]).args(arguments)).expect(2).says(words);
    };
    refused(&[], "not run in a job");
    stage.file("bad", "n1\n-oProxyCommand=touch$IFS/tmp/x\n");
    refused(&["--hosts", stage.path("bad").to_str().unwrap()], "is not the name of a node");
    refused(&["--hosts", stage.path("pbs").to_str().unwrap(), "--nodes", "3"], "there are only 2 nodes");
    refused(&["--hosts", stage.path("pbs").to_str().unwrap(), "--launcher", "rsh"], "{host}");
    refused(&["--hosts", stage.path("none").to_str().unwrap()], "No such file");
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
    stage.expect_nothing_left();
}

#[test]
fn other_nodes_have_the_files_of_a_node_whose_daemon_was_killed() {
    if let Some(reason) = why_no_nodes() {
        skip!("{reason}");
    }
    let cluster = Cluster::start(3);
    cluster.stage.run(&mut cluster.up("n1\nn2\nn3\n", &["--replicas", "2"])).expect(0);
    cluster
        .sh(2, "mkdir out && for i in 1 2 3 4 5 6 7 8; do head -c 700000 /dev/zero >out/$i; done")
        .expect(0);
    let status = cluster.quell(1, &["pool", "status", "p", "--json"]).expect(0).json();
    assert_eq!((&status["replicas"], &status["is_complete"]), (&2.into(), &true.into()), "{status}");
    let killed = i32::try_from(status["daemons"][1]["pid"].as_i64().unwrap()).unwrap();
    send(killed, Signal::KILL);
    let check = "wc -c out/* | tail -1; for i in 1 2 3 4 5 6 7 8; do mv out/$i out/$i.$1 || exit; done; ls out | wc -l";
    assert_eq!(cluster.sh(3, check).expect(0).text(), "5600000 total\n8\n");
    assert_eq!(
        cluster.sh(1, "cat out/1. | wc -c; mkdir e && rmdir e && ls").expect(0).text(),
        "700000\nout\n"
    );
    let is_complete = || {
        let status = cluster.quell(3, &["pool", "status", "p", "--json"]).json();
        status["is_complete"] == true
            && status["daemons"].as_array().unwrap().iter().all(|d| d["host"] != "n2")
    };
    assert!(eventually(is_complete));
    // No daemon on the second node can remove the data of the killed one.
    cluster
        .quell(1, &["pool", "down", "p", "--discard"])
        .expect(3)
        .says("the daemon on n2 has failed before");
    assert!(eventually(|| cluster.pool_processes().is_empty()), "{:?}", cluster.pool_processes());
}

#[test]
fn a_pool_gets_a_second_node_and_gives_it_back_while_a_program_uses_it() {
    if let Some(reason) = why_no_nodes() {
        skip!("{reason}");
    }
    let cluster = Cluster::start(2);
    cluster.stage.run(&mut cluster.up("n1\n", &["--expand-to", "4", "--chunk-kib", "64"])).expect(0);
    cluster
        .sh(1, "mkdir d && for i in $(seq 50); do echo $i >d/f$i; done; head -c 5000000 /dev/urandom >data")
        .expect(0);
    let sums = "cat d/f* | sort -n; md5sum data";
    cluster.sh(1, "echo >second").expect(0);
    let sum = cluster.sh(1, sums).expect(0).text();
    // Each command of the program is a process, which connects to the daemon of the first node.
    let script = "i=0
        until [ -e stop ]; do
            cat d/f* >/dev/null && echo $i 1<>second && [ \"$(cat second)\" = $i ] || exit 9
            mv moved$i moved$((i + 1)) || exit 10
            i=$((i + 1))
        done";
    cluster.sh(1, "echo >moved0").expect(0);
    let worker = cluster.program(1, script).stderr(Stdio::piped()).spawn().unwrap();
    let hosts = cluster.stage.file("more.txt", "n1\nn2\n");
    cluster.quell(1, &["pool", "expand", "p", "--hosts", hosts.to_str().unwrap()]).expect(0);
    let members = || {
        let status = cluster.quell(1, &["pool", "status", "p", "--json"]).expect(0).json();
        let of = |daemon: &serde_json::Value| {
            (daemon["host"].as_str().unwrap().to_owned(), daemon["members"].as_array().unwrap().len())
        };
        status["daemons"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(members(), [("n1".to_owned(), 2), ("n2".to_owned(), 2)]);
    assert_eq!(cluster.sh(2, sums).expect(0).text(), sum);
    cluster.sh(2, "echo of the second node >third").expect(0);
    cluster.quell(1, &["pool", "shrink", "p", "n2"]).expect(0);
    assert_eq!(members(), [("n1".to_owned(), 4)]);
    cluster.sh(1, "touch stop").expect(0);
    let ended = worker.wait_with_output().unwrap();
    assert!(ended.status.success(), "{:?}: {}", ended.status, String::from_utf8_lossy(&ended.stderr));
    assert_eq!(
        cluster.sh(1, "rm stop moved*; ls; cat third").expect(0).text(),
        "d\ndata\nsecond\nthird\nof the second node\n"
    );
    assert_eq!(cluster.sh(1, sums).expect(0).text(), sum);
    cluster.quell(1, &["pool", "down", "p", "--discard"]).expect(0);
    cluster.expect_nothing_left();
}

/// Returns the bytes that the network interface of a node has sent.
fn sent_bytes(cluster: &Cluster, node: usize) -> u64 {
    let mut command = cluster.command(node, Path::new("cat"));
    let text = cluster.stage.run(command.arg("/proc/net/dev")).expect(0).text();
    let interface = text.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
    // Eight numbers of received data, then the bytes that were sent.
    interface.split_whitespace().nth(8).unwrap().parse().unwrap()
}

#[test]
fn data_between_nodes_is_compressed_and_arrives_as_it_was_written() {
    if let Some(reason) = why_no_nodes() {
        skip!("{reason}");
    }
    let cluster = Cluster::start(2);
    // Text of 8 MB, and the same number of bytes that cannot be compressed.
    let text: String = (0..).map(|i| format!("record {i} of rank {}\n", i % 64)).take(400_000).collect();
    let bytes = text.len() as u64;
    cluster.stage.file("text", text);
    let sources = cluster.stage.path("");
    let script = format!("head -c {bytes} /dev/urandom >random && sha256sum text random >sums");
    cluster.stage.sh(&format!("cd '{}' && {script}", sources.display()), &[]).expect(0);
    let mut sent = Vec::new();
    for options in [&[][..], &["--compress", "lz4"], &["--compress", "zstd", "--encrypt"]] {
        cluster.stage.run(&mut cluster.up("n1\nn2\n", options)).expect(0);
        let mut of_files = Vec::new();
        for file in ["text", "random"] {
            let before = sent_bytes(&cluster, 1);
            cluster.sh(1, &format!("cat '{}/{file}' >{file}", sources.display())).expect(0);
            of_files.push(sent_bytes(&cluster, 1) - before);
        }
        for node in [1, 2] {
            cluster.sh(node, &format!("sha256sum -c '{}/sums'", sources.display())).expect(0);
        }
        sent.push(of_files);
        let top = cluster.quell(1, &["pool", "top", "p", "--once", "--json", "--interval", "0.1"]);
        let network = &top.expect(0).json()["members"][0]["counters"]["network"];
        assert!(network["sent_bytes"].as_u64().unwrap() > bytes / 4, "{network}");
        let saved = network["sent_saved_bytes"].as_u64().unwrap();
        assert_eq!(saved > bytes / 8, !options.is_empty(), "{network}");
        cluster.quell(2, &["pool", "down", "p", "--discard"]).expect(0);
        cluster.expect_nothing_left();
    }
    // About half of the data is sent to the other node.
    assert!(sent.iter().all(|of_files| of_files[1] > bytes / 4), "{sent:?}");
    assert!(sent[1][0] < sent[0][0] * 2 / 3 && sent[2][0] < sent[1][0], "{sent:?}");
    cluster.stage.run(&mut cluster.up("n1\nn2\n", &["--compress", "gzip"])).expect(2).says("zstd");
}
