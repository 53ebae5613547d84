//! A shared file system that stops answering: the path is reported, a time limit is kept, SIGTERM
//! ends the run at once, and metadata and recorded data that a view has in memory are still served.
//!
//! The shared file system is a log mount, whose process is suspended.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::log_fixture;
use crate::stage::{self, Stage, eventually, views};

/// A tree on a file system whose process can be suspended.
pub struct Suspendable<'a> {
    stage: &'a Stage,
    /// The process that serves the file system.
    pub server: i32,
    pub tree: PathBuf,
    pub index: PathBuf,
}

impl<'a> Suspendable<'a> {
    /// Creates the tree below the mount point of a log mount. The index lies elsewhere.
    pub fn new(stage: &'a Stage, point: &Path) -> Suspendable<'a> {
        let tree = point.join("env");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("small"), "small\n").unwrap();
        fs::write(tree.join("other"), "other\n").unwrap();
        let index = stage.index(&tree);
        Suspendable { stage, server: stage.holder(), tree, index }
    }

    fn run(&self, options: &[&str]) -> Command {
        let mut command = self.stage.quell();
        command
            .args(["run", "-i"])
            .arg(&self.index)
            .args(options)
            .args(["--", "cat"])
            .arg(self.tree.join("small"));
        command
    }

    /// Copies the index to the file system, and creates a directory for jobs elsewhere.
    pub fn job_files(&self) -> JobFiles {
        let index = self.tree.with_file_name("job.quell");
        fs::copy(&self.index, &index).unwrap();
        let jobs = self.stage.dir("jobs");
        fs::set_permissions(&jobs, fs::Permissions::from_mode(0o700)).unwrap();
        JobFiles { index, jobs }
    }

    fn job_run(&self, jobs: &Path) -> Command {
        let mut command = self.stage.quell();
        command.args(["run", "--share", "test", "--job", "--job-interface", "lo", "--job-dir"]).arg(jobs);
        command
    }

    pub fn suspend(&self) -> Suspended {
        stage::send(self.server, Signal::STOP);
        let suspended = Suspended(self.server);
        // A thread that has not stopped yet can read a request and stop before it answers. The
        // process that waits for this answer does not end on SIGKILL.
        assert!(eventually(|| are_all_threads_stopped(self.server)), "the server has not stopped");
        suspended
    }
}

/// The files of a job.
pub struct JobFiles {
    /// An index on the file system.
    pub index: PathBuf,
    /// The directory for the links of jobs.
    pub jobs: PathBuf,
}

/// Returns whether the kernel has stopped each thread of a process.
fn are_all_threads_stopped(pid: i32) -> bool {
    let is_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The name of the program, which is in parentheses, may contain any characters.
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
    };
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| task.is_ok_and(is_stopped))
}

/// Lets the process go on, also if a test fails: nothing else ends requests to its mount.
pub struct Suspended(i32);

impl Drop for Suspended {
    fn drop(&mut self) {
        stage::send(self.0, Signal::CONT);
    }
}

