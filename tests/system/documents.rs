//! The commands in the documents are run as written, in a temporary home directory.
//!
//! An HTML comment above each code block states whether it is run: `<!-- run -->`, or
//! `<!-- not run: REASON -->`. A block of a document uses the files of the blocks above it.
//! Commands of launchers (`srun`, `mpirun`) are replaced by programs that run one rank on this
//! machine, and directories such as `/shared` by directories of the test; everything else is as
//! written.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::stage::{Ended, Stage, checkout, has, is_root, quell};
use crate::trees::set_mode;

/// A code block of a document.
pub struct Block {
    line: usize,
    language: String,
    pub text: String,
    marker: Option<Marker>,
}

enum Marker {
    Run,
    NotRun,
}

/// Parses the line above a code block.
fn marker(line: &str) -> Option<Marker> {
    let words = line.trim().strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    match words.split_once(": ") {
        None if words == "run" => Some(Marker::Run),
        Some(("not run", reason)) if !reason.trim().is_empty() => Some(Marker::NotRun),
        _ => None,
    }
}

fn blocks(document: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut is_inside = false;
    let mut above = "";
    for (number, line) in document.lines().enumerate() {
        match (line.strip_prefix("```"), is_inside) {
            (Some(language), false) => {
                let (language, text) = (language.to_owned(), String::new());
                found.push(Block { line: number + 1, language, text, marker: marker(above) });
                is_inside = true;
            }
            (Some(_), true) => is_inside = false,
            (None, true) => {
                let block = found.last_mut().expect("the block that was opened");
                block.text += line;
                block.text.push('\n');
            }
            (None, false) => {}
        }
        above = line;
    }
    found
}

impl Block {
    /// Returns whether the block has commands of a shell. Other blocks are tested beside the code
    /// that they concern.
    fn has_commands(&self) -> bool {
        ["", "sh", "console"].contains(&self.language.as_str())
    }

    /// Returns the commands: of a recorded session, the lines after a prompt.
    fn commands(&self) -> String {
        if self.language != "console" {
            return self.text.clone();
        }
        self.text.lines().filter_map(|line| line.strip_prefix("$ ")).map(|line| format!("{line}\n")).collect()
    }
}

