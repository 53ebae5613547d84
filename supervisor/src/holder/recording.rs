//! A recording in progress, and the boot image that is written at its end.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use quell_boot::{BLOCK_BYTES, BootImage, Choice, Recorder, Subject, Unreadable};
use quell_mount_spec::{Covered, LockedBootFile, Ownership, Trusted, TrustedUse};
use quell_vfs::FileSystem;

use crate::display::{counted, shown};
use crate::failure::Failure;
use crate::holder::checked_tree::CheckedTree;
use crate::holder::messages::Messages;
use crate::inputs::InputFile;
use crate::protocol::answer::{RecordingResult, RecordingStart};
use crate::protocol::plan::RecordingPlan;
use crate::resources::{check_available, processors};
use crate::runtime::fifo::open_fifo;
use crate::trust::check_trust;

/// The tree or disk image that is recorded, with the recorder in front of its file system.
pub struct Recorded {
    pub recorder: Arc<Recorder>,
    /// The file system below the recorder.
    pub fs: Arc<dyn FileSystem>,
    pub subject: Subject,
    /// The owners whose image may be merged, and the owner of the tree or disk image.
    pub trusted: Trusted,
    pub owner: Ownership,
}

/// A recording in progress.
pub struct ActiveRecording {
    plan: RecordingPlan,
    recorded: Recorded,
    messages: Messages,
    /// Kept open, so that the process that waits for the result reads end of file if this process
    /// is killed.
    pipe: File,
}

impl ActiveRecording {
    /// Begins to record the tree of a plan, which must have exactly one.
    pub fn of_tree(
        plan: &RecordingPlan,
        trusted: Trusted,
        trees: &mut Vec<CheckedTree>,
        messages: &Messages,
    ) -> Result<ActiveRecording, Failure> {
        let mut tree = match trees.pop() {
            Some(tree) if trees.is_empty() => tree,
            _ => return Err(Failure::wrong_input("one tree is recorded at a time")),
        };
        if plan.output.parent().is_some_and(|parent| parent.starts_with(&tree.covered.source_path)) {
            return Err(Failure::refused(format!(
                "{} lies inside the tree, which writing it would change: name a file outside of the tree with -o",
                shown(&plan.output)
            )));
        }
        let owner = Ownership::from(&tree.covered.source().stat_self()?);
        let subject = tree.covered.subject();
        if plan.update {
            // Blocks of the image that are still valid are not read from the tree again.
            let (fs, source) = (tree.covered.fs.clone(), (&subject, &trusted, &owner));
            if let Some(old) = older_image(plan, &*fs, source)? {
                tree.covered = with_blocks(tree.covered, old, &plan.output)?;
            }
        }
        let fs = tree.covered.fs.clone();
        let (covered, recorder) = tree.covered.with_recorder();
        tree.covered = covered;
        trees.push(tree);
        ActiveRecording::new(plan, Recorded { recorder, fs, subject, trusted, owner }, messages)
    }

    /// Opens the pipe to the command that waits. Errors that can be found now are returned before
    /// the program runs.
    pub fn new(
        plan: &RecordingPlan,
        recorded: Recorded,
        messages: &Messages,
    ) -> Result<ActiveRecording, Failure> {
        let pipe = open_fifo(&plan.pipe)?;
        // The pipe is open, so its name is removed: no file remains if both processes are killed.
        let _ = std::fs::remove_file(&plan.pipe);
        let recording = ActiveRecording { plan: plan.clone(), recorded, messages: messages.clone(), pipe };
        LockedBootFile::check(&plan.output, plan.force)?;
        recording.older_image()?;
        Ok(recording)
    }

    /// Returns the image to merge or to complete, if there is one.
    fn older_image(&self) -> Result<Option<BootImage>, Failure> {
        let Recorded { fs, subject, trusted, owner, .. } = &self.recorded;
        older_image(&self.plan, &**fs, (subject, trusted, owner))
    }

    /// Reports the namespace of the recorded processes and the holder's process id.
    pub fn report_start(&self) -> Result<(), Failure> {
        let namespace = std::fs::read_link("/proc/self/ns/mnt")
            .map_err(|e| Failure::cannot(format!("/proc/self/ns/mnt: {e}")))?;
        self.send(&RecordingStart { namespace, holder: std::process::id() });
        Ok(())
    }

    /// Writes the boot image and reports the result.
    pub fn finish(self) {
        let result = self.write_image();
        self.report(result);
    }

    /// Reports that no image was written.
    pub fn fail(self, failure: Failure) {
        self.report(Err(failure));
    }

