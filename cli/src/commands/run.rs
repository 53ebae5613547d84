//! `quell run`: joins or creates the view, then executes the program in its own process.

use std::process::ExitCode;

use quell_supervisor::{
    NotEntered, Plan, PlanSource, Target, ViewChoice, Waiting, disk_plan, enter_view, is_first_notice,
    open_fifo, runtime_directory, with_consequence,
};

use crate::arguments::{RunArgs, Via};
use crate::commands::{run_batch, run_batch_preload, run_preload};
use crate::failure::Failure;
use crate::inputs::{InputFile, shown};
use crate::output::errln;
use crate::plans;
use crate::program::become_program;
use crate::program_kind::{ALTERNATIVE, NO_TRAP};
use crate::run_inputs::{RunFiles, boot_plan, job_of, print_once, tree_plans, waiting_of};

pub fn run(args: RunArgs, quiet: bool) -> Result<ExitCode, Failure> {
    if let Some(batch) = &args.batch {
        return match args.via {
            Via::View => run_batch::run(&args, batch, quiet),
            Via::Preload | Via::PreloadSud => run_batch_preload::run(&args, batch, quiet),
            Via::Trap => Err(Failure::wrong_input("--batch cannot be used with --via trap")),
        };
    }
    match args.via {
        Via::View if !args.pools.is_empty() => return run_preload::run(&args, quiet),
        Via::View if args.logs.is_empty() => {}
        Via::View => {
            return Err(Failure::wrong_input(
                "--log needs --via preload; a mount of stores is made by `quell mount --log STORE DIR`",
            ));
        }
        Via::Preload | Via::PreloadSud => return run_preload::run(&args, quiet),
        Via::Trap => {
            return Err(Failure::cannot(format!("--via trap is not supported: {NO_TRAP}; {ALTERNATIVE}")));
        }
    }
    let waiting = waiting_of(&args, quiet);
    let (plan, files) = plan(&args, quiet, &waiting)?;
    if let (Some(config), PlanSource::Trees(trees)) = (&args.config, &plan.source)
        && trees.trees.is_empty()
    {
        let message = format!("{} has no [[tree]]", shown(config));
        if plan.strict {
            return Err(Failure::wrong_input(message));
        }
        print_once(&args, &format!("{message}: running on the original directory, without Quell"));
        return become_program(&args.command, None, &[], &waiting);
    }
    let original = if matches!(plan.source, PlanSource::Disk(_)) { "disk image" } else { "directory" };
    // Opened before the view is entered, because in it the paths may refer to other files.
    let outputs = match plan.recording().and_then(|recording| recording.outputs.as_ref()) {
        Some([out, err]) => Some([open_fifo(out)?, open_fifo(err)?]),
        None => None,
    };
    let job = job_of(&args);
    if let Err(NotEntered { failure, is_irrevocable }) = enter_view(&plan, &files, job.as_deref(), &waiting) {
        let message = failure.to_string();
        let directory = runtime_directory().ok();
        let is_first = is_first_notice(directory.as_deref(), job.as_deref(), &message);
        if plan.strict || is_irrevocable || failure.is_final() {
            return if is_first { Err(failure) } else { Ok(ExitCode::from(failure.code())) };
        }
        if is_first {
            let consequence = format!(": running on the original {original}, without Quell");
            errln!("quell: {}", with_consequence(&message, &consequence));
        }
    }
    become_program(&args.command, outputs, &[], &waiting)
}

/// Returns the plan, and the files of it that were opened.
fn plan(args: &RunArgs, quiet: bool, waiting: &Waiting) -> Result<(Plan, Vec<InputFile>), Failure> {
    let cover = &args.cover;
    if args.index.len() > 1 && (cover.source.is_some() || cover.at.is_some() || cover.writable.is_some()) {
        return Err(Failure::wrong_input("--source, --at and --writable can be used only with one -i"));
    }
    plans::refuse_mixed_content(&args.boot, cover)?;
    plans::refuse_powers(cover, args.image.is_some())?;
    let mut files = Vec::new();
    let mut received = RunFiles::of_job(args, quiet, waiting)?;
    let source = match &args.image {
        Some(disk) => {
            plans::check_disk_boot_images(args.boot.boot.len(), args.recording.is_some())?;
            plans::refuse_tree_options(cover)?;
            let format = args.image_format.image_format.map(Into::into);
            let boot = boot_plan(args, &mut received, &mut files, waiting)?;
            let (target, owners) = (&Target::Namespace, &cover.trust_owner);
            PlanSource::Disk(disk_plan(disk, format, boot, cover.recheck, target, owners)?)
        }
        None => {
            let trees = tree_plans(args, quiet, &mut received, &mut files, waiting)?;
            let boot = boot_plan(args, &mut received, &mut files, waiting)?;
            // The FUSE view is the only one in which Quell reads the files.
            let view = if args.job.share_data.is_some() { ViewChoice::Fuse } else { cover.view.into() };
            plans::trees(trees, boot, cover, view, args.above)?
        }
    };
    Ok((plans::plan(Target::Namespace, source, cover, quiet), files))
}
