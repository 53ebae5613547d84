//! Properties of the rendered output, for reports of every kind.

use unicode_width::UnicodeWidthStr;

use super::chart::drawings;
use super::picture::png;
use super::words::{bytes, count};
use super::{charts, csv, example, html, summary};
use crate::{AccessMode, Rate, Report};

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
fn a_summary_fits_any_terminal() {
    for (what, report) in all() {
        let text = summary(&report, false);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() <= 25, "{what}: {} lines\n{text}", lines.len());
        for line in lines {
            assert!(line.width() <= 100, "{what}: {} columns: {line}", line.width());
        }
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{what}");
        assert!(!text.contains(['\u{202e}', '\u{2066}', '\u{200f}', '\u{2028}']), "{what}");
    }
}

#[test]
fn colour_adds_nothing_but_colour() {
    for (what, report) in all() {
        let mut plain = summary(&report, true);
        for code in ["\x1b[1m", "\x1b[2m", "\x1b[0m"] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, summary(&report, false), "{what}");
    }
}

#[test]
fn a_summary_tells_what_one_wants_to_know_first() {
    let text = summary(&example::maker(), false);
    let facts = [
        "mpiexec -n 8 maker",
        "39 min 26 s",
        "2.3 times (measured)",
        "1,142,781",
        "369,764",
        "2.81 GB",
        "RO",
        "RW",
        "average 483, peak 10,454",
        "site_perl/5.16.3: 241,022",
        "bin/perl: 801,220",
        "PERL5LIB: 511,220",
        "8 writers",
        "read 212 times over",
        "11,022 files",
        "index 14,726 (1.3 %)",
        "boot image 948",
        "66 saturate",
        "5,000",
        "no limit",
        "capacity 32,000/s",
        "quell index /shared/sw/maker\n",
    ];
    for fact in facts {
        assert!(text.contains(fact), "{fact} in\n{text}");
    }
}

#[test]
fn a_command_that_needs_several_lines_can_still_be_given_to_a_shell() {
    let command = format!(
        "quell run -i /shared/sw.quell -- prog 'two  words' \"and ' \\\" four\" five\\ six {}",
        "--option=value ".repeat(9)
    );
    let report = Report { next: vec![command.trim_end().to_owned()], ..Report::default() };
    let text = summary(&report, false);
    let shown = text.split_once("run next").expect("it is shown").1;
    let joined: Vec<_> = shown.split("\\\n").map(str::trim).collect();
    assert!(joined.len() > 1, "{text}");
    assert_eq!(joined.join(" "), command.trim_end());
}

#[test]
fn a_program_without_commands_is_named_by_its_traces() {
    let report = Report { traces: vec!["a".to_owned(), "b".to_owned()], ..Report::default() };
    assert!(summary(&report, false).starts_with("Profile: 2 traces\n"));
    assert!(html(&report).contains("<h1><code>2 traces</code></h1>"));
}

#[test]
fn every_number_of_the_places_is_on_the_page_as_it_is() {
    let report = example::maker();
    let page = html(&report);
    for (name, meaning, place) in report.places.named() {
        let row =
            page.split_once(&format!("{name} <span>{meaning}</span></th>")).expect("a row for each place").1;
        let row = row.split_once("</tr>").expect("rows end").0;
        let mode = if place.mode == AccessMode::ReadWrite { "RW" } else { "RO" };
        let numbers = [
            place.metadata,
            place.missing,
            place.data,
            place.metadata + place.data,
            place.bytes_read,
            place.bytes_written,
            place.on_shared,
        ];
        for number in [mode.to_owned()].into_iter().chain(numbers.map(count)) {
            assert!(row.contains(&format!(">{number}</td>")), "{name}: {number} in {row}");
        }
    }
    // The sums are those of the paper's figure 2.
    for sum in ["257,060", "1,163,711", "1,512,545", "906,327"] {
        assert!(page.contains(&format!(">{sum}</td>")), "{sum}");
    }
    let both: Vec<u64> =
        report.places.named().iter().map(|(_, _, p)| p.bytes_read + p.bytes_written).collect();
    assert_eq!(both, [1_435_228_808, 2_463_335_142, 2_807_495_139, 68_929_672]);
}

