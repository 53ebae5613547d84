//! The commands that `quell profile` prints, for programs of several languages on a MooseFS: they
//! are executed as printed, and the operations of the client are compared with those of trees that
//! were chosen by hand.
//!
//! Needs root, for the network namespaces of `testbed/moosefs`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::profile_moosefs::measure;
use crate::skip;
use crate::stage::{Stage, has, is_root, quell, views, words};
use crate::testbed::Testbed;

/// The operations with the printed commands are at most this percentage of the operations with the
/// trees chosen by hand.
const PER_CENT_MAX: u64 = 110;
/// Allowed difference for each tree: the sample check looks up names of any depth, and directories
/// are looked up again after a second.
const FEW: u64 = 20;

/// A program and the software that it uses.
struct Program {
    name: &'static str,
    /// A file without which the program cannot be tested, and its package.
    needs: (&'static str, &'static str),
    /// A shell script that installs the software in the directory `$1`.
    install: &'static str,
    /// A shell script that runs the program from the directory `$1`.
    run: &'static str,
    /// The trees that a user who knows the program chooses.
    by_hand: &'static [&'static str],
    /// Whether the program opens so many small files that packing them is proposed.
    packs_small_files: bool,
}

const PROGRAMS: [Program; 6] = [
    Program {
        name: "node",
        needs: ("/usr/bin/npm", "npm"),
        // The directory of npm with its modules, from the package of Debian or of Node.js.
        install: r#"mkdir -p "$1/app/node_modules" && cp -RL "$(dirname "$(dirname "$(readlink -f /usr/bin/npm)")")" "$1/app/node_modules/npm" &&
            echo '{"name": "app"}' >"$1/app/package.json" &&
            for d in /usr/share/nodejs; do test ! -d $d || cp -RL $d/. "$1/app/node_modules/"; done"#,
        run: r#"node -e 'const {createRequire} = require("module"), fs = require("fs");
            const modules = process.argv[1] + "/app/node_modules", npm = modules + "/npm", load = createRequire(npm + "/index.js");
            let loaded = 0;
            for (const directory of [npm + "/node_modules", npm + "/lib/commands"])
                for (const name of fs.existsSync(directory) ? fs.readdirSync(directory).sort() : [])
                    try { load(directory + "/" + name); loaded++ } catch (e) {}
            console.log(loaded > 20)' "$1""#,
        by_hand: &["app"],
        packs_small_files: true,
    },
    Program {
        name: "R",
        needs: ("/usr/lib/R/site-library/dplyr", "r-cran-dplyr"),
        install: r#"mkdir -p "$1/library" && cp -RL /usr/lib/R/site-library/. /usr/lib/R/library/. "$1/library""#,
        run: r#"R_LIBS="$1/library" Rscript -e 'suppressMessages(library(dplyr)); cat(nrow(filter(mtcars, mpg > 20)), "\n")'"#,
        by_hand: &["library"],
        packs_small_files: false,
    },
    Program {
        name: "Java",
        needs: ("/usr/bin/jar", "default-jdk-headless"),
        install: r#"set -e; mkdir -p "$1/service/archives" "$1/source"; cd "$1/source"
            for n in $(seq 40); do echo "public class Part$n { public static int value() { return $n; } }" >Part$n.java; done
            { echo 'public class Main { public static void main(String[] a) { int sum = 0;'
              for n in $(seq 40); do echo "sum += Part$n.value();"; done
              echo 'System.out.println(sum); } }'; } >Main.java
            javac -d . *.java; for n in $(seq 40); do jar cf "../service/archives/part$n.jar" Part$n.class; done
            jar cf ../service/archives/main.jar Main.class; cd ..; rm -r source"#,
        // The class path of an application server is in the order of its dependencies.
        run: r#"p=; for n in $(seq 40 -1 1); do p="$p$1/service/archives/part$n.jar:"; done
            java -cp "$p$1/service/archives/main.jar" Main"#,
        by_hand: &["service/archives"],
        packs_small_files: false,
    },
    Program {
        name: "Perl",
        needs: ("/usr/share/perl5/Bio/SeqIO.pm", "bioperl"),
        install: r#"mkdir -p "$1/perl" && cp -R /usr/share/perl5/Bio "$1/perl""#,
        run: r#"PERL5LIB="$1/perl" perl -e 'use Bio::SeqIO; use Bio::SearchIO; use Bio::AlignIO; use Bio::TreeIO; print "loaded\n"'"#,
        by_hand: &["perl"],
        packs_small_files: false,
    },
    Program {
        name: "Ruby",
        needs: ("/usr/lib/ruby/vendor_ruby", "ruby"),
        // Some of its links lead to fonts that need not be installed.
        install: r#"mkdir -p "$1"; cp -RL /usr/lib/ruby "$1/ruby" 2>/dev/null; mv "$1"/ruby/[0-9]*.[0-9]* "$1/ruby/standard""#,
        run: r#"RUBYLIB="$1/ruby/standard:$1/ruby/vendor_ruby" /usr/bin/ruby -e 'require "csv"; require "net/http"; require "rdoc"; puts RDoc.name'"#,
        by_hand: &["ruby/standard"],
        packs_small_files: false,
    },
    Program {
        name: "C++",
        needs: ("/usr/include/c++", "g++"),
        // Two include directories that are not beside one another.
        install: r#"v=$(g++ -dumpversion) && mkdir -p "$1/compilers/gcc/include" "$1/libraries/include" &&
            cp -RL "/usr/include/c++/$v/." "$1/compilers/gcc/include" &&
            cp -RL "/usr/include/$(gcc -print-multiarch)/c++/$v/." "$1/compilers/gcc/include" &&
            for n in $(seq 40); do printf '#pragma once\n#include <vector>\n#include <part%s.hpp>\n' $((n + 1)); done |
                awk -v d="$1/libraries/include" '{ f = d "/part" int((NR - 1) / 3) + 1 ".hpp"; print >f }' &&
            echo '#pragma once' >"$1/libraries/include/part41.hpp""#,
        run: r#"printf '#include <part1.hpp>\n#include <regex>\n#include <iostream>\n#include <map>\n#include <filesystem>\n' |
            g++ -M -x c++ -nostdinc++ -I "$1/libraries/include" -isystem "$1/compilers/gcc/include" - | wc -l"#,
        by_hand: &["compilers/gcc/include", "libraries/include"],
        packs_small_files: true,
    },
];

