//! `quell log rebalance`: stores come and go, also while mounts are at work, and every file stays what it is.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use crate::log::Scene;
use crate::log_scene;
use crate::stage::{Ended, Mounted};
use crate::trees::noise;

const FILES: u64 = 20;

/// The other stores beside `Scene::store`.
fn stores(scene: &Scene, count: usize) -> Vec<PathBuf> {
    (0..count).map(|number| scene.stage.dir(&format!("other{number}"))).collect()
}

#[track_caller]
fn rebalance(scene: &Scene, stores: &[&Path], words: &[&dyn AsRef<std::ffi::OsStr>]) -> Ended {
    let named = stores.iter().map(|store| store.display().to_string()).collect::<Vec<_>>().join(",");
    let mut command = scene.stage.quell();
    command.arg("log").arg("rebalance").arg(named).args(crate::stage::words(words));
    scene.stage.run(&mut command)
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
    let scene = log_scene!();
    let others = stores(&scene, 2);
    let mounted = scene.mount_with(&[&others[0], &scene.store], &[]);
    fill(&mounted.point);
    mounted.umount();
    let again = scene.mount_with(&[&scene.store, &others[0]], &[]);
    check(&again.point);
    again.umount();
    let point = scene.point();
    let named = others[0].display().to_string();
    scene
        .stage
        .run(&mut scene.command(&[&scene.store], &[], &point))
        .expect(2)
        .says(&named)
        .says("name them all");
    let all: [&Path; 3] = [&scene.store, &others[0], &others[1]];
    scene.stage.run(&mut scene.command(&all, &[], &point)).expect(2).says("--add");
    assert_eq!(fs::read_dir(&others[1]).unwrap().count(), 0);
    scene.stage.expect_nothing_left();
}

#[test]
fn a_store_is_added_and_another_is_drained_while_a_mount_is_at_work() {
    let scene = log_scene!();
    let others = stores(&scene, 2);
    let mounted = scene.mount();
    fill(&mounted.point);
    mounted.umount();
    let (a, b) = (&scene.store as &Path, &others[0] as &Path);
    let told = rebalance(&scene, &[a], &[&"--add", &b, &"--dry-run", &"--json"]).expect(0).json();
    assert!(told["moved"].as_u64().unwrap() > 0, "{told}");
    assert_eq!(fs::read_dir(b).unwrap().count(), 0);
    let told = rebalance(&scene, &[a], &[&"--add", &b, &"--json", &"-j", &"3"]).expect(0).json();
    let moved = told["moved"].as_u64().unwrap();
    assert!(moved > 0 && moved < FILES && told["complete"] == true, "{told}");
    assert_eq!((containers(a) + containers(b), containers(b)), (FILES as usize, moved as usize));
    let running: Mounted<'_> = scene.mount_with(&[b, a], &[]);
    check(&running.point);
    // Somebody writes: his file stays until he has closed it.
    let open = (0..FILES).map(|n| fs::File::options().write(true).open(path(&running.point, n)).unwrap());
    let written: Vec<_> = open.collect();
    for (number, file) in written.iter().enumerate() {
        file.write_all_at(&noise(10, number as u64), 0).unwrap();
        file.sync_all().unwrap();
    }
    rebalance(&scene, &[a, b], &[&"--drain", &b]).expect(1).says("is being written");
    drop(written);
    check_with_head(&running.point);
    let told = rebalance(&scene, &[a, b], &[&"--drain", &b, &"--json"]).expect(0).json();
    assert_eq!(told["complete"], true);
    assert_eq!(containers(b), 0);
    // The mount that began before goes on, and what it makes is in the store that stays.
    check_with_head(&running.point);
    fs::write(running.point.join("d/new"), "new").unwrap();
    fs::create_dir(running.point.join("dir")).unwrap();
    for number in 0..10 {
        fs::write(running.point.join(format!("dir/new{number}")), "new").unwrap();
    }
    assert_eq!(containers(b), 0);
    running.umount();
    fs::remove_dir_all(b).unwrap();
    let alone = scene.mount();
    check_with_head(&alone.point);
    assert_eq!(fs::read_to_string(alone.point.join("dir/new7")).unwrap(), "new");
    alone.umount();
    scene.stage.expect_nothing_left();
}

/// As `check`; the first bytes were written once more with what they are.
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
fn the_first_store_may_go_as_well() {
    let scene = log_scene!();
    let others = stores(&scene, 1);
    let (a, b) = (&scene.store as &Path, &others[0] as &Path);
    let mounted = scene.mount_with(&[a, b], &[]);
    fill(&mounted.point);
    mounted.umount();
    let ended = rebalance(&scene, &[a, b], &[&"--drain", &a]).expect(0);
    assert!(ended.text().contains("none of the stores any more"), "{}", ended.text());
    assert_eq!(containers(a), 0);
    rebalance(&scene, &[b], &[&"--drain", &b]).expect(2).says("no store would be left");
    rebalance(&scene, &[b], &[&"--drain", &a]).expect(2).says("drained already");
    fs::remove_dir_all(a).unwrap();
    let left = scene.mount_with(&[b], &[]);
    check(&left.point);
    left.umount();
    scene.stage.run(scene.stage.quell().args(["log", "fsck"]).arg(b)).expect(0);
    scene.stage.expect_nothing_left();
}
