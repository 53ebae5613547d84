//! One file used by many: processes of a node, mounts as on several nodes, files that are open
//! while they are renamed and removed, and random histories of these operations compared with a
//! plain directory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::log::Fixture;
use crate::log_fixture;
use crate::stage::{Mounted, Stage, eventually};
use crate::trees::noise;

/// Variable with the order for this program as a child process: `ORDER NUMBER PROCESSES PATH`.
const ORDER: &str = "QUELL_TEST_WRITER";
/// The record size of LANL 1 in the paper, which is not a multiple of a block.
const RECORD_BYTES: usize = 47_008;

/// Not a test: the tests start it as a separate process.
#[test]
#[ignore = "a program that tests start"]
fn child() {
    let order = std::env::var(ORDER).expect("started by a test, which sets the variable");
    let words: Vec<&str> = order.splitn(4, ' ').collect();
    let [what, number, processes, path] = words[..] else { panic!("{order}") };
    let (number, processes): (u64, u64) = (number.parse().unwrap(), processes.parse().unwrap());
    let path = Path::new(path);
    match what {
        "strided" => {
            let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
            for round in 0..ROUNDS {
                let record_number = round * processes + number;
                file.write_all_at(&record(record_number), record_number * RECORD_BYTES as u64).unwrap();
            }
        }
        "read" => {
            let file = File::open(path).unwrap();
            let mut bytes = vec![0; RECORD_BYTES];
            for round in 0..ROUNDS {
                // Each process reads the records of another one.
                let record_number = round * processes + (number + 1) % processes;
                file.read_exact_at(&mut bytes, record_number * RECORD_BYTES as u64).unwrap();
                assert!(bytes == record(record_number), "record {record_number}");
            }
        }
        "append" => {
            let mut file = File::options().append(true).create(true).open(path).unwrap();
            for line in 0..LINES {
                file.write_all(format!("{number} {line}\n").as_bytes()).unwrap();
            }
        }
        // Runs until it is killed, or the mount is gone.
        "sync" | "write" => {
            let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
            for round in 0.. {
                let record_number = round * processes + number;
                let mut written =
                    file.write_all_at(&small_record(record_number), record_number * SMALL_BYTES as u64);
                if what == "sync" {
                    if round % 4 != 3 {
                        continue;
                    }
                    written = written.and_then(|()| file.sync_data());
                }
                match written {
                    Ok(()) => println!("done {}", round + 1),
                    Err(e) => return println!("ended {e}"),
                }
            }
        }
        _ => panic!("{order}"),
    }
}

pub const SMALL_BYTES: usize = 5000;

pub fn small_record(record_number: u64) -> Vec<u8> {
    noise(SMALL_BYTES, record_number + 1_000_000)
}

const ROUNDS: u64 = 20;
const LINES: u64 = 200;

fn record(record_number: u64) -> Vec<u8> {
    noise(RECORD_BYTES, record_number + 1)
}

/// Returns a command that runs this program as a child process.
pub fn process(stage: &Stage, what: &str, number: u64, processes: u64, path: &Path) -> Command {
    let mut command = stage.command(std::env::current_exe().unwrap());
    command.args(["--exact", "log_sharing::child", "--ignored", "--nocapture"]);
    command.env(ORDER, format!("{what} {number} {processes} {}", path.display()));
    command
}

fn all(stage: &Stage, what: &str, paths: &[PathBuf]) {
    let processes = paths.len() as u64;
    let running: Vec<_> = (0..processes)
        .map(|number| stage.start(&mut process(stage, what, number, processes, &paths[number as usize])))
        .collect();
    for one in running {
        one.wait().expect(0);
    }
}

/// Returns the number of data logs in the store.
fn logs(fixture: &Fixture) -> usize {
    let mut logs = 0;
    crate::log::walk(&fixture.store, &mut |path| {
        logs += usize::from(path.extension().is_some_and(|e| e == "data"))
    });
    logs
}

#[test]
fn threads_that_write_one_file_are_one_writer_as_their_process_is() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let path = mounted.point.join("file");
    let all_have_it_open = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (path, all_have_it_open) = (&path, &all_have_it_open);
            scope.spawn(move || {
                let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
                all_have_it_open.wait();
                for round in 0..ROUNDS {
                    let record_number = round * 3 + number;
                    file.write_all_at(&record(record_number), record_number * RECORD_BYTES as u64).unwrap();
                }
            });
        }
    });
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 3 * ROUNDS as usize * RECORD_BYTES);
    assert!(
        (0..).zip(bytes.chunks(RECORD_BYTES)).all(|(record_number, found)| found == record(record_number))
    );
    assert_eq!(logs(&fixture), 1, "one process wrote");
    mounted.umount();
}

