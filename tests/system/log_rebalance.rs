//! `quell log rebalance`: stores are added and drained, also during mounts, and every file keeps
//! its content.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log::{CONTAINERS, Fixture};
use crate::log_fixture;
use crate::stage::{Ended, Mounted};
use crate::trees::noise;

const FILES: u64 = 20;

/// Creates further stores next to `Fixture::store`.
fn stores(fixture: &Fixture, count: usize) -> Vec<PathBuf> {
    (0..count).map(|number| fixture.stage.dir(&format!("other{number}"))).collect()
}

#[track_caller]
fn rebalance(fixture: &Fixture, stores: &[&Path], words: &[&dyn AsRef<std::ffi::OsStr>]) -> Ended {
    let named = stores.iter().map(|store| store.display().to_string()).collect::<Vec<_>>().join(",");
    let mut command = fixture.stage.quell();
    command.arg("log").arg("rebalance").arg(named).args(crate::stage::words(words));
    fixture.stage.run(&mut command)
}

fn fill(point: &Path) {
    fs::create_dir_all(point.join("d/e")).unwrap();
    for number in 0..FILES {
        fs::write(path(point, number), noise(40_000, number)).unwrap();
    }
    symlink("d/file0", point.join("link")).unwrap();
    symlink("../file1", point.join("d/up")).unwrap();
}

fn path(point: &Path, number: u64) -> PathBuf {
    point.join(if number.is_multiple_of(3) { "d" } else { "" }).join(format!("file{number}"))
}

#[track_caller]
fn check(point: &Path) {
    for number in 0..FILES {
        assert!(fs::read(path(point, number)).unwrap() == noise(40_000, number), "file{number}");
    }
    assert_eq!(fs::read_link(point.join("link")).unwrap(), Path::new("d/file0"));
    assert!(fs::read(point.join("d/up")).is_ok());
}

fn containers(store: &Path) -> usize {
    let mut count = 0;
    crate::log::walk(store, &mut |path| {
        count += usize::from(path.extension().is_some_and(|e| e == "container"))
    });
    count
}

#[test]
fn stores_are_named_in_any_order_and_none_is_forgotten() {
    let fixture = log_fixture!();
    let others = stores(&fixture, 2);
    let mounted = fixture.mount_with(&[&others[0], &fixture.store], &[]);
    fill(&mounted.point);
    mounted.umount();
    let again = fixture.mount_with(&[&fixture.store, &others[0]], &[]);
    check(&again.point);
    again.umount();
    let point = fixture.point();
    let named = others[0].display().to_string();
    fixture
        .stage
        .run(&mut fixture.command(&[&fixture.store], &[], &point))
        .expect(2)
        .says(&named)
        .says("give all of them");
    let all: [&Path; 3] = [&fixture.store, &others[0], &others[1]];
    fixture.stage.run(&mut fixture.command(&all, &[], &point)).expect(2).says("--add");
    assert_eq!(fs::read_dir(&others[1]).unwrap().count(), 0);
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_store_is_added_and_another_is_drained_while_a_mount_is_at_work() {
    let fixture = log_fixture!();
    let others = stores(&fixture, 2);
    let mounted = fixture.mount_with(&[&fixture.store], CONTAINERS);
    fill(&mounted.point);
    mounted.umount();
    let (a, b) = (&fixture.store as &Path, &others[0] as &Path);
    let printed = rebalance(&fixture, &[a], &[&"--add", &b, &"--dry-run", &"--json"]).expect(0).json();
    assert!(printed["moved"].as_u64().unwrap() > 0, "{printed}");
    assert_eq!(fs::read_dir(b).unwrap().count(), 0);
    let printed = rebalance(&fixture, &[a], &[&"--add", &b, &"--json", &"-j", &"3"]).expect(0).json();
    let moved = printed["moved"].as_u64().unwrap();
    assert!(moved > 0 && moved < FILES && printed["complete"] == true, "{printed}");
    assert_eq!((containers(a) + containers(b), containers(b)), (FILES as usize, moved as usize));
    let running: Mounted<'_> = fixture.mount_with(&[b, a], &[]);
    check(&running.point);
    // Files with an open writer stay until they are closed.
    let open = (0..FILES).map(|n| fs::File::options().write(true).open(path(&running.point, n)).unwrap());
    let written: Vec<_> = open.collect();
    for (number, file) in written.iter().enumerate() {
        file.write_all_at(&noise(10, number as u64), 0).unwrap();
        file.sync_all().unwrap();
    }
    rebalance(&fixture, &[a, b], &[&"--drain", &b]).expect(1).says("is being written");
    drop(written);
    check_with_head(&running.point);
    let printed = rebalance(&fixture, &[a, b], &[&"--drain", &b, &"--json"]).expect(0).json();
    assert_eq!(printed["complete"], true);
    assert_eq!(containers(b), 0);
    // The mount that was started before continues, and its new files are in the remaining store.
    check_with_head(&running.point);
    fs::write(running.point.join("d/new"), "new").unwrap();
    fs::create_dir(running.point.join("dir")).unwrap();
    for number in 0..10 {
        fs::write(running.point.join(format!("dir/new{number}")), "new").unwrap();
    }
    assert_eq!(containers(b), 0);
    running.umount();
    fs::remove_dir_all(b).unwrap();
    let alone = fixture.mount();
    check_with_head(&alone.point);
    assert_eq!(fs::read_to_string(alone.point.join("dir/new7")).unwrap(), "new");
    alone.umount();
    fixture.stage.expect_nothing_left();
}

/// Checks the files as `check` does, after their first bytes were rewritten with the same content.
#[track_caller]
fn check_with_head(point: &Path) {
    for number in 0..FILES {
        let bytes = fs::read(path(point, number)).unwrap();
        assert!(
            bytes[..10] == noise(10, number) && bytes[10..] == noise(40_000, number)[10..],
            "file{number}"
        );
    }
    assert_eq!(fs::read_link(point.join("link")).unwrap(), Path::new("d/file0"));
}

#[test]
fn a_mount_that_runs_uses_a_store_that_is_added() {
    let fixture = log_fixture!();
    let others = stores(&fixture, 2);
    let (a, b, c) = (&fixture.store as &Path, &others[0] as &Path, &others[1] as &Path);
    let running = fixture.mount_with(&[&fixture.store], CONTAINERS);
    fill(&running.point);
    let read = fs::File::open(path(&running.point, 1)).unwrap();
    // A reader looks up all names and lists the directory continuously: at no moment is a file
    // missing, or can another one be created under its name.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for number in 0..FILES {
                    let path = path(&running.point, number);
                    assert_eq!(fs::metadata(&path).unwrap().len(), 40_000, "{}", path.display());
                    let made = fs::File::create_new(&path).unwrap_err();
                    assert_eq!(made.kind(), std::io::ErrorKind::AlreadyExists, "{}", path.display());
                }
                assert!(fs::read_dir(running.point.join("d")).unwrap().count() >= FILES.div_ceil(3) as usize);
            }
        });
        for (known, added) in [(&[a][..], b), (&[a, b], c)] {
            let printed = rebalance(&fixture, known, &[&"--add", &added, &"--json"]).expect(0).json();
            assert!(printed["moved"].as_u64().unwrap() > 0 && printed["complete"] == true, "{printed}");
        }
        is_over.store(true, Ordering::Relaxed);
        looking.join().unwrap();
    });
    check(&running.point);
    drop(read);
    for number in 0..FILES {
        fs::write(running.point.join(format!("d/e/new{number}")), noise(100, number)).unwrap();
    }
    assert!(containers(c) > 0 && containers(b) > 0);
    assert_eq!(containers(a) + containers(b) + containers(c), 2 * FILES as usize);
    let fresh = fixture.mount_with(&[c, a, b], &[]);
    check(&fresh.point);
    for number in 0..FILES {
        assert!(fs::read(fresh.point.join(format!("d/e/new{number}"))).unwrap() == noise(100, number));
        fs::remove_file(running.point.join(format!("d/e/new{number}"))).unwrap();
    }
    fs::rename(running.point.join("d/e"), running.point.join("e")).unwrap();
    fs::remove_dir(fresh.point.join("e")).unwrap();
    fresh.umount();
    running.umount();
    fixture
        .stage
        .run(fixture.stage.quell().args(["log", "fsck"]).arg(format!(
            "{},{},{}",
            a.display(),
            b.display(),
            c.display()
        )))
        .expect(0);
    fixture.stage.expect_nothing_left();
}

