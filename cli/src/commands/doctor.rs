//! `quell doctor`: tries every view on a small temporary tree, and reports the results.

use std::ffi::OsStr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use quell_supervisor::{
    View, file_system_of, load_index_at, needs_user_namespace, refuses_overlay, runtime_directory,
};
use serde_json::json;

use crate::arguments::DoctorArgs;
use crate::failure::{CANNOT, Failure};
use crate::inputs::{root_of, shown};
use crate::installed::{self, PRELOAD_LIBRARY};
use crate::output::{hanging, outln, without_error_numbers};
use crate::program_kind::{ALTERNATIVE, program_kind, why_no_dispatch};

/// The result of one test.
struct Finding {
    name: String,
    works: bool,
    detail: String,
    /// Advice for the user if it does not work.
    advice: &'static str,
}

pub fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let directory = args.directory.as_deref().map(directory_of).transpose()?;
    let kind = directory.as_deref().and_then(file_system_of);
    let mut findings = vec![kernel(), user_namespaces(), groups_and_owners(), fuse_device(), fusermount()];
    let mut chosen = None;
    match Trial::new() {
        Err(failure) => findings.push(Finding {
            name: "trial".into(),
            works: false,
            detail: failure.to_string(),
            advice: "no view was tested; set QUELL_RUNTIME_DIR to a directory that you own with mode 700",
        }),
        Ok(trial) => {
            for view in [View::Overlay, View::Fuse, View::OverlayFuse] {
                let finding = trial.run(view);
                let refused = kind.as_deref().is_some_and(refuses_overlay) && view != View::Fuse;
                if finding.works && !refused && chosen.is_none() {
                    chosen = Some(view);
                }
                findings.push(finding);
            }
        }
    }
    findings.push(preload());
    if let Some(program) = &args.program {
        findings.push(served_program(program)?);
    }
    if let Some(directory) = &directory {
        findings.push(readable(directory, kind.as_deref()));
    }
    for finding in &mut findings {
        finding.detail = without_error_numbers(&finding.detail);
    }
    let (view, why) = verdict(chosen, kind.as_deref());
    if args.json {
        let tried: Vec<_> = findings
            .iter()
            .map(|f| json!({ "name": f.name, "works": f.works, "detail": f.detail, "advice": f.advice }))
            .collect();
        let directory = directory.as_deref().map(shown);
        outln!(
            "{}",
            json!({ "findings": tried, "directory": directory, "file_system": kind, "view": view, "why": why })
        );
    } else {
        for finding in &findings {
            let works = if finding.works { "yes" } else { "no" };
            outln!("{}", hanging(&format!("{works:<4}{:<18}", finding.name), &finding.detail));
            if !finding.works {
                outln!("{}", hanging(&" ".repeat(22), finding.advice));
            }
        }
        outln!("\n{}", hanging(&format!("view: {view}: "), &why));
    }
    Ok(ExitCode::from(if chosen.is_none() { CANNOT } else { 0 }))
}

/// Returns the directory that an argument names: itself, the tree of an index file, or the
/// directory of any other file. A directory above it may deny access; the path is then not
/// resolved.
fn directory_of(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |e: std::io::Error| Failure::wrong_input(format!("{}: {e}", shown(path)));
    let real = match path.canonicalize() {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            return std::path::absolute(path).map_err(failed);
        }
        real => real.map_err(failed)?,
    };
    if real.is_dir() {
        return Ok(real);
    }
    match load_index_at(&real) {
        Ok(image) => Ok(root_of(&image)),
        Err(_) => Ok(real.parent().unwrap_or(Path::new("/")).to_owned()),
    }
}

