//! Copies of trees by `quell-staging`, with a progress line, a manifest and a list of failures: the
//! part that `quell pool` and `quell batch` have in common.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quell_posix::{PosixDir, WritableDir};
use quell_staging::{CopiedFile, Options, Owners, Part, Progress, Report, Source, TreeDir};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, FileSystem};
use rustix::process::{Resource, Rlimit, getegid, geteuid, getrlimit, setrlimit};
use serde_json::json;

use crate::arguments::{StagingArgs, StagingPart};
use crate::failure::{Failure, NO};
use crate::inputs::{shown, shown_bytes, text_of_bytes};
use crate::output::{errln, outln};
use crate::progress;

/// The permissions of directories that a command creates because the user named them.
const NEW_DIRECTORY: u32 = 0o755;

/// Opens the files and directories of the command line that are to be copied.
pub fn open_sources(paths: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    let mut names = HashSet::new();
    let mut sources = Vec::new();
    for path in paths {
        let (parent, name) = split(path.as_os_str().as_bytes());
        if name.is_some_and(|name| !names.insert(name)) {
            return Err(Failure::wrong_input(format!(
                "{}: another source has the same name; copy them into different directories",
                shown(path)
            )));
        }
        let dir = Arc::new(PosixDir::open(Path::new(OsStr::from_bytes(parent)))?);
        sources.push(Source { dir, name: name.map(<[u8]>::to_vec) });
    }
    Ok(sources)
}

/// Returns the entry at `path` of a file system as a source. `shown_path` is its name in errors.
pub fn source_in(fs: &Arc<dyn FileSystem>, path: &[u8], shown_path: &str) -> Result<Source, Failure> {
    let (parent, name) = split(path);
    let dir = TreeDir::open(fs, parent, owner())
        .map_err(|error| Failure::wrong_input(format!("{shown_path}: {error}")))?;
    Ok(Source { dir: Arc::new(dir), name: name.map(<[u8]>::to_vec) })
}

/// Opens a directory outside of Quell, and creates it if it does not exist.
pub fn make_dir(path: &Path) -> Result<Arc<dyn WritableDir>, Failure> {
    match std::fs::create_dir(path) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
            Err(Failure::wrong_input(format!("{}: {cause}", shown(path))))
        }
        _ => Ok(Arc::new(PosixDir::open(path)?)),
    }
}

/// Makes all files of the file system of a directory survive a power failure.
pub fn sync_file_system(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

/// Returns the owner and the group of new entries.
pub fn owner() -> (u32, u32) {
    (geteuid().as_raw(), getegid().as_raw())
}

/// Splits a path into a directory and the name of an entry. If the path does not end in a name,
/// there is no entry, and the path stands for the entries of the directory.
pub fn split(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let trimmed = &path[..end];
    let begin = trimmed.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match &trimmed[begin..] {
        b"" | b"." | b".." => (path, None),
        name if begin == 0 => (b".", Some(name)),
        name => (&trimmed[..begin], Some(name)),
    }
}

/// Opens a directory of a file system, and creates the missing directories of its path.
pub fn make_dirs(fs: &Arc<dyn FileSystem>, path: &[u8]) -> Result<Arc<dyn WritableDir>, Failure> {
    let mut dir: Arc<dyn WritableDir> = Arc::new(TreeDir::open(fs, b"", owner())?);
    for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
        match dir.make_dir(name, NEW_DIRECTORY) {
            Err(error) if error.kind != ErrorKind::Exists => return Err(error.into()),
            _ => dir = dir.open_writable_dir(name)?,
        }
    }
    Ok(dir)
}

/// Receives the results. The first error of the manifest is kept.
struct Output {
    json: bool,
    complete_files: AtomicU64,
    manifest: Mutex<Option<BufWriter<File>>>,
    manifest_error: Mutex<Option<io::Error>>,
}

impl Output {
    fn new(args: &StagingArgs) -> Result<Output, Failure> {
        let manifest = match &args.manifest {
            Some(path) => Some(BufWriter::new(
                File::create(path).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))?,
            )),
            None => None,
        };
        let (complete_files, manifest_error) = Default::default();
        Ok(Output { json: args.json, complete_files, manifest: Mutex::new(manifest), manifest_error })
    }

    fn write_line(&self, line: impl FnOnce() -> String) {
        if let Some(manifest) = &mut *lock(&self.manifest)
            && let Err(error) = writeln!(manifest, "{}", line())
        {
            lock(&self.manifest_error).get_or_insert(error);
        }
    }

    fn finish(&self) -> io::Result<()> {
        if let Some(manifest) = &mut *lock(&self.manifest) {
            manifest.flush()?;
        }
        lock(&self.manifest_error).take().map_or(Ok(()), Err)
    }
}

