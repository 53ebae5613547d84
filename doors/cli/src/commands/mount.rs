//! `quell mount`: the view at a mount point, served by a process in the background.

use std::process::ExitCode;

use crate::arguments::MountArgs;
use crate::commands::{disks, holder};
use crate::failure::Failure;
use crate::inputs::{real_path, shown};
use crate::plan::{Place, Plan, TreePlan, refuse_mixtures};
use crate::runtime;

pub fn run(args: MountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    if args.cover.at.is_some() {
        return Err(Failure::wrong_input("--at is for `quell run`; here the mount point says where"));
    }
    refuse_mixtures(&args.boot, &args.cover)?;
    let mountpoint = real_path(&args.mountpoint)?;
    if !mountpoint.is_dir() {
        return Err(Failure::wrong_input(format!("{} is not a directory", shown(&mountpoint))));
    }
    // Root mounts for everybody: the kernel's views know no other way.
    let allow_other = args.allow_other || rustix::process::geteuid().is_root();
    let place = Place::Mountpoint { path: mountpoint.clone(), allow_other };
    let mut plan = if args.image {
        disks::check_boots(args.boot.boot.len(), false)?;
        let disk = disks::plan_of(&args.file, args.image_format, &args.cover)?;
        let plan = Plan::new(place, Vec::new(), &args.boot, &args.cover, quiet);
        Plan { disk: Some(disk), ..plan }
    } else {
        let tree = TreePlan {
            index: real_path(&args.file)?,
            source: args.cover.source.as_deref().map(real_path).transpose()?,
            at: None,
        };
        Plan { strict: true, ..Plan::new(place, vec![tree], &args.boot, &args.cover, quiet) }
    };
    plan.boots = args.boot.boot.iter().map(|path| real_path(path)).collect::<Result<_, _>>()?;
    plan.directory = runtime::directory()?;
    plan.key = runtime::mount_key(&mountpoint);
    if quell_overlay::ask(&plan.directory, &plan.key)?.is_some() {
        return Err(Failure::wrong_input(format!("{} has a view already", shown(&mountpoint))));
    }
    match holder::start(&plan, &[])?.refused {
        None => Ok(ExitCode::SUCCESS),
        Some(refusal) => Err(Failure::of_code(refusal.code, refusal.message)),
    }
}
