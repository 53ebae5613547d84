//! Jobs of a real Slurm (`testbed/slurm`): the job scripts of docs/guides/clusters.md and
//! examples/slurm are submitted as they are written. Options of sbatch replace the numbers of nodes
//! and tasks of a script.
//!
//! Needs root, for the namespaces of the nodes. The jobs belong to an ordinary user.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::documents;
use crate::sharing::EXCHANGE;
use crate::skip;
use crate::stage::{Stage, checkout, eventually, has, is_root, quell, split_waits, views, why_no_openmpi};
use crate::trees::set_mode;

const NODES: usize = 4;
/// The user `nobody`, whom every system has.
const USER: u32 = 65534;
/// The directory from which jobs are submitted.
const SUBMITTED: &str = "/shared/project";

/// Prints a line with facts about a task when all tasks of its step run: so the tasks of a node use
/// its view at the same time. Arguments are not used.
const TRAIN: &str = r#"import json, os, socket, time
import model
job, rank = os.environ["SLURM_JOB_ID"], os.environ["SLURM_PROCID"]
tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
os.makedirs(f"started/{job}", exist_ok=True)
open(f"started/{job}/{rank}", "w").close()
while len(os.listdir(f"started/{job}")) < tasks:
    time.sleep(0.05)
tree = os.path.dirname(os.path.dirname(os.path.dirname(model.__file__)))
facts = {
    "node": socket.gethostname(),
    "rank": rank,
    "task": os.environ.get("SLURM_ARRAY_TASK_ID"),
    "namespace": os.readlink("/proc/self/ns/mnt"),
    "is_covered": tree in [line.split()[4] for line in open("/proc/self/mountinfo")],
}
os.write(1, (json.dumps(facts) + "\n").encode())
"#;

/// Waits until the condition is true. Each check starts processes on a node, so there is a pause
/// between two checks.
fn poll(mut condition: impl FnMut() -> bool) -> bool {
    eventually(|| {
        let is_true = condition();
        if !is_true {
            std::thread::sleep(Duration::from_millis(200));
        }
        is_true
    })
}

/// A batch system, which is stopped on drop.
struct Cluster<'a> {
    stage: &'a Stage,
    script: PathBuf,
    directory: PathBuf,
}

/// The result of a job.
struct Job {
    id: String,
    /// The states of its array tasks, or of the job alone.
    states: Vec<String>,
    /// The contents of its output files.
    output: String,
}

impl<'a> Cluster<'a> {
    /// Starts a Slurm whose nodes have the program in `/shared/apps/quell/bin`, and an environment
    /// with a Python package in `/shared/project/env`.
    fn start(stage: &'a Stage, variables: &[(&str, &Path)]) -> Cluster<'a> {
        let (script, directory) = (checkout().join("testbed/slurm"), stage.path("slurm"));
        let cluster = Cluster { stage, script, directory };
        let mut up = cluster.testbed(&["up", &NODES.to_string()]);
        up.envs(variables.iter().copied());
        let output = up.output().unwrap();
        assert!(output.status.success(), "slurm up: {}", String::from_utf8_lossy(&output.stderr));
        let installed = cluster.shared("apps/quell/bin");
        fs::create_dir_all(&installed).unwrap();
        for name in ["quell", "quelld", "libquell_preload.so"] {
            fs::copy(quell().with_file_name(name), installed.join(name)).unwrap();
        }
        for name in ["home", "project", "project/started"] {
            fs::create_dir(cluster.shared(name)).unwrap();
            chown(cluster.shared(name), Some(USER), Some(USER)).unwrap();
        }
        cluster.make_environment("project/env");
        cluster.file("project/train.py", TRAIN);
        cluster
    }

    fn testbed(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.script);
        command.args(words).env("TESTBED", &self.directory);
        command
    }

