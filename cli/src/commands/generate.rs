//! `quell generate`: creates man pages and shell completions from the definitions of the command
//! line. Hidden commands and options are internal, and are left out of both.

use std::fmt::Write;
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

fn completions(directory: &Path) -> std::io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut visible(&Arguments::command()), "quell", directory)?;
    }
    Ok(())
}

/// Returns a copy of a command without hidden commands and options, which `clap_complete` would
/// offer.
fn visible(command: &clap::Command) -> clap::Command {
    // clap requires static names. The leaked memory does not matter, because the process ends soon.
    let mut copy = clap::Command::new(&*command.get_name().to_owned().leak());
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    copy.args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible))
}

fn man_pages(directory: &Path) -> std::io::Result<()> {
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    let names = names_of(&root);
    write_pages(&root, &names, directory)
}

/// Returns the names of the pages of a command and of all commands below it: `quell`, `quell-run`.
fn names_of(command: &clap::Command) -> Vec<String> {
    let below = command.get_subcommands().filter(|sub| !sub.is_hide_set()).flat_map(names_of);
    std::iter::once(page_name(command)).chain(below).collect()
}

fn page_name(command: &clap::Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn write_pages(command: &clap::Command, names: &[String], directory: &Path) -> std::io::Result<()> {
    for below in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_pages(below, names, directory)?;
    }
    let man = clap_mangen::Man::new(command.clone()).manual("Quell");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend_from_slice(own_sections(command, names).as_bytes());
    std::fs::write(directory.join(man.get_filename()), page)
}

/// The exit codes of all commands.
const EXIT_CODES: [(&str, &str); 5] = [
    ("0", "The command succeeded."),
    ("1", "The result is negative: a difference was found, or something could not be read."),
    ("2", "Wrong usage, or an input that does not exist or is not valid."),
    ("3", "This machine or file system cannot do it."),
    ("130", "The command was interrupted."),
];

/// The environment variables that commands read.
const ENVIRONMENT: [(&str, &str); 8] = [
    (
        "QUELL_RUNTIME_DIR",
        "The directory for sockets and messages of views, instead of $XDG_RUNTIME_DIR/quell. It must belong to the \
         caller and have mode 700.",
    ),
    ("XDG_RUNTIME_DIR", "The parent of the runtime directory."),
    (
        "XDG_STATE_HOME",
        "The parent of the state directory, through which the nodes of a job exchange results of checks; default \
         ~/.local/state.",
    ),
    ("TMPDIR", "The directory for temporary files; default /tmp."),
    (
        "QUELL_LOG",
        "The events of the trace, such as debug or quell_fuse=debug; the trace is written to standard error, or to the \
         file of --log-file.",
    ),
    ("TZ", "The time zone of printed times; default: that of the system."),
    ("NO_COLOR", "If set, the summary of a profile has no colours."),
    (
        "PMIX_NAMESPACE, OMPI_MCA_ess_base_jobid, SLURM_JOB_ID, FLUX_JOB_ID, PMI_JOBID, PALS_APID, PBS_JOBID, LSB_JOBID, \
         COBALT_JOBID, JOB_ID",
        "The job to which a process belongs. The processes of a job on one node share a view.",
    ),
];

const FILES: [(&str, &str); 4] = [
    ("DIR.quell", "The index of the directory DIR, beside it."),
    (
        "$XDG_RUNTIME_DIR/quell, /run/quell, /tmp/quell-UID",
        "The runtime directory: of a user with a session, of root, of any other user.",
    ),
    ("~/.local/state/quell", "The state directory."),
    ("quell.toml", "Trees and log mounts, for --config."),
];