impl Report for Output {
    fn copied(&self, file: &CopiedFile<'_>) {
        self.complete_files.fetch_add(1, Ordering::Relaxed);
        self.write_line(|| {
            // JSON strings cannot contain a path that is not UTF-8.
            let (key, path) = match std::str::from_utf8(file.path) {
                Ok(path) => ("path", path.to_owned()),
                Err(_) => ("path_hex", hexadecimal(file.path)),
            };
            let modified = format!("{}.{:09}", file.modified.seconds, file.modified.nanoseconds);
            let blake3 = file.blake3.map(|checksum| hexadecimal(&checksum));
            json!({ key: path, "size_bytes": file.size_bytes, "modified": modified, "blake3": blake3 })
                .to_string()
        });
    }

    fn failed(&self, path: &[u8], error: &Error) {
        match self.json {
            true => outln!("{}", json!({ "path": text_of_bytes(path), "error": error.to_string() })),
            false => errln!("quell: {}: {error}", shown_bytes(path)),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The variables in which launchers pass the rank of a process and the number of ranks.
/// SLURM_NTASKS is not used, because it is also set in batch scripts, of which only one process
/// runs.
const RANKS: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
];

fn part_of_process(part: StagingPart) -> Result<Part, Failure> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let found = match part {
        StagingPart::Of { index, count } => Part::new(index, count),
        StagingPart::Auto => RANKS
            .iter()
            .find_map(|(index, count)| Some((number(index)?, number(count)?)))
            .and_then(|(index, count)| Part::new(index, count)),
    };
    found.ok_or_else(|| {
        Failure::wrong_input(
            "--part auto: the environment has no rank of this process; start it with mpirun, srun or flux, or use --part I/N",
        )
    })
}

/// Copies with a progress line, until Ctrl-C, and returns whether everything was copied. `sync` is
/// called before success is reported. After Ctrl-C, `interrupted` is the error.
pub fn run(
    titles: (&str, &str),
    sources: &[Source],
    target: &Arc<dyn WritableDir>,
    options: (&StagingArgs, Option<StagingPart>),
    quiet: bool,
    sync: impl FnOnce() -> io::Result<()>,
) -> Result<bool, Failure> {
    let copied = copy(titles, sources, target, options, quiet)?;
    let is_complete = copied.is_complete();
    if is_complete {
        sync().map_err(|e| Failure::with_code(NO, format!("cannot sync the copies: {e}")))?;
    }
    copied.report(is_complete)?;
    Ok(is_complete)
}

/// The result of a copy that has ended and is not reported yet.
pub struct Copied {
    progress: Progress,
    output: Output,
}

/// Copies with a progress line, until Ctrl-C. After Ctrl-C, `interrupted` is the error.
pub fn copy(
    (title, interrupted): (&str, &str),
    sources: &[Source],
    target: &Arc<dyn WritableDir>,
    (args, part): (&StagingArgs, Option<StagingPart>),
    quiet: bool,
) -> Result<Copied, Failure> {
    // A copy keeps the directories above the current files open.
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum })
        .map_err(io::Error::from)
        .map_err(|e| Failure::cannot(format!("cannot raise the number of open files: {e}")))?;
    let output = Output::new(args)?;
    let options = Options {
        threads: args.threads.into(),
        verifies: !args.no_verify,
        compares_content: args.checksum || args.manifest.is_some(),
        owners: if geteuid().is_root() { Owners::OfSource } else { Owners::User(geteuid().as_raw()) },
        keeps_xattrs: !args.no_xattrs,
        part: part.map(part_of_process).transpose()?,
    };
    let progress = Progress::default();
    progress::watch_files(title, &progress, quiet || args.json, interrupted, || {
        quell_staging::copy(sources, target, options, &progress, &output)
    })??;
    Ok(Copied { progress, output })
}

impl Copied {
    /// Returns whether everything was copied.
    pub fn is_complete(&self) -> bool {
        self.progress.failed() == 0
    }

    /// Prints the counts with `--json`, and ends the manifest. With `is_complete`, the manifest
    /// states that all files were copied and survive a power failure.
    pub fn report(self, is_complete: bool) -> Result<(), Failure> {
        let Copied { progress, output } = self;
        if is_complete {
            let files = output.complete_files.load(Ordering::Relaxed);
            output.write_line(|| json!({ "complete": true, "files": files }).to_string());
        }
        output.finish().map_err(|e| Failure::with_code(NO, format!("cannot write the manifest: {e}")))?;
        if output.json {
            outln!(
                "{}",
                json!({ "files": progress.files(), "unchanged": progress.unchanged(),
                    "directories": progress.directories(), "links": progress.links(),
                    "bytes": progress.bytes(), "failed": progress.failed() })
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_path_names_an_entry_or_all_entries_of_a_directory() {
        let name = |path: &'static str| split(path.as_bytes());
        for (path, dir, entry) in
            [("a", ".", "a"), ("a/", ".", "a"), ("/a", "/", "a"), ("x/y//a//", "x/y//", "a")]
        {
            assert_eq!(name(path), (dir.as_bytes(), Some(entry.as_bytes())), "{path}");
        }
        for path in ["", "/", "//", ".", "..", "a/.", "a/./", "/a/.."] {
            assert_eq!(name(path), (path.as_bytes(), None), "{path}");
        }
    }
}