    fn call(&self, words: &[&str]) -> String {
        let output = self.testbed(words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "slurm {words:?}: {error}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Returns the path on this machine of a file in `/shared`.
    fn shared(&self, name: &str) -> PathBuf {
        self.directory.join("moosefs/nodes/1").join(name)
    }

    /// Creates a file of the user in `/shared`, which the user may execute.
    fn file(&self, name: &str, text: &str) {
        let path = self.shared(name);
        fs::write(&path, text).unwrap();
        set_mode(&path, 0o755);
        chown(&path, Some(USER), Some(USER)).unwrap();
    }

    /// Creates an environment of the user with a program `python` and a package.
    fn make_environment(&self, name: &str) {
        for directory in ["", "/bin", "/lib", "/lib/model"] {
            fs::create_dir(self.shared(&format!("{name}{directory}"))).unwrap();
            chown(self.shared(&format!("{name}{directory}")), Some(USER), Some(USER)).unwrap();
        }
        let numbers = 0..30;
        let imports: String = numbers.clone().map(|n| format!("import model.part{n}\n")).collect();
        for number in numbers {
            self.file(&format!("{name}/lib/model/part{number}.py"), "x = 1\n");
        }
        self.file(&format!("{name}/lib/model/__init__.py"), &imports);
        let python = format!("#!/bin/sh\nPYTHONPATH=/shared/{name}/lib exec python3 \"$@\"\n");
        self.file(&format!("{name}/bin/python"), &python);
    }

    /// Returns a command that the user runs on a node. It has the environment of a login.
    fn on_node(&self, node: usize, words: &[&str]) -> Command {
        let mut command = self.testbed(&["exec", &node.to_string()]);
        let user = USER.to_string();
        command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.args([
            "env",
            "-i",
            "-C",
            SUBMITTED,
            "PATH=/shared/apps/quell/bin:/usr/bin:/bin",
            "HOME=/shared/home",
        ]);
        command.args(["USER=nobody", "LOGNAME=nobody", "LANG=C.UTF-8"]).args(words);
        command
    }

    fn run(&self, words: &[&str]) -> String {
        self.stage.run(&mut self.on_node(1, words)).expect(0).text()
    }

    /// Submits a job script with options of sbatch, and returns the number of the job.
    fn submit(&self, script: &str, options: &[&str]) -> String {
        let script =
            if script.starts_with("#!") { script.to_owned() } else { format!("#!/bin/bash\n{script}") };
        self.file("project/script", &script);
        let mut words = vec!["sbatch", "--parsable"];
        words.extend(options);
        words.push("script");
        self.run(&words).trim().to_owned()
    }

    /// Returns the states of a job or of the tasks of an array.
    fn states(&self, job: &str) -> Vec<String> {
        let shown = self.call(&["exec", "1", "scontrol", "show", "job", "--oneliner", job]);
        let states = shown.lines().filter_map(|line| line.split_once(" JobState="));
        states.filter_map(|(_, rest)| rest.split(' ').next().map(str::to_owned)).collect()
    }

    /// Waits until there is this number of files that match a pattern in the user's directory.
    #[track_caller]
    fn wait_for_files(&self, pattern: &str, count: usize) {
        let script = format!("ls {pattern} 2>/dev/null | wc -l");
        let is_there = || self.run(&["sh", "-c", &script]).trim() == count.to_string();
        assert!(poll(is_there), "{pattern}: {}", self.run(&["sh", "-c", "tail slurm-*.out"]));
    }

    /// Waits until a job has ended on all nodes.
    fn wait(&self, job: String) -> Job {
        let is_running =
            |state: &String| ["PENDING", "RUNNING", "COMPLETING", "CONFIGURING"].contains(&state.as_str());
        let mut states = Vec::new();
        let has_ended = poll(|| {
            states = self.states(&job);
            !states.iter().any(is_running)
        });
        let (output, _waits) = split_waits(&self.output(&job));
        assert!(has_ended, "the job {job} has not ended: {states:?}\n{output}");
        Job { id: job, states, output }
    }

    /// Returns the output files of a job, as the first node sees them.
    fn output(&self, job: &str) -> String {
        self.run(&["sh", "-c", &format!("cat slurm-{job}.out slurm-{job}_*.out 2>/dev/null || true")])
    }

    /// Runs a job script, which must succeed.
    fn expect_job(&self, script: &str, options: &[&str]) -> Job {
        let job = self.wait(self.submit(script, options));
        assert!(job.states.iter().all(|state| state == "COMPLETED"), "{:?}\n{}", job.states, job.output);
        job
    }

    /// Waits until no process of a job remains on any node, and checks that no mount and no file of
    /// a job remains there.
    #[track_caller]
    fn expect_nothing_left(&self) {
        for node in (1..=NODES).map(|node| node.to_string()) {
            assert!(poll(|| self.call(&["ps", &node]).is_empty()), "{}", self.call(&["ps", &node]));
            assert_eq!(self.call(&["mounts", &node]), "");
            // The counters of programs that have ended are removed by the next `stats`.
            let number = node.parse().expect("a number");
            self.stage.run(&mut self.on_node(number, &["quell", "stats", "--json", "/"]));
            // Files that are valid for a short time stay until a later run removes them, and the
            // directory of Open MPI until the end of the node.
            let find = "find /tmp /dev/shm -mindepth 1 ! -name quell-65534 ! -path '/tmp/ompi.*' \
                ! -path '/tmp/quell-*/check*' ! -path '/tmp/quell-*/said-*' ! -name '*.refused'";
            assert_eq!(self.call(&["exec", &node, "sh", "-c", find]), "");
        }
        let find = "find /shared/home/.local -path '*/job*' ! -type d 2>/dev/null || true";
        assert_eq!(self.run(&["sh", "-c", find]), "", "a meeting point remains");
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        let _ = self.testbed(&["down"]).status();
    }
}

impl Job {
    /// Returns the facts that the tasks of `train.py` printed. There is no other output.
    #[track_caller]
    fn tasks(&self) -> Vec<serde_json::Value> {
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}\n{}", self.output))
        };
        self.output.lines().map(parse).collect()
    }

