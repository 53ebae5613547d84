//! Files of log mounts that are created as objects (`--new-files object`), with real mounts of one
//! store. docs/decisions/0042-files-of-one-writer.md lists the conditions that the tests name.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::log::{Fixture, number_of_object};
use crate::log_faults::Small;
use crate::log_owners::as_user;
use crate::stage::{Ended, Mounted, eventually, is_root, words};
use crate::trees::{noise, set_mode, set_mtime};
use crate::{log_fixture, skip};

const OBJECTS: [&str; 2] = ["--new-files", "object"];
/// The size of the largest file that stays an object, and of the header of an object.
const OBJECT_PAYLOAD_MAX: usize = 1 << 20;
const HEAD_BYTES: usize = 64;
/// An ordinary user.
const USER: u32 = 4242;
/// Rounds of a test in which two mounts act at the same time.
const ROUNDS: usize = 20;

impl Fixture {
    fn mount_objects(&self) -> Mounted<'_> {
        self.mount_with(&[&self.store], &OBJECTS)
    }

    /// Returns the object or the container of a file.
    fn stored(&self, name: &str) -> PathBuf {
        self.store.join(format!("{name}.container"))
    }

    /// Returns true if a file is an object without a container.
    fn is_only_object(&self, name: &str) -> bool {
        self.stored(name).is_file() && !self.container(name).exists()
    }

    /// Returns the path of the container of an object.
    fn container(&self, name: &str) -> PathBuf {
        self.store.join(".quell/parts").join(number_of_object(&self.stored(name)))
    }

    fn log(&self, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Ended {
        self.stage.run(self.stage.quell().arg("log").args(words(arguments)))
    }

    /// Checks the store, and fails if there is any problem.
    #[track_caller]
    fn expect_no_problem(&self) {
        self.log(&[&"fsck", &self.store]).expect(0);
    }

    #[track_caller]
    fn expect_empty_store(&self) {
        assert!(eventually(|| self.leftovers().is_empty()), "{:?}", self.leftovers());
    }
}

impl Ended {
    /// Fails unless the output has these words.
    #[track_caller]
    fn prints(self, words: &str) -> Ended {
        assert!(self.text().contains(words), "no {words:?} in {}", self.text());
        self
    }
}

/// Appends and syncs, because File ignores the errors of close(2).
fn append(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::options().append(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Calls both functions at the same time.
fn at_once<A: Send, B: Send>(one: impl FnOnce() -> A + Send, two: impl FnOnce() -> B + Send) -> (A, B) {
    let begin = Barrier::new(2);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| {
            begin.wait();
            one()
        });
        begin.wait();
        let two = two();
        (one.join().unwrap(), two)
    })
}

#[test]
fn a_file_of_one_writer_is_one_file_in_the_store_until_a_second_process_writes() {
    let fixture = log_fixture!();
    let (a, b) = (fixture.mount_objects(), fixture.mount());
    let sizes = [0, 1, 4096, 16_384, 16_385, OBJECT_PAYLOAD_MAX - 1, OBJECT_PAYLOAD_MAX];
    for size in sizes {
        let name = format!("f{size}");
        fs::write(a.point.join(&name), noise(size, 1)).unwrap();
        assert!(fixture.is_only_object(&name), "{size}");
        for mounted in [&a, &b] {
            let path = mounted.point.join(&name);
            assert_eq!(fs::metadata(&path).unwrap().len(), size as u64);
            assert!(fs::read(&path).unwrap() == noise(size, 1), "{size}");
        }
    }
    let large = OBJECT_PAYLOAD_MAX + 1;
    fs::write(a.point.join("large"), noise(large, 1)).unwrap();
    assert!(fixture.stored("large").is_file() && fixture.container("large").is_dir());
    assert!(fs::read(b.point.join("large")).unwrap() == noise(large, 1));
    for size in sizes {
        let name = format!("f{size}");
        append(&b.point.join(&name), b"of b").unwrap();
        let expected = [noise(size, 1), b"of b".to_vec()].concat();
        for mounted in [&a, &b] {
            assert!(fs::read(mounted.point.join(&name)).unwrap() == expected, "{size}");
        }
        assert!(fixture.container(&name).is_dir());
    }
    fixture.expect_no_problem();
    for name in sizes.map(|size| format!("f{size}")).iter().map(String::as_str).chain(["large"]) {
        fs::remove_file(a.point.join(name)).unwrap();
    }
    assert_eq!(fs::read_dir(&b.point).unwrap().count(), 0);
    a.umount();
    b.umount();
    fixture.expect_empty_store();
}