fn quell_path() -> OsString {
    let mut path = quell().parent().unwrap().as_os_str().to_owned();
    path.push(":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    path
}

/// Follows the printed commands for one of the programs.
#[track_caller]
fn follow(name: &str) {
    if !is_root() || !has("mfsmaster") {
        skip!("a MooseFS in network namespaces needs root and Debian's moosefs packages");
    }
    if !views().contains(&"overlay") {
        skip!("no overlay view");
    }
    let program = PROGRAMS.iter().find(|program| program.name == name).expect("a program of the list");
    let (file, package) = program.needs;
    if !Path::new(file).exists() {
        skip!("{name} needs {file} ({package})");
    }
    let stage = Stage::new();
    let testbed = Testbed::start(&stage);
    expect_good_advice(&stage, &testbed, program);
    drop(testbed);
    stage.expect_nothing_left();
}

#[test]
fn printed_commands_are_as_good_as_by_hand_for_node() {
    follow("node");
}

#[test]
fn printed_commands_are_as_good_as_by_hand_for_r() {
    follow("R");
}

#[test]
fn printed_commands_are_as_good_as_by_hand_for_java() {
    follow("Java");
}

#[test]
fn printed_commands_are_as_good_as_by_hand_for_perl() {
    follow("Perl");
}

#[test]
fn printed_commands_are_as_good_as_by_hand_for_ruby() {
    follow("Ruby");
}

#[test]
fn printed_commands_are_as_good_as_by_hand_for_cxx() {
    follow("C++");
}

#[track_caller]
fn expect_good_advice(stage: &Stage, testbed: &Testbed, program: &Program) {
    let Program { name, by_hand, .. } = program;
    let directory = Path::new("site/software").join(name);
    stage.sh(program.install, &[&testbed.node("1").join(&directory)]).expect(0);
    let software = testbed.node("2").join(&directory);
    let command = words(&[&"sh", &"-c", &program.run, &"sh", &software]);
    let in_environment = |mut command: Command| {
        command.env("PATH", quell_path()).current_dir("/");
        command
    };
    let shell = |line: &str| {
        let mut shell = in_environment(stage.command("sh"));
        shell.args(["-c", line]);
        shell
    };
    let covered = |options: &[OsString]| {
        let mut run = in_environment(stage.quell());
        run.args(["run", "-q", "--strict"]).args(options).arg("--").args(&command);
        run
    };
    let direct = {
        let mut direct = in_environment(stage.command(&command[0]));
        direct.args(&command[1..]);
        measure(testbed, "2", stage, &mut direct)
    };
    let report = testbed.node("2").join("reports").join(name);
    fs::create_dir_all(report.parent().unwrap()).unwrap();
    let mut profile = in_environment(stage.quell());
    profile.args(["profile", "-q", "-o"]).arg(&report).arg("--").args(&command);
    stage.run(&mut profile).expect(0);
    let text = fs::read(report.join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let trees: Vec<&str> =
        report["trees"].as_array().unwrap().iter().map(|tree| tree["path"].as_str().unwrap()).collect();
    assert!(trees.len() <= by_hand.len(), "{name}: {trees:?}");
    println!("{name}: {} operations; proposed: {trees:?}", direct.operations);

    // The commands, in their order.
    let mut runs: Vec<(String, u64)> = Vec::new();
    let mut packs = false;
    for step in report["next"].as_array().unwrap() {
        let line = step["command"].as_str().unwrap();
        packs |= line.contains("record --small 16K");
        if line.starts_with("quell run") {
            let measured = measure(testbed, "2", stage, &mut shell(line));
            assert_eq!(measured.ended.text(), direct.ended.text(), "{name}: {line}");
            let options = line.split(" -- ").next().unwrap().to_owned();
            println!("{name}: {} operations: {options}", measured.operations);
            runs.push((options, measured.operations));
        } else if !line.starts_with("quell probe") {
            stage.run(&mut shell(line)).expect(0);
        }
    }
    assert!(runs[0].0.contains(" -b "), "{name}: the boot image is the first proposal: {runs:?}");
    assert_eq!(packs, program.packs_small_files, "{name}: {}", report["next"]);

    // The same run with the trees chosen by hand.
    let mut options: Vec<OsString> = Vec::new();
    for (number, tree) in by_hand.iter().enumerate() {
        let at = |end: &str| -> PathBuf {
            testbed.node("2").join("reports").join(format!("{name}-by-hand-{number}.{end}"))
        };
        let (index, image) = (at("quell"), at("boot"));
        let mut build = in_environment(stage.quell());
        stage.run(build.args(["index", "-q"]).arg(software.join(tree)).arg("-o").arg(&index)).expect(0);
        let mut record = in_environment(stage.quell());
        record.args(["record", "-q", "-i"]).arg(&index).arg("-o").arg(&image).arg("--").args(&command);
        stage.run(&mut record).expect(0);
        options.extend(words(&[&"-i", &index, &"-b", &image]));
    }
    let few = FEW * by_hand.len() as u64;
    for (check, printed) in
        [("auto", runs[0].1), ("sample", runs.iter().map(|(_, operations)| *operations).min().unwrap())]
    {
        let mut options = options.clone();
        options.extend(words(&[&"--check", &check]));
        let measured = measure(testbed, "2", stage, &mut covered(&options));
        assert_eq!(measured.ended.text(), direct.ended.text(), "{name}");
        println!("{name}: {} operations by hand, --check {check}", measured.operations);
        let limit = (measured.operations * PER_CENT_MAX / 100).max(measured.operations + few);
        assert!(
            printed <= limit,
            "{name}, --check {check}: {printed} operations as printed, {} by hand: {runs:?}",
            measured.operations
        );
        assert!(check != "sample" || printed < direct.operations / 4, "{name}: {printed} operations");
    }
}
