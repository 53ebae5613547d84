//! Properties of the rendered output, for reports of every kind.

use unicode_width::UnicodeWidthStr;

use crate::format::{bytes, count};
use crate::render::chart::{charts, drawings};
use crate::render::example;
use crate::render::operations::csv;
use crate::render::page::html;
use crate::render::picture::png;
use crate::render::terminal::summary;
use crate::report::{AccessMode, NextStep, Rate, Report, SlowDown};

fn all() -> [(&'static str, Report); 4] {
    let empty = Report::default();
    [
        ("maker", example::maker()),
        ("empty", empty),
        ("huge", example::huge()),
        ("hostile", example::hostile()),
    ]
}

#[test]
fn a_summary_fits_a_terminal_of_80_columns() {
    for (what, report) in all() {
        let text = summary(&report, false);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() <= 50, "{what}: {} lines\n{text}", lines.len());
        for line in lines {
            assert!(line.width() <= 80, "{what}: {} columns: {line}", line.width());
        }
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{what}");
        assert!(!text.contains(['\u{202e}', '\u{2066}', '\u{200f}', '\u{2028}']), "{what}");
    }
}

#[test]
fn colour_changes_only_colour() {
    for (what, report) in all() {
        let mut plain = summary(&report, true);
        for code in ["\x1b[1m", "\x1b[2m", "\x1b[0m"] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, summary(&report, false), "{what}");
    }
}

#[test]
fn a_summary_has_the_verdict_the_numbers_and_the_commands() {
    let text = summary(&example::maker(), false);
    let facts = [
        "mpiexec -n 8 maker",
        "on node17, job SLURM_JOB_ID=4711.0",
        "ran 16 min 52 s (measured); 39 min 26 s with strace 6.13 (measured, 2.3 times)",
        "\nAn index of /shared/sw/maker leaves 14,726 of 1,142,781 metadata operations",
        "1,142,781",
        "14,726 (1.3 %)",
        "948 (0.08 %)",
        "483 ",
        "10,454 ",
        "nodes to saturation",
        "5,000",
        "no limit",
        "capacity: 32,000 operations per second",
        "369,764",
        "2.81 GB",
        "RO",
        "RW",
        "861,220 of 1,142,781 metadata calls (75 %) on shared",
        "site_perl/5.16.3: 241,022",
        "bin/perl: 611,004 shared",
        "PERL5LIB: 511,220",
        "8 writers",
        "212 times by one process",
        "11,022 files",
        "\nIndex the tree:\n    quell index /shared/sw/maker -o report/maker.quell\n",
    ];
    for fact in facts {
        assert!(text.contains(fact), "{fact} in\n{text}");
    }
}

#[test]
fn times_are_labelled_as_measured_or_estimated() {
    let mut report = example::maker();
    let joined = |report: &Report| summary(report, false).replace('\n', " ");
    report.tracing.as_mut().unwrap().how = SlowDown::Estimated;
    let estimated = "ran 39 min 26 s with strace 6.13 (measured); about 16 min 52 s without (estimated)";
    assert!(joined(&report).contains(estimated) && html(&report).contains(estimated));
    report.tracing.as_mut().unwrap().how = SlowDown::Unknown;
    let unknown = "without it unknown, --compare measures it";
    assert!(joined(&report).contains(unknown) && html(&report).contains(unknown));
    report.tracing = None;
    let imported = "in the trace, including the tracer&#39;s time";
    assert!(html(&report).contains(imported), "{}", html(&report));
}

#[test]
fn a_command_stands_alone_on_its_lines_and_can_be_pasted() {
    let command = format!(
        "quell run -i /shared/sw.quell -- prog 'two  words' \"and ' \\\" four\" five\\ six {}",
        "--option=value ".repeat(9)
    );
    let step = NextStep { purpose: "Run the program".to_owned(), command: command.trim_end().to_owned() };
    let report = Report { next: vec![step], ..Report::default() };
    let text = summary(&report, false);
    let shown = text.split_once("Run the program:\n").expect("the purpose is in a line of its own").1;
    let joined: Vec<_> = shown.split("\\\n").map(str::trim).collect();
    assert!(joined.len() > 1, "{text}");
    assert_eq!(joined.join(" "), command.trim_end());
    let page = html(&report);
    assert!(page.contains("<p>Run the program</p><pre tabindex=\"0\"><code>quell run"), "{page}");
}