/// Other permissions, owners, times and names do not need a container.
#[test]
fn attributes_and_names_are_changed_in_the_object() {
    let fixture = log_fixture!();
    let (a, b) = (fixture.mount_objects(), fixture.mount_objects());
    fs::write(a.point.join("f"), "text").unwrap();
    set_mode(&b.point.join("f"), 0o600);
    set_mtime(&b.point.join("f"), 1_000_000_000, 0);
    fs::rename(b.point.join("f"), a.point.join("g")).unwrap_err(); // another file system
    fs::rename(b.point.join("f"), b.point.join("g")).unwrap();
    let found = fs::metadata(a.point.join("g")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.mtime(), found.len()), (0o600, 1_000_000_000, 4));
    fs::write(a.point.join("f"), "other").unwrap();
    fs::rename(a.point.join("f"), a.point.join("g")).unwrap();
    assert_eq!(fs::read(b.point.join("g")).unwrap(), b"other");
    assert!(fixture.is_only_object("g"));
    // Other users may write to the file: it gets a container.
    set_mode(&b.point.join("g"), 0o666);
    assert!(fixture.container("g").is_dir());
    assert_eq!((mode(&a.point.join("g")), mode(&fixture.stored("g"))), (0o666, 0o644));
    fixture.expect_no_problem();
    a.umount();
    b.umount();
}

/// Condition 12. A shell opens the file, and closes a copy of the descriptor before the program
/// writes.
#[test]
fn a_flush_without_data_does_not_end_the_object() {
    let fixture = log_fixture!();
    let mounted = fixture.mount_objects();
    let text = fixture.stage.file("text", noise(10_000, 1));
    fixture.stage.sh("cat \"$1\" > \"$2\"", &[&text, &mounted.point.join("f")]).expect(0);
    assert!(fs::read(mounted.point.join("f")).unwrap() == noise(10_000, 1));
    assert!(fixture.is_only_object("f"));
    mounted.umount();
}

/// Condition 11.
#[test]
fn a_name_that_another_mount_has_created_as_an_object_exists() {
    let fixture = log_fixture!();
    let (a, b) = (fixture.mount_objects(), fixture.mount_objects());
    let containers = fixture.mount();
    let exists = |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(17));
    fs::write(a.point.join("f"), "a").unwrap();
    for other in [&b, &containers] {
        exists(File::create_new(other.point.join("f")).map(drop));
        exists(fs::create_dir(other.point.join("f")));
        exists(std::os::unix::fs::symlink("x", other.point.join("f")));
    }
    for round in 0..ROUNDS {
        let other = [&b, &containers][round % 2];
        let name = format!("of both {round}");
        let create = |mounted: &Mounted<'_>| {
            let file = File::create_new(mounted.point.join(&name));
            file.map(|mut file| file.write_all(mounted.point.to_str().unwrap().as_bytes()).unwrap())
        };
        let (one, two) = at_once(|| create(&a), || create(other));
        let winner = match (one, two) {
            (Ok(()), Err(error)) => {
                exists(Err(error));
                &a
            }
            (Err(error), Ok(())) => {
                exists(Err(error));
                other
            }
            both => panic!("round {round}: {both:?}"),
        };
        assert_eq!(fs::read(a.point.join(&name)).unwrap(), winner.point.to_str().unwrap().as_bytes());
    }
    fixture.expect_no_problem();
    [a, b, containers].into_iter().for_each(Mounted::umount);
}

