//! Parses the user of an option.

/// Returns the user id: a number, or a name in the system's user databases.
pub fn parse(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    quell_supervisor::user_id(text).ok_or_else(|| "no user has this name".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_names_and_numbers() {
        assert_eq!((parse("0"), parse("root"), parse("4000000")), (Ok(0), Ok(0), Ok(4_000_000)));
        assert!(parse("no such user").is_err() && parse("").is_err() && parse("-u").is_err());
    }
}
