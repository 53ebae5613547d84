//! Walks the tree in the stores and moves each file.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_vfs::{Kind, Result};

use super::state::{Dirs, MoveResult, Rebalance, RebalanceResult, is_being_written};
use crate::format::{StoreMap, Stored, is_own, joined, other_name, shown};
use crate::fs::{ResolvedPath, StoredDir, find};
use crate::not_found::none_if_not_found;
use crate::stores::{StoreNumber, Stores, open_in_all_stores};
use crate::tools::progress::{ToolProgress, run_tasks};

/// The largest number of passes. A later pass finds files that were created in a drained store
/// during the earlier passes.
const PASSES_MAX: usize = 4;

enum RebalanceTask {
    Dir {
        parent: Dirs,
        name: Vec<u8>,
        path: Vec<u8>,
    },
    File {
        dirs: Dirs,
        name: Vec<u8>,
        path: Vec<u8>,
        /// The stores that have a container of this name.
        holders: Vec<StoreNumber>,
    },
}

impl RebalanceTask {
    fn path(&self) -> &[u8] {
        let (RebalanceTask::Dir { path, .. } | RebalanceTask::File { path, .. }) = self;
        path
    }
}

/// Moves every container and log directory to the store that the map gives.
pub fn rebalance(stores: &Arc<Stores>, threads: usize, progress: &ToolProgress) -> Result<RebalanceResult> {
    let work = Rebalance::new(stores, progress);
    for _ in 0..PASSES_MAX {
        let moves_before = work.moves();
        let root: Dirs = Arc::new(stores.roots());
        work.update(|result| result.files = 0);
        let mut first = Vec::new();
        work.list(&root, b"", &mut first)?;
        run_tasks(threads, first, progress, &|task, added| {
            let path = task.path().to_vec();
            if let Err(error) = work.run_task(task, added) {
                work.update(|result| result.failed.push((path, error)));
            }
        });
        if work.moves() == moves_before || work.has_remaining() || progress.is_stopped() {
            break;
        }
    }
    if !work.has_remaining() && !progress.is_stopped() {
        let draining = stores.draining();
        if draining.contains(&0)
            && let Some(first) = (0..stores.count()).find(|store| !draining.contains(store))
        {
            work.copy_links(&Arc::new(stores.roots()), first)?;
        }
        stores.leave_drained()?;
        work.update(|result| result.is_complete = true);
    }
    Ok(work.into_result())
}

/// Returns the files that a rebalance would move with `map`, which is not in use yet. Writes
/// nothing.
pub fn preview_rebalance(stores: &Arc<Stores>, map: &StoreMap) -> Result<RebalanceResult> {
    let mut result = RebalanceResult { is_complete: true, ..RebalanceResult::default() };
    let mut waiting = vec![(StoredDir::root(stores), Vec::new())];
    while let Some((dir, dir_path)) = waiting.pop() {
        for entry in dir.list()?.entries {
            let path = joined(&dir_path, &entry.name);
            match entry.kind {
                Kind::File => {
                    let Some(container) = none_if_not_found(dir.open(&entry))? else { continue };
                    result.files += 1;
                    if is_being_written(&container)? {
                        result.busy.push(path);
                    } else if container.object().is_none()
                        && stores.number(entry.store) != map.home(&entry.name)
                    {
                        result.moved += 1;
                        result.bytes += container.summary()?.data_bytes();
                    }
                }
                Kind::Dir => {
                    if let ResolvedPath::Dir(dir) = find(stores, &path)? {
                        waiting.push((dir, path));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(result)
}

impl Rebalance<'_> {
    fn run_task(&self, task: RebalanceTask, added: &mut Vec<RebalanceTask>) -> Result<()> {
        match task {
            RebalanceTask::Dir { parent, name, path } => {
                let entered = open_in_all_stores(&parent, &other_name(&name)?, self.stores.host());
                // If the directory is not found, it was removed meanwhile.
                if let Some(dirs) = none_if_not_found(entered)? {
                    self.list(&Arc::new(dirs), &path, added)?;
                }
            }
            RebalanceTask::File { dirs, name, path, holders } => {
                match self.place_file(&dirs, &name, &holders)? {
                    MoveResult::Placed => {
                        self.progress.add_file();
                        self.update(|result| result.files += 1);
                    }
                    MoveResult::Busy => self.update(|result| result.busy.push(path)),
                    MoveResult::Absent => {}
                }
            }
        }
        Ok(())
    }

    /// Adds a task for each file and directory in a directory.
    fn list(&self, dirs: &Dirs, dir_path: &[u8], added: &mut Vec<RebalanceTask>) -> Result<()> {
        let mut files: BTreeMap<Vec<u8>, Vec<StoreNumber>> = BTreeMap::new();
        for (store, dir) in dirs.iter().enumerate() {
            for stored in dir.names()? {
                match shown(&stored) {
                    _ if dir_path.is_empty() && is_own(&stored) => {}
                    Some(Stored::Container(name)) => files.entry(name.to_vec()).or_default().push(store),
                    Some(Stored::Other(name)) if store == 0 => {
                        let kind = none_if_not_found(dir.stat(&stored))?.and_then(|stat| stat.kind());
                        if kind == Some(Kind::Dir) {
                            let (parent, path) = (Arc::clone(dirs), joined(dir_path, name));
                            added.push(RebalanceTask::Dir { parent, name: name.to_vec(), path });
                        }
                    }
                    _ => {}
                }
            }
        }
        added.extend(files.into_iter().map(|(name, holders)| {
            let path = joined(dir_path, &name);
            RebalanceTask::File { dirs: Arc::clone(dirs), name, path, holders }
        }));
        Ok(())
    }
}

#[cfg(test)]
#[path = "rebalance_test.rs"]
mod tests;