#[test]
fn a_run_reports_the_path_that_it_waits_for_and_goes_on_when_the_server_answers() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let suspended = shared.suspend();
    let mut running = fixture.stage.start(&mut shared.run(&[]));
    running.wait_for_error(&format!("waiting for {}", shared.tree.display()));
    assert!(running.is_running());
    drop(suspended);
    let ended = running.wait().expect(0);
    assert_eq!(ended.text(), "small\n");
    let about_tree = format!("waiting for {}: no answer for ", shared.tree.display());
    assert!(ended.waits.iter().any(|line| line.contains(&about_tree)), "{:?}", ended.waits);
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_run_fails_after_the_time_that_the_user_has_set() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let suspended = shared.suspend();
    let ended = fixture.stage.run(&mut shared.run(&["--answer-timeout", "4"])).expect(3);
    assert!(!ended.waits.is_empty(), "{}", ended.err);
    ended.says("has not answered for 4 s, the limit of --answer-timeout");
    assert!(eventually(|| fixture.stage.holders() == [shared.server]), "the holder of the run remains");
    drop(suspended);
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_quiet_run_prints_only_that_the_time_has_passed() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let suspended = shared.suspend();
    let ended = fixture.stage.run(&mut shared.run(&["--quiet", "--answer-timeout", "4"])).expect(3);
    assert_eq!(ended.waits, Vec::<String>::new());
    ended.says("has not answered for 4 s, the limit of --answer-timeout");
    drop(suspended);
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn sigterm_ends_a_run_that_waits_with_its_holder() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let suspended = shared.suspend();
    let mut running = fixture.stage.start(&mut shared.run(&[]));
    running.wait_for_error("waiting for");
    running.signal(Signal::TERM);
    assert_eq!(running.wait().status.signal(), Some(Signal::TERM.as_raw()));
    assert!(eventually(|| fixture.stage.holders() == [shared.server]), "the holder of the run remains");
    drop(suspended);
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn an_index_on_the_shared_file_system_is_waited_for() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let on_shared = mounted.point.join("env.quell");
    fs::copy(&shared.index, &on_shared).unwrap();
    let shared = Suspendable { index: on_shared.clone(), ..shared };
    let suspended = shared.suspend();
    let mut running = fixture.stage.start(&mut shared.run(&[]));
    running.wait_for_error("waiting for");
    drop(suspended);
    assert_eq!(running.wait().expect(0).text(), "small\n");
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_view_at_a_local_path_serves_metadata_and_recorded_files_without_the_server() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let (image, local) = (fixture.stage.path("env.boot"), fixture.stage.dir("local"));
    let mut record = fixture.stage.quell();
    record.args(["record", "-q", "-i"]).arg(&shared.index).arg("-o").arg(&image);
    fixture.stage.run(record.args(["--", "cat"]).arg(shared.tree.join("small"))).expect(0);
    let go = fixture.stage.path("go");
    let script = r#"echo ready; while ! test -e "$1"; do sleep 0.05; done
        cat "$0/small" && stat -c %s "$0/other" && ls "$0" && ! test -e "$0/missing" && echo end"#;
    let mut run = fixture.stage.quell();
    run.args(["run", "--strict", "--recheck", "0", "-i"]).arg(&shared.index).arg("-b").arg(&image);
    run.arg("--at").arg(&local).args(["--", "sh", "-c", script]).arg(&local).arg(&go);
    let mut running = fixture.stage.start(&mut run);
    running.wait_for_output("ready");
    let suspended = shared.suspend();
    fs::write(&go, "").unwrap();
    assert_eq!(running.wait().expect(0).text(), "ready\nsmall\n6\nother\nsmall\nend\n");
    drop(suspended);
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_view_with_copied_directories_serves_its_path_metadata_and_recorded_files_without_the_server() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let image = fixture.stage.path("env.boot");
    let mut record = fixture.stage.quell();
    record.args(["record", "-q", "-i"]).arg(&shared.index).arg("-o").arg(&image);
    fixture.stage.run(record.args(["--", "cat"]).arg(shared.tree.join("small"))).expect(0);
    // Names in the directories above the tree, those of the tree, and data in the image.
    let script = r#"echo ready; while ! test -e "$1"; do sleep 0.05; done
        ls "$0/.." && ! test -e "$0/../package.json" && stat -c %F "$0/.." && cd "$0" &&
        cat "$0/small" && stat -c %s "$0/other" && ls "$0" && ! test -e "$0/missing" && echo end"#;
    for view in views() {
        let go = fixture.stage.path(format!("go-{view}"));
        let mut run = fixture.stage.quell();
        // The tree is compared with its index while the program runs, which is the default.
        run.args(["run", "--strict", "--above", "copy", "--view", view, "-i"]).arg(&shared.index);
        run.arg("-b").arg(&image).args(["--", "sh", "-c", script]).arg(&shared.tree).arg(&go);
        let mut running = fixture.stage.start(&mut run);
        running.wait_for_output("ready");
        // The client of the shared file system may cache a lookup for some time.
        std::thread::sleep(std::time::Duration::from_secs(2));
        let suspended = shared.suspend();
        fs::write(&go, "").unwrap();
        let ended = running.wait().expect(0);
        assert_eq!(ended.text(), "ready\nenv\ndirectory\nsmall\n6\nother\nsmall\nend\n", "{view}");
        drop(suspended);
    }
    mounted.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_job_holder_that_waits_for_a_file_ends_with_its_run_and_removes_the_link() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let JobFiles { index, jobs } = shared.job_files();
    let links = || fs::read_dir(&jobs).unwrap().count();
    let suspended = shared.suspend();
    let mut command = shared.job_run(&jobs);
    command.arg("-i").arg(&index).args(["--", "true"]);
    let mut running = fixture.stage.start(&mut command);
    running.wait_for_error(&format!("waiting for {}", index.display()));
    assert!(eventually(|| links() == 1));
    stage::send(running.pid(), Signal::KILL);
    running.wait();
    // The file system still does not answer.
    assert!(eventually(|| links() == 0), "the link remains");
    assert!(eventually(|| fixture.stage.holders() == [shared.server]), "{:?}", fixture.stage.holders());
    drop(suspended);
    mounted.umount();
    fixture.stage.sh("rm -f \"$0\"/*.refused \"$0\"/said-*", &[&fixture.stage.runtime()]);
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_job_holder_that_waits_for_a_file_ends_at_once_on_sigterm() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let JobFiles { index, jobs } = shared.job_files();
    let suspended = shared.suspend();
    let mut command = shared.job_run(&jobs);
    command.arg("-i").arg(&index).args(["--", "true"]);
    let mut running = fixture.stage.start(&mut command);
    running.wait_for_error(&format!("waiting for {}", index.display()));
    let own: Vec<i32> = fixture.stage.holders().into_iter().filter(|pid| *pid != shared.server).collect();
    assert_eq!(own.len(), 1);
    stage::send(own[0], Signal::TERM);
    // The file system still does not answer.
    assert!(eventually(|| !fixture.stage.holders().contains(&own[0])), "the job holder remains");
    assert_eq!(fs::read_dir(&jobs).unwrap().count(), 0, "the link remains");
    drop(suspended);
    // The run opens the file itself.
    running.wait().expect(0);
    mounted.umount();
    fixture.stage.sh("rm -f \"$0\"/*.refused \"$0\"/said-*", &[&fixture.stage.runtime()]);
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_run_of_a_job_fails_after_the_time_that_the_user_has_set() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let shared = Suspendable::new(&fixture.stage, &mounted.point);
    let JobFiles { index, jobs } = shared.job_files();
    let suspended = shared.suspend();
    let mut command = shared.job_run(&jobs);
    command.args(["--answer-timeout", "4", "-i"]).arg(&index).args(["--", "echo", "runs"]);
    let ended = fixture.stage.run(&mut command).expect(3);
    assert_eq!(ended.text(), "", "the program is not run");
    ended.says("has not answered for 4 s, the limit of --answer-timeout");
    assert_eq!(fs::read_dir(&jobs).unwrap().count(), 0, "the link remains");
    assert!(eventually(|| fixture.stage.holders() == [shared.server]), "{:?}", fixture.stage.holders());
    drop(suspended);
    mounted.umount();
    fixture.stage.sh("rm -f \"$0\"/*.refused \"$0\"/said-*", &[&fixture.stage.runtime()]);
    fixture.stage.expect_nothing_left();
}
