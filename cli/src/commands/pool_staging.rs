//! `quell pool stage-in` and `stage-out`. Source and destination are chosen here; `quell-staging`
//! copies the files.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quell_mount_spec::{PoolConnection, open_pool};
use quell_posix::{PosixDir, WritableDir};
use quell_runtime::Pool;
use quell_staging::{CopiedFile, Options, Part, Progress, Report, Source, TreeDir};
use quell_supervisor::find_pool;
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, FileSystem};
use rustix::process::{Resource, Rlimit, getegid, geteuid, getrlimit, setrlimit};
use serde_json::json;

use crate::arguments::{PoolStageInArgs, PoolStageOutArgs, StagingArgs, StagingPart};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{shown, shown_bytes, text_of_bytes};
use crate::output::{errln, outln};
use crate::progress;
use crate::views::first_socket;

const INTERRUPTED: &str = "every file that has its final name is complete; run the command again to continue";

/// The permissions of directories that the command creates because the user named them.
const NEW_DIRECTORY: u32 = 0o755;

pub fn stage_in(args: &PoolStageInArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (pool, path) = pool_and_path(&args.destination)?;
    let fs = connect(&pool)?;
    let mut names = HashSet::new();
    let mut sources = Vec::new();
    for source in &args.sources {
        let (parent, name) = split(source.as_os_str().as_bytes());
        if name.is_some_and(|name| !names.insert(name)) {
            return Err(Failure::wrong_input(format!(
                "{}: another source has the same name; copy them into different directories",
                shown(source)
            )));
        }
        let dir = Arc::new(PosixDir::open(Path::new(OsStr::from_bytes(parent)))?);
        sources.push(Source { dir, name: name.map(<[u8]>::to_vec) });
    }
    let target = make_dirs(&fs, path)?;
    let title = format!("copying to {}", shown(&args.destination));
    let is_complete = run(&title, &sources, &target, &args.staging, quiet, || Ok(()))?;
    Ok(ExitCode::from(if is_complete { YES } else { NO }))
}

pub fn stage_out(args: &PoolStageOutArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (pool, path) = pool_and_path(&args.source)?;
    let fs = connect(&pool)?;
    let (parent, name) = split(path);
    // The marks are read before the first listing, so that they do not include later changes.
    let is_whole = args.staging.part.is_none() && is_root(path);
    let marks = match is_whole {
        true => {
            let connection = PoolConnection::open(&first_socket(&pool)?)?;
            Some((connection.marks()?, connection))
        }
        false => None,
    };
    let dir = TreeDir::open(&fs, parent, owner())
        .map_err(|error| Failure::wrong_input(format!("{}: {error}", shown(&args.source))))?;
    let source = Source { dir: Arc::new(dir), name: name.map(<[u8]>::to_vec) };
    match std::fs::create_dir(&args.destination) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Failure::wrong_input(format!("{}: {cause}", shown(&args.destination))));
        }
        _ => {}
    }
    let target: Arc<dyn WritableDir> = Arc::new(PosixDir::open(&args.destination)?);
    let title = format!("copying from {}", shown(&args.source));
    let is_complete = run(&title, &[source], &target, &args.staging, quiet, || {
        let directory = File::open(&args.destination)?;
        Ok(rustix::fs::syncfs(directory)?)
    })?;
    if let Some((marks, connection)) = marks
        && is_complete
    {
        connection.record_marks(&marks)?;
    }
    Ok(ExitCode::from(if is_complete { YES } else { NO }))
}

/// Returns whether a path in a pool is that of its root.
fn is_root(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|name| matches!(name, b"" | b"."))
}

/// Parses `NAME:/PATH`, and finds the pool.
pub(super) fn pool_and_path(text: &str) -> Result<(Pool, &[u8]), Failure> {
    let Some((name, path)) =
        text.split_once(':').filter(|(_, path)| path.is_empty() || path.starts_with('/'))
    else {
        return Err(Failure::wrong_input(format!(
            "{}: a path in a pool has the form NAME:/PATH",
            shown(text)
        )));
    };
    Ok((find_pool(name)?, path.as_bytes()))
}

fn connect(pool: &Pool) -> Result<Arc<dyn FileSystem>, Failure> {
    Ok(Arc::new(open_pool(&first_socket(pool)?, pool.chunk_bytes)?))
}

fn owner() -> (u32, u32) {
    (geteuid().as_raw(), getegid().as_raw())
}

/// Splits a path into a directory and the name of an entry. If the path does not end in a name,
/// there is no entry, and the path stands for the entries of the directory.
fn split(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let trimmed = &path[..end];
    let begin = trimmed.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match &trimmed[begin..] {
        b"" | b"." | b".." => (path, None),
        name if begin == 0 => (b".", Some(name)),
        name => (&trimmed[..begin], Some(name)),
    }
}

/// Opens a directory of a pool, and creates the missing directories of its path.
fn make_dirs(fs: &Arc<dyn FileSystem>, path: &[u8]) -> Result<Arc<dyn WritableDir>, Failure> {
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
/// SLURM_NTASKS is not used, because it is also set in batch scripts, which are not one of several
/// processes.
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
/// called before success is reported.
fn run(
    title: &str,
    sources: &[Source],
    target: &Arc<dyn WritableDir>,
    args: &StagingArgs,
    quiet: bool,
    sync: impl FnOnce() -> io::Result<()>,
) -> Result<bool, Failure> {
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
        keeps_owners: geteuid().is_root(),
        keeps_xattrs: !args.no_xattrs,
        part: args.part.map(part_of_process).transpose()?,
    };
    let progress = Progress::default();
    progress::watch_files(title, &progress, quiet || args.json, INTERRUPTED, || {
        quell_staging::copy(sources, target, options, &progress, &output)
    })??;
    let is_complete = progress.failed() == 0;
    if is_complete {
        sync().map_err(|e| Failure::with_code(NO, format!("cannot sync the copies: {e}")))?;
        let files = output.complete_files.load(Ordering::Relaxed);
        output.write_line(|| json!({ "complete": true, "files": files }).to_string());
    }
    output.finish().map_err(|e| Failure::with_code(NO, format!("cannot write the manifest: {e}")))?;
    if args.json {
        outln!(
            "{}",
            json!({ "files": progress.files(), "unchanged": progress.unchanged(),
                "directories": progress.directories(), "links": progress.links(),
                "bytes": progress.bytes(), "failed": progress.failed() })
        );
    }
    Ok(is_complete)
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