fn readable(directory: &Path, kind: Option<&str>) -> Finding {
    let tried = std::fs::read_dir(directory);
    let name = "directory".to_owned();
    let advice = "to index it you need read and search permission (r and x) for it, and search permission for every \
                  directory above it";
    let kind = kind.unwrap_or("an unknown file system");
    match tried {
        Ok(_) => {
            Finding { name, works: true, detail: format!("{} lies on {kind}", shown(directory)), advice }
        }
        Err(e) => Finding {
            name,
            works: false,
            detail: format!("{} lies on {kind}: {e}", shown(directory)),
            advice,
        },
    }
}

fn verdict(chosen: Option<View>, kind: Option<&str>) -> (&'static str, String) {
    let refusal = kind
        .filter(|kind| refuses_overlay(kind))
        .map(|kind| format!("{kind} cannot be a layer of overlayfs"));
    match chosen {
        Some(View::Overlay) => {
            let why = "served by the kernel alone; trees that need more memory than --memory allows get the view fuse";
            ("overlay", why.into())
        }
        Some(view) => {
            let reason = refusal.unwrap_or_else(|| "the preferred views do not work here".into());
            (view.name(), reason)
        }
        None => ("none", "`quell run` prints the reason and runs programs on the original directory".into()),
    }
}

/// Returns the finding about the preload library.
fn preload() -> Finding {
    let found = installed::library(PRELOAD_LIBRARY, "install it with `make install`");
    Finding {
        name: "preload".into(),
        works: found.is_ok(),
        detail: found.map_or_else(
            |failure| failure.to_string(),
            |library| match why_no_dispatch() {
                None => shown(&library),
                Some(reason) => format!("{}; not with --via preload+sud: {reason}", shown(&library)),
            },
        ),
        advice: "`quell run --via preload` needs it, and neither FUSE nor user namespaces",
    }
}

/// Returns the finding about the way in which a program can be served.
fn served_program(program: &OsStr) -> Result<Finding, Failure> {
    let kind = program_kind(program)?;
    let file = shown(&kind.file);
    let detail = match kind.refusal {
        None => {
            let sud = match why_no_dispatch() {
                None => "--via preload+sud also serves its system calls without libc".to_owned(),
                Some(reason) => {
                    format!("--via preload+sud cannot serve its system calls without libc: {reason}")
                }
            };
            format!("{file} is linked with glibc: every view and --via preload serve it; {sud}")
        }
        Some(refusal) => format!("{file} {}: --via preload cannot serve it", refusal.reason()),
    };
    Ok(Finding { name: "program".into(), works: kind.refusal.is_none(), detail, advice: ALTERNATIVE })
}

/// A small tree with its index, in a directory below the runtime directory.
struct Trial {
    directory: PathBuf,
}

