//! A MooseFS on this machine (`testbed/moosefs`), and the request counters of its clients.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Stage, checkout};

/// The size of the buffer for the counters of a client, which had 1333 bytes in MooseFS 3.0.117.
const STATS_BYTES_MAX: usize = 64 << 10;

/// A MooseFS and its nodes. It is stopped on drop.
pub struct Testbed {
    script: PathBuf,
    directory: PathBuf,
    mount_options: &'static str,
}

impl Testbed {
    /// Starts a MooseFS with two nodes.
    pub fn start(stage: &Stage) -> Testbed {
        Testbed::start_with(stage, 2, "")
    }

    /// Starts a MooseFS with this number of nodes, and these options of `mfsmount -o` for its
    /// mounts.
    pub fn start_with(stage: &Stage, nodes: usize, mount_options: &'static str) -> Testbed {
        let (script, directory) = (checkout().join("testbed/moosefs"), stage.path("testbed"));
        let testbed = Testbed { script, directory, mount_options };
        testbed.call(&["up", &nodes.to_string()]);
        testbed
    }

    pub fn call(&self, words: &[&str]) -> String {
        let mut command = Command::new(&self.script);
        command.args(words).env("TESTBED", &self.directory).env("TESTBED_MOUNT_OPTIONS", self.mount_options);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "moosefs {words:?}: {error}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn node(&self, number: &str) -> PathBuf {
        self.call(&["node", number]).into()
    }

    /// Returns a command that runs the program and arguments that follow on a node.
    pub fn exec(&self, number: &str) -> Command {
        let mut command = Command::new(&self.script);
        command.env("TESTBED", &self.directory).args(["exec", number]);
        command
    }

    /// Returns a command that runs a program on a node: in its network namespace, and with its
    /// mount at the directory `at`, in a mount namespace of the program. So the tree has the same
    /// path on all nodes.
    pub fn on_node(&self, number: &str, at: &Path) -> Command {
        let mut command = Command::new(&self.script);
        command.env("TESTBED", &self.directory).args(["exec", number, "unshare", "--mount", "sh", "-c"]);
        command.arg(r#"mount --bind "$0" "$1" && shift && exec "$@""#).arg(self.node(number)).arg(at);
        command
    }

    /// Returns the number of messages that this node's client has sent to the metadata server.
    pub fn sent(&self, node: &str) -> u64 {
        let counts = self.call(&["ops", node]);
        counts.split(' ').next().and_then(|count| count.parse().ok()).expect("two numbers")
    }

    /// Returns the counters of this node's client by name: the requests of programs, and those to
    /// its servers. The file is read by one call, so the number of requests for it does not depend
    /// on its length.
    fn counts(&self, node: &str) -> BTreeMap<String, u64> {
        let mut bytes = vec![0; STATS_BYTES_MAX];
        let length = File::open(self.node(node).join(".stats")).unwrap().read(&mut bytes).unwrap();
        assert!(length < STATS_BYTES_MAX, "the file is longer than the buffer");
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        assert!(text.ends_with('\n'), "the file is read completely: {text}");
        text.lines()
            .filter_map(|line| line.strip_prefix("fuse_ops.")?.split_once(": "))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect()
    }

    /// Returns the requests that the client made because of `work`, on a node with empty caches.
    pub fn requests_of(&self, node: &str, work: impl FnOnce()) -> BTreeMap<String, u64> {
        self.call(&["drop", node]);
        self.requests_during(&[node], work).remove(0)
    }

    /// Returns the requests that the clients of these nodes made because of `work`, without
    /// emptying their caches before. Reading the counters is itself counted, and subtracted.
    pub fn requests_during(&self, nodes: &[&str], work: impl FnOnce()) -> Vec<BTreeMap<String, u64>> {
        let counts = || nodes.iter().map(|node| self.counts(node)).collect::<Vec<_>>();
        // The first reading can also look up the name of the file.
        counts();
        let (first, second) = (counts(), counts());
        work();
        let third = counts();
        let count_of = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
        let difference = |first: &BTreeMap<String, u64>, second, third: &BTreeMap<String, u64>| {
            let of_name = |name: &String| {
                let reading = count_of(second, name) - count_of(first, name);
                (name.clone(), (count_of(third, name) - count_of(second, name)).saturating_sub(reading))
            };
            third.keys().map(of_name).filter(|(_, count)| *count > 0).collect()
        };
        first.iter().zip(&second).zip(&third).map(|((a, b), c)| difference(a, b, c)).collect()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).arg("down").env("TESTBED", &self.directory).status();
    }
}
