//! Ranks of a real MPI job write one file of a log mount, plainly and through MPI-IO, and read what the others wrote: on
//! one mount, and on two of one store as on two nodes.

use std::path::{Path, PathBuf};

use crate::log::{Scene, walk};
use crate::log_scene;
use crate::skip;
use crate::stage::why_no_openmpi;

const PROGRAM: &str = include_str!("log_ranks.c");
const RANKS: usize = 4;
/// That of the program.
const FILE_BYTES: u64 = 8 * RANKS as u64 * 47_008;

/// Both implementations of MPI-IO that OpenMPI has.
const WAYS: [&str; 2] = ["ompio", "romio321"];

/// Pairs of logs that the store has of a file, as `quell log stat` and the directories say it.
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
        // Ends its ranks as well, before we would lose patience.
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
                    continue; // it asks for no MPI-IO
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
                    // MPI-IO chooses which ranks write for all.
                    "collective" => assert!((1..=RANKS).contains(&pairs), "{name}: {pairs}"),
                    // Room was made by ranks that had the file open before, and ended then as writers.
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