impl Trial {
    fn new() -> Result<Trial, Failure> {
        let directory = runtime_directory()?.join(format!("doctor-{}", std::process::id()));
        let failed = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(&directory)));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(directory.join("tree"))
            .map_err(failed)?;
        let trial = Trial { directory };
        let failed = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(&trial.directory)));
        std::fs::write(trial.file(), CONTENT).map_err(failed)?;
        trial.quell(&["index", "-q"], &[&trial.tree()]).map_err(Failure::cannot)?;
        Ok(trial)
    }

    fn tree(&self) -> PathBuf {
        self.directory.join("tree")
    }

    fn file(&self) -> PathBuf {
        self.tree().join("file")
    }

    fn quell(&self, arguments: &[&str], paths: &[&Path]) -> Result<String, String> {
        let output = Command::new("/proc/self/exe")
            .args(arguments)
            .args(paths)
            .output()
            .map_err(|e| format!("cannot start quell: {e}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let text = String::from_utf8_lossy(&output.stderr);
                Err(text.trim().trim_start_matches("quell: ").replace('\n', "; "))
            }
        }
    }

    fn run(&self, view: View) -> Finding {
        let tree = self.tree();
        let index =
            quell_mount_spec::default_index_path(&tree).expect("a temporary directory is not the root");
        let before = ["run", "-q", "--strict", "--check", "none", "--view", view.name(), "-i"];
        let tried = self.quell(&before, &[&index, Path::new("--"), Path::new("cat"), &self.file()]);
        let (works, detail) = match tried {
            Ok(text) if text == CONTENT => (true, "a file was read through it".into()),
            Ok(text) => (false, format!("a file has the content {text:?}")),
            Err(reason) => (false, reason),
        };
        let advice = match view {
            View::Overlay => {
                "needs Linux 6.16 (or a distribution's backport) and one of: user namespaces, root"
            }
            View::OverlayFuse => "has the requirements of overlay, and needs /dev/fuse",
            View::Fuse => {
                "needs /dev/fuse and one of: user namespaces, root; else `quell mount` and fusermount3"
            }
        };
        Finding { name: format!("view {}", view.name()), works, detail, advice }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

const CONTENT: &str = "quell";

fn user_namespaces() -> Finding {
    let tried = Command::new("unshare").args(["-U", "-r", "-m", "true"]).output();
    let (works, detail) = match tried {
        Ok(output) if output.status.success() => (true, "a private mount namespace can be created".into()),
        Ok(output) => (false, String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => (false, format!("unshare: {e}")),
    };
    Finding {
        name: "user namespaces".into(),
        works,
        detail,
        advice: "the administrator can allow them: sysctl user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 (older Debian), \
                 kernel.apparmor_restrict_unprivileged_userns=0 or a profile for quell (Ubuntu)",
    }
}

/// Returns the finding about the groups of the user and the owners of files that the user namespace
/// of `quell run` does not keep; docs/semantics.md has the complete list of differences.
fn groups_and_owners() -> Finding {
    let own = rustix::process::getegid();
    let groups = rustix::process::getgroups().unwrap_or_default();
    let others: Vec<String> =
        groups.iter().filter(|group| **group != own).map(|group| group.as_raw().to_string()).collect();
    let without_namespace = !needs_user_namespace();
    if without_namespace && quell_mount_spec::owners_are_hidden() {
        return Finding {
            name: "groups and owners".into(),
            works: false,
            detail: "this user namespace shows files of users that it does not map as 65534 (nobody)".into(),
            advice: "where that matters, start quell outside of the user namespace (unshare -r)",
        };
    }
    let detail = if without_namespace {
        "all are kept: root's views need no user namespace".into()
    } else {
        let lost = match others.len() {
            0 => String::new(),
            _ => format!(
                "chgrp to your groups {} fails, and cp -p, tar -xp and rsync -a lose them; ",
                others.join(", ")
            ),
        };
        format!(
            "in the user namespace of `quell run`, {lost}files of other users show as 65534 (nobody), and ssh refuses \
             such files in /etc/ssh/ssh_config.d"
        )
    };
    Finding {
        name: "groups and owners".into(),
        works: without_namespace,
        detail,
        advice: "where that matters, mount without a user namespace: quell mount --view fuse INDEX DIRECTORY",
    }
}

fn fuse_device() -> Finding {
    let tried = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    Finding {
        name: "fuse device".into(),
        works: tried.is_ok(),
        detail: tried.err().map_or("/dev/fuse can be opened".into(), |e| format!("/dev/fuse: {e}")),
        advice: "the administrator can allow it: modprobe fuse; chmod 666 /dev/fuse (udev does it on most systems)",
    }
}

fn fusermount() -> Finding {
    let tried = Command::new("fusermount3").arg("--version").output();
    Finding {
        name: "fusermount3".into(),
        works: tried.is_ok(),
        detail: tried.map_or_else(
            |e| format!("fusermount3: {e}"),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        ),
        advice: "only `quell mount` as an ordinary user needs it: install fuse3",
    }
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    Finding {
        name: "kernel".into(),
        works: true,
        detail: format!("Linux {} {}", uname.release().to_string_lossy(), uname.machine().to_string_lossy()),
        advice: "",
    }
}
