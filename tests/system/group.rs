//! A control group with a low memory limit, of either cgroup version. Processes join it by writing
//! to its `cgroup.procs`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::stage::{eventually, is_root};

pub struct Group {
    pub path: PathBuf,
}

impl Group {
    /// Creates the group, or returns the reason why this is not possible here.
    pub fn new(bytes: u64) -> Result<Group, String> {
        if !is_root() {
            return Err("a control group with little memory needs root".into());
        }
        let first = Path::new("/sys/fs/cgroup/memory");
        let second = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(second.join("cgroup.subtree_control")).unwrap_or_default();
        let (above, limit) = if first.join("memory.limit_in_bytes").exists() {
            (first, "memory.limit_in_bytes")
        } else if controllers.split_whitespace().any(|name| name == "memory") {
            (second, "memory.max")
        } else {
            return Err("no memory control group that can be limited".into());
        };
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let group = Group { path: above.join(format!("quell-system-test-{}-{number}", std::process::id())) };
        fs::create_dir(&group.path)
            .and_then(|()| fs::write(group.path.join(limit), bytes.to_string()))
            .map_err(|e| format!("a memory control group cannot be made and limited here: {e}"))?;
        Ok(group)
    }

    /// Returns the number of processes that were killed because of the limit.
    pub fn killed(&self) -> u64 {
        let text = ["memory.oom_control", "memory.events"]
            .iter()
            .find_map(|name| fs::read_to_string(self.path.join(name)).ok())
            .unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or_else(|| panic!("no count in {text:?}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        eventually(|| fs::remove_dir(&self.path).is_ok() || !self.path.exists());
    }
}
