//! `quell mount --log`: the command, and the behaviour of files in a log mount compared with a
//! plain directory.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::skip;
use crate::stage::{Mounted, Stage, eventually, has, is_mounted, is_root};
use crate::trees::{noise, set_mode};

/// Variable with the form in which the mounts of all tests create files, except those of tests that
/// need one form: `object` (the default) or `container`.
const NEW_FILES: &str = "QUELL_TEST_NEW_FILES";

/// The options of a mount that creates files as containers.
pub const CONTAINERS: &[&str] = &["--new-files", "container"];

/// A store, and its mounts.
pub struct Fixture {
    pub stage: Stage,
    pub store: PathBuf,
    number: AtomicU32,
}

impl Fixture {
    /// Returns `None`, and prints the reason, if this user cannot mount.
    pub fn new() -> Option<Fixture> {
        if !is_root() && !has("fusermount3") {
            println!("SKIPPED: an ordinary user mounts through fusermount3, which is not there");
            return None;
        }
        let stage = Stage::new();
        let store = stage.dir("store");
        Some(Fixture { stage, store, number: AtomicU32::new(0) })
    }

    pub fn point(&self) -> PathBuf {
        self.stage.dir(&format!("point{}", self.number.fetch_add(1, Ordering::Relaxed)))
    }

    pub fn command(&self, stores: &[&Path], options: &[&str], point: &Path) -> Command {
        let stores = stores.iter().map(|store| store.as_os_str()).collect::<Vec<_>>().join(OsStr::new(","));
        let mut command = self.stage.quell();
        command.arg("mount").arg("--log").arg(stores).args(options);
        if let Some(form) = std::env::var_os(NEW_FILES).filter(|_| !options.contains(&"--new-files")) {
            command.arg("--new-files").arg(form);
        }
        command.arg(point);
        command
    }

    #[track_caller]
    pub fn mount_with(&self, stores: &[&Path], options: &[&str]) -> Mounted<'_> {
        let point = self.point();
        self.stage.run(self.command(stores, options, &point).arg("--quiet")).expect(0);
        Mounted::at(&self.stage, point)
    }

    /// Mounts the store once more.
    #[track_caller]
    pub fn mount(&self) -> Mounted<'_> {
        self.mount_with(&[&self.store], &[])
    }

    /// Returns the names in the store of writers that are open.
    pub fn open_records(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.store, &mut |path| {
            let is_record = path.parent().is_some_and(|meta| meta.ends_with("meta"))
                && path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"open-"));
            if is_record {
                found.push(path.to_owned());
            }
        });
        found
    }

    /// Returns the containers in the store that were removed or are under construction, and those
    /// without an object.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let in_dir = |name: &str| {
            fs::read_dir(self.store.join(".quell").join(name)).unwrap().map(|entry| entry.unwrap().path())
        };
        let mut numbers = Vec::new();
        walk(&self.store, &mut |path| {
            if path.extension().is_some_and(|end| end == "container") && path.is_file() {
                numbers.push(number_of_object(path));
            }
        });
        let is_used = |path: &PathBuf| numbers.iter().any(|number| path.ends_with(number));
        let without_object = in_dir("parts").filter(|path| !is_used(path));
        in_dir("trash").chain(in_dir("new")).chain(without_object).collect()
    }
}

/// Returns the number in the header of an object, as it names the container.
pub fn number_of_object(object: &Path) -> String {
    let bytes = fs::read(object).unwrap();
    let number = u128::from_le_bytes(bytes[16..32].try_into().unwrap());
    format!("{number:032x}")
}

pub fn walk(directory: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        visit(&entry.path());
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), visit);
        }
    }
}

#[macro_export]
macro_rules! log_fixture {
    () => {
        match $crate::log::Fixture::new() {
            Some(fixture) => fixture,
            None => return,
        }
    };
}

// --- the command -------------------------------------------------------------------------------