#[test]
fn processes_that_write_one_file_strided_read_the_data_of_others() {
    let fixture = log_fixture!();
    for options in [&[][..], &["--buffer", "4K"], &["--buffer", "16M", "--index", "flatten"]] {
        let mounted = fixture.mount_with(&[&fixture.store], options);
        let path = mounted.point.join("checkpoint");
        let paths = vec![path.clone(); 6];
        all(&fixture.stage, "strided", &paths);
        assert_eq!(logs(&fixture), 6, "each process writes a log of its own");
        assert_eq!(fs::metadata(&path).unwrap().len(), 6 * ROUNDS * RECORD_BYTES as u64);
        all(&fixture.stage, "read", &paths);
        // Again, over the existing data.
        all(&fixture.stage, "strided", &paths);
        mounted.umount();
        let mounted = fixture.mount();
        let path = mounted.point.join("checkpoint");
        all(&fixture.stage, "read", &vec![path.clone(); 6]);
        fs::remove_file(&path).unwrap();
        mounted.umount();
        assert_eq!((fixture.leftovers().len(), fixture.open_records().len(), logs(&fixture)), (0, 0, 0));
    }
}

#[test]
fn processes_on_several_mounts_write_one_file_and_all_mounts_read_it() {
    let fixture = log_fixture!();
    let mounts = [fixture.mount(), fixture.mount(), fixture.mount()];
    let paths: Vec<PathBuf> =
        mounts.iter().cycle().take(6).map(|mounted| mounted.point.join("checkpoint")).collect();
    all(&fixture.stage, "strided", &paths);
    all(&fixture.stage, "read", &paths);
    let sizes: Vec<u64> = paths.iter().map(|path| fs::metadata(path).unwrap().len()).collect();
    assert_eq!(sizes, [6 * ROUNDS * RECORD_BYTES as u64; 6]);
    mounts.into_iter().for_each(|mounted| mounted.umount());
    assert_eq!(fixture.open_records().len(), 0);
}

#[test]
fn processes_that_append_to_one_file_lose_no_line() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let path = mounted.point.join("journal");
    all(&fixture.stage, "append", &vec![path.clone(); 5]);
    let text = fs::read_to_string(&path).unwrap();
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    for line in text.lines() {
        let (number, count) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        let expected = next.entry(number.parse().unwrap()).or_default();
        assert_eq!(count.parse::<u64>().unwrap(), *expected, "lines of {number} in their order");
        *expected += 1;
    }
    assert_eq!(next.values().copied().collect::<Vec<_>>(), [LINES; 5]);
    mounted.umount();
}

#[test]
fn data_is_visible_to_another_mount_at_open_after_close() {
    let fixture = log_fixture!();
    let (one, other) = (fixture.mount(), fixture.mount());
    let (here, there) = (one.point.join("file"), other.point.join("file"));
    for round in 0..20u32 {
        let (from, to) = if round % 2 == 0 { (&here, &there) } else { (&there, &here) };
        fs::write(from, format!("round {round}")).unwrap();
        assert_eq!(fs::read_to_string(to).unwrap(), format!("round {round}"));
        let mut file = File::options().append(true).open(to).unwrap();
        write!(file, ", and more").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(from).unwrap(), format!("round {round}, and more"));
        assert_eq!(fs::metadata(from).unwrap().len(), fs::metadata(to).unwrap().len());
    }
    // Names, directories and attributes are not cached: changes are visible immediately.
    fs::create_dir(one.point.join("dir")).unwrap();
    fs::rename(&here, one.point.join("dir/moved")).unwrap();
    assert!(!there.exists() && other.point.join("dir/moved").exists());
    crate::trees::set_mode(&other.point.join("dir/moved"), 0o640);
    assert_eq!(fs::metadata(one.point.join("dir/moved")).unwrap().mode() & 0o7777, 0o640);
    fs::remove_file(other.point.join("dir/moved")).unwrap();
    assert_eq!(fs::read_dir(one.point.join("dir")).unwrap().count(), 0);
    fs::remove_dir(one.point.join("dir")).unwrap();
    [one, other].into_iter().for_each(|mounted| mounted.umount());
}