#[test]
fn a_part_of_a_command_is_never_shown() {
    let command = format!("quell index /shared/{}", "long".repeat(30));
    let step = NextStep { purpose: "Index the tree".to_owned(), command };
    let text = summary(&Report { next: vec![step], ..Report::default() }, false);
    assert!(!text.contains("quell index") && text.contains("report.html"), "{text}");
}

#[test]
fn a_report_without_command_is_named_by_its_traces() {
    let report = Report { traces: vec!["a".to_owned(), "b".to_owned()], ..Report::default() };
    assert!(summary(&report, false).starts_with("Profile: 2 traces\n"));
    assert!(html(&report).contains("<h1><code>2 traces</code></h1>"));
}

#[test]
fn every_number_of_the_locations_is_on_the_page() {
    let report = example::maker();
    let page = html(&report);
    for (name, meaning, totals) in report.locations.named() {
        let row = page
            .split_once(&format!("{name} <span>{meaning}</span></th>"))
            .expect("a row for each location")
            .1;
        let row = row.split_once("</tr>").expect("rows end").0;
        let mode = if totals.mode == AccessMode::ReadWrite { "RW" } else { "RO" };
        let numbers = [
            totals.metadata,
            totals.missing,
            totals.data,
            totals.metadata + totals.data,
            totals.bytes_read,
            totals.bytes_written,
            totals.on_shared,
        ];
        for number in [mode.to_owned()].into_iter().chain(numbers.map(count)) {
            assert!(row.contains(&format!(">{number}</td>")), "{name}: {number} in {row}");
        }
    }
    // The sums are in the paper's figure 2.
    for sum in ["257,060", "1,163,711", "1,512,545", "906,327"] {
        assert!(page.contains(&format!(">{sum}</td>")), "{sum}");
    }
    let both: Vec<u64> =
        report.locations.named().iter().map(|(_, _, p)| p.bytes_read + p.bytes_written).collect();
    assert_eq!(both, [1_435_228_808, 2_463_335_142, 2_807_495_139, 68_929_672]);
}

#[test]
fn a_page_has_every_section_and_needs_no_other_file() {
    for (what, report) in all() {
        let page = html(&report);
        assert!(page.len() < 1_000_000, "{what}: {} bytes", page.len());
        assert!(page.starts_with("<!DOCTYPE html>"));
        assert!(page.contains("default-src 'none'; style-src 'unsafe-inline'; img-src data:"));
        for id in [
            "paths",
            "time",
            "locations",
            "programs",
            "searches",
            "patterns",
            "trees",
            "nodes",
            "notes",
            "counted",
        ] {
            assert_eq!(page.matches(&format!("<h2 id=\"{id}\">")).count(), 1, "{what}: {id}");
            assert!(page.contains(&format!("href=\"#{id}\"")), "{what}: {id}");
        }
        // Nothing is fetched and nothing is executed. The only address is the XML namespace of SVG,
        // which is never requested.
        let markup = page.replace("http://www.w3.org/2000/svg", "");
        for reach in ["<script", "<link", "<img", "<iframe", "<object", "@import", "://"] {
            assert!(!markup.contains(reach), "{what}: {reach}");
        }
    }
}

#[test]
fn empty_sections_say_so() {
    let page = html(&Report::default());
    let statements = [
        "No operation reaches a shared file system",
        "The traces have no times",
        "No metadata calls were found",
        "No program",
        "No search",
        "No process read a file several times",
        "No file was written by several",
        "In no directory were many small files created",
        "No tree",
        "No other directory",
        "Not estimated",
        "There are no notes",
        "No trace",
    ];
    for statement in statements {
        assert!(page.contains(statement), "{statement}");
    }
}