#[test]
fn a_store_that_a_running_mount_cannot_reach_is_an_error_and_hides_nothing() {
    let fixture = log_fixture!();
    let others = stores(&fixture, 1);
    let (a, b) = (&fixture.store as &Path, &others[0] as &Path);
    let running = fixture.mount_with(&[&fixture.store], CONTAINERS);
    fill(&running.point);
    rebalance(&fixture, &[a], &[&"--add", &b]).expect(0);
    let away = b.with_extension("away");
    fs::rename(b, &away).unwrap();
    let (mut found, mut refused) = (0, 0);
    for number in 0..FILES {
        match fs::read(path(&running.point, number)) {
            Ok(bytes) => found += usize::from(bytes == noise(40_000, number)),
            // ENXIO, because ENOENT would mean that the file does not exist.
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(6), "{error}");
                refused += 1;
            }
        }
    }
    assert_eq!(found + refused, FILES as usize);
    assert!(refused > 0);
    assert_eq!(fs::write(running.point.join("new"), "new").unwrap_err().raw_os_error(), Some(6));
    assert_eq!(fs::metadata(running.point.join("nothing")).unwrap_err().raw_os_error(), Some(6));
    fs::rename(&away, b).unwrap();
    check(&running.point);
    assert_eq!(fs::metadata(running.point.join("nothing")).unwrap_err().raw_os_error(), Some(2));
    fs::write(running.point.join("new"), "new").unwrap();
    running.umount();
    fixture.stage.expect_nothing_left();
}

#[test]
fn the_first_store_may_go_as_well() {
    let fixture = log_fixture!();
    let others = stores(&fixture, 1);
    let (a, b) = (&fixture.store as &Path, &others[0] as &Path);
    let mounted = fixture.mount_with(&[a, b], &[]);
    fill(&mounted.point);
    mounted.umount();
    let ended = rebalance(&fixture, &[a, b], &[&"--drain", &a]).expect(0);
    assert!(ended.text().contains("no longer a store"), "{}", ended.text());
    assert_eq!(containers(a), 0);
    rebalance(&fixture, &[b], &[&"--drain", &b]).expect(2).says("no store would be left");
    rebalance(&fixture, &[b], &[&"--drain", &a]).expect(2).says("already drained");
    fs::remove_dir_all(a).unwrap();
    let left = fixture.mount_with(&[b], &[]);
    check(&left.point);
    left.umount();
    fixture.stage.run(fixture.stage.quell().args(["log", "fsck"]).arg(b)).expect(0);
    fixture.stage.expect_nothing_left();
}