#[test]
fn synced_data_is_visible_to_another_mount_that_has_the_file_open() {
    let fixture = log_fixture!();
    let (one, other) = (fixture.mount(), fixture.mount());
    let writer = File::create(one.point.join("file")).unwrap();
    let reader = File::options().read(true).write(true).open(other.point.join("file")).unwrap();
    for round in 0..50u64 {
        writer.write_all_at(&round.to_le_bytes(), round * 5000).unwrap();
        writer.sync_all().unwrap();
        // Either an open, or a sync of a file that is already open.
        let mut bytes = [0; 8];
        if round % 2 == 0 {
            reader.sync_all().unwrap();
            reader.read_exact_at(&mut bytes, round * 5000).unwrap();
        } else {
            let opened = File::open(other.point.join("file")).unwrap();
            opened.read_exact_at(&mut bytes, round * 5000).unwrap();
        }
        assert_eq!(u64::from_le_bytes(bytes), round);
    }
    // A write after another mount's sync was seen is later in order.
    reader.sync_all().unwrap();
    reader.write_all_at(b"the last", 0).unwrap();
    reader.sync_all().unwrap();
    writer.sync_all().unwrap();
    let opened = File::open(one.point.join("file")).unwrap();
    let mut bytes = [0; 8];
    opened.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"the last");
    drop((writer, reader, opened));
    [one, other].into_iter().for_each(|mounted| mounted.umount());
}

#[test]
fn writers_of_one_node_see_each_others_data_without_a_sync() {
    let fixture = log_fixture!();
    let mounted = fixture.mount();
    let path = mounted.point.join("file");
    let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    std::thread::scope(|scope| {
        let (to, from) = std::sync::mpsc::channel::<u64>();
        let (back, seen) = std::sync::mpsc::channel::<u64>();
        let file = open();
        scope.spawn(move || {
            let file = open();
            for offset in from {
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, offset).unwrap();
                file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), offset).unwrap();
                back.send(offset).unwrap();
            }
        });
        for round in 0..300u64 {
            let offset = round * 3;
            file.write_all_at(&(round * 10).to_le_bytes(), offset).unwrap();
            to.send(offset).unwrap();
            assert_eq!(seen.recv().unwrap(), offset);
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, offset).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), round * 10 + 1);
        }
        drop(to);
    });
    mounted.umount();
}

#[test]
fn an_open_file_outlives_its_name() {
    let fixture = log_fixture!();
    let (one, other) = (fixture.mount(), fixture.mount());
    let at = |name: &str| one.point.join(name);
    fs::write(at("a"), "a's bytes").unwrap();
    fs::write(at("b"), "b's bytes").unwrap();
    let mut a = File::options().read(true).write(true).open(at("a")).unwrap();
    let mut b = File::options().read(true).append(true).open(at("b")).unwrap();
    fs::rename(at("a"), at("b")).unwrap();
    assert_eq!(fs::read_to_string(at("b")).unwrap(), "a's bytes");
    assert_eq!(fs::read_to_string(other.point.join("b")).unwrap(), "a's bytes");
    b.write_all(b", and more").unwrap();
    let mut text = String::new();
    b.read_to_string(&mut text).unwrap();
    b.read_to_string(&mut text).unwrap();
    let mut whole = vec![0; 19];
    b.read_exact_at(&mut whole, 0).unwrap();
    assert_eq!(whole, b"b's bytes, and more");
    assert_eq!((b.metadata().unwrap().nlink(), a.metadata().unwrap().nlink()), (0, 1));
    fs::remove_file(at("b")).unwrap();
    assert!(!other.point.join("b").exists());
    a.write_all(b"A").unwrap();
    let mut text = String::new();
    a.read_to_string(&mut text).unwrap();
    assert_eq!(text, "'s bytes");
    a.set_len(3).unwrap();
    assert_eq!((a.metadata().unwrap().len(), a.metadata().unwrap().nlink()), (3, 0));
    // A new file with the name is a different file.
    fs::write(at("b"), "new").unwrap();
    assert_eq!(fs::read_to_string(other.point.join("b")).unwrap(), "new");
    assert_eq!(fixture.leftovers().len(), 2);
    drop((a, b));
    fs::remove_file(at("b")).unwrap();
    [one, other].into_iter().for_each(|mounted| mounted.umount());
    assert_eq!((fixture.leftovers().len(), fixture.open_records().len()), (0, 0));
}

