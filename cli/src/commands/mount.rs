//! `quell mount`: mounts a view, or a log mount, at a mount point; a background process serves it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use crate::arguments::{LogArgs, MountArgs};
use crate::commands::{disks, holder, log, umount};
use crate::config::{Config, LogConfig};
use crate::failure::Failure;
use crate::inputs::{real_path, shown};
use crate::mounts;
use crate::output::errln;
use crate::plan::{Place, Plan, TreePlan, refuse_mixtures, refuse_powers};
use crate::runtime;

pub fn run(args: MountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    if let Some(config) = &args.config {
        return mount_logs(Config::read_logs(config, &args.cover.trust_owner)?, &args, quiet);
    }
    match (&args.file, &args.mountpoint) {
        (Some(mountpoint), None) if !args.log.is_empty() => {
            let log = LogConfig { path: mountpoint.clone(), stores: args.log.clone(), index: None };
            mount_logs(vec![log], &args, quiet)
        }
        (Some(_), Some(_)) if !args.log.is_empty() => Err(Failure::wrong_input(
            "one mount point goes with --log; several stores are named as --log STORE,STORE",
        )),
        (None, _) if !args.log.is_empty() => {
            Err(Failure::wrong_input("name a mount point: quell mount --log STORE MOUNTPOINT"))
        }
        (Some(file), Some(mountpoint)) => mount_view(&args, file, mountpoint, quiet),
        _ => Err(Failure::wrong_input("name an index and a mount point: quell mount FILE MOUNTPOINT")),
    }
}

fn mount_view(args: &MountArgs, file: &Path, mountpoint: &Path, quiet: bool) -> Result<ExitCode, Failure> {
    let logs = &args.logs;
    if logs.buffer.is_some() || logs.index_way.is_some() || logs.flatten_threshold.is_some() {
        return Err(Failure::wrong_input("--buffer, --index and --flatten-threshold go with --log"));
    }
    if args.cover.at.is_some() {
        return Err(Failure::wrong_input("--at is for `quell run`; here the mount point says where"));
    }
    refuse_mixtures(&args.boot, &args.cover)?;
    refuse_powers(&args.cover, args.image)?;
    let (mountpoint, place) = place(args, mountpoint)?;
    let mut plan = if args.image {
        disks::check_boots(args.boot.boot.len(), false)?;
        let disk = disks::plan_of(file, args.image_format, &args.cover)?;
        let plan = Plan::new(place, Vec::new(), &args.boot, &args.cover, quiet);
        Plan { disk: Some(disk), ..plan }
    } else {
        let tree = TreePlan {
            index: real_path(file)?,
            source: args.cover.source.as_deref().map(real_path).transpose()?,
            at: None,
            named: None,
        };
        Plan { strict: true, ..Plan::new(place, vec![tree], &args.boot, &args.cover, quiet) }
    };
    plan.resolve_writable()?;
    plan.boots = args.boot.boot.iter().map(|path| real_path(path)).collect::<Result<_, _>>()?;
    start(plan, &mountpoint)?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts stores at their mount points: all of them, or none.
fn mount_logs(logs: Vec<LogConfig>, args: &MountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let mut plans = Vec::new();
    for LogConfig { path, stores, index } in &logs {
        let (mountpoint, place) = place(args, path)?;
        let how = LogArgs { index_way: args.logs.index_way.or(*index), ..args.logs };
        let log = log::plan_of(stores, &mountpoint, how, args.init)?;
        let plan = Plan::new(place, Vec::new(), &args.boot, &args.cover, quiet);
        plans.push((Plan { log: Some(log), ..plan }, mountpoint));
    }
    let mut mounted: Vec<PathBuf> = Vec::new();
    for (plan, mountpoint) in plans {
        if let Err(failure) = start(plan, &mountpoint) {
            for point in mounted.iter().rev() {
                if let Err(failure) = umount::take_away(point, false) {
                    errln!("quell: {failure}");
                }
            }
            return Err(failure);
        }
        mounted.push(mountpoint);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the mount point without symbolic links, and whether other users have access.
fn place(args: &MountArgs, mountpoint: &Path) -> Result<(PathBuf, Place), Failure> {
    // This check comes first: any access to a view blocks if its process was killed or stopped, and
    // fails if the view belongs to another user.
    let named = umount::path_of(mountpoint)?;
    refuse_taken(&named)?;
    let found = mountpoint.canonicalize().and_then(|path| Ok((path.metadata()?.is_dir(), path)));
    let (is_dir, path) = found.map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(mountpoint))))?;
    if !is_dir {
        return Err(Failure::wrong_input(format!("{} is not a directory", shown(&path))));
    }
    // Root's mounts are for all users: the overlay views have no other mode.
    let allow_other = args.allow_other || rustix::process::geteuid().is_root();
    Ok((path.clone(), Place::Mountpoint { path, allow_other }))
}

fn start(mut plan: Plan, mountpoint: &Path) -> Result<(), Failure> {
    plan.directory = runtime::directory()?;
    plan.key = runtime::mount_key(mountpoint);
    let lock = lock_free(&plan, mountpoint)?;
    match holder::start(&plan, &[], &lock)?.refused {
        None => Ok(()),
        Some(refusal) => {
            runtime::remove_lock(&plan);
            Err(refusal.into())
        }
    }
}

/// Locks a mount point that has neither a view nor a process that served one. Waits for such a
/// process to end.
fn lock_free(plan: &Plan, mountpoint: &Path) -> Result<File, Failure> {
    let until = Instant::now() + umount::END_TIMEOUT;
    let left = || until.saturating_duration_since(Instant::now());
    let (point, seconds) = (shown(mountpoint), umount::END_TIMEOUT.as_secs());
    loop {
        let Some(lock) = quell_overlay::lock_key_within(&plan.directory, &plan.key, left())? else {
            return Err(Failure::cannot(format!(
                "another quell mount of {point} has not ended after {seconds} s; try again later"
            )));
        };
        refuse_taken(mountpoint)?;
        let Some(process) = quell_overlay::process_of(&plan.directory, &plan.key)? else { return Ok(lock) };
        // The process needs the lock in order to end.
        drop(lock);
        if !process.wait(left()) {
            return Err(Failure::cannot(format!(
                "{point} was unmounted, and process {}, which served it, has not ended after {seconds} s; try again later",
                process.pid
            )));
        }
    }
}

/// Returns an error if any user has a view at the mount point. `mountpoint` has no symbolic links.
pub fn refuse_taken(mountpoint: &Path) -> Result<(), Failure> {
    let Some(mount) = mounts::ours_at(mountpoint) else { return Ok(()) };
    let directory = runtime::directory().ok();
    let process = directory.and_then(|directory| {
        quell_overlay::process_of(&directory, &runtime::mount_key(mountpoint)).ok().flatten()
    });
    let by = match process {
        Some(process) => format!("served by process {}", process.pid),
        None => "not served by a process of yours: it is another user's, or its process has ended".into(),
    };
    let point = shown(mountpoint);
    Err(Failure::wrong_input(format!(
        "{point} has a view already, {} ({by}); quell umount {point} takes it away",
        shown(&mount.source)
    )))
}