/// Condition 6.
#[test]
fn a_rename_without_replacement_replaces_no_file_that_another_mount_creates() {
    let fixture = log_fixture!();
    let (a, b) = (fixture.mount_objects(), fixture.mount_objects());
    for round in 0..ROUNDS {
        let (from, to) = (format!("from {round}"), format!("to {round}"));
        fs::write(a.point.join(&from), "renamed").unwrap();
        let (renamed, created) = at_once(
            || renameat_with(CWD, a.point.join(&from), CWD, a.point.join(&to), RenameFlags::NOREPLACE),
            || File::create_new(b.point.join(&to)).map(|mut file| file.write_all(b"created").unwrap()),
        );
        let found = fs::read(a.point.join(&to)).unwrap();
        match (renamed, created) {
            (Ok(()), Err(_)) => assert_eq!(found, b"renamed"),
            (Err(_), Ok(())) => {
                assert_eq!(found, b"created");
                assert_eq!(fs::read(a.point.join(&from)).unwrap(), b"renamed");
            }
            both => panic!("round {round}: {both:?}"),
        }
    }
    fixture.expect_no_problem();
    a.umount();
    b.umount();
}

/// Conditions 3 and 5.
#[test]
fn changes_of_attributes_while_the_container_is_created_are_kept() {
    let fixture = log_fixture!();
    let (a, b, c) = (fixture.mount_objects(), fixture.mount_objects(), fixture.mount_objects());
    for round in 0..ROUNDS {
        let name = format!("f{round}");
        fs::write(a.point.join(&name), "begin ").unwrap();
        let path = c.point.join(&name);
        let change = || match round % 4 {
            0 => set_mode(&path, 0o600),
            1 => set_mtime(&path, 1_000_000_000, 0),
            2 if is_root() => chown(&path, Some(USER), Some(USER)).unwrap(),
            _ => fs::rename(&path, c.point.join(format!("{name} renamed"))).unwrap(),
        };
        let (appended, ()) = at_once(|| append(&b.point.join(&name), b"end"), change);
        let renamed = a.point.join(format!("{name} renamed"));
        let path = if renamed.exists() { renamed } else { a.point.join(&name) };
        // The name may be missing when the file is opened.
        let expected = if appended.is_ok() { "begin end" } else { "begin " };
        assert_eq!(fs::read_to_string(&path).unwrap(), expected, "round {round}: {appended:?}");
        let found = fs::metadata(&path).unwrap();
        match round % 4 {
            0 => assert_eq!(found.mode() & 0o7777, 0o600, "round {round}"),
            // The append may have been later.
            1 if appended.is_err() => assert_eq!(found.mtime(), 1_000_000_000),
            2 if is_root() => assert_eq!((found.uid(), found.gid()), (USER, USER), "round {round}"),
            _ => {}
        }
    }
    fixture.expect_no_problem();
    [a, b, c].into_iter().for_each(Mounted::umount);
}