#[test]
fn one_of_many_that_make_a_file_exclusively_makes_it() {
    let fixture = log_fixture!();
    let mounts = [fixture.mount(), fixture.mount()];
    for round in 0..10 {
        let made: usize = std::thread::scope(|scope| {
            let makers: Vec<_> = mounts
                .iter()
                .cycle()
                .take(8)
                .map(|mounted| {
                    let path = mounted.point.join(format!("lock{round}"));
                    scope.spawn(move || match File::create_new(path) {
                        Ok(_) => 1,
                        Err(e) => {
                            assert_eq!(e.kind(), std::io::ErrorKind::AlreadyExists);
                            0
                        }
                    })
                })
                .collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).sum()
        });
        assert_eq!(made, 1);
    }
    mounts.into_iter().for_each(|mounted| mounted.umount());
    assert_eq!(fixture.leftovers().len(), 0);
}

#[test]
fn data_written_after_a_truncation_is_kept_with_any_truncating_mount() {
    let fixture = log_fixture!();
    let mounts = [fixture.mount(), fixture.mount_with(&[&fixture.store], &["--buffer", "4K"])];
    let paths: Vec<PathBuf> = mounts.iter().map(|mounted| mounted.point.join("file")).collect();
    File::create(&paths[0]).unwrap();
    for round in 0..10usize {
        let open = |path: &PathBuf| {
            File::options().read(true).write(true).truncate(round % 2 == 0).open(path).unwrap()
        };
        let [a, b] = [open(&paths[0]), open(&paths[1])];
        if round % 3 > 0 {
            // Both have started to write.
            a.write_all_at(&noise(70_000, 1), 0).unwrap();
            b.write_all_at(&noise(70_000, 2), 70_000).unwrap();
            a.sync_all().unwrap();
            b.sync_all().unwrap();
        }
        let (first, second) = if round % 4 < 2 { (&b, &a) } else { (&a, &b) };
        first.set_len(0).unwrap();
        second.set_len(0).unwrap();
        b.write_all_at(&noise(50_000, 3 + round as u64), 50_000).unwrap();
        b.sync_all().unwrap();
        drop(b);
        a.write_all_at(&noise(50_000, 4 + round as u64), 0).unwrap();
        a.sync_all().unwrap();
        drop(a);
        let expected = [noise(50_000, 4 + round as u64), noise(50_000, 3 + round as u64)].concat();
        for path in &paths {
            assert!(fs::read(path).unwrap() == expected, "round {round}, {}", path.display());
        }
    }
    fs::remove_file(&paths[0]).unwrap();
    mounts.into_iter().for_each(|mounted| mounted.umount());
    assert_eq!((fixture.leftovers().len(), fixture.open_records().len()), (0, 0));
}

#[test]
fn of_mounts_that_create_one_directory_concurrently_exactly_one_succeeds() {
    let fixture = log_fixture!();
    let second = fixture.stage.dir("second");
    let stores = [&*fixture.store, &*second];
    let mounts = [fixture.mount_with(&stores, &[]), fixture.mount_with(&stores, &[])];
    let barrier = std::sync::Barrier::new(mounts.len());
    let made: Vec<Vec<bool>> = std::thread::scope(|scope| {
        let makers: Vec<_> = (mounts.iter())
            .map(|mounted| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let one = |number: usize| {
                        barrier.wait();
                        let dir = mounted.point.join(format!("dir{number}"));
                        let made = fs::create_dir(&dir);
                        if let Err(e) = &made {
                            assert_eq!(e.kind(), std::io::ErrorKind::AlreadyExists, "{number}");
                        }
                        made.is_ok()
                    };
                    (0..200).map(one).collect()
                })
            })
            .collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    for (number, (one, other)) in made[0].iter().zip(&made[1]).enumerate() {
        assert!(one != other, "{number}: {one} {other}");
        for mounted in &mounts {
            let dir = mounted.point.join(format!("dir{number}"));
            assert!(dir.is_dir(), "{number}");
            fs::write(dir.join("file"), "text").unwrap();
        }
    }
    for number in 0..200 {
        fs::remove_dir_all(mounts[0].point.join(format!("dir{number}"))).unwrap();
    }
    mounts.into_iter().for_each(|mounted| mounted.umount());
}

#[test]
fn a_file_that_is_opened_to_be_made_while_another_mount_removes_it_is_made() {
    let fixture = log_fixture!();
    let mounts = [fixture.mount(), fixture.mount()];
    let barrier = std::sync::Barrier::new(2);
    let name = |number: usize| format!("f{number}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..200 {
                fs::write(mounts[0].point.join(name(number)), "old").unwrap();
                barrier.wait();
                fs::remove_file(mounts[0].point.join(name(number))).unwrap();
            }
        });
        for number in 0..200 {
            barrier.wait();
            let made = File::create(mounts[1].point.join(name(number)));
            made.unwrap_or_else(|e| panic!("{number}: {e}"));
        }
    });
    mounts.into_iter().for_each(|mounted| mounted.umount());
}

