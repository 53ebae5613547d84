//! The names of the objects.

/// Largest length of the name of a log.
const LOG_NAME_BYTES_MAX: usize = 64;

/// Returns whether a text can be the name of a log.
pub(crate) fn is_log_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=LOG_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(valid)
}

pub(crate) fn head(name: &str) -> String {
    format!("{name}.head")
}

pub(crate) fn server(name: &str) -> String {
    format!("{name}.server")
}

pub(crate) fn log_object(name: &str, epoch: u64, number: u64) -> String {
    format!("{name}.log.{epoch:016x}.{number:016x}")
}

pub(crate) fn piece(name: &str, epoch: u64, number: u64, piece: u32) -> String {
    format!("{name}.checkpoint.{epoch:016x}.{number:016x}.{piece:08x}")
}

pub(crate) fn extent(name: &str, number: u64, piece: u32) -> String {
    format!("{name}.extent.{number:016x}.{piece:02x}")
}

/// The fields of the name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParsedName {
    LogObject { epoch: u64, number: u64 },
    Piece { epoch: u64, number: u64, piece: u32 },
    Extent { number: u64, piece: u32 },
}

/// Returns the fields of the name of an object, or `None` for other names.
pub(crate) fn parse(name: &str, object: &str) -> Option<ParsedName> {
    let rest = object.strip_prefix(name)?.strip_prefix('.')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let fields: Vec<&str> = rest.split('.').collect();
    let (part, again) = match *fields {
        ["log", epoch, count] => {
            let (epoch, number) = (number(epoch)?, number(count)?);
            (ParsedName::LogObject { epoch, number }, log_object(name, epoch, number))
        }
        ["checkpoint", epoch, count, piece_number] => {
            let (epoch, number) = (number(epoch)?, number(count)?);
            let piece_number = u32::from_str_radix(piece_number, 16).ok()?;
            let part = ParsedName::Piece { epoch, number, piece: piece_number };
            (part, piece(name, epoch, number, piece_number))
        }
        ["extent", count, piece_number] => {
            let (number, piece) = (number(count)?, u32::from_str_radix(piece_number, 16).ok()?);
            (ParsedName::Extent { number, piece }, extent(name, number, piece))
        }
        _ => return None,
    };
    (again == object).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_as_they_were_made() {
        let (log, checkpoint) = (log_object("a", 1, 0x2f), piece("a", 1, 2, 3));
        assert_eq!(log, "a.log.0000000000000001.000000000000002f");
        assert_eq!(parse("a", &log), Some(ParsedName::LogObject { epoch: 1, number: 0x2f }));
        assert_eq!(parse("a", &checkpoint), Some(ParsedName::Piece { epoch: 1, number: 2, piece: 3 }));
        assert_eq!(parse("a", &extent("a", 0xe, 15)), Some(ParsedName::Extent { number: 0xe, piece: 15 }));
        for other in ["a.head", "b.log.0000000000000001.000000000000002f", "a.log.1.2f", "a.log.+1.2"] {
            assert_eq!(parse("a", other), None, "{other}");
        }
    }
}