#[test]
fn a_log_mount_is_there_until_umount_and_its_files_are_there_again_in_the_next() {
    let fixture = log_fixture!();
    let point = fixture.point();
    let ended = fixture.stage.run(&mut fixture.command(&[&fixture.store], &[], &point)).expect(0);
    assert_eq!((ended.text().as_str(), ended.err.as_str()), ("", ""), "success prints nothing");
    let mounted = Mounted::at(&fixture.stage, point.clone());
    fs::write(point.join("file"), "text").unwrap();
    fs::create_dir(point.join("dir")).unwrap();
    symlink("file", point.join("link")).unwrap();
    fixture
        .stage
        .run(&mut fixture.command(&[&fixture.store], &[], &point))
        .expect(2)
        .says("already has a view");
    mounted.umount();
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
    assert_eq!(fixture.stage.processes(), [0; 0]);
    let names: Vec<String> = ["file.container", "dir", "link", ".quell"].map(str::to_owned).into();
    let mut found: Vec<String> = fs::read_dir(&fixture.store)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(fixture.open_records(), Vec::<PathBuf>::new());
    let point = fixture.point();
    let ended = fixture.stage.run(&mut fixture.command(&[&fixture.store], &["-v"], &point)).expect(0);
    ended.says("log store").says(&format!("mounted on {}", point.display()));
    let again = Mounted::at(&fixture.stage, point);
    assert_eq!(fs::read_to_string(again.point.join("link")).unwrap(), "text");
    assert_eq!(fs::read_dir(&again.point).unwrap().count(), 3);
    again.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn stores_that_cannot_be_mounted_are_refused_with_advice() {
    let fixture = log_fixture!();
    let (store, point) = (&*fixture.store, fixture.point());
    let refused = |stores: &[&Path], point: &Path, code: i32, words: &str| {
        fixture.stage.run(&mut fixture.command(stores, &[], point)).expect(code).says(words);
    };
    refused(&[&fixture.stage.path("none")], &point, 2, "mkdir");
    refused(&[store, &fixture.stage.path("none")], &point, 2, "mkdir");
    refused(&[&fixture.stage.file("plain", "")], &point, 2, "not a directory");
    refused(&[store], &fixture.stage.path("nowhere"), 2, "nowhere");
    refused(&[store], store, 2, "another directory to mount on");
    refused(&[store], &fixture.stage.dir("store/inside"), 2, "lies in the store");
    refused(&[&fixture.stage.dir("point0/inside")], &point, 2, "would hide it");
    refused(&[store, store], &point, 2, "named twice");
    refused(&[store, &fixture.stage.dir("store/other")], &point, 2, "one lies in the other");
    // Through a symbolic link it is the same directory.
    symlink(store, fixture.stage.path("alias")).unwrap();
    refused(&[store, &fixture.stage.path("alias")], &point, 2, "named twice");
    if !is_root() {
        let closed = fixture.stage.dir("closed");
        set_mode(&closed, 0o555);
        refused(&[&closed], &point, 3, "may not write");
    }
    // Nothing was created in a store that was not mounted.
    assert!(!store.join(".quell").exists());
    for (options, words) in [
        (&["--buffer", "4095"][..], "from 4K to 1G"),
        (&["--buffer", "2G"], "from 4K to 1G"),
        (&["--index", "original"], "flatten"),
        (&["--flatten-threshold", "1M"], "--index flatten"),
        (&["--view", "fuse"], "cannot be used with"),
        (&["-b", "x.boot"], "cannot be used with"),
    ] {
        fixture.stage.run(&mut fixture.command(&[store], options, &point)).expect(2).says(words);
    }
    let mut both = fixture.command(&[store], &[], &point);
    fixture.stage.run(both.arg(fixture.stage.dir("second"))).expect(2).says("one mount point");
    let index = fixture.stage.file("x.quell", "");
    let mut for_index = fixture.stage.quell();
    for_index.args(["mount", "--buffer", "1M"]).arg(index).arg(&point);
    fixture.stage.run(&mut for_index).expect(2).says("only with --log");
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_store_that_is_damaged_is_refused_before_anything_is_mounted() {
    let fixture = log_fixture!();
    fixture.mount().umount();
    fs::write(fixture.store.join(".quell/store"), "not a store").unwrap();
    let point = fixture.point();
    let ended = fixture.stage.run(&mut fixture.command(&[&fixture.store], &[], &point)).expect(2);
    assert!(ended.err.contains("store"), "{}", ended.err);
    assert!(!is_mounted(&point));
    fixture.stage.expect_nothing_left();
}

#[test]
fn the_ways_to_write_and_read_give_the_same_files() {
    let fixture = log_fixture!();
    let bytes = noise(3_000_000, 1);
    for (number, options) in [
        &["--index", "parallel", "--buffer", "4K"][..],
        &["--index", "flatten"],
        &["--index", "flatten", "--flatten-threshold", "100"],
        &["--index", "flatten-later", "--flatten-threshold", "1M"],
        &["--index", "parallel", "--buffer", "64K", "--threads", "2"],
    ]
    .iter()
    .enumerate()
    {
        let mounted = fixture.mount_with(&[&fixture.store], options);
        for earlier in 0..number {
            assert!(fs::read(mounted.point.join(format!("{earlier}"))).unwrap() == bytes, "{options:?}");
        }
        let mut file = fs::File::create(mounted.point.join(format!("{number}"))).unwrap();
        for piece in bytes.chunks(47_008) {
            file.write_all(piece).unwrap();
        }
        drop(file);
        assert!(fs::read(mounted.point.join(format!("{number}"))).unwrap() == bytes, "{options:?}");
        mounted.umount();
    }
}

#[test]
fn a_mount_flattens_in_the_background_and_is_taken_away_when_it_is_done() {
    let fixture = log_fixture!();
    let write = |path: &Path| {
        // Two processes, so that there is more than one index log.
        let mut child = Command::new("sh");
        let text = "printf first > \"$0\"; sleep 0.1; printf SECOND >> \"$0\"";
        let status = child.args(["-c", text]).arg(path).status().unwrap();
        assert!(status.success());
        fs::File::options().append(true).open(path).unwrap().write_all(b"third").unwrap();
    };
    let is_flat = |name: &str| {
        let names = fs::read_dir(fixture.store.join(format!("{name}.container"))).unwrap();
        names.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("flat-"))
    };
    let options = [CONTAINERS, &["--index", "flatten-later"]].concat();
    let mounted = fixture.mount_with(&[&fixture.store], &options);
    write(&mounted.point.join("here"));
    assert!(eventually(|| is_flat("here")));
    assert_eq!(fs::read_to_string(mounted.point.join("here")).unwrap(), "firstSECONDthird");
    // All flat indices are complete when the command returns.
    let names: Vec<String> = (0..20).map(|number| format!("file{number}")).collect();
    names.iter().for_each(|name| write(&mounted.point.join(name)));
    let point = mounted.point.clone();
    let printed =
        fixture.stage.run(fixture.stage.quell().args(["stats", "--json"]).arg(&point)).expect(0).json();
    assert_eq!(printed[0]["log"]["index"], "flatten-later");
    mounted.umount();
    let flat = names.iter().filter(|name| is_flat(name)).count();
    assert_eq!(flat, names.len());
    let mounted = fixture.mount();
    for name in &names {
        assert_eq!(fs::read_to_string(mounted.point.join(name)).unwrap(), "firstSECONDthird");
    }
    fs::remove_file(mounted.point.join("here")).unwrap();
    mounted.umount();
    fixture.stage.run(fixture.stage.quell().args(["log", "fsck"]).arg(&fixture.store)).expect(0);
    fixture.stage.expect_nothing_left();
}

#[test]
fn several_stores_are_one_file_system_in_any_order() {
    let fixture = log_fixture!();
    let second = fixture.stage.dir("second");
    let names: Vec<String> = (0..40).map(|number| format!("file{number}")).collect();
    let mounted = fixture.mount_with(&[&fixture.store, &second], &[]);
    fs::create_dir(mounted.point.join("dir")).unwrap();
    for name in &names {
        fs::write(mounted.point.join("dir").join(name), name).unwrap();
    }
    fs::rename(mounted.point.join("dir/file0"), mounted.point.join("renamed")).unwrap();
    mounted.umount();
    let in_store = |store: &Path| fs::read_dir(store.join("dir")).unwrap().count();
    assert_eq!(in_store(&fixture.store) + in_store(&second), 39);
    assert!(in_store(&fixture.store) > 0 && in_store(&second) > 0, "one of the stores has all files");
    let mounted = fixture.mount_with(&[&second, &fixture.store], &[]);
    for name in &names[1..] {
        assert_eq!(&fs::read_to_string(mounted.point.join("dir").join(name)).unwrap(), name);
    }
    assert_eq!(fs::read_to_string(mounted.point.join("renamed")).unwrap(), "file0");
    fs::remove_dir_all(mounted.point.join("dir")).unwrap();
    assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 1);
    mounted.umount();
    assert!(!second.join("dir").exists() && !fixture.store.join("dir").exists());
}