#[test]
fn a_page_has_every_section_and_stands_alone() {
    for (what, report) in all() {
        let page = html(&report);
        assert!(page.len() < 1_000_000, "{what}: {} bytes", page.len());
        assert!(page.starts_with("<!DOCTYPE html>"));
        assert!(page.contains("default-src 'none'; style-src 'unsafe-inline'; img-src data:"));
        for id in [
            "places",
            "time",
            "directories",
            "programs",
            "searches",
            "patterns",
            "trees",
            "remaining",
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
fn what_is_not_there_is_said() {
    let page = html(&Report::default());
    let said = [
        "there is no storm",
        "Nothing is proposed",
        "No calls over time",
        "No metadata calls were found",
        "No program",
        "No search",
        "No file was read again",
        "No file was written by several",
        "No directory got masses",
        "No tree",
        "No other directory",
        "No metadata operations",
        "Not estimated",
        "Nothing was assumed",
        "No trace",
    ];
    for line in said {
        assert!(page.contains(line), "{line}");
    }
}

#[test]
fn hostile_names_stay_text() {
    let report = example::hostile();
    let page = html(&report);
    let drawn: String = drawings(&report).into_iter().map(|(_, drawing)| drawing.alone()).collect();
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
fn every_id_is_there_once_and_every_reference_leads_to_one() {
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
fn tables_can_be_heard() {
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
fn charts_are_pictures_of_the_size_that_they_say() {
    // The other reports differ only in numbers and names; a picture takes half a second without
    // optimisation.
    for (what, report) in [("maker", example::maker()), ("hostile", example::hostile())] {
        let drawn = charts(&report).unwrap();
        let names: Vec<_> = drawn.iter().map(|chart| chart.name).collect();
        assert_eq!(names, ["timeline", "places", "directories", "before-after"], "{what}");
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
            for svg in [drawing.clone().alone(), drawing.alone_in_outlines()] {
                assert!(svg.len() < 400_000, "{what}: {name}");
                let read = resvg::usvg::Tree::from_str(&svg, &resvg::usvg::Options::default());
                assert!(read.is_ok(), "{what}: {name}: {:?}", read.err());
            }
        }
    }
}

#[test]
fn a_burst_of_one_step_is_seen_among_a_hundred_thousand() {
    let mut report = example::huge();
    report.metadata_rate.scenarios.direct = Rate { average: 10.0, peak: 100.0, peak_at_s: 0.0 };
    for point in &mut report.rate {
        (point.metadata, point.index, point.boot) = (10.0, 0.0, 0.0);
    }
    let drawn = |report: &Report| drawings(report)[0].1.within_a_page();
    let calm = drawn(&report);
    report.rate[67_890].metadata = 90.0;
    assert_ne!(drawn(&report), calm);
}

#[test]
fn what_is_no_number_harms_nothing() {
    let mut report = example::maker();
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        report.duration_s = value;
        report.metadata_rate.step_s = value;
        report.metadata_rate.window_s = value;
        report.metadata_rate.scenarios.direct = Rate { average: value, peak: value, peak_at_s: value };
        report
            .rate
            .iter_mut()
            .for_each(|point| (point.t, point.metadata, point.index) = (value, value, value));
        assert!(!html(&report).contains("NaN"));
        assert!(summary(&report, false).lines().count() <= 25);
        for (name, drawing) in drawings(&report) {
            let svg = drawing.within_a_page();
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
            assert_eq!(one.alone(), other.alone(), "{what}: {name}");
        }
    }
    let [(name, drawing), ..] = drawings(&example::maker());
    let svg = drawing.alone_in_outlines();
    assert_eq!(png(name, &svg).unwrap(), png(name, &svg).unwrap());
}

#[test]
fn charts_say_in_words_what_they_show() {
    let report = example::maker();
    let told = drawings(&report).map(|(_, drawing)| drawing.description);
    assert!(told[0].contains("average 483, peak 10,454"), "{}", told[0]);
    assert!(told[1].contains("1,142,781 metadata and 369,764 data calls"), "{}", told[1]);
    assert!(told[1].contains(&bytes(2_807_495_139)), "{}", told[1]);
    assert!(told[2].contains("95 % for missing names"), "{}", told[2]);
    assert!(told[3].contains("direct 1,142,781, index 14,726, boot image 948"), "{}", told[3]);
}

#[test]
fn a_peak_is_marked_as_long_as_it_is() {
    let mut report = example::maker();
    let drawn = |report: &Report| drawings(report)[0].1.within_a_page();
    let point = drawn(&report);
    assert!(point.contains("peak 10,454 at 42 s") && !point.contains("class=\"stretch\""), "{point}");
    report.metadata_rate.window_s = 600.0;
    let stretch = drawn(&report);
    assert!(
        stretch.contains("peak 10,454 over 10 min") && stretch.contains("class=\"stretch\""),
        "{stretch}"
    );
}
