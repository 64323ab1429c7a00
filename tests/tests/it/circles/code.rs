//! Rust code as tokens, without comments, texts and tests.

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token {
    /// A name, a keyword or a number.
    Word(String),
    /// `::`
    Colons,
    /// Any other character.
    Mark(char),
}

impl Token {
    pub(super) fn is_word(&self, text: &str) -> bool {
        matches!(self, Token::Word(word) if word == text)
    }
}

/// Returns the tokens of a file that the crate has outside tests.
pub(super) fn code(text: &str) -> Vec<Token> {
    without_tests(&tokens(text))
}

fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut rest) = (Vec::new(), &chars[..]);
    while let Some(first) = rest.first().copied() {
        let length = match rest {
            ['/', '/', ..] => through(rest, &['\n']),
            ['/', '*', inside @ ..] => 2 + through(inside, &['*', '/']),
            ['"', ..] => text_length(rest),
            ['\'', ..] => quote_length(rest),
            [':', ':', ..] => {
                tokens.push(Token::Colons);
                2
            }
            _ if is_in_word(first) => {
                let word: String = rest.iter().copied().take_while(|c| is_in_word(*c)).collect();
                let length = word.chars().count();
                let raw = raw_text_length(&word, &rest[length..]);
                if raw == 0 {
                    tokens.push(Token::Word(word));
                }
                length + raw
            }
            _ => {
                if !first.is_whitespace() {
                    tokens.push(Token::Mark(first));
                }
                1
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    tokens
}

fn is_in_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns the number of characters up to the last one of `end`. If `end` is missing, all are.
fn through(chars: &[char], end: &[char]) -> usize {
    let start = chars.windows(end.len()).position(|window| window == end);
    start.map_or(chars.len(), |start| start + end.len())
}

/// Returns the length of a text between quotes.
fn text_length(chars: &[char]) -> usize {
    let mut at = 1;
    while let Some(character) = chars.get(at) {
        match character {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// Returns the length of a character between quotes, or of a lifetime.
fn quote_length(chars: &[char]) -> usize {
    match chars {
        [_, '\\', _, after @ ..] => 3 + through(after, &['\'']),
        [_, _, '\'', ..] => 3,
        _ => 1 + chars.iter().skip(1).take_while(|c| is_in_word(**c)).count(),
    }
}

/// Returns the length of a raw text after its prefix `r`, `br` or `cr`. 0 if there is none.
fn raw_text_length(prefix: &str, after: &[char]) -> usize {
    let hashes = after.iter().take_while(|c| **c == '#').count();
    if !["r", "br", "cr"].contains(&prefix) || after.get(hashes) != Some(&'"') {
        return 0;
    }
    let mut end = vec!['"'];
    end.resize(1 + hashes, '#');
    hashes + 1 + through(&after[hashes + 1..], &end)
}

/// Removes the items that only tests or the documentation have.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let (mut kept, mut rest) = (Vec::new(), tokens);
    while let Some(first) = rest.first() {
        let attribute = test_attribute_length(rest);
        if attribute == 0 {
            kept.push(first.clone());
            rest = &rest[1..];
        } else {
            rest = &rest[attribute..];
            rest = &rest[item_length(rest)..];
        }
    }
    kept
}

/// Returns the length of a `#[cfg(test)]`, `#[cfg(all(test, ..))]` or `#[cfg(doc)]`. 0 if there is
/// none.
fn test_attribute_length(tokens: &[Token]) -> usize {
    let [Token::Mark('#'), Token::Mark('['), cfg, Token::Mark('('), inside @ ..] = tokens else {
        return 0;
    };
    let condition = match inside {
        [all, Token::Mark('('), first, ..] if all.is_word("all") => first,
        [first, ..] => first,
        [] => return 0,
    };
    if !cfg.is_word("cfg") || !(condition.is_word("test") || condition.is_word("doc")) {
        return 0;
    }
    let end = tokens.iter().position(|token| *token == Token::Mark(']'));
    end.map_or(0, |end| end + 1)
}

/// Returns the length of an item, up to its `;` or the end of its block.
fn item_length(tokens: &[Token]) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark(';') if depth == 0 => return at + 1,
            Token::Mark('}') if depth == 1 => return at + 1,
            Token::Mark('(' | '[' | '{') => depth += 1,
            // The end of what the item is in.
            Token::Mark(')' | ']' | '}') if depth == 0 => return at,
            Token::Mark(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}
