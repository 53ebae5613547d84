//! The table of operations as CSV, for spreadsheets and scripts.

use serde::Serialize;

use crate::report::{Operation, Report};

/// The fields of `Operation`, which are the columns.
const COLUMNS: [&str; 9] =
    ["location", "class", "call", "calls", "failed", "missing", "bytes_read", "bytes_written", "seconds"];

/// Returns `operations.csv` as specified by RFC 4180: a header, and a row for each kind of call in
/// each location.
pub fn csv(report: &Report) -> String {
    // The header is written separately, so that it exists even without rows.
    let mut table = csv::WriterBuilder::new()
        .has_headers(false)
        .terminator(csv::Terminator::CRLF)
        .from_writer(Vec::new());
    // Writing to memory does not fail, and a row has only three words and six numbers, which can
    // always be encoded.
    let written = "writing words and numbers to memory cannot fail";
    table.write_record(COLUMNS).expect(written);
    for operation in &report.operations {
        table.serialize(escape_formulas(operation)).expect(written);
    }
    String::from_utf8(table.into_inner().expect(written)).expect("words and numbers are UTF-8")
}

/// Returns an operation that is safe in a spreadsheet, which interprets a cell with one of these
/// first characters as a formula. After reading a trace, the three words come from constant tables
/// and do not begin like this; a report that was read from a file may have any words.
fn escape_formulas(operation: &Operation) -> impl Serialize {
    let word = |text: &str| match text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) {
        true => format!("'{text}"),
        false => text.to_owned(),
    };
    let Operation { location, class, call, .. } = operation;
    Operation { location: word(location), class: word(class), call: word(call), ..operation.clone() }
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
    fn rows_are_read_back() {
        let mut report = crate::render::example::maker();
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
            let operation = Operation { call: call.clone(), location: call, ..Operation::default() };
            let text = csv(&Report { operations: vec![operation], ..Report::default() });
            let mut table = csv::Reader::from_reader(text.as_bytes());
            let row = table.records().next().unwrap().unwrap();
            assert!(row[0].starts_with('\'') && row[2].starts_with('\''), "{text:?}");
        }
    }
}
