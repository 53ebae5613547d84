//! The table of operations as CSV, for spreadsheets and scripts.

use serde::Serialize;

use crate::{Operation, Report};

/// The fields of `Operation`, which are its columns.
const COLUMNS: [&str; 9] =
    ["place", "class", "call", "calls", "failed", "missing", "bytes_read", "bytes_written", "seconds"];

/// `operations.csv`: a header and a row for each kind of call in each place, as RFC 4180 has it.
pub fn csv(report: &Report) -> String {
    // The header is written by hand so that it is there without rows, too.
    let mut table = csv::WriterBuilder::new()
        .has_headers(false)
        .terminator(csv::Terminator::CRLF)
        .from_writer(Vec::new());
    // Writing to memory fails for nobody; a row is three words and six numbers, which every format has room for.
    let written = "a row of words and numbers goes to memory";
    table.write_record(COLUMNS).expect(written);
    for operation in &report.operations {
        table.serialize(harmless(operation)).expect(written);
    }
    String::from_utf8(table.into_inner().expect(written)).expect("words and numbers are UTF-8")
}

/// A spreadsheet takes a cell that begins with one of these for a formula. The three words come from our own tables
/// when a trace was read, where none does; a report that was read back from a file is somebody else's, and may have
/// any words.
fn harmless(operation: &Operation) -> impl Serialize {
    let word = |text: &str| match text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) {
        true => format!("'{text}"),
        false => text.to_owned(),
    };
    let Operation { place, class, call, .. } = operation;
    Operation { place: word(place), class: word(class), call: word(call), ..operation.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_a_column_in_its_order() {
        let mut table = csv::Writer::from_writer(Vec::new());
        table.serialize(Operation::default()).unwrap();
        let text = String::from_utf8(table.into_inner().unwrap()).unwrap();
        assert_eq!(text.lines().next(), Some(COLUMNS.join(",").as_str()));
    }

    #[test]
    fn a_report_without_calls_has_a_header() {
        assert_eq!(csv(&Report::default()), COLUMNS.join(",") + "\r\n");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut report = super::super::example::maker();
        report.operations[0].call = "a \"call\", with\nall".to_owned();
        let text = csv(&report);
        let mut table = csv::Reader::from_reader(text.as_bytes());
        let rows: Vec<Operation> = table.deserialize().map(Result::unwrap).collect();
        assert_eq!(rows, report.operations);
    }

    #[test]
    fn no_cell_is_a_formula() {
        for begin in ["=", "+", "-", "@", "\t", "\r"] {
            let call = format!("{begin}cmd()");
            let operation = Operation { call: call.clone(), place: call, ..Operation::default() };
            let text = csv(&Report { operations: vec![operation], ..Report::default() });
            let mut table = csv::Reader::from_reader(text.as_bytes());
            let row = table.records().next().unwrap().unwrap();
            assert!(row[0].starts_with('\'') && row[2].starts_with('\''), "{text:?}");
        }
    }
}
