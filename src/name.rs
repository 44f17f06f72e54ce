//! The grammar of topic names: non-empty tokens separated by dots, none of them a wildcard.

use crate::error::{NameError, NameErrorReason};

/// Checks a topic's name: `orders.eu` is one; the empty name, `orders..eu`, `.eu`, `orders.`, `orders.*` and `>` are none.
pub fn check(name: &str) -> Result<(), NameErrorReason> {
    if name.is_empty() {
        return Err(NameErrorReason::Empty);
    }
    for token in name.split('.') {
        match token {
            "" => return Err(NameErrorReason::EmptyToken),
            "*" | ">" => return Err(NameErrorReason::Wildcard),
            _ => {}
        }
    }
    Ok(())
}

/// [`check`], with the name in the error.
pub fn checked(name: &str) -> Result<(), NameError> {
    check(name).map_err(|reason| NameError { name: name.to_owned(), reason })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_are_dotted_tokens() {
        for name in ["a", "a.b", "orders.eu.created", "a*", "*a.b>", "a >", "ü.ß", " ", "a\0b", "**", ">>"]
        {
            assert_eq!(check(name), Ok(()), "{name:?}");
        }
        for (name, reason) in [
            ("", NameErrorReason::Empty),
            (".", NameErrorReason::EmptyToken),
            ("a.", NameErrorReason::EmptyToken),
            (".a", NameErrorReason::EmptyToken),
            ("a..b", NameErrorReason::EmptyToken),
            ("*", NameErrorReason::Wildcard),
            ("a.*.b", NameErrorReason::Wildcard),
            ("a.>", NameErrorReason::Wildcard),
            (">.a", NameErrorReason::Wildcard),
        ] {
            assert_eq!(check(name), Err(reason), "{name:?}");
        }
    }
}
