//! quell.toml: which trees to cover with which index. Written by `quell profile`, read by `quell run --config`;
//! docs/formats/config.md.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::inputs::shown;

/// Nobody writes more by hand; a larger file is another one.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(default, rename = "tree")]
    pub trees: Vec<TreeConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeConfig {
    /// The directory to cover.
    pub path: PathBuf,
    /// Its index; a relative path is one from the directory of this file.
    pub index: PathBuf,
}

impl Config {
    pub fn read(file: &Path) -> Result<Config, Failure> {
        let wrong = |e: &dyn std::fmt::Display| Failure::wrong_input(format!("{}: {e}", shown(file)));
        let metadata = std::fs::metadata(file).map_err(|e| wrong(&e))?;
        if metadata.len() > BYTES_MAX {
            return Err(wrong(&format!("{} bytes are no quell.toml", metadata.len())));
        }
        let text = std::fs::read_to_string(file).map_err(|e| wrong(&e))?;
        let mut config: Config = toml::from_str(&text).map_err(|e| wrong(&e.to_string().trim_end()))?;
        if config.trees.is_empty() {
            return Err(wrong(&"it names no [[tree]]"));
        }
        let directory = file.parent().unwrap_or(Path::new(""));
        for tree in &mut config.trees {
            if !tree.path.is_absolute() {
                return Err(wrong(&format!("path = {:?} is not absolute", shown(&tree.path))));
            }
            tree.index = directory.join(&tree.index);
        }
        Ok(config)
    }

    pub fn text(&self) -> Result<String, Failure> {
        let trees = toml::to_string(self).map_err(|e| Failure::cannot(format!("quell.toml: {e}")))?;
        Ok(format!(
            "# Written by quell profile. Use it with: quell run --config quell.toml -- CMD\n\
             # An index that is missing is made by the first run; a relative path is one from the directory of this file.\n\n{trees}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("quell.toml");
        let path = PathBuf::from("/shared/a \"b\"\n[tree]");
        let config = Config { trees: vec![TreeConfig { path: path.clone(), index: "b.quell".into() }] };
        std::fs::write(&file, config.text().unwrap()).unwrap();
        let read = Config::read(&file).unwrap();
        assert_eq!(read.trees, [TreeConfig { path, index: directory.path().join("b.quell") }]);
    }

    #[test]
    fn what_it_does_not_know_is_refused_with_the_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("quell.toml");
        for (text, words) in [
            ("", "no [[tree]]"),
            ("[[tree]]\npath = '/a'\n", "missing field `index`"),
            ("[[tree]]\npath = 'a'\nindex = 'b'\n", "not absolute"),
            ("[[tree]]\npath = '/a'\nindex = 'b'\nview = 'x'\n", "unknown field `view`"),
            ("[[tree\n", "line 1"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Config::read(&file).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("quell.toml"), "{text}: {error}");
        }
    }
}
