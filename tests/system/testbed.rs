//! A MooseFS on this machine with two clients (`testbed/moosefs`), and the request counters of its
//! clients.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::stage::{Stage, checkout};

/// A MooseFS with two nodes. It is stopped on drop.
pub struct Testbed {
    script: PathBuf,
    directory: PathBuf,
}

impl Testbed {
    pub fn start(stage: &Stage) -> Testbed {
        let testbed =
            Testbed { script: checkout().join("testbed/moosefs"), directory: stage.path("testbed") };
        testbed.call(&["up", "2"]);
        testbed
    }

    pub fn call(&self, words: &[&str]) -> String {
        let output = Command::new(&self.script).args(words).env("TESTBED", &self.directory).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "moosefs {words:?}: {error}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn node(&self, number: &str) -> PathBuf {
        self.call(&["node", number]).into()
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
