//! A MooseFS on this machine with two clients (`testbed/moosefs`), and the request counters of its
//! clients.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Stage, checkout};

/// A MooseFS with two nodes. It is stopped on drop.
pub struct Testbed {
    script: PathBuf,
    directory: PathBuf,
    mount_options: &'static str,
}

impl Testbed {
    pub fn start(stage: &Stage) -> Testbed {
        Testbed::start_with(stage, 2, "")
    }

    /// Starts one with this number of nodes, and these options of `mfsmount -o` for its mounts.
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
    /// its servers.
    fn counts(&self, node: &str) -> BTreeMap<String, u64> {
        let text = fs::read_to_string(self.node(node).join(".stats")).unwrap();
        text.lines()
            .filter_map(|line| line.strip_prefix("fuse_ops.")?.split_once(": "))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect()
    }

    /// Returns the requests that the client made because of `work`, on a node with empty caches.
    /// Reading the counters is itself counted, and subtracted.
    pub fn requests_of(&self, node: &str, work: impl FnOnce()) -> BTreeMap<String, u64> {
        self.call(&["drop", node]);
        self.requests_during(node, work)
    }

    /// Does the same without emptying the caches.
    pub fn requests_during(&self, node: &str, work: impl FnOnce()) -> BTreeMap<String, u64> {
        let (first, second) = (self.counts(node), self.counts(node));
        work();
        let third = self.counts(node);
        let count_of = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
        third
            .keys()
            .map(|name| {
                let reading = count_of(&second, name) - count_of(&first, name);
                (name.clone(), (count_of(&third, name) - count_of(&second, name)).saturating_sub(reading))
            })
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).arg("down").env("TESTBED", &self.directory).status();
    }
}