/// Condition 4. The user forges an object with the number of root's object, and gets a container
/// with this number.
#[test]
fn a_container_of_another_user_is_not_that_of_an_object() {
    let fixture = log_fixture!();
    if !is_root() {
        skip!("only root can be two users");
    }
    let mounted = fixture.mount_objects();
    let at = |mounted: &Mounted<'_>, name: &str| mounted.point.join(name);
    // Before the user gets write permission, files begin as objects.
    for (name, content) in [("f", "of root"), ("g", "of root"), ("template", "of the user")] {
        fs::write(at(&mounted, name), content).unwrap();
    }
    let home = at(&mounted, "home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(USER), Some(USER)).unwrap();
    // The user creates an object with the number of an object of root.
    let forge = |name: &str, of_root: &str| {
        let mut bytes = fs::read(fixture.stored("template")).unwrap();
        bytes[..HEAD_BYTES].copy_from_slice(&fs::read(fixture.stored(of_root)).unwrap()[..HEAD_BYTES]);
        let stored = fixture.store.join("home").join(format!("{name}.container"));
        as_user(USER, || fs::write(stored, bytes)).unwrap();
    };
    forge("first", "f");
    mounted.umount();
    let mounted = fixture.mount_objects();
    as_user(USER, || append(&home_of(&mounted).join("first"), b", and more")).unwrap();
    assert_eq!(fs::metadata(fixture.container("f")).unwrap().uid(), USER);
    assert_eq!(fs::read(at(&mounted, "f")).unwrap(), b"of root");
    // The file needs a container, which cannot be created.
    File::options().write(true).open(at(&mounted, "f")).unwrap().set_len(3).unwrap_err();
    append(&at(&mounted, "f"), b"x").unwrap_err();
    set_mode(&at(&mounted, "f"), 0o600);
    mounted.umount_with_lost_data("a directory of another user");
    let mounted = fixture.mount_objects();
    let f = at(&mounted, "f");
    assert_eq!((fs::read(&f).unwrap(), mode(&f)), (b"of root".to_vec(), 0o600));
    fs::remove_file(&f).unwrap();
    assert_eq!(
        as_user(USER, || fs::read(home_of(&mounted).join("first"))).unwrap(),
        b"of the user, and more"
    );
    as_user(USER, || fs::remove_file(home_of(&mounted).join("first"))).unwrap();
    // Now root's object has its container first.
    append(&at(&mounted, "g"), b" alone").unwrap();
    set_mode(&at(&mounted, "g"), 0o600);
    assert_eq!(fs::metadata(fixture.container("g")).unwrap().uid(), 0);
    mounted.umount();
    forge("second", "g");
    let mounted = fixture.mount_objects();
    let second = home_of(&mounted).join("second");
    as_user(USER, || {
        assert_eq!(fs::read(&second).unwrap(), b"of the user");
        append(&second, b"x").unwrap_err();
        fs::remove_file(&second).unwrap();
    });
    let g = at(&mounted, "g");
    assert_eq!((fs::read(&g).unwrap(), mode(&g)), (b"of root alone".to_vec(), 0o600));
    mounted.umount();
}

fn home_of(mounted: &Mounted<'_>) -> PathBuf {
    mounted.point.join("home")
}

/// Condition 7.
#[test]
fn an_object_without_a_header_can_be_removed_and_is_repaired() {
    let fixture = log_fixture!();
    for size in [0, 10, HEAD_BYTES as u64] {
        let mounted = fixture.mount_objects();
        for name in ["f", "g"] {
            fs::write(mounted.point.join(name), "text").unwrap();
        }
        mounted.umount();
        for name in ["f", "g"] {
            let object = File::options().write(true).open(fixture.stored(name)).unwrap();
            object.set_len(0).unwrap();
            object.set_len(size).unwrap();
        }
        let mounted = fixture.mount_objects();
        assert_eq!(fs::metadata(mounted.point.join("f")).unwrap().len(), 0);
        fs::read(mounted.point.join("f")).unwrap_err();
        append(&mounted.point.join("f"), b"x").unwrap_err();
        fs::remove_file(mounted.point.join("f")).unwrap();
        mounted.umount();
        fixture.log(&[&"fsck", &fixture.store]).expect(1).prints("the file has no header and no content");
        fixture.log(&[&"fsck", &fixture.store, &"--repair"]).expect(0);
        fixture.expect_no_problem();
        assert!(!fixture.stored("g").exists());
    }
}

/// Condition 8.
#[test]
fn fsck_reports_objects_with_one_number_and_containers_without_an_object() {
    let fixture = log_fixture!();
    let mounted = fixture.mount_objects();
    for name in ["f", "g"] {
        fs::write(mounted.point.join(name), "text").unwrap();
        append(&mounted.point.join(name), b" and more").unwrap();
    }
    mounted.umount();
    fixture.expect_no_problem();
    fs::copy(fixture.stored("f"), fixture.stored("copy")).unwrap();
    fixture.log(&[&"fsck", &fixture.store]).expect(1).prints("has the same number");
    fs::remove_file(fixture.stored("copy")).unwrap();
    fixture.expect_no_problem();
    let container = fixture.container("g");
    fs::remove_file(fixture.stored("g")).unwrap();
    fixture
        .log(&[&"fsck", &fixture.store])
        .expect(1)
        .prints(container.file_name().unwrap().to_str().unwrap());
    let mounted = fixture.mount_objects();
    assert_eq!(fs::read(mounted.point.join("f")).unwrap(), b"text and more");
    mounted.umount();
}

/// Conditions 2 and 9.
#[test]
fn data_that_does_not_fit_is_reported_until_it_is_written() {
    let fixture = log_fixture!();
    let Some(small) = Small::new(&fixture.stage, "4m") else { return };
    let mounted = fixture.mount_with(&[&small.path], &OBJECTS);
    let filler = small.path.join("filler");
    let is_full = |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(28));
    for round in 0..4 {
        let path = mounted.point.join(format!("f{round}"));
        let mut file = File::create(&path).unwrap();
        // Before the data is written: a program that another test of this process starts has a copy
        // of `file`, and publishes the data when exec(2) closes the copy.
        let _ = File::create(&filler).unwrap().write_all(&vec![1; 4 << 20]);
        file.write_all(&noise(500_000, 7)).unwrap();
        if round < 2 {
            is_full(file.sync_all());
            is_full(file.sync_all());
        }
        if round % 2 == 1 {
            // Data that needs a container, which does not fit either.
            let _ = file.write_all_at(b"front", 0);
        }
        File::create(&filler).unwrap(); // frees the space although such a program has the file open
        file.write_all_at(b"FRONT", 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let mut expected = noise(500_000, 7);
        expected[..5].copy_from_slice(b"FRONT");
        assert!(fs::read(&path).unwrap() == expected, "round {round}");
        let other = fixture.mount_with(&[&small.path], &OBJECTS);
        assert!(fs::read(other.point.join(format!("f{round}"))).unwrap() == expected, "round {round}");
        other.umount();
    }
    mounted.umount();
}

/// Condition 10. Another mount sees all of a write, or nothing.
#[test]
fn a_write_is_seen_as_a_whole_by_other_mounts() {
    const RECORD: usize = 700_000;
    let fixture = log_fixture!();
    let (a, b) = (fixture.mount_objects(), fixture.mount_objects());
    let mut file = File::create(a.point.join("f")).unwrap();
    let path = b.point.join("f");
    for round in 1..=4 {
        file.write_all(&vec![round as u8; RECORD]).unwrap();
        let found = fs::metadata(&path).unwrap().len() as usize;
        assert!(found.is_multiple_of(RECORD) && found <= round * RECORD, "{found} in round {round}");
        let bytes = fs::read(&path).unwrap();
        for (record, written) in bytes.chunks(RECORD).zip(1u8..) {
            assert!(record.len() == RECORD && record.iter().all(|byte| *byte == written), "round {round}");
        }
        if round == 2 {
            file.sync_all().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len() as usize, 2 * RECORD);
        }
    }
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap().len() as usize, 4 * RECORD);
    a.umount();
    b.umount();
}

