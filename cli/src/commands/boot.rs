//! `quell boot`: shows, checks, merges and extracts boot images.

use std::fs::{DirBuilder, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

use indicatif::HumanBytes;
use quell_boot::{
    BLOCK_BYTES, BootImage, Contents, DisksFs, ImageKind, MemoryEstimate, Packer, ReadBlock, Recorded,
    Subject, parse_disk_name,
};
use quell_index::{OnChange, Rules};
use quell_mount_spec::{Trusted, TrustedUse};
use quell_supervisor::{check_trust, load_boot_at, load_index_at, processors, waiting_for_recording};
use quell_vfs::{Attributes, Context, FileSystem};
use serde_json::json;

use crate::arguments::{BootCommand, BootExtractArgs, BootMergeArgs, BootShowArgs, BootVerifyArgs};
use crate::boot_images::{load_whole, load_whole_from};
use crate::failure::{Failure, NO, YES};
use crate::inputs::{InputFile, index_file, real_path, root_of, shown, shown_bytes, text_of_bytes};
use crate::output::{counted, errln, outln};

pub fn run(command: BootCommand, quiet: bool) -> Result<ExitCode, Failure> {
    match command {
        BootCommand::Show(args) => show(&args),
        BootCommand::Verify(args) => verify(&args, quiet),
        BootCommand::Merge(args) => merge(&args, quiet),
        BootCommand::Extract(args) => extract(&args, quiet),
        BootCommand::Qcow2(args) => super::qcow2_layer::run(&args, quiet),
    }
}

fn show(args: &BootShowArgs) -> Result<ExitCode, Failure> {
    let image = load_boot_at(&args.file)?;
    let numbers = 0..image.files();
    let (blocks, unread) = (image.blocks(), image.unread_blocks());
    let size: u64 = numbers.clone().map(|n| image.file(n).size_bytes).sum();
    let whole = numbers.clone().filter(|n| image.is_whole(&image.file(*n))).count();
    let of = match image.kind() {
        ImageKind::Tree(generation) => format!("{generation:032x}"),
        ImageKind::Disk => "disk".to_owned(),
    };
    let text = if args.json { text_of_bytes } else { shown_bytes };
    let row = |number: u32| {
        let file = image.file(number);
        let recordings = image.runs_of(&file).map(|run| run.recordings).max().unwrap_or(0);
        let name = match parse_disk_name(file.name).filter(|_| image.kind() == ImageKind::Disk) {
            Some((position, path)) => format!("{position} {}", text(path)),
            None => text(file.name),
        };
        (name, file.size_bytes, image.blocks_of(number), recordings)
    };
    if args.json {
        let files: Vec<_> = numbers
            .filter(|_| args.files)
            .map(row)
            .map(|(name, size, blocks, recordings)| json!({ "name": name, "size": size, "blocks": blocks, "recordings": recordings }))
            .collect();
        outln!(
            "{}",
            json!({ "of": of, "recordings": image.recordings(), "files": image.files(), "whole_files": whole,
                "files_bytes": size, "blocks": blocks, "unread_blocks": unread, "contents": image.read_contents(),
                "memory_bytes": image.memory_bytes(), "ranges_bytes": MemoryEstimate::of_image(&image).ranges_bytes, "file_bytes": image.file_bytes(),
                "read_at_start_bytes": image.read_part_bytes(), "list": files })
        );
        return Ok(ExitCode::from(YES));
    }
    outln!("{}", shown(&args.file));
    match image.kind() {
        ImageKind::Tree(_) => outln!("  index               generation {of}"),
        ImageKind::Disk => outln!("  kind                boot image of a disk image"),
    }
    outln!("  recordings          {}", image.recordings());
    outln!(
        "  files               {} ({whole} whole), {}{}",
        image.files(),
        HumanBytes(size),
        if image.kind() == ImageKind::Disk { "" } else { " in the tree" }
    );
    outln!("  blocks              {} ({})", blocks, HumanBytes(blocks * BLOCK_BYTES as u64));
    outln!(
        "  different blocks    {} (take {} of memory)",
        image.read_contents(),
        HumanBytes(image.memory_bytes())
    );
    if unread > 0 {
        outln!(
            "  unread blocks       {unread} ({}), read from the image when needed",
            HumanBytes(unread * BLOCK_BYTES as u64)
        );
    }
    if image.kind() != ImageKind::Disk {
        let ranges = MemoryEstimate::of_image(&image).ranges_bytes;
        outln!("  read when needed    takes at most {} of memory", HumanBytes(ranges));
    }
    outln!(
        "  file size           {}, of which a start reads {}",
        HumanBytes(image.file_bytes()),
        HumanBytes(image.read_part_bytes())
    );
    if args.files {
        for (name, size, blocks, recordings) in numbers.map(row) {
            let all = size.div_ceil(BLOCK_BYTES as u64);
            outln!("  {blocks:>8} of {all:>8} blocks, in {recordings} of the recordings  {name}");
        }
    }
    Ok(ExitCode::from(YES))
}

fn verify(args: &BootVerifyArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (image, contents) = load_whole(&args.file)?;
    if let Some(disk) = &args.image {
        return verify_disk(args, disk, &image, &contents, quiet);
    }
    let Some(index) = &args.index else {
        if !quiet {
            outln!(
                "{}: {}, {}, no damage",
                shown(&args.file),
                counted(image.files().into(), "file", "files"),
                counted(image.contents().into(), "different block", "different blocks")
            );
        }
        return Ok(ExitCode::from(YES));
    };
    let tree = std::sync::Arc::new(load_index_at(&index_file(index)?)?);
    let of_generation = image.kind() == ImageKind::Tree(tree.generation().0);
    let source = args.source.clone().unwrap_or_else(|| root_of(&tree));
    let covered = quell_mount_spec::cover(tree, &real_path(&source)?, OnChange::Refuse, Rules::default())?;
    if !of_generation && covered.validity(&image).valid_files == 0 {
        outln!("{} belongs to another index, or to an older state of {}", shown(&args.file), shown(index));
        return Ok(ExitCode::from(NO));
    }
    let subject = covered.subject();
    let mut differences = 0u64;
    for number in 0..image.files() {
        let compared = match subject.valid_file(&*covered.fs, &image, number) {
            None => Some("changed after the recording: not used".to_owned()),
            Some(now) => match same(&image, &contents, number, &*covered.fs, now) {
                Ok(true) => None,
                Ok(false) => Some("content".to_owned()),
                Err(e) => Some(e.to_string()),
            },
        };
        if let Some(difference) = compared {
            differences += 1;
            outln!("~ {} ({difference})", shown_bytes(image.file(number).name));
        }
    }
    Ok(compared(&args.file, image.files(), differences, quiet))
}

/// Compares a boot image with the files of a disk image.
fn verify_disk(
    args: &BootVerifyArgs,
    disk: &Path,
    image: &BootImage,
    contents: &Contents,
    quiet: bool,
) -> Result<ExitCode, Failure> {
    if image.kind() != ImageKind::Disk {
        return Err(Failure::wrong_input(format!(
            "{} is a boot image of an indexed tree: name the index with -i",
            shown(&args.file)
        )));
    }
    // Files of every owner are accepted: the command prints the recorded paths, and no content of
    // the files.
    let chain = quell_mount_spec::disk_chain(disk, args.image_format.image_format.map(Into::into), None)?;
    let paths = chain.iter().map(|file| file.path.as_os_str().as_bytes().to_vec()).collect();
    let open = quell_mount_spec::OpenDisks::new(chain, quell_mount_spec::DiskNames::Numbers, None)?;
    let fs = DisksFs(std::sync::Arc::new(open.disks));
    let subject = Subject::Disk(paths);
    let mut differences = 0u64;
    for number in 0..image.files() {
        let name = image.file(number).name;
        let found = match subject.find(&fs, name) {
            None => Ok(false),
            Some(now) => same(image, contents, number, &fs, now),
        };
        if !matches!(found, Ok(true)) {
            differences += 1;
            let what = found.err().map_or_else(|| "content".to_owned(), |e| e.to_string());
            outln!("~ {} ({what})", shown_bytes(parse_disk_name(name).map_or(name, |(_, path)| path)));
        }
    }
    Ok(compared(&args.file, image.files(), differences, quiet))
}

/// Prints the result of a comparison, unless `quiet`, and returns the exit code.
fn compared(file: &Path, files: u32, differences: u64, quiet: bool) -> ExitCode {
    if !quiet {
        outln!(
            "{}: {} compared, {}",
            shown(file),
            counted(files.into(), "file", "files"),
            counted(differences, "difference", "differences")
        );
    }
    ExitCode::from(if differences > 0 { NO } else { YES })
}

/// Returns whether the file has the attributes and the bytes that the image has for it.
fn same(
    image: &BootImage,
    contents: &Contents,
    number: u32,
    fs: &dyn FileSystem,
    now: Attributes,
) -> quell_vfs::Result<bool> {
    let file = image.file(number);
    if now.size_bytes != file.size_bytes || now.modified != file.modified {
        return Ok(false);
    }
    let open = fs.open(&Context::OWN, now.node)?;
    let mut there = [0; BLOCK_BYTES];
    for run in image.runs_of(&file) {
        for block in run.first_block..run.first_block + run.blocks {
            let length = open.read_at(&mut there, u64::from(block) * BLOCK_BYTES as u64)?;
            there[length..].fill(0);
            let here = image.content(&file, block).map(|content| contents.block(content));
            if here != Some(&there[..]) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Returns the key by which files of two images count as the same file. For a disk it is the
/// position in the backing chain, because the path may have been another.
fn same_file(kind: ImageKind, name: &[u8]) -> Vec<u8> {
    match parse_disk_name(name).filter(|_| kind == ImageKind::Disk) {
        Some((position, _)) => position.to_string().into_bytes(),
        None => name.to_vec(),
    }
}

/// Images that are being merged; a block is taken from the first image that has it.
struct Images {
    images: Vec<(BootImage, Contents)>,
    /// For each file number in the merged image, the file's number in each input image.
    numbers: Vec<Vec<Option<u32>>>,
}

impl ReadBlock for Images {
    fn read(&mut self, recorded: &Recorded, into: &mut [u8; BLOCK_BYTES]) -> quell_vfs::Result<bool> {
        for ((image, contents), number) in self.images.iter().zip(&self.numbers[recorded.file as usize]) {
            let found = number.and_then(|number| image.content(&image.file(number), recorded.block));
            if let Some(content) = found {
                into.copy_from_slice(contents.block(content));
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Images {
    /// Returns the unread blocks of all images, as pairs of file and block. Some may have been read
    /// in another image.
    fn unread(&self) -> Vec<(u32, u32)> {
        let mut unread = Vec::new();
        for (joined, numbers) in (0..).zip(&self.numbers) {
            for ((image, _), number) in self.images.iter().zip(numbers) {
                let Some(number) = *number else { continue };
                unread.extend(image.unread_of(&image.file(number)).map(|block| (joined, block)));
            }
        }
        unread
    }
}

/// Reports that another process holds the lock. On a slow file system this can take long.
fn print_waiting(lock: &Path) {
    errln!("quell: {}", waiting_for_recording(lock));
}

fn merge(args: &BootMergeArgs, quiet: bool) -> Result<ExitCode, Failure> {
    quell_mount_spec::LockedBootFile::check(&args.output, args.force)?;
    let claimed = quell_mount_spec::LockedBootFile::claim(&args.output, &print_waiting)?;
    // The output belongs to the caller and is trusted as the caller's own, so the input must be
    // trusted too.
    let trusted = Trusted::by_caller(&args.trust_owner);
    let open = |path: &std::path::PathBuf| {
        let file = InputFile::open(path)?.file;
        check_trust(&trusted, &file, path, TrustedUse::BootImage, None)?;
        load_whole_from(&file, path)
    };
    let images = args.files.iter().map(open).collect::<Result<Vec<_>, Failure>>()?;
    let kind = images[0].0.kind();
    if let Some(at) = images.iter().position(|(image, _)| image.kind() != kind) {
        return Err(Failure::wrong_input(format!(
            "{} and {} do not belong to the same state of one tree or disk, and cannot be merged",
            shown(&args.files[0]),
            shown(&args.files[at])
        )));
    }
    let mut packer = Packer::default();
    let mut numbers: Vec<Vec<Option<u32>>> = Vec::new();
    let mut known = std::collections::HashMap::new();
    let mut joined: Option<quell_boot::Recording> = None;
    for (at, (image, _)) in images.iter().enumerate() {
        let mut own = Vec::new();
        for number in 0..image.files() {
            let file = image.file(number);
            let state = (file.size_bytes, file.modified);
            let (joined, state_there) = *known.entry(same_file(kind, file.name)).or_insert_with(|| {
                numbers.push(vec![None; images.len()]);
                (packer.add(file.name, file.size_bytes, file.modified, file.identity), state)
            });
            if state_there != state {
                return Err(Failure::wrong_input(format!(
                    "{} was recorded from another state of {}, and cannot be merged: record again",
                    shown(&args.files[at]),
                    shown_bytes(parse_disk_name(file.name).map_or(file.name, |(_, path)| path))
                )));
            }
            numbers[joined as usize][at] = Some(number);
            own.push(joined);
        }
        let recording = image.recording();
        match &mut joined {
            // The files of the first image keep their numbers.
            None => joined = Some(recording),
            Some(joined) => joined.merge(&recording, |file| Some(own[file as usize])),
        }
    }
    let blocks_max = args.budget.map_or(usize::MAX, |mib| (mib << 20) as usize / BLOCK_BYTES);
    let mut recording = joined.expect("there is a first one").chosen(args.min_runs, blocks_max);
    let mut images = Images { images, numbers };
    let read_blocks = recording.blocks();
    recording.add_unread(images.unread());
    let mut frames = claimed.frames()?;
    let head = packer.pack_to(kind, &recording, &mut images, processors(), &mut frames)?;
    let file_bytes = head.len() as u64 + frames.bytes();
    claimed.replace(&head, frames, args.force)?;
    if !quiet {
        outln!(
            "{}: {}, {}, {}",
            shown(&args.output),
            counted(recording.recordings().into(), "recording", "recordings"),
            counted(read_blocks as u64, "block", "blocks"),
            HumanBytes(file_bytes)
        );
    }
    Ok(ExitCode::from(YES))
}

fn extract(args: &BootExtractArgs, quiet: bool) -> Result<ExitCode, Failure> {
    let (image, contents) = load_whole(&args.file)?;
    let failed = |path: &Path, e: std::io::Error| Failure::cannot(format!("{}: {e}", shown(path)));
    // The directory must be new, so that no link in it can redirect the output. It is created with
    // mode 0700 because the image does not have the modes of the files whose data is written.
    DirBuilder::new()
        .mode(0o700)
        .create(&args.directory)
        .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(&args.directory))))?;
    for number in 0..image.files() {
        let file = image.file(number);
        let path = args.directory.join(
            match parse_disk_name(file.name).filter(|_| image.kind() == ImageKind::Disk) {
                // Files of a backing chain may have the same name in several directories.
                Some((position, path)) => {
                    let last = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
                    let mut name = std::ffi::OsString::from(format!("{position}-"));
                    name.push(std::ffi::OsStr::from_bytes(last));
                    name
                }
                None => std::ffi::OsStr::from_bytes(file.name).into(),
            },
        );
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(|e| failed(parent, e))?;
        }
        let out = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| failed(&path, e))?;
        out.set_len(file.size_bytes).map_err(|e| failed(&path, e))?;
        for run in image.runs_of(&file).filter(|run| run.content != quell_boot::ZEROS) {
            for at in 0..run.blocks {
                let offset = u64::from(run.first_block + at) * BLOCK_BYTES as u64;
                let length = (file.size_bytes - offset).min(BLOCK_BYTES as u64) as usize;
                let block = &contents.block(run.content + at)[..length];
                out.write_all_at(block, offset).map_err(|e| failed(&path, e))?;
            }
        }
    }
    if !quiet {
        outln!("{}: {}", shown(&args.directory), counted(image.files().into(), "file", "files"));
    }
    Ok(ExitCode::from(YES))
}