#[test]
fn a_quell_toml_mounts_all_of_its_logs_or_none() {
    let fixture = log_fixture!();
    let (first, second) = (fixture.point(), fixture.point());
    fixture.stage.dir("other");
    let config = |stores: &str| {
        let text = format!(
            "[[tree]]\npath = '/not/asked/for'\nindex = 'x'\n\
             [[log]]\npath = '{}'\nstores = ['store']\n\
             [[log]]\npath = '{}'\nstores = {stores}\nindex = 'flatten-later'\n",
            first.display(),
            second.display()
        );
        fixture.stage.file("quell.toml", text)
    };
    let mount = |file: &Path, options: &[&str]| {
        let mut command = fixture.stage.quell();
        fixture.stage.run(command.args(["mount", "--quiet", "--config"]).arg(file).args(options))
    };
    mount(&config("['other']"), &["--buffer", "64K"]).expect(0);
    let mounted = [Mounted::at(&fixture.stage, first.clone()), Mounted::at(&fixture.stage, second.clone())];
    fs::write(first.join("a"), "first").unwrap();
    fs::write(second.join("a"), "second").unwrap();
    assert_eq!(fs::read_to_string(first.join("a")).unwrap(), "first");
    let reports =
        fixture.stage.run(fixture.stage.quell().args(["stats", "--json"]).arg(&second)).expect(0).json();
    assert_eq!(reports[0]["log"]["buffer_bytes"], 65536);
    assert_eq!(reports[0]["log"]["index"], "flatten-later");
    mount(&config("['other']"), &[]).expect(2).says("already has a view");
    mounted.into_iter().for_each(Mounted::umount);
    // The second mount is refused because of its store, which only the holder reads.
    fixture.stage.file("other/.quell/store", "damaged");
    mount(&config("['other']"), &[]).expect(2);
    assert!(!is_mounted(&first) && !is_mounted(&second));
    mount(&config("['none']"), &[]).expect(2).says("mkdir");
    mount(&fixture.stage.file("empty.toml", ""), &[]).expect(2).says("no [[log]]");
    fixture.stage.expect_nothing_left();
}