/// Condition 1. Two processes of one node write to a new file.
#[test]
fn two_writers_of_a_node_lose_no_byte_of_a_new_file() {
    let fixture = log_fixture!();
    let mounted = fixture.mount_objects();
    for round in 0..ROUNDS {
        let path = mounted.point.join(format!("f{round}"));
        let file = File::create(&path).unwrap();
        file.write_all_at(&[b'a'; 3000], 0).unwrap();
        let script = "printf bbbbbbbbbb | dd of=\"$1\" bs=10 seek=150 conv=notrunc status=none";
        fixture.stage.sh(script, &[&path]).expect(0);
        file.write_all_at(&[b'c'; 100], if round % 2 == 0 { 3000 } else { 1550 }).unwrap();
        if round % 3 == 0 {
            file.sync_all().unwrap();
        }
        let mut expected = vec![b'a'; 3000];
        expected[1500..1510].fill(b'b');
        match round % 2 {
            0 => expected.extend([b'c'; 100]),
            _ => expected[1550..1650].fill(b'c'),
        }
        assert!(fs::read(&path).unwrap() == expected, "round {round}");
        drop(file);
        assert!(fs::read(&path).unwrap() == expected, "round {round}, closed");
    }
    mounted.umount();
    fixture.expect_no_problem();
}