    /// Checks that this number of tasks ran on this number of nodes, that each saw the view, and
    /// that the tasks of a node shared one view. Returns the facts.
    #[track_caller]
    fn expect_tasks(&self, tasks: usize, nodes: usize) -> Vec<serde_json::Value> {
        let facts = self.tasks();
        assert_eq!(facts.len(), tasks, "{}", self.output);
        let mut views: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for task in &facts {
            assert_eq!(task["is_covered"], true, "{}", self.output);
            views.entry(task["node"].to_string()).or_default().insert(task["namespace"].to_string());
        }
        assert_eq!(views.len(), nodes, "{}", self.output);
        assert!(views.values().all(|views| views.len() == 1), "{}", self.output);
        facts
    }
}

/// Returns the reason why no job of an ordinary user can run here with a view.
fn why_not(stage: &Stage) -> Option<&'static str> {
    if !is_root() || !has("dpkg-query") {
        return Some("a Slurm in network namespaces needs root and Debian's slurm packages");
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("a Slurm in network namespaces needs root and /dev/fuse");
    }
    let user = USER.to_string();
    let mut unshare = stage.command("setpriv");
    unshare.args(["--reuid", &user, "--regid", &user, "--clear-groups", "unshare", "-Urm", "true"]);
    let has_fuse = fs::metadata("/dev/fuse").is_ok_and(|device| device.mode() & 0o006 == 0o006);
    if stage.run(&mut unshare).code() != Some(0) || !(has_fuse || views().contains(&"overlay")) {
        return Some("no user namespaces, or no fuse for ordinary users");
    }
    None
}

/// The code blocks of the guide that contain commands of launchers.
struct Guide {
    blocks: Vec<String>,
}

impl Guide {
    fn read() -> Guide {
        let blocks = documents::read("docs/guides/clusters.md").into_iter();
        Guide { blocks: blocks.map(|block| format!("\n{}", block.text)).collect() }
    }

    /// Removes the only block that contains these words, and returns its text. A block begins with
    /// an empty line.
    #[track_caller]
    fn take(&mut self, words: &str) -> String {
        let found: Vec<usize> =
            (0..self.blocks.len()).filter(|at| self.blocks[*at].contains(words)).collect();
        assert_eq!(found.len(), 1, "blocks of the guide with {words:?}");
        self.blocks.remove(found[0]).trim_start().to_owned()
    }

    /// Checks that all blocks with commands of launchers were taken.
    fn expect_all_taken(&self) {
        let is_of_launcher = |block: &&String| {
            ["srun ", "mpirun ", "sbatch ", "#SBATCH"].iter().any(|word| block.contains(word))
        };
        assert_eq!(self.blocks.iter().find(is_of_launcher), None, "a job script of the guide is not tried");
    }
}