#[test]
fn the_requests_of_a_log_mount_are_counted() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    fs::write(mounted.point.join("file"), vec![1; 10_000]).unwrap();
    assert_eq!(fs::read(mounted.point.join("file")).unwrap().len(), 10_000);
    let stats = |path: &Path, options: &[&str]| {
        fixture.stage.run(fixture.stage.quell().arg("stats").args(options).arg(path))
    };
    for path in [&mounted.point, &fixture.store] {
        let report = stats(path, &["--json"]).expect(0).json();
        let log = &report[0]["log"];
        assert_eq!((&log["index"], &log["stores"][0]), (&"parallel".into(), &fixture.store.to_str().into()));
        let counter = |name: &str| log["counters"][name].as_u64().unwrap();
        assert_eq!((counter("bytes_written"), counter("bytes_read")), (10_000, 10_000), "{report}");
        assert_eq!((counter("made"), counter("errors")), (1, 0), "{report}");
    }
    let text = stats(&mounted.point, &[]).expect(0).text();
    assert!(text.contains("log of") && text.contains("bytes written       10000"), "{text}");
    let text = stats(&mounted.point, &["--prometheus", "-"]).expect(0).text();
    assert!(text.contains("quell_bytes_written_total{path=\"") && text.contains("view=\"log\""), "{text}");
    mounted.umount();
    stats(&fixture.store, &[]).expect(1);
}