#[test]
fn hostile_names_are_escaped() {
    let report = example::hostile();
    let page = html(&report);
    let drawn: String = drawings(&report).into_iter().map(|(_, drawing)| drawing.standalone_svg()).collect();
    for text in [&page, &drawn] {
        for raw in ["<script", "<img", "</title><", "<x-", "<b>", "\x1b", "\0", "\x07", "\r"] {
            assert!(!text.contains(raw), "{raw:?}");
        }
        for hidden in ['\u{202e}', '\u{2066}', '\u{200f}', '\u{feff}', '\u{2028}'] {
            assert!(!text.contains(hidden), "{hidden:?}");
        }
    }
    assert!(page.contains("&#60;script&#62;alert(1)&#60;/script&#62;"));
    assert!(page.contains(r"\u{202e}txt.exe"));
    // Each output is one document: quoted text has not closed an element.
    assert_eq!(page.matches("</html>").count(), 1);
    assert_eq!(
        page.matches("<title>").count(),
        page.matches("</title>").count() - page.matches("<title id").count()
    );
    assert_eq!(page.matches("<style>").count(), page.matches("</style>").count());
    assert_eq!(page.matches("<code>").count(), page.matches("</code>").count());
}

#[test]
fn ids_are_unique_and_references_resolve() {
    let page = html(&example::maker());
    let values = |attribute: &str| -> Vec<String> {
        let begin = format!(" {attribute}=\"");
        let begins = page.split(begin.as_str()).skip(1);
        begins
            .filter_map(|rest| rest.split('"').next())
            .flat_map(|v| v.split(' '))
            .map(str::to_owned)
            .collect()
    };
    let ids = values("id");
    for id in &ids {
        assert_eq!(ids.iter().filter(|other| *other == id).count(), 1, "{id}");
    }
    for reference in
        values("aria-labelledby").into_iter().chain(values("href").iter().map(|r| r[1..].to_owned()))
    {
        assert!(ids.contains(&reference), "{reference}");
    }
    for hatch in page.split("url(#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(ids.iter().any(|id| id == hatch), "{hatch}");
    }
}

#[test]
fn tables_are_accessible() {
    let page = html(&example::maker());
    let tables: Vec<_> =
        page.split("<table").skip(1).filter_map(|rest| rest.split("</table>").next()).collect();
    assert!(tables.len() >= 10);
    for table in tables {
        assert!(table.contains("<caption"), "{table}");
        assert_eq!(table.matches("<th>").count(), 0, "a head without a scope: {table}");
    }
    assert_eq!(page.matches("<h1>").count(), 1);
    assert!(page.contains("<html lang=\"en\">"));
    assert_eq!(page.matches("<svg").count(), page.matches("<desc").count());
}

#[test]
fn pictures_have_the_stated_size() {
    // The other reports differ only in numbers and names; a picture takes half a second without
    // optimisation.
    for (what, report) in [("maker", example::maker()), ("hostile", example::hostile())] {
        let drawn = charts(&report).unwrap();
        let names: Vec<_> = drawn.iter().map(|chart| chart.name).collect();
        assert_eq!(names, ["before-after", "paths", "timeline", "processes", "locations"], "{what}");
        for chart in drawn {
            let number = |name: &str| -> f64 {
                let begin = chart.svg.split_once(&format!(" {name}=\"")).expect("a size").1;
                begin.split('"').next().and_then(|n| n.parse().ok()).expect("a number")
            };
            let picture = resvg::tiny_skia::Pixmap::decode_png(&chart.png).expect("a picture");
            assert_eq!(f64::from(picture.width()), number("width") * 2.0, "{what}: {}", chart.name);
            assert_eq!(f64::from(picture.height()), number("height") * 2.0, "{what}: {}", chart.name);
            // White paper with a non-empty drawing.
            assert!(picture.pixels().iter().any(|p| p.red() < 100), "{what}: {} is empty", chart.name);
            assert!(!chart.title.is_empty() && !chart.description.is_empty());
        }
    }
}