/// Returns the code blocks of a document.
pub fn read(document: &str) -> Vec<Block> {
    let path = checkout().join(document);
    blocks(&fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

/// The environment of the commands of one document.
struct Reader {
    stage: Stage,
}

/// Directories that documents use as examples.
const EXAMPLES: [&str; 6] = ["/shared", "/scratch", "/nvme", "/lustre", "/gpfs", "/archive"];

/// Replaces a launcher: runs one rank of the command on this machine.
const LAUNCHER: &str = "#!/bin/sh\n\
    while :; do case $1 in -n|-N) shift 2;; -*) shift;; *) break;; esac; done\n\
    SLURM_PROCID=0 exec \"$@\"\n";

impl Reader {
    fn new() -> Reader {
        let stage = Stage::new();
        for directory in EXAMPLES {
            stage.dir(&directory[1..]);
        }
        let bin = stage.dir("home/bin");
        std::os::unix::fs::symlink(quell(), bin.join("quell")).unwrap();
        for launcher in ["srun", "mpirun"] {
            program(&bin.join(launcher), LAUNCHER);
        }
        program(&bin.join("python"), "#!/bin/sh\nexec python3 \"$@\"\n");
        let jobs = stage.dir("home/jobs");
        fs::write(jobs.join("train.py"), "import json\nprint(json.dumps({'step': 1}))\n").unwrap();
        // With --checkpoint DIRECTORY it writes a file there.
        let simulation = "#!/bin/sh\n[ \"$1\" != --checkpoint ] || echo data >\"$2/step-100\"\n";
        program(&jobs.join("simulation"), simulation);
        program(&jobs.join("program"), simulation);
        Reader { stage }
    }

    /// Creates a Python environment with a package in a directory, and a program beside it that
    /// imports the package.
    fn python_in(&self, directory: &str) {
        let environment = self.stage.dir(&directory[1..]);
        let package = self.stage.dir(&format!("{}/lib/model", &directory[1..]));
        let numbers = 0..50;
        for number in numbers.clone() {
            fs::write(package.join(format!("part{number}.py")), "x = 1\n").unwrap();
        }
        let imports: String = numbers.map(|number| format!("import model.part{number}\n")).collect();
        fs::write(package.join("__init__.py"), imports).unwrap();
        fs::create_dir(environment.join("bin")).unwrap();
        let python = format!("#!/bin/sh\nPYTHONPATH={}/lib exec python3 \"$@\"\n", environment.display());
        program(&environment.join("bin/python"), &python);
        fs::write(environment.parent().unwrap().join("train.py"), "import model\n").unwrap();
    }

    /// Replaces the directories of the examples by those of this test.
    fn here(&self, commands: &str) -> String {
        let mut text = commands.to_owned();
        for directory in EXAMPLES {
            text = text.replace(directory, &self.stage.path(&directory[1..]).display().to_string());
        }
        text
    }

    fn command(&self, script: &str) -> Command {
        let mut command = self.stage.command("bash");
        let path = std::env::var("PATH").unwrap_or_default();
        let home = self.stage.path("home");
        command.args(["-e", "-c", &self.here(script)]).current_dir(home.join("jobs")).env("HOME", &home);
        command.env("PATH", format!("{}:{path}", home.join("bin").display()));
        command
    }

    fn run(&self, script: &str) -> Ended {
        self.stage.run(&mut self.command(script))
    }

    /// Runs all blocks of a document that are marked, in order.
    fn follow(&self, document: &str) {
        self.follow_if(document, |_| true);
    }

    fn follow_if(&self, document: &str, mut is_possible: impl FnMut(&str) -> bool) {
        for block in read(document) {
            let commands = block.commands();
            if !block.has_commands() || !matches!(block.marker, Some(Marker::Run)) || !is_possible(&commands)
            {
                continue;
            }
            let ended = self.run(&commands);
            assert_eq!(
                ended.code(),
                Some(0),
                "{document}:{}: {}\n-- stdout\n{}\n-- stderr\n{}",
                block.line,
                self.here(&commands),
                ended.text(),
                ended.err
            );
        }
    }
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    set_mode(path, 0o755);
}

/// The documents with blocks that tests of this file run.
const FOLLOWED: [&str; 4] =
    ["README.md", "docs/guides/clusters.md", "docs/guides/log-tools.md", "docs/techniques/log.md"];

/// Returns the documents for users: those of the site that describe commands.
fn documents_for_users() -> Vec<String> {
    let mut found: Vec<String> =
        ["README.md", "docs/semantics.md", "docs/benchmarks/README.md"].map(str::to_owned).to_vec();
    for directory in ["docs/guides", "docs/techniques"] {
        for entry in fs::read_dir(checkout().join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                found.push(format!("{directory}/{name}"));
            }
        }
    }
    found
}

#[test]
fn every_command_in_a_document_is_run_or_marked_with_a_reason() {
    let documents = documents_for_users();
    for document in FOLLOWED {
        assert!(documents.iter().any(|found| found == document), "{document} is missing");
    }
    for document in documents {
        for block in read(&document).iter().filter(|block| block.has_commands()) {
            let line = block.line;
            match block.marker {
                Some(Marker::NotRun) => {}
                Some(Marker::Run) => assert!(
                    FOLLOWED.contains(&document.as_str()),
                    "{document}:{line}: the block is marked as run, but no test runs this document"
                ),
                None => panic!(
                    "{document}:{line}: no `<!-- run -->` or `<!-- not run: REASON -->` above the block"
                ),
            }
        }
    }
}

#[test]
fn the_commands_of_the_readme_succeed() {
    let reader = Reader::new();
    reader.python_in("/shared/env");
    let has_numpy = Path::new("/usr/lib/python3/dist-packages/numpy").exists();
    if !has_numpy {
        println!("SKIPPED: python3-numpy is not installed");
    }
    if !has("strace") {
        println!("SKIPPED: strace is not installed");
    }
    reader.follow_if("README.md", |commands| {
        (has_numpy || !commands.contains("numpy")) && (has("strace") || !commands.contains("quell profile"))
    });
}

#[test]
fn the_commands_of_the_guide_to_clusters_succeed() {
    if !has("strace") {
        println!("SKIPPED: strace is not installed");
        return;
    }
    let reader = Reader::new();
    reader.python_in("/shared/project/env");
    reader.follow("docs/guides/clusters.md");
}

#[test]
fn the_commands_of_the_guide_to_log_tools_succeed() {
    let reader = Reader::new();
    let setup = "mkdir -p files/ckpt /scratch/store /scratch/a /nvme/b && echo data >files/ckpt/step-100.bin
        quell log import files /scratch/store && quell log import files /scratch/a";
    reader.run(setup).expect(0);
    reader.follow("docs/guides/log-tools.md");
}

#[test]
fn the_commands_of_the_page_about_logs_succeed() {
    if !is_root() && !has("fusermount3") {
        println!("SKIPPED: an ordinary user mounts through fusermount3, which is not there");
        return;
    }
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
        println!("SKIPPED: /dev/fuse cannot be opened: {error}");
        return;
    }
    let reader = Reader::new();
    reader.run("mkdir /lustre/me").expect(0);
    reader.follow("docs/techniques/log.md");
    assert_eq!(fs::read_to_string(reader.stage.path("home/jobs/step-100")).unwrap(), "data\n");
    reader.stage.expect_nothing_left();
}