#[test]
fn a_mount_command_that_ends_early_leaves_no_mount() {
    use rustix::process::Signal;
    let fixture = log_fixture!();
    let point = fixture.point();
    for delay_us in (0..40).map(|turn| turn * 400) {
        let running = fixture.stage.start(&mut fixture.command(&[&fixture.store], &["--quiet"], &point));
        std::thread::sleep(std::time::Duration::from_micros(delay_us));
        running.signal(Signal::INT);
        let ended = running.wait();
        if ended.code() == Some(0) {
            // It was already mounted.
            fixture.stage.run(fixture.stage.quell().arg("umount").arg(&point)).expect(0);
        }
        // The holder is not a child of the terminal and may still be starting; it then unmounts by
        // itself. If it had already reported the mount to a command that has since been killed, the
        // mount exists and is unmounted here.
        let has_ended = || !is_mounted(&point) && fixture.stage.processes().is_empty();
        let settled = eventually(|| {
            if is_mounted(&point) {
                let _ = fixture.stage.run(fixture.stage.quell().arg("umount").arg(&point));
            }
            // A process is not listed during its execve(2), and may mount afterwards.
            has_ended() && {
                std::thread::sleep(std::time::Duration::from_millis(50));
                has_ended()
            }
        });
        assert!(settled);
    }
}

/// Returns the anonymous memory of a process in KiB.
fn anonymous_kib(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Each writer has a buffer of 1 MiB; together they have four times the limit.
#[test]
fn the_memory_of_write_buffers_is_returned_with_the_close_and_with_a_sync() {
    const WRITERS: usize = 200;
    const BOUND_KIB: u64 = 48 << 10;
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    for round in 0..2 {
        // Each file has less data than a buffer, so that nothing is written to the store before.
        let files: Vec<fs::File> = (0..WRITERS)
            .map(|i| {
                let mut file = fs::File::create(mounted.point.join(format!("{round}-{i}"))).unwrap();
                (0..15).for_each(|_| file.write_all(&[7; 1 << 16]).unwrap());
                file
            })
            .collect();
        let holder = fixture.stage.holder();
        if round == 0 {
            files.iter().for_each(|file| file.sync_data().unwrap());
        } else {
            drop(files);
        }
        let left = anonymous_kib(holder);
        assert!(left < BOUND_KIB, "round {round}: {left} KiB are left");
    }
    mounted.umount();
}

#[test]
fn a_signal_ends_a_log_mount_and_loses_nothing() {
    use rustix::process::Signal;
    let fixture = log_fixture!();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mounted = fixture.mount();
        let mut file = fs::File::create(mounted.point.join("file")).unwrap();
        file.write_all(b"written, not closed").unwrap();
        crate::stage::send(fixture.stage.holder(), signal);
        assert!(eventually(|| fixture.stage.processes().is_empty()), "{signal:?}");
        assert!(!is_mounted(&mounted.point), "{signal:?}");
        assert!(file.write_all(b"more").is_err());
        drop(file);
        let again = fixture.mount();
        assert_eq!(fs::read_to_string(again.point.join("file")).unwrap(), "written, not closed");
        fs::remove_file(again.point.join("file")).unwrap();
        again.umount();
    }
    assert_eq!(fixture.leftovers(), Vec::<PathBuf>::new());
}

// --- programs ----------------------------------------------------------------------------------

