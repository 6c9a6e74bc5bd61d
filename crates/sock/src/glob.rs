//! Patterns of names, as fnmatch(3) with flags 0 takes them.

/// Whether the name matches.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern {
        [] => name.is_empty(),
        [b'*', rest @ ..] => (0..=name.len()).any(|skip| matches(rest, name.get(skip..).unwrap_or_default())),
        _ => {
            let Some((first, others)) = name.split_first() else { return false };
            match one(pattern, *first) {
                Some((true, rest)) => matches(rest, others),
                _ => false,
            }
        }
    }
}

/// Whether the pattern's first element takes this byte, and what follows the element.
fn one(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    match pattern {
        [b'?', rest @ ..] => Some((true, rest)),
        [b'\\', literal, rest @ ..] => Some((*literal == byte, rest)),
        [b'[', rest @ ..] => set(rest, byte).or(Some((byte == b'[', rest))),
        [literal, rest @ ..] => Some((*literal == byte, rest)),
        [] => None,
    }
}

/// A bracket expression behind its `[`. `None`: it has no end, and the bracket stands for itself.
fn set(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match pattern {
        [b'!' | b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (mut found, mut first) = (false, true);
    loop {
        rest = match rest {
            [b']', rest @ ..] if !first => return Some((found != negated, rest)),
            [from, b'-', to, rest @ ..] if *to != b']' => {
                found |= (*from..=*to).contains(&byte);
                rest
            }
            [literal, rest @ ..] => {
                found |= *literal == byte;
                rest
            }
            [] => return None,
        };
        first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_fnmatch_does() {
        let cases = [
            ("*", "", true),
            ("*", "a/.b", true),
            ("redis-*", "redis-server", true),
            ("redis-*", "redis", false),
            ("?gin?", "nginx", true),
            ("[a-m]ginx", "nginx", false),
            ("[!a-m]ginx", "nginx", true),
            ("[]x]", "]", true),
            ("[ab", "[ab", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("*a*b*", "xxaxxbxx", true),
            ("", "a", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
