//! A recording in progress, and the boot image that is written at its end.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use quell_boot::BootImage;
use quell_mount_spec::{Covered, LockedBootFile, Ownership, Trusted};

use crate::display::shown;
use crate::failure::Failure;
use crate::holder::checked_tree::CheckedTree;
use crate::holder::messages::Messages;
use crate::protocol::answer::{RecordingResult, RecordingStart};
use crate::protocol::plan::RecordingPlan;
use crate::record::image::{Recorded, older_image};
use crate::resources::{check_available, processors};
use crate::runtime::fifo::open_fifo;

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
    /// Begins to record the tree of a plan, which must have exactly one tree.
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
        if plan.image.output.parent().is_some_and(|parent| parent.starts_with(&tree.covered.source_path)) {
            return Err(Failure::refused(format!(
                "{} lies inside the tree, which writing it would change: name a file outside of the tree with -o",
                shown(&plan.image.output)
            )));
        }
        let owner = Ownership::from(&tree.covered.source().stat_self()?);
        let subject = tree.covered.subject();
        if plan.image.update {
            // Blocks of the image that are still valid are not read from the tree again.
            let (fs, source) = (tree.covered.fs.clone(), (&subject, &trusted, &owner));
            if let Some(old) = older_image(&plan.image, &*fs, source)? {
                tree.covered = with_blocks(tree.covered, old, &plan.image.output)?;
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
        LockedBootFile::check(&plan.image.output, plan.image.force)?;
        recording.recorded.older_image(&plan.image)?;
        Ok(recording)
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
        let print = |message: &str| self.messages.print(message);
        // Signals to the group of the program do not end the holder.
        let result = self.recorded.write_image(&self.plan.image, &Arc::default, &print);
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
}

/// Returns the tree with the valid blocks of an image in memory.
fn with_blocks(covered: Covered, image: BootImage, path: &Path) -> Result<Covered, Failure> {
    check_available(path, image.memory_bytes())?;
    Ok(covered.with_boot_image(image).with_decoded_boot_image(processors())?)
}