/// Runs the script in a log mount and in a plain directory, and returns both outputs, including
/// error messages.
#[track_caller]
fn both(fixture: &Fixture, script: &str) -> (String, String) {
    let plain = fixture.stage.dir("plain");
    let mounted = fixture.mount();
    let run = |directory: &Path| {
        let script = format!("cd \"$1\" || exit 1; umask 022; exec 2>&1; export LC_ALL=C\n{script}");
        let mut command = fixture.stage.command("sh");
        command.args(["-c", &script, "sh"]).arg(directory).env("HOME", directory);
        let ended = fixture.stage.run(&mut command);
        ended.text().replace(directory.to_str().unwrap(), "DIR")
    };
    let seen = (run(&mounted.point), run(&plain));
    assert_eq!(fixture.open_records(), Vec::<PathBuf>::new());
    mounted.umount();
    assert_eq!(fixture.leftovers(), Vec::<PathBuf>::new());
    seen
}

#[track_caller]
fn same(script: &str) {
    let fixture = log_fixture!();
    let (log, plain) = both(&fixture, script);
    assert_eq!(log, plain, "on a log mount (left) and in a plain directory");
}

#[test]
fn files_are_copied_written_and_measured_as_elsewhere() {
    same(
        r"cp /etc/services a; cmp /etc/services a; wc -c a; cat a a >b; wc -c b; head -n 3 b; tail -c 50 b
        dd if=/dev/zero of=z bs=47008 count=30 2>/dev/null; stat -c '%s %a %F %h %U' z; cksum z a b
        dd if=a of=z bs=100 seek=77 skip=3 count=20 conv=notrunc 2>/dev/null; cksum z
        truncate -s 100 z; cksum z; truncate -s 1000000 z; cksum z; truncate -s +3 z; stat -c %s z
        printf abc >>z; stat -c %s z; tail -c 6 z | od -c
        cp --sparse=always z sparse; cmp z sparse; fallocate -l 5000 long; stat -c %s long
        fallocate -p -o 5000 -l 100000 z; cksum z; stat -c %s z; fallocate -p -o 999999 -l 100 z; cksum z; stat -c %s z
        cat nothing; cat . ; >empty; cat empty; stat -c %s empty
        seq 1 20000 >seq; sed -i s/5/five/ seq; grep -c five seq; sort -rn seq | head -n 2; tac seq | tail -n 1; cksum seq",
    );
}

#[test]
fn names_are_made_moved_and_removed_as_elsewhere() {
    same(
        r"mkdir -p d/e/f; mkdir d; rmdir d; rmdir d/e/f; ls -R d; echo one >d/one; ln -s one d/link; readlink d/link; cat d/link
        ln -s nowhere dangling; cat dangling; stat -c %F dangling; ls -F; ls -l d | awk '{print $1, $5, $9, $10, $11}'
        mv d/one d/two; cat d/link; cat d/two; mv d/two .; ls d; mv two d/one; mv d moved; cat moved/link
        echo new >g; mv -f g moved/one; cat moved/one; mv -n moved/one dangling; mkdir empty full; touch full/x
        mv -T empty full; mv -T moved empty; ls empty; mv full full/below; mv empty/one full/x; cat full/x
        touch '.hidden' ' blank ' 'new
line' '-dash' 'x.container' 'x.container~'; mkdir y.container; ln -s x z.container; ls -A -b | sort; find . | sort | od -c | tail -n 3
        rm ./-dash x.container; ls -A -b | sort; rm none; rm -r full; rm -rf y.container z.container; find . | sort
        echo 1 >upper; echo 2 >UPPER; cat upper UPPER; rm upper; cat UPPER
        for i in $(seq 300); do echo $i >n$i; done; ls | wc -l; cat n* | sort -n | cksum; rm n*; ls",
    );
}

#[test]
fn attributes_are_kept_as_elsewhere() {
    same(
        r"touch a; mkdir d; ln -s a l; for m in 600 444 755 000 4755 2711 1777; do chmod $m a d; stat -c %a a d; done
        chmod 644 a; chmod 755 d; chmod u+x,g-r a; stat -c %a a; umask 027; touch um; mkdir umd; stat -c %a um umd
        touch -d '2001-02-03 04:05:06.123456789 UTC' a; stat -c %.9Y a; touch -d '1969-01-01 UTC' a; stat -c %Y a
        echo x >>a; test $(stat -c %Y a) -gt 1600000000 && echo now; touch -d '2001-01-01 UTC' d; stat -c %Y d
        cp -a a copy; test copy -ot a || test a -ot copy || echo same time; test -r a && test -w a && echo rw
        printf '#!/bin/sh\necho ran $1' >prog; ./prog; chmod +x prog; ./prog it; chmod 000 a; stat -c '%a %s %n' a",
    );
}