#[test]
fn a_file_that_another_mount_has_read_gives_its_room_back_when_it_is_removed() {
    let fixture = log_fixture!();
    let mounts = [fixture.mount(), fixture.mount()];
    let holder = |mounted: &Mounted<'_>| {
        let mut command = fixture.stage.quell();
        let report =
            fixture.stage.run(command.args(["stats", "--json"]).arg(&mounted.point)).expect(0).text();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        report[0]["pid"].as_u64().unwrap()
    };
    let removed_logs = |pid: u64| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let targets = open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        targets.filter(|target| target.to_string_lossy().ends_with(".data (deleted)")).count()
    };
    let reader = holder(&mounts[1]);
    fs::write(mounts[0].point.join("f"), vec![7; 1 << 20]).unwrap();
    assert_eq!(fs::read(mounts[1].point.join("f")).unwrap().len(), 1 << 20);
    let open = File::open(mounts[1].point.join("f")).unwrap();
    fs::remove_file(mounts[0].point.join("f")).unwrap();
    drop(open);
    assert!(eventually(|| removed_logs(reader) == 0));
    mounts.into_iter().for_each(|mounted| mounted.umount());
}

// --- random histories ---------------------------------------------------------------------------

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

const NAMES: [&str; 4] = ["a", "b", "dir/a", "dir/b"];
const FILE_BYTES_MAX: u64 = 200_000;