const TWO_ON_EACH: [&str; 2] = ["--nodes=4", "--ntasks-per-node=2"];

#[test]
fn the_job_scripts_of_the_guide_run_as_they_are_written() {
    let stage = Stage::new();
    if let Some(reason) = why_not(&stage).or_else(why_no_openmpi) {
        skip!("{reason}");
    }
    if !has("strace") {
        skip!("strace is not installed");
    }
    let cluster = Cluster::start(&stage, &[]);
    let mut guide = Guide::read();
    let program = stage.mpi_program("mpicc", "exchange", EXCHANGE);
    fs::copy(program, cluster.shared("project/program")).unwrap();
    cluster.run(&["bash", "-e", "-c", &guide.take("quell index /shared/project/env ")]);

    // A job of one process, in a batch script.
    let single =
        guide.take("\nquell run -i /shared/project/env -- /shared/project/env/bin/python train.py\n");
    cluster.expect_job(&single, &[]).expect_tasks(1, 1);

    let job = cluster.expect_job(&guide.take("--ntasks-per-node=64\nsrun quell run"), &TWO_ON_EACH);
    let ranks: BTreeSet<String> =
        job.expect_tasks(8, 4).iter().map(|task| task["rank"].to_string()).collect();
    assert_eq!(ranks.len(), 8, "{}", job.output);
    cluster.expect_nothing_left();

    // Each task of an array is a job of its own.
    let job = cluster.expect_job(&guide.take("#SBATCH --array"), &["--array=1-8"]);
    let tasks: BTreeSet<String> = job.tasks().iter().map(|task| task["task"].to_string()).collect();
    assert_eq!((job.states.len(), tasks.len()), (8, 8), "{}", job.output);
    assert!(job.tasks().iter().all(|task| task["is_covered"] == true), "{}", job.output);

    // An MPI program exchanges data within each node and between the nodes. The nodes of the guide
    // have more processors.
    let script = guide.take("\nmpirun -n 4096 quell run ").replace("-n 4096", "-n 8");
    expect_exchange(&cluster.expect_job(&script, &TWO_ON_EACH), 1);
    expect_exchange(&cluster.expect_job(&script.replace("mpirun -n 8", "srun"), &TWO_ON_EACH), 1);
    cluster.expect_nothing_left();

    // With `--job`, with shared blocks, and without and below `quell job run`.
    let record = "quell record -q -i /shared/project/env.quell -o /shared/project/env.boot -- \
        /shared/project/env/bin/python -c 'import model'";
    cluster.run(&["sh", "-c", record]);
    expect_exchange(&cluster.expect_job(&guide.take("--share-data"), &TWO_ON_EACH), 1);
    let job = guide.take("\nsrun quell run -i /shared/project/env.quell -b ");
    expect_exchange(&cluster.expect_job(&job, &TWO_ON_EACH), 1);
    expect_exchange(&cluster.expect_job(&guide.take("quell job run"), &TWO_ON_EACH), 2);
    cluster.expect_nothing_left();

    let traced = cluster.expect_job(&guide.take("strace -f"), &["--nodes=1", "--ntasks-per-node=8"]);
    assert!(traced.output.contains("report"), "{}", traced.output);
    assert!(cluster.shared("project/report/report.html").exists(), "{}", traced.output);

    cluster.expect_job(&guide.take("quell probe --yes"), &TWO_ON_EACH);
    let results = cluster.run(&["sh", "-c", "ls probe/*.json"]);
    assert_eq!(results, "probe/n1.json\nprobe/n2.json\nprobe/n3.json\nprobe/n4.json\n");
    guide.expect_all_taken();

    // The script of the examples has another path.
    cluster.make_environment("env");
    chown(cluster.shared("env"), Some(USER), Some(USER)).unwrap();
    cluster.call(&["exec", "1", "/shared/apps/quell/bin/quell", "index", "-q", "/shared/env"]);
    cluster.expect_job(include_str!("../../examples/slurm/job.sh"), &TWO_ON_EACH).expect_tasks(8, 4);
    cluster.expect_nothing_left();
}

