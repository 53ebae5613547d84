//! The environment variable that describes the virtual directories of a process tree. The frontends
//! that run in a user's program read it: the preload library and the MPI-IO components. Its value
//! is one line of JSON with the members of quell.toml; see docs/formats/config.md.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use quell_log::{Choices, LogFs};
use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::display::shown;
use crate::index_mode::{FLATTEN_THRESHOLD_BYTES, IndexMode};
use crate::log_stores::open_log_at;
use crate::new_files::NewFiles;
use crate::shared_tree::SharedTree;

/// The name of the variable.
pub const VIEW_VARIABLE: &str = "QUELL_VIEW";

/// The largest value that is parsed, in bytes. The kernel limits a variable to 128 KiB.
const VALUE_BYTES_MAX: usize = 128 << 10;

/// The virtual directories of a process tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// The indexed trees.
    #[serde(default, rename = "tree", skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<ViewTree>,
    /// The log directories.
    #[serde(default, rename = "log", skip_serializing_if = "Vec::is_empty")]
    pub logs: Vec<ViewLog>,
    /// The directories whose files are in a pool.
    #[serde(default, rename = "pool", skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<ViewPool>,
    /// The directories whose files are in stores for batches.
    #[serde(default, rename = "batch", skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<ViewBatch>,
    /// A file with counters, which `quell run` creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<PathBuf>,
    /// The preload library also serves system calls that programs make without libc.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dispatch: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// An indexed tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewTree {
    /// The directory that is covered: absolute, without `.`, `..` and symbolic links.
    pub path: PathBuf,
    /// Other paths of the directory, through symbolic links, that programs use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<PathBuf>,
    /// Its index file: absolute.
    pub index: PathBuf,
    /// The index and files of the tree in the memory of a process of this node, as `quell run`
    /// found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedTree>,
}

/// A directory whose files are kept in log stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewLog {
    /// The virtual directory: absolute, without `.`, `..` and symbolic links.
    pub path: PathBuf,
    /// Other paths of the directory, through symbolic links, that programs use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<PathBuf>,
    /// The stores: absolute.
    pub stores: Vec<PathBuf>,
    /// How the index of a file is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexMode>,
    /// The size of the write buffer of one process for one file, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<usize>,
    /// The largest size of the index logs of a file that is flattened, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flatten_threshold_bytes: Option<u64>,
    /// The form in which files begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_files: Option<NewFiles>,
}

/// A directory whose files are in a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewPool {
    /// The virtual directory: absolute, without `.`, `..` and symbolic links.
    pub path: PathBuf,
    /// Other paths of the directory, through symbolic links, that programs use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<PathBuf>,
    /// The socket of the pool's daemon on this node: absolute.
    pub socket: PathBuf,
    /// The size of the pool's chunks, in bytes.
    pub chunk_bytes: u32,
}

/// A directory whose files are in a store for batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewBatch {
    /// The virtual directory: absolute, without `.`, `..` and symbolic links.
    pub path: PathBuf,
    /// Other paths of the directory, through symbolic links, that programs use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<PathBuf>,
    /// The store: absolute.
    pub store: PathBuf,
    /// The number of the batch; 0 in the synchronous mode.
    pub batch: u64,
    /// The socket of the process of `quell run` that has the name space: absolute.
    pub socket: PathBuf,
}

impl View {
    /// Returns the number of virtual directories.
    pub fn directories(&self) -> usize {
        self.logs.len() + self.trees.len() + self.pools.len() + self.batches.len()
    }

    /// Returns the view of this process: `None` if the variable is not set or empty.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, as for `parse`.
    pub fn from_environment() -> Result<Option<View>> {
        match std::env::var_os(VIEW_VARIABLE) {
            Some(value) if !value.is_empty() => View::parse(value.as_bytes()).map(Some),
            _ => Ok(None),
        }
    }

