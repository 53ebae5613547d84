//! Ranks of an MPI job write one file in a log mount, directly and through MPI-IO, and read the
//! data of other ranks: on one mount, and on two mounts of one store, as on two nodes.

use std::path::{Path, PathBuf};

use crate::log::{Scene, walk};
use crate::log_scene;
use crate::skip;
use crate::stage::why_no_openmpi;

const PROGRAM: &str = include_str!("log_ranks.c");
const RANKS: usize = 4;
/// The size that the program writes.
const FILE_BYTES: u64 = 8 * RANKS as u64 * 47_008;

/// The two implementations of MPI-IO in OpenMPI.
const WAYS: [&str; 2] = ["ompio", "romio321"];

/// Returns the number of pairs of logs of a file, according to `quell log stat` and the
/// directories.
fn pairs(scene: &Scene, name: &str) -> usize {
    let mut stat = scene.stage.quell();
    stat.args(["log", "stat", "--json"]).arg(&scene.store).arg(name);
    let report = scene.stage.run(&mut stat).expect(0).json();
    assert_eq!((&report["size"], &report["held_bytes"]), (&FILE_BYTES.into(), &FILE_BYTES.into()), "{name}");
    let writers = report["writers"].as_array().unwrap();
    assert!(writers.iter().all(|writer| writer["open"].is_null()), "{name}: {report}");
    let mut found = [0; 2];
    walk(&scene.store.join(format!("{name}.container")), &mut |path| {
        for (count, end) in found.iter_mut().zip(["data", "index"]) {
            *count += usize::from(path.extension().is_some_and(|extension| extension == end));
        }
    });
    assert_eq!(found, [writers.len(); 2], "{name}");
    writers.len()
}

#[test]
fn ranks_write_one_file_and_read_what_the_others_wrote() {
    if let Some(reason) = why_no_openmpi() {
        skip!("{reason}");
    }
    let scene = log_scene!();
    let (source, program) = (scene.stage.file("log_ranks.c", PROGRAM), scene.stage.path("log_ranks"));
    scene.stage.sh("mpicc -O1 -o \"$1\" \"$2\"", &[&program, &source]).expect(0);
    let run = |way: &str, how: &str, paths: [&Path; 2]| {
        let mut command = scene.stage.mpirun(RANKS);
        command.args(["--mca", "io", way]).arg(&program).arg(how).args(paths);
        // mpirun ends its ranks, too, before the test's own time limit.
        command.env("MPIEXEC_TIMEOUT", "60");
        scene.stage.run(&mut command)
    };
    let plain = scene.stage.dir("plain").join("file");
    for way in WAYS {
        let direct = run(way, "collective", [&plain, &plain]);
        if direct.code() != Some(0) {
            skip!("MPI-IO does not work here without Quell either: {}", direct.err);
        }
    }
    let (one, other) = (scene.mount(), scene.mount());
    for way in WAYS {
        for how in ["plain", "independent", "collective", "strided", "sizes", "truncated"] {
            for (mounts, second) in [("one", &one), ("two", &other)] {
                if how == "plain" && way != WAYS[0] {
                    continue; // it does not use MPI-IO
                }
                let name = format!("{way}-{how}-{mounts}");
                let paths = [&*one.point.join(&name), &*second.point.join(&name)];
                let ended = run(way, how, paths).expect(0);
                assert!(
                    ended.text().contains(&format!("{how}: {RANKS} ranks\n")),
                    "{name}: {}",
                    ended.text()
                );
                let pairs = pairs(&scene, &name);
                match how {
                    // MPI-IO chooses the ranks that write for all.
                    "collective" => assert!((1..=RANKS).contains(&pairs), "{name}: {pairs}"),
                    // Ranks that had the file open before set its size, and ended as writers then.
                    "sizes" => assert!((RANKS..=2 * RANKS).contains(&pairs), "{name}: {pairs}"),
                    _ => assert_eq!(pairs, RANKS, "{name}"),
                }
            }
        }
    }
    assert_eq!(scene.open_records(), Vec::<PathBuf>::new());
    one.umount();
    other.umount();
    scene.stage.expect_nothing_left();
}