/// Returns whether a line is the message of a node of `quell run --job` that reads the files itself
/// because another node has not answered for 1.5 s. On a busy machine this can happen.
fn is_of_slow_job(line: &str) -> bool {
    line.starts_with("quell: ") && line.ends_with(" from the file system")
}

/// Checks that the ranks of `runs` MPI programs, two on each node, received the correct data, and
/// that the two ranks of a node shared a view.
#[track_caller]
fn expect_exchange(job: &Job, runs: usize) {
    let mut ranks_of: BTreeMap<&str, usize> = BTreeMap::new();
    for line in job.output.lines().filter(|line| !is_of_slow_job(line)) {
        assert!(line.starts_with("rank ") && line.ends_with(" wrong 0"), "{}", job.output);
        *ranks_of.entry(line).or_default() += 1;
    }
    // A namespace can have the number of a namespace that has ended.
    assert!(ranks_of.len() >= NODES, "{}", job.output);
    assert!(ranks_of.values().all(|ranks| ranks % 2 == 0), "{}", job.output);
    assert_eq!(ranks_of.values().sum::<usize>(), 2 * NODES * runs, "{}", job.output);
}

/// Writes a result of each task to the pool, and then waits for a file if `go` is its name.
const SIMULATE: &str = "#!/bin/sh
mkdir -p \"$QUELL_POOL_DIR/results\" && echo \"$SLURM_PROCID\" >\"$QUELL_POOL_DIR/results/$SLURM_PROCID\" || exit
touch \"started.$SLURM_PROCID\"
test ! -e wait || sleep 3600
test ! -e fail
";

#[test]
fn a_pool_ends_with_its_job() {
    let stage = Stage::new();
    if let Some(reason) = why_not(&stage) {
        skip!("{reason}");
    }
    let cluster = Cluster::start(&stage, &[]);
    let script = include_str!("../../examples/slurm/pool-job.sh");
    cluster.file("project/simulate", SIMULATE);
    let job = cluster.expect_job(script, &TWO_ON_EACH);
    let results = cluster.run(&["sh", "-c", "cat results/* | sort -n && rm -r results"]);
    assert_eq!(results, "0\n1\n2\n3\n4\n5\n6\n7\n", "{}", job.output);
    cluster.expect_nothing_left();

    // The pool refuses to end with files that were not copied. It ends with the job.
    cluster.run(&["touch", "fail"]);
    let failed = cluster.wait(cluster.submit(script, &TWO_ON_EACH));
    assert_eq!(failed.states, ["FAILED"], "{}", failed.output);
    assert!(failed.output.contains("--discard"), "{}", failed.output);
    cluster.expect_nothing_left();

    cluster.run(&["sh", "-c", "rm fail started.*; touch wait"]);
    let job = cluster.submit(script, &TWO_ON_EACH);
    cluster.wait_for_files("started.*", 8);
    cluster.run(&["scancel", &job]);
    let cancelled = cluster.wait(job);
    assert_eq!(cancelled.states, ["CANCELLED"], "{}", cancelled.output);
    cluster.expect_nothing_left();
}