    /// Parses the value of the variable.
    ///
    /// # Errors
    ///
    /// `InvalidInput` with the reason.
    pub fn parse(value: &[u8]) -> Result<View> {
        let refused = |reason: String| Error {
            source: Some(reason.into()),
            ..Error::new(ErrorKind::InvalidInput, "read", VIEW_VARIABLE)
        };
        if value.len() > VALUE_BYTES_MAX {
            return Err(refused(format!("it is longer than {VALUE_BYTES_MAX} bytes")));
        }
        let view: View = serde_json::from_slice(value).map_err(|error| refused(error.to_string()))?;
        let of_logs = view.logs.iter().flat_map(|log| log.paths());
        let of_pools = view.pools.iter().flat_map(|pool| pool.paths());
        let of_trees = view.trees.iter().flat_map(|tree| tree.paths());
        let of_batches = view.batches.iter().flat_map(|batch| batch.paths());
        let virtual_paths: Vec<&PathBuf> =
            of_logs.chain(of_trees).chain(of_pools).chain(of_batches).collect();
        if let Some(path) = virtual_paths.into_iter().find(|path| !is_plain(path)) {
            return Err(refused(format!(
                "the directory {} must be absolute, without '.' and '..', and not the root",
                shown(path)
            )));
        }
        let stores = view.logs.iter().flat_map(|log| &log.stores);
        let indexes = view.trees.iter().map(|tree| &tree.index);
        let sockets = view.pools.iter().map(|pool| &pool.socket);
        let of_batches = view.batches.iter().flat_map(|batch| [&batch.store, &batch.socket]);
        let named = stores.chain(indexes).chain(sockets).chain(of_batches);
        if let Some(path) = named.into_iter().find(|path| !path.is_absolute()) {
            return Err(refused(format!("{} is not absolute: begin it with /", shown(path))));
        }
        if let Some(pool) = view.pools.iter().find(|pool| pool.chunk_bytes == 0) {
            return Err(refused(format!("the chunks of {} have no size", shown(&pool.path))));
        }
        for log in &view.logs {
            if log.stores.is_empty() {
                return Err(refused(format!("{} has no stores", shown(&log.path))));
            }
            let nested = |store: &&PathBuf| store.starts_with(&log.path) || log.path.starts_with(store);
            if let Some(store) = log.stores.iter().find(nested) {
                let (path, store) = (shown(&log.path), shown(store));
                return Err(refused(format!("of {path} and its store {store} one lies in the other")));
            }
        }
        Ok(view)
    }

    /// Returns the value for the variable.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a path that is not UTF-8, which JSON cannot contain.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error {
            source: Some(error.into()),
            ..Error::new(ErrorKind::InvalidInput, "write", VIEW_VARIABLE)
        })
    }
}

impl ViewTree {
    /// Returns the path of the directory, and the other paths that programs use.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> + Clone {
        std::iter::once(&self.path).chain(&self.aliases)
    }
}

impl ViewPool {
    /// Returns the path of the directory, and the other paths that programs use.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> + Clone {
        std::iter::once(&self.path).chain(&self.aliases)
    }
}

impl ViewBatch {
    /// Returns the path of the directory, and the other paths that programs use.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> + Clone {
        std::iter::once(&self.path).chain(&self.aliases)
    }
}

impl ViewLog {
    /// Returns the path of the directory, and the other paths that programs use.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> + Clone {
        std::iter::once(&self.path).chain(&self.aliases)
    }

    /// Opens the stores as one file system. Flattening in the background is only for mounts: here a
    /// close waits for it, so that no thread remains that a fork or the end of the process would
    /// interrupt. `new_files`: the form in which files begin, unless the view names another one.
    pub fn open(&self, new_files: NewFiles) -> Result<LogFs> {
        let default = Choices::default();
        let index = self.index.unwrap_or(IndexMode::Parallel);
        let choices = index.choices(
            self.buffer_bytes.unwrap_or(default.buffer_bytes),
            self.flatten_threshold_bytes.unwrap_or(FLATTEN_THRESHOLD_BYTES),
        );
        let begins_as_object = self.new_files.unwrap_or(new_files) == NewFiles::Object;
        let choices = Choices { flattens_later: false, begins_as_object, ..choices };
        open_log_at(&self.stores, choices, &self.path)
    }
}

/// Returns whether a path is absolute, not the root, and as the kernel shows it.
fn is_plain(path: &Path) -> bool {
    let mut components = path.components();
    let normal = components.next() == Some(Component::RootDir)
        && components.clone().next().is_some()
        && components.all(|part| matches!(part, Component::Normal(_)));
    // `components` leaves out repeated slashes and single dots.
    normal && path.components().collect::<PathBuf>().as_os_str() == path.as_os_str() && !ends_with_slash(path)
}