#[test]
fn shells_and_archives_and_databases_work_as_elsewhere() {
    let mut script = r"exec 3<>rw; echo hello >&3; cat rw; rm rw; echo more >&3; cat <&3; exec 3>&-; ls
        exec 4>un; rm un; echo text >&4; exec 4>&-; ls; (echo a; echo b) >two; while read x; do echo got $x; done <two
        mkdir src; cp /etc/services src/a; ln -s a src/l; mkdir -p src/deep/er; echo x >src/deep/er/x; chmod 700 src/deep
        tar cf t.tar src; tar tf t.tar | sort; mkdir x; tar xpf t.tar -C x; diff -r src x/src && echo same
        (cd x && find . -printf '%p %y %m %l\n' | sort); cp -a src copy; diff -r src copy && echo same; rm -r x copy; ls
        flock two echo locked; sync; sync two; sync .; "
        .to_owned();
    if has("git") {
        script += "git init -q repo 2>/dev/null; cd repo; git config user.email a@b; git config user.name n; cp -r ../src .
            git add .; git commit -qm one; echo more >>src/a; git commit -qam two; git log --oneline | wc -l; git fsck 2>&1
            git status --short; git checkout -q HEAD~1; cksum src/a; git checkout -q -; git gc -q; git fsck; cd ..\n";
    }
    if has("sqlite3") {
        script += "sqlite3 db 'create table t(a); insert into t values(1),(2); select sum(a) from t;'
            sqlite3 db 'delete from t where a=1; vacuum; select * from t; pragma integrity_check;'\n";
    }
    if has("rsync") {
        script += "rsync -a src/ synced/; rsync -ai src/ synced/; echo y >>src/a; rsync -ai --inplace src/ synced/ | cut -c 1-3
            diff -r src synced && echo same\n";
    }
    same(&script);
}

#[test]
fn unsupported_operations_of_a_log_mount_fail_with_a_clear_error() {
    let fixture = log_fixture!();
    let (log, _) = both(
        &fixture,
        "touch a; ln a b; mkfifo f; python3 -c 'import os; os.setxattr(\"a\", \"user.x\", b\"1\")' 2>&1 | tail -n 1; ls",
    );
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines[0].contains("Operation not permitted"), "{log}");
    assert!(lines[1].contains("Operation not permitted"), "{log}");
    assert_eq!(lines.last(), Some(&"a"), "{log}");
    if has("python3") {
        assert!(lines[2].contains("not supported"), "{log}");
    }
}

#[test]
fn df_prints_the_space_of_the_store() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let space = |path: &Path| {
        let found = rustix::fs::statvfs(path).unwrap();
        (found.f_blocks * found.f_frsize, found.f_namemax)
    };
    assert_eq!(space(&mounted.point).0, space(&fixture.store).0);
    assert_eq!(space(&mounted.point).1, 245);
    let longest = "n".repeat(245);
    fs::write(mounted.point.join(&longest), "x").unwrap();
    assert_eq!(fs::read_to_string(mounted.point.join(&longest)).unwrap(), "x");
    let error = fs::write(mounted.point.join("n".repeat(246)), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(36), "ENAMETOOLONG");
    mounted.umount();
}

#[test]
fn foreign_entries_in_a_store_are_neither_shown_nor_changed() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    fs::write(mounted.point.join("mine"), "x").unwrap();
    fs::write(fixture.store.join("plain"), "theirs").unwrap();
    fs::create_dir(fixture.store.join("fake.container")).unwrap();
    let names = || {
        let names =
            fs::read_dir(&mounted.point).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    assert!(fs::read(mounted.point.join("plain")).is_err() && fs::read(mounted.point.join("fake")).is_err());
    assert!(!names().contains(&"plain".to_owned()), "{:?}", names());
    assert!(fs::metadata(mounted.point.join(".quell")).is_err());
    assert!(fs::create_dir(mounted.point.join(".quell")).is_err());
    mounted.umount();
    assert_eq!(fs::read_to_string(fixture.store.join("plain")).unwrap(), "theirs");
}