/// The mount of the second writer is killed while it creates containers.
#[test]
fn a_mount_that_is_killed_while_it_creates_containers_loses_no_file() {
    const FILES: usize = 30;
    let fixture = log_fixture!();
    let a = fixture.mount_objects();
    for round in 0..3 {
        let names: Vec<String> = (0..FILES).map(|file| format!("f{round}-{file}")).collect();
        for name in &names {
            fs::write(a.point.join(name), "begin ").unwrap();
        }
        let known = fixture.stage.holders();
        let b = fixture.mount_objects();
        let holder = fixture.stage.holders().into_iter().find(|pid| !known.contains(pid)).unwrap();
        let (appended, ()) = at_once(
            || names.iter().take_while(|name| append(&b.point.join(name), b"end").is_ok()).count(),
            || {
                std::thread::sleep(std::time::Duration::from_millis(10 + 15 * round));
                crate::stage::send(holder, rustix::process::Signal::KILL);
            },
        );
        b.umount();
        for (number, name) in names.iter().enumerate() {
            let found = fs::read_to_string(a.point.join(name)).unwrap();
            let is_whole = found == "begin end" || found == "begin " && number >= appended;
            assert!(is_whole, "{name}: {found}, {appended} appended");
            append(&a.point.join(name), b"!").unwrap();
            assert_eq!(fs::read_to_string(a.point.join(name)).unwrap(), format!("{found}!"));
        }
    }
    a.umount();
    fixture.log(&[&"fsck", &fixture.store, &"--repair"]);
    fixture.expect_no_problem();
}

#[test]
fn the_tools_read_and_write_objects() {
    let fixture = log_fixture!();
    let mounted = fixture.mount_objects();
    fs::write(mounted.point.join("small"), "small").unwrap();
    fs::write(mounted.point.join("large"), noise(3_000_000, 1)).unwrap();
    fs::write(mounted.point.join("empty"), "").unwrap();
    set_mtime(&mounted.point.join("small"), 1_000_000_000, 0);
    mounted.umount();
    let store = &fixture.store;
    let listed = fixture.log(&[&"ls", store, &"/"]).expect(0).text();
    assert!(["small", "large", "empty"].iter().all(|name| listed.contains(name)), "{listed}");
    let ls = fixture.log(&[&"ls", store, &"/", &"--json"]).expect(0);
    let sizes: Vec<_> =
        ls.text().lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).collect();
    assert!(!sizes.is_empty(), "{}", ls.text());
    fixture.log(&[&"map", store, &"small"]).expect(0);
    fixture.log(&[&"flatten", store]).expect(0);
    assert!(fixture.is_only_object("small"), "an object has no index that could be flattened");
    fixture.log(&[&"export", store, &"/", &fixture.stage.path("exported"), &"--verify"]).expect(0);
    let out = fixture.stage.path("exported");
    assert!(fs::read(out.join("large")).unwrap() == noise(3_000_000, 1));
    let small = fs::metadata(out.join("small")).unwrap();
    assert_eq!((fs::read(out.join("small")).unwrap(), small.mtime()), (b"small".to_vec(), 1_000_000_000));
    assert_eq!(
        (small.permissions().mode() & 0o777, fs::metadata(out.join("empty")).unwrap().len()),
        (mode(&out.join("small")), 0)
    );
    // A damaged byte of data is an error, and is reported.
    let object = File::options().read(true).write(true).open(fixture.stored("small")).unwrap();
    object.write_all_at(b"S", (HEAD_BYTES + 70) as u64).unwrap();
    fixture.log(&[&"fsck", store]).expect(1).prints("small: damaged-data");
    let mounted = fixture.mount_objects();
    fs::read(mounted.point.join("small")).unwrap_err();
    mounted.umount();
}

/// The option needs a single store. With several stores, files are created as containers.
#[test]
fn several_stores_have_no_objects() {
    let fixture = log_fixture!();
    let second = fixture.stage.dir("second");
    let mounted = fixture.mount_with(&[&fixture.store, &second], &OBJECTS);
    for file in 0..10 {
        fs::write(mounted.point.join(format!("f{file}")), "text").unwrap();
    }
    mounted.umount();
    let objects =
        |store: &Path| fs::read_dir(store).unwrap().filter(|e| e.as_ref().unwrap().path().is_file()).count();
    assert_eq!((objects(&fixture.store), objects(&second)), (0, 0));
}
