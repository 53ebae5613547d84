//! The directory to which `quell profile` writes its files.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use quell_mount_spec::OutputFormat;
use quell_profile::Report;

use crate::config::Config;
use crate::failure::Failure;
use crate::inputs::{real_path, shown};

pub const TRACE: &str = "trace.strace";
pub const MOUNTINFO: &str = "mountinfo";
pub const CONFIG: &str = "quell.toml";
/// One of the first keys of report.json.
const REPORT_MARK: &[u8] = b"\"schema\": \"quell-profile/";

/// The directory of the report.
pub struct ReportDirectory {
    pub path: PathBuf,
    /// Whether this process created the directory.
    created: bool,
    force: bool,
}

impl ReportDirectory {
    /// Creates the directory with mode 0700, because paths and command lines are private.
    pub fn create(named: Option<&Path>, force: bool) -> Result<ReportDirectory, Failure> {
        let create = |directory: &Path| std::fs::DirBuilder::new().mode(0o700).create(directory);
        let failed = |directory: &Path, e: std::io::Error| {
            Failure::wrong_input(format!("{}: {e}; -o names a directory to write to", shown(directory)))
        };
        if let Some(directory) = named {
            return match create(directory) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(failed(directory, e)),
                result => {
                    let directory = real_path(directory)?;
                    match directory.is_dir() {
                        true => ReportDirectory { path: directory, created: result.is_ok(), force }.checked(),
                        false => {
                            Err(Failure::wrong_input(format!("{} is not a directory", shown(&directory))))
                        }
                    }
                }
            };
        }
        for number in 1.. {
            let name =
                if number == 1 { "quell-profile".to_owned() } else { format!("quell-profile.{number}") };
            match create(Path::new(&name)) {
                Ok(()) => {
                    return Ok(ReportDirectory {
                        path: real_path(Path::new(&name))?,
                        created: true,
                        force: false,
                    });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(Path::new(&name), e)),
            }
        }
        unreachable!("there is a next number")
    }

    /// Checks that an existing directory is empty or contains a report, unless `--force` was given.
    fn checked(self) -> Result<ReportDirectory, Failure> {
        let failed = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(&self.path)));
        if self.created || self.force || std::fs::read_dir(&self.path).map_err(failed)?.next().is_none() {
            return Ok(self);
        }
        let is_report = |bytes: &[u8]| memchr::memmem::find(bytes, REPORT_MARK).is_some();
        let format = OutputFormat { name: "a report of quell profile", begins: is_report };
        let path = self.file("report.json");
        if path.symlink_metadata().is_err() {
            return Err(Failure::wrong_input(format!(
                "{} is not empty and contains no report: name an empty or a new directory, or pass --force",
                shown(&self.path)
            )));
        }
        quell_mount_spec::Output { path: &path, format, force: false }.check()?;
        Ok(self)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        // `checked` has verified that the directory is empty or contains a report.
        let format = OutputFormat { name: "a file of a report", begins: |_| true };
        Ok(quell_mount_spec::Output { path: &self.file(name), format, force: self.force }
            .replace(content, |_| Ok(()))?)
    }

    /// Removes the trace, the mount table and the directory after a failure, if this process
    /// created the directory.
    pub fn discard(&self) {
        if self.created {
            for name in [TRACE, MOUNTINFO] {
                let _ = std::fs::remove_file(self.file(name));
            }
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    pub fn save(&self, report: &Report, config: &Config) -> Result<(), Failure> {
        self.write("report.json", json(report)?.as_bytes())?;
        let drawn = |e: &dyn std::fmt::Display| Failure::cannot(format!("cannot draw the report: {e}"));
        self.write("operations.csv", quell_profile::csv(report).as_bytes())?;
        for chart in quell_profile::charts(report).map_err(|e| drawn(&e))? {
            self.write(&format!("{}.svg", chart.name), chart.svg.as_bytes())?;
            self.write(&format!("{}.png", chart.name), &chart.png)?;
        }
        self.write("report.html", quell_profile::html(report).as_bytes())?;
        // Also written without trees, so that `quell run --config` can report that nothing is
        // covered.
        self.write(CONFIG, config.text(&report.verdict.text)?.as_bytes())
    }
}

/// Returns `report.json`.
pub fn json(report: &Report) -> Result<String, Failure> {
    serde_json::to_string_pretty(report).map_err(|e| Failure::cannot(format!("report.json: {e}")))
}