fn ends_with_slash(path: &Path) -> bool {
    OsStr::as_bytes(path.as_os_str()).ends_with(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_tree::SharedFile;

    fn refusal(value: &str) -> String {
        View::parse(value.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_view_survives_the_variable() {
        let file = |descriptor| SharedFile { descriptor, device: 1, inode: u64::MAX };
        let view = View {
            trees: vec![ViewTree {
                path: "/shared/env".into(),
                aliases: vec!["/env".into()],
                index: "/shared/env.quell".into(),
                shared: Some(SharedTree { holder: 7, index: file(8), table: file(9) }),
            }],
            logs: vec![ViewLog {
                path: "/scratch/run".into(),
                aliases: Vec::new(),
                stores: vec!["/a/store".into(), "/b/st\"o\nre".into()],
                index: Some(IndexMode::FlattenLater),
                buffer_bytes: Some(4096),
                flatten_threshold_bytes: None,
                new_files: Some(NewFiles::Container),
            }],
            pools: vec![ViewPool {
                path: "/pool".into(),
                aliases: Vec::new(),
                socket: "/run/pool/socket".into(),
                chunk_bytes: 1 << 19,
            }],
            batches: vec![ViewBatch {
                path: "/results".into(),
                aliases: Vec::new(),
                store: "/shared/results".into(),
                batch: 7,
                socket: "/run/batch/socket".into(),
            }],
            counters: None,
            dispatch: true,
        };
        let text = view.to_json().unwrap();
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(View::parse(text.as_bytes()).unwrap(), view);
    }

    #[test]
    fn an_invalid_value_is_refused_with_the_reason() {
        assert!(refusal("{").contains("EOF"));
        assert!(refusal(r#"{"pools":[]}"#).contains("unknown field"));
        for path in ["run", "/", "/a/../b", "/a/./b", "/a//b", "/a/", ""] {
            let value = format!(r#"{{"log":[{{"path":"{path}","stores":["/s"]}}]}}"#);
            assert!(refusal(&value).contains("must be absolute"), "{path}");
        }
        assert!(
            refusal(r#"{"log":[{"path":"/m","aliases":["m"],"stores":["/s"]}]}"#)
                .contains("must be absolute")
        );
        assert!(refusal(r#"{"log":[{"path":"/m","stores":[]}]}"#).contains("no stores"));
        assert!(refusal(r#"{"log":[{"path":"/m","stores":["s"]}]}"#).contains("not absolute"));
        assert!(refusal(r#"{"log":[{"path":"/m","stores":["/m/s"]}]}"#).contains("one lies in the other"));
        assert!(refusal(r#"{"log":[{"path":"/s/m","stores":["/s"]}]}"#).contains("one lies in the other"));
        assert!(refusal(r#"{"tree":[{"path":"/t","index":"i"}]}"#).contains("not absolute"));
        let pool = |socket, chunk_bytes| {
            format!(r#"{{"pool":[{{"path":"/p","socket":"{socket}","chunk_bytes":{chunk_bytes}}}]}}"#)
        };
        assert!(refusal(&pool("s", 1)).contains("not absolute"));
        assert!(refusal(&pool("/s", 0)).contains("no size"));
        let batch = |path, store, socket| {
            format!(r#"{{"batch":[{{"path":"{path}","store":"{store}","batch":0,"socket":"{socket}"}}]}}"#)
        };
        assert!(refusal(&batch("b", "/s", "/socket")).contains("must be absolute"));
        assert!(refusal(&batch("/b", "s", "/socket")).contains("not absolute"));
        assert!(refusal(&batch("/b", "/s", "socket")).contains("not absolute"));
        assert!(refusal(&" ".repeat(VALUE_BYTES_MAX + 1)).contains("longer"));
    }

    #[test]
    fn the_files_of_a_view_are_in_the_store() {
        let temp = tempfile::tempdir().unwrap();
        let store = temp.path().canonicalize().unwrap().join("store");
        std::fs::create_dir(&store).unwrap();
        let path = store.parent().unwrap().join("run");
        let value = format!(r#"{{"log":[{{"path":{path:?},"stores":[{store:?}],"index":"flatten"}}]}}"#);
        let view = View::parse(value.as_bytes()).unwrap();
        view.logs[0].open(NewFiles::Object).unwrap();
        assert!(crate::is_store(&store).unwrap());
    }
}
