//! `quell mount`: mounts a view, a log mount, a pool, blobs, or a store for batches, at a mount
//! point; a background process serves it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use quell_supervisor::{
    BatchMode, BootPlan, Plan, PlanSource, PoolPlan, TreePlan, batch_plan, blob_plan, disk_plan, find_pool,
    log_plan, mount, mount_target,
};

use crate::arguments::{AboveArg, BatchModeArg, MountArgs};
use crate::commands::batch_background::connect_or_start;
use crate::commands::umount::unmount;
use crate::config::{Config, LogConfig};
use crate::failure::Failure;
use crate::indexes::{Creation, index_of};
use crate::inputs::real_path;
use crate::output::errln;
use crate::plans;
use crate::views::first_socket;

pub fn run(args: MountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    if let Some(config) = &args.config {
        return mount_logs(Config::read_logs(config, &args.cover.trust_owner)?, &args, quiet);
    }
    if let Some(name) = &args.pool {
        return mount_pool(name, &args, quiet);
    }
    if let Some(store) = &args.blob {
        return mount_blobs(store, &args, quiet);
    }
    if let Some(store) = &args.batch {
        return mount_batch(store, &args, quiet);
    }
    match (&args.file, &args.mountpoint) {
        (Some(mountpoint), None) if !args.log.is_empty() => {
            let log =
                LogConfig { path: mountpoint.clone(), stores: args.log.clone(), index: None, locks: None };
            mount_logs(vec![log], &args, quiet)
        }
        (Some(_), Some(_)) if !args.log.is_empty() => {
            Err(Failure::wrong_input("--log takes one mount point; name several stores as --log STORE,STORE"))
        }
        (None, _) if !args.log.is_empty() => {
            Err(Failure::wrong_input("name a mount point: quell mount --log STORE MOUNTPOINT"))
        }
        (Some(file), Some(mountpoint)) => mount_view(&args, file, mountpoint, quiet),
        _ => Err(Failure::wrong_input("name an index and a mount point: quell mount FILE MOUNTPOINT")),
    }
}

fn mount_view(args: &MountArgs, file: &Path, mountpoint: &Path, quiet: bool) -> Result<ExitCode, Failure> {
    let logs = &args.logs;
    let is_given = logs.buffer.is_some()
        || logs.index_method.is_some()
        || logs.flatten_threshold.is_some()
        || logs.locks.is_some()
        || logs.kernel_cache.is_some()
        || logs.new_files.is_some();
    if is_given {
        return Err(Failure::wrong_input(
            "--buffer, --index, --flatten-threshold, --locks, --kernel-cache and --new-files can be used only with --log",
        ));
    }
    if args.cover.at.is_some() {
        return Err(Failure::wrong_input(
            "--at can be used only with `quell run`: `quell mount` covers its mount point",
        ));
    }
    plans::refuse_mixed_content(&args.boot, &args.cover)?;
    plans::refuse_powers(&args.cover, args.image)?;
    let target = mount_target(mountpoint, args.allow_other)?;
    let boot = || -> Result<BootPlan, Failure> {
        let images = args.boot.boot.iter().map(|path| real_path(path)).collect::<Result<_, _>>()?;
        Ok(BootPlan::Serve { images, budget_mib: args.boot.budget })
    };
    let plan = if args.image {
        plans::check_disk_boot_images(args.boot.boot.len(), false)?;
        plans::refuse_tree_options(&args.cover)?;
        let format = args.image_format.image_format.map(Into::into);
        let (recheck, owners) = (args.cover.recheck, &args.cover.trust_owner);
        let disk = disk_plan(file, format, boot()?, recheck, &target, owners)?;
        plans::plan(target, PlanSource::Disk(disk), &args.cover, quiet)
    } else {
        let creation = Creation { is_reported: args.cover.verbose, quiet };
        let (index, directory) = index_of(file, creation)?;
        let source = args.cover.source.as_deref().map(real_path).transpose()?;
        let named = directory.filter(|_| source.is_none());
        let tree =
            TreePlan { index: index.path, source, at: None, named, job_check: None, shared_blocks: None };
        let trees = plans::trees(vec![tree], boot()?, &args.cover, args.cover.view.into(), AboveArg::Live)?;
        Plan { strict: true, ..plans::plan(target, trees, &args.cover, quiet) }
    };
    mount(&plan)?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts a pool of this node.
fn mount_pool(name: &str, args: &MountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (Some(mountpoint), None) = (&args.file, &args.mountpoint) else {
        return Err(Failure::wrong_input("name one mount point: quell mount --pool NAME MOUNTPOINT"));
    };
    let pool = find_pool(name)?;
    let socket = first_socket(&pool)?;
    let plan = PoolPlan { name: pool.name, socket, chunk_bytes: pool.chunk_bytes };
    let target = mount_target(mountpoint, args.allow_other)?;
    mount(&plans::plan(target, PlanSource::Pool(plan), &args.cover, quiet))?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts the blobs of a store.
fn mount_blobs(store: &str, args: &MountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (Some(mountpoint), None) = (&args.file, &args.mountpoint) else {
        return Err(Failure::wrong_input("name one mount point: quell mount --blob STORE MOUNTPOINT"));
    };
    let target = mount_target(mountpoint, args.allow_other)?;
    let prefix = args.blob_prefix.as_deref().unwrap_or_default();
    let plan = blob_plan(store, prefix, target.mountpoint().unwrap_or(mountpoint))?;
    mount(&plans::plan(target, PlanSource::Blob(plan), &args.cover, quiet))?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts a store for batches.
fn mount_batch(store: &Path, args: &MountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (Some(mountpoint), None) = (&args.file, &args.mountpoint) else {
        return Err(Failure::wrong_input("name one mount point: quell mount --batch STORE MOUNTPOINT"));
    };
    let mode = match args.watch {
        Some(batch) => BatchMode::Watch { batch },
        None => plans::batch_mode(&args.batch_mode, BatchModeArg::Sync)?,
    };
    if args.allow_other && matches!(mode, BatchMode::Batch { .. }) {
        return Err(Failure::wrong_input("a batch has the permissions of one user: omit --allow-other"));
    }
    let target = mount_target(mountpoint, args.allow_other)?;
    let plan = batch_plan(store, mode, target.mountpoint().unwrap_or(mountpoint), &args.cover.trust_owner)?;
    // The connection keeps the server until the mount has its own.
    let _connection = args.batch_mode.serve.then(|| connect_or_start(&plan)).transpose()?;
    mount(&plans::plan(target, PlanSource::Batch(plan), &args.cover, quiet))?;
    Ok(ExitCode::SUCCESS)
}

/// Mounts stores at their mount points: all of them, or none.
fn mount_logs(logs: Vec<LogConfig>, args: &MountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let mut log_plans = Vec::new();
    for LogConfig { path, stores, index, locks } in &logs {
        let target = mount_target(path, args.allow_other)?;
        let mountpoint = target.mountpoint().unwrap_or(path);
        let log = log_plan(stores, mountpoint, args.logs.options(*index, *locks), args.init)?;
        log_plans.push(plans::plan(target, PlanSource::Log(log), &args.cover, quiet));
    }
    let mut mounted: Vec<PathBuf> = Vec::new();
    for plan in log_plans {
        if let Err(failure) = mount(&plan) {
            for point in mounted.iter().rev() {
                if let Err(failure) = unmount(point, false) {
                    errln!("quell: {failure}");
                }
            }
            return Err(failure);
        }
        mounted.extend(plan.target.mountpoint().map(Path::to_owned));
    }
    Ok(ExitCode::SUCCESS)
}