/// Performs one operation on names and open files. `seed` alone determines the operation, so that
/// it is the same in both directories.
fn step(seed: u64, root: &Path, open: &mut BTreeMap<u64, File>, keeps_open: bool) -> String {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..4).for_each(|_| _ = random.below(2));
    let pick = |random: &mut Random| root.join(NAMES[random.below(NAMES.len() as u64) as usize]);
    let error = |e: std::io::Error| format!("error {}", e.raw_os_error().unwrap_or(0));
    let describe = |result: std::io::Result<String>| result.unwrap_or_else(error);
    let length = |random: &mut Random| [1, 7, 100, 4096, 5000, 70_000][random.below(6) as usize];
    let on_file = |random: &mut Random, file: &File| -> std::io::Result<String> {
        let offset = random.below(FILE_BYTES_MAX / 2);
        let size = length(random);
        match random.below(10) {
            0..=3 => file.write_all_at(&noise(size, random.0), offset).map(|()| "written".into()),
            4..=6 => {
                let mut bytes = vec![0; size];
                let n = file.read_at(&mut bytes, offset)?;
                Ok(format!("{n} {:x}", sum(&bytes[..n])))
            }
            7 => file.set_len(offset).map(|()| "cut".into()),
            8 => (&mut &*file).write_all(&noise(size.min(5000), random.0)).map(|()| "appended".into()),
            _ => file.sync_data().map(|()| "synced".into()),
        }
    };
    match random.below(20) {
        0..=2 => {
            let (path, slot) = (pick(&mut random), random.below(4));
            let file = File::options()
                .read(true)
                .write(true)
                .create(random.below(2) == 0)
                .truncate(random.below(8) == 0)
                .custom_flags(if random.below(3) == 0 { 0o2000 } else { 0 }) // O_APPEND
                .open(path);
            describe(file.and_then(|file| {
                let result = on_file(&mut random, &file);
                if keeps_open {
                    open.insert(slot, file);
                }
                result
            }))
        }
        3 => {
            open.remove(&random.below(4));
            "closed".into()
        }
        4..=9 => match open.get(&random.below(4)) {
            Some(file) => describe(on_file(&mut random, file)),
            None => "none".into(),
        },
        10 | 11 => {
            let (path, size) = (pick(&mut random), length(&mut random));
            describe(fs::write(path, noise(size, seed)).map(|()| "made".into()))
        }
        12 | 13 => {
            describe(fs::read(pick(&mut random)).map(|bytes| format!("{} {:x}", bytes.len(), sum(&bytes))))
        }
        14 => describe(fs::remove_file(pick(&mut random)).map(|()| "removed".into())),
        15 | 16 => {
            let (from, to) = (pick(&mut random), pick(&mut random));
            describe(fs::rename(from, to).map(|()| "renamed".into()))
        }
        17 => describe(fs::metadata(pick(&mut random)).map(|found| format!("{} bytes", found.len()))),
        18 => {
            let path = pick(&mut random);
            let file = File::options().append(true).create(true).open(path);
            describe(file.and_then(|mut file| file.write_all(&noise(300, seed))).map(|()| "appended".into()))
        }
        _ => describe(state(root)),
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns everything that can be read of all names.
fn state(root: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    for name in NAMES {
        if let Ok(bytes) = fs::read(root.join(name)) {
            let _ = write!(text, "{name} {} {:x}; ", bytes.len(), sum(&bytes));
        }
    }
    let mut names: Vec<_> =
        fs::read_dir(root.join("dir"))?.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    Ok(text + &names.join(" "))
}

/// Returns the seeds to run. The seed of a failed case is in its message; `QUELL_MODEL_SEED` runs
/// only that one.
fn seeds(cases: u64) -> Vec<u64> {
    match std::env::var("QUELL_MODEL_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=cases).collect(),
    }
}

const STEPS: u64 = 400;

#[test]
fn random_histories_with_open_files_are_those_of_a_plain_directory() {
    let fixture = log_fixture!();
    for seed in seeds(8) {
        let options: &[&str] = match seed % 3 {
            0 => &[],
            1 => &["--buffer", "4K"],
            _ => &["--index", "flatten"],
        };
        let mut mounted = fixture.mount_with(&[&fixture.store], options);
        let plain = fixture.stage.dir(&format!("plain{seed}"));
        fs::create_dir(plain.join("dir")).unwrap();
        fs::create_dir(mounted.point.join("dir")).unwrap();
        let (mut ours, mut theirs) = (BTreeMap::new(), BTreeMap::new());
        let mut history = String::new();
        for number in 0..STEPS {
            let seed = seed * STEPS + number;
            let (got, expected) =
                (step(seed, &mounted.point, &mut ours, true), step(seed, &plain, &mut theirs, true));
            let _ = writeln!(history, "{number} {got}");
            assert_eq!(got, expected, "step {number} of seed {}:\n{history}", seed / STEPS);
            if number % 100 == 99 {
                assert_eq!(state(&mounted.point).unwrap(), state(&plain).unwrap(), "after step {number}");
                ours.clear();
                theirs.clear();
                mounted.umount();
                mounted = fixture.mount_with(&[&fixture.store], options);
                assert_eq!(state(&mounted.point).unwrap(), state(&plain).unwrap(), "in a new mount");
            }
        }
        fs::remove_dir_all(mounted.point.join("dir")).unwrap();
        for name in ["a", "b"] {
            let _ = fs::remove_file(mounted.point.join(name));
        }
        mounted.umount();
        assert_eq!((fixture.leftovers(), fixture.open_records()), (Vec::new(), Vec::new()), "seed {seed}");
    }
}

#[test]
fn random_histories_of_two_mounts_that_take_turns_are_those_of_a_plain_directory() {
    let fixture = log_fixture!();
    for seed in seeds(8) {
        let mounts = [fixture.mount(), fixture.mount_with(&[&fixture.store], &["--buffer", "4K"])];
        let plain = fixture.stage.dir(&format!("plain{seed}"));
        fs::create_dir(plain.join("dir")).unwrap();
        fs::create_dir(mounts[0].point.join("dir")).unwrap();
        let mut random = Random(seed | 1);
        let mut none = BTreeMap::new();
        let mut history = String::new();
        for number in 0..STEPS {
            let turn = random.below(2) as usize;
            let seed = seed * STEPS + number;
            let got = step(seed, &mounts[turn].point, &mut none, false);
            let _ = writeln!(history, "{number} on {turn}: {got}");
            let expected = step(seed, &plain, &mut none, false);
            assert_eq!(got, expected, "step {number} of seed {}:\n{history}", seed / STEPS);
        }
        for mounted in &mounts {
            assert_eq!(state(&mounted.point).unwrap(), state(&plain).unwrap(), "seed {seed}");
        }
        fs::remove_dir_all(mounts[1].point.join("dir")).unwrap();
        for name in ["a", "b"] {
            let _ = fs::remove_file(mounts[0].point.join(name));
        }
        mounts.into_iter().for_each(|mounted| mounted.umount());
        assert_eq!((fixture.leftovers(), fixture.open_records()), (Vec::new(), Vec::new()), "seed {seed}");
    }
}