    fn report(&self, result: Result<RecordingResult, Failure>) {
        self.send(&result.unwrap_or_else(|failure| RecordingResult {
            failure: Some(failure.to_string()),
            files: self.recorded.recorder.files() as u64,
            ..RecordingResult::default()
        }));
    }

    /// Writes a message to the waiting command. If that command has ended, the image is written
    /// nevertheless.
    fn send(&self, message: &impl serde::Serialize) {
        let text = serde_json::to_string(message).expect("a message is always JSON");
        let _ = writeln!(&self.pipe, "{text}");
    }

    fn write_image(&self) -> Result<RecordingResult, Failure> {
        let output = &self.plan.output;
        let Recorded { recorder, fs, subject, .. } = &self.recorded;
        if recorder.files() == 0 {
            let kind = match subject {
                Subject::Tree(_) => "tree",
                Subject::Disk(_) => "disk image",
            };
            return Err(Failure::cannot(format!("no file of the {kind} was opened")));
        }
        let claimed = LockedBootFile::claim(output, &|lock| {
            self.messages.print(&waiting_for_recording(lock));
        })?;
        let old = self.older_image()?;
        let blocks_max = self.plan.budget_mib.map_or(usize::MAX, |mib| (mib << 20) as usize / BLOCK_BYTES);
        let (min_recordings, whole) = (self.plan.min_runs, self.plan.whole);
        let updates = self.plan.update;
        let choice = Choice { old: old.as_ref(), updates, min_recordings, blocks_max, whole };
        let (bytes, unreadable) = recorder.pack(&**fs, subject, &choice, processors())?;
        if let Unreadable { blocks, first: Some(first) } = unreadable {
            self.messages.print(&format!(
                "{} could not be read again and are not in the image: {first}",
                counted(blocks, "block", "blocks")
            ));
        }
        let image = BootImage::parse(bytes).map_err(|damage| {
            Failure::cannot(format!("the new boot image is damaged, and was not written: {damage}"))
        })?;
        if image.files() == 0 {
            return Err(Failure::cannot("no block satisfies --min-runs and --budget"));
        }
        let kept = old.as_ref().map_or(0, |old| subject.valid_blocks(&**fs, old));
        let added_blocks = updates.then(|| image.blocks().saturating_sub(kept));
        claimed.replace(image.as_bytes(), self.plan.force)?;
        Ok(RecordingResult {
            failure: None,
            files: recorder.files() as u64,
            blocks: recorder.blocks() as u64,
            image_files: image.files().into(),
            image_contents: image.contents().into(),
            image_bytes: image.file_bytes(),
            added_blocks,
            recordings: image.recordings(),
        })
    }
}

/// Returns the existing image that a recording is merged with or completes, if there is one.
/// `source`: the subject of the recording, the owners whose image may be used, and the owner of the
/// subject.
fn older_image(
    plan: &RecordingPlan,
    fs: &dyn FileSystem,
    source: (&Subject, &Trusted, &Ownership),
) -> Result<Option<BootImage>, Failure> {
    let output = &plan.output;
    if !(plan.merge || plan.update) || !output.exists() {
        return Ok(None);
    }
    let file = InputFile::open(output)?.file;
    // Blocks of the old image become part of an image that belongs to the caller, so the old image
    // must be trusted.
    let (subject, trusted, owner) = source;
    let recorded_of = Some((Path::new("the recorded tree or disk image"), owner));
    check_trust(trusted, &file, output, TrustedUse::BootImage, recorded_of)?;
    let old = quell_mount_spec::load_boot_from(&file, output, |bytes| check_available(output, bytes))?;
    if subject.can_merge(fs, &old) {
        return Ok(Some(old));
    }
    let other = match subject {
        Subject::Tree(_) => {
            "belongs to another index, or to an older state of this one in which every file was different"
        }
        Subject::Disk(_) => "was recorded from another disk image, or from an older state of this one",
    };
    let (option, done) = if plan.update { ("--update", "updated") } else { ("--merge", "merged") };
    Err(Failure::wrong_input(format!(
        "{} {other}: it cannot be {done}; without {option} it is replaced",
        shown(output)
    )))
}

/// Returns the tree with the valid blocks of an image in memory.
fn with_blocks(covered: Covered, image: BootImage, path: &Path) -> Result<Covered, Failure> {
    check_available(path, image.memory_bytes())?;
    Ok(covered.with_boot_image(image).with_decoded_boot_image(processors())?)
}

/// Returns the message of a command that waits until another command has written its boot image.
/// `lock`: the lock file that the other command holds.
pub fn waiting_for_recording(lock: &Path) -> String {
    format!("waiting for another process that writes the same boot image and holds {}", shown(lock))
}
