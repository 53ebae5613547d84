//! quell.toml: the trees to cover and their indexes, the stores to mount and their mount points. It
//! is written by `quell profile` and read by `quell run --config` and `quell mount --config`; see
//! docs/formats/config.md.

use std::io::Read;
use std::path::{Path, PathBuf};

use quell_mount_spec::{Trusted, TrustedUse};
use quell_supervisor::check_trust;
use serde::{Deserialize, Serialize};

use crate::arguments::{IndexMethod, LocksArg};
use crate::failure::Failure;
use crate::inputs::{InputFile, shown};

/// Size limit in bytes: a larger file is not a configuration.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(default, rename = "tree", skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<TreeConfig>,
    #[serde(default, rename = "log", skip_serializing_if = "Vec::is_empty")]
    pub logs: Vec<LogConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeConfig {
    /// The directory to cover.
    pub path: PathBuf,
    /// The path of its index. A relative path is relative to the directory of this file.
    pub index: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// The mount point.
    pub path: PathBuf,
    pub stores: Vec<PathBuf>,
    /// How the index is read, unless the command line specifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexMethod>,
    /// Where locks are kept, unless the command line specifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<LocksArg>,
}

impl Config {
    /// Reads the trees for `quell run`. The list is empty if `quell profile` proposed no trees.
    pub fn read_trees(file: &Path, trust_owners: &[u32]) -> Result<Vec<TreeConfig>, Failure> {
        Ok(Config::read(file, trust_owners)?.trees)
    }

    /// Reads the log mounts for `quell mount`. A file without log mounts is an error.
    pub fn read_logs(file: &Path, trust_owners: &[u32]) -> Result<Vec<LogConfig>, Failure> {
        let logs = Config::read(file, trust_owners)?.logs;
        match logs.is_empty() {
            true => Err(Failure::wrong_input(format!(
                "{}: it has no [[log]], which `quell mount --config` needs",
                shown(file)
            ))),
            false => Ok(logs),
        }
    }

    /// Reads the trees and the log directories for `quell run --via preload`.
    pub fn read_both(
        file: &Path,
        trust_owners: &[u32],
    ) -> Result<(Vec<TreeConfig>, Vec<LogConfig>), Failure> {
        let config = Config::read(file, trust_owners)?;
        Ok((config.trees, config.logs))
    }

    fn read(file: &Path, trust_owners: &[u32]) -> Result<Config, Failure> {
        let wrong = |e: &dyn std::fmt::Display| Failure::wrong_input(format!("{}: {e}", shown(file)));
        let opened = InputFile::open(file)?.file;
        let trusted = Trusted::by_caller(trust_owners);
        check_trust(&trusted, &opened, file, TrustedUse::Configuration, None)?;
        let mut text = String::new();
        let length = opened.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| wrong(&e))?;
        if length as u64 > BYTES_MAX {
            return Err(wrong(&format!("it is larger than {BYTES_MAX} bytes, the limit for a quell.toml")));
        }
        let mut config: Config = toml::from_str(&text).map_err(|e| wrong(&e.to_string().trim_end()))?;
        let directory = file.parent().unwrap_or(Path::new(""));
        let paths = config.trees.iter().map(|tree| &tree.path).chain(config.logs.iter().map(|log| &log.path));
        if let Some(path) = paths.into_iter().find(|path| !path.is_absolute()) {
            return Err(wrong(&format!("path = {:?} is not absolute: begin it with /", shown(path))));
        }
        for tree in &mut config.trees {
            tree.index = directory.join(&tree.index);
        }
        for log in &mut config.logs {
            if log.stores.is_empty() {
                return Err(wrong(&format!("{} has no stores", shown(&log.path))));
            }
            for store in &mut log.stores {
                *store = directory.join(&*store);
            }
        }
        Ok(config)
    }

    /// Returns the content of the file. `verdict`: the result of the profile, for a comment.
    pub fn text(&self, verdict: &str) -> Result<String, Failure> {
        let trees = toml::to_string(self).map_err(|e| Failure::cannot(format!("quell.toml: {e}")))?;
        Ok(format!(
            "# Written by quell profile. Use it with: quell run --config quell.toml -- CMD\n\
             # The first run creates missing indexes. Relative paths begin at the directory of this file.\n\
             # {}\n\n{trees}",
            shown(verdict)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_written_and_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("quell.toml");
        let path = PathBuf::from("/shared/a \"b\"\n[tree]");
        let config = Config {
            trees: vec![TreeConfig { path: path.clone(), index: "b.quell".into() }],
            logs: Vec::new(),
        };
        std::fs::write(&file, config.text("One\nline").unwrap()).unwrap();
        let read = Config::read_trees(&file, &[]).unwrap();
        assert_eq!(read, [TreeConfig { path, index: directory.path().join("b.quell") }]);
    }

    #[test]
    fn a_file_without_trees_is_valid() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("quell.toml");
        for text in [
            Config::default().text("No tree is proposed.").unwrap(),
            "[[log]]\npath = '/a'\nstores = ['/b']\n".into(),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(Config::read_trees(&file, &[]).unwrap(), []);
        }
    }

    #[test]
    fn invalid_configurations_are_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("quell.toml");
        for (text, words) in [
            ("[[tree]]\npath = '/a'\n", "missing field `index`"),
            ("[[tree]]\npath = 'a'\nindex = 'b'\n", "not absolute"),
            ("[[tree]]\npath = '/a'\nindex = 'b'\nview = 'x'\n", "unknown field `view`"),
            ("[[tree\n", "line 1"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Config::read_trees(&file, &[]).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("quell.toml"), "{text}: {error}");
        }
    }

    #[test]
    fn stores_are_found_from_the_file_and_wrong_ones_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("quell.toml");
        let text = "[[tree]]\npath = '/t'\nindex = 'i'\n\
                    [[log]]\npath = '/a'\nstores = ['/b', 'c']\nindex = 'flatten-later'\nlocks = 'none'\n";
        std::fs::write(&file, text).unwrap();
        let stores = vec![PathBuf::from("/b"), directory.path().join("c")];
        let (index, locks) = (Some(IndexMethod::FlattenLater), Some(LocksArg::None));
        let expected = LogConfig { path: "/a".into(), stores, index, locks };
        assert_eq!(Config::read_logs(&file, &[]).unwrap(), [expected]);
        for (text, words) in [
            ("[[tree]]\npath = '/t'\nindex = 'i'\n", "no [[log]]"),
            ("[[log]]\npath = '/a'\nstores = []\n", "/a has no stores"),
            ("[[log]]\npath = 'a'\nstores = ['/b']\n", "not absolute"),
            ("[[log]]\npath = '/a'\n", "missing field `stores`"),
            ("[[log]]\npath = '/a'\nstores = ['/b']\nindex = 'best'\n", "unknown variant `best`"),
            ("[[log]]\npath = '/a'\nstores = ['/b']\nbuffer = 1\n", "unknown field `buffer`"),
            ("[[log]]\npath = '/a'\nstores = ['/b']\nlocks = 'all'\n", "unknown variant `all`"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Config::read_logs(&file, &[]).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("quell.toml"), "{text}: {error}");
        }
    }
}