#[test]
fn nothing_remains_of_a_job_that_is_cancelled_or_has_no_memory() {
    let stage = Stage::new();
    if let Some(reason) = why_not(&stage) {
        skip!("{reason}");
    }
    let cluster = Cluster::start(&stage, &[]);
    let environment = "/shared/project/env";
    cluster.run(&["quell", "index", "-q", environment]);
    let record = "quell record -q -i /shared/project/env.quell -o /shared/project/env.boot -- \
        /shared/project/env/bin/python -c 'import model'";
    cluster.run(&["sh", "-c", record]);
    let program = "import model, os, time\n\
        open('started.' + os.environ['SLURM_PROCID'], 'w').close()\ntime.sleep(3600)\n";
    cluster.file("project/wait.py", program);
    // The processes of the batch script, of the steps, and the views.
    let options = ["", "-b /shared/project/env.boot --job", "--view fuse", "--scratch"];
    let has_fuse = fs::metadata("/dev/fuse").is_ok_and(|device| device.mode() & 0o006 == 0o006);
    for options in options.iter().filter(|options| has_fuse || !options.contains("fuse")) {
        let run = format!(
            "quell run --strict {options} -i {environment}.quell -- {environment}/bin/python wait.py"
        );
        for script in [format!("srun {run}"), run] {
            let job = cluster.submit(&script, &TWO_ON_EACH);
            cluster.wait_for_files("started.*", if script.starts_with("srun") { 8 } else { 1 });
            cluster.run(&["scancel", &job]);
            let cancelled = cluster.wait(job);
            assert_eq!(cancelled.states, ["CANCELLED"], "{script}: {}", cancelled.output);
            cluster.expect_nothing_left();
            cluster.run(&["sh", "-c", "rm started.*"]);
        }
    }

    // The program allocates memory until Slurm ends it.
    let program = "import model, time\nkept = []\nfor _ in range(300):\n    \
        kept.append(b'x' * 1_000_000)\n    time.sleep(0.01)\ntime.sleep(3600)\n";
    cluster.file("project/allocate.py", program);
    let script =
        format!("srun quell run --strict -i {environment}.quell -- {environment}/bin/python allocate.py");
    let job =
        cluster.wait(cluster.submit(&script, &["--nodes=2", "--ntasks-per-node=2", "--mem-per-cpu=100"]));
    assert!(["OUT_OF_MEMORY", "FAILED", "CANCELLED"].contains(&job.states[0].as_str()), "{:?}", job.states);
    assert!(job.output.contains("memory"), "{}", job.output);
    cluster.expect_nothing_left();
}

#[test]
fn the_prolog_shows_a_tree_to_all_jobs_of_a_node_and_the_epilog_ends_it() {
    let stage = Stage::new();
    if let Some(reason) = why_not(&stage) {
        skip!("{reason}");
    }
    let prolog = stage.file("prolog", include_str!("../../examples/slurm/prolog"));
    let epilog = stage.file("epilog", include_str!("../../examples/slurm/epilog"));
    let cluster = Cluster::start(&stage, &[("TESTBED_PROLOG", &prolog), ("TESTBED_EPILOG", &epilog)]);
    let program = "#!/bin/sh\ntouch \"/shared/project/started.$SLURM_JOB_ID\"\n\
        while ! test -e \"/shared/project/go.$SLURM_JOB_ID\"; do sleep 0.1; done\n\
        cat /shared/software/data && grep -c ' /shared/software ' /proc/self/mountinfo\n";
    fs::create_dir(cluster.shared("software")).unwrap();
    fs::write(cluster.shared("software/data"), "data\n").unwrap();
    fs::write(cluster.shared("software/program"), program).unwrap();
    set_mode(&cluster.shared("software/program"), 0o755);

    // Without an index the jobs run on the tree itself.
    cluster.run(&["sh", "-c", "touch go.1"]);
    let job = cluster.wait(cluster.submit("/shared/software/program", &["--nodelist=n2"]));
    assert_eq!((job.id.as_str(), job.output.as_str()), ("1", "data\n0\n"));

    let index = ["exec", "1", "/shared/apps/quell/bin/quell", "index", "-q", "/shared/software"];
    cluster.call(&index);
    let submit = || {
        let job = cluster.submit("srun /shared/software/program", &["--nodelist=n2"]);
        cluster.wait_for_files(&format!("started.{job}"), 1);
        job
    };
    // The second job uses the view of the first, and keeps it after the end of the first.
    let (first, second) = (submit(), submit());
    for job in [first, second] {
        assert_eq!(cluster.call(&["mounts", "2"]), "/shared/software");
        cluster.run(&["touch", &format!("go.{job}")]);
        let job = cluster.wait(job);
        assert_eq!((job.states[0].as_str(), job.output.as_str()), ("COMPLETED", "data\n1\n"));
    }
    // A cancelled job has an epilog, too.
    cluster.expect_nothing_left();
    let job = submit();
    cluster.run(&["scancel", &job]);
    assert_eq!(cluster.wait(job).states, ["CANCELLED"]);
    cluster.expect_nothing_left();
    // A failed prolog or epilog would make the node unusable.
    let idle = cluster.call(&["exec", "1", "sinfo", "--noheader", "--states=idle", "--format=%D"]);
    assert_eq!(idle, NODES.to_string());
}