#[test]
fn a_drawing_is_well_formed() {
    for (what, report) in all() {
        for (name, drawing) in drawings(&report) {
            for svg in [drawing.clone().standalone_svg(), drawing.outlined_svg()] {
                assert!(svg.len() < 400_000, "{what}: {name}");
                let read = resvg::usvg::Tree::from_str(&svg, &resvg::usvg::Options::default());
                assert!(read.is_ok(), "{what}: {name}: {:?}", read.err());
            }
        }
    }
}

#[test]
fn a_burst_of_one_step_among_a_hundred_thousand_is_visible() {
    let mut report = example::huge();
    report.metadata_rate.scenarios.direct = Rate { average: 10.0, peak: 100.0, peak_at_s: 0.0 };
    for point in &mut report.rate {
        (point.direct, point.index, point.boot) = (10.0, 0.0, 0.0);
    }
    let drawn = |report: &Report| drawings(report)[2].1.inline_svg();
    let calm = drawn(&report);
    report.rate[67_890].direct = 90.0;
    assert_ne!(drawn(&report), calm);
}

#[test]
fn values_that_are_not_numbers_are_rendered() {
    let mut report = example::maker();
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        report.duration_s = value;
        report.metadata_rate.step_s = value;
        report.metadata_rate.window_s = value;
        report.metadata_rate.scenarios.direct = Rate { average: value, peak: value, peak_at_s: value };
        report.rate.iter_mut().for_each(|point| (point.t, point.direct, point.index) = (value, value, value));
        assert!(!html(&report).contains("NaN"));
        assert!(summary(&report, false).lines().count() <= 50);
        for (name, drawing) in drawings(&report) {
            let svg = drawing.inline_svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
        }
    }
}

#[test]
fn the_same_report_gives_the_same_bytes() {
    for (what, report) in all() {
        let again = report.clone();
        assert_eq!(html(&report), html(&again), "{what}");
        assert_eq!(summary(&report, true), summary(&again, true), "{what}");
        assert_eq!(csv(&report), csv(&again), "{what}");
        for ((name, one), (_, other)) in drawings(&report).into_iter().zip(drawings(&again)) {
            assert_eq!(one.standalone_svg(), other.standalone_svg(), "{what}: {name}");
        }
    }
    let [(name, drawing), ..] = drawings(&example::maker());
    let svg = drawing.outlined_svg();
    assert_eq!(png(name, &svg).unwrap(), png(name, &svg).unwrap());
}

#[test]
fn charts_have_descriptions() {
    let report = example::maker();
    let described = drawings(&report).map(|(_, drawing)| drawing.description);
    for (at, fact) in [
        (0, "without Quell 1,142,781, with an index 14,726, with a boot image 948".to_owned()),
        (1, "/shared/sw/maker/perl5: 470,000 operations (41 %)".to_owned()),
        (2, "without Quell: average 483, peak 10,454".to_owned()),
        (3, "/perl5/bin/perl (4000): 12,000 operations".to_owned()),
        (4, "1,142,781 metadata and 369,764 data calls".to_owned()),
        (4, bytes(2_807_495_139)),
    ] {
        assert!(described[at].contains(&fact), "{fact} in {}", described[at]);
    }
}

#[test]
fn a_peak_is_marked_as_long_as_it_is() {
    let mut report = example::maker();
    let drawn = |report: &Report| drawings(report)[2].1.inline_svg();
    let point = drawn(&report);
    assert!(point.contains("class=\"peak\"") && !point.contains("class=\"stretch\""), "{point}");
    report.metadata_rate.window_s = 600.0;
    let stretch = drawn(&report);
    assert!(!stretch.contains("class=\"peak\"") && stretch.contains("class=\"stretch\""), "{stretch}");
}