/// Returns the sections of a man page that clap does not generate: EXAMPLES, NOTES, EXIT STATUS,
/// ENVIRONMENT, FILES, SEE ALSO.
fn own_sections(command: &clap::Command, names: &[String]) -> String {
    let help = command.get_after_long_help().or_else(|| command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let (examples, notes) = examples_and_notes(&help);
    let mut page = String::new();
    if !notes.is_empty() {
        page += ".SH NOTES\n";
        for paragraph in notes {
            let _ = writeln!(page, ".PP\n{}", escaped(&paragraph));
        }
    }
    if !examples.is_empty() {
        // Without filling, so that a line of an example stays one line.
        page += ".SH EXAMPLES\n.nf\n";
        for line in examples {
            let _ = writeln!(page, "{}", escaped(&line));
        }
        page += ".fi\n";
    }
    page += ".SH \"EXIT STATUS\"\n";
    if runs_a_program(command) {
        page += ".PP\nThe exit status of the program, or if the program was not started:\n";
    }
    list(&mut page, &EXIT_CODES);
    page += ".SH ENVIRONMENT\n";
    list(&mut page, &ENVIRONMENT);
    page += ".SH FILES\n";
    list(&mut page, &FILES);
    page += ".SH \"SEE ALSO\"\n";
    let own = page_name(command);
    let others: Vec<String> =
        names.iter().filter(|name| **name != own && is_near(&own, name)).cloned().collect();
    let others = others.iter().map(|name| format!("\\fB{}\\fR(1)", escaped(name)));
    let system = ["fusermount3(1)", "mount(8)", "user_namespaces(7)"].map(str::to_owned);
    let _ = writeln!(page, "{}", others.chain(system).collect::<Vec<_>>().join(", "));
    page
}

/// Returns whether a page refers to another one: pages of one level refer to each other, and to the
/// pages above and below them.
fn is_near(own: &str, other: &str) -> bool {
    let parent = |name: &str| name.rsplit_once('-').map(|(parent, _)| parent.to_owned());
    parent(own) == parent(other)
        || parent(other).as_deref() == Some(own)
        || parent(own).as_deref() == Some(other)
}

fn runs_a_program(command: &clap::Command) -> bool {
    command.get_arguments().any(|arg| arg.is_trailing_var_arg_set())
}

/// Splits the text below the options into the lines of examples, which are indented, and
/// paragraphs.
fn examples_and_notes(help: &str) -> (Vec<String>, Vec<String>) {
    let (mut examples, mut notes) = (Vec::new(), Vec::new());
    for paragraph in help.split("\n\n") {
        match paragraph
            .trim_start()
            .strip_prefix("Example:\n")
            .or(paragraph.trim_start().strip_prefix("Examples:\n"))
        {
            Some(lines) => {
                examples.extend(lines.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned()))
            }
            // The page has a section of its own for exit codes.
            None if paragraph.trim().is_empty() || paragraph.starts_with("Exit codes:") => {}
            None => notes.push(paragraph.to_owned()),
        }
    }
    (examples, notes)
}

fn list(page: &mut String, entries: &[(&str, &str)]) {
    for (name, text) in entries {
        let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(text));
    }
}

/// Returns text for roff: a backslash, a hyphen and a control character at the beginning of a line
/// stand for themselves.
fn escaped(text: &str) -> String {
    let escape = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    };
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_separated_from_notes() {
        let help = "Exit codes: 0 done.\n\nExample:\n  quell run -- x\n    second\n\nA note.";
        let (examples, notes) = examples_and_notes(help);
        assert_eq!(examples, ["quell run -- x", "  second"]);
        assert_eq!(notes, ["A note."]);
    }

    #[test]
    fn control_characters_of_roff_are_escaped() {
        assert_eq!(escaped(".x\n'y\na\\b --c"), "\\&.x\n\\&'y\na\\eb \\-\\-c");
    }

    #[test]
    fn pages_refer_to_their_neighbours() {
        assert!(is_near("quell-run", "quell-index") && is_near("quell-run", "quell"));
        assert!(is_near("quell", "quell-log") && is_near("quell-log-ls", "quell-log"));
        assert!(!is_near("quell-run", "quell-log-ls") && !is_near("quell", "quell-log-ls"));
    }

    #[test]
    fn completions_have_no_hidden_command_or_option() {
        let command = visible(&Arguments::command());
        let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert!(names.contains(&"run") && !names.contains(&"holder") && !names.contains(&"calibrate"));
        let run = command.find_subcommand("run").unwrap();
        assert!(run.get_arguments().all(|arg| arg.get_id() != "recording"));
    }
}
