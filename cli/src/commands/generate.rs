//! `quell generate`: creates man pages and shell completions from the definitions of the command
//! line.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::{Arguments, GenerateArgs, Generated};
use crate::failure::Failure;
use crate::inputs::shown;

pub fn run(args: GenerateArgs) -> Result<ExitCode, Failure> {
    let failed = |e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(&args.directory)));
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    match args.what {
        Generated::Man => man_pages(&args.directory),
        Generated::Completions => completions(&args.directory),
    }
    .map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn man_pages(directory: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(Arguments::command(), directory)
}

fn completions(directory: &Path) -> std::io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Arguments::command(), "quell", directory)?;
    }
    Ok(())
}
