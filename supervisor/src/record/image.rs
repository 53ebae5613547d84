//! The boot image of a recording.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quell_boot::{BootImage, Choice, LeftOut, Recorder, Subject};
use quell_mount_spec::{LockedBootFile, Ownership, Trusted, TrustedUse};
use quell_vfs::{ErrorKind, FileSystem};

use crate::display::{counted, shown};
use crate::failure::Failure;
use crate::inputs::InputFile;
use crate::protocol::answer::RecordingResult;
use crate::protocol::plan::ImagePlan;
use crate::resources::{check_available, processors};
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

impl Recorded {
    /// Returns the image to merge or to complete, if there is one.
    pub fn older_image(&self, plan: &ImagePlan) -> Result<Option<BootImage>, Failure> {
        let Recorded { fs, subject, trusted, owner, .. } = self;
        older_image(plan, &**fs, (subject, trusted, owner))
    }

    /// Writes the image. `interruption` is called when the lock of the image is held, and returns a
    /// flag that ends the work. `print` gets messages for the user.
    pub fn write_image(
        &self,
        plan: &ImagePlan,
        interruption: &dyn Fn() -> Arc<AtomicBool>,
        print: &(dyn Fn(&str) + Sync),
    ) -> Result<RecordingResult, Failure> {
        let output = &plan.output;
        let Recorded { recorder, fs, subject, .. } = self;
        if recorder.files() == 0 && !plan.refresh {
            let kind = match subject {
                Subject::Tree(_) => "tree",
                Subject::Disk(_) => "disk image",
            };
            return Err(Failure::cannot(format!("no file of the {kind} was opened")));
        }
        let claimed = LockedBootFile::claim(output, &|lock| {
            print(&waiting_for_recording(lock));
        })?;
        let is_interrupted = interruption();
        let old = self.older_image(plan)?;
        let blocks_max = plan.blocks_max().map_or(usize::MAX, |blocks| blocks as usize);
        let (min_recordings, whole) = (plan.min_runs, plan.whole);
        let updates = plan.update;
        let unread = !plan.exact;
        let refreshes = plan.refresh;
        let choice =
            Choice { old: old.as_ref(), updates, refreshes, min_recordings, blocks_max, whole, unread };
        let mut frames = claimed.frames()?;
        let (head, left_out) = recorder
            .pack_to(&**fs, subject, &choice, processors(), &is_interrupted, &mut frames)
            .map_err(|error| match error.kind {
                ErrorKind::Interrupted => Failure::interrupted("interrupted: no boot image was written"),
                _ => error.into(),
            })?;
        print_left_out(&left_out, subject, print);
        let LeftOut { changed_files, unreadable_blocks, .. } = left_out;
        let file_bytes = head.len() as u64 + frames.bytes();
        let image = BootImage::parse_tables(head, file_bytes).map_err(|damage| {
            Failure::cannot(format!("the new boot image is damaged, and was not written: {damage}"))
        })?;
        if image.files() == 0 && changed_files + unreadable_blocks > 0 {
            return Err(Failure::cannot("no block can be read, and no boot image was written"));
        }
        if image.files() == 0 {
            return Err(Failure::cannot("no block satisfies --min-runs and --budget"));
        }
        let kept = old.as_ref().map_or(0, |old| subject.valid_blocks(&**fs, old));
        let added_blocks = updates.then(|| image.blocks().saturating_sub(kept));
        claimed.replace(image.as_bytes(), frames, plan.force)?;
        Ok(RecordingResult {
            failure: None,
            files: recorder.files() as u64,
            blocks: recorder.blocks() as u64,
            image_files: image.files().into(),
            image_contents: image.read_contents().into(),
            unread_blocks: image.unread_blocks(),
            image_bytes: image.file_bytes(),
            added_blocks,
            changed_files,
            unreadable_blocks,
            recordings: image.recordings(),
        })
    }
}

fn print_left_out(left_out: &LeftOut, subject: &Subject, print: &(dyn Fn(&str) + Sync)) {
    let LeftOut { changed_files, unreadable_blocks, first_error } = left_out;
    if *changed_files > 0 {
        let (event, advice) = match subject {
            Subject::Tree(_) => ("the tree was indexed", "index the tree again, and repeat the command"),
            Subject::Disk(_) => ("the recording began", "record again"),
        };
        print(&format!(
            "{} not in the image, because of changes after {event}: {advice}",
            counted(*changed_files, "file is", "files are")
        ));
    }
    if let Some(error) = first_error {
        print(&format!(
            "{} could not be read again and are not in the image: {error}",
            counted(*unreadable_blocks, "block", "blocks")
        ));
    }
}

/// Returns the existing image that a recording is merged with or completes, if there is one.
/// `source`: the subject of the recording, the owners whose image may be used, and the owner of the
/// subject.
pub fn older_image(
    plan: &ImagePlan,
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

/// Returns the message of a command that waits until another command has written its boot image.
/// `lock`: the lock file that the other command holds.
pub fn waiting_for_recording(lock: &Path) -> String {
    format!("waiting for another process that writes the same boot image and holds {}", shown(lock))
}