#[test]
fn holes_read_as_zeros_and_take_no_room() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let path = mounted.point.join("sparse");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let far = 1 << 40;
    file.write_all_at(b"end", far).unwrap();
    file.write_all_at(b"begin", 100).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), far + 3);
    let mut bytes = [1; 8];
    file.read_exact_at(&mut bytes, 99).unwrap();
    assert_eq!(&bytes, b"\0begin\0\0");
    file.read_exact_at(&mut bytes, far - 5).unwrap();
    assert_eq!(&bytes, b"\0\0\0\0\0end");
    assert_eq!(file.read_at(&mut bytes, far + 3).unwrap(), 0);
    file.read_exact_at(&mut bytes, far / 2).unwrap();
    assert_eq!(bytes, [0; 8]);
    drop(file);
    mounted.umount();
    let mut used = 0;
    walk(&fixture.store, &mut |path| used += fs::symlink_metadata(path).unwrap().len());
    assert!(used < 1 << 20, "{used} bytes in the store");
    let mounted = fixture.mount();
    let mut file = fs::File::open(mounted.point.join("sparse")).unwrap();
    assert_eq!(file.seek(SeekFrom::End(-3)).unwrap(), far);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "end");
    drop(file);
    mounted.umount();
}

#[test]
#[allow(unsafe_code)]
fn one_file_can_be_read_written_and_mapped_concurrently() {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let path = mounted.point.join("mapped");
    let bytes = noise(300_000, 7);
    fs::write(&path, &bytes).unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    for flags in [MapFlags::PRIVATE, MapFlags::SHARED] {
        // SAFETY: the kernel chooses an unused address, the file keeps its size, and the mapping is
        // only read while it exists.
        let same = unsafe {
            let mapping = mmap(std::ptr::null_mut(), bytes.len(), ProtFlags::READ, flags, &file, 0);
            let Ok(mapping) = mapping else { skip!("this kernel maps no such files: {mapping:?}") };
            let same = std::slice::from_raw_parts(mapping.cast::<u8>(), bytes.len()) == bytes;
            munmap(mapping, bytes.len()).unwrap();
            same
        };
        assert!(same, "{flags:?}");
    }
    file.write_all_at(b"changed", 1000).unwrap();
    // SAFETY: as above.
    unsafe {
        let mapping = mmap(std::ptr::null_mut(), 8192, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap();
        assert_eq!(&std::slice::from_raw_parts(mapping.cast::<u8>(), 8192)[1000..1007], b"changed");
        munmap(mapping, 8192).unwrap();
    }
    drop(file);
    mounted.umount();
}

#[test]
fn the_blocks_of_a_file_count_before_and_after_they_are_in_the_store() {
    let fixture = log_fixture!();
    for form in ["container", "object"] {
        let mounted = fixture.mount_with(&[&fixture.store], &["--new-files", form]);
        // The second size is larger than the data that an object can have.
        for size in [100_000, 3_000_000] {
            let path = mounted.point.join(format!("{form}-{size}"));
            let file = fs::File::create(&path).unwrap();
            file.write_all_at(&noise(size, 1), 0).unwrap();
            let bytes = || fs::metadata(&path).unwrap().blocks() * 512;
            // A log also has headers and checksums.
            let expected = size as u64..size as u64 * 11 / 10 + 8192;
            assert!(expected.contains(&bytes()), "written, {form}: {} of {size}", bytes());
            file.sync_all().unwrap();
            assert!(expected.contains(&bytes()), "synced, {form}: {} of {size}", bytes());
            drop(file);
            assert!(expected.contains(&bytes()), "closed, {form}: {} of {size}", bytes());
        }
        mounted.umount();
    }
}
