//! `quell doctor`: tries what this machine allows and says what follows.

use std::process::{Command, ExitCode};

use serde_json::json;

use crate::arguments::DoctorArgs;
use crate::failure::{CANNOT, Failure};
use crate::inputs::{real_path, shown};
use crate::views::file_system_of;

/// One thing that was tried.
struct Finding {
    name: &'static str,
    works: bool,
    detail: String,
    /// What to do or ask for, where it does not work.
    advice: &'static str,
}

pub fn run(args: DoctorArgs) -> Result<ExitCode, Failure> {
    let directory = args.directory.as_deref().map(real_path).transpose()?;
    let findings = [user_namespaces(), fuse_device(), fusermount(), overlay(), kernel()];
    let kind = directory.as_deref().and_then(file_system_of);
    let works = |name: &str| findings.iter().any(|f| f.name == name && f.works);
    let refuses_overlay = matches!(kind.as_deref(), Some("lustre" | "gpfs"));
    let can_isolate = works("user namespaces") || rustix::process::geteuid().is_root();
    let (view, why) = if can_isolate && works("overlay") && !refuses_overlay {
        ("overlay", "metadata in the kernel, no daemon on the way of any request".to_owned())
    } else if can_isolate && works("fuse device") {
        let reason = match (refuses_overlay, &kind) {
            (true, Some(kind)) => format!("{kind} cannot be a layer of overlayfs"),
            _ => "overlayfs does not take a user's layers here".into(),
        };
        ("fuse", reason)
    } else {
        ("none", "`quell run` would say so and run programs on the original directory".into())
    };
    if args.json {
        let tried: Vec<_> = findings
            .iter()
            .map(|f| json!({ "name": f.name, "works": f.works, "detail": f.detail, "advice": f.advice }))
            .collect();
        let directory = directory.as_deref().map(shown);
        println!(
            "{}",
            json!({ "findings": tried, "directory": directory, "file_system": kind, "view": view, "why": why })
        );
    } else {
        for finding in &findings {
            println!("{} {:<16} {}", if finding.works { "yes" } else { "no " }, finding.name, finding.detail);
            if !finding.works {
                println!("    {:<16} {}", "", finding.advice);
            }
        }
        if let (Some(directory), Some(kind)) = (&directory, &kind) {
            println!("    {:<16} {} lies on {kind}", "directory", shown(directory));
        }
        println!("\nview: {view} ({why})");
    }
    Ok(ExitCode::from(if view == "none" { CANNOT } else { 0 }))
}

/// Tries it in a process of its own: namespaces cannot be left again.
fn in_namespace(script: &str) -> Result<(), String> {
    let mut command = Command::new("unshare");
    let root = rustix::process::geteuid().is_root();
    command.args(if root { &["-m"][..] } else { &["-U", "-r", "-m"][..] }).args(["sh", "-c", script]);
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")),
        Err(e) => Err(format!("unshare: {e}")),
    }
}

fn user_namespaces() -> Finding {
    let tried = in_namespace("true");
    Finding {
        name: "user namespaces",
        works: tried.is_ok(),
        detail: tried.err().unwrap_or_else(|| "a private mount namespace can be made".into()),
        advice: "ask for: sysctl user.max_user_namespaces > 0, kernel.unprivileged_userns_clone=1 (Debian), \
                 kernel.apparmor_restrict_unprivileged_userns=0 or a profile for quell (Ubuntu)",
    }
}

fn fuse_device() -> Finding {
    let tried = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    Finding {
        name: "fuse device",
        works: tried.is_ok(),
        detail: tried.err().map_or("/dev/fuse can be opened".into(), |e| format!("/dev/fuse: {e}")),
        advice: "ask for: modprobe fuse; chmod 666 /dev/fuse (udev does it on most systems)",
    }
}

fn fusermount() -> Finding {
    let tried = Command::new("fusermount3").arg("--version").output();
    Finding {
        name: "fusermount3",
        works: tried.is_ok(),
        detail: tried.map_or_else(
            |e| format!("fusermount3: {e}"),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        ),
        advice: "only `quell mount` as an ordinary user needs it: install fuse3",
    }
}

fn overlay() -> Finding {
    let script = "d=$(mktemp -d) && mount -t tmpfs none $d && mkdir $d/m $d/d $d/v && echo data >$d/d/f && \
                  setfattr -n user.overlay.metacopy $d/m/f 2>/dev/null; \
                  mount -t overlay none -o userxattr,lowerdir=$d/m::$d/d $d/v; s=$?; umount -l $d; rmdir $d; exit $s";
    let tried = in_namespace(script);
    Finding {
        name: "overlay",
        works: tried.is_ok(),
        detail: tried.err().unwrap_or_else(|| "overlayfs takes a user's data-only layers".into()),
        advice: "needs Linux 6.16 (or a distribution's backport) and overlayfs; the fuse view is used instead",
    }
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    Finding {
        name: "kernel",
        works: true,
        detail: format!("Linux {} {}", uname.release().to_string_lossy(), uname.machine().to_string_lossy()),
        advice: "",
    }
}
